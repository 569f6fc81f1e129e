"""Expectations of a controller about its own writes, and which objects a workload owns.

Until the cache has an owner's writes, the owner creates and deletes nothing more. So a stale cache
never leads to a second pod for the same replica, nor to a second deletion for the same surplus.
Pods are awaited by name and uid, other objects by the resourceVersion that was written. A write
that never shows, because the object came and went between two lists, expires.

Workloads adopt orphans that they select, and release what they no longer select, as in
kube-controller-manager. Owned objects are those whose controller reference has the workload's uid.
A workload that is being deleted neither adopts nor releases. Each write names the resourceVersion
of the object, so that of two controllers only one wins.
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
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName, ObjectMeta
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import Workload, owned_by, workload_owner_of

TIMEOUT_S: Final = 30.0
UNCERTAIN_S: Final = 5.0
"""For a request that may or may not have been served."""
_T = TypeVar("_T", bound=Named)


class _Awaited(NamedTuple):
    owner: str
    pod: WorkloadPod
    until: float


class Expectations:
    """Pods that were created or deleted while the cache does not show it yet."""

    def __init__(self, clock: Clock, pods: Cache[WorkloadPod]) -> None:
        self._clock = clock
        self._created: dict[NamespacedName, _Awaited] = {}
        self._deleted: dict[str, _Awaited] = {}
        pods.subscribe(self._on_pod)

    def expect_created(self, owner: str, pod: WorkloadPod, *, for_s: float = TIMEOUT_S) -> None:
        """Expect a new pod in the cache."""
        self._created[pod.key] = _Awaited(owner, pod, self._clock.monotonic() + for_s)

    def expect_deleted(self, owner: str, pod: WorkloadPod) -> None:
        """Expect a pod to be terminating or gone in the cache."""
        self._deleted[pod.uid] = _Awaited(owner, pod, self._clock.monotonic() + TIMEOUT_S)

    def forget(self, pod: WorkloadPod) -> None:
        """Drop the expectations of a write that failed."""
        self._created.pop(pod.key, None)
        self._deleted.pop(pod.uid, None)

    def wait_s(self, owner: str) -> float | None:
        """Return for how long the owner may have to wait; None if the cache has all its writes."""
        self._drop_expired()
        now = self._clock.monotonic()
        pending = [*self._created.values(), *self._deleted.values()]
        return max((pod.until - now for pod in pending if pod.owner == owner), default=None)

    def is_being_deleted(self, pod: WorkloadPod) -> bool:
        """Return whether the pod was deleted while the cache does not show it yet."""
        return pod.uid in self._deleted

    def assumed(self) -> list[WorkloadPod]:
        """Return the created pods that the cache does not have yet, as they were sent."""
        self._drop_expired()
        return [awaited.pod for awaited in self._created.values()]

    def _on_pod(self, old: WorkloadPod | None, new: WorkloadPod | None) -> None:
        if new is not None:
            self._created.pop(new.key, None)
            if new.is_terminating:
                self._deleted.pop(new.uid, None)
        if old is not None and (new is None or new.uid != old.uid):
            self._deleted.pop(old.uid, None)

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        for key in [key for key, awaited in self._created.items() if awaited.until <= now]:
            del self._created[key]
        for uid in [uid for uid, awaited in self._deleted.items() if awaited.until <= now]:
            del self._deleted[uid]


class Watermarks:
    """The last written versions of objects, to detect a stale cache."""

    def __init__(self, clock: Clock, cache: Cache[Any]) -> None:
        self._clock, self._cache = clock, cache
        self._written: dict[NamespacedName, tuple[str, str, float]] = {}

    def record(self, owner: str, meta: ObjectMeta) -> None:
        """Record the version of an owner's object after a write."""
        until = self._clock.monotonic() + UNCERTAIN_S
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
        cached = self._cache.get(key)
        return cached is None or is_older(cached.metadata.resource_version, version)


class Claims(NamedTuple, Generic[_T]):
    """The objects that a workload keeps, adopts and releases."""

    owned: list[_T]
    adopted: list[_T]
    released: list[_T]


def sort_claims(workload: Workload, owned: Iterable[_T], orphans: Iterable[_T]) -> Claims[_T]:
    """Return which owned objects to keep or release, and which orphans to adopt."""
    selector = workload.spec.selector
    if selector is None or workload.metadata.deletion_timestamp is not None:
        return Claims(list(owned), [], [])
    claims: Claims[_T] = Claims([], [], [])
    for item in owned:
        fits = selector.matches(item.metadata.labels)
        (claims.owned if fits else claims.released).append(item)
    claims.adopted.extend(
        item
        for item in orphans
        if item.metadata.deletion_timestamp is None
        and selector.matches(item.metadata.labels)
        and workload_owner_of(item.metadata) is None
    )
    return claims


async def settle_claims(
    client: Client, kind: Kind[_T], workload: Workload, claims: Claims[_T]
) -> list[_T]:
    """Write the adoptions and releases, and return all that the workload owns then."""
    owned = list(claims.owned)
    for item in claims.released:
        rest = [ref for ref in _references(item) if ref.get("uid") != workload.metadata.uid]
        await _write(client, kind, item, rest)
    for item in claims.adopted:
        adopted = await _write(client, kind, item, [*_references(item), owned_by(workload)])
        if adopted is not None:
            owned.append(adopted)
    return owned


def _references(item: Named) -> list[JsonObject]:
    references: Any = msgspec.to_builtins(item.metadata.owner_references)
    return list(references)


async def _write(
    client: Client, kind: Kind[_T], item: _T, references: list[JsonObject]
) -> _T | None:
    meta = item.metadata
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
