"""Where the clients of Services are: how much traffic each node sends, relative to the others.

Figures of advice and of `keepclose plan` are sums over all nodes. Nodes of one zone and region use
the same endpoints, unless the selection names them (`find_distinguished_nodes`), so they are summed
up once here, and one selection serves each group. Nothing here decides which endpoints are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from keepclose.routing.port_endpoints import NodeView

_Place = tuple[str, str]
"""A zone and a region."""


class ClientGroup(NamedTuple):
    """Nodes that use the same endpoints, by one of them, and how much traffic they send."""

    view: NodeView
    weight: float
    is_single: bool
    """Whether the group is this node alone."""


class ClientNodes:
    """The nodes that clients run on, with the traffic that each of them sends."""

    def __init__(
        self, views: Iterable[NodeView], weights: Mapping[str, float] | None = None
    ) -> None:
        """Take the nodes; without weights each sends one unit. Nodes that send none are dropped."""
        self._views: dict[str, NodeView] = {}
        self._weights: dict[str, float] = {}
        self._places: dict[_Place, list[str]] = {}
        self._sums: dict[_Place, float] = {}
        for view in views:
            weight = 1.0 if weights is None else weights.get(view.name, 0.0)
            if weight <= 0.0:
                continue
            self._views[view.name] = view
            self._weights[view.name] = weight
            place = view.zone, view.region
            self._places.setdefault(place, []).append(view.name)
            self._sums[place] = self._sums.get(place, 0.0) + weight
        self.total = sum(self._sums.values())

    def __len__(self) -> int:
        return len(self._views)

    @property
    def names(self) -> Iterable[str]:
        """The names of the nodes."""
        return self._views.keys()

    def weight_of(self, node: str, *, beside: NodeView | None = None) -> float:
        """Return the traffic of a node; 0 for one without clients, or of another zone or region."""
        view = self._views.get(node)
        if view is None:
            return 0.0
        if beside is not None and (view.zone, view.region) != (beside.zone, beside.region):
            return 0.0
        return self._weights[node]

    def by_zone(self) -> dict[str, float]:
        """Return the traffic of each zone, "" for nodes without one, in the order of names."""
        zones: dict[str, float] = {}
        for (zone, _), weight in sorted(self._sums.items()):
            zones[zone] = zones.get(zone, 0.0) + weight
        return zones

    def groups(self, apart: frozenset[str] | None) -> Iterator[ClientGroup]:
        """Yield the nodes in groups; those named in `apart` are alone, with None all nodes are."""
        if apart is None:
            apart = frozenset(self._views)
        alone: dict[_Place, list[str]] = {}
        # NB: sums of floats depend on their order, and the order of a set on the process.
        for name in sorted(apart):
            view = self._views.get(name)
            if view is not None:
                alone.setdefault((view.zone, view.region), []).append(name)
                yield ClientGroup(view, self._weights[name], is_single=True)
        for place, names in self._places.items():
            singles = alone.get(place, ())
            if len(singles) < len(names):
                first = next(name for name in names if name not in apart)
                rest = self._sums[place] - sum([self._weights[name] for name in singles])
                is_single = len(names) - len(singles) == 1
                weight = self._weights[first] if is_single else max(rest, 0.0)
                yield ClientGroup(self._views[first], weight, is_single)
