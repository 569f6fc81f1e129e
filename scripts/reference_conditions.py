"""What the reference says about conditions: each status and reason, as the code gives it.

Every row is an example that goes through the function that makes conditions; the words here only
say what the example is. A reason that no example leads to is an error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from keepclose.model.gates import DEFAULT_GATES, Gate
from keepclose.model.meta import Condition
from keepclose.model.well_known import PROXY_NAME_LABEL
from keepclose.routing.conditions import (
    ACCEPTED,
    HONORED,
    PROGRAMMED,
    Acknowledgements,
    ConditionReason,
    NodeSample,
    Obstacle,
    find_obstacle,
    service_conditions,
)
from keepclose.routing.hints import SliceSet
from keepclose.routing.strategy import (
    DISTRIBUTION_FIELD,
    DistributionVerdict,
    Strategy,
    StrategyName,
)
from keepclose.webhook.process import CONDITION_PREFIX

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.builders import endpoint, endpoint_slice, service

_ABOUT = {
    ACCEPTED: "Whether the value of trafficDistribution is known and its feature gate is on.",
    PROGRAMMED: "Whether every ready endpoint has the hints of the value.",
    HONORED: "Whether all ready nodes use the hints as written. Present only while hints are"
    " programmed and at least one node acknowledges slices.",
}
_HINTED = SliceSet(
    unchanged=(endpoint_slice(endpoint(zone="zone-a", for_zones=("zone-a",))),),
)
_BARE = SliceSet(unchanged=(endpoint_slice(endpoint()),))


class _Example(NamedTuple):
    type: str
    when: str
    verdict: DistributionVerdict = DistributionVerdict.GOVERNS
    slices: SliceSet = _HINTED
    name: StrategyName = StrategyName.SAME_ZONE
    write_failed: str = ""
    dropped: tuple[str, ...] = ()
    heuristic_failed: str = ""
    other_writer: str = ""
    acknowledgements: Acknowledgements | Obstacle | None = None


_EXAMPLES = (
    _Example(ACCEPTED, "The value is known, even where another mechanism takes precedence."),
    _Example(ACCEPTED, "The value is unknown.", DistributionVerdict.UNSUPPORTED),
    _Example(ACCEPTED, "The feature gate for the value is off.", DistributionVerdict.DISABLED),
    _Example(PROGRAMMED, "All ready endpoints have hints."),
    _Example(PROGRAMMED, "Another mechanism takes precedence.", DistributionVerdict.OVERRIDDEN),
    _Example(PROGRAMMED, "The value is not accepted.", DistributionVerdict.UNSUPPORTED),
    _Example(
        PROGRAMMED, "The controller could not write the hints.", write_failed="the server's answer"
    ),
    _Example(
        PROGRAMMED,
        "The API server drops the hints, usually because a feature gate is off there;"
        " the message names the field and the gate.",
        slices=_BARE,
        dropped=("endpoints[].hints",),
    ),
    _Example(
        PROGRAMMED,
        "Another controller, usually the built-in one, keeps changing the slices; the message"
        " names it, and the controller backs off.",
        other_writer="kube-controller-manager",
    ),
    _Example(PROGRAMMED, "No endpoint is ready.", slices=SliceSet()),
    _Example(PROGRAMMED, "Ready endpoints have no zone, or no node.", slices=_BARE),
    _Example(
        PROGRAMMED,
        "A custom heuristic found no allocation.",
        slices=_BARE,
        name=StrategyName.CUSTOM,
    ),
    _Example(
        PROGRAMMED,
        "The custom heuristic failed, and endpoints have no hints.",
        slices=_BARE,
        name=StrategyName.CUSTOM,
        heuristic_failed="allocate raised ValueError",
    ),
    _Example(
        HONORED,
        "Every ready node has acknowledged the slices, follows hints of this kind, and uses them.",
        acknowledgements=Acknowledgements(nodes=2, answered=2, honoured=2),
    ),
    _Example(
        HONORED,
        "A ready node has not acknowledged the newest slices; the message names such nodes.",
        acknowledgements=Acknowledgements(nodes=2, answered=1, honoured=1),
    ),
    _Example(
        HONORED,
        "Some ready nodes do not use the hints; the message names them with reasons.",
        acknowledgements=Acknowledgements(
            nodes=2, answered=2, honoured=1, refusing=NodeSample(1, ("n1 (ZoneNotHinted)",))
        ),
    ),
    _Example(
        HONORED,
        "The Service has the label `service.kubernetes.io/service-proxy-name`.",
        acknowledgements=find_obstacle(
            service(labels={PROXY_NAME_LABEL: "other"}), gates=DEFAULT_GATES
        ),
    ),
    _Example(
        HONORED,
        "The Service is headless, so that no proxy routes its traffic.",
        acknowledgements=find_obstacle(service(cluster_ip="None"), gates=DEFAULT_GATES),
    ),
    _Example(
        HONORED,
        "`internalTrafficPolicy` governs the traffic within the cluster.",
        acknowledgements=find_obstacle(
            service(internal_traffic_policy="Local"), gates=DEFAULT_GATES
        ),
    ),
)


def describe_conditions() -> str:
    """Return a section with a table for each condition."""
    shown = [(one, _condition(one)) for one in _EXAMPLES]
    missing = set(ConditionReason) - {condition.reason for _, condition in shown}
    if missing:
        raise ValueError(f"no example leads to {sorted(missing)}")
    about = (
        f"Services with a trafficDistribution have these in `status.conditions` while the"
        f" gate `{Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS}` is on. In webhook mode their types"
        f" begin with `{CONDITION_PREFIX}`, and `{HONORED}` is not among them.\n"
    )
    parts = [about]
    for kind, about in _ABOUT.items():
        rows = "\n".join(
            f"| {condition.status} | `{condition.reason}` | {example.when} |"
            for example, condition in shown
            if example.type == kind
        )
        parts.append(f"## {kind}\n\n{about}\n\n| status | reason | when |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _condition(example: _Example) -> Condition:
    strategy = Strategy(example.name, DISTRIBUTION_FIELD, "", (), example.verdict)
    found = service_conditions(
        strategy,
        example.slices,
        write_failed=example.write_failed,
        dropped=example.dropped,
        heuristic_failed=example.heuristic_failed,
        other_writer=example.other_writer,
        acknowledgements=example.acknowledgements,
    )
    return next(one for one in found if one.type == example.type)
