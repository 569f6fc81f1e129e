"""Which Services a change of a pod or of a slice concerns.

Follows the EndpointSlice controller: most updates of a pod touch nothing that an endpoint shows and
are dropped; a change of labels alone concerns only the Services that gain or lose the pod. A
controller's own writes come back as events and concern nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER, MANAGED_BY_LABEL
from keepclose.model.workload import Pod
from keepclose.slices.trackers import SliceTracker


class PodChange(NamedTuple):
    """Whether the endpoint of a pod may look different, and whether other Services may have it."""

    pod_changed: bool
    labels_changed: bool

    @property
    def is_nothing(self) -> bool:
        """Whether the update can be dropped."""
        return not (self.pod_changed or self.labels_changed)


def pod_change(old: Pod, new: Pod) -> PodChange:
    """Return what an update of a pod means; the same resourceVersion means nothing.

    NB: any update of a terminating pod counts as a change. Hostname and subdomain count as labels,
    as they too decide what a Service makes of the pod.
    """
    version = new.metadata.resource_version
    if version and version == old.metadata.resource_version:
        return PodChange(pod_changed=False, labels_changed=False)
    labels_changed = (
        old.metadata.labels != new.metadata.labels
        or old.spec.hostname != new.spec.hostname
        or old.spec.subdomain != new.spec.subdomain
    )
    pod_changed = (
        old.is_terminating
        or new.is_terminating
        or old.is_ready != new.is_ready
        or old.status.pod_ips != new.status.pod_ips
    )
    return PodChange(pod_changed, labels_changed)


def services_for_pod(
    services: Iterable[Service], *, namespace: str, labels: Mapping[str, str]
) -> frozenset[NamespacedName]:
    """Return the Services that select a pod with these labels.

    A Service without a selector selects nothing, one with an empty selector everything.
    """
    return frozenset(
        service.key
        for service in services
        if service.metadata.namespace == namespace
        and service.spec.selector is not None
        and matches(service.spec.selector, labels)
    )


def services_for_pod_change(
    services: Iterable[Service], *, old: Pod | None, new: Pod | None
) -> frozenset[NamespacedName]:
    """Return the Services to sync after a pod came (old None), went (new None) or changed."""
    pod = new if new is not None else old
    if pod is None:
        return frozenset()
    known = tuple(services)
    meta = pod.metadata
    current = services_for_pod(known, namespace=meta.namespace, labels=meta.labels)
    if old is None or new is None:
        return current
    change = pod_change(old, new)
    if change.is_nothing:
        return frozenset()
    if not change.labels_changed:
        return current
    before = services_for_pod(known, namespace=old.metadata.namespace, labels=old.metadata.labels)
    return services_after_labels(before, current, pod_changed=change.pod_changed)


def services_after_labels(
    before: frozenset[NamespacedName], after: frozenset[NamespacedName], *, pod_changed: bool
) -> frozenset[NamespacedName]:
    """Return all Services involved if the pod itself changed, else those that gain or lose it."""
    return before | after if pod_changed else before ^ after


def service_of(piece: EndpointSlice) -> NamespacedName | None:
    """Return the Service that a slice belongs to, or None when its label is missing or empty."""
    key = piece.service_key
    return key if key.name else None


def services_for_added_slice(
    piece: EndpointSlice, *, tracker: SliceTracker, managed_by: str = ENDPOINTSLICE_CONTROLLER
) -> frozenset[NamespacedName]:
    """Return the Services to sync because somebody else wrote a slice of ours."""
    if is_managed_by(piece, managed_by) and tracker.should_sync(piece):
        return _owners(piece)
    return frozenset()


def services_for_changed_slice(
    old: EndpointSlice,
    new: EndpointSlice,
    *,
    tracker: SliceTracker,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> frozenset[NamespacedName]:
    """Return the Services to sync after a slice changed.

    A slice that moves from one Service to another concerns both, whoever manages it.
    """
    if old.service_key.name != new.service_key.name:
        return _owners(old, new)
    if is_managed_by(old, managed_by) != is_managed_by(new, managed_by):
        return _owners(new)
    return services_for_added_slice(new, tracker=tracker, managed_by=managed_by)


def services_for_deleted_slice(
    piece: EndpointSlice, *, tracker: SliceTracker, managed_by: str = ENDPOINTSLICE_CONTROLLER
) -> frozenset[NamespacedName]:
    """Return the Services to sync because a slice of ours vanished unasked; updates the tracker."""
    if (
        is_managed_by(piece, managed_by)
        and tracker.has(piece)
        and not tracker.handle_deletion(piece)
    ):
        return _owners(piece)
    return frozenset()


def is_managed_by(piece: EndpointSlice, managed_by: str) -> bool:
    """Return whether the slice is that controller's to write."""
    return piece.metadata.labels.get(MANAGED_BY_LABEL, "") == managed_by


def _owners(*pieces: EndpointSlice) -> frozenset[NamespacedName]:
    return frozenset(key for piece in pieces if (key := service_of(piece)) is not None)


def has_same_spec(old: Service, new: Service) -> bool:
    """Return whether two versions of a Service differ in nothing that a plan looks at."""
    one, other = old.metadata, new.metadata
    return (
        old.spec == new.spec
        and one.uid == other.uid
        and one.labels == other.labels
        and one.annotations == other.annotations
        and one.deletion_timestamp == other.deletion_timestamp
    )
