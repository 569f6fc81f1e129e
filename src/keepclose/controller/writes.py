"""Writing slices, in an order that loses no endpoint, and telling trackers and caches at once.

Slices are replaced whole under their resource version: the struct holds every field that a slice
may have but the managed fields, which the server keeps. Deletes name uid and version, so that a
newer slice of the same name is left alone, and so is one that somebody filled meanwhile. Answers
hold metadata alone, but where a write brings hints that the slice did not have; where the server
stores something else, the guard learns that from the answer or from the watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog
from msgspec.structs import replace

from keepclose.controller.succession import Operation, Succession, Write
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

_log = structlog.get_logger(__name__)


class Outcome:
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
        outcome: Outcome,
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

    async def delete(self, owner: str, stray: Iterable[EndpointSlice], *, outcome: Outcome) -> None:
        """Delete slices that have no place in any plan."""
        await self.write(owner, SlicePlan(delete=tuple(stray)), present=(), outcome=outcome)

    async def _do(self, write: Write) -> EndpointSlice | None:
        piece = write.piece
        if write.operation is Operation.DELETE:
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

    def _note_failure(self, owner: str, write: Write, error: KubeError, outcome: Outcome) -> None:
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
