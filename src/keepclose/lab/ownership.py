"""Who controls what: workloads adopt what they select, and let go of what they no longer do.

Owned objects are those whose controller reference has the workload's uid. A workload on its way out
adopts nothing and lets nothing go. Each change says which version of the object it is about, so
that two hands never both win.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from keepclose.kube.cache import Named
from keepclose.kube.client import Client
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import Kind
from keepclose.lab.workloads.pods import controller_of
from keepclose.lab.workloads.types import Workload, owned_by
from keepclose.model.json_values import JsonObject

T = TypeVar("T", bound=Named)


class Claims(NamedTuple, Generic[T]):
    """What a workload has, what it takes and what it gives up."""

    owned: list[T]
    adopted: list[T]
    released: list[T]


def sort_claims(workload: Workload, owned: Iterable[T], orphans: Iterable[T]) -> Claims[T]:
    """Return who belongs to the workload, of those it controls and those nobody does."""
    selector = workload.spec.selector
    if selector is None or workload.metadata.deletion_timestamp is not None:
        return Claims(list(owned), [], [])
    claims: Claims[T] = Claims([], [], [])
    for one in owned:
        fits = selector.matches(one.metadata.labels)
        (claims.owned if fits else claims.released).append(one)
    claims.adopted.extend(
        one
        for one in orphans
        if one.metadata.deletion_timestamp is None
        and selector.matches(one.metadata.labels)
        and controller_of(one.metadata) is None
    )
    return claims


async def settle_claims(
    client: Client, kind: Kind[T], workload: Workload, claims: Claims[T]
) -> list[T]:
    """Write what changes hands, and return all that the workload has then."""
    owned = list(claims.owned)
    for one in claims.released:
        rest = [ref for ref in _references(one) if ref.get("uid") != workload.metadata.uid]
        await _write(client, kind, one, rest)
    for one in claims.adopted:
        taken = await _write(client, kind, one, [*_references(one), owned_by(workload)])
        if taken is not None:
            owned.append(taken)
    return owned


def _references(one: Named) -> list[JsonObject]:
    found: Any = msgspec.to_builtins(one.metadata.owner_references)
    return list(found)


async def _write(client: Client, kind: Kind[T], one: T, references: list[JsonObject]) -> T | None:
    meta = one.metadata
    patch = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "ownerReferences": references,
        }
    }
    try:
        return await client.patch(kind, meta.name, patch, namespace=meta.namespace)
    except NotFound:
        return None
