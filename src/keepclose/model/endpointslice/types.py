"""EndpointSlice (discovery.k8s.io/v1) and the older Endpoints (v1), as the API defines them."""

from __future__ import annotations

from keepclose.model.meta import ApiStruct, NamespacedName, ObjectMeta, ObjectReference
from keepclose.model.well_known import SERVICE_NAME_LABEL


class EndpointConditions(ApiStruct, frozen=True):
    """Conditions of an endpoint; absent means ready, serving as ready, and not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ForZone(ApiStruct, frozen=True):
    """A zone whose clients should use the endpoint."""

    name: str = ""


class ForNode(ApiStruct, frozen=True):
    """A node whose clients should use the endpoint."""

    name: str = ""


class EndpointHints(ApiStruct, frozen=True):
    """The zones and nodes whose clients should use an endpoint."""

    for_zones: tuple[ForZone, ...] = ()
    for_nodes: tuple[ForNode, ...] = ()


class Endpoint(ApiStruct, frozen=True):
    """One backend of a Service."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    target_ref: ObjectReference | None = None
    deprecated_topology: dict[str, str] | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None

    @property
    def is_ready(self) -> bool:
        """Whether ready is explicitly true, as writers of hints require."""
        return self.conditions.ready is True


class EndpointPort(ApiStruct, frozen=True):
    """One port of all endpoints in a slice."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    app_protocol: str | None = None


class EndpointSlice(ApiStruct, frozen=True, omit_defaults=False):
    """A subset of the endpoints of a Service, with common ports."""

    api_version: str = "discovery.k8s.io/v1"
    kind: str = "EndpointSlice"
    metadata: ObjectMeta = ObjectMeta()
    address_type: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[EndpointPort, ...] = ()

    @property
    def service_key(self) -> NamespacedName:
        """The Service of the slice; its name is "" without the label."""
        labels = self.metadata.labels
        return NamespacedName(self.metadata.namespace, labels.get(SERVICE_NAME_LABEL, ""))


class EndpointAddress(ApiStruct, frozen=True):
    """One address of a legacy Endpoints object."""

    ip: str = ""
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointsPort(ApiStruct, frozen=True):
    """One port of a legacy Endpoints subset."""

    name: str = ""
    port: int = 0
    protocol: str = ""
    app_protocol: str | None = None


class EndpointSubset(ApiStruct, frozen=True):
    """Addresses that share a set of ports."""

    addresses: tuple[EndpointAddress, ...] = ()
    not_ready_addresses: tuple[EndpointAddress, ...] = ()
    ports: tuple[EndpointsPort, ...] = ()


class Endpoints(ApiStruct, frozen=True, omit_defaults=False):
    """The legacy object that is mirrored to slices for Services without a selector."""

    api_version: str = "v1"
    kind: str = "Endpoints"
    metadata: ObjectMeta = ObjectMeta()
    subsets: tuple[EndpointSubset, ...] = ()
