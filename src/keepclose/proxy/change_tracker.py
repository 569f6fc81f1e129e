"""From changes in the caches to the Services that a sync must look at, for one address family.

As kube-proxy tracks them: of a Service only what is derived for its ports counts, so that an edit
of labels causes no sync and a change that is taken back before the sync is none; of a slice every
change counts. Slices of no Service, of another family or of a headless Service are ignored, and
slices whose Service is unknown wait for it.

Decides nothing about endpoints: which of them are used is asked anew for each touched Service.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, Protocol

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    HEADLESS_LABEL,
    PROXY_NAME_LABEL,
    SERVICE_NAME_LABEL,
    TRIGGER_TIME_ANNOTATION,
)
from keepclose.proxy.validation import Flaws, port_flaw, service_flaw, slice_flaw
from keepclose.routing.service_ports import RoutedPort, routed_ports

Ports = tuple[RoutedPort, ...]


class ChangeCounts(Protocol):
    """Who counts the changes that come in."""

    def service_changed(self) -> None:
        """Count an event of a Service."""
        ...

    def endpoints_changed(self) -> None:
        """Count an event of a slice."""
        ...


class _Changes(NamedTuple):
    """What came since the last sync."""

    services: dict[NamespacedName, Ports]
    """The Services whose ports changed, with the ports that they have now."""
    endpoints: frozenset[NamespacedName]
    """The Services whose slices changed."""
    trigger_times: tuple[float, ...]
    """When the pods changed whose news this is, by the wall clock."""
    version: int
    """The highest version among the slices with hints that were seen so far."""


class ChangeTracker:
    """Gathers the changes for one family until a sync takes them."""

    def __init__(
        self,
        family: str,
        *,
        gates: FeatureGates,
        counts: ChangeCounts,
        on_change: Callable[[], None],
        started_at: float,
        flaws: Flaws,
    ) -> None:
        self._family = family
        self._gates = gates
        self._counts = counts
        self._on_change = on_change
        self._started_at = started_at
        self._flaws = flaws
        self._applied: dict[NamespacedName, Ports] = {}
        self._services: dict[NamespacedName, Ports] = {}
        self._endpoints: set[NamespacedName] = set()
        self._trigger_times: dict[NamespacedName, list[float]] = {}
        self._slice_events = 0
        self.version = 0
        """The highest version among the slices with hints that were seen so far."""

    @property
    def pending_services(self) -> int:
        """How many Services wait for a sync."""
        return len(self._services)

    @property
    def pending_endpoints(self) -> int:
        """How many changes of slices wait for a sync."""
        return self._slice_events

    def hear_service(self, old: Service | None, new: Service | None) -> None:
        """Take in a change of a Service."""
        one = new or old
        if one is None:
            return
        self._counts.service_changed()
        key = one.key
        ports = () if new is None else self._ports_of(new)
        if ports == self._applied.get(key, ()):
            self._services.pop(key, None)
        else:
            self._services[key] = ports
        if self._services:
            self._on_change()

    def hear_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Take in a change of a slice."""
        is_heard = False
        for one in (old, new):
            # NB: a label may move a slice to another Service; both are touched then.
            if one is not None and self._is_ours(one):
                self._endpoints.add(one.service_key)
                is_heard = True
        if not is_heard:
            return
        self._counts.endpoints_changed()
        self._slice_events += 1
        if new is not None and self._is_ours(new):
            self._flaws.note("EndpointSlice", new.metadata.key, slice_flaw(new, self._family))
            self._note_version(new)
            self._note_trigger_time(new)
        elif old is not None:
            # What is known of the Service's changes may be about what went away.
            self._trigger_times.pop(old.service_key, None)
        self._on_change()

    def take(self) -> _Changes:
        """Return what came since the last call, and start anew."""
        changes = _Changes(
            self._services,
            frozenset(self._endpoints),
            tuple(time for times in self._trigger_times.values() for time in times),
            self.version,
        )
        for key, ports in self._services.items():
            if ports:
                self._applied[key] = ports
            else:
                self._applied.pop(key, None)
        self._services = {}
        self._endpoints = set()
        self._trigger_times = {}
        self._slice_events = 0
        return changes

    def _ports_of(self, service: Service) -> Ports:
        if PROXY_NAME_LABEL in service.metadata.labels:
            return ()
        ports = routed_ports(service, self._family, gates=self._gates)
        if not ports:
            return ()
        self._flaws.note("Service", service.key, service_flaw(service))
        flaw = next((text for one in ports if (text := port_flaw(one, self._family))), "")
        if not flaw:
            return ports
        self._flaws.note("Service", service.key, flaw)
        return tuple(one for one in ports if not port_flaw(one, self._family))

    def _is_ours(self, one: EndpointSlice) -> bool:
        labels = one.metadata.labels
        return (
            one.address_type == self._family
            and bool(labels.get(SERVICE_NAME_LABEL))
            and HEADLESS_LABEL not in labels
        )

    def _note_version(self, one: EndpointSlice) -> None:
        version = one.metadata.resource_version
        if version.isascii() and version.isdecimal() and has_hints(one):
            self.version = max(self.version, int(version))

    def _note_trigger_time(self, one: EndpointSlice) -> None:
        text = one.metadata.annotations.get(TRIGGER_TIME_ANNOTATION)
        if text is None:
            return
        time = parse_time(text)
        if time is not None and time > self._started_at:
            self._trigger_times.setdefault(one.service_key, []).append(time)


def has_hints(one: EndpointSlice) -> bool:
    """Return whether some endpoint of the slice is meant for certain zones or nodes."""
    return any(
        endpoint.hints is not None and bool(endpoint.hints.for_zones or endpoint.hints.for_nodes)
        for endpoint in one.endpoints
    )


def parse_time(text: str) -> float | None:
    """Return an RFC 3339 time as seconds since 1970, or None when it is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.timestamp() if time.tzinfo is not None else None
