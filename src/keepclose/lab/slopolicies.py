"""The traffic policies that KEP-3015's first draft compares, and what became of them.

The draft names four and guesses how each does: Cluster, Local, PreferLocal for a Service with
endpoints on every node, where others are a fallback, and PreferLocal for one with endpoints on some
nodes, where near ones are an optimisation. Where the gate of PreferLocal is off, PreferSameNode is
taken, which came instead of it. The values of trafficDistribution that Kubernetes has now stand
beside them; the draft guesses nothing of those. Only objects are made here; nothing is sent.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from keepclose.lab.refusals import LabRefusal
from keepclose.lab.slo.figures import Guess
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

EVERYWHERE: Final = "everywhere"
"""The DaemonSet with a pod on every node."""
SOME: Final = "some"
"""The Deployment with pods on half of the nodes."""
MARK: Final = "keepclose.dev/lab"
"""The label of namespaces that measurements make."""
PORT: Final = 8080


class Policy(NamedTuple):
    """What is measured, with the draft's guesses."""

    name: str
    role: str
    """What the policy is there for, or ""."""
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
    """Return the policies as far as the gates know them; raises LabRefusal."""
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


def tell_choice(gates: FeatureGates) -> str:
    """Return what to know about the choice of policies, or ""."""
    if gates.on(Gate.PREFER_LOCAL_TRAFFIC_POLICY):
        return ""
    return (
        f"{Gate.PREFER_LOCAL_TRAFFIC_POLICY} is off: {PREFER_SAME_NODE}, which came instead of "
        f"{PREFER_LOCAL_POLICY}, was measured"
    )


def make_service(policy: Policy) -> JsonObject:
    """Return the Service of a policy, for traffic from inside and from outside alike."""
    spec: JsonObject = {
        "type": "NodePort",
        "selector": {"app": policy.workload},
        "ports": [{"name": "http", "port": 80, "targetPort": PORT}],
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
    """Return the workload with a pod on every node; a quarter of them may be missing at once."""
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
    """Return the patch that starts all pods of a workload anew, as kubectl rollout restart."""
    annotations = {"kubectl.kubernetes.io/restartedAt": time}
    return {"spec": {"template": {"metadata": {"annotations": annotations}}}}


def _pods_of(app: str) -> JsonObject:
    container = {
        "name": "main",
        "image": "agnhost:2.53",
        "args": ["netexec", "--http-port", str(PORT)],
        "ports": [{"name": "http", "containerPort": PORT}],
    }
    return {
        "selector": {"matchLabels": {"app": app}},
        "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container]}},
    }
