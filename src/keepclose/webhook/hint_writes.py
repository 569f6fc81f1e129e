"""Writes hints, and nothing but hints, of slices that another controller manages.

A JSON patch holds the hints that differ and the resource version of the slice, so that fields that
keepclose does not know stay as they are and a newer slice is never overwritten.
"""

from __future__ import annotations

from typing import Any

import structlog

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client, PatchType
from keepclose.kube.errors import Conflict, KubeError, NotFound
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.reconcile.dropped_fields import SliceGuard
from keepclose.reconcile.event_publisher import service_reference
from keepclose.runtime.workers import Result
from keepclose.webhook.admission import HINTS_MANAGER, hint_operations
from keepclose.webhook.metrics import WebhookMetrics

_log = structlog.get_logger(__name__)


class HintWriter:
    """Patches the hints of slices."""

    def __init__(
        self,
        client: Client,
        cache: Cache[EndpointSlice],
        recorder: EventRecorder,
        guard: SliceGuard,
        *,
        metrics: WebhookMetrics,
    ) -> None:
        self._client = client
        self._cache = cache
        self._recorder = recorder
        self._guard = guard
        self._metrics = metrics

    async def write(self, service: Service, changed: tuple[EndpointSlice, ...]) -> Result:
        """Set the hints of these slices; return STALE where another client wrote first."""
        result = Result.SUCCESS
        for desired in changed:
            meta = desired.metadata
            present = self._cache.get(meta.key)
            if present is None or present.metadata.resource_version != meta.resource_version:
                result = Result.STALE
                continue
            if self._guard.is_pointless(desired, present):
                continue
            try:
                stored = await _patch(self._client, desired, present)
            except (Conflict, NotFound):
                result = Result.STALE
            except KubeError as error:
                message = f"Error setting hints of EndpointSlice {meta.name}: {error}"
                reference = service_reference(service)
                _log.warning("hints not set", service=str(service.key), error=message)
                self._recorder.record(reference, "Warning", "FailedToSetHints", message)
                return Result.ERROR
            else:
                self._metrics.written()
                self._guard.record(desired, stored)
                self._cache.put(stored)
        return result


async def try_hints(client: Client, sent: EndpointSlice, present: EndpointSlice) -> EndpointSlice:
    """Return what the server would store if the present slice got the hints of `sent`."""
    return await _patch(client, sent, present, dry_run=True)


async def _patch(
    client: Client, desired: EndpointSlice, present: EndpointSlice, *, dry_run: bool = False
) -> EndpointSlice:
    meta = present.metadata
    operations: list[dict[str, Any]] = [
        {"op": "add", "path": "/metadata/resourceVersion", "value": meta.resource_version},
        *hint_operations(present, desired),
    ]
    return await client.patch(
        ENDPOINT_SLICES,
        meta.name,
        operations,
        namespace=meta.namespace,
        type=PatchType.JSON,
        field_manager=HINTS_MANAGER,
        dry_run=dry_run,
    )
