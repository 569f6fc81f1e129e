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

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from keepclose.model.endpointslice import Endpoint, EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service import Service
from keepclose.model.wellknown import ENDPOINTSLICE_CONTROLLER, FOR_ZONE_LABEL
from keepclose.routing.facts import with_hints
from keepclose.slices.demand import Demand, Wanted
from keepclose.slices.endpoints import Desired, EndpointId, same_beyond_id
from keepclose.slices.holdings import Group, GroupTable, Held, Holdings, Verdict
from keepclose.slices.labels import is_owned_by, new_slice, slice_labels
from keepclose.slices.packing import SlicePlan, pack

__all__ = ["Placement", "SlicePlan"]


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

    def plan(self, *, max_endpoints: int = 100) -> SlicePlan:
        """Return the writes that put every wanted endpoint into exactly one slice.

        Without any wanted endpoint this deletes all slices; a placeholder is added elsewhere.
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
            if verdict is None:
                verdict = held.verdict = self._judge(name, held)
            removed += verdict.removed
            if verdict.changed and not verdict.kept:
                delete.append(held.piece)
            elif verdict.changed or self._labels(held)[1]:
                updating[name] = verdict.kept
            else:
                unchanged[name] = verdict.kept
        added = 0
        create: list[EndpointSlice] = []
        for group, identities in self._leftovers():
            added += len(identities)
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
        )

    def _touch(self, identities: Iterable[EndpointId]) -> None:
        """Have the next plan look at these endpoints and at every slice that holds one."""
        for identity in identities:
            if identity in self._wanted:
                self._unsettled.add(identity)
            for name in self._holdings.seats(identity):
                self._slices[name].verdict = None

    def _judge(self, name: str, held: Held) -> Verdict:
        kept: list[Endpoint] = []
        changed = False
        group = held.group
        holdings = self._holdings
        for identity, present in held.entries.items():
            wanted = self._wanted.get(identity)
            if wanted is None or wanted.group is not group:
                continue
            if len(holdings.seats(identity)) > 1 and holdings.keeper(identity, group) != name:
                continue
            fresh = wanted.endpoint
            # Present hints travel along: heuristics change as few of them as they can.
            kept.append(with_hints(fresh, present.hints))
            changed = changed or not same_beyond_id(fresh, present)
        removed = len(held.piece.endpoints) - len(kept)
        return Verdict(tuple(kept), removed, changed or removed > 0)

    def _leftovers(self) -> list[tuple[Group, list[EndpointId]]]:
        """Return the wanted endpoints without a slice, by group, each in order of identity."""
        homeless: dict[Group, list[EndpointId]] = {}
        settled: list[EndpointId] = []
        for identity in self._unsettled:
            wanted = self._wanted.get(identity)
            if wanted is None or self._holdings.keeper(identity, wanted.group):
                settled.append(identity)
            else:
                homeless.setdefault(wanted.group, []).append(identity)
        self._unsettled.difference_update(settled)
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
        zone = wanted.group.zone
        return new_slice(
            self._service,
            address_type=self._address_type,
            ports=wanted.ports,
            endpoints=endpoints,
            labels_extra={FOR_ZONE_LABEL: zone} if zone else {},
            managed_by=self._managed_by,
        )

    def _rewritten(self, name: str, endpoints: tuple[Endpoint, ...]) -> EndpointSlice:
        held = self._slices[name]
        labels, _ = self._labels(held)
        metadata = held.piece.metadata
        if metadata.labels != labels:
            metadata = replace(metadata, labels=labels)
        return replace(held.piece, metadata=metadata, endpoints=endpoints)
