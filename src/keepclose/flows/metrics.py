"""The metrics of a flows agent, for a bounded number of Services.

A counter must never fall. So a Service that is not among those with most bytes is counted in the
Service REST, and what was counted there stays there: when the Service gets a name of its own, its
series begins at 0 and grows by what it sends from then on. It keeps its name for good, so twice as
many names as wanted are given at most. The sum of all series is always the sum of all flows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from keepclose.accounting.flow_table import REST, ZONES_ONLY, Detail, FlowCounts, FlowKey, FlowTable

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_LABELS: Final[tuple[str, ...]] = (
    "kind",
    "namespace",
    "service",
    "port",
    "protocol",
    "client_zone",
    "endpoint_zone",
)


class AgentCounts(NamedTuple):
    """What an agent reports about itself."""

    lost: int = 0
    walks: int = 0
    open_connections: int = 0
    waiting: int = 0
    accounts: bool = False
    gap_s: float = 0.0
    unobserved: int = 0
    table_full: int = 0
    checkpoint_failures: int = 0
    reports_events: bool = False


class ShownFlows:
    """Divides a growing table into flows with names and the rest, so that neither ever falls."""

    def __init__(self, most_services: int) -> None:
        self._most = most_services
        self._named: set[tuple[str, str]] = set()
        self._own: dict[FlowKey, FlowCounts] = {}
        """What was shown under the name of a Service, by flow."""
        self._last: dict[FlowKey, FlowCounts] = {}
        self.has_rest = False

    def load(self, table: FlowTable, shown: Iterable[tuple[FlowKey, FlowCounts]]) -> None:
        """Continue from a table that was shown; without `shown` all flows had their names."""
        own = dict(shown)
        self.has_rest = bool(own)
        for key, counts in table:
            self._last[key] = _copy(counts)
            self._own[key] = own.get(key, FlowCounts()) if own else _copy(counts)
        self._named = {
            (key.namespace, key.service)
            for key, counts in self._own.items()
            if key.service and not counts.is_empty
        }

    def state(self) -> list[tuple[FlowKey, FlowCounts]]:
        """Return what `load` needs; nothing while all Services have their names."""
        return [(key, _copy(counts)) for key, counts in self._own.items()] if self.has_rest else []

    def update(self, table: FlowTable) -> FlowTable:
        """Return the table to show, whose counts are never less than before."""
        self._choose(table)
        shown = FlowTable(start=table.start, end=table.end, has_bytes=table.has_bytes)
        for key, counts in table:
            own = self._own.get(key)
            if own is None:
                own = self._own[key] = FlowCounts()
            last = self._last.get(key)
            is_named = not key.service or (key.namespace, key.service) in self._named
            if is_named:
                own.add(counts if last is None else counts.since(last))
                if not own.is_empty:
                    shown.add(key, own)
            if own != counts:
                self.has_rest = True
                rest = ZONES_ONLY.reduce(key)._replace(namespace="", service=REST, port="")
                shown.add(rest, counts.since(own))
            self._last[key] = _copy(counts)
        return shown

    def _choose(self, table: FlowTable) -> None:
        services = {(key.namespace, key.service) for key in table.rows if key.service}
        if len(services) <= self._most:
            self._named |= services
            return
        # NB: a series that vanished would make sums fall, so a name is never taken away.
        for service in sorted(_services_of(table.limited(self._most))):
            if len(self._named) < 2 * self._most:
                self._named.add(service)


def _services_of(table: FlowTable) -> set[tuple[str, str]]:
    return {(key.namespace, key.service) for key in table.rows if key.service not in ("", REST)}


def _copy(counts: FlowCounts) -> FlowCounts:
    copy = FlowCounts()
    copy.add(counts)
    return copy


class _Family(NamedTuple):
    """A metric: its type, its labels, and its values with those of the labels."""

    name: str
    type: str
    text: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[Sequence[str], float]]


class FlowMetrics:
    """The metrics of one agent, read when the page is requested.

    NB: written without the client library of Prometheus, which takes more memory than 10,000 open
    connections.
    """

    def __init__(
        self,
        detail: Detail,
        *,
        table: Callable[[], FlowTable],
        counts: Callable[[], AgentCounts],
    ) -> None:
        """Take what returns the table to show and the agent's own counts."""
        self._table, self._counts = table, counts
        self._names = _LABELS
        if detail.nodes:
            self._names += ("client_node", "endpoint_node")
        if detail.workloads:
            self._names += ("client",)
        if detail.pods:
            self._names += ("endpoint",)

    def page(self) -> bytes:
        """Return the page in the text format of Prometheus."""
        return "".join(self.lines()).encode(errors="replace")

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page, each with its end, all of one moment."""
        for family in self._families():
            name = family.name
            yield f"# HELP {name} {family.text}\n# TYPE {name} {family.type}\n"
            for values, number in family.samples:
                labels = ",".join(
                    [
                        f'{label}="{value.translate(_ESCAPES)}"'
                        for label, value in zip(family.labels, values, strict=True)
                    ]
                )
                yield f"{name}{{{labels}}} {number}\n" if labels else f"{name} {number}\n"

    def families(self) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
        """Yield name, type, labels and text of each metric."""
        for family in self._families():
            yield family.name, family.type, family.labels, family.text

    def _families(self) -> list[_Family]:
        return [*self._flow_families(), *self._own_families()]

    def _own_families(self) -> list[_Family]:
        own = self._counts()
        return [
            _Family(f"keepclose_flows_{name}", kind, text, (), [((), number)])
            for name, kind, number, text in (
                (
                    "lost_events_total",
                    "counter",
                    own.lost,
                    "Events of connections that the kernel dropped: the agent was too slow.",
                ),
                ("walks_total", "counter", own.walks, "Walks of the kernel's whole table."),
                (
                    "open_connections",
                    "gauge",
                    own.open_connections,
                    "Connections that the agent knows to be open.",
                ),
                (
                    "waiting_connections",
                    "gauge",
                    own.waiting,
                    "Connections that wait for the API server to name their addresses.",
                ),
                (
                    "accounting",
                    "gauge",
                    int(own.accounts),
                    "1 if the kernel counts the bytes of new connections, 0 if it does not.",
                ),
                (
                    "events",
                    "gauge",
                    int(own.reports_events),
                    "1 if the kernel reports connections that begin and end, 0 if it does not.",
                ),
                (
                    "gap_seconds_total",
                    "counter",
                    round(own.gap_s, 3),
                    "Time without an agent; connections that began and ended in it are missing.",
                ),
                (
                    "unobserved_connections_total",
                    "counter",
                    own.unobserved,
                    "Connections whose end was not observed: their last bytes may be missing.",
                ),
                (
                    "table_full_total",
                    "counter",
                    own.table_full,
                    "Connections that the kernel dropped because its table was full.",
                ),
                (
                    "checkpoint_failures_total",
                    "counter",
                    own.checkpoint_failures,
                    "Checkpoints that could not be written; all other counts are old until one is.",
                ),
            )
        ]

    def _flow_families(self) -> list[_Family]:
        table = self._table()
        names = self._names
        # NB: samples are made when their lines are, because all of them take more than the page.

        def rows() -> Iterator[tuple[list[str], FlowCounts]]:
            for key, counts in table:
                yield [str(getattr(key, name)) for name in names], counts

        def failed() -> Iterator[tuple[Sequence[str], float]]:
            for labels, counts in rows():
                if counts.refused:
                    yield [*labels, "refused"], counts.refused
                if counts.unanswered:
                    yield [*labels, "unanswered"], counts.unanswered

        def amounts() -> Iterator[tuple[Sequence[str], float]]:
            for labels, counts in rows() if table.has_bytes else ():
                yield [*labels, "request"], counts.request_bytes
                yield [*labels, "response"], counts.response_bytes

        return [
            _Family(
                "keepclose_flow_connections_total",
                "counter",
                "Connections, by what they go to and by the zones of client and endpoint.",
                names,
                ((labels, counts.connections) for labels, counts in rows()),
            ),
            _Family(
                "keepclose_flow_failed_connections_total",
                "counter",
                "Connections that the endpoint refused or did not answer.",
                (*names, "reason"),
                failed(),
            ),
            _Family(
                "keepclose_flow_bytes_total",
                "counter",
                "Bytes with IP headers; requests are what the client sent.",
                (*names, "direction"),
                amounts(),
            ),
        ]
