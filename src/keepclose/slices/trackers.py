"""What a controller remembers between syncs: its own writes, and when changes were triggered.

Follows the EndpointSlice controller. `SliceTracker` reports whether the cache has caught up with
the writes, so that no plan is made from stale slices. `TriggerTimeTracker` finds the earliest
change that a sync responds to; consumers measure the network programming latency from it. Neither
reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Pod

_DELETION_EXPECTED = -1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS = 1_000_000_000
_NEVER = -(1 << 80)


class SliceTracker:
    """The newest known generation of each slice, by Service."""

    def __init__(self) -> None:
        self._generations: dict[NamespacedName, dict[str, int]] = {}

    def has(self, endpoint_slice: EndpointSlice) -> bool:
        """Return whether the slice is tracked, also if only its deletion is expected."""
        return endpoint_slice.metadata.uid in self._generations.get(endpoint_slice.service_key, {})

    def should_sync(self, endpoint_slice: EndpointSlice) -> bool:
        """Return whether the slice is unknown, or newer than the tracked generation."""
        generation = self._generations.get(endpoint_slice.service_key, {}).get(
            endpoint_slice.metadata.uid
        )
        return generation is None or endpoint_slice.metadata.generation > generation

    def is_stale(self, service: NamespacedName, slices: Iterable[EndpointSlice]) -> bool:
        """Return whether these slices from the cache are older than what was written."""
        generations = self._generations.get(service)
        if generations is None:
            return False
        matched = 0
        for endpoint_slice in slices:
            generation = generations.get(endpoint_slice.metadata.uid)
            if generation is not None:
                if (
                    generation == _DELETION_EXPECTED
                    or generation > endpoint_slice.metadata.generation
                ):
                    return True
                matched += 1
        # NB: every matched slice is expected to exist, and no slice comes twice.
        return matched < len(generations) - list(generations.values()).count(_DELETION_EXPECTED)

    def update(self, endpoint_slice: EndpointSlice) -> None:
        """Record the generation of a written slice."""
        generations = self._generations.setdefault(endpoint_slice.service_key, {})
        generations[endpoint_slice.metadata.uid] = endpoint_slice.metadata.generation

    def expect_deletion(self, endpoint_slice: EndpointSlice) -> None:
        """Record that the slice was deleted; the cache must drop it."""
        self._generations.setdefault(endpoint_slice.service_key, {})[
            endpoint_slice.metadata.uid
        ] = _DELETION_EXPECTED

    def handle_deletion(self, endpoint_slice: EndpointSlice) -> bool:
        """Forget a deleted slice; return False if its deletion was not expected."""
        generations = self._generations.get(endpoint_slice.service_key, {})
        generation = generations.pop(endpoint_slice.metadata.uid, None)
        return generation is None or generation == _DELETION_EXPECTED

    def delete_service(self, service: NamespacedName) -> None:
        """Forget all slices of a Service."""
        self._generations.pop(service, None)


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
