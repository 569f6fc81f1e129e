"""What every namespace has: the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`.

In a cluster kube-controller-manager makes both. Here the server does, because it may be alone. It
only creates what is absent, so a real kube-controller-manager beside it is never contradicted; the
one exception is a start with another certificate authority than the ConfigMap holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from keepclose.apiserver.controllers.garbage_collector import NAMESPACES
from keepclose.apiserver.controllers.store_follower import follow_stores
from keepclose.apiserver.registry.resources import BY_KIND, Resource
from keepclose.apiserver.serving.options import WriteOptions
from keepclose.apiserver.serving.targets import Target
from keepclose.apiserver.serving.writing import Writer
from keepclose.apiserver.storage.entries import DELETED, Change
from keepclose.apiserver.storage.store import Store
from keepclose.model.json_values import JsonObject

SERVICE_ACCOUNT: Final = "default"
ROOT_CA: Final = "kube-root-ca.crt"
CA_KEY: Final = "ca.crt"
_SERVICE_ACCOUNTS: Final = BY_KIND["v1", "ServiceAccount"]
_CONFIG_MAPS: Final = BY_KIND["v1", "ConfigMap"]
_OURS: Final = frozenset(
    {(_SERVICE_ACCOUNTS.store, SERVICE_ACCOUNT), (_CONFIG_MAPS.store, ROOT_CA)}
)
# NB: kube-controller-manager leaves a ConfigMap alone only if it is described.
_DESCRIPTION: Final = {
    "kubernetes.io/description": "The certificate authority of this cluster's API server, for "
    "clients inside the cluster, such as those that call kubernetes.default.svc."
}


class NamespaceObjects:
    """Keeps the objects that every namespace has."""

    def __init__(self, writer: Writer, *, ca: bytes, manager: str) -> None:
        """Hold the certificate authority of the server, in PEM, and whose the fields are."""
        self._writer = writer
        self._ca = ca.decode()
        self._manager = manager

    async def run(self, store: Store) -> None:
        """Follow namespaces and what is deleted in them, until the store is closed."""
        await follow_stores(
            store,
            (NAMESPACES, _SERVICE_ACCOUNTS.store, _CONFIG_MAPS.store),
            resume=self._resume,
            handle=self._handle,
        )

    def resume(self) -> None:
        """Create what is absent in any namespace."""
        for _ in self._resume():
            pass

    def _resume(self) -> Iterator[None]:
        for entry in self._writer.store.entries(NAMESPACES):
            self._fill(entry.name)
            yield

    def renew_ca(self) -> None:
        """Write the certificate authority of the server where the ConfigMap has another one."""
        for entry in self._writer.store.entries(_CONFIG_MAPS.store):
            if entry.name != ROOT_CA:
                continue
            config_map = msgspec.json.decode(entry.data)
            data = config_map.get("data") or {}
            if data.get(CA_KEY) != self._ca and not config_map.get("immutable"):
                config_map["data"] = {**data, CA_KEY: self._ca}
                target = Target(_CONFIG_MAPS, namespace=entry.namespace, name=ROOT_CA)
                self._writer.update(target, config_map, WriteOptions(), manager=self._manager)

    def _handle(self, change: Change) -> Iterator[None]:
        entry = change.entry
        if change.store == NAMESPACES:
            self._fill(entry.name)
        elif change.type == DELETED and (change.store, entry.name) in _OURS:
            self._fill(entry.namespace)
        yield

    def _fill(self, name: str) -> None:
        # NB: as it is now, since nothing can be created in one that has gone meanwhile.
        namespace = self._writer.store.get(NAMESPACES, "", name)
        if namespace is None:
            return
        if msgspec.json.decode(namespace.data)["metadata"].get("deletionTimestamp"):
            return
        self._create(_SERVICE_ACCOUNTS, name, {"metadata": {"name": SERVICE_ACCOUNT}})
        metadata = {"name": ROOT_CA, "annotations": dict(_DESCRIPTION)}
        self._create(_CONFIG_MAPS, name, {"metadata": metadata, "data": {CA_KEY: self._ca}})

    def _create(self, resource: Resource, namespace: str, new: JsonObject) -> None:
        if self._writer.store.get(resource.store, namespace, new["metadata"]["name"]) is not None:
            return
        new = {"apiVersion": resource.api_version, "kind": resource.kind, **new}
        target = Target(resource, namespace=namespace)
        self._writer.create(target, new, WriteOptions(), manager=self._manager)
