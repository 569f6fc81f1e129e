"""The desired endpoints of one Service in one address type, updated one pod at a time.

Each pod gives at most one endpoint, in the group of its ports and of the zone that it is assigned
to. The caller assigns zones, and an assignment survives an update of the pod. NB: the identity of
an endpoint contains its pod, so two pods never desire the same endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from keepclose.model.endpointslice.types import Endpoint, EndpointPort
from keepclose.model.meta import NamespacedName
from keepclose.slices.endpoints import DesiredEndpoint, EndpointId
from keepclose.slices.observed import Group, GroupTable


class GroupedEndpoint(NamedTuple):
    """A desired endpoint, the group whose slices may hold it, and its ports."""

    group: Group
    endpoint: Endpoint
    ports: tuple[EndpointPort, ...]


class DesiredEndpoints:
    """The pods of one Service and address type, and the endpoints that they desire.

    Methods that change it return the identities of the endpoints concerned.
    """

    __slots__ = ("_by_pod", "_errors", "_groups", "_zones", "by_id")

    def __init__(self, groups: GroupTable) -> None:
        self.by_id: dict[EndpointId, GroupedEndpoint] = {}
        self._groups = groups
        self._by_pod: dict[NamespacedName, DesiredEndpoint] = {}
        self._zones: dict[NamespacedName, str] = {}
        self._errors: dict[NamespacedName, str] = {}

    def put(self, pod_key: NamespacedName, desired: DesiredEndpoint) -> list[EndpointId]:
        """Set the desired endpoint of a pod; the pod keeps its zone."""
        old = self._by_pod.get(pod_key)
        concerned: list[EndpointId] = []
        if old is not None:
            if old == desired:
                return concerned
            self._remove_from_group(pod_key, old, concerned)
        self._by_pod[pod_key] = desired
        self._add_to_group(pod_key, desired, concerned)
        return concerned

    def remove(self, pod_key: NamespacedName) -> list[EndpointId]:
        """Drop a pod and its zone; an unknown pod is ignored."""
        concerned: list[EndpointId] = []
        old = self._by_pod.pop(pod_key, None)
        if old is not None:
            self._remove_from_group(pod_key, old, concerned)
        self._zones.pop(pod_key, None)
        return concerned

    def regroup(self, pod_key: NamespacedName, zone: str) -> list[EndpointId]:
        """Assign a pod to a zone, "" for none; the pod may be added later."""
        concerned: list[EndpointId] = []
        if self._zones.get(pod_key, "") == zone:
            return concerned
        desired = self._by_pod.get(pod_key)
        if desired is not None:
            self._remove_from_group(pod_key, desired, concerned)
        if zone:
            self._zones[pod_key] = zone
        else:
            del self._zones[pod_key]
        if desired is not None:
            self._add_to_group(pod_key, desired, concerned)
        return concerned

    def endpoint(self, pod_key: NamespacedName) -> Endpoint | None:
        """Return the desired endpoint of a pod; None if it has none or is unknown."""
        desired = self._by_pod.get(pod_key)
        return None if desired is None else desired.endpoint

    def endpoint_id(self, pod_key: NamespacedName) -> EndpointId | None:
        """Return the identity of a pod's endpoint; None if it has none or is unknown."""
        desired = self._by_pod.get(pod_key)
        return None if desired is None else desired.endpoint_id

    def endpoints(self) -> Iterator[tuple[NamespacedName, Endpoint, str]]:
        """Yield each pod with an endpoint, the endpoint, and the zone that it is assigned to."""
        for pod_key, desired in self._by_pod.items():
            if desired.endpoint is not None:
                yield pod_key, desired.endpoint, self._zones.get(pod_key, "")

    def grouped(self) -> frozenset[NamespacedName]:
        """Return the pods that are assigned to a zone."""
        return frozenset(self._zones)

    def errors(self) -> tuple[str, ...]:
        """Return why pods were skipped, in the order of their names."""
        return tuple([self._errors[pod_key] for pod_key in sorted(self._errors)])

    def _add_to_group(
        self, pod_key: NamespacedName, desired: DesiredEndpoint, concerned: list[EndpointId]
    ) -> None:
        undivided = self._groups.get(desired.port_key, "")
        undivided.pods += 1
        if desired.error:
            self._errors[pod_key] = desired.error
        if desired.endpoint is None or desired.endpoint_id is None:
            return
        zone = self._zones.get(pod_key, "")
        group = self._groups.get(desired.port_key, zone) if zone else undivided
        group.desired += 1
        self.by_id[desired.endpoint_id] = GroupedEndpoint(group, desired.endpoint, desired.ports)
        concerned.append(desired.endpoint_id)

    def _remove_from_group(
        self, pod_key: NamespacedName, desired: DesiredEndpoint, concerned: list[EndpointId]
    ) -> None:
        self._groups.get(desired.port_key, "").pods -= 1
        self._errors.pop(pod_key, None)
        if desired.endpoint_id is None:
            return
        self.by_id.pop(desired.endpoint_id).group.desired -= 1
        concerned.append(desired.endpoint_id)
