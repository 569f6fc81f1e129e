"""The readiness of ServiceCIDRs, as kube-controller-manager's service-cidr-controller reports it.

A ServiceCIDR gets a finalizer and is Ready. A deleted one stays, not Ready, as long as it is the
only one that contains the cluster IP of a Service. In a cluster the controller waits ten seconds
more, until all allocators have seen the deletion; here the only allocator is this server.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

from keepclose.apiserver.controllers.store_follower import follow_stores
from keepclose.apiserver.registry.metadata import finalizers_of
from keepclose.apiserver.registry.service_allocation import held_addresses
from keepclose.apiserver.registry.strategy import read_as
from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.serving.options import RequestTarget, WriteOptions
from keepclose.apiserver.serving.writing import ObjectWriter, timestamp
from keepclose.apiserver.storage.entries import DELETED, StoredChange
from keepclose.apiserver.storage.store import Store
from keepclose.model.json_values import JsonObject
from keepclose.model.service.types import Service

_Network = IPv4Network | IPv6Network
_Address = IPv4Address | IPv6Address

_FINALIZER: Final = "networking.k8s.io/service-cidr-finalizer"
_READY: Final = {
    "type": "Ready",
    "status": "True",
    "reason": "",
    "message": "Kubernetes Service CIDR is ready",
}
_TERMINATING: Final = {
    "type": "Ready",
    "status": "False",
    "reason": "Terminating",
    "message": "There are still IPAddresses referencing the ServiceCIDR, please remove them or "
    "create a new ServiceCIDR",
}
_SERVICE_CIDRS: Final = BY_KIND["networking.k8s.io/v1", "ServiceCIDR"]
_SERVICES: Final = BY_KIND["v1", "Service"]


def contains_address(network: _Network, address: _Address) -> bool:
    """Return whether the range can allocate the address: not its first one, nor its broadcast."""
    if address not in network or address == network.network_address:
        return False
    return network.version == 6 or address != network.broadcast_address


class SoleHolder:
    """Tells which cluster IPs only one ServiceCIDR contains."""

    def __init__(self, name: str, ranges: Mapping[str, Sequence[_Network]]) -> None:
        """Compare the named ServiceCIDR with the others; `ranges` are those of all by name."""
        self._others = [
            network
            for other_name, networks in ranges.items()
            if other_name != name
            for network in networks
        ]
        self._own = [
            network
            for network in ranges[name]
            if not any(_is_within(network, parent) for parent in self._others)
        ]

    def holds(self, address: _Address) -> bool:
        """Return whether no other ServiceCIDR than the named one contains the address."""
        return any(contains_address(network, address) for network in self._own) and not any(
            contains_address(network, address) for network in self._others
        )


class ServiceCIDRConditions:
    """Keeps the finalizers and conditions of ServiceCIDRs."""

    def __init__(self, writer: ObjectWriter, *, manager: str) -> None:
        """Hold the writer and the field manager."""
        self._writer = writer
        self._manager = manager
        # The deleted ServiceCIDRs that wait for Services, by name.
        self._terminating: set[str] = set()

    async def run(self, store: Store) -> None:
        """Follow ServiceCIDRs and Services until the store is closed."""
        await follow_stores(
            store,
            (_SERVICE_CIDRS.store, _SERVICES.store),
            resume=self._resume,
            handle=self._handle,
        )

    def resume(self) -> None:
        """Sync all ServiceCIDRs."""
        for _ in self._resume():
            pass

    def _resume(self) -> Iterator[None]:
        for entry in self._writer.store.entries(_SERVICE_CIDRS.store):
            self._sync(entry.name)
            yield
        yield from self._release()

    def _handle(self, change: StoredChange) -> Iterator[None]:
        if change.store == _SERVICE_CIDRS.store:
            self._sync(change.entry.name)
            yield from self._release()
        elif self._terminating and _releases_address(change):
            yield from self._release()

    def _sync(self, name: str) -> None:
        """Set a ServiceCIDR Ready, or record that it is terminating."""
        service_cidr = self._read(name)
        if service_cidr is None:
            self._terminating.discard(name)
            return
        finalizers = finalizers_of(service_cidr)
        if service_cidr["metadata"].get("deletionTimestamp"):
            self._terminating.add(name)
            return
        # NB: a deleted ServiceCIDR may be created again.
        self._terminating.discard(name)
        if _FINALIZER not in finalizers:
            self._set_finalizers(service_cidr, [*finalizers, _FINALIZER])
        self._set_condition(name, _READY)

    def _release(self) -> Iterator[None]:
        """Release the terminating ServiceCIDRs that no Service needs; report why others stay."""
        for name in sorted(self._terminating):
            is_needed = yield from self._is_needed(name)
            service_cidr = self._read(name)
            if service_cidr is None or not service_cidr["metadata"].get("deletionTimestamp"):
                continue
            finalizers = finalizers_of(service_cidr)
            if is_needed:
                self._set_condition(name, _TERMINATING)
            elif _FINALIZER in finalizers:
                rest = [finalizer for finalizer in finalizers if finalizer != _FINALIZER]
                self._set_finalizers(service_cidr, rest)

    def _is_needed(self, name: str) -> Generator[None, None, bool]:
        """Return whether a Service has a cluster IP that no other ServiceCIDR contains."""
        while True:
            ranges = self._ranges()
            if name not in ranges:
                return False
            holder = SoleHolder(name, ranges)
            for entry in self._writer.store.entries(_SERVICES.store):
                service = read_as(Service, msgspec.json.decode(entry.data))
                if any(holder.holds(ip_address(address)) for address in held_addresses(service)):
                    return True
                yield
            # NB: another ServiceCIDR with the same addresses may be deleted meanwhile.
            if self._ranges() == ranges:
                return False

    def _set_finalizers(self, service_cidr: JsonObject, finalizers: list[str]) -> None:
        service_cidr["metadata"]["finalizers"] = finalizers
        target = RequestTarget(_SERVICE_CIDRS, name=service_cidr["metadata"]["name"])
        self._writer.update(target, service_cidr, WriteOptions(), manager=self._manager)

    def _set_condition(self, name: str, desired: dict[str, str]) -> None:
        service_cidr = self._read(name)
        if service_cidr is None:
            return
        conditions: list[JsonObject] = (service_cidr.get("status") or {}).get("conditions") or []
        current: JsonObject = {}
        for condition in conditions:
            if condition["type"] == desired["type"]:
                current = condition
        # NB: the message is not compared; the default ServiceCIDR has one of its own.
        if (current.get("status"), current.get("reason")) == (desired["status"], desired["reason"]):
            return
        others = [condition for condition in conditions if condition["type"] != desired["type"]]
        changed = {**desired, "lastTransitionTime": timestamp()}
        service_cidr["status"] = {"conditions": [*others, changed]}
        target = RequestTarget(_SERVICE_CIDRS, name=name, subresource="status")
        self._writer.update(target, service_cidr, WriteOptions(), manager=self._manager)

    def _read(self, name: str) -> JsonObject | None:
        entry = self._writer.store.get(_SERVICE_CIDRS.store, "", name)
        return None if entry is None else msgspec.json.decode(entry.data)

    def _ranges(self) -> dict[str, list[_Network]]:
        ranges: dict[str, list[_Network]] = {}
        for entry in self._writer.store.entries(_SERVICE_CIDRS.store):
            cidrs = (msgspec.json.decode(entry.data).get("spec") or {}).get("cidrs") or []
            ranges[entry.name] = [ip_network(cidr) for cidr in cidrs]
        return ranges


def _releases_address(change: StoredChange) -> bool:
    """Return whether the change of a Service releases a cluster IP."""
    if change.previous is None:
        return False
    before, after = (
        set(held_addresses(read_as(Service, msgspec.json.decode(entry.data))))
        for entry in (change.previous, change.entry)
    )
    return change.type == DELETED or not before <= after


def _is_within(network: _Network, parent: _Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(parent, IPv4Network) and network.subnet_of(parent)
    return isinstance(parent, IPv6Network) and network.subnet_of(parent)
