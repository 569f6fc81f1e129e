"""Which Services a change of a pod or of a slice concerns.

Follows the EndpointSlice controller. Most updates of a pod change nothing that an endpoint shows,
and are dropped. A change of labels alone concerns only the Services that gain or lose the pod. A
controller's own writes come back as watch events and must never cause another sync.
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
    """What an update of a pod changes: its endpoint, or the Services that select it."""

    pod_changed: bool
    labels_changed: bool

    @property
    def is_empty(self) -> bool:
        """Whether the update can be dropped."""
        return not (self.pod_changed or self.labels_changed)


def pod_change(old: Pod, new: Pod) -> PodChange:
    """Return what an update of a pod changes; with the same resourceVersion nothing does.

    NB: any update of a terminating pod counts as a change. Hostname and subdomain count as labels,
    because they decide whether the endpoint gets a hostname.
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

    A Service without a selector selects no pod, one with an empty selector every pod.
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
    """Return the Services to sync after an add (old None), delete (new None) or update of a pod."""
    pod = new if new is not None else old
    if pod is None:
        return frozenset()
    candidates = tuple(services)
    meta = pod.metadata
    current = services_for_pod(candidates, namespace=meta.namespace, labels=meta.labels)
    if old is None or new is None:
        return current
    change = pod_change(old, new)
    if change.is_empty:
        return frozenset()
    if not change.labels_changed:
        return current
    before = services_for_pod(
        candidates, namespace=old.metadata.namespace, labels=old.metadata.labels
    )
    return services_after_labels(before, current, pod_changed=change.pod_changed)


def services_after_labels(
    before: frozenset[NamespacedName], after: frozenset[NamespacedName], *, pod_changed: bool
) -> frozenset[NamespacedName]:
    """Return all Services concerned if the pod changed, else only those that gain or lose it."""
    return before | after if pod_changed else before ^ after


def service_of(endpoint_slice: EndpointSlice) -> NamespacedName | None:
    """Return the Service that a slice belongs to, or None when its label is missing or empty."""
    key = endpoint_slice.service_key
    return key if key.name else None


def services_for_added_slice(
    endpoint_slice: EndpointSlice,
    *,
    tracker: SliceTracker,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> frozenset[NamespacedName]:
    """Return the Services to sync because another writer changed a slice of this controller."""
    if is_managed_by(endpoint_slice, managed_by) and tracker.should_sync(endpoint_slice):
        return _services_of(endpoint_slice)
    return frozenset()


def services_for_changed_slice(
    old: EndpointSlice,
    new: EndpointSlice,
    *,
    tracker: SliceTracker,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> frozenset[NamespacedName]:
    """Return the Services to sync after a slice changed.

    A slice that moves from one Service to another concerns both, also under another manager.
    """
    if old.service_key.name != new.service_key.name:
        return _services_of(old, new)
    if is_managed_by(old, managed_by) != is_managed_by(new, managed_by):
        return _services_of(new)
    return services_for_added_slice(new, tracker=tracker, managed_by=managed_by)


def services_for_deleted_slice(
    endpoint_slice: EndpointSlice,
    *,
    tracker: SliceTracker,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> frozenset[NamespacedName]:
    """Return the Services to sync after an unexpected deletion of a slice; updates the tracker."""
    if (
        is_managed_by(endpoint_slice, managed_by)
        and tracker.has(endpoint_slice)
        and not tracker.handle_deletion(endpoint_slice)
    ):
        return _services_of(endpoint_slice)
    return frozenset()


def is_managed_by(endpoint_slice: EndpointSlice, managed_by: str) -> bool:
    """Return whether the label of the slice names this controller as its manager."""
    return endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL, "") == managed_by


def _services_of(*slices: EndpointSlice) -> frozenset[NamespacedName]:
    return frozenset(
        key for endpoint_slice in slices if (key := service_of(endpoint_slice)) is not None
    )


def has_same_spec(old: Service, new: Service) -> bool:
    """Return whether two versions of a Service are equal in everything that a plan depends on."""
    old_meta, new_meta = old.metadata, new.metadata
    return (
        old.spec == new.spec
        and old_meta.uid == new_meta.uid
        and old_meta.labels == new_meta.labels
        and old_meta.annotations == new_meta.annotations
        and old_meta.deletion_timestamp == new_meta.deletion_timestamp
    )
