"""`keepclose traffic`: opens real connections to a Service of a running lab, and shows their zones.

The lab opens the connections and judges them; this command asks it and renders the report.
"""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, ask_lab
from keepclose.cli.options import DirectionOption, join_namespace
from keepclose.cli.render.output import OutputFormat, TableOrJson, echo_json

if TYPE_CHECKING:
    from keepclose.cli.render.progress import Advance


class Family(StrEnum):
    """The address families of a Service."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"


def traffic(
    service: Annotated[
        str, typer.Argument(metavar="[NAMESPACE/]SERVICE", help="The Service to connect to.")
    ],
    *,
    namespace: Annotated[
        str,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAMESPACE",
            help="The Service's namespace, if not default.",
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ZONE|NODE|POD|outside",
            help="The clients: all nodes of a zone, one node, one pod, or the host outside. "
            "Default: every zone.",
        ),
    ] = "",
    connections: Annotated[
        int,
        typer.Option(min=1, max=1_000_000, metavar="N", help="Connections from each zone."),
    ] = 1000,
    udp: Annotated[
        bool, typer.Option("--udp", help="Send datagrams instead of opening TCP connections.")
    ] = False,
    port: Annotated[
        str,
        typer.Option(metavar="NAME|NUMBER", help="Port of the Service; default the first."),
    ] = "",
    family: Annotated[
        Family | None, typer.Option(help="Address family; default the Service's first.")
    ] = None,
    via: Annotated[
        DirectionOption | None,
        typer.Option(help="Connect from outside to this address of the Service."),
    ] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Show node to node too.")] = False,
    output: OutputFormat = TableOrJson.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Open real connections to a Service, and show where they go.

    The table shows the expected shares beside the measured ones. Exit codes: 0 all as expected, 1
    connections failed or went elsewhere, 2 bad input, 3 no such Service or nothing to connect to,
    4 no cluster runs, 5 the cluster has no packets.
    """
    params = {
        "service": join_namespace(service, namespace),
        "from": source,
        "connections": connections,
        "udp": udp,
        "port": port,
        "family": family.value if family else "",
        "via": via.value if via else "",
    }
    with ExitStack() as stack:
        document = ask_lab(data_dir, "traffic", params, on_progress=_LazyBar(stack).show)
    is_fine = _show(document, output, by_node=nodes)
    raise typer.Exit(ExitCode.OK if is_fine else ExitCode.FOUND)


class _LazyBar:
    """A progress bar that appears with the first progress report, which holds the total."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._advance: Advance | None = None

    def show(self, progress: dict[str, Any]) -> None:
        """Show how much is done."""
        from keepclose.cli.render.progress import shown_progress

        if self._advance is None:
            self._advance = self._stack.enter_context(shown_progress(progress["of"], "connections"))
        self._advance(progress["done"])


def _show(document: dict[str, Any], output: TableOrJson, *, by_node: bool) -> bool:
    import msgspec

    from keepclose.lab.traffic.report import TrafficReport

    report = msgspec.convert(document, TrafficReport)
    if output is TableOrJson.JSON:
        echo_json(report)
    else:
        from keepclose.cli.render.screen import Screen
        from keepclose.cli.render.traffic_table import print_traffic

        print_traffic(Screen(), report, by_node=by_node)
    return report.is_fine
