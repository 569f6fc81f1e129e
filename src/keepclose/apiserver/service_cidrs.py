"""The readiness of ServiceCIDRs, as kube-controller-manager's service-cidr-controller reports it.

A ServiceCIDR gets a finalizer and is Ready. One that is deleted stays, not Ready, for as long as
it is the only one that holds the cluster IP of some Service. In a cluster the controller waits ten
seconds more, until all allocators know of the deletion; here the only allocator is this server.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import msgspec

from keepclose.apiserver.following import follow_stores
from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.serving.options import WriteOptions
from keepclose.apiserver.serving.targets import Target
from keepclose.apiserver.serving.writing import Writer, timestamp
from keepclose.apiserver.storage.entries import Change
from keepclose.apiserver.storage.store import Store
from keepclose.apiserver.strategies.metadata import finalizers_of
from keepclose.apiserver.strategies.service_allocation import held_addresses
from keepclose.apiserver.strategies.typed import read_as
from keepclose.model.service import Service

JsonObject = dict[str, Any]
_Network = IPv4Network | IPv6Network
_Address = IPv4Address | IPv6Address

FINALIZER: Final = "networking.k8s.io/service-cidr-finalizer"
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


def is_deletable(name: str, ranges: dict[str, list[_Network]], addresses: list[_Address]) -> bool:
    """Return whether no cluster IP is left without a ServiceCIDR when the named one goes.

    `ranges` are those of all ServiceCIDRs by their names, `addresses` all cluster IPs.
    """
    others = [network for other, held in ranges.items() if other != name for network in held]
    return all(
        any(contains_address(other, address) for other in others)
        for network in ranges[name]
        if not any(_is_within(network, other) for other in others)
        for address in addresses
        if contains_address(network, address)
    )


class ServiceCIDRConditions:
    """Keeps finalizers and conditions of ServiceCIDRs."""

    def __init__(self, writer: Writer, *, manager: str) -> None:
        """Hold what writes, and under which name it owns the fields."""
        self._writer = writer
        self._manager = manager

    async def run(self, store: Store) -> None:
        """Follow ServiceCIDRs and Services until the store is closed."""
        await follow_stores(
            store,
            (_SERVICE_CIDRS.store, _SERVICES.store),
            resume=self.resume,
            handle=self._handle,
        )

    def resume(self) -> None:
        """Look at every ServiceCIDR; there are few."""
        for entry in self._writer.store.entries(_SERVICE_CIDRS.store):
            self._sync(entry.name)

    def _handle(self, change: Change) -> None:
        # A Service matters only to a ServiceCIDR that waits for it.
        if change.store == _SERVICE_CIDRS.store or self._has_leaving():
            self.resume()

    def _has_leaving(self) -> bool:
        entries = self._writer.store.entries(_SERVICE_CIDRS.store)
        return any(b'"deletionTimestamp"' in entry.data for entry in entries)

    def _sync(self, name: str) -> None:
        service_cidr = self._read(name)
        if service_cidr is None:
            return
        finalizers = finalizers_of(service_cidr)
        if not service_cidr["metadata"].get("deletionTimestamp"):
            if FINALIZER not in finalizers:
                self._set_finalizers(service_cidr, [*finalizers, FINALIZER])
            self._set_condition(name, _READY)
        elif not is_deletable(name, self._ranges(), self._addresses()):
            self._set_condition(name, _TERMINATING)
        elif FINALIZER in finalizers:
            rest = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
            self._set_finalizers(service_cidr, rest)

    def _set_finalizers(self, service_cidr: JsonObject, finalizers: list[str]) -> None:
        service_cidr["metadata"]["finalizers"] = finalizers
        target = Target(_SERVICE_CIDRS, name=service_cidr["metadata"]["name"])
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
        target = Target(_SERVICE_CIDRS, name=name, subresource="status")
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

    def _addresses(self) -> list[_Address]:
        services = (
            read_as(Service, msgspec.json.decode(entry.data))
            for entry in self._writer.store.entries(_SERVICES.store)
        )
        return [ip_address(held) for service in services for held in held_addresses(service)]


def _is_within(network: _Network, other: _Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)
