"""Keeps a controller from repeating writes of fields that its API server drops.

A server with other feature gates or versions drops fields. The guard learns what was stored from
the full answer where a write brings new hints, and else from the watch, which delivers the same
resource version with another content. `slices.retention` decides which writes are then pointless. A
dry run checks whether the server stores the fields by now, so that the check changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog
from msgspec.structs import replace

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.errors import KubeError
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.field_errors import describe_fields
from keepclose.model.meta import NamespacedName
from keepclose.routing.honored_condition import hint_levels
from keepclose.slices.changes import is_managed_by
from keepclose.slices.packing import SlicePlan, take_over
from keepclose.slices.retention import retain_slices, withhold
from keepclose.slices.service_planner import ServicePlan

_log = structlog.get_logger(__name__)
# Sets of dropped fields that are logged once each.
_MAX_LOGGED: Final = 100
TryWrite = Callable[[EndpointSlice, EndpointSlice], Awaitable[EndpointSlice]]


class SliceGuard:
    """Which fields of one controller's slices the API server does not store.

    The guard calls `on_due` with a Service to requeue. `try_write` is a dry run: it returns what
    the server would store of a slice in place of the present one.
    """

    def __init__(
        self,
        cache: Cache[EndpointSlice],
        *,
        managed_by: str,
        try_write: TryWrite,
        on_due: Callable[[NamespacedName], None],
    ) -> None:
        self._try_write = try_write
        self._cache = cache
        self._managed_by = managed_by
        self._on_due = on_due
        self._retention = retain_slices()
        self._logged: set[tuple[str, ...]] = set()

    def __len__(self) -> int:
        return len(self._retention)

    def record(self, sent: EndpointSlice, stored: EndpointSlice) -> None:
        """Record what the server stored of a write."""
        key = stored.metadata.key
        self._requeue(self._retention.note(key, sent, stored))
        fields = self._retention.fields(key)
        if fields and fields not in self._logged:
            if len(self._logged) >= _MAX_LOGGED:
                # NB: a webhook that sets ever new labels would fill memory and the log.
                self._logged.clear()
            self._logged.add(fields)
            _log.warning(describe_fields(fields), slice=str(key))

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Record from the watch what was stored of a write answered with metadata alone."""
        if new is None:
            if old is not None:
                self._retention.forget(old.metadata.key)
            return
        if (
            old is None
            or old.metadata.resource_version != new.metadata.resource_version
            or not is_managed_by(new, self._managed_by)
        ):
            return
        self.record(old, new)
        if self._retention.fields(new.metadata.key):
            self._on_due(new.service_key)

    def withhold(self, plan: SlicePlan, present: Iterable[EndpointSlice]) -> SlicePlan:
        """Return the plan without updates that the server would not store."""
        return withhold(plan, self._retention, present)

    def withhold_all(self, plan: ServicePlan, present: list[EndpointSlice]) -> ServicePlan:
        """Return the plan of a Service without updates that the server would not store."""
        if not len(self._retention):
            return plan
        plans = {
            address_type: self.withhold(slice_plan, present)
            for address_type, slice_plan in plan.plans.items()
        }
        return replace(plan, plans=plans)

    def is_pointless(self, desired: EndpointSlice, present: EndpointSlice) -> bool:
        """Return whether the server would drop a write, as it dropped the last one."""
        return self._retention.is_pointless(present.metadata.key, desired, present)

    def fields(self, slices: Iterable[EndpointSlice]) -> tuple[str, ...]:
        """Return the fields of these slices that the server does not store, sorted."""
        if not len(self._retention):
            return ()
        dropped = [self._retention.fields(item.metadata.key) for item in slices]
        return tuple(sorted({field for fields in dropped for field in fields}))

    async def recheck(self) -> None:
        """Check by a dry run, for each set of fields, whether the server stores them by now."""
        for key, sent in self._retention.samples():
            present = self._cache.get(key)
            if present is None:
                self._retention.forget(key)
                continue
            try:
                stored = await self._try_write(sent, present)
            except KubeError as error:
                _log.info("dry run of dropped fields failed", slice=str(key), error=str(error))
                continue
            fields = self._retention.fields(key)
            freed = self._retention.note(key, sent, stored)
            if freed or not self._retention.fields(key):
                self._logged.discard(fields)
                _log.info("API server stores fields again", fields=fields)
                self._requeue((key, *freed))

    def _requeue(self, keys: Iterable[NamespacedName]) -> None:
        for key in keys:
            present = self._cache.get(key)
            if present is not None:
                self._on_due(present.service_key)


async def try_update(client: Client, sent: EndpointSlice, present: EndpointSlice) -> EndpointSlice:
    """Return what the server would store if the whole slice were replaced."""
    return await client.update(ENDPOINT_SLICES, take_over(sent, present), dry_run=True)


def brings_hints(endpoint_slice: EndpointSlice, before: EndpointSlice | None) -> bool:
    """Return whether a write brings a kind of hints that the slice did not have."""
    return bool(hint_levels([endpoint_slice]) - hint_levels([] if before is None else [before]))
