"""Services, EndpointSlices and Endpoints, as `kubectl get` shows them.

A Service shows its cluster IP, the addresses for clients outside the cluster, and its ports. A load
balancer without an address is "<pending>". Slices and Endpoints show the first three addresses, and
how many more there are. A slice without ports or endpoints shows "<unset>", Endpoints without
subsets "<none>". A port without a number is shown by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from keepclose.apiserver.printing.cells import (
    AGE,
    NAME,
    NONE,
    Cells,
    Printer,
    TableColumn,
    age,
    list_at,
    number_at,
    object_name,
    pairs_at,
    show_labels,
    text_at,
    texts_at,
    value_at,
    wide,
)
from keepclose.model.json_values import JsonObject

_SHOWN_ADDRESSES: Final = 3


def external_address(service: JsonObject) -> str:
    """Return the addresses of the Service for clients outside the cluster."""
    kind = text_at(service, "spec", "type") or "ClusterIP"
    external_ips = texts_at(service, "spec", "externalIPs")
    if kind in ("ClusterIP", "NodePort"):
        return ",".join(external_ips) if external_ips else NONE
    if kind == "LoadBalancer":
        return ",".join(_balancer_addresses(service) + external_ips) or "<pending>"
    if kind == "ExternalName":
        return text_at(service, "spec", "externalName")
    return "<unknown>"


def port_list(service: JsonObject) -> str:
    """Return ports as "80/TCP", with the node port as "80:30080/TCP"."""
    return ",".join(_port(port) for port in list_at(service, "spec", "ports")) or NONE


def _service_cells(service: JsonObject, now: float) -> Cells:
    return [
        object_name(service),
        text_at(service, "spec", "type") or "ClusterIP",
        _cluster_ip(service),
        external_address(service),
        port_list(service),
        age(service, now),
        show_labels(pairs_at(service, "spec", "selector")),
    ]


def _cluster_ip(service: JsonObject) -> str:
    cluster_ips = texts_at(service, "spec", "clusterIPs")
    if cluster_ips:
        return cluster_ips[0]
    return text_at(service, "spec", "clusterIP") or NONE


def _balancer_addresses(service: JsonObject) -> list[str]:
    ingress = list_at(service, "status", "loadBalancer", "ingress")
    addresses = {text_at(entry, "ip") or text_at(entry, "hostname") for entry in ingress}
    return sorted(addresses - {""})


def _port(port: object) -> str:
    number, node_port = number_at(port, "port"), number_at(port, "nodePort")
    protocol = text_at(port, "protocol") or "TCP"
    return f"{number}:{node_port}/{protocol}" if node_port > 0 else f"{number}/{protocol}"


def _slice_cells(item: JsonObject, now: float) -> Cells:
    ports = [_slice_port(port) for port in list_at(item, "ports")]
    addresses = [
        address
        for endpoint in list_at(item, "endpoints")
        for address in texts_at(endpoint, "addresses")
    ]
    return [
        object_name(item),
        text_at(item, "addressType"),
        _shorten(ports) or "<unset>",
        _shorten(addresses) or "<unset>",
        age(item, now),
    ]


def _endpoints_cells(item: JsonObject, now: float) -> Cells:
    subsets = list_at(item, "subsets")
    addresses = [address for subset in subsets for address in _subset_addresses(subset)]
    return [object_name(item), _shorten(addresses) if subsets else NONE, age(item, now)]


def _slice_port(port: object) -> str:
    if value_at(port, "port") is None:
        return text_at(port, "name")
    return str(number_at(port, "port"))


def _subset_addresses(subset: object) -> list[str]:
    hosts = [text_at(address, "ip") for address in list_at(subset, "addresses")]
    ports = [number_at(port, "port") for port in list_at(subset, "ports")]
    # A headless Service may have no ports at all.
    return [_join(host, port) for port in ports for host in hosts] if ports else hosts


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shorten(texts: Sequence[str]) -> str:
    shown = ",".join(texts[:_SHOWN_ADDRESSES])
    return (
        f"{shown} + {len(texts) - _SHOWN_ADDRESSES} more..."
        if len(texts) > _SHOWN_ADDRESSES
        else shown
    )


SERVICE_COLUMNS: Final = Printer(
    columns=(
        NAME,
        TableColumn("Type", "How the Service is exposed."),
        TableColumn("Cluster-IP", "Address of the Service inside the cluster."),
        TableColumn("External-IP", "Addresses of the Service for clients outside the cluster."),
        TableColumn("Port(s)", "Ports of the Service, with node ports after a colon."),
        AGE,
        wide("Selector", "Labels of the pods behind the Service."),
    ),
    cells=_service_cells,
)
ENDPOINT_SLICE: Final = Printer(
    columns=(
        NAME,
        TableColumn("AddressType", "Family of the addresses."),
        TableColumn("Ports", "Ports that every endpoint of the slice has."),
        TableColumn("Endpoints", "Addresses of the endpoints."),
        AGE,
    ),
    cells=_slice_cells,
)
ENDPOINTS_COLUMNS: Final = Printer(
    columns=(NAME, TableColumn("Endpoints", "Ready addresses with their ports."), AGE),
    cells=_endpoints_cells,
)
