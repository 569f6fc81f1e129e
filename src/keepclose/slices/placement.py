"""Which slice holds which endpoint: the smallest set of writes from observed to desired.

Follows the EndpointSlice controller. Endpoints stay in their slice, built again, with the hints
that they have; the rest is packed. An endpoint that two slices hold stays in the one whose name
sorts first. Slices of an older Service of the same name, and slices whose ports no pod has, are
deleted.

A `Placement` is kept between syncs and examines only slices that a change concerns, so one changed
pod costs one slice. A new placement with the same pods and slices gives the same plan. Planning
never changes what was observed or desired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER
from keepclose.routing.hint_facts import with_hints
from keepclose.routing.hints import SliceSet
from keepclose.routing.subsets import group_labels
from keepclose.slices.desired import DesiredEndpoints, GroupedEndpoint
from keepclose.slices.endpoints import DesiredEndpoint, EndpointId, endpoint_id, same_beyond_id
from keepclose.slices.observed import Group, GroupTable, ObservedSlice, ObservedSlices, SliceVerdict
from keepclose.slices.packing import SlicePlan, pack
from keepclose.slices.slice_metadata import is_owned_by, new_slice, slice_labels

__all__ = ["Placement", "SlicePlan"]


def locate_by_zone(endpoint: Endpoint) -> str:
    """Return the zone of an endpoint, which is its group under zones; "" without a zone."""
    return endpoint.zone or ""


class Placement:
    """The observed slices and desired endpoints of one Service and address type."""

    def __init__(
        self, service: Service, address_type: str, *, managed_by: str = ENDPOINTSLICE_CONTROLLER
    ) -> None:
        groups = GroupTable()
        self._service = service
        self._address_type = address_type
        self._managed_by = managed_by
        self._observed = ObservedSlices(groups)
        self._slices = self._observed.by_name
        self._desired = DesiredEndpoints(groups)
        self._desired_by_id = self._desired.by_id
        # Endpoints that may have no slice to stay in: a superset, which every plan reduces.
        self._unsettled: set[EndpointId] = set()

    def set_service(self, service: Service) -> None:
        """Set a new version of the Service.

        Endpoints depend on the Service too: after a change of ports the caller adds the pods again.
        """
        self._service = service
        for observed in self._slices.values():
            observed.labels = None
            owned = is_owned_by(observed.endpoint_slice, service)
            if owned != observed.owned:
                observed.owned = owned
                self._mark_dirty(observed.entries)

    def observe(self, endpoint_slice: EndpointSlice) -> None:
        """Record a new or changed slice; a slice that is being deleted is dropped."""
        name = endpoint_slice.metadata.name
        old = self._slices.get(name)
        if old is not None:
            if old.endpoint_slice is endpoint_slice:
                return
            if endpoint_slice.metadata.deletion_timestamp is None:
                changed = old.update(endpoint_slice)
                if changed is not None:
                    self._mark_dirty(changed)
                    return
            self.forget(name)
        if endpoint_slice.metadata.deletion_timestamp is None:
            self._mark_dirty(
                self._observed.add(endpoint_slice, owned=is_owned_by(endpoint_slice, self._service))
            )

    def forget(self, name: str) -> None:
        """Drop a deleted slice; an unknown name is ignored."""
        self._mark_dirty(self._observed.remove(name))

    def add_pod(self, pod_key: NamespacedName, desired: DesiredEndpoint) -> None:
        """Set the desired endpoint of a pod; the pod keeps the zone that it is assigned to."""
        self._mark_dirty(self._desired.put(pod_key, desired))

    def remove_pod(self, pod_key: NamespacedName) -> None:
        """Drop a pod that has no endpoint any more; an unknown pod is ignored."""
        self._mark_dirty(self._desired.remove(pod_key))

    def regroup(self, pod_key: NamespacedName, zone: str) -> None:
        """Assign a pod to the slices labelled for a zone, or with "" to those for all zones."""
        self._mark_dirty(self._desired.regroup(pod_key, zone))

    @property
    def slices(self) -> tuple[EndpointSlice, ...]:
        """The slices as last observed, in the order of their names."""
        return tuple([self._slices[name].endpoint_slice for name in sorted(self._slices)])

    @property
    def errors(self) -> tuple[str, ...]:
        """Why pods were skipped, in the order of their names."""
        return self._desired.errors()

    @property
    def is_divided(self) -> bool:
        """Whether a slice of the Service, as observed, is labelled for one zone."""
        return any(observed.owned and observed.group.zone for observed in self._slices.values())

    def endpoints(self) -> Iterator[tuple[NamespacedName, Endpoint, str]]:
        """Yield each pod with an endpoint, the endpoint, and the zone that it is assigned to."""
        return self._desired.endpoints()

    def endpoint(self, pod_key: NamespacedName) -> Endpoint | None:
        """Return the desired endpoint of a pod, or None."""
        return self._desired.endpoint(pod_key)

    def grouped(self) -> frozenset[NamespacedName]:
        """Return the pods that are assigned to slices labelled for a zone."""
        return self._desired.grouped()

    def written_zone(self, pod_key: NamespacedName) -> str:
        """Return the zone that the observed slice of a pod is labelled for; "" for all or none."""
        identity = self._desired.endpoint_id(pod_key)
        return "" if identity is None else self._observed.zone_of(identity)

    def plan(
        self, *, max_endpoints: int = 100, locate: Callable[[Endpoint], str] = locate_by_zone
    ) -> SlicePlan:
        """Return the writes that put every desired endpoint into exactly one slice.

        Without a desired endpoint this deletes all slices; `add_placeholder` then adds one.
        `locate` returns the home group of an endpoint, for the count of reallocations.
        """
        delete: list[EndpointSlice] = []
        updating: dict[str, tuple[Endpoint, ...]] = {}
        unchanged: dict[str, tuple[Endpoint, ...]] = {}
        removed = 0
        for name in sorted(self._slices):
            observed = self._slices[name]
            if not observed.owned or not observed.group.is_needed:
                delete.append(observed.endpoint_slice)
                continue
            verdict = observed.verdict
            if verdict is None or observed.dirty:
                verdict = observed.verdict = self._judge(name, observed)
            removed += verdict.removed
            if verdict.changed and not verdict.kept:
                delete.append(observed.endpoint_slice)
            elif verdict.changed or (observed.labels or self._labels(observed))[1]:
                updating[name] = verdict.kept
            else:
                unchanged[name] = verdict.kept
        added = reallocated = 0
        create: list[EndpointSlice] = []
        for group, identities in self._endpoints_without_slice():
            added += len(identities)
            reallocated += sum(
                [
                    self._observed.is_reallocated(identity, group.zone, locate)
                    for identity in identities
                ]
            )
            start = 0
            for name, count in pack(
                len(identities),
                updating=self._sizes(updating, group),
                unchanged=self._sizes(unchanged, group),
                max_endpoints=max_endpoints,
            ):
                chosen = [
                    self._desired_by_id[identity] for identity in identities[start : start + count]
                ]
                start += count
                endpoints = tuple([grouped.endpoint for grouped in chosen])
                if not name:
                    create.append(self._new_slice(chosen[0], endpoints))
                elif name in updating:
                    updating[name] += endpoints
                else:
                    updating[name] = unchanged.pop(name) + endpoints
        return SlicePlan(
            create=tuple(create),
            update=tuple([self._rewritten(name, updating[name]) for name in sorted(updating)]),
            delete=tuple(delete),
            unchanged=tuple([self._slices[name].endpoint_slice for name in unchanged]),
            added=added,
            removed=removed,
            reallocated=reallocated,
        )

    def count_rehinted(self, hinted: SliceSet) -> int:
        """Return how many endpoints of the last plan have other hints than those written.

        New endpoints do not count.
        """
        if not self._slices:
            return 0
        count = 0
        for endpoint_slice in (*hinted.update, *hinted.create):
            observed = self._slices.get(endpoint_slice.metadata.name)
            # NB: endpoints that stay come first in a slice, in its order, with the hints they had.
            kept = () if observed is None or observed.verdict is None else observed.verdict.kept
            for old, new in zip(kept, endpoint_slice.endpoints, strict=False):
                if old.hints is not new.hints and old.hints != new.hints:
                    count += 1
            for new in endpoint_slice.endpoints[len(kept) :]:
                written = self._observed.written_endpoint(endpoint_id(new))
                if written is not None and written.hints != new.hints:
                    count += 1
        return count

    def _mark_dirty(self, identities: Iterable[EndpointId]) -> None:
        """Have the next plan examine these endpoints and every slice that holds one of them."""
        for identity in identities:
            if identity in self._desired_by_id:
                self._unsettled.add(identity)
            for name in self._observed.slices_of(identity):
                self._slices[name].dirty.add(identity)

    def _judge(self, name: str, observed: ObservedSlice) -> SliceVerdict:
        if observed.verdict is None or not self._judge_dirty(name, observed):
            observed.kept = {}
            observed.differing = set()
            for identity in observed.entries:
                endpoint = self._staying_endpoint(name, observed, identity)
                if endpoint is not None:
                    observed.kept[identity] = endpoint
        observed.dirty.clear()
        removed = len(observed.endpoint_slice.endpoints) - len(observed.kept)
        return SliceVerdict(
            tuple(observed.kept.values()), removed, bool(observed.differing) or removed > 0
        )

    def _judge_dirty(self, name: str, observed: ObservedSlice) -> bool:
        """Judge the dirty endpoints; return False if that changes which endpoints stay."""
        for identity in observed.dirty:
            endpoint = self._staying_endpoint(name, observed, identity)
            if (endpoint is None) == (identity in observed.kept):
                return False
            if endpoint is not None:
                observed.kept[identity] = endpoint
        return True

    def _staying_endpoint(
        self, name: str, observed: ObservedSlice, identity: EndpointId
    ) -> Endpoint | None:
        """Return the desired form of an endpoint of a slice; None if it must leave the slice."""
        observed.differing.discard(identity)
        grouped = self._desired_by_id.get(identity)
        if grouped is None or grouped.group is not observed.group:
            return None
        slices = self._observed
        if (
            len(slices.slices_of(identity)) > 1
            and slices.staying_slice(identity, observed.group) != name
        ):
            return None
        written, desired = observed.entries[identity], grouped.endpoint
        if not same_beyond_id(desired, written):
            observed.differing.add(identity)
        # The written hints stay: heuristics change as few of them as they can.
        return with_hints(desired, written.hints)

    def _endpoints_without_slice(self) -> list[tuple[Group, list[EndpointId]]]:
        """Return the desired endpoints without a slice by group, sorted by identity."""
        without_slice: dict[Group, list[EndpointId]] = {}
        unsettled: set[EndpointId] = set()
        for identity in self._unsettled:
            grouped = self._desired_by_id.get(identity)
            if grouped is not None and not self._observed.staying_slice(identity, grouped.group):
                without_slice.setdefault(grouped.group, []).append(identity)
                unsettled.add(identity)
        # NB: a set that was once large stays slow to iterate, so a new set replaces it.
        self._unsettled = unsettled
        for identities in without_slice.values():
            identities.sort()
        return sorted(without_slice.items(), key=lambda item: (item[0].port_key, item[0].zone))

    def _sizes(self, slices: Mapping[str, tuple[Endpoint, ...]], group: Group) -> dict[str, int]:
        return {
            name: len(endpoints)
            for name, endpoints in slices.items()
            if self._slices[name].group is group
        }

    def _labels(self, observed: ObservedSlice) -> tuple[dict[str, str], bool]:
        if observed.labels is None:
            observed.labels = slice_labels(
                self._service, observed.endpoint_slice.metadata.labels, managed_by=self._managed_by
            )
        return observed.labels

    def _new_slice(
        self, grouped: GroupedEndpoint, endpoints: tuple[Endpoint, ...]
    ) -> EndpointSlice:
        return new_slice(
            self._service,
            address_type=self._address_type,
            ports=grouped.ports,
            endpoints=endpoints,
            labels_extra=group_labels(grouped.group.zone),
            managed_by=self._managed_by,
        )

    def _rewritten(self, name: str, endpoints: tuple[Endpoint, ...]) -> EndpointSlice:
        observed = self._slices[name]
        labels, _ = self._labels(observed)
        metadata = observed.endpoint_slice.metadata
        if metadata.labels != labels:
            metadata = replace(metadata, labels=labels)
        return replace(observed.endpoint_slice, metadata=metadata, endpoints=endpoints)
