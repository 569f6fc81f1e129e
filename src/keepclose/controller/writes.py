"""Writes slices in an order that loses no endpoint, and records each write at once.

Creates come first, then updates that remove no endpoint, then other updates, then deletes. An
endpoint that moves between slices is written to its new slice before it leaves the old one. Where
two slices swap endpoints, one of them first gets those of both. After a failed write only those
writes continue that remove no desired endpoint. NB: slices of different ports cannot hold each
other's endpoints, so while the ports of a Service change, an endpoint can be missing for a moment.

Updates replace whole slices under their resource version: the struct holds every field but the
managed fields, which the server keeps. Deletes name uid and version, so that a newer slice of that
name, or one that another client filled, is left alone. Answers hold only metadata unless a write
brings new hints; if the server stores something else, the guard learns it from the answer or watch.

A failure of the API server says nothing about the key. A key that the server asked to wait
(Retry-After) is not retried sooner; one whose sync found the server unavailable is requeued as soon
as the server is back, even after its retries were used up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial

import structlog
from msgspec.structs import replace

from keepclose.controller.own_writes import OwnWrites
from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    TransportError,
)
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.dropped_fields import SliceGuard, brings_hints, try_update
from keepclose.slices.packing import SlicePlan

Addresses = frozenset[tuple[str, ...]]
_NONE: Addresses = frozenset()
# The API server rejects a slice with more endpoints.
_MAX_ENDPOINTS = 1000
_log = structlog.get_logger(__name__)


class SliceOperation(StrEnum):
    """The kinds of writes; the values are labels of the metric `changes`."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Write:
    """One write: the desired slice, or for a delete the present one."""

    __slots__ = ("adds", "endpoint_slice", "operation", "removes")

    def __init__(
        self,
        operation: SliceOperation,
        endpoint_slice: EndpointSlice,
        *,
        adds: Addresses = _NONE,
        removes: Addresses = _NONE,
    ) -> None:
        self.operation = operation
        self.endpoint_slice = endpoint_slice
        self.adds = adds
        self.removes = removes


class WriteOrder:
    """The writes of a plan in a safe order; record each result before the next write."""

    def __init__(self, plan: SlicePlan, present: Mapping[str, EndpointSlice]) -> None:
        self._present = present
        self._failed = False
        self._moving = _NONE
        self._copies: Counter[tuple[str, ...]] = Counter()
        """In how many slices each moving endpoint is now."""
        single = _find_single(plan)
        if single is not None:
            # With one write, the usual case, nothing can move.
            self._left = [single]
            return
        creates = [
            Write(SliceOperation.CREATE, endpoint_slice, adds=_addresses(endpoint_slice))
            for endpoint_slice in plan.create
        ]
        updates = [
            _update(endpoint_slice, present.get(endpoint_slice.metadata.name))
            for endpoint_slice in plan.update
        ]
        updates.sort(key=lambda write: bool(write.removes))
        deletes = [
            Write(SliceOperation.DELETE, endpoint_slice, removes=_addresses(endpoint_slice))
            for endpoint_slice in plan.delete
        ]
        self._left = [*creates, *updates, *deletes]
        removed = _NONE.union(*(write.removes for write in self._left))
        # Only endpoints that leave one of these slices for another can be lost between writes.
        self._moving = removed & _NONE.union(*(write.adds for write in self._left))
        for write in self._left:
            self._copies.update(write.removes & self._moving)

    def next(self) -> Write | None:
        """Return the next write; None when no write is left that is safe."""
        for number, write in enumerate(self._left):
            if self._is_safe(write):
                return self._left.pop(number)
        if not self._left or self._failed:
            return None
        for write in self._left:
            bridge = self._bridge(write)
            if bridge is not None:
                return bridge
        return self._left.pop(0)

    def record_done(self, write: Write, stored: EndpointSlice | None) -> None:
        """Record what the server stored; None after a delete."""
        self._copies.update(write.adds & self._moving)
        self._copies.subtract(write.removes & self._moving)
        if stored is None:
            return
        name, version = stored.metadata.name, stored.metadata.resource_version
        for later in self._left:
            planned = later.endpoint_slice
            if planned.metadata.name == name and later.operation is SliceOperation.UPDATE:
                # The second write of a slice that was bridged.
                meta = replace(planned.metadata, resource_version=version)
                later.endpoint_slice = replace(planned, metadata=meta)

    def record_failure(self) -> None:
        """Record that a write failed, so that writes that depend on it are left out."""
        self._failed = True

    @property
    def left(self) -> int:
        """The number of writes that `next` has not returned."""
        return len(self._left)

    def _is_safe(self, write: Write) -> bool:
        moving = write.removes & self._moving
        return all(self._copies[address] > 1 for address in moving)

    def _bridge(self, write: Write) -> Write | None:
        """Return a write that adds the new endpoints and keeps those that must not go yet."""
        desired = write.endpoint_slice
        before = self._present.get(desired.metadata.name)
        if (
            write.operation is not SliceOperation.UPDATE
            or not write.adds
            or before is None
            or before.ports != desired.ports
        ):
            return None
        kept = tuple(
            endpoint for endpoint in before.endpoints if endpoint.addresses in write.removes
        )
        endpoints = (*desired.endpoints, *kept)
        if len(endpoints) > _MAX_ENDPOINTS:
            return None
        bridge = Write(
            SliceOperation.UPDATE, replace(desired, endpoints=endpoints), adds=write.adds
        )
        write.adds = _NONE
        return bridge


def _find_single(plan: SlicePlan) -> Write | None:
    """Return the write of a plan that has exactly one."""
    if len(plan.create) + len(plan.update) + len(plan.delete) != 1:
        return None
    if plan.create:
        return Write(SliceOperation.CREATE, plan.create[0])
    if plan.update:
        return Write(SliceOperation.UPDATE, plan.update[0])
    return Write(SliceOperation.DELETE, plan.delete[0])


def _update(desired: EndpointSlice, before: EndpointSlice | None) -> Write:
    old, new = (_NONE if before is None else _addresses(before)), _addresses(desired)
    return Write(SliceOperation.UPDATE, desired, adds=new - old, removes=old - new)


def _addresses(endpoint_slice: EndpointSlice) -> Addresses:
    return frozenset([endpoint.addresses for endpoint in endpoint_slice.endpoints])


class WriteOutcome:
    """The combined result of the writes of a sync."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        """What failed, as messages for users."""
        self.is_stale = False
        """Whether another client wrote first, so that a new plan is needed."""
        self.written = 0
        self.wait_s = 0.0
        """The longest Retry-After of the server."""
        self.is_unavailable = False
        """Whether the server could not be reached, or failed."""

    @property
    def is_good(self) -> bool:
        """Whether every write succeeded."""
        return not self.errors and not self.is_stale

    def record_error(self, message: str, error: KubeError) -> None:
        """Record a failure, and what it says about the server."""
        self.errors.append(message)
        if isinstance(error, TransportError | ServerError):
            self.is_unavailable = True
        if isinstance(error, ApiError):
            self.wait_s = max(self.wait_s, error.retry_after or 0.0)


class RetryAfter:
    """The keys of one queue that the API server delayed, and those that it could not serve."""

    def __init__(self) -> None:
        self._waits: dict[NamespacedName, float] = {}
        self._unavailable: set[NamespacedName] = set()

    def record(self, key: NamespacedName, outcome: WriteOutcome) -> None:
        """Record the outcome of a sync's writes in place of the previous one of the key."""
        self._waits.pop(key, None)
        self._unavailable.discard(key)
        if outcome.wait_s > 0:
            self._waits[key] = outcome.wait_s
        if outcome.is_unavailable:
            self._unavailable.add(key)

    def take_wait(self, key: NamespacedName) -> float:
        """Return and reset the seconds that the server asked the key to wait; 0 without any."""
        return self._waits.pop(key, 0.0)

    def unavailable(self) -> Iterable[NamespacedName]:
        """Return the keys whose last sync found the API server unavailable."""
        return tuple(self._unavailable)


class SliceWriter:
    """Writes the slices of one controller; the guard calls `on_due` with a Service to requeue."""

    def __init__(
        self,
        client: Client,
        cache: Cache[EndpointSlice],
        own_writes: OwnWrites,
        *,
        on_due: Callable[[NamespacedName], None],
        on_written: Callable[[str], None],
    ) -> None:
        self._client = client
        self._cache = cache
        self._on_written = on_written
        self.own_writes = own_writes
        self.guard = SliceGuard(
            cache,
            managed_by=own_writes.managed_by,
            try_write=partial(try_update, client),
            on_due=on_due,
        )
        self.retry_after = RetryAfter()

    def forget(self, key: NamespacedName) -> None:
        """Forget a Service that needs no more writes."""
        self.own_writes.forget(key)
        self.retry_after.record(key, WriteOutcome())

    async def write(
        self,
        owner: str,
        plan: SlicePlan,
        *,
        present: Iterable[EndpointSlice],
        outcome: WriteOutcome,
    ) -> None:
        """Execute the writes of a plan; `owner` names the Service in messages, as in "Service a/b".

        After a failure the writes that remove no endpoint continue, unless the server is
        unreachable or answers 429. In a terminating namespace the writes end silently.
        """
        order = WriteOrder(
            plan, {endpoint_slice.metadata.name: endpoint_slice for endpoint_slice in present}
        )
        while (write := order.next()) is not None:
            try:
                stored = await self._execute(write)
            except KubeError as error:
                if _is_terminating(error):
                    return
                order.record_failure()
                self._record_failure(owner, write, error, outcome)
                if isinstance(error, TransportError | TooManyRequests):
                    return
            else:
                outcome.written += 1
                order.record_done(write, stored)
                self._on_written(str(write.operation))

    async def delete(
        self, owner: str, stray: Iterable[EndpointSlice], *, outcome: WriteOutcome
    ) -> None:
        """Delete slices that no plan contains."""
        await self.write(owner, SlicePlan(delete=tuple(stray)), present=(), outcome=outcome)

    async def _execute(self, write: Write) -> EndpointSlice | None:
        endpoint_slice = write.endpoint_slice
        if write.operation is SliceOperation.DELETE:
            await self._delete(endpoint_slice)
            return None
        stored = await self._send(endpoint_slice)
        self.guard.record(endpoint_slice, stored)
        self.own_writes.record(stored)
        return stored

    async def _send(self, endpoint_slice: EndpointSlice) -> EndpointSlice:
        """Create or update a slice; return it as stored, as far as that is known."""
        if brings_hints(endpoint_slice, self._cache.get(endpoint_slice.metadata.key)):
            if endpoint_slice.metadata.name:
                return await self._client.update(ENDPOINT_SLICES, endpoint_slice)
            return await self._client.create(ENDPOINT_SLICES, endpoint_slice)
        meta = await self._client.write(ENDPOINT_SLICES, endpoint_slice)
        stored = self._cache.get(meta.key)
        if stored is None or stored.metadata.resource_version != meta.resource_version:
            return replace(endpoint_slice, metadata=meta)
        return stored

    async def _delete(self, endpoint_slice: EndpointSlice) -> None:
        meta = endpoint_slice.metadata
        with suppress(NotFound), self.own_writes.deleting(endpoint_slice):
            await self._client.delete(
                ENDPOINT_SLICES,
                meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
            )

    def _record_failure(
        self, owner: str, write: Write, error: KubeError, outcome: WriteOutcome
    ) -> None:
        name = write.endpoint_slice.metadata.name
        if isinstance(error, Conflict | NotFound):
            outcome.is_stale = True
            _log.info("EndpointSlice changed meanwhile", owner=owner, slice=name, error=str(error))
            return
        what = f"{write.operation} {name} EndpointSlice" if name else "create EndpointSlice"
        outcome.record_error(f"failed to {what} for {owner}: {error}", error)


def _is_terminating(error: KubeError) -> bool:
    return isinstance(error, Forbidden) and _has_cause(error, "NamespaceTerminating")


def _has_cause(error: ApiError, reason: str) -> bool:
    return any(cause.reason == reason for cause in error.causes)
