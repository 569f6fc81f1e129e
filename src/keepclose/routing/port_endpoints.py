"""The endpoints of one Service as a node sees them: per port, over all its EndpointSlices.

Follows kube-proxy. A slice of another address family, without a Service, or of a headless Service
is ignored. Only the first address of an endpoint counts. Absent conditions mean ready, serving and
not terminating. An address in two slices (it moved, or a new pod got it) is one endpoint. Slices
are visited by name, so the result does not depend on their order of arrival.

This module never decides which node may use an endpoint, and never drops one for its state.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from keepclose.model.addresses import canonical
from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import (
    ENDPOINT_WEIGHTS_ANNOTATION,
    FOR_REGION_LABEL,
    FOR_ZONE_LABEL,
    HEADLESS_LABEL,
    REGION_LABEL,
    SERVICE_NAME_LABEL,
)
from keepclose.model.workload import Node
from keepclose.model.zone_weights import ZoneWeights, read_zone_weights
from keepclose.routing.service_ports import PortKey

_WEIGHTS: Final = msgspec.json.Decoder(tuple[int, ...])


class PortEndpoint(msgspec.Struct, frozen=True):
    """One address and port to which traffic of a service port may go.

    `topology` holds further topology labels of the endpoint; only slices written through the beta
    API have them.
    """

    address: str
    port: int
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node_name: str = ""
    zone: str = ""
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    weight: int = 1
    for_zone: str = ""
    for_region: str = ""
    topology: tuple[tuple[str, str], ...] = ()
    zone_weights: ZoneWeights | None = None
    """The written weights of the Service, the same for all its endpoints of a family."""

    @property
    def key(self) -> str:
        """The endpoint as "ip:port", which identifies it and is sorted as text."""
        return _endpoint_key(self.address, self.port)

    @property
    def shown(self) -> str:
        """The endpoint as tables show it, such as 10.0.0.3/8080."""
        return f"{self.address}/{self.port}"


class NodeView(msgspec.Struct, frozen=True):
    """The node that selects endpoints; "" stands for an unknown property."""

    name: str
    zone: str = ""
    region: str = ""
    labels: dict[str, str] = {}
    others: dict[str, dict[str, str]] = {}
    """Labels of all nodes by name, if topologyKeys need them: an endpoint has only the name and
    the zone of its node."""

    @classmethod
    def of(cls, node: Node, others: dict[str, dict[str, str]] | None = None) -> NodeView:
        """Return the view of a Node; `others` are the labels of all nodes by name."""
        labels = node.metadata.labels
        return cls(node.name, node.zone, labels.get(REGION_LABEL, ""), labels, others or {})


def labels_by_node(nodes: Iterable[Node]) -> dict[str, dict[str, str]]:
    """Return the labels of nodes by name; the views of all nodes share the result."""
    return {node.name: node.metadata.labels for node in nodes}


def collect_endpoints(
    slices: Iterable[EndpointSlice], family: str, *, gates: FeatureGates
) -> dict[PortKey, tuple[PortEndpoint, ...]]:
    """Return the endpoints of each port of the one Service that all the slices belong to.

    Sorted by key as text, so that .10 comes before .2. A port without endpoints is not in the
    result; no slices give an empty one.
    """
    keeps_node_hints = gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION) or gates.on(
        Gate.NODE_LEVEL_TOPOLOGY
    )
    by_port: dict[PortKey, dict[str, PortEndpoint]] = {}
    usable = [candidate for candidate in slices if _is_usable(candidate, family)]
    weights = read_zone_weights(usable)
    for endpoint_slice in sorted(usable, key=_slice_name):
        _add_slice(by_port, endpoint_slice, weights, keeps_node_hints=keeps_node_hints)
    return {
        port: tuple([endpoints[key] for key in sorted(endpoints)])
        for port, endpoints in by_port.items()
    }


def _slice_name(endpoint_slice: EndpointSlice) -> str:
    return endpoint_slice.metadata.name


def _is_usable(endpoint_slice: EndpointSlice, family: str) -> bool:
    meta = endpoint_slice.metadata
    return (
        endpoint_slice.address_type == family
        and bool(meta.labels.get(SERVICE_NAME_LABEL))
        and HEADLESS_LABEL not in meta.labels
        and bool(meta.namespace)
        and bool(meta.name)
    )


def _add_slice(
    by_port: dict[PortKey, dict[str, PortEndpoint]],
    endpoint_slice: EndpointSlice,
    zone_weights: ZoneWeights | None,
    *,
    keeps_node_hints: bool,
) -> None:
    labels = endpoint_slice.metadata.labels
    for_zone = labels.get(FOR_ZONE_LABEL, "")
    for_region = labels.get(FOR_REGION_LABEL, "")
    weights = _weights(endpoint_slice)
    for port in endpoint_slice.ports:
        number = port.port
        # NB: the API server defaults the name of a port to ""; None was never defaulted.
        if port.name is None or not number:
            continue
        name = port.name, port.protocol or "TCP"
        for endpoint, weight in zip(endpoint_slice.endpoints, weights, strict=True):
            address = canonical(endpoint.addresses[0]) if endpoint.addresses else None
            if address is None:
                continue
            conditions, hints = endpoint.conditions, endpoint.hints
            port_endpoint = PortEndpoint(
                address,
                number,
                conditions.ready is not False,
                conditions.serving is not False,
                conditions.terminating is True,
                endpoint.node_name or "",
                endpoint.zone or "",
                () if hints is None else tuple([hint.name for hint in hints.for_zones]),
                tuple([hint.name for hint in hints.for_nodes])
                if hints is not None and keeps_node_hints
                else (),
                weight,
                for_zone,
                for_region,
                _topology(endpoint),
                zone_weights,
            )
            endpoints = by_port.setdefault(name, {})
            key = _endpoint_key(address, number)
            # A terminating pod must not hide the new pod that has its address.
            if key not in endpoints or not port_endpoint.terminating:
                endpoints[key] = port_endpoint


def _topology(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    topology = endpoint.deprecated_topology
    return tuple(sorted(topology.items())) if topology else ()


def _weights(endpoint_slice: EndpointSlice) -> tuple[int, ...]:
    count = len(endpoint_slice.endpoints)
    text = endpoint_slice.metadata.annotations.get(ENDPOINT_WEIGHTS_ANNOTATION)
    weights = _decoded_weights(text) if text is not None else ()
    # All or nothing: a list of another length may belong to other endpoints.
    return weights if len(weights) == count else (1,) * count


@lru_cache(maxsize=4096)
def _decoded_weights(text: str) -> tuple[int, ...]:
    try:
        weights = _WEIGHTS.decode(text)
    except msgspec.DecodeError:
        return ()
    return weights if all(weight > 0 for weight in weights) else ()


def _endpoint_key(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
