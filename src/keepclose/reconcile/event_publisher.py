"""Publishes Events on Services: topology hints enabled or disabled, warnings, failed syncs.

The EndpointSlice controller of Kubernetes repeats a topology event with every sync; here an event
is published only when it differs from the last one of the same Service and address type. As there,
the end of the topology mode Auto is published only for Services that this process has seen with an
allocation.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from keepclose.kube.event_recorder import EventRecorder
from keepclose.model.meta import NamespacedName, ObjectMeta, ObjectReference
from keepclose.model.service.types import Service
from keepclose.routing.auto import disabled_event, enabled_event
from keepclose.routing.reasons import WARNING_CODES, Reason, TopologyEvent
from keepclose.routing.strategy import StrategyName
from keepclose.slices.service_planner import ServicePlan

_log = structlog.get_logger(__name__)


class EventPublisher(Protocol):
    """Reports to users what happens to their Services; must neither block nor raise."""

    def publish_plan(self, service: Service, plan: ServicePlan) -> None:
        """Publish the events and warnings of a plan."""

    def publish_failure(self, service: Service, reason: str, message: str) -> None:
        """Publish that a sync failed."""

    def publish_warning(self, reference: ObjectReference, reason: str, message: str) -> None:
        """Publish a warning about any object."""

    def forget(self, key: NamespacedName) -> None:
        """Drop the state of a Service that was deleted."""


class RecordingEventPublisher:
    """Publishes through an EventRecorder."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._published: dict[NamespacedName, dict[str, TopologyEvent]] = {}
        self._warned: dict[NamespacedName, frozenset[Reason]] = {}
        self._allocated: dict[NamespacedName, tuple[str, ...]] = {}
        """The address types for which the last plan of a Service had an allocation of Auto."""

    def publish_plan(self, service: Service, plan: ServicePlan) -> None:
        """Record the topology events and warnings that differ from the last ones."""
        key = service.key
        self._warn_of_reasons(service, plan)
        published = self._published.setdefault(key, {})
        for address_type, event in self._topology_events(key, plan).items():
            if published.get(address_type) != event:
                published[address_type] = event
                self._recorder.record(
                    service_reference(service), event.type, event.reason, event.message
                )
        self._allocated[key] = tuple(plan.totals)
        if plan.strategy.name is not StrategyName.AUTO:
            # When the user sets the mode again, the same event is published again.
            del self._published[key]

    def _warn_of_reasons(self, service: Service, plan: ServicePlan) -> None:
        key = service.key
        reasons = [reason for reason in plan.reasons if reason.code in WARNING_CODES]
        warned = self._warned.get(key, frozenset())
        for reason in reasons:
            if reason not in warned:
                self.publish_warning(service_reference(service), reason.code.value, reason.message)
        if reasons:
            self._warned[key] = frozenset(reasons)
        elif warned:
            # A reason that comes back later is published again.
            del self._warned[key]

    def _topology_events(self, key: NamespacedName, plan: ServicePlan) -> dict[str, TopologyEvent]:
        """Return by address type the events of a plan and of its difference to the last plan."""
        before = self._allocated.get(key)
        events: dict[str, TopologyEvent] = {}
        if plan.strategy.name is not StrategyName.AUTO:
            events.update(
                {address_type: disabled_event(address_type) for address_type in before or ()}
            )
        elif before is not None:
            # NB: hints that another mechanism wrote do not count as enabled by this mode.
            enabled = (address_type for address_type in plan.totals if address_type not in before)
            events.update({address_type: enabled_event(address_type) for address_type in enabled})
        for event in plan.events:
            events[event.address_type] = event
        return events

    def publish_failure(self, service: Service, reason: str, message: str) -> None:
        """Record a warning."""
        self.publish_warning(service_reference(service), reason, message)

    def publish_warning(self, reference: ObjectReference, reason: str, message: str) -> None:
        """Record a warning about any object, and log it: Events expire after an hour."""
        _log.warning(
            "warning event",
            kind=reference.kind,
            object=f"{reference.namespace}/{reference.name}",
            reason=reason,
            message=message,
        )
        self._recorder.record(reference, "Warning", reason, message)

    def forget(self, key: NamespacedName) -> None:
        """Publish everything again for a new Service of the same name."""
        self._published.pop(key, None)
        self._warned.pop(key, None)
        self._allocated.pop(key, None)


def service_reference(service: Service) -> ObjectReference:
    """Return the reference by which an Event names a Service."""
    return object_reference("Service", service.metadata)


def object_reference(kind: str, meta: ObjectMeta) -> ObjectReference:
    """Return the reference by which an Event names an object of the core group."""
    return ObjectReference(
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        api_version="v1",
        resource_version=meta.resource_version,
    )
