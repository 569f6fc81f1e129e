"""Health-check node ports, over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from keepclose.model.meta import NamespacedName
from keepclose.proxy.health import HealthChecks, listen_here
from support.netns import namespaces_or_skip
from support.ports import reserved_port

WEB = NamespacedName("default", "web")
API = NamespacedName("shop", "api")


class Node:
    """Health checks of a node whose proxy can be made ill."""

    def __init__(self) -> None:
        self.healthy = True
        self.failures: list[tuple[NamespacedName, str]] = []
        self.checks = HealthChecks(
            node="n1",
            addresses=("127.0.0.1", "127.0.0.2"),
            is_proxy_healthy=lambda: self.healthy,
            on_failure=lambda service, message: self.failures.append((service, message)),
        )


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Make a node and close its ports afterwards."""
    made = Node()
    yield made
    await made.checks.close()


@pytest.fixture
def port() -> Iterator[int]:
    """Keep a port that nobody has."""
    with reserved_port() as kept:
        yield kept


@pytest.fixture
def other() -> Iterator[int]:
    """Keep another one."""
    with reserved_port() as kept:
        yield kept


async def get(port: int, path: str = "/", host: str = "127.0.0.1") -> tuple[int, str, str]:
    """Return code, weight and body."""
    url = f"http://{host}:{port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        weight = answer.headers["X-Load-Balancing-Endpoint-Weight"]
        return answer.status, weight, await answer.text()


async def test_what_a_load_balancer_reads(node: Node, port: int) -> None:
    """The body, the weight and the code follow from local endpoints and the proxy's health."""
    await node.checks.sync({WEB: port}, {WEB: 2, API: 7})
    want = (
        '{\n\t"service": {\n\t\t"namespace": "default",\n\t\t"name": "web"\n\t},\n'
        '\t"localEndpoints": 2,\n\t"serviceProxyHealthy": true\n}'
    )
    assert await get(port) == (200, "2", want)
    assert await get(port, "/any/path?x=1", "127.0.0.2") == (200, "2", want)
    node.healthy = False
    assert await get(port) == (503, "2", want.replace("true", "false"))
    node.healthy = True
    await node.checks.sync({WEB: port}, {})
    assert await get(port) == (503, "0", want.replace(": 2", ": 0"))
    assert node.failures == []


async def test_ports_come_and_go(node: Node, port: int, other: int) -> None:
    """A port that stays is not closed; one that moves is free for another Service at once."""
    first, second = port, other
    await node.checks.sync({WEB: first}, {WEB: 1})
    reader, writer = await asyncio.open_connection("127.0.0.1", first)
    for services in ({WEB: first, API: second}, {WEB: first}, {WEB: first, API: second}):
        await node.checks.sync(services, {WEB: 1, API: 3})
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\n}")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
    await writer.wait_closed()
    assert (await get(second))[1] == "3"
    await node.checks.sync({WEB: second, API: first}, {WEB: 4, API: 5})
    assert node.checks.ports == {WEB: second, API: first}
    assert (await get(second))[1] == "4"
    assert (await get(first))[1] == "5"
    await node.checks.sync({}, {})
    assert node.checks.ports == {}
    for closed in (first, second):
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(closed)


async def test_a_port_that_is_taken(node: Node, port: int, other: int) -> None:
    """It is told, nothing half open is left, others work, and the next sync tries again."""
    with listen_here("127.0.0.2", port):
        await node.checks.sync({WEB: port, API: other}, {WEB: 1, API: 1})
        assert node.checks.ports == {API: other}
        [(service, message)] = node.failures
        assert service == WEB
        assert message.startswith(
            f'node n1 failed to start healthcheck "default/web" on port {port}: '
        )
        assert "in use" in message
        # The first address of the two was open for a moment.
        listen_here("127.0.0.1", port).close()
        assert (await get(other))[0] == 200
    await node.checks.sync({WEB: port, API: other}, {WEB: 1, API: 1})
    assert (await get(port))[0] == 200
    assert len(node.failures) == 1


async def test_listening_in_a_namespace() -> None:
    """Both families at once, each with its own listener, where the node is."""
    with namespaces_or_skip("node") as [inside]:
        checks = [
            HealthChecks(
                node="n1",
                addresses=(address,),
                is_proxy_healthy=lambda: True,
                listen=inside.listen,
            )
            for address in ("0.0.0.0", "::")  # noqa: S104
        ]
        for one in checks:
            await one.sync({WEB: 30100}, {WEB: 1})
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with inside.open_socket(family) as client:
                client.settimeout(20)
                client.connect((address, 30100))
        for one in checks:
            await one.close()


async def test_other_addresses(node: Node, port: int) -> None:
    """Listeners move with the addresses of node ports; without any that is told, once."""
    await node.checks.sync({WEB: port}, {WEB: 1})
    node.checks.set_addresses(("127.0.0.2",))
    assert (await get(port))[0] == 200
    await node.checks.sync({WEB: port}, {WEB: 1})
    assert (await get(port, host="127.0.0.2"))[0] == 200
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(port)
    node.checks.set_addresses(())
    for _ in range(3):
        await node.checks.sync({WEB: port}, {WEB: 1})
    assert node.checks.ports == {}
    [(service, message)] = node.failures
    assert service == WEB
    assert message == (
        f'node n1 failed to start healthcheck "default/web" on port {port}: '
        "the node has none of the addresses of node ports"
    )


async def test_a_number_that_is_no_port(node: Node, other: int) -> None:
    """It is told once for as long as it is asked for, and harms nobody else."""
    for _ in range(3):
        await node.checks.sync({WEB: 70000, API: other}, {API: 1})
    assert (await get(other))[0] == 200
    assert [service for service, _ in node.failures] == [WEB]
    await node.checks.sync({API: other}, {API: 1})
    await node.checks.sync({WEB: 70000, API: other}, {API: 1})
    assert len(node.failures) == 2
