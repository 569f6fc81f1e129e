"""What a test sees of a cluster: hints, groups and conditions of endpoints in short words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.well_known import FOR_ZONE_LABEL
from keepclose.reconcile.settings import ControllerSettings
from keepclose.slices.settings import PlannerSettings
from support.controllers import QUICK, World

POST, PUT, DELETE = (f"{method} endpointslices" for method in ("POST", "PUT", "DELETE"))
STATUS = "PATCH services/status"
RecordProperty = Callable[[str, object], None]


def quick(gates: FeatureGates, **plan: Any) -> ControllerSettings:
    """Return settings with these gates, without delays."""
    return msgspec.structs.replace(QUICK, plan=PlannerSettings(gates=gates, **plan))


def hint_of(endpoint: Endpoint) -> str:
    """Return an endpoint's hints, as in "zone-a", "zone-a on n1", "on n1" or "none"."""
    if endpoint.hints is None:
        return "none"
    zones = ",".join(one.name for one in endpoint.hints.for_zones)
    nodes = ",".join(one.name for one in endpoint.hints.for_nodes)
    return f"{zones} on {nodes}".strip() if nodes else zones or "empty"


def hints(slices: Iterable[EndpointSlice]) -> dict[str, str]:
    """Return the hints of all endpoints by address, each of which must be there once."""
    found: dict[str, str] = {}
    for piece in slices:
        for endpoint in piece.endpoints:
            (address,) = endpoint.addresses
            assert address not in found
            found[address] = hint_of(endpoint)
    return dict(sorted(found.items()))


def groups(slices: Iterable[EndpointSlice]) -> dict[str, str]:
    """Return by address the zone that the slice holding it is for; "" is everybody."""
    found: dict[str, str] = {}
    for piece in slices:
        for endpoint in piece.endpoints:
            (address,) = endpoint.addresses
            assert address not in found
            assert endpoint.hints is None
            found[address] = piece.metadata.labels.get(FOR_ZONE_LABEL, "")
    return found


def states(slices: Iterable[EndpointSlice]) -> dict[str, str]:
    """Return which of the conditions ready, serving and terminating each address has."""
    return {
        endpoint.addresses[0]: " ".join(
            name
            for name in ("ready", "serving", "terminating")
            if getattr(endpoint.conditions, name)
        )
        for piece in slices
        for endpoint in piece.endpoints
    }


async def conditions(cluster: World, service: str = "web") -> dict[str, tuple[str, str, str]]:
    """Return status, reason and message of a Service's conditions by type."""
    found = await cluster.conditions(service)
    assert all(one.last_transition_time for one in found)
    return {one.type: (one.status, one.reason, one.message) for one in found}


class Churn:
    """Counts what changes cost: slices written, and endpoints that changed their group."""

    def __init__(self, cluster: World) -> None:
        self._cluster = cluster
        self._groups: dict[str, str] = {}
        self.total: Counter[str] = Counter()

    async def step(self, name: str) -> tuple[dict[str, int], list[str], int]:
        """Return group sizes, writes since the last step and how many endpoints moved; print."""
        new = groups(await self._cluster.slices())
        moved = sum(new[one] != old for one, old in self._groups.items() if one in new)
        self._groups = new
        writes = sorted(self._cluster.wire.take())
        sizes = dict(sorted(Counter(new.values()).items()))
        self.total.update(moved=moved, writes=len(writes))
        print(f"{name}: {sizes}, {moved} moved, {len(writes)} writes")  # noqa: T201 - asked for
        return sizes, writes, moved
