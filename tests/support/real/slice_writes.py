"""Writes of slices in a form in which those of Kubernetes and ours can be compared."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.endpointslice.validation import default_endpoint_slice


class Write(NamedTuple):
    """A write as far as Kubernetes decides it.

    Go takes endpoints out of a map, so only how many go into each slice is decided; and it puts
    ports into the order of their hashes, which means nothing.
    """

    verb: str
    name: str
    prefix: str = ""
    address_type: str = ""
    ports: tuple[str, ...] = ()
    size: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    owners: tuple[str, ...] = ()


def as_write(
    verb: str, written: EndpointSlice, *, with_ports: bool = True
) -> tuple[Write, tuple[Endpoint, ...]]:
    """Return a write and the endpoints written; without ports, only their names count."""
    meta = written.metadata
    if verb == "delete":
        return Write(verb, meta.name), ()
    # The API server fills in what the tests leave out.
    filled = default_endpoint_slice(written)
    return Write(
        verb,
        "" if verb == "create" else meta.name,
        meta.generate_name if verb == "create" else "",
        filled.address_type,
        tuple(sorted(str(port if with_ports else port.name) for port in filled.ports)),
        len(filled.endpoints),
        tuple(sorted(meta.labels.items())),
        tuple(sorted(meta.annotations.items())),
        tuple(str(owner) for owner in meta.owner_references),
    ), filled.endpoints


def unordered(writes: list[tuple[Write, tuple[Endpoint, ...]]]) -> object:
    """Return writes without the order in which they are made.

    Which endpoint of a zone is lent to another one is up to chance too: hints count by zone.
    """
    written = [endpoint for _, endpoints in writes for endpoint in endpoints]
    return (
        sorted(write for write, _ in writes),
        sorted(str(replace(endpoint, hints=None)) for endpoint in written),
        sorted(f"{endpoint.zone} {endpoint.hints}" for endpoint in written),
    )
