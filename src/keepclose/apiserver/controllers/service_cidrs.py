"""The readiness of ServiceCIDRs, as kube-controller-manager's service-cidr-controller reports it.

A ServiceCIDR gets a finalizer and is Ready. One that is deleted stays, not Ready, for as long as
it is the only one that holds the cluster IP of some Service. In a cluster the controller waits ten
seconds more, until all allocators know of the deletion; here the only allocator is this server.
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
    """Return whether the range can hand the address out: not its first one, nor its broadcast."""
    if address not in network or address == network.network_address:
        return False
    return network.version == 6 or address != network.broadcast_address


class SoleHolder:
    """Which cluster IPs a ServiceCIDR holds that no other one does."""

    def __init__(self, name: str, ranges: Mapping[str, Sequence[_Network]]) -> None:
        """Compare the named one with the others; `ranges` are those of all by their names."""
        self._others = [
            network for other, held in ranges.items() if other != name for network in held
        ]
        self._own = [
            network
            for network in ranges[name]
            if not any(_is_within(network, other) for other in self._others)
        ]

    def holds(self, address: _Address) -> bool:
        """Return whether the address is left without a ServiceCIDR when the named one goes."""
        return any(contains_address(network, address) for network in self._own) and not any(
            contains_address(other, address) for other in self._others
        )


class ServiceCIDRConditions:
    """Keeps finalizers and conditions of ServiceCIDRs."""

    def __init__(self, writer: ObjectWriter, *, manager: str) -> None:
        """Hold what writes, and under which name it owns the fields."""
        self._writer = writer
        self._manager = manager
        # Those that are deleted and wait for Services.
        self._leaving: set[str] = set()

    async def run(self, store: Store) -> None:
        """Follow ServiceCIDRs and Services until the store is closed."""
        await follow_stores(
            store,
            (_SERVICE_CIDRS.store, _SERVICES.store),
            resume=self._resume,
            handle=self._handle,
        )

    def resume(self) -> None:
        """Look at every ServiceCIDR."""
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
        elif self._leaving and _lets_go(change):
            yield from self._release()

    def _sync(self, name: str) -> None:
        """Make a ServiceCIDR ready, or take note that it is deleted."""
        service_cidr = self._read(name)
        if service_cidr is None:
            self._leaving.discard(name)
            return
        finalizers = finalizers_of(service_cidr)
        if service_cidr["metadata"].get("deletionTimestamp"):
            self._leaving.add(name)
            return
        # NB: one that was deleted may have been created again.
        self._leaving.discard(name)
        if _FINALIZER not in finalizers:
            self._set_finalizers(service_cidr, [*finalizers, _FINALIZER])
        self._set_condition(name, _READY)

    def _release(self) -> Iterator[None]:
        """Let those deleted ones go that no Service needs any more, and say why others stay."""
        for name in sorted(self._leaving):
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
        """Return whether a Service has a cluster IP that no other ServiceCIDR holds."""
        while True:
            ranges = self._ranges()
            if name not in ranges:
                return False
            holder = SoleHolder(name, ranges)
            for entry in self._writer.store.entries(_SERVICES.store):
                service = read_as(Service, msgspec.json.decode(entry.data))
                if any(holder.holds(ip_address(one)) for one in held_addresses(service)):
                    return True
                yield
            # NB: one that holds the same addresses may have gone meanwhile.
            if self._ranges() == ranges:
                return False

    def _set_finalizers(self, service_cidr: JsonObject, finalizers: list[str]) -> None:
        service_cidr["metadata"]["finalizers"] = finalizers
        target = RequestTarget(_SERVICE_CIDRS, name=service_cidr["metadata"]["name"])
        self._writer.update(target, service_cidr, WriteOptions(), manager=self._manager)

    def _set_condition(self, name: str, wanted: dict[str, str]) -> None:
        service_cidr = self._read(name)
        if service_cidr is None:
            return
        conditions: list[JsonObject] = (service_cidr.get("status") or {}).get("conditions") or []
        held: JsonObject = {}
        for condition in conditions:
            if condition["type"] == wanted["type"]:
                held = condition
        # NB: the default one is ready in words of its own.
        if (held.get("status"), held.get("reason")) == (wanted["status"], wanted["reason"]):
            return
        others = [condition for condition in conditions if condition["type"] != wanted["type"]]
        changed = {**wanted, "lastTransitionTime": timestamp()}
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


def _lets_go(change: StoredChange) -> bool:
    """Return whether a Service that changed gave up a cluster IP."""
    if change.previous is None:
        return False
    before, after = (
        set(held_addresses(read_as(Service, msgspec.json.decode(entry.data))))
        for entry in (change.previous, change.entry)
    )
    return change.type == DELETED or not before <= after


def _is_within(network: _Network, other: _Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)
