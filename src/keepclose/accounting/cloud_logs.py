"""Flows from the flow logs of a cloud, joined with the objects of a cluster.

A record of a flow log is what one network interface saw of one direction of a connection in some
minutes. These rules make flows of them:

1. The interfaces of both sides may report the same packets. Of each direction of a connection, the
   records of one interface count: those of the sender, else those of the interface that reported
   the most bytes. An interface whose side the log does not name is that of any side.
2. Records of one protocol, two addresses and two ports are one connection, so a connection of hours
   counts once. Two connections that use the same ports one after the other count as one too.
3. The client is the side that sent the first SYN, if the log has TCP flags; else the side that is
   not an endpoint of a Service; else the side with the larger port, which is the ephemeral one.
4. Clouds never see the address of a Service, as nodes translate it. A connection to a port of an
   endpoint is one of the Service that the endpoint belongs to, the headless Service first.
5. A connection of rejected packets only is a refused one, without bytes.

Addresses without an owner are those of `attribution`: outside, or unknown in the cluster's ranges.
Notes name how many connections that were, and some of the addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from keepclose.accounting.address_book import AddressBook, show_address
from keepclose.accounting.attribution import Connection, NotCounted, attribute
from keepclose.accounting.flow_files import FlowFileError
from keepclose.accounting.flow_table import (
    ALL_DETAIL,
    HOST,
    OUTSIDE,
    UNKNOWN,
    Detail,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
    is_zone,
)
from keepclose.accounting.owner_history import OwnerKind

MAX_LOGGED_CONNECTIONS: Final = 300_000
"""The most connections of one reading; in memory they take about 400 MiB."""
MAX_REPORTERS: Final = 8
"""The most interfaces that report one direction of a connection."""
_SYN: Final = 2
_ACK: Final = 16
_SHOWN: Final = 3
"""How many broken lines and addresses notes name."""


class PartyHint(NamedTuple):
    """What a log itself says about a side; "" where it says nothing."""

    zone: str = ""
    node: str = ""
    pod: str = ""
    """namespace/name."""
    workload: str = ""
    namespace: str = ""
    """The namespace of the Service that the log names."""
    service: str = ""


NO_HINT: Final = PartyHint()


class LogRecord(NamedTuple):
    """What an interface saw of a direction of a connection."""

    protocol: int
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    amount: int
    """Bytes."""
    start: float
    end: float
    reporter: str = ""
    """The interface; "" if the log does not name it."""
    is_sender: bool | None = None
    """Whether the interface is that of the source; None if the log does not say."""
    flags: int = 0
    """The TCP flags of the packets; 0 if the log has none."""
    is_rejected: bool = False
    source_hint: PartyHint = NO_HINT
    destination_hint: PartyHint = NO_HINT


class _Reported:
    """The bytes of a direction, by the interface that reported them."""

    __slots__ = ("amounts", "senders")

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self.senders: tuple[str, ...] = ()

    def add(self, record: LogRecord) -> None:
        if record.reporter not in self.amounts and len(self.amounts) >= MAX_REPORTERS:
            return
        self.amounts[record.reporter] = self.amounts.get(record.reporter, 0) + record.amount
        if record.is_sender and record.reporter not in self.senders:
            self.senders = (*self.senders, record.reporter)

    @property
    def amount(self) -> int:
        """The bytes that count."""
        reporters = self.senders or tuple(self.amounts)
        return max((self.amounts[reporter] for reporter in reporters), default=0)


class _Tracked:
    """A connection of a log; `forward` is the direction of its first record."""

    __slots__ = ("accepted", "at", "backward", "client", "forward", "hints", "rejected")

    def __init__(self, at: float) -> None:
        self.at = at
        self.forward = _Reported()
        self.backward = _Reported()
        self.client: bool | None = None
        """Whether the source of the first record is the client; None if no flags say it."""
        self.hints = [NO_HINT, NO_HINT]
        self.accepted = False
        self.rejected = False


class CloudLog:
    """Records of flow logs, from one file or several."""

    def __init__(self, *, is_strict: bool = False) -> None:
        """Make an empty log; a strict one raises for the first broken line."""
        self._connections: dict[tuple[int, bytes, int, bytes, int], _Tracked] = {}
        self._is_strict = is_strict
        self._broken = 0
        self._examples: list[str] = []
        self._counted: dict[str, int] = {}
        self._texts: dict[str, None] = {}
        self._start = 0.0
        self._end = 0.0
        self.records = 0

    def add(self, record: LogRecord, name: str, line: int) -> None:
        """Take a record; raise FlowFileError when there are too many connections."""
        self.records += 1
        self._start = min(self._start or record.start, record.start)
        self._end = max(self._end, record.end)
        sides = (record.source, record.source_port, record.destination, record.destination_port)
        tracked = self._connections.get((record.protocol, *sides))
        is_forward = True
        if tracked is None:
            tracked = self._connections.get((record.protocol, *sides[2:], *sides[:2]))
            is_forward = tracked is None
        if tracked is None:
            if len(self._connections) >= MAX_LOGGED_CONNECTIONS:
                message = (
                    f"more than {MAX_LOGGED_CONNECTIONS:,} connections: read a shorter period,"
                    " and merge the tables"
                )
                raise FlowFileError(name, line, message)
            tracked = self._connections[record.protocol, *sides] = _Tracked(record.start)
        tracked.at = min(tracked.at, record.start)
        _merge_hints(tracked, record, is_forward=is_forward)
        if record.flags & _SYN:
            # NB: logs sum up flags; only the answer of the server has SYN together with ACK.
            tracked.client = is_forward != bool(record.flags & _ACK)
        if record.is_rejected:
            tracked.rejected = True
            return
        tracked.accepted = True
        (tracked.forward if is_forward else tracked.backward).add(record)

    def add_broken(self, name: str, line: int, message: str) -> None:
        """Count a line that is no record; raise FlowFileError if the log is strict."""
        error = FlowFileError(name, line, message)
        if self._is_strict:
            raise error
        self._broken += 1
        if len(self._examples) < _SHOWN:
            self._examples.append(str(error))

    def add_note(self, text: str) -> None:
        """Take what holds for all records of a log."""
        self._texts[text] = None

    def count(self, what: str) -> None:
        """Count a line that says something else, for the notes."""
        self._counted[what] = self._counted.get(what, 0) + 1

    @property
    def first_broken(self) -> str:
        """The first broken line and what is wrong with it; "" if none is."""
        return self._examples[0] if self._examples else ""

    def table(self, book: AddressBook, *, detail: Detail = ALL_DETAIL) -> FlowTable:
        """Return the flows, with the names of a cluster."""
        table = FlowTable(start=self._start, end=self._end)
        missing = _Missing()
        for sides, tracked in self._connections.items():
            protocol, source, source_port, destination, destination_port = sides
            forward = Connection(
                protocol, source, source_port, destination, destination_port,
                destination, destination_port, tracked.at,
            )  # fmt: skip
            is_forward = tracked.client
            if is_forward is None:
                is_forward = _is_client_first(forward, book)
            connection = forward if is_forward else _turn(forward)
            client, server = tracked.hints if is_forward else reversed(tracked.hints)
            key = _apply_hints(_attribute(connection, book), client, server)
            missing.record(connection, key)
            request, response = tracked.forward, tracked.backward
            if not is_forward:
                request, response = response, request
            refused = int(tracked.rejected and not tracked.accepted)
            counts = FlowCounts(1, refused, 0, request.amount, response.amount)
            table.add(detail.reduce(key), counts)
        table.notes += [*self._notes(), *missing.notes(len(self._connections))]
        return table

    def _notes(self) -> list[str]:
        counted = [f"{what}: {number:,}" for what, number in self._counted.items()]
        notes = [*self._texts, *counted]
        if self._broken:
            more = self._broken - len(self._examples)
            texts = [*self._examples, *([f"and {more:,} more"] if more else [])]
            notes.append(f"broken lines, left out: {self._broken:,} ({'; '.join(texts)})")
        return notes


class _Missing:
    """Connections whose client or endpoint has no owner in the snapshot."""

    def __init__(self) -> None:
        self._numbers = {OUTSIDE: 0, UNKNOWN: 0}
        self._samples: dict[str, dict[str, None]] = {OUTSIDE: {}, UNKNOWN: {}}

    def record(self, connection: Connection, key: FlowKey) -> None:
        """Note the addresses of a connection that have no zone."""
        sides = ((key.client_zone, connection.source), (key.endpoint_zone, connection.destination))
        for zone, address in sides:
            samples = self._samples.get(zone)
            if samples is not None:
                self._numbers[zone] += 1
                if len(samples) < _SHOWN:
                    samples[show_address(address)] = None

    def notes(self, number: int) -> list[str]:
        """Return what could not be joined."""
        words: Mapping[str, str] = {
            OUTSIDE: "addresses of no pod or node of the snapshot, counted as outside",
            UNKNOWN: "addresses in the cluster's ranges of no pod or node of the snapshot",
        }
        return [
            f"{text}: {self._numbers[zone]:,} in {number:,} connections, such as"
            f" {', '.join(self._samples[zone])}"
            for zone, text in words.items()
            if self._numbers[zone]
        ]


def _is_client_first(connection: Connection, book: AddressBook) -> bool:
    """Return whether the source is the client, by Services and ports."""
    is_server = [
        book.service_behind(address, port, connection.protocol, connection.at) is not None
        for address, port in (
            (connection.source, connection.source_port),
            (connection.destination, connection.destination_port),
        )
    ]
    if is_server[0] != is_server[1]:
        return is_server[1]
    return connection.source_port >= connection.destination_port


def _turn(connection: Connection) -> Connection:
    return connection._replace(
        source=connection.destination,
        source_port=connection.destination_port,
        destination=connection.source,
        destination_port=connection.source_port,
        reply_source=connection.source,
        reply_source_port=connection.source_port,
    )


def _attribute(connection: Connection, book: AddressBook) -> FlowKey:
    """Return the flow as the client's node sees it, or the endpoint's if the client is outside."""
    owner = book.owner_of(connection.source, connection.at)
    is_unknown = owner is None and book.is_of_cluster(connection.source)
    if not is_unknown and (owner is None or owner.kind is OwnerKind.SUBNET):
        owner = book.owner_of(connection.destination, connection.at)
    node = owner.node if owner else ""
    key = attribute(connection, book, node=node, may_wait=False)
    if key is NotCounted.ELSEWHERE:
        # A node port of another node: here it is only traffic to that node. What the node forwards
        # to an endpoint has records of its own.
        without_port = connection._replace(destination_port=0, reply_source_port=0)
        key = attribute(without_port, book, node=node, may_wait=False)
    if isinstance(key, NotCounted):
        key = FlowKey(FlowKind.UNKNOWN)
    behind = book.service_behind(
        connection.destination, connection.destination_port, connection.protocol, connection.at
    )
    is_direct = key.kind in (FlowKind.POD, FlowKind.NODE)
    if is_direct and behind and not book.is_headless(behind.service):
        return key._replace(kind=FlowKind.SERVICE)
    return key


def _apply_hints(key: FlowKey, client: PartyHint, server: PartyHint) -> FlowKey:
    """Fill in what the cluster's objects do not say."""
    if not is_zone(key.client_zone) and client != NO_HINT:
        key = key._replace(
            client_zone=client.zone or key.client_zone,
            client_node=key.client_node or client.node,
            client=client.workload or client.pod or (HOST if client.node else key.client),
        )
    if is_zone(key.endpoint_zone) or server == NO_HINT:
        return key
    key = key._replace(
        endpoint_zone=server.zone or key.endpoint_zone,
        endpoint_node=key.endpoint_node or server.node,
        endpoint=key.endpoint or server.pod,
    )
    if key.kind not in (FlowKind.EGRESS, FlowKind.UNKNOWN):
        return key
    if server.service:
        return key._replace(
            kind=FlowKind.SERVICE, namespace=server.namespace, service=server.service
        )
    if server.pod:
        return key._replace(kind=FlowKind.POD)
    return key._replace(kind=FlowKind.NODE) if server.node else key


def _merge_hints(tracked: _Tracked, record: LogRecord, *, is_forward: bool) -> None:
    hints = (record.source_hint, record.destination_hint)
    for index, hint in enumerate(hints if is_forward else reversed(hints)):
        known = tracked.hints[index]
        if hint not in (NO_HINT, known):
            tracked.hints[index] = PartyHint(
                *(before or now for before, now in zip(known, hint, strict=True))
            )
