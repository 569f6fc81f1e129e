"""Telling users, by Events on their Service, what became of it.

The EndpointSlice controller repeats a topology event with every sync; here it is told only when it
differs from what was last told for the same Service and address type.
"""

from __future__ import annotations

from typing import Protocol

from keepclose.kube.recorder import EventRecorder
from keepclose.model.meta import NamespacedName, ObjectMeta, ObjectReference
from keepclose.model.service import Service
from keepclose.routing.events import TopologyEvent
from keepclose.slices.servicestate import ServicePlan


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

    def announce(self, service: Service, plan: ServicePlan) -> None:
        """Record the topology events that are news."""
        for event in plan.events:
            told = self._told.setdefault(service.key, {})
            address_type = event.message.rpartition(", addressType: ")[2]
            if told.get(address_type) != event:
                told[address_type] = event
                self._recorder.record(
                    service_reference(service), event.type, event.reason, event.message
                )

    def fail(self, service: Service, reason: str, message: str) -> None:
        """Record a warning."""
        self.warn(service_reference(service), reason, message)

    def warn(self, reference: ObjectReference, reason: str, message: str) -> None:
        """Record a warning about any object."""
        self._recorder.record(reference, "Warning", reason, message)

    def forget(self, key: NamespacedName) -> None:
        """Let a Service of the same name be told everything anew."""
        self._told.pop(key, None)


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
