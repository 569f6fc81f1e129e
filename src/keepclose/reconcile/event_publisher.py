"""Telling users, by Events on their Service, what became of it.

The EndpointSlice controller repeats a topology event with every sync; here it is told only when it
differs from what was last told for the same Service and address type. As there, the end of the mode
Auto is told of the Services that this process has seen with an allocation, and of no others.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from keepclose.kube.event_recorder import EventRecorder
from keepclose.model.meta import NamespacedName, ObjectMeta, ObjectReference
from keepclose.model.service.types import Service
from keepclose.routing.auto import disabled_event, enabled_event
from keepclose.routing.reasons import WARNED_OF, Reason, TopologyEvent
from keepclose.routing.strategy import StrategyName
from keepclose.slices.service_planner import ServicePlan

_log = structlog.get_logger(__name__)


class Announcer(Protocol):
    """Tells users about their Services; must neither block nor raise."""

    def announce(self, service: Service, plan: ServicePlan) -> None:
        """Tell what a plan means for the user."""

    def fail(self, service: Service, reason: str, message: str) -> None:
        """Tell that a sync failed."""

    def warn(self, reference: ObjectReference, reason: str, message: str) -> None:
        """Tell something about an object that is no Service."""

    def forget(self, key: NamespacedName) -> None:
        """Drop what is remembered of a Service that is gone."""


class EventAnnouncer:
    """Tells by Events."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._told: dict[NamespacedName, dict[str, TopologyEvent]] = {}
        self._warned: dict[NamespacedName, frozenset[Reason]] = {}
        self._allocated: dict[NamespacedName, tuple[str, ...]] = {}
        """The address types for which the last plan of a Service held an allocation of Auto."""

    def announce(self, service: Service, plan: ServicePlan) -> None:
        """Record the topology events and warnings that are news."""
        key = service.key
        self._warn_of_reasons(service, plan)
        told = self._told.setdefault(key, {})
        for address_type, event in self._topology_events(key, plan).items():
            if told.get(address_type) != event:
                told[address_type] = event
                self._recorder.record(
                    service_reference(service), event.type, event.reason, event.message
                )
        self._allocated[key] = tuple(plan.totals)
        if plan.strategy.name is not StrategyName.AUTO:
            # Who asks for the mode again is told again, be it the same.
            del self._told[key]

    def _warn_of_reasons(self, service: Service, plan: ServicePlan) -> None:
        key = service.key
        reasons = [one for one in plan.reasons if one.code in WARNED_OF]
        known = self._warned.get(key, frozenset())
        for reason in reasons:
            if reason not in known:
                self.warn(service_reference(service), reason.code.value, reason.message)
        if reasons:
            self._warned[key] = frozenset(reasons)
        elif known:
            # A flaw that comes back later is announced again.
            del self._warned[key]

    def _topology_events(self, key: NamespacedName, plan: ServicePlan) -> dict[str, TopologyEvent]:
        """Return the events of a plan and those that follow from the plan before, by family."""
        before = self._allocated.get(key)
        found: dict[str, TopologyEvent] = {}
        if plan.strategy.name is not StrategyName.AUTO:
            found.update({one: disabled_event(one) for one in before or ()})
        elif before is not None:
            # NB: hints that another mechanism wrote do not make the mode any older.
            fresh = (one for one in plan.totals if one not in before)
            found.update({one: enabled_event(one) for one in fresh})
        for event in plan.events:
            found[event.message.rpartition(", addressType: ")[2]] = event
        return found

    def fail(self, service: Service, reason: str, message: str) -> None:
        """Record a warning."""
        self.warn(service_reference(service), reason, message)

    def warn(self, reference: ObjectReference, reason: str, message: str) -> None:
        """Record a warning about any object, and log it: Events are kept for an hour only."""
        _log.warning(
            "warning event",
            kind=reference.kind,
            object=f"{reference.namespace}/{reference.name}",
            reason=reason,
            message=message,
        )
        self._recorder.record(reference, "Warning", reason, message)

    def forget(self, key: NamespacedName) -> None:
        """Let a Service of the same name be told everything anew."""
        self._told.pop(key, None)
        self._warned.pop(key, None)
        self._allocated.pop(key, None)


def service_reference(service: Service) -> ObjectReference:
    """Return what Events about a Service point to."""
    return object_reference("Service", service.metadata)


def object_reference(kind: str, meta: ObjectMeta) -> ObjectReference:
    """Return what Events about an object of the core group point to."""
    return ObjectReference(
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        api_version="v1",
        resource_version=meta.resource_version,
    )
