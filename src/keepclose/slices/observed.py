"""The slices as they were last observed, and where in them each endpoint sits.

A group is a set of ports together with the zone or region that its slices are meant for ("" for
all, the usual case); an endpoint can only stay in a slice of its own group. Holdings record facts
and answer who holds what; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.routing.subsets import group_of_labels
from keepclose.slices.endpoints import EndpointId, PortSetKey, endpoint_id, port_key


class Group:
    """Slices and endpoints that go together; there is one object per group, compared by `is`."""

    __slots__ = ("pods", "port_key", "wanted", "zone")

    def __init__(self, key: PortSetKey, zone: str) -> None:
        self.port_key = key
        self.zone = zone
        self.wanted = 0
        # NB: pods without an address of the family count too; their ports keep slices alive.
        self.pods = 0

    @property
    def is_asked_for(self) -> bool:
        """Whether slices of the group have a reason to exist."""
        return self.wanted > 0 or self.pods > 0


class GroupTable:
    """All groups of one placement, made when first named."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[tuple[PortSetKey, str], Group] = {}

    def get(self, key: PortSetKey, zone: str) -> Group:
        """Return the group of these ports and this zone."""
        group = self._groups.get((key, zone))
        if group is None:
            group = self._groups[key, zone] = Group(key, zone)
        return group


class SliceVerdict(NamedTuple):
    """What of a slice stays, in its order, and whether that differs from what it holds."""

    kept: tuple[Endpoint, ...]
    removed: int
    changed: bool


class Held:
    """A slice as it was last observed, and what was worked out about it since.

    `verdict` and `labels` are None until somebody works them out anew. `kept` and `differing` are
    what a verdict was made from; it holds but for the endpoints in `doubts`.
    """

    __slots__ = (
        "differing",
        "doubts",
        "entries",
        "group",
        "kept",
        "labels",
        "owned",
        "piece",
        "verdict",
    )

    def __init__(self, piece: EndpointSlice, group: Group, *, owned: bool) -> None:
        self.piece = piece
        self.group = group
        self.owned = owned
        # Of an endpoint that stands twice in the slice the first counts.
        self.entries: dict[EndpointId, Endpoint] = {}
        for endpoint in piece.endpoints:
            self.entries.setdefault(endpoint_id(endpoint), endpoint)
        self.kept: dict[EndpointId, Endpoint] = {}
        self.differing: set[EndpointId] = set()
        self.doubts: set[EndpointId] = set()
        self.verdict: SliceVerdict | None = None
        self.labels: tuple[dict[str, str], bool] | None = None

    def become(self, piece: EndpointSlice) -> list[EndpointId] | None:
        """Take another version of the slice; return the endpoints that look different.

        None, and nothing done, when more than their looks has changed.
        """
        old = self.piece
        meta, new_meta = old.metadata, piece.metadata
        count = len(piece.endpoints)
        if (
            len(old.endpoints) != count
            or len(self.entries) != count
            or old.ports != piece.ports
            or meta.labels != new_meta.labels
            or meta.owner_references != new_meta.owner_references
        ):
            return None
        changed: dict[EndpointId, Endpoint] = {}
        for identity, before, after in zip(
            self.entries, old.endpoints, piece.endpoints, strict=True
        ):
            if before is not after and before != after:
                if endpoint_id(after) != identity:
                    return None
                changed[identity] = after
        self.piece = piece
        self.entries.update(changed)
        return list(changed)


class Holdings:
    """All observed slices of one Service and address type."""

    __slots__ = ("_groups", "_seats", "by_name")

    def __init__(self, groups: GroupTable) -> None:
        self.by_name: dict[str, Held] = {}
        self._groups = groups
        self._seats: dict[EndpointId, tuple[str, ...]] = {}

    def add(self, piece: EndpointSlice, *, owned: bool) -> list[EndpointId]:
        """Take a slice whose name is free; return the endpoints that now sit in several slices."""
        meta = piece.metadata
        name = meta.name
        group = self._groups.get(port_key(piece.ports), group_of_labels(meta.labels))
        held = self.by_name[name] = Held(piece, group, owned=owned)
        seats = self._seats
        shared: list[EndpointId] = []
        for identity in held.entries:
            others = seats.get(identity)
            if others is None:
                seats[identity] = (name,)
            else:
                seats[identity] = (*others, name)
                shared.append(identity)
        return shared

    def remove(self, name: str) -> tuple[EndpointId, ...]:
        """Drop a slice; return the endpoints that it held, none for an unknown name."""
        held = self.by_name.pop(name, None)
        if held is None:
            return ()
        seats = self._seats
        for identity in held.entries:
            others = seats.pop(identity)
            if len(others) > 1:
                seats[identity] = tuple([seat for seat in others if seat != name])
        return tuple(held.entries)

    def seats(self, identity: EndpointId) -> tuple[str, ...]:
        """Return the names of all slices that hold the endpoint."""
        return self._seats.get(identity, ())

    def keeper(self, identity: EndpointId, group: Group) -> str | None:
        """Return the one slice of the group in which the endpoint may stay, or None."""
        keeper = None
        for name in self._seats.get(identity, ()):
            held = self.by_name[name]
            if held.group is group and held.owned and (keeper is None or name < keeper):
                keeper = name
        return keeper

    def present(self, identity: EndpointId) -> Endpoint | None:
        """Return the endpoint as it was last written to a slice of the Service, or None."""
        names = [name for name in self._seats.get(identity, ()) if self.by_name[name].owned]
        return self.by_name[min(names)].entries[identity] if names else None

    def is_reallocated(
        self, identity: EndpointId, zone: str, locate: Callable[[Endpoint], str]
    ) -> bool:
        """Return whether the endpoint was another zone's and now becomes that of the given zone.

        A slice meant for all zones leaves an endpoint to the zone that it is in, so that dividing a
        Service moves only what goes to a foreign zone; a slice for all takes no endpoint away from
        any zone. `locate` finds the zone, or the region where a Service is divided by regions.
        """
        owned = [held for name in self.seats(identity) if (held := self.by_name[name]).owned]
        if not zone or not owned:
            return False
        return all((held.group.zone or locate(held.entries[identity])) != zone for held in owned)

    def zone_of(self, identity: EndpointId) -> str:
        """Return the zone that the slice holding the endpoint is meant for; "" if none holds it."""
        owned = [name for name in self._seats.get(identity, ()) if self.by_name[name].owned]
        return self.by_name[min(owned)].group.zone if owned else ""
