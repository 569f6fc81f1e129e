"""The steps of the tour: what each one does, what must then be true, and what there is to say.

Only data. A step is a list of commands that a person could type, the hints that the controller must
have written afterwards, and lines that are filled with what was measured. The pods are where the
lab's scheduler puts them: n1 n2 in zone-a, n3 n4 in zone-b, n5 n6 in zone-c, and five pods go to
n1, n3, n5, n2, n4.
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
    """An endpoint as its slice has it."""

    pod: str
    node: str
    zone: str
    is_ready: bool
    for_zones: tuple[str, ...] = ()
    for_nodes: tuple[str, ...] = ()


def hinted_endpoints(slices: Sequence[EndpointSlice]) -> list[HintedEndpoint]:
    """Return the endpoints of all slices, by zone, node and pod."""
    found = [
        HintedEndpoint(
            one.target_ref.name if one.target_ref else one.addresses[0],
            one.node_name or "",
            one.zone or "",
            one.is_ready,
            tuple(hint.name for hint in one.hints.for_zones) if one.hints else (),
            tuple(hint.name for hint in one.hints.for_nodes) if one.hints else (),
        )
        for piece in slices
        for one in piece.endpoints
    ]
    return sorted(found, key=lambda one: (one.zone, one.node, one.pod))


class Promise(NamedTuple):
    """Where the pods are after a step, and for whom they are hinted."""

    pods: Mapping[str, int]
    """How many are in each zone, all of them ready."""
    hinted: Mapping[str, int] = {}
    """How many are hinted for each zone, each for one; without any there are no hints."""
    by_node: bool = False
    """Whether each is hinted for its own node too."""

    def find_gap(self, endpoints: Sequence[HintedEndpoint]) -> str:
        """Return in a few words what is not as promised, or "" when all is."""
        unready = [one.pod for one in endpoints if not one.is_ready]
        if unready:
            return f"{unready[0]} is not ready"
        pods = Counter(one.zone for one in endpoints)
        if pods != Counter(self.pods):
            return f"pods are in {_list(pods)}, not in {_list(self.pods)}"
        hinted = Counter(zone for one in endpoints for zone in one.for_zones)
        if hinted != Counter(self.hinted):
            return f"hints are for {_list(hinted)}, not for {_list(self.hinted)}"
        for one in endpoints:
            want = (one.node,) if self.by_node else ()
            if one.for_nodes != want:
                return f"{one.pod} is hinted for {_names(one.for_nodes)}, not for {_names(want)}"
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


class TourTraffic(NamedTuple):
    """Something that the running lab is asked to do."""

    do: str
    params: JsonObject


class TourChange(NamedTuple):
    """One command and what it does."""

    command: str
    deed: ObjectPatch | TourTraffic


def distribute(value: str | None) -> TourChange:
    """Return the change of the Service's trafficDistribution; None removes it."""
    text = "null" if value is None else f'"{value}"'
    return TourChange(
        f"kubectl patch service {TOUR_SERVICE} -p "
        f"""'{{"spec":{{"trafficDistribution":{text}}}}}'""",
        ObjectPatch(SERVICES, TOUR_SERVICE, {"spec": {"trafficDistribution": value}}),
    )


def _drain(node: str) -> TourChange:
    """Return the change that moves all pods away from a node."""
    return TourChange(f"keepclose lab drain {node}", TourTraffic("drain", {"name": node}))


def scale(replicas: int) -> TourChange:
    """Return the change of the number of pods."""
    return TourChange(
        f"kubectl scale deployment {_DEPLOYMENT} --replicas={replicas}",
        ObjectPatch(_DEPLOYMENTS, _DEPLOYMENT, {"spec": {"replicas": replicas}}),
    )


class TourStep(NamedTuple):
    """A stop of the tour.

    Of `first`, if there is any, the traffic is measured too but not shown. In `story` {reason} is
    why the core treats the Service so; {in_zone}, {on_node}, {failed}, {busiest} and {place} tell
    of the traffic, {before} how busy the busiest endpoint was after `first`, {field} what the
    Service says.
    """

    title: str
    changes: tuple[TourChange, ...]
    promise: Promise
    story: tuple[str, ...]
    first: tuple[TourChange, ...] = ()
    first_promise: Promise | None = None
    by_node: bool = False


_FIVE: Final = {A: 2, B: 2, C: 1}
_LOST: Final = {A: 3, B: 2}
_SIX: Final = {A: 3, B: 2, C: 1}
GATE_OFF: Final = f"{Gate.SERVICE_TRAFFIC_DISTRIBUTION}=false"

TOUR_STEPS: Final = (
    TourStep(
        "Default routing: any endpoint",
        (distribute(None),),
        Promise(_FIVE),
        (
            "Why: {reason}.",
            "There are no hints, so every node gives each of the five pods an equal part.",
            "{in_zone} of the connections stay in their zone, by chance; all others cross zones.",
        ),
    ),
    TourStep(
        "PreferSameZone: endpoints of the own zone",
        (distribute("PreferSameZone"),),
        Promise(_FIVE, hinted=_FIVE),
        (
            "Why: {reason}.",
            "Each endpoint is hinted for its zone, and nodes use those hinted for theirs.",
            "{in_zone} stay in their zone, but the pod of {place} has {busiest} its fair share.",
        ),
    ),
    TourStep(
        "PreferSameNode: the own node first, then the own zone",
        (distribute("PreferSameNode"),),
        Promise(_FIVE, hinted=_FIVE, by_node=True),
        (
            "Why: {reason}.",
            "Hints name nodes too: {on_node} of the connections stay on the node of their client.",
            "No pod runs on n6, so n6 follows the hints for its zone, to the pod on n5.",
        ),
        by_node=True,
    ),
    TourStep(
        "A zone loses its pods",
        # The empty node comes first, or the pod would only move over to it.
        (_drain("n6"), _drain("n5")),
        Promise(_LOST, hinted=_LOST, by_node=True),
        (
            "Nothing is hinted for zone-c or its nodes any more, so they use all endpoints:",
            "to prefer is not to require, and {failed}. The other zones stay close.",
        ),
    ),
    TourStep(
        "Balanced: close, but nobody overloaded",
        (distribute(_BALANCED),),
        Promise(_SIX, hinted={A: 2, B: 2, C: 2}),
        (
            "Why: {reason}.",
            "zone-c has one pod of six again, which had {before} its fair share a moment ago.",
            "Balanced lends it a pod of zone-a, for at most 1.2x; {in_zone} stay in their zone.",
        ),
        first=(TourChange("keepclose lab heal", TourTraffic("heal", {"name": ""})), scale(6)),
        first_promise=Promise(_SIX, hinted=_SIX, by_node=True),
    ),
    TourStep(
        "Rollback: the feature gate off",
        (TourChange(f"keepclose lab gates {GATE_OFF}", TourTraffic("gates", {"gates": GATE_OFF})),),
        Promise(_SIX),
        (
            "Why: {reason}.",
            "The hints are gone, and {in_zone} of the connections stay in their zone, by chance.",
            "The Service still says {field}: with the gate on, hints come back.",
        ),
    ),
)
