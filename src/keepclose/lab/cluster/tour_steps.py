"""The steps of the tour: their changes, the endpoints expected afterwards, and their story.

Only data. A step is a list of commands that a user could type, the hints that the controller must
have written afterwards, and lines that are filled with measured values. The lab's scheduler decides
where the pods are: n1 n2 in zone-a, n3 n4 in zone-b, n5 n6 in zone-c, and five pods go to n1, n3,
n5, n2, n4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from keepclose.kube.requests import SERVICES, Kind
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import Gate
from keepclose.model.json_values import JsonObject

TOUR_NAMESPACE: Final = "default"
TOUR_SERVICE: Final = "demo-svc"
_DEPLOYMENT: Final = "demo"
_BALANCED: Final = "keepclose.dev/Balanced"
_DEPLOYMENTS: Final[Kind[JsonObject]] = Kind("apps", "v1", "deployments", "Deployment", True, dict)
A, B, C = "zone-a", "zone-b", "zone-c"


class HintedEndpoint(NamedTuple):
    """An endpoint with its hints, as in its slice."""

    pod: str
    node: str
    zone: str
    is_ready: bool
    for_zones: tuple[str, ...] = ()
    for_nodes: tuple[str, ...] = ()


def hinted_endpoints(slices: Sequence[EndpointSlice]) -> list[HintedEndpoint]:
    """Return the endpoints of all slices, by zone, node and pod."""
    endpoints = [
        HintedEndpoint(
            endpoint.target_ref.name if endpoint.target_ref else endpoint.addresses[0],
            endpoint.node_name or "",
            endpoint.zone or "",
            endpoint.is_ready,
            tuple(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else (),
            tuple(hint.name for hint in endpoint.hints.for_nodes) if endpoint.hints else (),
        )
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints
    ]
    return sorted(endpoints, key=lambda endpoint: (endpoint.zone, endpoint.node, endpoint.pod))


class ExpectedEndpoints(NamedTuple):
    """Where the pods must be after a step, and for which zones and nodes they are hinted."""

    pods: Mapping[str, int]
    """The number in each zone, all of them ready."""
    hinted: Mapping[str, int] = {}
    """The number hinted for each zone, each for one zone; empty for no hints."""
    by_node: bool = False
    """Whether each is hinted for its own node too."""

    def find_difference(self, endpoints: Sequence[HintedEndpoint]) -> str:
        """Return in a few words what is not as expected, or "" if all is."""
        unready = [endpoint.pod for endpoint in endpoints if not endpoint.is_ready]
        if unready:
            return f"{unready[0]} is not ready"
        pods = Counter(endpoint.zone for endpoint in endpoints)
        if pods != Counter(self.pods):
            return f"pods are in {_list(pods)}, not in {_list(self.pods)}"
        hinted = Counter(zone for endpoint in endpoints for zone in endpoint.for_zones)
        if hinted != Counter(self.hinted):
            return f"hints are for {_list(hinted)}, not for {_list(self.hinted)}"
        for endpoint in endpoints:
            expected = (endpoint.node,) if self.by_node else ()
            if endpoint.for_nodes != expected:
                hints = _names(endpoint.for_nodes)
                return f"{endpoint.pod} is hinted for {hints}, not for {_names(expected)}"
        return ""


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{zone} ({counts[zone]})" for zone in sorted(counts)) or "no zone"


def _names(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes) or "no node"


class ObjectPatch(NamedTuple):
    """A change of an object in the API."""

    kind: Kind[Any]
    name: str
    patch: JsonObject


class LabRequest(NamedTuple):
    """A request to the running lab."""

    do: str
    params: JsonObject


class TourChange(NamedTuple):
    """A command as a user would type it, and its action."""

    command: str
    action: ObjectPatch | LabRequest


def distribute(value: str | None) -> TourChange:
    """Return the change of the Service's trafficDistribution; None removes it."""
    text = "null" if value is None else f'"{value}"'
    return TourChange(
        f"kubectl patch service {TOUR_SERVICE} -p "
        f"""'{{"spec":{{"trafficDistribution":{text}}}}}'""",
        ObjectPatch(SERVICES, TOUR_SERVICE, {"spec": {"trafficDistribution": value}}),
    )


def _drain(node: str) -> TourChange:
    """Return the change that drains a node."""
    return TourChange(f"keepclose lab drain {node}", LabRequest("drain", {"name": node}))


def scale(replicas: int) -> TourChange:
    """Return the change of the Deployment's replicas."""
    return TourChange(
        f"kubectl scale deployment {_DEPLOYMENT} --replicas={replicas}",
        ObjectPatch(_DEPLOYMENTS, _DEPLOYMENT, {"spec": {"replicas": replicas}}),
    )


class TourStep(NamedTuple):
    """A step of the tour.

    The traffic after the changes of `first`, if there are any, is measured too but not shown. In
    `story` {reason} is why the Service has its strategy; {in_zone}, {on_node}, {failed}, {busiest}
    and {place} are figures of the traffic, {before} is how busy the busiest endpoint was after
    `first`, and {field} is the Service's trafficDistribution.
    """

    title: str
    changes: tuple[TourChange, ...]
    expected: ExpectedEndpoints
    story: tuple[str, ...]
    first: tuple[TourChange, ...] = ()
    first_expected: ExpectedEndpoints | None = None
    by_node: bool = False


_FIVE: Final = {A: 2, B: 2, C: 1}
_LOST: Final = {A: 3, B: 2}
_SIX: Final = {A: 3, B: 2, C: 1}
GATE_OFF: Final = f"{Gate.SERVICE_TRAFFIC_DISTRIBUTION}=false"

TOUR_STEPS: Final = (
    TourStep(
        "Default routing: any endpoint",
        (distribute(None),),
        ExpectedEndpoints(_FIVE),
        (
            "Why: {reason}.",
            "There are no hints, so every node gives each of the five pods an equal part.",
            "{in_zone} of the connections stay in their zone, by chance; all others cross zones.",
        ),
    ),
    TourStep(
        "PreferSameZone: endpoints of the own zone",
        (distribute("PreferSameZone"),),
        ExpectedEndpoints(_FIVE, hinted=_FIVE),
        (
            "Why: {reason}.",
            "Each endpoint is hinted for its zone, and nodes use those hinted for theirs.",
            "{in_zone} stay in their zone, but the pod of {place} has {busiest} its fair share.",
        ),
    ),
    TourStep(
        "PreferSameNode: the own node first, then the own zone",
        (distribute("PreferSameNode"),),
        ExpectedEndpoints(_FIVE, hinted=_FIVE, by_node=True),
        (
            "Why: {reason}.",
            "Hints name nodes too: {on_node} of the connections stay on the node of their client.",
            "No pod runs on n6, so n6 follows the hints for its zone, to the pod on n5.",
        ),
        by_node=True,
    ),
    TourStep(
        "A zone loses its pods",
        # The empty node is drained first, or the pod would only move there.
        (_drain("n6"), _drain("n5")),
        ExpectedEndpoints(_LOST, hinted=_LOST, by_node=True),
        (
            "Nothing is hinted for zone-c or its nodes any more, so they use all endpoints:",
            "to prefer is not to require, and {failed}. The other zones stay close.",
        ),
    ),
    TourStep(
        "Balanced: close, but no endpoint overloaded",
        (distribute(_BALANCED),),
        ExpectedEndpoints(_SIX, hinted={A: 2, B: 2, C: 2}),
        (
            "Why: {reason}.",
            "zone-c has one pod of six again, which had {before} its fair share a moment ago.",
            "Balanced lends it a pod of zone-a, for at most 1.2x; {in_zone} stay in their zone.",
        ),
        first=(TourChange("keepclose lab heal", LabRequest("heal", {"name": ""})), scale(6)),
        first_expected=ExpectedEndpoints(_SIX, hinted=_SIX, by_node=True),
    ),
    TourStep(
        "Rollback: the feature gate off",
        (TourChange(f"keepclose lab gates {GATE_OFF}", LabRequest("gates", {"gates": GATE_OFF})),),
        ExpectedEndpoints(_SIX),
        (
            "Why: {reason}.",
            "The hints are gone, and {in_zone} of the connections stay in their zone, by chance.",
            "The Service still says {field}: with the gate on, hints come back.",
        ),
    ),
)
