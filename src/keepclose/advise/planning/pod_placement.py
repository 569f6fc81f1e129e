"""Where pods of a scenario run: spread over zones, then over nodes, as a scheduler prefers to.

A scheduler weighs much that the input does not say: requests, affinities, priorities. Here a pod
goes to the zone with the fewest of its peers, there to the node with the fewest of them, and of
these to the one with the fewest pods. Nodes that are not ready, that are cordoned, or that
have a taint against pods are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from msgspec.structs import replace

from keepclose.model.addresses import family_of
from keepclose.model.workload import Node, Pod, PodIP, StatusCondition

# The ranges for benchmarks (RFC 2544, RFC 5180): no cluster routes them.
_FIRST: Final = {"IPv4": IPv4Address("198.18.0.1"), "IPv6": IPv6Address("2001:2::1")}
_REPELLING: Final = ("NoSchedule", "NoExecute")


class PodPlacement:
    """The nodes of a scenario, and how many pods each of them has."""

    def __init__(self, nodes: Iterable[Node], pods: Iterable[Pod]) -> None:
        """Take the nodes that pods may be placed on, and all pods."""
        self._nodes = [node for node in nodes if _takes_pods(node)]
        self._total = Counter(pod.spec.node_name for pod in pods)
        self._made = 0

    def place(self, pod: Pod, peers: Counter[str]) -> Pod | None:
        """Return the pod on its new node, ready; None if no node takes pods.

        `peers` are the numbers of its peers by node, and the pod is added to them.
        """
        if not self._nodes:
            return None
        zones: Counter[str] = Counter()
        for node in self._nodes:
            zones[node.zone] += peers[node.name]

        def rank(node: Node) -> tuple[int, str, int, int, str]:
            return (
                zones[node.zone],
                node.zone,
                peers[node.name],
                self._total[node.name],
                node.name,
            )

        chosen = min(self._nodes, key=rank)
        peers[chosen.name] += 1
        self._total[chosen.name] += 1
        return self._moved(pod, chosen)

    def order_of_removal(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return pods in the order in which they are removed: from where most of them are."""
        zones = {node.name: node.zone for node in self._nodes}
        by_zone: Counter[str] = Counter()
        rest: dict[str, list[Pod]] = {}
        for pod in sorted(pods, key=lambda pod: (not pod.is_ready, pod.metadata.name)):
            rest.setdefault(pod.spec.node_name, []).append(pod)
            by_zone[zones.get(pod.spec.node_name, "")] += 1

        def rank(node: str) -> tuple[bool, int, int, str]:
            last = rest[node][-1]
            zone = zones.get(node, "")
            return not last.is_ready, by_zone[zone], len(rest[node]), last.metadata.name

        removed: list[Pod] = []
        while rest:
            node = max(rest, key=rank)
            removed.append(rest[node].pop())
            by_zone[zones.get(node, "")] -= 1
            if not rest[node]:
                del rest[node]
        return removed

    def _moved(self, pod: Pod, node: Node) -> Pod:
        """Return a pod as its owner would create it again on a node."""
        self._made += 1
        families = [family_of(each.ip) for each in pod.status.pod_ips] or [
            family_of(pod.status.pod_ip)
        ]
        addresses = tuple(str(_FIRST[family or "IPv4"] + self._made) for family in families)
        name = f"{pod.metadata.name}-if-{self._made}"
        return replace(
            pod,
            metadata=replace(pod.metadata, name=name, uid=name, deletion_timestamp=None),
            spec=replace(pod.spec, node_name=node.name),
            status=replace(
                pod.status,
                phase="Running",
                pod_ip=addresses[0],
                pod_ips=tuple(PodIP(address) for address in addresses),
                conditions=(StatusCondition("Ready", "True"),),
            ),
        )


def all_pods(pods: Mapping[str, tuple[Pod, ...]]) -> Iterable[Pod]:
    """Yield the pods of all namespaces."""
    for group in pods.values():
        yield from group


def _takes_pods(node: Node) -> bool:
    return (
        node.is_ready
        and not node.spec.unschedulable
        and not any(taint.effect in _REPELLING for taint in node.spec.taints)
    )
