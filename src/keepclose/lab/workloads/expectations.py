"""Writes that the cache has not shown yet: until it has, an owner makes and deletes nothing more.

So a cache that lags never leads to a second pod for the same gap, nor to a second victim for the
same surplus. Each pod is waited for by its own name and uid, each other object by the version that
was written. What never shows up, because it came and went between two lists, is forgotten after a
while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from keepclose.kube.cache import Cache, Named, is_older
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import Kind
from keepclose.lab.workloads.pods import WorkloadPod, workload_owner_of
from keepclose.lab.workloads.types import Workload, owned_by
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName, ObjectMeta

PATIENCE_S: Final = 30.0
DOUBT_S: Final = 5.0
"""For a request of which nobody knows whether it was served."""
_T = TypeVar("_T", bound=Named)


class _Awaited(NamedTuple):
    owner: str
    pod: WorkloadPod
    until: float


class Expectations:
    """Pods that were created or deleted and have not been seen so."""

    def __init__(self, clock: Clock, pods: Cache[WorkloadPod]) -> None:
        self._clock = clock
        self._created: dict[NamespacedName, _Awaited] = {}
        self._deleted: dict[str, _Awaited] = {}
        pods.subscribe(self._note)

    def expect_created(self, owner: str, pod: WorkloadPod, *, for_s: float = PATIENCE_S) -> None:
        """Wait for a pod to show up."""
        self._created[pod.key] = _Awaited(owner, pod, self._clock.monotonic() + for_s)

    def expect_deleted(self, owner: str, pod: WorkloadPod) -> None:
        """Wait for a pod to be on its way out, or gone."""
        self._deleted[pod.uid] = _Awaited(owner, pod, self._clock.monotonic() + PATIENCE_S)

    def forget(self, pod: WorkloadPod) -> None:
        """Wait no longer for what did not happen."""
        self._created.pop(pod.key, None)
        self._deleted.pop(pod.uid, None)

    def wait_s(self, owner: str) -> float | None:
        """Return for how long the owner may have to wait; None when all was seen."""
        self._drop_old()
        now = self._clock.monotonic()
        awaited = [*self._created.values(), *self._deleted.values()]
        return max((one.until - now for one in awaited if one.owner == owner), default=None)

    def is_leaving(self, pod: WorkloadPod) -> bool:
        """Return whether the pod was asked to go, though it does not look so yet."""
        return pod.uid in self._deleted

    def assumed(self) -> list[WorkloadPod]:
        """Return the pods that were created and have not been seen, as they were sent."""
        self._drop_old()
        return [one.pod for one in self._created.values()]

    def _note(self, old: WorkloadPod | None, new: WorkloadPod | None) -> None:
        if new is not None:
            self._created.pop(new.key, None)
            if new.is_terminating:
                self._deleted.pop(new.uid, None)
        if old is not None and (new is None or new.uid != old.uid):
            self._deleted.pop(old.uid, None)

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        for key in [key for key, one in self._created.items() if one.until <= now]:
            del self._created[key]
        for uid in [uid for uid, one in self._deleted.items() if one.until <= now]:
            del self._deleted[uid]


class Watermarks:
    """The versions of objects that were written last, to tell whether a cache lags behind them."""

    def __init__(self, clock: Clock, cache: Cache[Any]) -> None:
        self._clock, self._cache = clock, cache
        self._written: dict[NamespacedName, tuple[str, str, float]] = {}

    def note(self, owner: str, meta: ObjectMeta) -> None:
        """Take note of what an owner's object is since a write."""
        until = self._clock.monotonic() + DOUBT_S
        self._written[meta.key] = (owner, meta.resource_version, until)

    def lags(self, owner: str) -> bool:
        """Return whether the cache has an older state of one of the owner's objects."""
        now = self._clock.monotonic()
        self._written = {
            key: mark
            for key, mark in self._written.items()
            if mark[2] > now and self._is_behind(key, mark[1])
        }
        return any(mark[0] == owner for mark in self._written.values())

    def _is_behind(self, key: NamespacedName, version: str) -> bool:
        known = self._cache.get(key)
        return known is None or is_older(known.metadata.resource_version, version)


class Claims(NamedTuple, Generic[_T]):
    """What a workload has, what it takes and what it gives up."""

    owned: list[_T]
    adopted: list[_T]
    released: list[_T]


def sort_claims(workload: Workload, owned: Iterable[_T], orphans: Iterable[_T]) -> Claims[_T]:
    """Return who belongs to the workload, of those it controls and those nobody does."""
    selector = workload.spec.selector
    if selector is None or workload.metadata.deletion_timestamp is not None:
        return Claims(list(owned), [], [])
    claims: Claims[_T] = Claims([], [], [])
    for one in owned:
        fits = selector.matches(one.metadata.labels)
        (claims.owned if fits else claims.released).append(one)
    claims.adopted.extend(
        one
        for one in orphans
        if one.metadata.deletion_timestamp is None
        and selector.matches(one.metadata.labels)
        and workload_owner_of(one.metadata) is None
    )
    return claims


async def settle_claims(
    client: Client, kind: Kind[_T], workload: Workload, claims: Claims[_T]
) -> list[_T]:
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


async def _write(
    client: Client, kind: Kind[_T], one: _T, references: list[JsonObject]
) -> _T | None:
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
