"""Pod addresses: the interface between the kubelets and the network of the lab.

There are two implementations: the lab's network, and one that only allocates addresses, for
machines that cannot have the network. Pods are identified by their uid. The failure of one pod
never affects another.
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
    """The addresses of a pod, IPv4 first, its namespace, and the addresses of its node."""

    addresses: tuple[str, ...]
    namespace: NetworkNamespace | None
    """None on a machine that cannot have the network."""
    host_addresses: tuple[str, ...]


class PodNetwork(Protocol):
    """Attaches pods to the network of their node; raises NetworkError."""

    async def attach(self, node: str, pod: str) -> PodPlace:
        """Attach a pod and return its place; idempotent."""
        ...

    async def detach(self, pod: str) -> None:
        """Release the place of a pod; idempotent."""
        ...

    async def host(self, node: str) -> PodPlace:
        """Return the place of the node itself, for pods that use its network."""
        ...


class PodUnderlay(Protocol):
    """What pods need of the lab's network; calls block, and do all that is requested or nothing."""

    @property
    def nodes(self) -> Mapping[str, NodePlace]:
        """The nodes by name."""
        ...

    def add_pods(self, requested: Sequence[tuple[str, str]]) -> list[NetworkPlace]:
        """Add pods, each a node and an id; existing pods stay. Raises NetworkError."""
        ...

    def remove_pods(self, pods: Sequence[str]) -> None:
        """Remove pods; ignores unknown pods. Raises NetworkError."""
        ...


class UnderlayNetwork:
    """The lab's network: requests that come while it is busy are handled together afterwards."""

    def __init__(self, underlay: PodUnderlay) -> None:
        self._underlay = underlay
        self._to_attach: dict[str, tuple[str, asyncio.Future[NetworkPlace]]] = {}
        self._to_detach: dict[str, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def attach(self, node: str, pod: str) -> PodPlace:
        """Attach a pod and return its place; idempotent."""
        place: asyncio.Future[NetworkPlace] = asyncio.get_running_loop().create_future()
        self._to_attach[pod] = (node, place)
        self._begin()
        attached = await place
        return PodPlace(attached.addresses, attached.namespace, _hosts(self._node(node).addresses))

    async def detach(self, pod: str) -> None:
        """Release the place of a pod."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._to_detach[pod] = done
        self._begin()
        await done

    async def host(self, node: str) -> PodPlace:
        """Return the place of the node itself."""
        place = self._node(node)
        addresses = _hosts(place.addresses)
        return PodPlace(addresses, place.namespace, addresses)

    def _node(self, name: str) -> NodePlace:
        if name not in self._underlay.nodes:
            raise NetworkError(f"there is no node {name}")
        return self._underlay.nodes[name]

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        # Requests of the same turn of the event loop are handled with the first.
        await asyncio.sleep(0)
        while self._to_attach or self._to_detach:
            detaching, self._to_detach = self._to_detach, {}
            attaching, self._to_attach = self._to_attach, {}
            if detaching:
                await self._remove(detaching)
            if attaching:
                await self._add([(node, pod) for pod, (node, _) in attaching.items()], attaching)

    async def _remove(self, detaching: dict[str, asyncio.Future[None]]) -> None:
        try:
            await finish_in_thread(lambda: self._underlay.remove_pods(list(detaching)))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            for future in detaching.values():
                _fail(future, error)
        else:
            for future in detaching.values():
                _settle(future, None)

    async def _add(
        self,
        pods: Sequence[tuple[str, str]],
        attaching: dict[str, tuple[str, asyncio.Future[NetworkPlace]]],
    ) -> None:
        """Add the pods; if that fails, try smaller groups, so that only faulty pods fail."""
        try:
            places = await finish_in_thread(lambda: self._underlay.add_pods(pods))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            if len(pods) == 1:
                _fail(attaching[pods[0][1]][1], error)
                return
            for part in _parts(pods):
                await self._add(part, attaching)
        else:
            for (_, pod), place in zip(pods, places, strict=True):
                _settle(attaching[pod][1], place)


class AddressesOnly:
    """Addresses without a network; nodes are numbered in the order of their names.

    An unknown node gets the next number.
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
        """Release the addresses of a pod."""
        node, number = self._pods.pop(pod, ("", 0))
        if node:
            self._nodes[node][1].release(number)

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
    """Return the pods by node, or, if all are on one node, in two halves."""
    by_node: dict[str, list[tuple[str, str]]] = {}
    for pod in pods:
        by_node.setdefault(pod[0], []).append(pod)
    if len(by_node) > 1:
        return list(by_node.values())
    middle = len(pods) // 2
    return [pods[:middle], pods[middle:]]


def _settle(future: asyncio.Future[_T], result: _T) -> None:
    # The caller may have been cancelled.
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[_T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
