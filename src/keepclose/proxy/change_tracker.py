"""Turns changes in the caches into the Services that a sync must process, for one address family.

As in kube-proxy, a Service has changed only if the ports derived from it have: an edit of labels
causes no sync, and neither does a change that is reverted before the sync. Every change of a slice
counts. Slices without a Service, of another family or of a headless Service are ignored; slices
whose Service is unknown wait for it.

This module never decides which endpoints are used; `routing` does so for each changed Service.
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
from keepclose.proxy.validation import ValidationLog, port_error, service_error, slice_error
from keepclose.routing.service_ports import RoutedPort, routed_ports

Ports = tuple[RoutedPort, ...]


class ChangeCounter(Protocol):
    """Counts the changes that the proxy receives."""

    def service_changed(self) -> None:
        """Count a change of a Service."""
        ...

    def endpoints_changed(self) -> None:
        """Count a change of a slice."""
        ...


class _Changes(NamedTuple):
    """The changes since the last sync."""

    services: dict[NamespacedName, Ports]
    """The Services whose ports changed, with the ports that they have now."""
    endpoints: frozenset[NamespacedName]
    """The Services whose slices changed."""
    trigger_times: tuple[float, ...]
    """When the pods changed that caused the changes of slices, in wall-clock time."""
    version: int
    """The highest version of all slices with hints so far."""


class ChangeTracker:
    """Collects the changes of one family until a sync takes them."""

    def __init__(
        self,
        family: str,
        *,
        gates: FeatureGates,
        counter: ChangeCounter,
        on_change: Callable[[], None],
        started_at: float,
        validation_log: ValidationLog,
    ) -> None:
        self._family = family
        self._gates = gates
        self._counter = counter
        self._on_change = on_change
        self._started_at = started_at
        self._validation_log = validation_log
        self._applied: dict[NamespacedName, Ports] = {}
        self._services: dict[NamespacedName, Ports] = {}
        self._endpoints: set[NamespacedName] = set()
        self._trigger_times: dict[NamespacedName, list[float]] = {}
        self._slice_events = 0
        self.version = 0
        """The highest version of all slices with hints so far."""

    @property
    def pending_services(self) -> int:
        """The number of Services that wait for a sync."""
        return len(self._services)

    @property
    def pending_endpoints(self) -> int:
        """The number of changes of slices that wait for a sync."""
        return self._slice_events

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """Handle a change of a Service."""
        service = new or old
        if service is None:
            return
        self._counter.service_changed()
        key = service.key
        ports = () if new is None else self._ports_of(new)
        if ports == self._applied.get(key, ()):
            self._services.pop(key, None)
        else:
            self._services[key] = ports
        if self._services:
            self._on_change()

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Handle a change of a slice."""
        is_relevant = False
        for endpoint_slice in (old, new):
            # NB: a label may move a slice to another Service; both have changed then.
            if endpoint_slice is not None and self._is_relevant(endpoint_slice):
                self._endpoints.add(endpoint_slice.service_key)
                is_relevant = True
        if not is_relevant:
            return
        self._counter.endpoints_changed()
        self._slice_events += 1
        if new is not None and self._is_relevant(new):
            error = slice_error(new, self._family)
            self._validation_log.report("EndpointSlice", new.metadata.key, error)
            self._record_version(new)
            self._record_trigger_time(new)
        elif old is not None:
            # The recorded trigger times may be those of the deleted slice.
            self._trigger_times.pop(old.service_key, None)
        self._on_change()

    def take(self) -> _Changes:
        """Return the changes since the last call, and reset them."""
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
        self._validation_log.report("Service", service.key, service_error(service))
        error = next((text for port in ports if (text := port_error(port, self._family))), "")
        if not error:
            return ports
        self._validation_log.report("Service", service.key, error)
        return tuple(port for port in ports if not port_error(port, self._family))

    def _is_relevant(self, endpoint_slice: EndpointSlice) -> bool:
        labels = endpoint_slice.metadata.labels
        return (
            endpoint_slice.address_type == self._family
            and bool(labels.get(SERVICE_NAME_LABEL))
            and HEADLESS_LABEL not in labels
        )

    def _record_version(self, endpoint_slice: EndpointSlice) -> None:
        version = endpoint_slice.metadata.resource_version
        if version.isascii() and version.isdecimal() and has_hints(endpoint_slice):
            self.version = max(self.version, int(version))

    def _record_trigger_time(self, endpoint_slice: EndpointSlice) -> None:
        text = endpoint_slice.metadata.annotations.get(TRIGGER_TIME_ANNOTATION)
        if text is None:
            return
        time = parse_time(text)
        if time is not None and time > self._started_at:
            self._trigger_times.setdefault(endpoint_slice.service_key, []).append(time)


def has_hints(endpoint_slice: EndpointSlice) -> bool:
    """Return whether any endpoint of the slice has hints for zones or nodes."""
    return any(
        endpoint.hints is not None and bool(endpoint.hints.for_zones or endpoint.hints.for_nodes)
        for endpoint in endpoint_slice.endpoints
    )


def parse_time(text: str) -> float | None:
    """Return an RFC 3339 time as seconds since 1970, or None if it is invalid."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.timestamp() if time.tzinfo is not None else None
