"""Events and Leases: the two objects that controllers write besides slices."""

from __future__ import annotations

from keepclose.model.meta import Frozen, NamespacedName, ObjectMeta, ObjectReference


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


class ConfigMap(Frozen, frozen=True, omit_defaults=False):
    """Texts by name. Binary data are not read."""

    api_version: str = "v1"
    kind: str = "ConfigMap"
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}

    @property
    def key(self) -> NamespacedName:
        """The ConfigMap's identity."""
        return self.metadata.key


class NamespaceStatus(Frozen, frozen=True):
    """Whether a namespace is there to stay."""

    phase: str = ""


class Namespace(Frozen, frozen=True, omit_defaults=False):
    """A namespace."""

    api_version: str = "v1"
    kind: str = "Namespace"
    metadata: ObjectMeta = ObjectMeta()
    status: NamespaceStatus = NamespaceStatus()

    @property
    def is_terminating(self) -> bool:
        """Whether nothing may be created in the namespace any more."""
        return self.metadata.deletion_timestamp is not None or self.status.phase == "Terminating"
