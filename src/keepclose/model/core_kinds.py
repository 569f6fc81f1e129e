"""Events and Leases: the two objects that controllers write besides slices."""

from __future__ import annotations

from keepclose.model.meta import Frozen, ObjectMeta, ObjectReference


class EventSource(Frozen, frozen=True):
    """Which component on which node tells of an event."""

    component: str = ""
    host: str = ""


class Event(Frozen, frozen=True, omit_defaults=False):
    """Something worth telling about an object."""

    api_version: str = "v1"
    kind: str = "Event"
    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
    source: EventSource = EventSource()


class LeaseSpec(Frozen, frozen=True):
    """Who holds a lease and since when."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Frozen, frozen=True, omit_defaults=False):
    """A lock with a time limit, by which one of several controllers becomes the leader."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()
