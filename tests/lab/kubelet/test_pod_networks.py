"""How requests for places are gathered, and addresses without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from keepclose.lab.kubelet.pod_networks import AddressesOnly, PodPlace, UnderlayNetwork
from keepclose.lab.network.addresses import node_addresses
from keepclose.lab.network.underlay import NetworkPlace, NodePlace
from keepclose.system.namespaces import NetworkError, NetworkNamespace

NOWHERE = NetworkNamespace("nowhere", -1)


class NotedGround:
    """Notes what is asked of it; nodes called full take no pods."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = {
            name: NodePlace(name, NOWHERE, node_addresses(number), NetworkPlace("c", NOWHERE, ()))
            for number, name in enumerate(nodes, 1)
        }
        self.notes: list[list[str]] = []
        self.refuses_removal = False

    def add_pods(self, requested: Sequence[tuple[str, str]]) -> list[NetworkPlace]:
        """Give places, or refuse all."""
        self.notes.append([f"+{pod}" for _, pod in requested])
        for node, pod in requested:
            if node == "full" or pod.startswith("odd"):
                raise NetworkError(f"no place for {pod}")
        return [NetworkPlace(pod, NOWHERE, (f"address of {pod}",)) for _, pod in requested]

    def remove_pods(self, pods: Sequence[str]) -> None:
        """Take places away."""
        self.notes.append([f"-{pod}" for pod in pods])
        if self.refuses_removal:
            raise NetworkError("busy")


async def test_requests_of_one_turn_are_one_call() -> None:
    """Pods that ask together come together, and each gets its own place."""
    ground = NotedGround("n1", "n2")
    network = UnderlayNetwork(ground)
    places = await asyncio.gather(*(network.attach(f"n{n % 2 + 1}", f"p{n}") for n in range(4)))
    assert ground.notes == [["+p0", "+p1", "+p2", "+p3"]]
    want_host = (("172.18.0.1", "fd00:172::1"), ("172.18.0.2", "fd00:172::2"))
    assert places == [PodPlace((f"address of p{n}",), NOWHERE, want_host[n % 2]) for n in range(4)]
    await asyncio.gather(network.detach("p0"), network.detach("p1"), network.attach("n1", "p9"))
    assert ground.notes[1:] == [["-p0", "-p1"], ["+p9"]]


async def test_a_refusal_concerns_those_who_are_refused_alone() -> None:
    """When a call fails, the pods of other nodes and the good ones of a node get their places."""
    ground = NotedGround("n1", "full")
    network = UnderlayNetwork(ground)
    results = await asyncio.gather(
        network.attach("n1", "a"),
        network.attach("full", "b"),
        network.attach("n1", "odd"),
        network.attach("n1", "c"),
        return_exceptions=True,
    )
    said = [one if isinstance(one, NetworkError) else one[0] for one in results if one]  # type: ignore[index]
    assert [str(one) for one in said] == [
        "('address of a',)",
        "no place for b",
        "no place for odd",
        "('address of c',)",
    ]


async def test_one_who_gave_up_waiting_harms_nobody() -> None:
    """A request that was cancelled is served all the same, and the others are told."""
    network = UnderlayNetwork(NotedGround("n1"))
    given_up = asyncio.create_task(network.attach("n1", "a"))
    other = asyncio.create_task(network.attach("n1", "b"))
    await asyncio.sleep(0)
    given_up.cancel()
    assert (await other).addresses == ("address of b",)
    assert given_up.cancelled()


async def test_a_removal_that_fails_is_told() -> None:
    """Whoever asked for it learns why."""
    ground = NotedGround("n1")
    ground.refuses_removal = True
    with pytest.raises(NetworkError, match="busy"):
        await UnderlayNetwork(ground).detach("p")


async def test_the_host_is_the_node_itself() -> None:
    """Pods on the network of their node have its addresses; there must be such a node."""
    network = UnderlayNetwork(NotedGround("n1"))
    addresses = ("172.18.0.1", "fd00:172::1")
    assert await network.host("n1") == PodPlace(addresses, NOWHERE, addresses)
    with pytest.raises(NetworkError, match="there is no node n2"):
        await network.host("n2")


async def test_addresses_are_those_of_the_nodes_number() -> None:
    """Nodes are numbered in the order given; a pod keeps its addresses until it is detached."""
    network = AddressesOnly(("n1", "n2"))
    place = await network.attach("n2", "a")
    assert place == PodPlace(("10.244.2.3", "fd00:244:2::3"), None, ("172.18.0.2", "fd00:172::2"))
    assert await network.attach("n2", "a") == place
    await network.detach("a")
    await network.detach("a")
    assert (await network.attach("n2", "a")).addresses[0] == "10.244.2.4"
    assert (await network.attach("n3", "b")).addresses[0] == "10.244.3.3"
    assert (await network.host("n1")).addresses == ("172.18.0.1", "fd00:172::1")


async def test_a_full_node_refuses() -> None:
    """After 252 pods there is no address left, until one goes."""
    network = AddressesOnly(("n1",))
    for number in range(252):
        await network.attach("n1", f"p{number}")
    with pytest.raises(NetworkError, match="node n1 takes no more pods: all 252"):
        await network.attach("n1", "late")
    await network.detach("p7")
    assert (await network.attach("n1", "late")).addresses[0] == "10.244.1.10"
