"""EndpointSlices and Endpoints: the first three addresses, and how many more there are.

A slice without ports or endpoints shows "<unset>", Endpoints without subsets "<none>". A port
without a number is shown by its name, because that is all there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from keepclose.apiserver.printing.cells import (
    AGE,
    NAME,
    NONE,
    Cells,
    Column,
    Printer,
    age,
    name_of,
)
from keepclose.apiserver.tables.fields import list_at, number_at, text_at, texts_at, value_at
from keepclose.model.json_values import JsonObject

_SHOWN: Final = 3


def _slice_cells(item: JsonObject, now: float) -> Cells:
    ports = [_slice_port(port) for port in list_at(item, "ports")]
    addresses = [
        address
        for endpoint in list_at(item, "endpoints")
        for address in texts_at(endpoint, "addresses")
    ]
    return [
        name_of(item),
        text_at(item, "addressType"),
        _shorten(ports) or "<unset>",
        _shorten(addresses) or "<unset>",
        age(item, now),
    ]


def _endpoints_cells(item: JsonObject, now: float) -> Cells:
    subsets = list_at(item, "subsets")
    addresses = [address for subset in subsets for address in _subset_addresses(subset)]
    return [name_of(item), _shorten(addresses) if subsets else NONE, age(item, now)]


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
    shown = ",".join(texts[:_SHOWN])
    return f"{shown} + {len(texts) - _SHOWN} more..." if len(texts) > _SHOWN else shown


ENDPOINT_SLICE: Final = Printer(
    columns=(
        NAME,
        Column("AddressType", "Family of the addresses."),
        Column("Ports", "Ports that every endpoint of the slice has."),
        Column("Endpoints", "Addresses of the endpoints."),
        AGE,
    ),
    cells=_slice_cells,
)
ENDPOINTS: Final = Printer(
    columns=(NAME, Column("Endpoints", "Ready addresses with their ports."), AGE),
    cells=_endpoints_cells,
)
