"""The endpoints of one Service as a node sees them: per port, over all its EndpointSlices.

Follows kube-proxy: a slice of another address family, of no Service or of a headless one is
ignored; of an endpoint only the first address counts; absent conditions mean ready, serving and not
terminating. An address that stands in two slices (it moved, or was given to a new pod) is one
endpoint. Slices are visited by name, so that the result does not depend on the order of arrival.

Decides nothing about who may use an endpoint, and never drops one for its state.
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
from keepclose.routing.service_ports import PortKey

_WEIGHTS: Final = msgspec.json.Decoder(tuple[int, ...])


class PortEndpoint(msgspec.Struct, frozen=True):
    """One address and port to which traffic of a service port may go.

    `topology` holds what else the endpoint is known to share with other nodes, by label; only
    slices written through the beta API carry it.
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

    @property
    def key(self) -> str:
        """The endpoint as "ip:port", by which endpoints are told apart and sorted as text."""
        return _endpoint_key(self.address, self.port)

    @property
    def shown(self) -> str:
        """The endpoint as people read it in tables, such as 10.0.0.3/8080."""
        return f"{self.address}/{self.port}"


class NodeView(msgspec.Struct, frozen=True):
    """The node that looks for endpoints; "" stands for what it does not know of itself."""

    name: str
    zone: str = ""
    region: str = ""
    labels: dict[str, str] = {}
    others: dict[str, dict[str, str]] = {}
    """Labels of the cluster's nodes by name, where topologyKeys ask for them: an endpoint carries
    but the name and the zone of its node."""

    @classmethod
    def of(cls, node: Node, others: dict[str, dict[str, str]] | None = None) -> NodeView:
        """Return the view of a Node object, from its labels and those of all nodes by name."""
        labels = node.metadata.labels
        return cls(node.name, node.zone, labels.get(REGION_LABEL, ""), labels, others or {})


def labels_by_node(nodes: Iterable[Node]) -> dict[str, dict[str, str]]:
    """Return the labels of nodes by name, to be shared by the views of all of them."""
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
    found: dict[PortKey, dict[str, PortEndpoint]] = {}
    usable = (one for one in slices if _is_usable(one, family))
    for endpoint_slice in sorted(usable, key=_slice_name):
        _add_slice(found, endpoint_slice, keeps_node_hints=keeps_node_hints)
    return {
        port: tuple([endpoints[key] for key in sorted(endpoints)])
        for port, endpoints in found.items()
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
    found: dict[PortKey, dict[str, PortEndpoint]],
    endpoint_slice: EndpointSlice,
    *,
    keeps_node_hints: bool,
) -> None:
    labels = endpoint_slice.metadata.labels
    for_zone = labels.get(FOR_ZONE_LABEL, "")
    for_region = labels.get(FOR_REGION_LABEL, "")
    weights = _weights(endpoint_slice)
    for port in endpoint_slice.ports:
        number = port.port
        # NB: a port without a name is one that no API server has defaulted; "" is a name.
        if port.name is None or not number:
            continue
        name = port.name, port.protocol or "TCP"
        for endpoint, weight in zip(endpoint_slice.endpoints, weights, strict=True):
            address = canonical(endpoint.addresses[0]) if endpoint.addresses else None
            if address is None:
                continue
            conditions, hints = endpoint.conditions, endpoint.hints
            newcomer = PortEndpoint(
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
            )
            known = found.setdefault(name, {})
            key = _endpoint_key(address, number)
            # A pod that goes must not hide the one that was given its address.
            if key not in known or not newcomer.terminating:
                known[key] = newcomer


def _topology(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    topology = endpoint.deprecated_topology
    return tuple(sorted(topology.items())) if topology else ()


def _weights(endpoint_slice: EndpointSlice) -> tuple[int, ...]:
    count = len(endpoint_slice.endpoints)
    text = endpoint_slice.metadata.annotations.get(ENDPOINT_WEIGHTS_ANNOTATION)
    weights = _decoded_weights(text) if text is not None else ()
    # All or nothing: a list that does not fit the endpoints may belong to others.
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
