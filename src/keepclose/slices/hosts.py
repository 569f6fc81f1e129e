"""The nodes and owners of ready pods, counted, so that detection need not look at each pod again.

Node-level topology is found by looking at where ready endpoints run and which controller made them.
A Service with thousands of pods has a few of these pairs.
"""

from __future__ import annotations

from collections import Counter

from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.workload import Pod
from keepclose.routing.node_level import EndpointOwner, controller_of


class Hosts:
    """Where the ready pods of one Service run, and whose they are."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, OwnerReference | None]] = Counter()
        self._filed: dict[NamespacedName, tuple[str, OwnerReference | None]] = {}

    def put(self, pod: Pod) -> None:
        """Count a pod that is ready, in place of what it was counted as before."""
        self.remove(pod.key)
        host = (pod.spec.node_name, controller_of(pod.metadata.owner_references))
        self._filed[pod.key] = host
        self._counts[host] += 1

    def remove(self, source: NamespacedName) -> None:
        """Stop counting a pod; one that was not counted does no harm."""
        host = self._filed.pop(source, None)
        if host is not None:
            self._counts[host] -= 1
            if self._counts[host] == 0:
                del self._counts[host]

    def pairs(self) -> list[EndpointOwner]:
        """Return each pair of node and owner once, in an order that does not depend on history."""
        found: list[EndpointOwner] = list(self._counts)
        found.sort(key=_order)
        return found


def _order(host: EndpointOwner) -> tuple[str, str]:
    return host[0] or "", "" if host[1] is None else host[1].uid
