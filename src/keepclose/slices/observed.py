"""The slices as last observed from the API, and which slice holds which endpoint.

A group is a set of ports together with the zone or region that its slices are labelled for ("" for
all zones, the usual case). An endpoint can only stay in a slice of its own group. This module
records facts and answers lookups; it never decides which endpoint moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.routing.subsets import group_of_labels
from keepclose.slices.endpoints import EndpointId, PortSetKey, endpoint_id, port_key


class Group:
    """Slices and endpoints with the same ports and zone; one object each, compared by `is`."""

    __slots__ = ("desired", "pods", "port_key", "zone")

    def __init__(self, key: PortSetKey, zone: str) -> None:
        self.port_key = key
        self.zone = zone
        self.desired = 0
        # NB: pods without an address of the family count too: their ports keep empty slices.
        self.pods = 0

    @property
    def is_needed(self) -> bool:
        """Whether slices of the group have a reason to exist."""
        return self.desired > 0 or self.pods > 0


class GroupTable:
    """All groups of one placement; each is created at its first lookup."""

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
    """The endpoints that stay in a slice, in its order, and whether the slice needs a write."""

    kept: tuple[Endpoint, ...]
    removed: int
    changed: bool


class ObservedSlice:
    """A slice as last observed, with results that `Placement` caches for it.

    `verdict` and `labels` are None until the next plan computes them. `kept` and `differing` are
    the basis of the verdict, which is valid except for the endpoints in `dirty`.
    """

    __slots__ = (
        "differing",
        "dirty",
        "endpoint_slice",
        "entries",
        "group",
        "kept",
        "labels",
        "owned",
        "verdict",
    )

    def __init__(self, endpoint_slice: EndpointSlice, group: Group, *, owned: bool) -> None:
        self.endpoint_slice = endpoint_slice
        self.group = group
        self.owned = owned
        # If the slice holds an endpoint twice, the first one counts.
        self.entries: dict[EndpointId, Endpoint] = {}
        for endpoint in endpoint_slice.endpoints:
            self.entries.setdefault(endpoint_id(endpoint), endpoint)
        self.kept: dict[EndpointId, Endpoint] = {}
        self.differing: set[EndpointId] = set()
        self.dirty: set[EndpointId] = set()
        self.verdict: SliceVerdict | None = None
        self.labels: tuple[dict[str, str], bool] | None = None

    def update(self, endpoint_slice: EndpointSlice) -> list[EndpointId] | None:
        """Update to another version of the slice; return the endpoints that changed in place.

        Returns None, and changes nothing, if ports, labels, owners or the set of endpoints changed.
        """
        old = self.endpoint_slice
        meta, new_meta = old.metadata, endpoint_slice.metadata
        count = len(endpoint_slice.endpoints)
        if (
            len(old.endpoints) != count
            or len(self.entries) != count
            or old.ports != endpoint_slice.ports
            or meta.labels != new_meta.labels
            or meta.owner_references != new_meta.owner_references
        ):
            return None
        changed: dict[EndpointId, Endpoint] = {}
        for identity, before, after in zip(
            self.entries, old.endpoints, endpoint_slice.endpoints, strict=True
        ):
            if before is not after and before != after:
                if endpoint_id(after) != identity:
                    return None
                changed[identity] = after
        self.endpoint_slice = endpoint_slice
        self.entries.update(changed)
        return list(changed)


class ObservedSlices:
    """The observed slices of one Service and address type, indexed by name and by endpoint."""

    __slots__ = ("_groups", "_slice_names", "by_name")

    def __init__(self, groups: GroupTable) -> None:
        self.by_name: dict[str, ObservedSlice] = {}
        self._groups = groups
        self._slice_names: dict[EndpointId, tuple[str, ...]] = {}

    def add(self, endpoint_slice: EndpointSlice, *, owned: bool) -> list[EndpointId]:
        """Add a slice under an unused name; return the endpoints that several slices now hold."""
        meta = endpoint_slice.metadata
        name = meta.name
        group = self._groups.get(port_key(endpoint_slice.ports), group_of_labels(meta.labels))
        held = self.by_name[name] = ObservedSlice(endpoint_slice, group, owned=owned)
        slice_names = self._slice_names
        shared: list[EndpointId] = []
        for identity in held.entries:
            holders = slice_names.get(identity)
            if holders is None:
                slice_names[identity] = (name,)
            else:
                slice_names[identity] = (*holders, name)
                shared.append(identity)
        return shared

    def remove(self, name: str) -> tuple[EndpointId, ...]:
        """Drop a slice; return the endpoints that it held, or () for an unknown name."""
        held = self.by_name.pop(name, None)
        if held is None:
            return ()
        slice_names = self._slice_names
        for identity in held.entries:
            holders = slice_names.pop(identity)
            if len(holders) > 1:
                slice_names[identity] = tuple([holder for holder in holders if holder != name])
        return tuple(held.entries)

    def slices_of(self, identity: EndpointId) -> tuple[str, ...]:
        """Return the names of all slices that hold the endpoint."""
        return self._slice_names.get(identity, ())

    def staying_slice(self, identity: EndpointId, group: Group) -> str | None:
        """Return the slice of the group in which the endpoint may stay, or None."""
        chosen = None
        for name in self._slice_names.get(identity, ()):
            held = self.by_name[name]
            if held.group is group and held.owned and (chosen is None or name < chosen):
                chosen = name
        return chosen

    def written_endpoint(self, identity: EndpointId) -> Endpoint | None:
        """Return the endpoint as it was last written to a slice of the Service, or None."""
        names = [name for name in self._slice_names.get(identity, ()) if self.by_name[name].owned]
        return self.by_name[min(names)].entries[identity] if names else None

    def is_reallocated(
        self, identity: EndpointId, zone: str, locate: Callable[[Endpoint], str]
    ) -> bool:
        """Return whether the endpoint served another zone and is now assigned to the given zone.

        An endpoint in a slice for all zones counts as one of the zone that it runs in, so dividing
        a Service reallocates only the endpoints that serve another zone. Going back to a slice for
        all zones reallocates none. `locate` returns the zone of an endpoint, or its region where
        the Service is divided by regions.
        """
        owned = [held for name in self.slices_of(identity) if (held := self.by_name[name]).owned]
        if not zone or not owned:
            return False
        return all((held.group.zone or locate(held.entries[identity])) != zone for held in owned)

    def zone_of(self, identity: EndpointId) -> str:
        """Return the zone that the slice of the endpoint is labelled for; "" for all or none."""
        owned = [name for name in self._slice_names.get(identity, ()) if self.by_name[name].owned]
        return self.by_name[min(owned)].group.zone if owned else ""
