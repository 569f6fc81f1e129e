"""Which endpoint sits in which slice: the smallest set of writes from what is to what should be.

Follows the EndpointSlice controller. Endpoints stay where they are, freshly built, with the hints
they have; what is left over is packed. An endpoint that sits in two slices stays in the one whose
name comes first. Slices of an older Service of the same name, and slices whose ports nobody wants,
go.

A `Placement` is kept between syncs and looks again only at slices that something happened to, so
one changed pod costs one slice. A fresh one that is told everything gives the same plan. Planning
alters nothing that was observed or wanted.
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
from keepclose.slices.desired import Demand, Wanted
from keepclose.slices.endpoints import Desired, EndpointId, endpoint_id, same_beyond_id
from keepclose.slices.observed import Group, GroupTable, Held, Holdings, SliceVerdict
from keepclose.slices.packing import SlicePlan, pack
from keepclose.slices.slice_metadata import is_owned_by, new_slice, slice_labels

__all__ = ["Placement", "SlicePlan"]


def locate_by_zone(endpoint: Endpoint) -> str:
    """Return the group of an endpoint where groups are zones; "" without a zone."""
    return endpoint.zone or ""


class Placement:
    """The endpoints of one Service and address type, as they are and as they should be."""

    def __init__(
        self, service: Service, address_type: str, *, managed_by: str = ENDPOINTSLICE_CONTROLLER
    ) -> None:
        groups = GroupTable()
        self._service = service
        self._address_type = address_type
        self._managed_by = managed_by
        self._holdings = Holdings(groups)
        self._slices = self._holdings.by_name
        self._demand = Demand(groups)
        self._wanted = self._demand.wanted
        # Identities that may have no slice to stay in; a superset, thinned out by every plan.
        self._unsettled: set[EndpointId] = set()

    def serve(self, service: Service) -> None:
        """Take a new version of the Service.

        Endpoints depend on the Service too: the caller wants them anew when its ports changed.
        """
        self._service = service
        for held in self._slices.values():
            held.labels = None
            owned = is_owned_by(held.piece, service)
            if owned != held.owned:
                held.owned = owned
                self._touch(held.entries)

    def observe(self, piece: EndpointSlice) -> None:
        """Take a slice as it is now, new or changed; one that is being deleted is forgotten."""
        name = piece.metadata.name
        old = self._slices.get(name)
        if old is not None:
            if old.piece is piece:
                return
            if piece.metadata.deletion_timestamp is None:
                changed = old.become(piece)
                if changed is not None:
                    self._touch(changed)
                    return
            self.forget(name)
        if piece.metadata.deletion_timestamp is None:
            self._touch(self._holdings.add(piece, owned=is_owned_by(piece, self._service)))

    def forget(self, name: str) -> None:
        """Drop a slice that is gone; a name that was never observed does no harm."""
        self._touch(self._holdings.remove(name))

    def want(self, source: NamespacedName, desired: Desired) -> None:
        """Take what a pod asks for; it keeps the zone it was grouped under before."""
        self._touch(self._demand.put(source, desired))

    def unwant(self, source: NamespacedName) -> None:
        """Drop a pod that asks for nothing any more; an unknown one does no harm."""
        self._touch(self._demand.remove(source))

    def regroup(self, source: NamespacedName, zone: str) -> None:
        """Put a pod into the slices meant for a zone, or with "" into those meant for all."""
        self._touch(self._demand.regroup(source, zone))

    @property
    def slices(self) -> tuple[EndpointSlice, ...]:
        """The slices as last observed, by name."""
        return tuple([self._slices[name].piece for name in sorted(self._slices)])

    @property
    def errors(self) -> tuple[str, ...]:
        """Why pods were left out, in the order of their names."""
        return self._demand.errors()

    @property
    def is_divided(self) -> bool:
        """Whether some slice of the Service, as written, is meant for one zone only."""
        return any(held.owned and held.group.zone for held in self._slices.values())

    def wanted(self) -> Iterator[tuple[NamespacedName, Endpoint, str]]:
        """Yield each pod that has an endpoint, the endpoint, and the zone it is grouped under."""
        return self._demand.endpoints()

    def endpoint(self, source: NamespacedName) -> Endpoint | None:
        """Return the endpoint that a pod asks for, or None."""
        return self._demand.endpoint(source)

    def grouped(self) -> frozenset[NamespacedName]:
        """Return the pods that were put into slices meant for a zone."""
        return self._demand.grouped()

    def written_zone(self, source: NamespacedName) -> str:
        """Return the zone that the slice now holding a pod is meant for; "" for all or no slice."""
        identity = self._demand.endpoint_id(source)
        return "" if identity is None else self._holdings.zone_of(identity)

    def plan(
        self, *, max_endpoints: int = 100, locate: Callable[[Endpoint], str] = locate_by_zone
    ) -> SlicePlan:
        """Return the writes that put every wanted endpoint into exactly one slice.

        Without any wanted endpoint this deletes all slices; a placeholder is added elsewhere.
        `locate` returns the group that an endpoint is at home in, for the count of reallocations.
        """
        delete: list[EndpointSlice] = []
        updating: dict[str, tuple[Endpoint, ...]] = {}
        unchanged: dict[str, tuple[Endpoint, ...]] = {}
        removed = 0
        for name in sorted(self._slices):
            held = self._slices[name]
            if not held.owned or not held.group.is_asked_for:
                delete.append(held.piece)
                continue
            verdict = held.verdict
            if verdict is None or held.doubts:
                verdict = held.verdict = self._judge(name, held)
            removed += verdict.removed
            if verdict.changed and not verdict.kept:
                delete.append(held.piece)
            elif verdict.changed or (held.labels or self._labels(held))[1]:
                updating[name] = verdict.kept
            else:
                unchanged[name] = verdict.kept
        added = reallocated = 0
        create: list[EndpointSlice] = []
        for group, identities in self._leftovers():
            added += len(identities)
            reallocated += sum(
                [
                    self._holdings.is_reallocated(identity, group.zone, locate)
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
                chosen = [self._wanted[identity] for identity in identities[start : start + count]]
                start += count
                endpoints = tuple([wanted.endpoint for wanted in chosen])
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
            unchanged=tuple([self._slices[name].piece for name in unchanged]),
            added=added,
            removed=removed,
            reallocated=reallocated,
        )

    def count_rehinted(self, hinted: SliceSet) -> int:
        """Return how many endpoints of the last plan get other hints than were written.

        New endpoints do not count.
        """
        if not self._slices:
            return 0
        number = 0
        for piece in (*hinted.update, *hinted.create):
            held = self._slices.get(piece.metadata.name)
            # NB: what stays in a slice stands first, in its order, with the hints it had.
            kept = () if held is None or held.verdict is None else held.verdict.kept
            for old, new in zip(kept, piece.endpoints, strict=False):
                if old.hints is not new.hints and old.hints != new.hints:
                    number += 1
            for new in piece.endpoints[len(kept) :]:
                present = self._holdings.present(endpoint_id(new))
                if present is not None and present.hints != new.hints:
                    number += 1
        return number

    def _touch(self, identities: Iterable[EndpointId]) -> None:
        """Have the next plan look at these endpoints and at every slice that holds one."""
        for identity in identities:
            if identity in self._wanted:
                self._unsettled.add(identity)
            for name in self._holdings.seats(identity):
                self._slices[name].doubts.add(identity)

    def _judge(self, name: str, held: Held) -> SliceVerdict:
        if held.verdict is None or not self._amend(name, held):
            held.kept = {}
            held.differing = set()
            for identity in held.entries:
                endpoint = self._staying(name, held, identity)
                if endpoint is not None:
                    held.kept[identity] = endpoint
        held.doubts.clear()
        removed = len(held.piece.endpoints) - len(held.kept)
        return SliceVerdict(tuple(held.kept.values()), removed, bool(held.differing) or removed > 0)

    def _amend(self, name: str, held: Held) -> bool:
        """Judge the endpoints in doubt; return False when that changes who stays at all."""
        for identity in held.doubts:
            endpoint = self._staying(name, held, identity)
            if (endpoint is None) == (identity in held.kept):
                return False
            if endpoint is not None:
                held.kept[identity] = endpoint
        return True

    def _staying(self, name: str, held: Held, identity: EndpointId) -> Endpoint | None:
        """Return an endpoint of a slice as it should be, or None when it has to go."""
        held.differing.discard(identity)
        wanted = self._wanted.get(identity)
        if wanted is None or wanted.group is not held.group:
            return None
        holdings = self._holdings
        if len(holdings.seats(identity)) > 1 and holdings.keeper(identity, held.group) != name:
            return None
        present, fresh = held.entries[identity], wanted.endpoint
        if not same_beyond_id(fresh, present):
            held.differing.add(identity)
        # Present hints travel along: heuristics change as few of them as they can.
        return with_hints(fresh, present.hints)

    def _leftovers(self) -> list[tuple[Group, list[EndpointId]]]:
        """Return the wanted endpoints without a slice, by group, each in order of identity."""
        homeless: dict[Group, list[EndpointId]] = {}
        unsettled: set[EndpointId] = set()
        for identity in self._unsettled:
            wanted = self._wanted.get(identity)
            if wanted is not None and not self._holdings.keeper(identity, wanted.group):
                homeless.setdefault(wanted.group, []).append(identity)
                unsettled.add(identity)
        # NB: a set that was large once stays slow to go through, so it is made anew.
        self._unsettled = unsettled
        for identities in homeless.values():
            identities.sort()
        return sorted(homeless.items(), key=lambda item: (item[0].port_key, item[0].zone))

    def _sizes(self, slices: Mapping[str, tuple[Endpoint, ...]], group: Group) -> dict[str, int]:
        return {
            name: len(endpoints)
            for name, endpoints in slices.items()
            if self._slices[name].group is group
        }

    def _labels(self, held: Held) -> tuple[dict[str, str], bool]:
        if held.labels is None:
            held.labels = slice_labels(
                self._service, held.piece.metadata.labels, managed_by=self._managed_by
            )
        return held.labels

    def _new_slice(self, wanted: Wanted, endpoints: tuple[Endpoint, ...]) -> EndpointSlice:
        return new_slice(
            self._service,
            address_type=self._address_type,
            ports=wanted.ports,
            endpoints=endpoints,
            labels_extra=group_labels(wanted.group.zone),
            managed_by=self._managed_by,
        )

    def _rewritten(self, name: str, endpoints: tuple[Endpoint, ...]) -> EndpointSlice:
        held = self._slices[name]
        labels, _ = self._labels(held)
        metadata = held.piece.metadata
        if metadata.labels != labels:
            metadata = replace(metadata, labels=labels)
        return replace(held.piece, metadata=metadata, endpoints=endpoints)
