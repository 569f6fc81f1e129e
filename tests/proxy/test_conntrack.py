"""Stale flows: which ones, and that the kernel really forgets them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.proxy.conntrack import (
    UDP,
    CleanUp,
    Conntrack,
    ConntrackError,
    ConntrackTable,
    Flow,
    FlowListing,
    Frontends,
    parse_flow,
    select_stale,
)
from keepclose.proxy.nft.writer import NftFamily
from support.netanswers import Caller, answering, calling
from support.nettopology import Bed, NodePlan, topology_or_skip

CLUSTER_IP = {"ip": "10.96.0.10", "ip6": "fd00:96::10"}
NODE_PORT = 30053
FAMILIES = [pytest.param("ip", id="IPv4"), pytest.param("ip6", id="IPv6")]


def flow(destination: str, port: int, answering_by: str, answering_port: int = 53) -> Flow:
    """Make a flow."""
    return Flow(UDP, destination, port, answering_by, answering_port, "10.0.0.1", 1234)


@pytest.mark.parametrize(
    ("one", "want_stale"),
    [
        pytest.param(flow("10.96.0.1", 53, "10.244.0.1"), False, id="endpoint serves"),
        pytest.param(flow("10.96.0.1", 53, "10.244.0.9"), True, id="endpoint is gone"),
        pytest.param(flow("10.96.0.1", 53, "10.244.0.1", 54), True, id="other endpoint port"),
        pytest.param(flow("10.96.0.1", 54, "10.244.0.9"), False, id="port of no service"),
        pytest.param(flow("10.96.0.2", 53, "10.96.0.2"), True, id="untranslated, no endpoint left"),
        pytest.param(flow("192.168.0.1", 30000, "10.244.0.9"), True, id="node port"),
        pytest.param(flow("192.168.0.1", 30000, "10.244.0.1"), False, id="node port serves"),
        pytest.param(flow("8.8.8.8", 53, "8.8.8.8"), False, id="somebody else's"),
        pytest.param(flow("10.96.0.1", 30000, "10.244.0.1"), False, id="address of no service"),
    ],
)
def test_which_flows_are_stale(one: Flow, want_stale: bool) -> None:
    """By the original destination and who answers; flows to nothing of ours stay."""
    serving = frozenset({("10.244.0.1", 53)})
    frontends = Frontends(
        {("10.96.0.1", 53): serving, ("10.96.0.2", 53): frozenset()}, {30000: serving}
    )
    assert select_stale([one], frontends) == ([one] if want_stale else [])


def rules(bed: Bed, family: NftFamily, pod: int) -> str:
    """Return a table that sends the Service and the node port to one pod."""
    place = bed.nodes[1].pods[pod]
    address = place.address6 if family == "ip6" else place.address
    target = f"[{address}]:8080" if family == "ip6" else f"{address}:8080"
    lines = [f"add table {family} t"]
    for chain, hook in (("pre", "prerouting"), ("out", "output")):
        lines += [
            f"add chain {family} t {chain} {{ type nat hook {hook} priority -100 ; }}",
            f"flush chain {family} t {chain}",
            (
                f"add rule {family} t {chain} {family} daddr {CLUSTER_IP[family]} "
                f"udp dport 53 dnat to {target}"
            ),
            (
                f"add rule {family} t {chain} {family} daddr {CLUSTER_IP[family]} "
                f"tcp dport 53 dnat to {target}"
            ),
            f"add rule {family} t {chain} udp dport {NODE_PORT} dnat to {target}",
        ]
    lines.append(f"add chain {family} t post {{ type nat hook postrouting priority 100 ; }}")
    lines.append(f"flush chain {family} t post")
    lines.append(f"add rule {family} t post ct status dnat masquerade")
    return "\n".join(lines) + "\n"


def endpoint(bed: Bed, family: NftFamily, pod: int) -> tuple[str, int]:
    """Return where a pod of the second node answers."""
    place = bed.nodes[1].pods[pod]
    return (place.address6 if family == "ip6" else place.address, 8080)


@pytest.fixture
def bed() -> Iterator[Bed]:
    """Make two nodes: a client on the first, endpoints on the second."""
    plan = (NodePlan("n1", "zone-a", 1), NodePlan("n2", "zone-b", 2))
    with topology_or_skip(plan) as made, answering(made.pods):
        yield made


@contextlib.contextmanager
def client(
    bed: Bed, family: NftFamily, port: int = 53, *, udp: bool = True
) -> Iterator[tuple[Caller, str]]:
    """Call the Service, or the node port of the first node, from its pod."""
    node, pod = bed.nodes[0], bed.nodes[0].pods[0]
    address = CLUSTER_IP[family]
    if port == NODE_PORT:
        address = node.address6 if family == "ip6" else node.address
    with calling(pod.namespace, address, port, udp=udp) as caller:
        yield caller, address


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_stuck_client_moves_on(bed: Bed, family: NftFamily) -> None:
    """A UDP client stays with a gone endpoint until its flow is forgotten; TCP is left alone."""
    node = bed.nodes[0].namespace
    gone, new = (frozenset({endpoint(bed, family, pod)}) for pod in (0, 1))
    frontends = Frontends({(CLUSTER_IP[family], 53): gone})
    node.run("nft", "-f", "-", text=rules(bed, family, 0))
    conntrack = Conntrack(family, namespace=node.path)
    with (
        client(bed, family) as (udp, _),
        client(bed, family, udp=False) as (tcp, _),
        client(bed, family, NODE_PORT) as (outer, _),
    ):
        assert [one.ask().name for one in (udp, tcp, outer)] == ["n2-p1"] * 3
        node.run("nft", "-f", "-", text=rules(bed, family, 1))
        assert [one.ask().name for one in (udp, tcp, outer)] == ["n2-p1"] * 3
        kept = await conntrack.clean(frontends)
        assert (kept.examined, kept.deleted, kept.complete) == (2, 0, True)
        assert udp.ask().name == "n2-p1"
        moved = await conntrack.clean(Frontends({(CLUSTER_IP[family], 53): new}))
        assert (moved.examined, moved.deleted) == (2, 1)
        assert [one.ask().name for one in (udp, tcp, outer)] == ["n2-p2", "n2-p1", "n2-p1"]
        outer_moved = await conntrack.clean(Frontends({}, {NODE_PORT: new}))
        assert (outer_moved.examined, outer_moved.deleted) == (2, 1)
        assert outer.ask().name == "n2-p2"
        again = await conntrack.clean(Frontends({(CLUSTER_IP[family], 53): new}, {NODE_PORT: new}))
        assert again.deleted == 0
    await conntrack.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_the_kernel_tells_of_a_flow(bed: Bed, family: NftFamily) -> None:
    """Original destination, who answers and who asked, all as written."""
    node, pod = bed.nodes[0].namespace, bed.nodes[0].pods[0]
    node.run("nft", "-f", "-", text=rules(bed, family, 0))
    kind = socket.AF_INET6 if family == "ip6" else socket.AF_INET
    with client(bed, family) as (caller, address):
        caller.ask()
        port = caller.port
        table = node.do(lambda: ConntrackTable(kind))
        try:
            listing = table.list_flows(UDP)
            other = table.list_flows(132)
        finally:
            table.close()
    source = pod.address6 if family == "ip6" else pod.address
    [one] = listing.flows
    assert one[:7] == (UDP, address, 53, *endpoint(bed, family, 0), source, port)
    assert other == FlowListing([], complete=True)


async def test_many_flows_are_deleted_at_once(bed: Bed) -> None:
    """Hundreds go in few messages; a flow that is gone already is not counted."""
    node = bed.nodes[0].namespace
    node.run("nft", "-f", "-", text=rules(bed, "ip", 0))
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(client(bed, "ip"))[0] for _ in range(200)]
        for caller in callers:
            assert caller.ask().name == "n2-p1"
        table = node.do(lambda: ConntrackTable(socket.AF_INET))
        stack.callback(table.close)
        flows = table.list_flows(UDP).flows
        assert len(flows) == 200
        assert table.delete(flows[:1]) == 1
        assert table.delete(flows) == 199
        assert table.delete(flows) == 0
        assert table.list_flows(UDP).flows == []


async def test_a_newer_flow_from_the_same_port_stays(bed: Bed) -> None:
    """A deletion that comes late does not hit a client that has moved on already."""
    node = bed.nodes[0].namespace
    node.run("nft", "-f", "-", text=rules(bed, "ip", 0))
    with client(bed, "ip") as (caller, _):
        assert caller.ask().name == "n2-p1"
        table = node.do(lambda: ConntrackTable(socket.AF_INET))
        [old] = table.list_flows(UDP).flows
        assert table.delete([old]) == 1
        node.run("nft", "-f", "-", text=rules(bed, "ip", 1))
        assert caller.ask().name == "n2-p2"
        [new] = table.list_flows(UDP).flows
        assert (new.source_port, new.reply_source) == (old.source_port, endpoint(bed, "ip", 1)[0])
        assert table.delete([old]) == 0
        assert table.list_flows(UDP).flows == [new]
        table.close()


async def test_nothing_is_read_without_services(tmp_path: Path) -> None:
    """No Service, no work: even an impossible namespace does not matter."""
    conntrack = Conntrack("ip", namespace=tmp_path / "gone")
    assert await conntrack.clean(Frontends()) == CleanUp()
    with pytest.raises(ConntrackError, match="gone"):
        await conntrack.clean(Frontends({("10.0.0.1", 1): frozenset()}))
    await conntrack.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x03\x00\x01\x80", id="a size less than its header"),
        pytest.param(b"\x04\x00\x01\x80\x04\x00\x02\x80", id="empty tuples"),
        pytest.param(b"\xff\xff\x01\x80" + bytes(8), id="a size beyond the end"),
    ],
)
def test_messages_that_hold_no_flow(data: bytes) -> None:
    """Nothing is made up."""
    assert parse_flow(data) is None


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=80))
def test_any_bytes_are_read_without_a_crash(data: bytes) -> None:
    """A message gives a flow or nothing."""
    assert parse_flow(data) is None or isinstance(parse_flow(data), Flow)
    nested = struct.pack("=HH", len(data) + 4, 1) + data + bytes(-len(data) % 4)
    both = nested + struct.pack("=HH", len(data) + 4, 2) + data
    assert parse_flow(both) is None or isinstance(parse_flow(both), Flow)


def play_kernel(connection: socket.socket, answers: list[tuple[int, int, bytes]]) -> int:
    """Answer each request with the next message (kind, flags, body); return how many came."""
    asked = 0
    for kind, flags, body in answers:
        request = connection.recv(4096)
        if not request:
            break
        asked += 1
        sequence = struct.unpack_from("=IHHI", request)[3]
        head = struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0)
        connection.send(head + body)
    return asked


@pytest.mark.parametrize(
    ("answers", "want_complete", "want_asked"),
    [
        pytest.param([(3, 0, b"")], True, 1, id="still at once"),
        pytest.param([(3, 0x10, b"")] * 2 + [(3, 0, b"")], True, 3, id="at the third time"),
        pytest.param([(3, 0x10, b"")] * 9, False, 5, id="never"),
    ],
)
async def test_a_table_that_changes_while_it_is_read(
    answers: list[tuple[int, int, bytes]], want_complete: bool, want_asked: int
) -> None:
    """It is read again, five times in all; then what was read counts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kernel = asyncio.create_task(asyncio.to_thread(play_kernel, theirs, answers))
    table = ConntrackTable(socket.AF_INET, opened=ours)
    listing = await asyncio.to_thread(table.list_flows, UDP)
    table.close()
    assert (listing, await kernel) == (FlowListing([], want_complete), want_asked)
    theirs.close()


async def test_refusals_of_the_kernel() -> None:
    """They are told as what they are, for lists and for deletions."""
    refusal = (2, 0, struct.pack("=i", -errno.EPERM) + bytes(16))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kernel = asyncio.create_task(asyncio.to_thread(play_kernel, theirs, [refusal, refusal]))
    table = ConntrackTable(socket.AF_INET, opened=ours)
    with pytest.raises(PermissionError, match="cannot list flows"):
        await asyncio.to_thread(table.list_flows, UDP)
    with pytest.raises(PermissionError, match="cannot delete flows"):
        await asyncio.to_thread(table.delete, [flow("10.0.0.1", 1, "10.0.0.2")])
    assert await kernel == 2
    table.close()
    theirs.close()


def test_a_kernel_that_does_not_answer() -> None:
    """Waiting has an end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    table = ConntrackTable(socket.AF_INET, opened=ours, seconds=0.05)
    with pytest.raises(TimeoutError):
        table.list_flows(UDP)
    table.close()
    theirs.close()
