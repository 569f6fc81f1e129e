"""The hooks by which metrics observe a controller, and its plans as values for a debug page.

Observers must neither block nor raise, and must never change what the controller does.
"""

from __future__ import annotations

import msgspec

from keepclose.kube.work_queue import WorkQueue
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.contention import Contention
from keepclose.runtime.workers import Result
from keepclose.slices.mirroring import MirrorPlan
from keepclose.slices.service_planner import ServicePlan


class MirroringObserver:
    """Observes the mirroring of Endpoints; this one does nothing, metrics override its methods."""

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Record the end of a sync and its duration."""

    def mirrored(self, key: NamespacedName, mirrored: MirrorPlan) -> None:
        """Record the plan of a mirroring sync, before it is written."""

    def written(self, operation: str) -> None:
        """Record that the API server accepted a write: create, update or delete."""


class Observer:
    """Observes an EndpointSlice controller; this one does nothing, metrics override its methods."""

    mirroring = MirroringObserver()

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Record the end of a sync and its duration."""

    def planned(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Record a plan, before it is written."""

    def written(self, operation: str) -> None:
        """Record that the API server accepted a write: create, update or delete."""

    def reached(self, seconds: float) -> None:
        """Record the time from the oldest pod change of a sync to its write."""

    def forgotten(self, key: NamespacedName) -> None:
        """Record that a Service was deleted."""

    def contended(self, key: NamespacedName) -> None:
        """Record that writes of a Service are deferred because another controller reverts them."""

    def watch_contention(self, contention: Contention) -> None:
        """Observe the number of contended Services from now on."""

    def watch_queue(self, name: str, queue: WorkQueue[NamespacedName]) -> None:
        """Observe a queue from now on."""


def describe_plan(plan: ServicePlan | None) -> JsonObject | None:
    """Return a plan and its reasons as plain values, for a debug page."""
    if plan is None:
        return None
    return {
        "strategy": {"name": plan.strategy.label, "source": plan.strategy.source},
        "reasons": [
            {"code": reason.code.value, "message": reason.message, "fix": reason.fix}
            for reason in (*plan.strategy.reasons, *plan.reasons)
        ],
        "conditions": msgspec.to_builtins(plan.conditions),
        "zones": plan.totals,
        "writes": {
            address_type: {
                "create": len(slice_plan.create),
                "update": len(slice_plan.update),
                "delete": len(slice_plan.delete),
                "unchanged": len(slice_plan.unchanged),
            }
            for address_type, slice_plan in plan.plans.items()
        },
        "endpoints": sum(len(endpoint_slice.endpoints) for endpoint_slice in plan.slices),
        "errors": list(plan.errors),
    }
