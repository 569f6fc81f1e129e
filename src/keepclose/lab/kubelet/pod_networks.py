"""How pods come to addresses: the seam between kubelets and the network below them.

Two networks stand behind it: the lab's real one, and one that only hands addresses out, for
machines on which no packets can be sent. Pods are known by their uid. A refusal of one pod never
keeps another from its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from keepclose.lab.network.addresses import NodeNumbering, PodNumbers, node_addresses
from keepclose.lab.network.underlay import NetworkPlace, NodePlace
from keepclose.system.namespaces import NetworkError, NetworkNamespace
from keepclose.system.threads import finish_in_thread

_T = TypeVar("_T")


class PodPlace(NamedTuple):
    """Where a pod lives: its addresses, IPv4 first, and those of its node."""

    addresses: tuple[str, ...]
    namespace: NetworkNamespace | None
    """None when no packets can be sent."""
    host_addresses: tuple[str, ...]


class PodNetwork(Protocol):
    """Gives pods a place on their node; raises NetworkError when it cannot."""

    async def attach(self, node: str, pod: str) -> PodPlace:
        """Return the place of a pod, made if need be."""
        ...

    async def detach(self, pod: str) -> None:
        """Take a pod's place away; a pod that has none is fine."""
        ...

    async def host(self, node: str) -> PodPlace:
        """Return the place of the node itself, for pods that use its network."""
        ...


class PodGround(Protocol):
    """What pods need of the lab's network; calls block, and do all they are asked or nothing."""

    @property
    def nodes(self) -> Mapping[str, NodePlace]:
        """The nodes by name."""
        ...

    def add_pods(self, wanted: Sequence[tuple[str, str]]) -> list[NetworkPlace]:
        """Add pods, each a node and an id; those that are there stay. Raises NetworkError."""
        ...

    def remove_pods(self, pods: Sequence[str]) -> None:
        """Take pods away; unknown ones are fine. Raises NetworkError."""
        ...


class UnderlayNetwork:
    """The lab's network: what is asked for while it is busy is done together in the next turn."""

    def __init__(self, underlay: PodGround) -> None:
        self._underlay = underlay
        self._wanted: dict[str, tuple[str, asyncio.Future[NetworkPlace]]] = {}
        self._unwanted: dict[str, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def attach(self, node: str, pod: str) -> PodPlace:
        """Return the place of a pod, made if need be."""
        place: asyncio.Future[NetworkPlace] = asyncio.get_running_loop().create_future()
        self._wanted[pod] = (node, place)
        self._begin()
        found = await place
        return PodPlace(found.addresses, found.namespace, _hosts(self._node(node).addresses))

    async def detach(self, pod: str) -> None:
        """Take a pod's place away."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwanted[pod] = done
        self._begin()
        await done

    async def host(self, node: str) -> PodPlace:
        """Return the place of the node itself."""
        found = self._node(node)
        addresses = _hosts(found.addresses)
        return PodPlace(addresses, found.namespace, addresses)

    def _node(self, name: str) -> NodePlace:
        if name not in self._underlay.nodes:
            raise NetworkError(f"there is no node {name}")
        return self._underlay.nodes[name]

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        # Whoever asks in the same turn of the loop is served with the first.
        await asyncio.sleep(0)
        while self._wanted or self._unwanted:
            unwanted, self._unwanted = self._unwanted, {}
            wanted, self._wanted = self._wanted, {}
            if unwanted:
                await self._remove(unwanted)
            if wanted:
                await self._add([(node, pod) for pod, (node, _) in wanted.items()], wanted)

    async def _remove(self, unwanted: dict[str, asyncio.Future[None]]) -> None:
        try:
            await finish_in_thread(lambda: self._underlay.remove_pods(list(unwanted)))
        except Exception as error:  # noqa: BLE001 - told to those who asked
            for one in unwanted.values():
                _fail(one, error)
        else:
            for one in unwanted.values():
                _settle(one, None)

    async def _add(
        self,
        pods: Sequence[tuple[str, str]],
        wanted: dict[str, tuple[str, asyncio.Future[NetworkPlace]]],
    ) -> None:
        """Add the pods; when they are refused together, those that are fine get their place."""
        try:
            places = await finish_in_thread(lambda: self._underlay.add_pods(pods))
        except Exception as error:  # noqa: BLE001 - told to those who asked
            if len(pods) == 1:
                _fail(wanted[pods[0][1]][1], error)
                return
            for part in _parts(pods):
                await self._add(part, wanted)
        else:
            for (_, pod), place in zip(pods, places, strict=True):
                _settle(wanted[pod][1], place)


class AddressesOnly:
    """Addresses without a network; the names of nodes come in the order of their numbers.

    A node that was not named gets the next number.
    """

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self._nodes: dict[str, tuple[NodeNumbering, PodNumbers]] = {}
        self._pods: dict[str, tuple[str, int]] = {}
        for name in nodes:
            self._node(name)

    async def attach(self, node: str, pod: str) -> PodPlace:
        """Return the addresses of a pod, the same as before if it has any."""
        addresses, numbers = self._node(node)
        if pod not in self._pods:
            try:
                self._pods[pod] = (node, numbers.take())
            except NetworkError as error:
                raise NetworkError(f"node {node} takes no more pods: {error}") from None
        return PodPlace(addresses.pod_addresses(self._pods[pod][1]), None, _hosts(addresses))

    async def detach(self, pod: str) -> None:
        """Take a pod's addresses back."""
        node, number = self._pods.pop(pod, ("", 0))
        if node:
            self._nodes[node][1].give_back(number)

    async def host(self, node: str) -> PodPlace:
        """Return the addresses of the node."""
        addresses = _hosts(self._node(node)[0])
        return PodPlace(addresses, None, addresses)

    def _node(self, name: str) -> tuple[NodeNumbering, PodNumbers]:
        if name not in self._nodes:
            self._nodes[name] = (node_addresses(len(self._nodes) + 1), PodNumbers())
        return self._nodes[name]


def _hosts(addresses: NodeNumbering) -> tuple[str, ...]:
    return (addresses.address, addresses.address6)


def _parts(pods: Sequence[tuple[str, str]]) -> list[Sequence[tuple[str, str]]]:
    """Return the pods by node, or, all on one node, in two halves."""
    by_node: dict[str, list[tuple[str, str]]] = {}
    for one in pods:
        by_node.setdefault(one[0], []).append(one)
    if len(by_node) > 1:
        return list(by_node.values())
    middle = len(pods) // 2
    return [pods[:middle], pods[middle:]]


def _settle(future: asyncio.Future[_T], result: _T) -> None:
    # Whoever asked may have been cancelled.
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[_T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
