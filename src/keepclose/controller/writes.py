"""Writing slices, in an order that loses no endpoint, and telling trackers and caches at once.

Slices are replaced whole under their resource version: the struct holds every field that a slice
may have but the managed fields, which the server keeps. Deletes name uid and version, so that a
newer slice of the same name is left alone, and so is one that somebody filled meanwhile. Answers
hold metadata alone, but where a write brings hints that the slice did not have; where the server
stores something else, the guard learns that from the answer or from the watch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import structlog
from msgspec.structs import replace

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
from keepclose.model.well_known import MANAGED_BY_LABEL, SERVICE_NAME_LABEL
from keepclose.reconcile.dropped_fields import SliceGuard, brings_hints
from keepclose.slices.packing import SlicePlan
from keepclose.slices.trackers import SliceTracker

Addresses = frozenset[tuple[str, ...]]
_NONE: Addresses = frozenset()
# The most endpoints that the API takes in one slice.
_MOST_ENDPOINTS = 1000
_log = structlog.get_logger(__name__)


class SliceOperation(StrEnum):
    """The kinds of writes, by the words of the metric `changes`."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Write:
    """One write: the slice as it is to be, and for a delete as it is."""

    __slots__ = ("adds", "operation", "piece", "removes")

    def __init__(
        self,
        operation: SliceOperation,
        piece: EndpointSlice,
        *,
        adds: Addresses = _NONE,
        removes: Addresses = _NONE,
    ) -> None:
        self.operation = operation
        self.piece = piece
        self.adds = adds
        self.removes = removes


class Succession:
    """Hands out the writes one by one; tell it how each went before asking for the next."""

    def __init__(self, plan: SlicePlan, present: Mapping[str, EndpointSlice]) -> None:
        self._present = present
        self._failed = False
        self._moving = _NONE
        self._seats: Counter[tuple[str, ...]] = Counter()
        only = _find_only(plan)
        if only is not None:
            # Nothing can move with one write, which is the usual case.
            self._left = [only]
            return
        creates = [Write(SliceOperation.CREATE, one, adds=_addresses(one)) for one in plan.create]
        updates = [_update(one, present.get(one.metadata.name)) for one in plan.update]
        updates.sort(key=lambda write: bool(write.removes))
        deletes = [
            Write(SliceOperation.DELETE, one, removes=_addresses(one)) for one in plan.delete
        ]
        self._left = [*creates, *updates, *deletes]
        removed = _NONE.union(*(write.removes for write in self._left))
        # Only endpoints that leave one of these slices and come to another can get lost between.
        self._moving = removed & _NONE.union(*(write.adds for write in self._left))
        for write in self._left:
            self._seats.update(write.removes & self._moving)

    def next(self) -> Write | None:
        """Return the write to do now; None when there is nothing more that may be done."""
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

    def note_done(self, write: Write, stored: EndpointSlice | None) -> None:
        """Note what the server has now; None after a delete."""
        self._seats.update(write.adds & self._moving)
        self._seats.subtract(write.removes & self._moving)
        if stored is None:
            return
        name, version = stored.metadata.name, stored.metadata.resource_version
        for other in self._left:
            if other.piece.metadata.name == name and other.operation is SliceOperation.UPDATE:
                # The second write of a slice that was bridged.
                meta = replace(other.piece.metadata, resource_version=version)
                other.piece = replace(other.piece, metadata=meta)

    def note_failed(self) -> None:
        """Note that a write failed, so that what depends on it is left out."""
        self._failed = True

    @property
    def left(self) -> int:
        """How many writes were not handed out."""
        return len(self._left)

    def _is_safe(self, write: Write) -> bool:
        moving = write.removes & self._moving
        return all(self._seats[address] > 1 for address in moving)

    def _bridge(self, write: Write) -> Write | None:
        """Return a write that adds what the slice is to get, and keeps what must not go yet."""
        before = self._present.get(write.piece.metadata.name)
        if (
            write.operation is not SliceOperation.UPDATE
            or not write.adds
            or before is None
            or before.ports != write.piece.ports
        ):
            return None
        kept = tuple(one for one in before.endpoints if one.addresses in write.removes)
        endpoints = (*write.piece.endpoints, *kept)
        if len(endpoints) > _MOST_ENDPOINTS:
            return None
        bridge = Write(
            SliceOperation.UPDATE, replace(write.piece, endpoints=endpoints), adds=write.adds
        )
        write.adds = _NONE
        return bridge


def _find_only(plan: SlicePlan) -> Write | None:
    """Return the write of a plan that has only one."""
    if len(plan.create) + len(plan.update) + len(plan.delete) != 1:
        return None
    if plan.create:
        return Write(SliceOperation.CREATE, plan.create[0])
    if plan.update:
        return Write(SliceOperation.UPDATE, plan.update[0])
    return Write(SliceOperation.DELETE, plan.delete[0])


def _update(piece: EndpointSlice, before: EndpointSlice | None) -> Write:
    old, new = (_NONE if before is None else _addresses(before)), _addresses(piece)
    return Write(SliceOperation.UPDATE, piece, adds=new - old, removes=old - new)


def _addresses(piece: EndpointSlice) -> Addresses:
    return frozenset([one.addresses for one in piece.endpoints])


class WriteOutcome:
    """How the writes of a sync went, all of them together."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        """What failed, in the words for users."""
        self.is_stale = False
        """Whether somebody else wrote first, so that a new plan is needed."""
        self.written = 0
        self.wait_s = 0.0
        """How long the server asked to be left alone."""
        self.is_cut_off = False
        """Whether the server was away."""

    @property
    def is_good(self) -> bool:
        """Whether everything is written."""
        return not self.errors and not self.is_stale

    def note_error(self, message: str, error: KubeError) -> None:
        """Note a failure, and what it says about the server."""
        self.errors.append(message)
        if isinstance(error, TransportError | ServerError):
            self.is_cut_off = True
        if isinstance(error, ApiError):
            self.wait_s = max(self.wait_s, error.retry_after or 0.0)


class SliceWriter:
    """Writes the slices of one controller."""

    def __init__(
        self,
        client: Client,
        cache: Cache[EndpointSlice],
        tracker: SliceTracker,
        guard: SliceGuard,
        *,
        on_written: Callable[[str], None],
    ) -> None:
        self._client = client
        self._cache = cache
        self._tracker = tracker
        self._guard = guard
        self._on_written = on_written

    async def write(
        self,
        owner: str,
        plan: SlicePlan,
        *,
        present: Iterable[EndpointSlice],
        outcome: WriteOutcome,
    ) -> None:
        """Do the writes of a plan; `owner` names the Service in messages, as in "Service a/b".

        After a failure the writes that cannot take an endpoint away still happen, unless the server
        is away or asks for patience. A namespace that is being terminated ends the writes without a
        word.
        """
        succession = Succession(plan, {one.metadata.name: one for one in present})
        while (write := succession.next()) is not None:
            try:
                stored = await self._do(write)
            except KubeError as error:
                if _is_terminating(error):
                    return
                succession.note_failed()
                self._note_failure(owner, write, error, outcome)
                if isinstance(error, TransportError | TooManyRequests):
                    return
            else:
                outcome.written += 1
                succession.note_done(write, stored)
                self._on_written(str(write.operation))

    async def delete(
        self, owner: str, stray: Iterable[EndpointSlice], *, outcome: WriteOutcome
    ) -> None:
        """Delete slices that have no place in any plan."""
        await self.write(owner, SlicePlan(delete=tuple(stray)), present=(), outcome=outcome)

    async def _do(self, write: Write) -> EndpointSlice | None:
        piece = write.piece
        if write.operation is SliceOperation.DELETE:
            await self._delete(piece)
            return None
        stored = await self._send(piece)
        self._guard.note(piece, stored)
        # NB: the tracker first, so that the news from the cache is known to be our own.
        self._tracker.update(stored)
        self._cache.put(stored)
        if self._has_left(stored):
            # NB: its end was told before this answer came, and nothing will tell it once more.
            self._tracker.handle_deletion(stored)
        return stored

    async def _send(self, piece: EndpointSlice) -> EndpointSlice:
        """Create or update a slice; return it as stored, as far as that is known."""
        if brings_hints(piece, self._cache.get(piece.metadata.key)):
            if piece.metadata.name:
                return await self._client.update(ENDPOINT_SLICES, piece)
            return await self._client.create(ENDPOINT_SLICES, piece)
        meta = await self._client.write(ENDPOINT_SLICES, piece)
        stored = self._cache.get(meta.key)
        if stored is None or stored.metadata.resource_version != meta.resource_version:
            return replace(piece, metadata=meta)
        return stored

    def _has_left(self, stored: EndpointSlice) -> bool:
        """Return whether the cache knows already that the slice is no longer what was written."""
        now = self._cache.get(stored.metadata.key)
        return (
            now is None
            or now.metadata.uid != stored.metadata.uid
            or now.metadata.deletion_timestamp is not None
            or any(
                now.metadata.labels.get(label) != stored.metadata.labels.get(label)
                for label in (MANAGED_BY_LABEL, SERVICE_NAME_LABEL)
            )
        )

    async def _delete(self, piece: EndpointSlice) -> None:
        meta = piece.metadata
        # NB: before the request, because the watch may tell of the end before the answer does.
        self._tracker.expect_deletion(piece)
        try:
            await self._client.delete(
                ENDPOINT_SLICES,
                meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
            )
        except NotFound:
            return
        except BaseException:
            # NB: not when it is gone meanwhile: nothing would ever end the wait for it.
            if self._cache.get(NamespacedName(meta.namespace, meta.name)) is not None:
                self._tracker.update(piece)
            raise

    def _note_failure(
        self, owner: str, write: Write, error: KubeError, outcome: WriteOutcome
    ) -> None:
        name = write.piece.metadata.name
        if isinstance(error, Conflict | NotFound):
            outcome.is_stale = True
            _log.info("slice changed meanwhile", owner=owner, slice=name, error=str(error))
            return
        what = f"{write.operation} {name} EndpointSlice" if name else "create EndpointSlice"
        outcome.note_error(f"failed to {what} for {owner}: {error}", error)


def _is_terminating(error: KubeError) -> bool:
    return isinstance(error, Forbidden) and _has_cause(error, "NamespaceTerminating")


def _has_cause(error: ApiError, reason: str) -> bool:
    return any(cause.reason == reason for cause in error.causes)
