"""Event, Lease, ConfigMap and Namespace: the core kinds besides workloads, Services and slices.

Controllers write Events and Leases, and nodes acknowledge hints in ConfigMaps. The phase of a
Namespace decides whether objects may be created in it. Only fields in use are declared.
"""

from __future__ import annotations

from keepclose.model.meta import ApiStruct, NamespacedName, ObjectMeta, ObjectReference


class EventSource(ApiStruct, frozen=True):
    """The component that reports an Event, and its host."""

    component: str = ""
    host: str = ""


class Event(ApiStruct, frozen=True, omit_defaults=False):
    """A report about an object (core/v1)."""

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


class LeaseSpec(ApiStruct, frozen=True):
    """The holder of a Lease, and when it acquired and renewed it."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(ApiStruct, frozen=True, omit_defaults=False):
    """A lock with a time limit, used for leader election."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class ConfigMap(ApiStruct, frozen=True, omit_defaults=False):
    """A ConfigMap; binaryData is ignored."""

    api_version: str = "v1"
    kind: str = "ConfigMap"
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}

    @property
    def key(self) -> NamespacedName:
        """The ConfigMap's identity."""
        return self.metadata.key


class NamespaceStatus(ApiStruct, frozen=True):
    """The phase of a Namespace: Active or Terminating."""

    phase: str = ""


class Namespace(ApiStruct, frozen=True, omit_defaults=False):
    """A namespace."""

    api_version: str = "v1"
    kind: str = "Namespace"
    metadata: ObjectMeta = ObjectMeta()
    status: NamespaceStatus = NamespaceStatus()

    @property
    def is_terminating(self) -> bool:
        """Whether the namespace is being deleted, so that no object may be created in it."""
        return self.metadata.deletion_timestamp is not None or self.status.phase == "Terminating"
