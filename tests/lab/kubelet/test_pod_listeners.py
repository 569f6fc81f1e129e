"""Pods that answer real packets, in namespaces of their own."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from keepclose.lab.kubelet.container_modes import DEFAULT_PORTS, PodPorts, Port
from keepclose.lab.kubelet.kubelets import PodPlace
from keepclose.lab.kubelet.pod_networks import UnderlayNetwork
from keepclose.lab.kubelet.pod_servers import PodListener, PodReplies, open_listener
from keepclose.lab.network.privilege import why_no_packets
from keepclose.lab.network.underlay import Underlay
from keepclose.model.meta import NamespacedName
from keepclose.system.namespaces import NetworkNamespace, create_network_namespace
from keepclose.testing.api_server import PATIENCE, serving
from keepclose.testing.fake_clock import FakeClock
from support.lab.kubeletbed import KubeletBed, is_ready, kubelets_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
T = TypeVar("T")
WEB = PodReplies(pod="web", node="n1", zone=lambda: "zone-a")
LOCAL = ("127.0.0.1", "::1")
GET = b"GET / HTTP/1.1\r\n\r\n"


async def ask(namespace: NetworkNamespace, host: str, port: int, *, udp: bool = False) -> bytes:
    """Return the body of the answer that comes to a request from inside a namespace."""
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = await asyncio.to_thread(namespace.open_socket, family, kind)
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            await loop.sock_connect(one, (host, port))
            await loop.sock_sendall(one, b"who" if udp else GET)
            answer = await loop.sock_recv(one, 4096)
    finally:
        one.close()
    return answer.partition(b"\r\n\r\n")[2] or answer


@pytest.fixture
def namespace() -> Iterator[NetworkNamespace]:
    """Make a namespace with nothing but its loopback."""
    made = create_network_namespace("test")
    yield made
    made.close()


@pytest.fixture
def underlay() -> Iterator[Underlay]:
    """Make a network of two nodes."""
    reason = why_no_packets()
    if reason:
        pytest.skip(reason)
    with Underlay() as made:
        made.add_nodes(["n1", "n2"])
        yield made


@pytest.fixture
async def bed(tmp_path: Path, underlay: Underlay) -> AsyncIterator[KubeletBed]:
    """Run the kubelets of two nodes with packets."""
    async with (
        serving(tmp_path) as api,
        kubelets_of(api, UnderlayNetwork(underlay), nodes=("n1", "n2")) as found,
    ):
        await found.cluster.add_node("n1", "zone-a")
        await found.cluster.add_node("n2", "zone-b")
        yield found


async def test_all_ports_answer_over_both_families(namespace: NetworkNamespace) -> None:
    """Each port answers over IPv4 and IPv6, TCP and UDP, and none does once closed."""
    place = PodPlace(LOCAL, namespace, ())
    listener = await open_listener(place, PodPorts(DEFAULT_PORTS, are_guessed=True), WEB)
    assert listener is not None
    assert set(listener.ports) == set(DEFAULT_PORTS)
    for port in DEFAULT_PORTS:
        for host in LOCAL:
            udp = port.protocol == "UDP"
            want = f"web n1 zone-a {host}\n" if udp else "web n1 zone-a\n"
            assert await ask(namespace, host, port.number, udp=udp) == want.encode()
    listener.close()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        await ask(namespace, "127.0.0.1", 80)


async def test_a_place_without_ipv6_is_listened_to_as_well(namespace: NetworkNamespace) -> None:
    """Only the families that the place has are used."""
    place = PodPlace(("127.0.0.1",), namespace, ())
    listener = await open_listener(place, PodPorts((Port(80, "TCP"), Port(81, "SCTP"))), WEB)
    assert listener is not None
    assert await ask(namespace, "127.0.0.1", 80) == b"web n1 zone-a\n"
    with pytest.raises(ConnectionRefusedError):
        await ask(namespace, "::1", 80)
    listener.close()


async def test_an_open_connection_ends_with_the_listener(namespace: NetworkNamespace) -> None:
    """Connections are answered until the listener closes, and are then ended."""
    listener = await open_listener(
        PodPlace(LOCAL, namespace, ()), PodPorts((Port(80, "TCP"),)), WEB
    )
    assert listener is not None
    one = await asyncio.to_thread(namespace.open_socket)
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        await loop.sock_connect(one, ("127.0.0.1", 80))
        for _ in range(2):
            await loop.sock_sendall(one, GET)
            assert (await loop.sock_recv(one, 4096)).endswith(b"web n1 zone-a\n")
        listener.close()
        assert await loop.sock_recv(one, 4096) == b""
    one.close()


async def test_a_port_in_use_is_refused_unless_it_was_guessed(namespace: NetworkNamespace) -> None:
    """Somebody else's port is an error for who named it, and left out for who did not."""
    place = PodPlace(LOCAL, namespace, ())
    named = PodPorts((Port(80, "TCP"),))
    first = await open_listener(place, named, WEB, on_host=True)
    assert first is not None
    with pytest.raises(OSError, match="cannot listen on TCP port 80: Address already in use"):
        await open_listener(place, named, WEB, on_host=True)
    guessed = PodPorts((Port(80, "TCP"), Port(8080, "TCP")), are_guessed=True)
    second = await open_listener(place, guessed, WEB, on_host=True)
    assert second is not None
    assert second.ports == [Port(8080, "TCP")]
    first.close()
    second.close()


async def test_without_packets_nothing_listens() -> None:
    """A place without a namespace has no listener."""
    place = PodPlace(LOCAL, None, ())
    assert await open_listener(place, PodPorts(DEFAULT_PORTS), WEB) is None


async def test_a_pod_is_reached_from_another_node_and_tells_its_zone(
    bed: KubeletBed, underlay: Underlay
) -> None:
    """The Deployment of KEP-4444 answers with its name; other pods with node and present zone."""
    await bed.add_pod(
        "hostnames",
        "n2",
        image="registry.k8s.io/e2e-test-images/agnhost:2.40",
        args=["serve-hostname", "--port", "8080"],
        ports=[{"containerPort": 8080}],
    )
    await bed.add_pod("web", "n2")
    client = underlay.nodes["n1"].client
    named, web = await bed.until_ready("hostnames"), await bed.until_ready("web")
    assert await ask(client.namespace, named.status.pod_ip, 8080) == b"hostnames"
    await bed.until_zone("n2", "zone-b")
    for address, source in zip(web.status.pod_ips, client.addresses, strict=True):
        assert await ask(client.namespace, address.ip, 80) == b"web n2 zone-b\n"
        want = f"web n2 zone-b {source}\n".encode()
        assert await ask(client.namespace, address.ip, 9376, udp=True) == want
    await bed.cluster.label_node("n2", "zone-c")
    await bed.until_zone("n2", "zone-c")
    assert await ask(client.namespace, web.status.pod_ip, 80) == b"web n2 zone-c\n"


async def test_a_pod_on_the_host_network_answers_on_the_node(
    bed: KubeletBed, underlay: Underlay
) -> None:
    """It listens on the node's addresses, and beside another that guessed the same ports."""
    await bed.until_zone("n1", "zone-a")
    await bed.add_pod("first", "n1", hostNetwork=True, ports=[{"containerPort": 80}])
    await bed.until_ready("first")
    await bed.add_pod("second", "n1", hostNetwork=True)
    await bed.until_ready("second")
    client = underlay.nodes["n2"].client.namespace
    for host in ("172.18.0.1", "fd00:172::1"):
        assert await ask(client, host, 80) == b"first n1 zone-a\n"
        assert await ask(client, host, 8080) == b"second n1 zone-a\n"


async def test_a_pod_that_is_to_end_answers_until_it_is_gone(
    tmp_path: Path, underlay: Underlay
) -> None:
    """Within its last second it still takes connections; then its place is gone too."""
    # NB: a second of the machine's own clock may be over before one could ask.
    clock, network = FakeClock(), UnderlayNetwork(underlay)
    async with (
        serving(tmp_path) as api,
        kubelets_of(api, network, clock=clock, nodes=("n1", "n2")) as bed,
    ):
        await bed.add_pod()
        pod = await bed.until_ready()
        assert underlay.pod(pod.uid) is not None
        await bed.delete()
        pod = await bed.until(lambda one: one.is_terminating)
        await bed.rest()
        await clock.advance(0.9)
        assert is_ready(pod)
        body = await ask(underlay.nodes["n1"].client.namespace, pod.status.pod_ip, 80)
        assert body.startswith(b"web n1")
        await bed.rest()
        await clock.advance(0.1)
        await bed.until_gone()
        assert underlay.pod(pod.uid) is None


async def test_a_hundred_pods_come_up_together(bed: KubeletBed, underlay: Underlay) -> None:
    """A burst takes few turns of the network, and the last pod answers like the first."""
    names = [f"web-{number}" for number in range(100)]
    parts: dict[str, Any] = {"ports": [{"containerPort": 80}]}
    await asyncio.gather(
        *(bed.add_pod(name, f"n{number % 2 + 1}", **parts) for number, name in enumerate(names))
    )
    for name in names:
        await bed.until_ready(name)
    await bed.rest()
    assert bed.wire.take() == ["PATCH pods/status"] * 100
    place = bed.kubelets.place_of(NamespacedName("default", "web-99"))
    assert place is not None
    client = underlay.nodes["n1"].client.namespace
    assert (await ask(client, place.addresses[0], 80)).startswith(b"web-99 n2")


async def test_sockets_of_one_who_gave_up_are_closed(namespace: NetworkNamespace) -> None:
    """Whoever stops waiting for a listener leaves nothing open."""
    place = PodPlace(LOCAL, namespace, ())
    opening = asyncio.create_task(open_listener(place, PodPorts((Port(80, "TCP"),)), WEB))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    async with asyncio.timeout(PATIENCE):
        # NB: nothing tells that a thread of another one has closed its sockets.
        while (listener := await try_to_listen(place)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    listener.close()


class GatedNamespace(NetworkNamespace):
    """A namespace in which work ends when it may; notes the sockets that were opened."""

    def __init__(self, inner: NetworkNamespace) -> None:
        super().__init__(inner.name, inner.fd)
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.opened: list[socket.socket] = []

    def do(self, work: Callable[[], T]) -> T:
        """Do the work at once, and hand its result over when that is allowed."""
        result = super().do(work)
        assert isinstance(result, list)
        self.opened += [one for _, one in result]
        self.has_begun.set()
        assert self.may_end.wait(PATIENCE)
        return result


def test_sockets_are_closed_when_the_event_loop_ends_first(namespace: NetworkNamespace) -> None:
    """The worker thread closes what it opened for a task that the end of its loop cancelled."""
    gated = GatedNamespace(namespace)

    async def wait() -> None:
        try:
            await open_listener(PodPlace(LOCAL, gated, ()), PodPorts((Port(80, "TCP"),)), WEB)
        finally:
            gated.may_end.set()

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(wait())
        await asyncio.to_thread(gated.has_begun.wait, PATIENCE)
        return task

    assert asyncio.run(main()).cancelled()
    (one,) = gated.opened
    assert one.fileno() == -1


async def test_a_listener_whose_maker_is_cancelled_while_it_begins_to_serve(
    namespace: NetworkNamespace,
) -> None:
    """At each step to the first answer a cancelled maker leaves nothing that listens."""
    # NB: one thread, or the socket of a cancelled maker may come after that of the next one.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    place = PodPlace(LOCAL, namespace, ())
    for turns in range(1, 200):
        opening = asyncio.create_task(open_listener(place, PodPorts((Port(80, "TCP"),)), WEB))
        for _ in range(turns):
            await asyncio.sleep(0)
            if opening.done():
                break
        if opening.done():
            listener = opening.result()
            assert listener is not None
            listener.close()
            return
        opening.cancel()
        await asyncio.wait([opening])
        async with asyncio.timeout(PATIENCE):
            # NB: nothing tells that a worker thread has closed its sockets.
            while (listener := await try_to_listen(place)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        listener.close()


async def try_to_listen(place: PodPlace) -> PodListener | None:
    """Return what listens, None while somebody else does."""
    try:
        return await open_listener(place, PodPorts((Port(80, "TCP"),)), WEB)
    except OSError:
        return None
