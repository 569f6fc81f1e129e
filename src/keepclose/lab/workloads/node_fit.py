"""Whether a pod may run on a node, judged by the two alone, and if not, why in Kubernetes' words.

The checks come in the scheduler's order and the first that fails speaks. A node that does not
report Ready counts as tainted, because nobody beside this server would put the taint on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from keepclose.lab.workloads.constraints import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE
from keepclose.lab.workloads.pods import HostPort, PodContainer, WorkloadPod, WorkloadPodSpec
from keepclose.model.quantities import millis
from keepclose.model.workload import Node, Taint

TOO_MANY_PODS: Final = "Too many pods"
_PODS: Final = "pods"
_RESTARTED: Final = "Always"
Amounts = Mapping[str, int]
"""By resource, in thousandths."""
NODE_UNSCHEDULABLE: Final = "node(s) were unschedulable"
NODE_NAME: Final = "node(s) didn't match the requested node name"
TAINTED: Final = "node(s) had untolerated taint(s)"
NODE_AFFINITY: Final = "node(s) didn't match Pod's node affinity/selector"
PORTS_TAKEN: Final = "node(s) didn't have free ports for the requested pod ports"

_CORDONED: Final = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)
_NOT_READY: Final = Taint(key="node.kubernetes.io/not-ready", effect=NO_SCHEDULE)
_KEEPING_AWAY: Final = (NO_SCHEDULE, NO_EXECUTE)
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - nothing is bound here


def pod_requests(spec: WorkloadPodSpec) -> dict[str, int]:
    """Return what a pod requests of its node, without what is zero."""
    running: Counter[str] = Counter()
    for container in spec.containers:
        running.update(_requests(container))
    # Init containers run one after the other, beside the sidecars that were started before them.
    sidecars: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.init_containers:
        own = Counter(_requests(container))
        if container.restart_policy == _RESTARTED:
            sidecars.update(own)
            own = Counter(sidecars)
        else:
            own.update(sidecars)
        most |= own
    running.update(sidecars)
    needed = running | most
    needed.update(_amounts(spec.overhead))
    return {name: amount for name, amount in needed.items() if amount > 0}


def resource_refusals(requests: Amounts, node: Node, *, used: Amounts, pods: int) -> list[str]:
    """Return why a node has no room for a pod, in the scheduler's words; [] where it has.

    `used` are the requests of the pods that are there, `pods` is their number.
    """
    allocatable = node.status.allocatable
    reasons = []
    room = millis(allocatable[_PODS]) if _PODS in allocatable else None
    if room is not None and (pods + 1) * 1000 > room:
        reasons.append(TOO_MANY_PODS)
    for name, amount in requests.items():
        free = (millis(allocatable.get(name, 0)) or 0) - used.get(name, 0)
        if amount > free:
            reasons.append(f"Insufficient {name}")
    return reasons


def _requests(container: PodContainer) -> dict[str, int]:
    resources = container.resources
    return _amounts({**resources.limits, **resources.requests})


def _amounts(quantities: Mapping[str, str | float]) -> dict[str, int]:
    # The API server lets no other than quantities in.
    return {name: max(0, millis(value) or 0) for name, value in quantities.items()}


def node_refusal(spec: WorkloadPodSpec, node: Node) -> str:
    """Return why the node takes no such pod whatever else runs there, "" when it does."""
    if node.spec.unschedulable and not _tolerates(spec, _CORDONED):
        return NODE_UNSCHEDULABLE
    if spec.node_name and spec.node_name != node.name:
        return NODE_NAME
    if has_untolerated_taint(spec, node, _KEEPING_AWAY):
        return TAINTED
    if not matches_affinity(spec, node):
        return NODE_AFFINITY
    return ""


def port_refusal(spec: WorkloadPodSpec, there: Iterable[WorkloadPod]) -> str:
    """Return why the ports of the node that a pod wants are not free, "" when they are."""
    wanted = list(_host_ports(spec))
    if not wanted:
        return ""
    taken = [port for pod in there for port in _host_ports(pod.spec)]
    clash = any(_collide(one, other) for one in wanted for other in taken)
    return PORTS_TAKEN if clash else ""


def taints_of(node: Node) -> tuple[Taint, ...]:
    """Return the taints of a node, with the one that it gets for not being ready."""
    return node.spec.taints if node.is_ready else (*node.spec.taints, _NOT_READY)


def has_untolerated_taint(spec: WorkloadPodSpec, node: Node, effects: Iterable[str]) -> bool:
    """Return whether a taint of one of the effects keeps the pod away."""
    return any(taint.effect in effects and not _tolerates(spec, taint) for taint in taints_of(node))


def dislikes(spec: WorkloadPodSpec, node: Node) -> int:
    """Return how many taints of the node the pod should rather avoid."""
    return sum(
        taint.effect == PREFER_NO_SCHEDULE and not _tolerates(spec, taint)
        for taint in taints_of(node)
    )


def matches_affinity(spec: WorkloadPodSpec, node: Node) -> bool:
    """Return whether the node has the labels that the pod requires."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return any(term.matches(node) for term in affinity.required.node_selector_terms)


def likes(spec: WorkloadPodSpec, node: Node) -> int:
    """Return the sum of the weights by which the pod prefers the node."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None:
        return 0
    return sum(
        one.weight
        for one in affinity.preferred
        # NB: other than a required term, an empty preference matches every node.
        if one.preference.matches(node)
        or not (one.preference.match_expressions or one.preference.match_fields)
    )


def _tolerates(spec: WorkloadPodSpec, taint: Taint) -> bool:
    return any(one.tolerates(taint) for one in spec.tolerations)


def _host_ports(spec: WorkloadPodSpec) -> Iterable[HostPort]:
    return (port for container in spec.containers for port in container.ports if port.host_port)


def _collide(one: HostPort, other: HostPort) -> bool:
    if (one.host_port, one.protocol) != (other.host_port, other.protocol):
        return False
    either = (one.host_ip, other.host_ip)
    return one.host_ip == other.host_ip or any(address in _EVERY_ADDRESS for address in either)
