"""The kinds that keepclose reads and writes: where each is served and which struct holds it.

A kind read untyped has `dict` or `msgspec.Raw` as its struct. Nothing here asks a server which
kinds it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from keepclose.model.core_kinds import ConfigMap, Event, Lease, Namespace
from keepclose.model.endpointslice.types import Endpoints, EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of one API version; the core group is ""."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    struct: type[T]

    @property
    def api_version(self) -> str:
        """The group and version as objects write them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, an object or a subresource.

        No namespace means all of them; for a kind outside namespaces it is left out.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACES: Final = Kind("", "v1", "namespaces", "Namespace", False, Namespace)
NODES: Final = Kind("", "v1", "nodes", "Node", False, Node)
PODS: Final = Kind("", "v1", "pods", "Pod", True, Pod)
SERVICES: Final = Kind("", "v1", "services", "Service", True, Service)
ENDPOINTS: Final = Kind("", "v1", "endpoints", "Endpoints", True, Endpoints)
EVENTS: Final = Kind("", "v1", "events", "Event", True, Event)
CONFIG_MAPS: Final = Kind("", "v1", "configmaps", "ConfigMap", True, ConfigMap)
ENDPOINT_SLICES: Final = Kind(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, EndpointSlice
)
LEASES: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
# Read untyped: what is written back must be whole.
SECRETS: Final[Kind[dict[str, Any]]] = Kind("", "v1", "secrets", "Secret", True, dict)
MUTATING_WEBHOOKS: Final[Kind[dict[str, Any]]] = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
    dict,
)
