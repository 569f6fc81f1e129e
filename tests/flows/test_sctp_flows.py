"""What an agent counts of SCTP associations, which the kernel tracks like connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from keepclose.accounting.flow_table import FlowCounts, FlowKind
from support.conntrack_table import flush_connections
from support.flowbeds import SERVER, SERVICE, WEB, FlowBed, flow_bed, flows_of
from support.netns import Namespace
from support.sctp import (
    ABORT,
    DATA,
    INIT,
    PROTOCOL,
    SHUTDOWN,
    SHUTDOWN_ACK,
    SHUTDOWN_COMPLETE,
    Side,
    crc32c,
    init_body,
    open_association,
)

DIAMETER = WEB._replace(port="diameter", protocol="SCTP")


@contextmanager
def sides(bed: FlowBed) -> Iterator[tuple[Side, Side]]:
    """Open a raw socket of the client and one of the server."""

    def open_raw(namespace: Namespace) -> socket.socket:
        return namespace.do(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, PROTOCOL))

    with open_raw(bed.client) as client, open_raw(bed.server) as server:
        yield Side(client, 5000, 0xC11E), Side(server, 3869, 0x5E44)


def test_the_checksum_of_packets() -> None:
    """The checksum is that of the published examples for CRC32C."""
    assert crc32c((b"1234", b"56789")) == 0xE3069283
    assert crc32c((bytes(32),)) == 0x8A9136AA


async def test_an_association_to_a_service() -> None:
    """An association through a Service counts once, with all bytes of both directions."""
    with flow_bed() as bed, sides(bed) as (client, server):
        async with bed.agent() as agent:
            first = open_association(client, server, SERVICE, 3868)
            for number in range(3):
                body = bytes(12) + bytes((number,)) * 500
                client.send(SERVICE, 3868, DATA, body)
                assert server.receive().body == body
            during = await flows_of(agent, walks=True)
            open_bytes = FlowCounts(1, 0, 0, client.sent_bytes, server.sent_bytes)
            assert during == {DIAMETER: open_bytes}
            client.send(SERVICE, 3868, SHUTDOWN, bytes(4))
            server.receive()
            server.send(first.address, first.source_port, SHUTDOWN_ACK)
            client.receive()
            client.send(SERVICE, 3868, SHUTDOWN_COMPLETE)
            assert server.receive().chunk == SHUTDOWN_COMPLETE
            rows = await flows_of(agent, walks=True)
    assert rows == {DIAMETER: FlowCounts(1, 0, 0, client.sent_bytes, server.sent_bytes)}
    assert client.sent_bytes > 1500


@pytest.mark.parametrize(
    ("aborts", "want"),
    [
        pytest.param(True, (1, 0), id="an endpoint that aborts has answered"),
        pytest.param(False, (1, 1), id="an endpoint that sends nothing has not"),
    ],
)
async def test_an_association_that_does_not_come_about(
    *, aborts: bool, want: tuple[int, int]
) -> None:
    """Once the kernel forgets an association, it is known whether the endpoint answered."""
    with flow_bed() as bed, sides(bed) as (client, server):
        async with bed.agent() as agent:
            client.send(SERVICE, 3868, INIT, init_body(client.tag))
            first = server.receive()
            assert (first.destination_port, first.chunk) == (3869, INIT)
            if aborts:
                server.peer_tag = client.tag
                server.send(first.address, first.source_port, ABORT)
                assert client.receive().chunk == ABORT
            bed.node.run("nft", "flush", "ruleset")
            flush_connections(bed.node)
            rows = await flows_of(agent)
    assert set(rows) == {DIAMETER}
    assert (rows[DIAMETER].connections, rows[DIAMETER].unanswered) == want


async def test_an_association_with_the_endpoint_itself() -> None:
    """An association with an endpoint's own address is a flow to a pod, with its Service."""
    with flow_bed() as bed, sides(bed) as (client, server):
        async with bed.agent() as agent:
            open_association(client, server, SERVER, 3869)
            rows = await flows_of(agent, walks=True)
    assert set(rows) == {DIAMETER._replace(kind=FlowKind.POD)}
