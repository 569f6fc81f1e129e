"""Which flow a connection belongs to, however often its like was seen before."""

from __future__ import annotations

import pytest

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.flow_table import Detail
from keepclose.accounting.owner_history import LATE_S
from keepclose.flows.flow_rows import WAITING, FlowRows
from keepclose.model.meta import NamespacedName
from keepclose.system.conntrack import TrackedConnection
from support import builders

ADDRESS = "10.0.0.5"


def tracked(port: int) -> TrackedConnection:
    """Return a connection of the pod to an address outside."""
    source, outside = bytes((10, 0, 0, 5)), bytes((8, 8, 8, 8))
    return TrackedConnection(bytes((port,)), 6, source, port, outside, 443, outside, 443)


@pytest.mark.parametrize("has_late_connection", [True, False])
def test_a_pod_that_ended_has_no_later_connections(*, has_late_connection: bool) -> None:
    """A connection that is seen late is the last owner's; the next waits for the new owner."""
    now = [100.0]
    book = AddressBook(cluster_ranges=("10.0.0.0/8",))
    rows = FlowRows(book, node="n1", detail=Detail(workloads=True), now=lambda: now[0])
    book.set_pod(builders.pod("old", "n1", ip=ADDRESS), at=1.0)
    before = rows.place(tracked(1))
    book.remove_pod(NamespacedName("default", "old"), at=now[0])
    if has_late_connection:
        now[0] += LATE_S / 2
        assert rows.place(tracked(2)) == before
        assert rows.keys[before].client == "default/old"
    now[0] += 30 * LATE_S
    assert rows.place(tracked(3)) == WAITING
