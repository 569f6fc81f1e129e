"""`keepclose proxy`: routes the Services of a cluster on this node, with nftables.

Reads and checks the options, which are kube-proxy's where kube-proxy has them, and runs
`proxy.process`. A failure ends the command with an exit code and a fix; rules that are in the
kernel stay when it stops, as with kube-proxy.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.options import (
    LocalMode,
    WriterOption,
    read_address_or_none,
    read_duration,
    read_gates,
)
from keepclose.cli.proxy_status import status
from keepclose.cli.render.output import say
from keepclose.cli.startup import import_lean

if TYPE_CHECKING:
    from keepclose.proxy.nft.select_writer import WriterName
    from keepclose.proxy.settings import ProxySettings
    from keepclose.runtime.pages import ListenAddress

app = typer.Typer(name="proxy", rich_markup_mode=None)
app.command()(status)


@app.callback(invoke_without_command=True)
def proxy(
    context: typer.Context,
    *,
    node_name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of this machine's Node; default: hostname.")
    ] = "",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How to reach the cluster; default as kubectl has it."),
    ] = None,
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Write all rules once and stop.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be written, and stop.")
    ] = False,
    cleanup: Annotated[
        bool, typer.Option("--cleanup", help="Remove all rules of the proxy, and stop.")
    ] = False,
    sync_period: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="The longest backoff after a failure, and between checks."
        ),
    ] = "30s",
    min_sync_period: Annotated[
        str, typer.Option(metavar="DURATION", help="The least time between two syncs.")
    ] = "1s",
    detect_local_mode: Annotated[
        LocalMode, typer.Option(help="How traffic of the node's own pods is identified.")
    ] = LocalMode.NODE_CIDR,
    cluster_cidr: Annotated[
        str, typer.Option(metavar="RANGES", help="Ranges of all pods, for ClusterCIDR.")
    ] = "",
    pod_bridge_interface: Annotated[
        str, typer.Option(metavar="NAME", help="The bridge of the pods, for BridgeInterface.")
    ] = "",
    pod_interface_name_prefix: Annotated[
        str,
        typer.Option(
            metavar="PREFIX", help="Prefix of the pods' interfaces, for InterfaceNamePrefix."
        ),
    ] = "",
    masquerade_all: Annotated[
        bool, typer.Option("--masquerade-all", help="Masquerade all traffic to cluster IPs.")
    ] = False,
    masquerade_bit: Annotated[
        int, typer.Option(metavar="N", help="The bit of the packet mark for masquerading, 0 to 31.")
    ] = 14,
    nodeport_addresses: Annotated[
        str,
        typer.Option(
            metavar="RANGES", help="Where node ports answer: ranges, primary, localhost or all."
        ),
    ] = "primary",
    bind_address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The node's address; wins over that of the Node.")
    ] = "",
    table: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the nftables table.")
    ] = "kube-proxy",
    writer: Annotated[
        WriterOption, typer.Option(help="How the proxy writes rules into the kernel.")
    ] = WriterOption.AUTO,
    counters: Annotated[
        bool, typer.Option(help="Count connections by zone, and rejected ones, for each Service.")
    ] = True,
    acknowledge: Annotated[
        bool,
        typer.Option(
            help="Publish in a ConfigMap which hints are in effect, while the feature gate "
            "ServiceTrafficDistributionStatus is on."
        ),
    ] = True,
    tune_conntrack: Annotated[
        bool,
        typer.Option(help="Set the kernel's limits of connection tracking as kube-proxy does."),
    ] = True,
    metrics_bind_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where /metrics, /proxyMode and /debug/services.json are served; port 0 takes any "
            "free one, none serves nothing.",
        ),
    ] = "127.0.0.1:10249",
    healthz_bind_address: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where /healthz and /livez are served, or none."),
    ] = "0.0.0.0:10256",
) -> None:
    """Route Services on this node, close to their clients.

    Runs until it is stopped; the rules stay then. Exit codes: 0 stopped or done, 1 rules could
    not be written, 2 bad input or a missing requirement, 3 no such Node, 4 the cluster does not
    answer or denies access.
    """
    if context.invoked_subcommand is not None:
        return
    if once + dry_run + cleanup > 1:
        fail("--once, --dry-run and --cleanup exclude each other")
    import_lean("keepclose.proxy.process", "keepclose.kube.auth.kubeconfig")
    settings = _read_settings(
        node_name=node_name,
        feature_gates=feature_gates,
        sync_period=sync_period,
        min_sync_period=min_sync_period,
        detect_local_mode=detect_local_mode.value,
        cluster_cidr=cluster_cidr,
        pod_interface=pod_bridge_interface or pod_interface_name_prefix,
        masquerade_all=masquerade_all,
        masquerade_bit=masquerade_bit,
        nodeport_addresses=nodeport_addresses,
        bind_address=bind_address,
        table=table,
        counters=counters,
        acknowledge=acknowledge,
    )
    pages = _read_address("--metrics-bind-address", metrics_bind_address)
    health = _read_address("--healthz-bind-address", healthz_bind_address)
    action = "once" if once else "dry-run" if dry_run else "cleanup" if cleanup else ""
    _run(
        settings,
        action,
        kubeconfig=kubeconfig,
        writer=writer,
        pages=pages,
        health=health,
        tunes=tune_conntrack,
    )


def _read_settings(
    *,
    node_name: str,
    feature_gates: str,
    sync_period: str,
    min_sync_period: str,
    detect_local_mode: str,
    cluster_cidr: str,
    pod_interface: str,
    masquerade_all: bool,
    masquerade_bit: int,
    nodeport_addresses: str,
    bind_address: str,
    table: str,
    counters: bool,
    acknowledge: bool,
) -> ProxySettings:
    from keepclose.proxy.process import find_families
    from keepclose.proxy.settings import DetectLocalMode, ProxySettings, proxy_settings_errors

    settings = ProxySettings(
        node_name=node_name or socket.gethostname().strip().lower(),
        gates=read_gates(feature_gates),
        families=find_families(),
        table=table,
        min_sync_s=read_duration("--min-sync-period", min_sync_period),
        sync_s=read_duration("--sync-period", sync_period),
        detect_local=DetectLocalMode(detect_local_mode),
        cluster_cidrs=_split(cluster_cidr),
        pod_interface=pod_interface,
        masquerade_all=masquerade_all,
        masquerade_bit=masquerade_bit,
        node_port_addresses=_split(nodeport_addresses),
        bind_address=bind_address,
        counts_connections=counters,
        acknowledges=acknowledge,
    )
    errors = proxy_settings_errors(settings)
    if errors:
        fail("; ".join(f"--{error}" for error in errors))
    return settings


def _read_address(option: str, text: str) -> ListenAddress | None:
    from keepclose.runtime.pages import ListenAddress

    host_and_port = read_address_or_none(option, text)
    return None if host_and_port is None else ListenAddress(*host_and_port)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _run(
    settings: ProxySettings,
    action: str,
    *,
    kubeconfig: Path | None,
    writer: WriterOption,
    pages: ListenAddress | None,
    health: ListenAddress | None,
    tunes: bool,
) -> None:
    import structlog

    from keepclose.cli.startup import log_to_standard_error
    from keepclose.kube.auth.kubeconfig import load_connection_settings
    from keepclose.kube.errors import (
        ApiError,
        BrokenStream,
        ConfigError,
        Forbidden,
        Unauthorized,
    )
    from keepclose.proxy import process
    from keepclose.proxy.assembly import NodeMissingError
    from keepclose.proxy.conntrack import ConntrackSettings
    from keepclose.proxy.nft.select_writer import NftablesUnavailableError
    from keepclose.proxy.nft.writer import NftError
    from keepclose.proxy.settings import proxy_settings_warnings
    from keepclose.runtime.pages import ListenError

    writer_name: WriterName = writer.value
    try:
        connection = None if action == "cleanup" else load_connection_settings(kubeconfig)
        log_to_standard_error()
        for warning in proxy_settings_warnings(settings):
            structlog.get_logger(__name__).warning(warning)
        if connection is None:
            process.remove_tables(settings, writer=writer_name)
        elif action == "once":
            process.run_once(settings, connection, writer=writer_name)
        elif action == "dry-run":
            process.show_transactions(
                settings, connection, show=_show_transaction, writer=writer_name
            )
        else:
            process.run_proxy(
                settings,
                connection,
                host_settings=process.ProxyHostSettings(
                    writer_name, pages, health, ConntrackSettings() if tunes else None
                ),
                on_ready=lambda ready: say(ready.text),
            )
    except (ConfigError, NftablesUnavailableError) as error:
        fail(str(error))
    except NodeMissingError as error:
        fail(
            str(error),
            "name it with --node-name as kubectl get nodes lists it",
            code=ExitCode.NOTHING,
        )
    except (Forbidden, Unauthorized) as error:
        fail(
            f"the cluster denies access: {error}",
            "the proxy needs to get, list and watch nodes, services and endpointslices: use the "
            "role of docs/howto/proxy.yaml, or the kubeconfig of another user",
            code=ExitCode.UNREACHABLE,
        )
    except (ApiError, BrokenStream) as error:
        fail(
            f"{connection.server.url if connection else 'the server'} does not answer as an API "
            f"server: {error}",
            "check the server that the kubeconfig names",
            code=ExitCode.UNREACHABLE,
        )
    except TimeoutError as error:
        fail(f"the cluster did not answer in time: {error}", code=ExitCode.UNREACHABLE)
    except NftError as error:
        fail(f"rules could not be written: {error}", code=1)
    except ListenError as error:
        fail(f"--metrics-bind-address: {error}; choose another address, or none to serve no pages")
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(str(error))


def _show_transaction(text: str) -> None:
    """Print a transaction line by line, made plain: comments of rules hold names of Services."""
    say(*text.removesuffix("\n").split("\n"))
