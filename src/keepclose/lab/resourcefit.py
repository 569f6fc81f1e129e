"""Whether the CPU, memory and other resources that a pod requests are free on a node.

As the kube-scheduler counts them: the requests of a pod's containers, or of its init containers
where those need more, plus its overhead, beside the requests of all pods on the node that have not
ended. What runs does not count, and limits only where a container requests nothing. A resource that
a node does not name is one that it has none of; the number of pods is not limited where a node does
not name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from keepclose.lab.workloads.pods import PodContainer, PodSpec
from keepclose.model.quantities import millis
from keepclose.model.workload import Node

TOO_MANY_PODS: Final = "Too many pods"
_PODS: Final = "pods"
_RESTARTED: Final = "Always"
Amounts = Mapping[str, int]
"""By resource, in thousandths."""


def pod_requests(spec: PodSpec) -> dict[str, int]:
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
