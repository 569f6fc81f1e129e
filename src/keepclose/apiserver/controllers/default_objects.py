"""Keeps the objects that every cluster has: default/kubernetes and the defaults of namespaces.

Programs inside a cluster find their API server by the Service default/kubernetes. The server
creates it at the first address of the service range, with the Endpoints and the EndpointSlice of
its own port, and repairs all three after a change or a delete. The Service has no selector and the
Endpoints have the label against mirroring, so no EndpointSlice controller touches them. An address
that nodes cannot reach, such as loopback, is no endpoint; then the Service has none.

Every namespace has the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`. In a cluster
kube-controller-manager creates both. The server only creates what is absent, so it never
contradicts a kube-controller-manager beside it; the one exception is a start with another CA than
the one in the ConfigMap.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final

import msgspec
import structlog

from keepclose.apiserver.controllers.garbage_collector import NAMESPACE_STORE
from keepclose.apiserver.controllers.store_follower import follow_stores
from keepclose.apiserver.registry.deletion import Propagation
from keepclose.apiserver.resources import BY_KIND, Resource
from keepclose.apiserver.serving.deleting import Deleter
from keepclose.apiserver.serving.options import RequestTarget, WriteOptions
from keepclose.apiserver.serving.writing import ObjectWriter
from keepclose.apiserver.status_errors import StatusError
from keepclose.apiserver.storage.entries import DELETED, StoredChange
from keepclose.apiserver.storage.store import Store
from keepclose.model.addresses import (
    IPV4,
    IPV6,
    canonical,
    endpoint_ip_errors,
    family_of,
    parse_lenient,
)
from keepclose.model.json_values import JsonObject
from keepclose.model.well_known import KUBERNETES_SERVICE, SERVICE_NAME_LABEL, SKIP_MIRROR_LABEL

NAMESPACE, NAME = KUBERNETES_SERVICE
MANAGER: Final = "keepclose-apiserver"
SERVICE_PORT: Final = 443
ROOT_CA: Final = "kube-root-ca.crt"
CA_KEY: Final = "ca.crt"
_PORT_NAME: Final = "https"
_SERVICES: Final = BY_KIND["v1", "Service"]
_ENDPOINTS: Final = BY_KIND["v1", "Endpoints"]
_SLICES: Final = BY_KIND["discovery.k8s.io/v1", "EndpointSlice"]
# NB: no packet is sent to these documentation addresses; the kernel only chooses the route.
_ROUTE_PROBES: Final = {
    IPV4: (socket.AF_INET, "192.0.2.1"),
    IPV6: (socket.AF_INET6, "2001:db8::1"),
}

_SERVICE_ACCOUNT: Final = "default"
_SERVICE_ACCOUNTS: Final = BY_KIND["v1", "ServiceAccount"]
_CONFIG_MAPS: Final = BY_KIND["v1", "ConfigMap"]
_NAMESPACE_DEFAULTS: Final = frozenset(
    {(_SERVICE_ACCOUNTS.store, _SERVICE_ACCOUNT), (_CONFIG_MAPS.store, ROOT_CA)}
)
# NB: kube-controller-manager rewrites a ConfigMap without this annotation.
_DESCRIPTION: Final = {
    "kubernetes.io/description": "The certificate authority of this cluster's API server, for "
    "clients inside the cluster, such as those that call kubernetes.default.svc."
}

_log = structlog.get_logger(__name__)


class AdvertiseError(ValueError):
    """An advertise address that cannot be an endpoint of the Service."""


def choose_advertised(advertise: str, *, host: str, family: str) -> str:
    """Return the address at which nodes reach the server, or "" when they cannot.

    Without an advertise address it is the one on which the server listens; for a server that
    listens on all addresses, the default source address of this machine. Raises AdvertiseError for
    an unusable advertise address.
    """
    if advertise:
        if causes := endpoint_ip_errors("--advertise-address", advertise):
            raise AdvertiseError(f"--advertise-address: {advertise!r} {causes[0].detail}")
        if family_of(advertise) != family:
            raise AdvertiseError(
                f"--advertise-address: {advertise!r} must be of the family of "
                f"--service-cluster-ip-range, which is {family}"
            )
        return canonical(advertise) or advertise
    parsed = parse_lenient(host)
    if parsed is None:
        return ""
    address = _default_source(family) if parsed.address.is_unspecified else host
    is_reachable = family_of(address) == family and not endpoint_ip_errors("host", address)
    return address if is_reachable else ""


class KubernetesService:
    """Keeps the Service default/kubernetes, its Endpoints and its EndpointSlice."""

    def __init__(
        self,
        writer: ObjectWriter,
        deleter: Deleter,
        *,
        cluster_ip: str,
        family: str,
        advertised: str,
    ) -> None:
        """Hold the desired state; `advertised` is "" when nodes cannot reach the server."""
        self._writer = writer
        self._deleter = deleter
        self._cluster_ip = cluster_ip
        self._family = family
        self._advertised = advertised
        self._last_error = ""
        self.port = 0
        """The port on which the server listens; set it before the first `reconcile`."""

    async def run(self, store: Store) -> None:
        """Repair the objects after every change of them, until the store is closed."""
        await follow_stores(
            store,
            [resource.store for resource in (_SERVICES, _ENDPOINTS, _SLICES)],
            resume=self._resume,
            handle=self._handle,
        )

    def reconcile(self) -> None:
        """Create missing objects and repair changed ones; a rejected write is logged."""
        try:
            self._reconcile_service()
            self._reconcile_endpoints()
            self._reconcile_slice()
        except StatusError as error:
            # NB: another Service may hold the address for long; logging it once is enough.
            if str(error) != self._last_error:
                _log.warning("repair of default/kubernetes failed", why=str(error))
            self._last_error = str(error)
        else:
            self._last_error = ""

    def _resume(self) -> Iterator[None]:
        self.reconcile()
        yield

    def _handle(self, change: StoredChange) -> Iterator[None]:
        is_own = (change.entry.namespace, change.entry.name) == KUBERNETES_SERVICE
        # A rejected write may succeed now: another Service may have released the address.
        if is_own or (self._last_error and change.store == _SERVICES.store):
            self.reconcile()
        yield

    def _reconcile_service(self) -> None:
        ports = [
            {
                "name": _PORT_NAME,
                "port": SERVICE_PORT,
                "protocol": "TCP",
                "targetPort": self.port,
            }
        ]
        stored = self._stored(_SERVICES)
        if stored is not None and family_of(stored["spec"].get("clusterIP", "")) not in (
            self._family,
            None,
        ):
            stored = self._delete(_SERVICES, stored)
        if stored is None:
            labels = {"component": "apiserver", "provider": "kubernetes"}
            spec = {
                "clusterIP": self._cluster_ip,
                "ipFamilyPolicy": "SingleStack",
                "ports": ports,
                "sessionAffinity": "None",
                "type": "ClusterIP",
            }
            self._create(_SERVICES, {"metadata": {"labels": labels}, "spec": spec})
            return
        spec = stored["spec"]
        if spec.get("ports") == ports and spec["type"] == "ClusterIP" and not spec.get("selector"):
            return
        if spec["type"] == "ExternalName":
            # The Service released its address when its type became ExternalName.
            spec |= {"clusterIP": self._cluster_ip, "clusterIPs": [self._cluster_ip]}
            spec.pop("externalName", None)
        spec |= {"ports": ports, "type": "ClusterIP"}
        spec.pop("selector", None)
        self._update(_SERVICES, stored)

    def _reconcile_endpoints(self) -> None:
        subsets = [
            {
                "addresses": [{"ip": self._advertised}],
                "ports": [{"name": _PORT_NAME, "port": self.port, "protocol": "TCP"}],
            }
        ]
        desired: JsonObject = {"subsets": subsets} if self._advertised else {}
        stored = self._stored(_ENDPOINTS)
        if stored is None:
            labels = {SKIP_MIRROR_LABEL: "true"}
            self._create(_ENDPOINTS, {"metadata": {"labels": labels}, **desired})
            return
        labels = stored["metadata"].get("labels") or {}
        subsets = stored.pop("subsets", None) or []
        if subsets == desired.get("subsets", []) and labels.get(SKIP_MIRROR_LABEL) == "true":
            return
        stored["metadata"]["labels"] = {**labels, SKIP_MIRROR_LABEL: "true"}
        self._update(_ENDPOINTS, {**stored, **desired})

    def _reconcile_slice(self) -> None:
        desired: JsonObject = {"addressType": self._family, "endpoints": [], "ports": []}
        if self._advertised:
            desired["endpoints"] = [
                {"addresses": [self._advertised], "conditions": {"ready": True}}
            ]
            desired["ports"] = [{"name": _PORT_NAME, "port": self.port, "protocol": "TCP"}]
        labels = {SERVICE_NAME_LABEL: NAME}
        stored = self._stored(_SLICES)
        if stored is not None and stored.get("addressType") != self._family:
            stored = self._delete(_SLICES, stored)
        if stored is None:
            self._create(_SLICES, {"metadata": {"labels": labels}, **desired})
            return
        actual = {key: stored.get(key) or [] for key in desired}
        if actual == desired and stored["metadata"].get("labels") == labels:
            return
        stored["metadata"]["labels"] = labels
        self._update(_SLICES, {**stored, **desired})

    def _stored(self, resource: Resource) -> JsonObject | None:
        entry = self._writer.store.get(resource.store, NAMESPACE, NAME)
        return None if entry is None else msgspec.json.decode(entry.data)

    def _delete(self, resource: Resource, stored: JsonObject) -> JsonObject | None:
        """Delete an object of another IP family than the range, which no update can change.

        Return the object that is left, None unless finalizers hold it.
        """
        self._deleter.delete_dependent(
            resource.store,
            NAMESPACE,
            NAME,
            uid=stored["metadata"]["uid"],
            propagation=Propagation.BACKGROUND,
        )
        return self._stored(resource)

    def _create(self, resource: Resource, new: JsonObject) -> None:
        new = {"apiVersion": resource.api_version, "kind": resource.kind, **new}
        new["metadata"] |= {"name": NAME, "namespace": NAMESPACE}
        target = RequestTarget(resource, namespace=NAMESPACE)
        self._writer.create(target, new, WriteOptions(), manager=MANAGER)

    def _update(self, resource: Resource, new: JsonObject) -> None:
        _log.info("default/kubernetes is repaired", kind=resource.kind)
        target = RequestTarget(resource, namespace=NAMESPACE, name=NAME)
        self._writer.update(target, new, WriteOptions(), manager=MANAGER)


def _default_source(family: str) -> str:
    """Return the default source address of this machine, or ""."""
    kind, probe = _ROUTE_PROBES[family]
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as route:
            route.connect((probe, 9))
            return str(route.getsockname()[0])
    except OSError:
        return ""


class NamespaceObjects:
    """Keeps the default objects of namespaces."""

    def __init__(self, writer: ObjectWriter, *, ca: bytes, manager: str) -> None:
        """Hold the CA of the server as PEM, and the field manager."""
        self._writer = writer
        self._ca = ca.decode()
        self._manager = manager

    async def run(self, store: Store) -> None:
        """Follow namespaces and their default objects until the store is closed."""
        await follow_stores(
            store,
            (NAMESPACE_STORE, _SERVICE_ACCOUNTS.store, _CONFIG_MAPS.store),
            resume=self._resume,
            handle=self._handle,
        )

    def resume(self) -> None:
        """Create the missing objects of all namespaces."""
        for _ in self._resume():
            pass

    def _resume(self) -> Iterator[None]:
        for entry in self._writer.store.entries(NAMESPACE_STORE):
            self._create_defaults(entry.name)
            yield

    def renew_ca(self) -> None:
        """Replace another CA in the ConfigMaps by that of the server."""
        for entry in self._writer.store.entries(_CONFIG_MAPS.store):
            if entry.name != ROOT_CA:
                continue
            config_map = msgspec.json.decode(entry.data)
            data = config_map.get("data") or {}
            if data.get(CA_KEY) != self._ca and not config_map.get("immutable"):
                config_map["data"] = {**data, CA_KEY: self._ca}
                target = RequestTarget(_CONFIG_MAPS, namespace=entry.namespace, name=ROOT_CA)
                self._writer.update(target, config_map, WriteOptions(), manager=self._manager)

    def _handle(self, change: StoredChange) -> Iterator[None]:
        entry = change.entry
        if change.store == NAMESPACE_STORE:
            self._create_defaults(entry.name)
        elif change.type == DELETED and (change.store, entry.name) in _NAMESPACE_DEFAULTS:
            self._create_defaults(entry.namespace)
        yield

    def _create_defaults(self, name: str) -> None:
        # NB: the current state, since nothing can be created in a deleted namespace.
        namespace = self._writer.store.get(NAMESPACE_STORE, "", name)
        if namespace is None:
            return
        if msgspec.json.decode(namespace.data)["metadata"].get("deletionTimestamp"):
            return
        self._create(_SERVICE_ACCOUNTS, name, {"metadata": {"name": _SERVICE_ACCOUNT}})
        metadata = {"name": ROOT_CA, "annotations": dict(_DESCRIPTION)}
        self._create(_CONFIG_MAPS, name, {"metadata": metadata, "data": {CA_KEY: self._ca}})

    def _create(self, resource: Resource, namespace: str, new: JsonObject) -> None:
        if self._writer.store.get(resource.store, namespace, new["metadata"]["name"]) is not None:
            return
        new = {"apiVersion": resource.api_version, "kind": resource.kind, **new}
        target = RequestTarget(resource, namespace=namespace)
        self._writer.create(target, new, WriteOptions(), manager=self._manager)
