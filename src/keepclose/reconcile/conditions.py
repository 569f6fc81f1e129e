"""Writes the status conditions of Services (KEP-4444), only when they change.

`routing.conditions` decides their content. Conditions of other owners stay as they are, and the
resource version in the patch keeps a newer status from being overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import SERVICES
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.timestamps import format_event_time
from keepclose.reconcile.dropped_fields import Retention, condition_content
from keepclose.routing.conditions import has_ours, merge_conditions

Completion = Callable[[Service, tuple[Condition, ...]], tuple[Condition, ...]]


def _add_nothing(_service: Service, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the conditions as they are."""
    return conditions


class ConditionWriter:
    """Patches the status of Services; `complete` adds conditions that need a running controller."""

    def __init__(
        self,
        client: Client,
        cache: Cache[Service],
        *,
        clock: Clock,
        prefix: str = "",
        complete: Completion = _add_nothing,
    ) -> None:
        self._client = client
        self._cache = cache
        self._clock = clock
        self._prefix = prefix
        self._complete = complete
        self._retention: Retention[NamespacedName, tuple[Condition, ...]] = Retention(
            condition_content
        )

    def release(self) -> tuple[NamespacedName, ...]:
        """Allow writes again that the server did not store; return the Services concerned."""
        keys = self._retention.keys()
        for key in keys:
            self._retention.forget(key)
        return keys

    def is_clear(self, service: Service) -> bool:
        """Return whether a Service has no condition of this writer."""
        return not has_ours(service.status.conditions, prefix=self._prefix)

    async def write(self, service: Service, desired: tuple[Condition, ...]) -> bool:
        """Replace the conditions of this writer; return whether that took a write."""
        present = service.status.conditions
        # NB: most servers set no generation on Services; then the condition observes none.
        observed = service.metadata.generation or None
        completed = self._complete(service, desired)
        merged = merge_conditions(
            present,
            [replace(condition, observed_generation=observed) for condition in completed],
            now=format_event_time(self._clock.now()),
            prefix=self._prefix,
        )
        if merged == present or self._retention.is_pointless(service.key, merged, present):
            return False
        meta = service.metadata
        patch = {
            "metadata": {"resourceVersion": meta.resource_version},
            "status": {"conditions": [_plain(condition) for condition in merged]},
        }
        stored = await self._client.patch(
            SERVICES, meta.name, patch, namespace=meta.namespace, subresource="status"
        )
        self._retention.note(service.key, merged, stored.status.conditions)
        self._cache.put(stored)
        return True


def _plain(condition: Condition) -> dict[str, Any]:
    # NB: not by msgspec: the API requires these fields also where they hold a struct's default.
    plain: dict[str, Any] = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time,
    }
    if condition.observed_generation is not None:
        plain["observedGeneration"] = condition.observed_generation
    return plain
