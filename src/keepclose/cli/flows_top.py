"""`keepclose flows top`: which Services send how much across zones, live.

Reads the tables of flow agents: those of the running lab, of a cluster through its API server, or
of any source that `--flows` names. Each agent counts from its own start, so rates are differences
of two tables of the same agent; an agent that restarts or appears later distorts no rate. The rate
of a Prometheus is the mean of its window. A source that does not answer is named below the table,
and its last counts stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn
from urllib.parse import parse_qsl

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, ask_lab, fail
from keepclose.cli.flow_sources import NO_CLUSTER, WALK_QUERY, is_file, name_source, name_tables
from keepclose.cli.options import (
    ChosenCluster,
    FlowGrouping,
    FlowOrder,
    Kubeconfig,
    KubeContext,
    choose_cluster,
    read_duration,
)
from keepclose.cli.render.output import echo_document, echo_json

if TYPE_CHECKING:
    from keepclose.accounting.flow_table import FlowTable
    from keepclose.cli.render.flows_table import FlowReading
    from keepclose.cli.render.screen import Screen
    from keepclose.kube.client import Client
    from keepclose.kube.connection import ConnectionSettings

_DEFAULT_LINES: Final = 20
# Above the lines of Services: at most six of sums, a blank one and the header; below, two of notes.
_OTHER_LINES: Final = 10
_LEAST_INTERVAL_S: Final = 0.2
AGENT_LABEL: Final = "app.kubernetes.io/name=keepclose-flows"
AGENT_PORT: Final = 10247
"""The port of an agent whose pod names none."""
_PORT_NAMES: Final = ("metrics", "http-metrics", "pages")
_AT_ONCE: Final = 16
_WALK: Final = tuple(parse_qsl(WALK_QUERY))


class FlowsFormat(StrEnum):
    """Output formats of `flows top`."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    JSON_LINES = "jsonl"


class Readings(NamedTuple):
    """The tables of all agents that answered, by source, and what the others said."""

    tables: dict[str, FlowTable]
    errors: dict[str, str]


ReadAll = Callable[[], Readings]


def top(
    service: Annotated[
        str,
        typer.Argument(metavar="[NAMESPACE/]SERVICE", help="One Service; default: all traffic."),
    ] = "",
    *,
    flows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Read this file, agent (http://HOST:PORT) or Prometheus; may be repeated. "
            "Default: all agents of the cluster.",
        ),
    ] = None,
    by: Annotated[FlowGrouping, typer.Option(help="What a line is about.")] = FlowGrouping.SERVICE,
    sort: Annotated[
        FlowOrder, typer.Option(help="What comes first: the lines with most of this.")
    ] = FlowOrder.CROSS_ZONE,
    lines: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--lines",
            min=0,
            metavar="N",
            help="How many lines; 0 shows all.",
            show_default=str(_DEFAULT_LINES),
        ),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="The time between two readings.")
    ] = "2s",
    once: Annotated[
        bool, typer.Option("--once", help="Print the counts so far and stop, as for a pipe.")
    ] = False,
    output: Annotated[
        FlowsFormat,
        typer.Option("-o", "--output", help="Output format; csv and jsonl hold all flows."),
    ] = FlowsFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Show which Services send how much across zones.

    On a terminal the table refreshes until Ctrl-C, with rates since the last reading. Elsewhere,
    and with --once, it is printed once, with all that was counted. Exit codes: 0 shown, 2 bad
    input, 3 no agents, 4 they cannot be reached, 5 no privilege.
    """
    interval_s = max(read_duration("--interval", interval), _LEAST_INTERVAL_S)
    if flows and (kubeconfig or context):
        fail("--flows: name sources or a cluster, not both")
    if flows:
        read_all: ReadAll = _NamedSources(flows)
    else:
        cluster = choose_cluster(kubeconfig, context, data_dir, other=NO_CLUSTER)
        read_all = partial(read_agents, cluster)
    if service:
        read_all = _of_service(read_all, service)
    first = read_all()
    if not first.tables:
        fail_unread(first)
    tally = Tally(first)
    if output is not FlowsFormat.TABLE:
        _write(tally.reading, output, by, sort)
        return
    from keepclose.cli.render.screen import Screen

    screen = Screen()
    is_live = screen.is_terminal and not screen.is_dumb_terminal and not once
    if is_live and not (flows and all(map(is_file, flows))):
        _show_live(screen, tally, read_all, _View(by, sort, lines), interval_s)
    else:
        _View(by, sort, lines).print(screen, tally.reading)


class Tally:
    """The latest tables of all sources, and their differences to those before."""

    def __init__(self, first: Readings) -> None:
        self._tables = dict(first.tables)
        self._time = time.monotonic()
        self.reading = self._make(None, 0.0, first.errors)

    def take(self, readings: Readings) -> None:
        """Take new tables; a source that is not among them keeps its last one."""
        from keepclose.accounting.flow_table import count_between

        now = time.monotonic()
        counters = {
            source: table for source, table in readings.tables.items() if not table.is_window
        }
        later = count_between(self._tables, counters)
        self._tables |= readings.tables
        self.reading = self._make(later, now - self._time, readings.errors)
        self._time = now

    def _make(self, later: FlowTable | None, seconds: float, errors: dict[str, str]) -> FlowReading:
        from keepclose.accounting.flow_table import FlowTable
        from keepclose.cli.render.flows_table import FlowReading

        total = FlowTable()
        for table in self._tables.values():
            total.merge(table)
        total.notes += [f"{source} does not answer: {why}" for source, why in errors.items()]
        return FlowReading(total, later, seconds, len(self._tables), tuple(self._tables.values()))


class _View(NamedTuple):
    """How the user wants the table."""

    by: FlowGrouping
    sort: FlowOrder
    lines: int | None

    def print(self, screen: Screen, reading: FlowReading) -> None:
        """Print the table once."""
        most = _DEFAULT_LINES if self.lines is None else self.lines
        screen.print(self._render(screen, reading, most), soft_wrap=True)

    def render_live(self, screen: Screen, reading: FlowReading) -> object:
        """Return the table for the height of the terminal."""
        most = max(screen.height - _OTHER_LINES, 1)
        return self._render(screen, reading, min(self.lines or most, most))

    def _render(self, screen: Screen, reading: FlowReading, most: int) -> object:
        from keepclose.cli.render.flows_table import render_flows, summarise

        summary = summarise(reading, self.by, self.sort)
        return render_flows(summary, width=screen.width, most_lines=most)


def _show_live(
    screen: Screen, tally: Tally, read_all: ReadAll, view: _View, interval_s: float
) -> None:
    try:
        with screen.live() as live:
            while True:
                live.update(view.render_live(screen, tally.reading), refresh=True)  # type: ignore[arg-type]
                time.sleep(interval_s)
                tally.take(read_all())
    except KeyboardInterrupt:
        # The terminal shows again what it showed before; the last table stays below it.
        view.print(screen, tally.reading)


def _write(reading: FlowReading, output: FlowsFormat, by: FlowGrouping, sort: FlowOrder) -> None:
    if output is FlowsFormat.JSON:
        import msgspec

        from keepclose.cli.render.flow_reports import show_moment
        from keepclose.cli.render.flows_table import summarise

        summary = summarise(reading, by, sort)
        times = {"start": show_moment(summary.start), "end": show_moment(summary.end)}
        echo_json(msgspec.to_builtins(summary) | times)
        return
    from keepclose.accounting.flow_files import write_csv, write_json_lines

    write = write_csv if output is FlowsFormat.CSV else write_json_lines
    # The writers have made names plain. Each source keeps its period.
    for line in write(*reading.tables):
        echo_document(line)


def _of_service(read_all: ReadAll, service: str) -> ReadAll:
    """Return a reader of the flows of one Service."""
    from keepclose.cli.resolve import service_key

    wanted = service_key(service, "")

    def read() -> Readings:
        readings = read_all()
        tables = {
            source: table.selected(lambda key: (key.namespace, key.service) == wanted)
            for source, table in readings.tables.items()
        }
        if not any(table.rows for table in tables.values()):
            for table in [*tables.values()][:1]:
                table.notes = [*table.notes, f"no flows of {wanted} were counted"]
        return Readings(tables, readings.errors)

    return read


class _NamedSources:
    """Reads the sources of --flows; one that cannot be read at first ends the command."""

    def __init__(self, sources: list[str]) -> None:
        self._sources = sources
        self._still: dict[str, FlowTable] = {}
        """Files and standard input, which can be read once only."""
        self._has_read = False

    def __call__(self) -> Readings:
        from keepclose.cli.flow_sources import FlowSourceError, load_flow_tables

        readings = Readings(dict(self._still), {})
        for source in self._sources:
            if self._has_read and is_file(source):
                continue
            try:
                named = name_tables(source, load_flow_tables(source))
            except FlowSourceError as error:
                if not self._has_read:
                    fail(str(error), error.fix, code=error.code)
                readings.errors[name_source(source)] = str(error)
                continue
            readings.tables.update(named)
            if is_file(source):
                self._still |= named
        self._has_read = True
        return readings


def read_agents(cluster: ChosenCluster) -> Readings:
    """Return the tables of the agents of a cluster; one that does not answer ends the command."""
    if cluster.lab is not None:
        return _read_lab(cluster.lab)
    import asyncio

    import msgspec

    from keepclose.kube.errors import KubeError

    try:
        return asyncio.run(_read_cluster(cluster.connection))
    except (KubeError, msgspec.DecodeError) as error:
        fail(
            f"{cluster.url} does not list the flow agents: {error}",
            NO_CLUSTER,
            code=ExitCode.UNREACHABLE,
        )


def _read_lab(data_dir: Path) -> Readings:
    answer = ask_lab(data_dir, "flows")
    return _parse(answer["flows"], dict(answer["errors"]))


def _parse(pages: dict[str, str], errors: dict[str, str]) -> Readings:
    from keepclose.accounting.flow_files import FlowFileError, read_json_lines

    tables = {}
    for name, page in pages.items():
        try:
            tables[name] = read_json_lines(page.splitlines(), name=name)
        except FlowFileError as error:
            errors[name] = str(error)
    return Readings(tables, errors)


async def _read_cluster(settings: ConnectionSettings) -> Readings:
    """Return the tables of all agents of a cluster, through its API server; raises KubeError."""
    import asyncio

    from keepclose.kube.clock import SystemClock
    from keepclose.kube.connection import connect
    from keepclose.kube.errors import KubeError

    pages: dict[str, str] = {}
    errors: dict[str, str] = {}
    slots = asyncio.Semaphore(_AT_ONCE)

    async def read(client: Client, name: str, path: str) -> None:
        async with slots:
            try:
                pages[name] = (await client.raw("GET", path, query=_WALK)).decode()
            except (KubeError, UnicodeDecodeError) as error:
                errors[name] = str(error)

    async with connect(settings, clock=SystemClock()) as client:
        listed = await client.raw("GET", "/api/v1/pods", query=(("labelSelector", AGENT_LABEL),))
        async with asyncio.TaskGroup() as group:
            for name, path in find_agent_pages(listed).items():
                group.create_task(read(client, name, path))
    return _parse(pages, errors)


def find_agent_pages(pod_list: bytes) -> dict[str, str]:
    """Return the path of each agent's flows at the API server, by node, from a list of pods.

    Raises DecodeError of msgspec if it is no list of pods. Pods that do not run are left out.
    """
    import msgspec

    # NB: structs of a module would load msgspec for --help, and those of a function need values of
    # annotations, which are strings here.
    make: Any = msgspec.defstruct
    many: Any = list
    port = make("Port", [("container_port", int), ("name", str, "")], rename="camel")
    container = make("Container", [("ports", many[port], [])])
    spec = make(
        "Spec", [("node_name", str, ""), ("containers", many[container], [])], rename="camel"
    )
    meta_of_pod = make("Meta", [("name", str), ("namespace", str)])
    status = make("Status", [("phase", str, "")])
    pod_type = make("Pod", [("metadata", meta_of_pod), ("spec", spec), ("status", status)])
    pods: Any = msgspec.json.decode(pod_list, type=make("Pods", [("items", many[pod_type])]))
    found = {}
    for pod in pods.items:
        if pod.status.phase != "Running":
            continue
        ports = {
            port.name: port.container_port for each in pod.spec.containers for port in each.ports
        }
        named = [ports[name] for name in _PORT_NAMES if name in ports]
        number = (named or [*ports.values()] or [AGENT_PORT])[0]
        meta = pod.metadata
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{number}/proxy/flows"
        found[pod.spec.node_name or meta.name] = path
    return found


def fail_unread(readings: Readings) -> NoReturn:
    """End the command because no source has answered."""
    if readings.errors:
        source, why = next(iter(readings.errors.items()))
        fail(f"{source} does not answer: {why}", code=ExitCode.UNREACHABLE)
    fail(
        f"the cluster runs no pod with the label {AGENT_LABEL}",
        "run the agents: docs/howto/flows.md, or name a source with --flows",
        code=ExitCode.NOTHING,
    )
