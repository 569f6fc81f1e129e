"""`keepclose flows top`: which Services send how much across zones, live.

Reads the tables of flow agents: those of the running lab, of a cluster through its API server, or
of any source that `--flows` names. Each agent counts from its own start, so rates are differences
of two tables of the same agent; an agent that restarts or appears later distorts no rate. The rate
of a Prometheus is the mean of its window. A source that does not answer is named below the table,
and its last counts stay; when it answers again, its rate is the mean since then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, NoReturn

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, ask_lab, fail
from keepclose.cli.flow_sources import (
    NO_CLUSTER,
    FlowSourceError,
    TextLines,
    check_sources,
    is_file,
    load_flow_tables,
    name_source,
    name_tables,
)
from keepclose.cli.options import (
    AGENT_NAMESPACE,
    AgentNamespace,
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
    from keepclose.kube.connection import ConnectionSettings
    from keepclose.model.meta import NamespacedName

_DEFAULT_LINES: Final = 20
# Above the lines of Services: at most six of sums, a blank one and the header; below, two of notes.
_OTHER_LINES: Final = 10
_LEAST_INTERVAL_S: Final = 0.2
MAX_AGENT_ROWS: Final = 1_000_000
"""The most rows of all agents together; in memory they take about 600 MiB."""


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
    notes: Sequence[str] = ()
    """What was not read, for people."""


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
    agent_namespace: AgentNamespace = AGENT_NAMESPACE,
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
        read_all = partial(read_agents, cluster, agent_namespace)
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
        _show_live(screen, tally, read_all, FlowsView(by, sort, lines), interval_s)
    else:
        FlowsView(by, sort, lines).print(screen, tally.reading)


class Tally:
    """The latest tables of all sources, and their differences to those before."""

    def __init__(self, first: Readings) -> None:
        self._tables = dict(first.tables)
        self._time = time.monotonic()
        self._times = dict.fromkeys(first.tables, self._time)
        """When each source answered last."""
        self.reading = self._make(None, 0.0, (), first)

    def take(self, readings: Readings) -> None:
        """Take new tables; a source that is not among them keeps its last one."""
        from keepclose.accounting.flow_table import count_between

        now = time.monotonic()
        counters: dict[float, dict[str, FlowTable]] = {self._time: {}}
        for source, table in readings.tables.items():
            if not table.is_window:
                since = self._times.get(source, self._time)
                counters.setdefault(since, {})[source] = table
        later = count_between(self._tables, counters.pop(self._time))
        late = tuple(
            (count_between(self._tables, tables), now - since) for since, tables in counters.items()
        )
        self._tables |= readings.tables
        self._times |= dict.fromkeys(readings.tables, now)
        self.reading = self._make(later, now - self._time, late, readings)
        self._time = now

    def _make(
        self,
        later: FlowTable | None,
        seconds: float,
        late: tuple[tuple[FlowTable, float], ...],
        readings: Readings,
    ) -> FlowReading:
        from keepclose.accounting.flow_table import FlowTable
        from keepclose.cli.render.flows_table import FlowReading

        total = FlowTable()
        for table in self._tables.values():
            total.merge(table)
        total.notes += readings.notes
        total.notes += [
            f"{source} does not answer: {why}" for source, why in readings.errors.items()
        ]
        tables = tuple(self._tables.values())
        return FlowReading(total, later, seconds, len(tables), tables, late)


class FlowsView(NamedTuple):
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
    screen: Screen, tally: Tally, read_all: ReadAll, view: FlowsView, interval_s: float
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
    from keepclose.cli.inputs.service_choice import service_key, suggest_services

    wanted = service_key(service, "")
    assert wanted is not None  # noqa: S101 - the Service is named

    def read() -> Readings:
        readings = read_all()
        tables = {
            source: table.selected(lambda key: (key.namespace, key.service) == wanted)
            for source, table in readings.tables.items()
        }
        if not any(table.rows for table in tables.values()):
            for table in [*tables.values()][:1]:
                hint = suggest_services(wanted, _list_services(readings))
                table.notes = [*table.notes, f"no flows of {wanted} were counted{hint}"]
        return Readings(tables, readings.errors, readings.notes)

    return read


def _list_services(readings: Readings) -> list[NamespacedName]:
    """Return the Services that have flows."""
    from keepclose.model.meta import NamespacedName

    keys = (key for table in readings.tables.values() for key, _ in table)
    return sorted({NamespacedName(key.namespace, key.service) for key in keys if key.service})


class _NamedSources:
    """Reads the sources of --flows; one that cannot be read at first ends the command."""

    def __init__(self, sources: list[str]) -> None:
        check_sources(sources)
        self._sources = sources
        self._still: dict[str, FlowTable] = {}
        """Files and standard input, which can be read once only."""
        self._has_read = False

    def __call__(self) -> Readings:
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


def read_agents(cluster: ChosenCluster, namespace: str) -> Readings:
    """Return the tables of the agents of a cluster; one that does not answer ends the command."""
    if cluster.lab is not None:
        return _read_lab(cluster.lab)
    import asyncio

    from keepclose.kube.errors import KubeError

    try:
        return asyncio.run(_read_cluster(cluster.connection, namespace))
    except (KubeError, ValueError) as error:
        fail(
            f"{cluster.url} does not list the flow agents: {error}",
            NO_CLUSTER,
            code=ExitCode.UNREACHABLE,
        )


class AgentTables:
    """Parses pages of agents, whose rows are bounded together."""

    def __init__(self) -> None:
        self.tables: dict[str, FlowTable] = {}
        self._rows = 0

    def take(self, name: str, page: bytes) -> str:
        """Keep the flows of a page; return why they cannot be kept, "" if they are."""
        from keepclose.accounting.flow_files import FlowFileError, read_json_lines

        try:
            table = read_json_lines(TextLines(page, name), name=name)
        except (FlowFileError, FlowSourceError) as error:
            return str(error)
        if self._rows + len(table) > MAX_AGENT_ROWS:
            return f"all agents together have more than {MAX_AGENT_ROWS:,} rows"
        self._rows += len(table)
        self.tables[name] = table
        return ""


def _read_lab(data_dir: Path) -> Readings:
    answer = ask_lab(data_dir, "flows")
    pages, errors = AgentTables(), dict(answer["errors"])
    for name, page in answer["flows"].items():
        if why := pages.take(name, page.encode()):
            errors[name] = why
    return Readings(pages.tables, errors)


async def _read_cluster(settings: ConnectionSettings, namespace: str) -> Readings:
    """Return the tables of all agents of a namespace; raises KubeError and ValueError."""
    from keepclose.demand.agent_pages import PageReader
    from keepclose.kube.clock import SystemClock
    from keepclose.kube.connection import connect

    pages = AgentTables()
    async with connect(settings, clock=SystemClock()) as client:
        reader = PageReader(client, pages.take)
        await reader.read(namespace=namespace)
    return Readings(pages.tables, reader.errors, reader.notes)


def fail_unread(readings: Readings) -> NoReturn:
    """End the command because no source has answered."""
    from keepclose.demand.agent_pages import AGENT_LABEL

    if readings.errors:
        source, why = next(iter(readings.errors.items()))
        fail(f"{source} does not answer: {why}", code=ExitCode.UNREACHABLE)
    fail(
        f"the cluster runs no pod with the label {AGENT_LABEL} in this namespace",
        *readings.notes,
        "run the agents: docs/howto/flows.md, or name a source with --flows",
        code=ExitCode.NOTHING,
    )
