"""Each connection and each byte counts once, in whatever order the kernel tells of them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.flow_table import OUTSIDE, UNKNOWN, ZONES_ONLY, FlowCounts, FlowKind
from keepclose.flows.checkpoint import LedgerState
from keepclose.flows.flow_rows import FlowRows
from keepclose.flows.ledger import Ledger
from keepclose.system.conntrack import SEEN_REPLY, TrackedConnection
from support import builders

OUTSIDE_ADDRESS = bytes((8, 8, 8, 8))
UNNAMED = bytes((10, 9, 9, 9))


def tracked(
    number: int = 0,
    request: int = 0,
    response: int = 0,
    *,
    status: int = SEEN_REPLY,
    packets: int = 1,
    destination: bytes = OUTSIDE_ADDRESS,
    protocol: int = 6,
) -> TrackedConnection:
    """Return a connection of this node to an address outside."""
    source = bytes((10, 0, 0, 1))
    key = source + destination + number.to_bytes(2, "big")
    return TrackedConnection(
        key,
        protocol,
        source,
        number,
        destination,
        443,
        destination,
        443,
        status,
        1,
        request,
        packets,
        response,
        True,
    )


def new_ledger(*, most_waiting: int = 10) -> Ledger:
    """Return a ledger of node n1, which has the address 10.0.0.1."""
    book = AddressBook()
    book.set_own_addresses("n1", [bytes((10, 0, 0, 1))], at=0.0)
    rows = FlowRows(book, node="n1", detail=ZONES_ONLY, now=lambda: 1.0)
    return Ledger(rows, most_waiting=most_waiting)


def total(ledger: Ledger) -> FlowCounts:
    """Return the sum of all flows."""
    return ledger.rows.table(start=0, end=0, has_bytes=True).total()


def walk(ledger: Ledger, *connections: TrackedConnection, is_first: bool = False) -> None:
    """Let the ledger see a whole walk."""
    ledger.ignores_past = is_first
    ledger.begin_walk()
    ledger.on_walked(connections, at=0.0)
    ledger.end_walk(is_complete=True)


def test_bytes_of_an_open_connection_count_as_they_flow() -> None:
    """A walk adds what flowed since the last, and the end adds the rest."""
    ledger = new_ledger()
    ledger.on_new(tracked(), at=0.0)
    walk(ledger, tracked(request=100, response=1000))
    assert total(ledger) == FlowCounts(1, 0, 0, 100, 1000)
    walk(ledger, tracked(request=150, response=1000))
    ledger.on_end(tracked(request=160, response=1100), at=0.0)
    assert total(ledger) == FlowCounts(1, 0, 0, 160, 1100)
    assert len(ledger) == 0


def test_repeated_and_late_messages_add_nothing() -> None:
    """Events that come twice, and a walk that shows what has ended, change no count."""
    ledger = new_ledger()
    ledger.on_new(tracked(), at=0.0)
    ledger.on_new(tracked(), at=0.0)
    ledger.begin_walk()
    ledger.on_end(tracked(request=10), at=0.0)
    ledger.on_end(tracked(request=10), at=0.0)
    ledger.on_walked([tracked(request=5)], at=0.0)
    ledger.end_walk(is_complete=True)
    assert total(ledger) == FlowCounts(1, 0, 0, 10, 0)
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("packets", "want"),
    [
        pytest.param(1, FlowCounts(1, 1, 0, 60, 40), id="reset by the endpoint"),
        pytest.param(0, FlowCounts(1, 0, 1, 60, 0), id="no packet of the endpoint"),
    ],
)
def test_failed_connections(packets: int, want: FlowCounts) -> None:
    """A connection without an accepted reply was refused if a packet came, else not answered."""
    ledger = new_ledger()
    end = tracked(request=60, response=40 * packets, status=0, packets=packets)
    ledger.on_end(end, at=0.0)
    assert total(ledger) == want


def test_connections_from_before_the_first_start_count_only_later_bytes() -> None:
    """The first walk counts nothing, unless the event of a new connection was only slower."""
    ledger = new_ledger()
    walk(ledger, tracked(1, 1000), tracked(2, 500), is_first=True)
    assert total(ledger) == FlowCounts()
    ledger.on_new(tracked(2), at=0.0)
    ledger.on_end(tracked(1, 1100, status=0, packets=0), at=0.0)
    assert total(ledger) == FlowCounts(1, 0, 0, 600, 0)


def test_ends_before_the_first_whole_walk_do_not_count() -> None:
    """At the first start, a connection of unknown age that ends before a walk shows it is ignored.

    One whose beginning was reported counts, and so does any that ends after the first whole walk.
    """
    ledger = new_ledger()
    ledger.ignores_past = True
    ledger.on_end(tracked(1, request=2 << 40), at=0.0)
    ledger.begin_walk()
    ledger.end_walk(is_complete=False)
    ledger.on_end(tracked(2, request=2 << 40), at=0.0)
    ledger.on_new(tracked(3), at=0.0)
    ledger.on_end(tracked(3, request=7), at=0.0)
    assert total(ledger) == FlowCounts(1, 0, 0, 7, 0)
    walk(ledger, tracked(1, 5), tracked(2, 5))
    assert (len(ledger), total(ledger).connections) == (0, 1)
    ledger.on_end(tracked(4, request=30), at=0.0)
    assert total(ledger) == FlowCounts(2, 0, 0, 37, 0)


def test_an_end_without_an_event_is_found_by_two_walks() -> None:
    """A connection that two whole walks do not show has ended, and is reported as unobserved."""
    ledger = new_ledger()
    ledger.on_new(tracked(), at=0.0)
    walk(ledger, tracked(request=10))
    walk(ledger)
    assert (len(ledger), ledger.unobserved) == (1, 0)
    ledger.begin_walk()
    ledger.end_walk(is_complete=False)
    assert (len(ledger), ledger.unobserved) == (1, 0)
    walk(ledger)
    assert (len(ledger), ledger.unobserved) == (0, 1)
    assert total(ledger) == FlowCounts(1, 0, 0, 10, 0)


def test_counters_that_fell_belong_to_another_connection() -> None:
    """If the kernel gives the same key again and the end was lost, both connections count."""
    ledger = new_ledger()
    ledger.on_new(tracked(), at=0.0)
    walk(ledger, tracked(request=1000))
    walk(ledger, tracked(request=30))
    ledger.on_end(tracked(request=40), at=0.0)
    assert total(ledger) == FlowCounts(2, 0, 0, 1040, 0)
    assert ledger.unobserved == 1


def test_connections_wait_for_names() -> None:
    """A connection to an address without an owner counts when the book names it, or in the end."""
    ledger = new_ledger()
    ledger.on_new(tracked(1, destination=UNNAMED), at=0.0)
    ledger.on_end(tracked(1, 70, destination=UNNAMED), at=0.0)
    assert (ledger.waiting, total(ledger)) == (1, FlowCounts())
    ledger.tick(at=5.0, wait_s=10.0, is_synced=True)
    ledger.tick(at=50.0, wait_s=10.0, is_synced=False)
    assert ledger.waiting == 1
    ledger.tick(at=51.0, wait_s=10.0, is_synced=True)
    assert (ledger.waiting, total(ledger)) == (0, FlowCounts(1, 0, 0, 70, 0))


def test_the_list_of_waiting_connections_is_bounded() -> None:
    """The oldest are counted without names when too many wait, and none is lost."""
    ledger = new_ledger(most_waiting=3)
    for number in range(8):
        ledger.on_new(tracked(number, destination=UNNAMED), at=0.0)
    assert (ledger.waiting, ledger.forced) == (3, 5)
    ledger.tick(at=99.0, wait_s=10.0, is_synced=True)
    assert total(ledger).connections == 8


@pytest.mark.parametrize(
    ("is_synced", "want"),
    [
        pytest.param(False, (FlowKind.UNKNOWN, UNKNOWN), id="the API server is gone"),
        pytest.param(True, (FlowKind.EGRESS, OUTSIDE), id="all names are known"),
    ],
)
def test_connections_beyond_the_limit_are_outside_only_if_all_names_are_known(
    *, is_synced: bool, want: tuple[FlowKind, str]
) -> None:
    """A connection that no longer waits does not count as egress while the API server is gone."""
    ledger = new_ledger(most_waiting=3)
    ledger.tick(at=0.0, wait_s=10.0, is_synced=is_synced)
    for number in range(8):
        ledger.on_new(tracked(number, destination=UNNAMED), at=0.0)
    rows = ledger.rows.table(start=0, end=0, has_bytes=True).rows
    assert {(key.kind, key.endpoint_zone): counts.connections for key, counts in rows.items()} == {
        want: 5
    }
    assert ledger.waiting == 3


def test_connections_of_the_node_itself_wait_for_its_zone() -> None:
    """Until Nodes are listed, the zone of the node's own addresses is awaited, within the limit."""
    own = bytes((10, 0, 0, 1))
    book = AddressBook()
    book.set_own_addresses("n1", [own], at=0.0)
    rows = FlowRows(book, node="n1", detail=ZONES_ONLY, now=lambda: 1.0, has_all_names=False)
    ledger = Ledger(rows, most_waiting=3)
    loopback = tracked(9)._replace(source=bytes((127, 0, 0, 1)), destination=bytes((127, 0, 0, 1)))
    ledger.on_new(loopback._replace(reply_source=loopback.destination), at=0.0)
    for number in range(3):
        ledger.on_new(tracked(number, destination=own), at=0.0)
    assert (ledger.waiting, ledger.forced) == (3, 1)
    book.set_node(builders.node("n1", zone="zone-a"), at=1.0)
    ledger.tick(at=1.0, wait_s=10.0, is_synced=True)
    assert ledger.waiting == 0
    table = ledger.rows.table(start=0, end=0, has_bytes=True)
    assert {(key.kind, key.endpoint_zone): counts.connections for key, counts in table} == {
        (FlowKind.LOCAL, UNKNOWN): 1,
        (FlowKind.NODE, "zone-a"): 3,
    }


def test_a_wrong_node_name_makes_no_connection_wait() -> None:
    """Once all names are known, a node without a Node has no zone, and nothing waits for it."""
    ledger = new_ledger()
    ledger.tick(at=0.0, wait_s=10.0, is_synced=False)
    ledger.on_new(tracked(1), at=0.0)
    assert ledger.waiting == 1
    ledger.tick(at=1.0, wait_s=10.0, is_synced=True)
    ledger.on_new(tracked(2), at=2.0)
    assert (ledger.waiting, total(ledger).connections) == (0, 2)


def test_an_address_without_an_owner_is_waited_for_once() -> None:
    """Connections to a database outside wait for a name only until none has come in time."""
    ledger = new_ledger()
    ledger.on_new(tracked(1, destination=UNNAMED), at=0.0)
    ledger.tick(at=11.0, wait_s=10.0, is_synced=False)
    assert ledger.waiting == 1
    ledger.tick(at=12.0, wait_s=10.0, is_synced=True)
    ledger.on_new(tracked(2, destination=UNNAMED), at=13.0)
    assert (ledger.waiting, total(ledger).connections) == (0, 2)


def test_many_connections_to_one_address_do_not_keep_waiting() -> None:
    """The list of waiting connections does not stay full, although none of them waits for long."""
    ledger = new_ledger(most_waiting=3)
    for number in range(24):
        ledger.on_new(tracked(number, destination=UNNAMED), at=float(number))
        ledger.tick(at=float(number), wait_s=10.0, is_synced=True)
    assert ledger.waiting == 0
    assert ledger.forced < 12
    assert total(ledger).connections == 24


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"requests": b""}, id="columns of different lengths"),
        pytest.param({"places": b"\xff\xff\xff\xff"}, id="a flow that is missing"),
        pytest.param({"places": b"\x01\0\0\0"}, id="a waiting connection that is missing"),
        pytest.param({"requests": b"123"}, id="half a number"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(change: dict[str, bytes]) -> None:
    """Loading a broken state raises ValueError."""
    ledger = new_ledger()
    ledger.on_new(tracked(), at=0.0)
    state = msgspec.structs.replace(ledger.state(), **change)
    with pytest.raises(ValueError, match=r"\w"):
        new_ledger().load(state, at=0.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["new", "bytes", "end", "walk", "restart"]),
        st.integers(0, 3),
        st.integers(0, 1000),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(STEPS)
def test_counts_equal_those_of_a_kernel_that_tells_everything(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """With lost beginnings, repeated events, walks and restarts, each connection counts once."""
    ledger = new_ledger()
    # The kernel: bytes by connection; the reference: what it tracked in all.
    kernel: dict[int, int] = {}
    want = FlowCounts()
    serial = 0
    numbers: dict[int, int] = {}
    for what, slot, amount, copies in steps:
        if what == "new" and slot not in numbers:
            serial += 1
            numbers[slot] = serial
            kernel[serial] = 0
            want.connections += 1
            for _ in range(copies):
                ledger.on_new(tracked(serial), at=0.0)
        elif what == "bytes" and slot in numbers:
            kernel[numbers[slot]] += amount
            want.request_bytes += amount
        elif what == "end" and slot in numbers:
            number = numbers.pop(slot)
            for _ in range(1 + copies):
                ledger.on_end(tracked(number, kernel[number]), at=0.0)
            del kernel[number]
        elif what == "walk":
            walk(ledger, *(tracked(number, amount) for number, amount in kernel.items()))
        elif what == "restart":
            state = msgspec.msgpack.decode(msgspec.msgpack.encode(ledger.state()), type=LedgerState)
            ledger = new_ledger()
            ledger.load(state, at=0.0)
    walk(ledger, *(tracked(number, amount) for number, amount in kernel.items()))
    assert total(ledger) == want
    assert len(ledger) == len(kernel)
    assert ledger.unobserved == 0
