"""`keepclose flows`: counts the connections and bytes of this node, by Service and zone.

Reads and checks the options and runs `flows.process`. It never changes how traffic is routed.
"""

from __future__ import annotations

import logging
import socket
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.flows_read import read
from keepclose.cli.flows_top import top as top_command
from keepclose.cli.options import (
    KubeContext,
    choose_cluster,
    read_address_or_none,
    read_duration,
)
from keepclose.cli.render.output import echo_document, echo_json, say
from keepclose.cli.startup import import_lean

if TYPE_CHECKING:
    from keepclose.accounting.flow_table import Detail, FlowTable
    from keepclose.flows.settings import FlowSettings
    from keepclose.kube.connection import ConnectionSettings
    from keepclose.runtime.pages import ListenAddress

app = typer.Typer(name="flows", rich_markup_mode=None)
app.command()(read)
app.command(name="top")(top_command)
_DETAILS: Final = ("nodes", "workloads", "pods")


class FlowOutput(StrEnum):
    """The form of a flow table."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


@app.callback(invoke_without_command=True)
def flows(
    context: typer.Context,
    *,
    node_name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of this machine's Node; default: hostname.")
    ] = "",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="How to reach the cluster; default: with --once a running lab, else the "
            "kubeconfig that kubectl uses.",
        ),
    ] = None,
    kube_context: KubeContext = "",
    cluster_cidr: Annotated[
        str,
        typer.Option(
            metavar="RANGES",
            help="Ranges of all pods and Services: an address in them is not outside the cluster.",
        ),
    ] = "",
    subnet: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR=ZONE",
            help="The zone of a range outside the cluster, such as that of a database; repeatable.",
        ),
    ] = None,
    detail: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="What flows are counted by besides Services and zones: nodes, workloads, pods.",
        ),
    ] = "",
    walk_period: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How often bytes of open connections are counted."),
    ] = "30s",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where counts are kept, so that a restart continues with them."
        ),
    ] = None,
    enable_accounting: Annotated[
        bool,
        typer.Option(
            "--enable-accounting",
            help="Let the kernel count bytes: set net.netfilter.nf_conntrack_acct to 1.",
        ),
    ] = False,
    top: Annotated[
        int,
        typer.Option(
            metavar="N", help="How many Services have metrics of their own; others are summed up."
        ),
    ] = 1000,
    all_pods: Annotated[
        bool | None,
        typer.Option(
            "--all-pods/--own-pods",
            help="Which pods are watched; default: all while Nodes' pod CIDRs do not tell whose "
            "an address is.",
        ),
    ] = None,
    metrics_bind_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where /metrics and /flows are served; port 0 takes any free one, none serves "
            "nothing.",
        ),
    ] = "127.0.0.1:10247",
    once: Annotated[
        bool, typer.Option("--once", help="Print the connections that are open now, and stop.")
    ] = False,
    output: Annotated[
        FlowOutput, typer.Option("--output", "-o", help="The form of what --once prints.")
    ] = FlowOutput.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Count connections and bytes of this node, by Service and zone.

    Needs the capability NET_ADMIN and the node's own network namespace. Runs until it is stopped.
    Exit codes: 0 stopped or done, 2 bad input, no connection tracking or a checkpoint that another
    agent uses, 3 no Node of that name (with --once), 4 the cluster does not answer or denies
    access, 5 no rights.
    """
    if context.invoked_subcommand is not None:
        return
    if once and checkpoint is not None:
        fail(
            "--once and --checkpoint exclude each other: a checkpoint has what was counted before, "
            "and --once prints what is open now"
        )
    import_lean("keepclose.flows.process", "keepclose.kube.auth.kubeconfig")
    settings = _read_settings(
        node_name=node_name,
        detail=_read_detail(detail),
        cluster_cidr=cluster_cidr,
        subnets=subnet or [],
        walk_period=walk_period,
        checkpoint=checkpoint,
        enable_accounting=enable_accounting,
        top=top,
        all_pods=all_pods,
    )
    pages = _read_pages(metrics_bind_address)
    if once:
        cluster = choose_cluster(
            kubeconfig,
            kube_context,
            data_dir,
            other="it has the names and zones of the addresses that the kernel counts by",
        )
        connection = cluster.connection
    else:
        connection = _read_connection(kubeconfig, kube_context)
    _run(settings, connection, pages=pages, once=output if once else None)


def _read_settings(
    *,
    node_name: str,
    detail: Detail,
    cluster_cidr: str,
    subnets: list[str],
    walk_period: str,
    checkpoint: Path | None,
    enable_accounting: bool,
    top: int,
    all_pods: bool | None,
) -> FlowSettings:
    from keepclose.flows.settings import FlowSettings, flow_settings_errors

    pairs = []
    for text in subnets:
        cidr, _, zone = text.partition("=")
        pairs.append((cidr.strip(), zone.strip()))
    settings = FlowSettings(
        node_name=node_name or socket.gethostname().strip().lower(),
        detail=detail,
        cluster_ranges=tuple(part.strip() for part in cluster_cidr.split(",") if part.strip()),
        subnets=tuple(pairs),
        walk_s=read_duration("--walk-period", walk_period),
        checkpoint=checkpoint,
        enables_accounting=enable_accounting,
        most_services=top,
        watches_all_pods=all_pods,
    )
    errors = flow_settings_errors(settings)
    if checkpoint is not None and not checkpoint.absolute().parent.is_dir():
        errors.append(f"checkpoint: the directory {checkpoint.absolute().parent} does not exist")
    if errors:
        fail("; ".join(f"--{error}" for error in errors))
    return settings


def _read_detail(text: str) -> Detail:
    from keepclose.accounting.flow_table import Detail

    wanted = {part.strip() for part in text.split(",") if part.strip()}
    if unknown := sorted(wanted - set(_DETAILS)):
        fail(f"--detail: {unknown[0]!r} must be some of {', '.join(_DETAILS)}")
    return Detail(*(name in wanted for name in _DETAILS))


def _read_pages(text: str) -> ListenAddress | None:
    from keepclose.runtime.pages import ListenAddress

    host_and_port = read_address_or_none("--metrics-bind-address", text)
    return None if host_and_port is None else ListenAddress(*host_and_port)


def _read_connection(kubeconfig: Path | None, context: str) -> ConnectionSettings:
    """Return how an agent reaches its cluster: in a pod, by the pod's own account."""
    from keepclose.kube.auth.kubeconfig import load_connection_settings
    from keepclose.kube.errors import ConfigError

    try:
        return load_connection_settings(kubeconfig, context=context or None)
    except ConfigError as error:
        fail(str(error), "the agent needs the names and zones of addresses, which the cluster has")


def _run(
    settings: FlowSettings,
    connection: ConnectionSettings,
    *,
    pages: ListenAddress | None,
    once: FlowOutput | None,
) -> None:
    from keepclose.cli.startup import log_to_standard_error
    from keepclose.flows import process
    from keepclose.flows.agent import UnknownNodeError
    from keepclose.flows.checkpoint import CheckpointUnavailableError
    from keepclose.flows.collector import ConntrackUnavailableError
    from keepclose.kube.errors import ApiError, BrokenStream, ConfigError, Forbidden, Unauthorized
    from keepclose.runtime.pages import ListenError

    # A table says what is wrong in its notes, so that warnings in the log would say it twice.
    log_to_standard_error(logging.NOTSET if once is None else logging.CRITICAL)
    try:
        if once is not None:
            _show(process.read_present(settings, connection), once)
        else:
            process.run_agent(
                settings, connection, pages=pages, on_ready=lambda ready: say(ready.text)
            )
    except ConfigError as error:
        fail(str(error))
    except ConntrackUnavailableError as error:
        code = ExitCode.PRIVILEGE if error.needs_privilege else ExitCode.BAD_INPUT
        fail(str(error), error.fix, code=code)
    except CheckpointUnavailableError as error:
        fail(f"--checkpoint: {error}", error.fix)
    except UnknownNodeError as error:
        fail(str(error), error.fix, code=ExitCode.NOTHING)
    except (Forbidden, Unauthorized) as error:
        fail(
            f"the cluster denies access: {error}",
            "the agent needs to list and watch nodes, pods, services and endpointslices: use the "
            "role of docs/howto/flows.yaml, or the kubeconfig of another user",
            code=ExitCode.UNREACHABLE,
        )
    except (ApiError, BrokenStream) as error:
        fail(
            f"the server does not answer as an API server: {error}",
            "check the server that the kubeconfig names",
            code=ExitCode.UNREACHABLE,
        )
    except TimeoutError:
        fail(
            "the cluster did not answer in time",
            "check the server that the kubeconfig names",
            code=ExitCode.UNREACHABLE,
        )
    except ListenError as error:
        fail(f"--metrics-bind-address: {error}; choose another address, or none to serve no pages")
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(str(error))


def _show(table: FlowTable, output: FlowOutput) -> None:
    from keepclose.accounting.flow_files import flow_document, write_csv, write_json_lines
    from keepclose.cli.flow_sources import show_notes

    if output is FlowOutput.JSON:
        echo_json(flow_document(table))
    elif output is FlowOutput.CSV:
        echo_document("".join(write_csv(table)))
        # A file of CSV has no place for them.
        show_notes(table)
    elif output is FlowOutput.JSONL:
        echo_document("".join(write_json_lines(table)))
    else:
        say(*_describe(table), *(f"note: {note}" for note in table.notes))


def _describe(table: FlowTable) -> list[str]:
    """Return a plain table, the flows with most bytes first."""
    heads = ("TO", "PORT", "FROM ZONE", "TO ZONE", "CONNECTIONS", "FAILED", "SENT", "RECEIVED")
    rows = [heads]
    ranked = sorted(table, key=lambda row: (-row[1].total_bytes, -row[1].connections, row[0]))
    for key, counts in ranked:
        to = f"{key.namespace}/{key.service}" if key.service else f"({key.kind})"
        rows.append(
            (
                to,
                f"{key.port or '-'}/{key.protocol}",
                key.client_zone,
                key.endpoint_zone,
                f"{counts.connections:,}",
                f"{counts.refused + counts.unanswered:,}",
                f"{counts.request_bytes:,}" if table.has_bytes else "?",
                f"{counts.response_bytes:,}" if table.has_bytes else "?",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return ["  ".join(_align(row, widths)).rstrip() for row in rows]


def _align(row: tuple[str, ...], widths: list[int]) -> list[str]:
    texts = 4
    return [
        cell.ljust(width) if column < texts else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
