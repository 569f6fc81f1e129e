"""Keeps a controller from writing for ever what its API server does not keep.

What a server made of a write is learnt from the full answer where a write brings hints that the
slice did not have, and else from the watch, which tells of the same resource version with another
content. `slices.retention` says which writes that makes pointless. Whether the server keeps the
fields by now is asked by a write that is not carried out (dry run), so that asking changes nothing.
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
# Sets of fields that are told of once each.
_MOST_TOLD: Final = 100
TryWrite = Callable[[EndpointSlice, EndpointSlice], Awaitable[EndpointSlice]]


class SliceGuard:
    """What the server keeps of the slices of one controller.

    `on_due` is called with a Service whose slices are to be looked at again. `try_write` asks the
    server what it would store of a slice in place of the present one.
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
        self._told: set[tuple[str, ...]] = set()

    def __len__(self) -> int:
        return len(self._retention)

    def note(self, sent: EndpointSlice, stored: EndpointSlice) -> None:
        """Take what became of a write."""
        key = stored.metadata.key
        self._free(self._retention.note(key, sent, stored))
        fields = self._retention.fields(key)
        if fields and fields not in self._told:
            if len(self._told) >= _MOST_TOLD:
                # NB: a webhook that sets labels of ever other names would fill memory and the log.
                self._told.clear()
            self._told.add(fields)
            _log.warning(describe_fields(fields), slice=str(key))

    def hear_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Note what the watch tells of a write that was answered with metadata alone."""
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
        self.note(old, new)
        if self._retention.fields(new.metadata.key):
            self._on_due(new.service_key)

    def withhold(self, plan: SlicePlan, present: Iterable[EndpointSlice]) -> SlicePlan:
        """Return the plan without updates that the server would not keep."""
        return withhold(plan, self._retention, present)

    def withhold_all(self, plan: ServicePlan, present: list[EndpointSlice]) -> ServicePlan:
        """Return the plan of a Service without updates that the server would not keep."""
        if not len(self._retention):
            return plan
        plans = {family: self.withhold(one, present) for family, one in plan.plans.items()}
        return replace(plan, plans=plans)

    def is_pointless(self, wanted: EndpointSlice, present: EndpointSlice) -> bool:
        """Return whether the server would not keep a write, as it did not keep the last one."""
        return self._retention.is_pointless(present.metadata.key, wanted, present)

    def fields(self, slices: Iterable[EndpointSlice]) -> tuple[str, ...]:
        """Return the fields of these slices that the server does not keep, sorted."""
        if not len(self._retention):
            return ()
        found = [self._retention.fields(one.metadata.key) for one in slices]
        return tuple(sorted({field for fields in found for field in fields}))

    async def ask_again(self) -> None:
        """Ask the server, for each set of fields, whether it keeps them by now."""
        for key, sent in self._retention.samples():
            present = self._cache.get(key)
            if present is None:
                self._retention.forget(key)
                continue
            try:
                stored = await self._try_write(sent, present)
            except KubeError as error:
                _log.info("cannot ask what the server keeps", slice=str(key), error=str(error))
                continue
            fields = self._retention.fields(key)
            freed = self._retention.note(key, sent, stored)
            if freed or not self._retention.fields(key):
                self._told.discard(fields)
                _log.info("the API server keeps fields again", fields=fields)
                self._free((key, *freed))

    def _free(self, keys: Iterable[NamespacedName]) -> None:
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
