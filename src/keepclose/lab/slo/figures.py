"""The policies of KEP-3015's first draft, and the figures of each: availability, hops, latency.

The draft names four policies and guesses how each does: Cluster, Local, PreferLocal for a Service
with endpoints on every node, where other nodes are a fallback, and PreferLocal for a Service with
endpoints on some nodes, where near endpoints are an optimisation. If the gate of PreferLocal is
off, PreferSameNode is measured, which replaced it. The current values of trafficDistribution are
measured beside them; the draft guesses nothing of those.

A hop is a connection that is answered on another node than the one that routed it, a crossing is
one that is answered in another zone. Connections without an answer count for availability alone.
Nothing here sends packets or calls the API.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from keepclose.lab.access import LabRefusal
from keepclose.lab.traffic.answers import ConnectionResult, PodAnswer
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.service.policy_validation import (
    CLUSTER_POLICY,
    LOCAL_POLICY,
    PREFER_LOCAL_POLICY,
)
from keepclose.model.well_known import (
    EXTERNAL_POLICY_ANNOTATION,
    INTERNAL_POLICY_ANNOTATION,
    PREFER_SAME_NODE,
    PREFER_SAME_ZONE,
)

INTERNAL_TRAFFIC: Final = "internal"
EXTERNAL_TRAFFIC: Final = "external"
NEARLY_ALL: Final = 99.5
"""The least percentage that counts as "100 %-ish"."""
_NORMALLY: Final = 0.5
"""The part of Cluster's hops below which a policy counts as "normally fast"."""
EVERYWHERE: Final = "everywhere"
"""The DaemonSet with a pod on every node."""
SOME: Final = "some"
"""The Deployment with pods on half of the nodes."""
MEASUREMENT_LABEL: Final = "keepclose.dev/lab"
"""The label of the namespaces of measurements."""
_PORT: Final = 8080


class Guess(StrEnum):
    """What the draft guesses of a policy, in short."""

    NEARLY_ALL = "100 %-ish"
    NOT_ALL = "less than 100 %"
    SLOW = "not as fast"
    FAST = "fast"
    MOSTLY_FAST = "normally fast"
    BETWEEN = "between the two"


class SloSample(NamedTuple):
    """One connection."""

    traffic: str
    node: str
    """The node that routed it."""
    result: ConnectionResult
    seconds: float


class SloFigures(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of a policy for internal or external traffic."""

    policy: str
    role: str
    traffic: str
    connections: int
    failed: int
    failures: dict[str, int]
    availability: float
    """Percent of the connections that were answered."""
    node_hops: float | None
    """Per answered connection; None if none was answered."""
    zone_crossings: float | None
    p50_ms: float | None
    p99_ms: float | None
    guessed_availability: str
    """What the draft guesses, "" if it does not have the policy."""
    guessed_speed: str
    availability_as_guessed: bool | None = False
    """None if nothing was guessed."""
    speed_as_guessed: bool | None = False


class SloSums(NamedTuple):
    """The sums of samples."""

    connections: int
    failures: dict[str, int]
    node_hops: float | None
    zone_crossings: float | None
    p50_ms: float | None
    p99_ms: float | None

    @property
    def failed(self) -> int:
        """How many got no answer."""
        return sum(self.failures.values())

    @property
    def availability(self) -> float:
        """Percent of the connections that were answered; 100 without connections."""
        if not self.connections:
            return 100.0
        return 100.0 * (self.connections - self.failed) / self.connections


def sum_up_slo(samples: Iterable[SloSample], zones: Mapping[str, str]) -> SloSums:
    """Return the sums of samples; `zones` holds the zone of each node."""
    failures: Counter[str] = Counter()
    seconds: list[float] = []
    hops = crossings = connections = 0
    for sample in samples:
        connections += 1
        if not isinstance(sample.result, PodAnswer):
            failures[sample.result.value] += 1
            continue
        seconds.append(sample.seconds)
        hops += sample.result.node != sample.node
        crossings += zones.get(sample.result.node, "") != zones.get(sample.node, "")
    seconds.sort()
    answered = len(seconds)
    return SloSums(
        connections,
        dict(sorted(failures.items())),
        hops / answered if answered else None,
        crossings / answered if answered else None,
        _milliseconds(percentile(seconds, 50)),
        _milliseconds(percentile(seconds, 99)),
    )


def compare_with_guesses(rows: Sequence[SloFigures]) -> list[SloFigures]:
    """Return the figures with whether each guess holds, against Cluster and Local.

    Hops decide on speed: their cost depends on the distance of nodes, which a lab invents.
    """
    hops = {(row.policy, row.traffic): row.node_hops or 0.0 for row in rows if not row.role}
    return [
        msgspec.structs.replace(
            row,
            availability_as_guessed=_is_available(row) if row.guessed_availability else None,
            speed_as_guessed=_is_fast(
                row,
                cluster=hops.get(("Cluster", row.traffic), 0.0),
                local=hops.get(("Local", row.traffic), 0.0),
            )
            if row.guessed_speed
            else None,
        )
        for row in rows
    ]


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Return the percentile of sorted values, None if there are none."""
    if not ordered:
        return None
    place = math.ceil(len(ordered) * percent / 100)
    return ordered[min(max(place, 1), len(ordered)) - 1]


def show_percent(share: float) -> str:
    """Return a percentage with two decimals, rounded down: 100 means that none is missing."""
    return f"{math.floor(share * 100 + 1e-9) / 100:.2f} %"


class Policy(NamedTuple):
    """A policy to measure, with the draft's guesses."""

    name: str
    role: str
    """The purpose of the policy, or ""."""
    workload: str
    availability: Guess | None = None
    speed: Guess | None = None

    @property
    def title(self) -> str:
        """Name and role."""
        return f"{self.name} {self.role}".strip()

    @property
    def service(self) -> str:
        """The name of its Service."""
        return self.title.lower().replace(" ", "-")


def list_policies(gates: FeatureGates) -> list[Policy]:
    """Return the policies that the gates enable; raises LabRefusal."""
    preference = PREFER_LOCAL_POLICY
    if not gates.on(Gate.PREFER_LOCAL_TRAFFIC_POLICY):
        preference = PREFER_SAME_NODE
        if not gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION):
            raise LabRefusal(
                "there is nothing to compare: the feature gates "
                f"{Gate.PREFER_LOCAL_TRAFFIC_POLICY} and {Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION} "
                "are both off"
            )
    policies = [
        Policy(CLUSTER_POLICY, "", EVERYWHERE, Guess.NEARLY_ALL, Guess.SLOW),
        Policy(LOCAL_POLICY, "", EVERYWHERE, Guess.NOT_ALL, Guess.FAST),
        Policy(preference, "as fallback", EVERYWHERE, Guess.NEARLY_ALL, Guess.MOSTLY_FAST),
        Policy(preference, "as optimisation", SOME, Guess.NEARLY_ALL, Guess.BETWEEN),
    ]
    if gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION):
        policies.append(Policy(PREFER_SAME_ZONE, "", EVERYWHERE))
        if preference != PREFER_SAME_NODE:
            policies.append(Policy(PREFER_SAME_NODE, "", EVERYWHERE))
    return policies


def explain_choice(gates: FeatureGates) -> str:
    """Return why PreferSameNode stands for PreferLocal, or ""."""
    if gates.on(Gate.PREFER_LOCAL_TRAFFIC_POLICY):
        return ""
    return (
        f"{Gate.PREFER_LOCAL_TRAFFIC_POLICY} is off: {PREFER_SAME_NODE}, which came instead of "
        f"{PREFER_LOCAL_POLICY}, was measured"
    )


def make_service(policy: Policy) -> JsonObject:
    """Return the Service of a policy, for internal and external traffic."""
    spec: JsonObject = {
        "type": "NodePort",
        "selector": {"app": policy.workload},
        "ports": [{"name": "http", "port": 80, "targetPort": _PORT}],
    }
    annotations: dict[str, str] = {}
    if policy.name == PREFER_LOCAL_POLICY:
        # The field would need the gate at the API server too.
        annotations = {
            INTERNAL_POLICY_ANNOTATION: PREFER_LOCAL_POLICY,
            EXTERNAL_POLICY_ANNOTATION: PREFER_LOCAL_POLICY,
        }
    elif policy.name in (PREFER_SAME_NODE, PREFER_SAME_ZONE):
        spec["trafficDistribution"] = policy.name
    else:
        spec["internalTrafficPolicy"] = spec["externalTrafficPolicy"] = policy.name
    return {"metadata": {"name": policy.service, "annotations": annotations}, "spec": spec}


def make_daemon_set() -> JsonObject:
    """Return the workload with a pod on every node, of which a quarter may be unavailable."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}}
    return {
        "metadata": {"name": EVERYWHERE},
        "spec": {**_pods_of(EVERYWHERE), "updateStrategy": strategy},
    }


def make_deployment(nodes: int) -> JsonObject:
    """Return the workload with pods on half of the nodes."""
    return {
        "metadata": {"name": SOME},
        "spec": {**_pods_of(SOME), "replicas": max(1, nodes // 2)},
    }


def restart_patch(time: str) -> JsonObject:
    """Return the patch that restarts all pods of a workload, as kubectl rollout restart."""
    annotations = {"kubectl.kubernetes.io/restartedAt": time}
    return {"spec": {"template": {"metadata": {"annotations": annotations}}}}


def _is_available(row: SloFigures) -> bool:
    if row.guessed_availability == Guess.NOT_ALL:
        return row.failed > 0
    return row.availability >= NEARLY_ALL


def _is_fast(row: SloFigures, *, cluster: float, local: float) -> bool:
    if row.node_hops is None:
        return False
    match row.guessed_speed:
        case Guess.SLOW:
            return row.node_hops > local
        case Guess.FAST:
            return row.node_hops < cluster
        case Guess.MOSTLY_FAST:
            return row.node_hops < _NORMALLY * cluster
        case _:
            return local < row.node_hops < cluster


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _pods_of(app: str) -> JsonObject:
    container = {
        "name": "main",
        "image": "agnhost:2.53",
        "args": ["netexec", "--http-port", str(_PORT)],
        "ports": [{"name": "http", "containerPort": _PORT}],
    }
    return {
        "selector": {"matchLabels": {"app": app}},
        "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container]}},
    }
