"""What the pods of a Service ask for in one address type, one pod at a time.

Each pod gives at most one endpoint, in the group of its ports and of the zone that it was assigned
to. Assignments of zones come from outside and survive a change of the pod. NB: an endpoint's
identity contains its pod, so two pods never ask for the same endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from keepclose.model.endpointslice.types import Endpoint, EndpointPort
from keepclose.model.meta import NamespacedName
from keepclose.slices.endpoints import Desired, EndpointId
from keepclose.slices.observed import Group, GroupTable


class Wanted(NamedTuple):
    """An endpoint that should sit in some slice of its group."""

    group: Group
    endpoint: Endpoint
    ports: tuple[EndpointPort, ...]


class Demand:
    """All pods of one Service and address type, and the endpoints they ask for.

    The methods that change something return the identities that it concerns.
    """

    __slots__ = ("_errors", "_groups", "_sources", "_zones", "wanted")

    def __init__(self, groups: GroupTable) -> None:
        self.wanted: dict[EndpointId, Wanted] = {}
        self._groups = groups
        self._sources: dict[NamespacedName, Desired] = {}
        self._zones: dict[NamespacedName, str] = {}
        self._errors: dict[NamespacedName, str] = {}

    def put(self, source: NamespacedName, desired: Desired) -> list[EndpointId]:
        """Take what a pod asks for now; it keeps its zone."""
        old = self._sources.get(source)
        concerned: list[EndpointId] = []
        if old is not None:
            if old == desired:
                return concerned
            self._leave(source, old, concerned)
        self._sources[source] = desired
        self._enter(source, desired, concerned)
        return concerned

    def remove(self, source: NamespacedName) -> list[EndpointId]:
        """Drop a pod and its zone; an unknown one does no harm."""
        concerned: list[EndpointId] = []
        old = self._sources.pop(source, None)
        if old is not None:
            self._leave(source, old, concerned)
        self._zones.pop(source, None)
        return concerned

    def regroup(self, source: NamespacedName, zone: str) -> list[EndpointId]:
        """Assign a pod to a zone, "" for none; one that is not known yet is assigned too."""
        concerned: list[EndpointId] = []
        if self._zones.get(source, "") == zone:
            return concerned
        desired = self._sources.get(source)
        if desired is not None:
            self._leave(source, desired, concerned)
        if zone:
            self._zones[source] = zone
        else:
            del self._zones[source]
        if desired is not None:
            self._enter(source, desired, concerned)
        return concerned

    def endpoint(self, source: NamespacedName) -> Endpoint | None:
        """Return the endpoint of a pod, or None when it has none or is unknown."""
        desired = self._sources.get(source)
        return None if desired is None else desired.endpoint

    def endpoint_id(self, source: NamespacedName) -> EndpointId | None:
        """Return the identity of a pod's endpoint, or None when it has none or is unknown."""
        desired = self._sources.get(source)
        return None if desired is None else desired.endpoint_id

    def endpoints(self) -> Iterator[tuple[NamespacedName, Endpoint, str]]:
        """Yield each pod that has an endpoint, the endpoint, and the zone it is assigned to."""
        for source, desired in self._sources.items():
            if desired.endpoint is not None:
                yield source, desired.endpoint, self._zones.get(source, "")

    def grouped(self) -> frozenset[NamespacedName]:
        """Return the pods that are assigned to some zone."""
        return frozenset(self._zones)

    def errors(self) -> tuple[str, ...]:
        """Return why pods were left out, in the order of their names."""
        return tuple([self._errors[source] for source in sorted(self._errors)])

    def _enter(self, source: NamespacedName, desired: Desired, concerned: list[EndpointId]) -> None:
        plain = self._groups.get(desired.port_key, "")
        plain.pods += 1
        if desired.error:
            self._errors[source] = desired.error
        if desired.endpoint is None or desired.endpoint_id is None:
            return
        zone = self._zones.get(source, "")
        group = self._groups.get(desired.port_key, zone) if zone else plain
        group.wanted += 1
        self.wanted[desired.endpoint_id] = Wanted(group, desired.endpoint, desired.ports)
        concerned.append(desired.endpoint_id)

    def _leave(self, source: NamespacedName, desired: Desired, concerned: list[EndpointId]) -> None:
        self._groups.get(desired.port_key, "").pods -= 1
        self._errors.pop(source, None)
        if desired.endpoint_id is None:
            return
        self.wanted.pop(desired.endpoint_id).group.wanted -= 1
        concerned.append(desired.endpoint_id)
