"""Which Services a change of a pod or of a slice concerns, and when it was triggered.

Follows the EndpointSlice controller. Most updates of a pod change nothing that an endpoint shows,
and are dropped. A change of labels alone concerns only the Services that gain or lose the pod.
`TriggerTimeTracker` finds the earliest change that a sync responds to; consumers measure the
network programming latency from it. It reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.well_known import MANAGED_BY_LABEL
from keepclose.model.workload import Pod

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS = 1_000_000_000
_NEVER = -(1 << 80)


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


def is_managed_by(endpoint_slice: EndpointSlice, managed_by: str) -> bool:
    """Return whether the label of the slice names this controller as its manager."""
    return endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL, "") == managed_by


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


class TriggerTimeTracker:
    """The trigger times already seen, by Service: its creation and its pods' last transitions."""

    def __init__(self) -> None:
        self._states: dict[NamespacedName, _TriggerState] = {}

    def compute(self, service: Service, pods: Iterable[Pod]) -> str:
        """Return the time of the earliest change since the last call; "" without a change.

        For a new Service that is its creation. NB: a pod that was absent in the last call counts
        as new.
        """
        state = self._states.get(service.key, _TriggerState())
        moments = {
            pod.metadata.name: moment for pod in pods if (moment := _transition(pod)) is not None
        }
        gone = state.pods.keys() - moments.keys()
        return self._advance(service, moments, gone)

    def compute_changed(
        self, service: Service, *, changed: Iterable[Pod], gone: Iterable[str]
    ) -> str:
        """Return the same as `compute`, from the changed pods and the names of deleted pods alone.

        A pod in both counts as deleted and created again.
        """
        moments: dict[str, int] = {}
        deleted = set(gone)
        for pod in changed:
            moment = _transition(pod)
            if moment is None:
                deleted.add(pod.metadata.name)
            else:
                moments[pod.metadata.name] = moment
        return self._advance(service, moments, deleted)

    def delete_service(self, service: NamespacedName) -> None:
        """Forget a deleted Service; another one of the same name counts as new."""
        self._states.pop(service, None)

    def _advance(self, service: Service, moments: dict[str, int], gone: Iterable[str]) -> str:
        created = parse_timestamp(service.metadata.creation_timestamp)
        state = self._states.get(service.key)
        if state is None:
            self._states[service.key] = _TriggerState(created, moments)
            return format_instant(created)
        for name in gone:
            state.pods.pop(name, None)
        newer = [
            moment for name, moment in moments.items() if moment > state.pods.get(name, _NEVER)
        ]
        if created is not None and created > (_NEVER if state.service is None else state.service):
            newer.append(created)
        state.pods.update(moments)
        state.service = created
        return format_instant(min(newer, default=None))


class _TriggerState:
    __slots__ = ("pods", "service")

    def __init__(self, service: int | None = None, pods: dict[str, int] | None = None) -> None:
        self.service = service
        self.pods: dict[str, int] = {} if pods is None else pods


@lru_cache(maxsize=1 << 14)
def parse_timestamp(text: str | None) -> int | None:
    """Return an RFC 3339 time as nanoseconds since 1970; None for an absent or unreadable one."""
    if not text:
        return None
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        moment = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError:
        return None
    if moment.tzinfo is None or (dot and not digits):
        return None
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * _NANOS + int(digits[:9].ljust(9, "0") or "0")


def format_instant(moment: int | None) -> str:
    """Return nanoseconds since 1970 as RFC 3339 in UTC, without trailing zeros; "" for None."""
    if moment is None:
        return ""
    seconds, nanos = divmod(moment, _NANOS)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{text}{fraction}Z"


def _transition(pod: Pod) -> int | None:
    for condition in pod.status.conditions:
        if condition.type == "Ready":
            return parse_timestamp(condition.last_transition_time)
    return None
