"""Flows: connections and bytes by Service, by the zone of the client and that of the endpoint.

A flow table is what every source of traffic gives (conntrack, a monitoring system, the flow logs of
a cloud) and what every question about traffic reads (`flows top`, `cost`, `verify`). All
traffic of a node is in it: what is not a Service's has a kind of its own, and an address without a
known owner has the zone "(unknown)", so that totals add up to what the nodes sent.

Bytes are those of the network layer, IP headers included. Requests are what the client sent,
responses what it received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from keepclose.model.json_values import INT64_MAX

# No zone of a cluster can have such a name: label values have no brackets.
OUTSIDE: Final = "(outside)"
"""The zone of addresses outside the cluster, and the client of connections from there."""
UNKNOWN: Final = "(unknown)"
"""The zone of addresses in the ranges of the cluster that have no known owner."""
NO_ZONE: Final = "(none)"
"""The zone of nodes without the label, and of connections that found no endpoint."""
REST: Final = "(rest)"
"""The Service of rows that were summed up because there were too many."""
HOST: Final = "(node)"
"""The client of connections that a node itself opened: kubelet, host network, programs."""

LATEST_S: Final = 253_402_300_799
"""The latest time of a flow, the end of the year 9999, in seconds of the Unix epoch."""
Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
"""A number that only grows, as decoders check it."""


class FlowKind(StrEnum):
    """What traffic goes to."""

    SERVICE = "service"
    """An address of a Service, which the node translated to an endpoint."""
    POD = "pod"
    """A pod, without a Service's address: headless Services, other proxies, probes."""
    NODE = "node"
    """A node's own address: the API server, kubelets, host network."""
    EGRESS = "egress"
    """An address outside the cluster."""
    TUNNEL = "tunnel"
    """Packets of an overlay between nodes: they carry flows that are counted inside."""
    LOCAL = "local"
    """Loopback, link-local and multicast addresses, which do not leave the node's link."""
    UNKNOWN = "unknown"
    """An address that has no known owner and is not outside for certain."""


UNSUMMED_KINDS: Final = (FlowKind.TUNNEL, FlowKind.LOCAL)
"""What is in no share and has no cost: counted inside already, or never on a network.

docs/grafana/rules.yaml leaves out the same kinds.
"""


class FlowKey(NamedTuple):
    """What a flow is identified by; fields beyond the wanted detail are ""."""

    kind: FlowKind = FlowKind.SERVICE
    namespace: str = ""
    """The namespace of the Service."""
    service: str = ""
    port: str = ""
    """The name of the Service's port, or its number if it has no name."""
    protocol: str = "TCP"
    client_zone: str = UNKNOWN
    endpoint_zone: str = UNKNOWN
    client_node: str = ""
    endpoint_node: str = ""
    client: str = ""
    """The client's workload as namespace/name, or HOST, OUTSIDE or UNKNOWN."""
    endpoint: str = ""
    """The endpoint's pod as namespace/name."""

    @property
    def crosses_zones(self) -> bool:
        """Whether client and endpoint are in two known zones."""
        return (
            self.client_zone != self.endpoint_zone
            and is_zone(self.client_zone)
            and is_zone(self.endpoint_zone)
        )

    @property
    def is_within_zone(self) -> bool:
        """Whether client and endpoint are in the same known zone."""
        return self.client_zone == self.endpoint_zone and is_zone(self.client_zone)


class FlowCounts(msgspec.Struct):
    """How many connections and bytes a flow has; failed connections are among `connections`."""

    connections: Count = 0
    refused: Count = 0
    """Connections that the endpoint refused."""
    unanswered: Count = 0
    """Connections that ended without a packet from the endpoint."""
    request_bytes: Count = 0
    response_bytes: Count = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of both directions."""
        return self.request_bytes + self.response_bytes

    def add(self, other: FlowCounts) -> None:
        """Add other counts to these."""
        self.connections += other.connections
        self.refused += other.refused
        self.unanswered += other.unanswered
        self.request_bytes += other.request_bytes
        self.response_bytes += other.response_bytes

    def since(self, before: FlowCounts) -> FlowCounts:
        """Return what was counted after an earlier reading; all of it if a count fell."""
        if self.has_fallen_since(before):
            before = FlowCounts()
        return FlowCounts(
            self.connections - before.connections,
            self.refused - before.refused,
            self.unanswered - before.unanswered,
            self.request_bytes - before.request_bytes,
            self.response_bytes - before.response_bytes,
        )

    def has_fallen_since(self, before: FlowCounts) -> bool:
        """Whether any count is less than at an earlier reading."""
        return (
            self.connections < before.connections
            or self.refused < before.refused
            or self.unanswered < before.unanswered
            or self.request_bytes < before.request_bytes
            or self.response_bytes < before.response_bytes
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not (self.connections or self.request_bytes or self.response_bytes)


class ZoneCounts(msgspec.Struct, rename="camel"):
    """Connections and bytes, by whether client and endpoint are in one zone."""

    connections: float = 0
    failed: float = 0
    in_zone_connections: float = 0
    cross_zone_connections: float = 0
    in_zone_bytes: float = 0
    cross_zone_bytes: float = 0
    other_bytes: float = 0
    """Bytes from or to addresses outside, and those whose zone is not known."""

    def add(self, other: ZoneCounts) -> None:
        """Add other counts to these."""
        self.connections += other.connections
        self.failed += other.failed
        self.in_zone_connections += other.in_zone_connections
        self.cross_zone_connections += other.cross_zone_connections
        self.in_zone_bytes += other.in_zone_bytes
        self.cross_zone_bytes += other.cross_zone_bytes
        self.other_bytes += other.other_bytes

    @property
    def total_bytes(self) -> float:
        """All bytes."""
        return self.in_zone_bytes + self.cross_zone_bytes + self.other_bytes

    def per_second(self, seconds: float) -> ZoneCounts:
        """Return the rates of counts of a period."""
        return ZoneCounts(*(number / seconds for number in msgspec.structs.astuple(self)))


class Detail(NamedTuple):
    """What is told apart besides zones."""

    nodes: bool = False
    workloads: bool = False
    pods: bool = False

    def reduce(self, key: FlowKey) -> FlowKey:
        """Return the key without the fields that are not wanted."""
        if self.nodes and self.workloads and self.pods:
            return key
        return key._replace(
            client_node=key.client_node if self.nodes else "",
            endpoint_node=key.endpoint_node if self.nodes else "",
            client=key.client if self.workloads else "",
            endpoint=key.endpoint if self.pods else "",
        )


ZONES_ONLY: Final = Detail()
ALL_DETAIL: Final = Detail(nodes=True, workloads=True, pods=True)


class FlowTable:
    """Flows of a period."""

    def __init__(
        self,
        *,
        start: float = 0.0,
        end: float = 0.0,
        has_bytes: bool = True,
        is_window: bool = False,
        notes: Iterable[str] = (),
    ) -> None:
        """Make an empty table; times are seconds of the Unix epoch, 0 if not known."""
        self.rows: dict[FlowKey, FlowCounts] = {}
        self.start = start
        self.end = end
        self.has_bytes = has_bytes
        """False if the source counts connections only."""
        self.is_window = is_window
        """True if a later table of the source has another start, so that both overlap."""
        self.notes: list[str] = list(notes)
        """What the source could not say, for people."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[FlowKey, FlowCounts]]:
        return iter(self.rows.items())

    @property
    def seconds(self) -> float:
        """The length of the period; 0 if it is not known."""
        return max(0.0, self.end - self.start)

    def add(self, key: FlowKey, counts: FlowCounts) -> None:
        """Add counts to a flow."""
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = FlowCounts()
        row.add(counts)

    def merge(self, other: FlowTable) -> None:
        """Add the flows of another table, of another node or another period."""
        for key, counts in other:
            self.add(key, counts)
        starts = [start for start in (self.start, other.start) if start]
        self.start = min(starts, default=0.0)
        self.end = max(self.end, other.end)
        self.has_bytes = self.has_bytes and other.has_bytes
        self.notes += [note for note in other.notes if note not in self.notes]

    def reduced(self, detail: Detail) -> FlowTable:
        """Return the table with less detail."""
        return self._map(detail.reduce)

    def selected(self, wanted: Callable[[FlowKey], bool]) -> FlowTable:
        """Return the flows whose keys are wanted."""
        table = self._empty()
        table.rows = {key: counts for key, counts in self if wanted(key)}
        return table

    def since(self, earlier: FlowTable) -> FlowTable:
        """Return what was counted after an earlier table of the same source.

        A count that fell began again from 0, so all of it is later. So are all counts of a source
        that began again after the earlier table.
        """
        table = self._empty()
        table.start = earlier.end
        rows = {} if self.start > earlier.end > 0 else earlier.rows
        for key, counts in self:
            before = rows.get(key)
            later = counts if before is None else counts.since(before)
            if not later.is_empty:
                table.add(key, later)
        return table

    def total(self) -> FlowCounts:
        """Return the sum of all flows but those of UNSUMMED_KINDS."""
        total = FlowCounts()
        for key, counts in self:
            if key.kind not in UNSUMMED_KINDS:
                total.add(counts)
        return total

    def limited(self, most_services: int) -> FlowTable:
        """Return the table with the Services of most bytes between zones, and the rest summed.

        No count is lost: the others are rows of the Service REST, by zones as before.
        """
        weights: dict[tuple[str, str], tuple[int, int, int]] = {}
        for key, counts in self:
            if key.service:
                service = (key.namespace, key.service)
                crossing, amount, number = weights.get(service, (0, 0, 0))
                weights[service] = (
                    crossing + (counts.total_bytes if key.crosses_zones else 0),
                    amount + counts.total_bytes,
                    number + counts.connections,
                )
        if len(weights) <= most_services:
            return self
        ranked = sorted(
            weights, key=lambda service: (*(-part for part in weights[service]), service)
        )
        kept = set(ranked[:most_services])

        def sum_up(key: FlowKey) -> FlowKey:
            if not key.service or (key.namespace, key.service) in kept:
                return key
            return ZONES_ONLY.reduce(key)._replace(namespace="", service=REST, port="")

        return self._map(sum_up)

    def _map(self, change: Callable[[FlowKey], FlowKey]) -> FlowTable:
        table = self._empty()
        for key, counts in self:
            table.add(change(key), counts)
        return table

    def _empty(self) -> FlowTable:
        return FlowTable(
            start=self.start,
            end=self.end,
            has_bytes=self.has_bytes,
            is_window=self.is_window,
            notes=self.notes,
        )


def merge_tables(tables: Iterable[FlowTable]) -> FlowTable:
    """Return all flows as one table, a single table as it is.

    NB: its period is from the first start to the last end, so it is no base for rates.
    """
    first, *others = [*tables] or [FlowTable()]
    if not others:
        return first
    merged = first.selected(lambda _key: False)
    for table in (first, *others):
        merged.merge(table)
    return merged


def count_between(before: Mapping[str, FlowTable], now: Mapping[str, FlowTable]) -> FlowTable:
    """Return what was counted between two readings of the same sources.

    Each source is subtracted by itself. What a source had counted before it was first read happened
    at no known time, so it is left out, and a note says so.
    """
    between = FlowTable()
    for source, table in now.items():
        if source in before:
            between.merge(table.since(before[source]))
        else:
            between.notes.append(f"{source} did not answer at the start, so its flows are missing")
    between.notes += [
        f"{source} did not answer at the end, so its flows are missing"
        for source in before
        if source not in now
    ]
    return between


def is_zone(name: str) -> bool:
    """Whether a name is that of a zone, not one of the names in brackets or ""."""
    return name != "" and not name.startswith("(")


def parse_moment(text: str) -> float | None:
    """Return the seconds of the Unix epoch of an RFC 3339 time; None for anything else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    # NB: Python also accepts dates alone and times without a zone, which mean no moment.
    if moment.tzinfo is None:
        return None
    # NB: in UTC, a time of the year 9999 may be one of the year 10000, which no calendar has.
    seconds = moment.timestamp()
    return seconds if 0 < seconds <= LATEST_S else None


def show_exact_time(seconds: float) -> str:
    """Return a time as RFC 3339; "" if it is not known, or beyond the years of a calendar."""
    if not 0 < seconds <= LATEST_S:
        return ""
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat().replace("+00:00", "Z")
