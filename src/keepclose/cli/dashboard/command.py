"""`keepclose dashboard`: serves a web page of one cluster.

Reads and checks the options and runs `cli.dashboard.serving`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.inputs.cluster_input import read_lab_gates
from keepclose.cli.options import (
    AGENT_NAMESPACE,
    AgentNamespace,
    Kubeconfig,
    KubeContext,
    choose_cluster,
    read_address,
)
from keepclose.cli.render.output import say
from keepclose.cli.startup import import_lean, log_to_standard_error

if TYPE_CHECKING:
    from keepclose.cli.dashboard.serving import DashboardOptions

DEFAULT_ADDRESS: Final = "127.0.0.1:7070"


def dashboard(
    *,
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the page is served; port 0 takes any free one. Beyond loopback it has no "
            "encryption.",
        ),
    ] = DEFAULT_ADDRESS,
    allow_writes: Annotated[
        bool | None,
        typer.Option(
            "--allow-writes/--read-only",
            help="Whether the page may give a Service another mechanism; default: only in a lab.",
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    feature_gates: Annotated[
        str,
        typer.Option(
            metavar="A=true,B=false",
            help="Feature gates that differ from default; a lab has its own.",
        ),
    ] = "",
    agent_namespace: AgentNamespace = AGENT_NAMESPACE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Serve a web page of a cluster: zones, Services, where their traffic goes, and why.

    Prints the URL of the page, with a token, and follows the cluster until Ctrl-C. Exit codes: 0
    stopped, 2 bad input or the address is in use, 4 no API server answers or it denies access.
    """
    import_lean("keepclose.cli.dashboard.serving", "keepclose.kube.auth.kubeconfig")
    from keepclose.cli.dashboard.serving import DashboardOptions, is_loopback
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.runtime.pages import ListenAddress
    from keepclose.slices.settings import PlannerSettings

    listen = ListenAddress(*read_address("--address", address))
    cluster = choose_cluster(kubeconfig, context, data_dir)
    gates = read_lab_gates(feature_gates, cluster.lab)
    if not is_loopback(listen.host):
        say(
            f"warning: {listen} may be reached from other machines, and nothing is encrypted: "
            "the URL and its traffic show the cluster to every reader of them",
            err=True,
        )
    allows_writes = cluster.lab is not None if allow_writes is None else allow_writes
    settings = PlannerSettings(gates=gates, heuristics=find_heuristics(gates))
    _run(DashboardOptions(cluster, settings, listen, agent_namespace, allows_writes))


def _run(options: DashboardOptions) -> None:
    from keepclose.cli.dashboard.serving import serve_dashboard
    from keepclose.kube.clock import SystemClock
    from keepclose.kube.errors import ConfigError, Forbidden, KubeError, Unauthorized
    from keepclose.runtime.pages import ListenError
    from keepclose.runtime.program import run_program

    log_to_standard_error(logging.WARNING)
    mode = "may change Services" if options.allows_writes else "only reads"

    def show(url: str) -> None:
        say(f"dashboard of {options.cluster.name}, which {mode}; Ctrl-C stops it", url)

    try:
        run_program(serve_dashboard(options, clock=SystemClock(), on_ready=show))
    except ConfigError as error:
        fail(str(error))
    except ListenError as error:
        fail(f"--address: {error}", "choose another address, or port 0 for any free one")
    except (Forbidden, Unauthorized) as error:
        fail(
            f"the cluster denies access: {error}",
            "let this user list and watch services, endpointslices, nodes, pods and events",
            code=ExitCode.UNREACHABLE,
        )
    except (KubeError, TimeoutError) as error:
        fail(
            f"{options.cluster.url} does not answer: {error}",
            "check the server that the kubeconfig names",
            code=ExitCode.UNREACHABLE,
        )
