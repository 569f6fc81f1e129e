"""The kubelets and the node lifecycle controller of a replay: how pods start, end and are lost.

A pod gets its address when it runs and accepts connections when it is ready. A deleted pod still
accepts connections for a while, and serves as a terminating endpoint as long; then it ends and is
gone. A pod that never ran is gone at once. The pods of a lost node refuse connections at once, but
are ready in the API until the loss is detected, and only the kubelet ends deleted ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Final

from msgspec.structs import replace

from keepclose.advise.replaying.replayed_cluster import ReplayClock, ReplayedCluster
from keepclose.advise.replaying.scenario import PodTimes
from keepclose.advise.replaying.start_workloads import is_of_daemon_set
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node, PodIP, StatusCondition, Taint
from keepclose.model.workloads.constraints import NO_EXECUTE, NO_SCHEDULE
from keepclose.model.workloads.pods import PodCondition, WorkloadPod

DEFAULT_GRACE_S: Final = 30.0
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_TAINTS: Final = (Taint(_UNREACHABLE, "", NO_SCHEDULE), Taint(_UNREACHABLE, "", NO_EXECUTE))


class ReplayedKubelets:
    """Starts and ends the pods on all nodes."""

    def __init__(self, cluster: ReplayedCluster, times: PodTimes, random: Random) -> None:
        self._cluster, self._times, self._random = cluster, times, random
        self._clock: ReplayClock = cluster.clock
        # Counted up whenever what is due for a pod is no longer true.
        self._lives: dict[NamespacedName, int] = {}

    def take_over(self) -> None:
        """Go on with the pods that are there at the start."""
        for pod in sorted(self._cluster.pods.values(), key=lambda pod: pod.key):
            if pod.spec.node_name in self._cluster.down or not pod.spec.node_name:
                continue
            if pod.is_terminating:
                self._cluster.accept(pod.key, pod.is_ready)
                self._end(pod)
            elif pod.is_ready:
                self._cluster.accept(pod.key)
            elif not pod.status.pod_ips and not pod.has_ended:
                self._start(pod.key)

    def bind(self, pod: WorkloadPod) -> None:
        """Start a pod on the node that it was given."""
        self._cluster.put_pod(pod)
        self._start(pod.key)

    def delete(self, pod: WorkloadPod) -> None:
        """Delete a pod with its grace period; a pod that is being deleted stays so."""
        if pod.is_terminating:
            return
        if not pod.status.pod_ips:
            self._renew(pod.key)
            self._cluster.remove_pod(pod.key)
            return
        pod = replace(pod, metadata=replace(pod.metadata, deletion_timestamp=self._cluster.stamp))
        self._cluster.put_pod(pod)
        if pod.spec.node_name not in self._cluster.down:
            self._end(pod)

    def lose(self, names: Iterable[str]) -> None:
        """Stop nodes; the API does not show it yet."""
        lost = list(names)
        self._cluster.set_down(lost, is_down=True)
        for pod in self._cluster.pods_on(lost):
            self._renew(pod.key)
            self._cluster.accept(pod.key, accepts=False)

    def report_lost(self, names: Iterable[str]) -> None:
        """Report lost nodes and their pods as not ready, and taint the nodes."""
        lost = list(names)
        for name in lost:
            node = self._cluster.nodes[name]
            self._cluster.put_node(_with_readiness(node, "Unknown", taints=_TAINTS))
        for pod in self._cluster.pods_on(lost):
            if pod.is_ready:
                self._cluster.put_pod(self._with_ready(pod, is_ready=False))

    def evict(self, names: Iterable[str]) -> None:
        """Delete the pods of lost nodes; they stay until the nodes are back.

        Those of DaemonSets tolerate lost nodes.
        """
        for pod in self._cluster.pods_on(names):
            if not is_of_daemon_set(pod):
                self.delete(pod)

    def recover(self, names: Iterable[str]) -> None:
        """Start nodes again: deleted pods are gone, the others start again."""
        back = list(names)
        self._cluster.set_down(back, is_down=False)
        for name in back:
            self._cluster.put_node(_with_readiness(self._cluster.nodes[name], "True", taints=()))
        for pod in self._cluster.pods_on(back):
            if pod.is_terminating:
                self._cluster.remove_pod(pod.key)
            elif not pod.status.pod_ips:
                self._start(pod.key)
            elif not pod.has_ended:
                if pod.is_ready:
                    self._cluster.put_pod(self._with_ready(pod, is_ready=False))
                life = self._renew(pod.key)
                self._clock.call_after(
                    self._ready_after(), partial(self._make_ready, pod.key, life)
                )

    def _start(self, key: NamespacedName) -> None:
        pod = self._cluster.pods[key]
        if pod.spec.node_name in self._cluster.down:
            return
        life = self._renew(key)
        start = self._times.start_after
        ready = max(start, self._ready_after())
        self._clock.call_after(start, partial(self._run, key, life))
        self._clock.call_after(ready, partial(self._make_ready, key, life))

    def _ready_after(self) -> float:
        spread = self._times.ready_spread
        drawn = self._random.uniform(0.0, spread) if spread > 0 else 0.0
        return self._times.ready_after + round(drawn, 3)

    def _run(self, key: NamespacedName, life: int) -> None:
        if self._lives[key] != life:
            return
        pod = self._cluster.pods[key]
        addresses = self._cluster.new_addresses()
        status = replace(
            pod.status,
            phase="Running",
            pod_ip=addresses[0],
            pod_ips=tuple(PodIP(address) for address in addresses),
            start_time=self._cluster.stamp,
        )
        self._cluster.put_pod(self._with_ready(replace(pod, status=status), is_ready=False))

    def _make_ready(self, key: NamespacedName, life: int) -> None:
        if self._lives[key] != life:
            return
        pod = self._with_ready(self._cluster.pods[key], is_ready=True)
        self._cluster.put_pod(pod)
        self._cluster.accept(key)

    def _end(self, pod: WorkloadPod) -> None:
        key, life, times = pod.key, self._renew(pod.key), self._times
        grace: float | None = times.termination_grace
        if grace is None:
            grace = pod.spec.termination_grace_period_seconds
        if grace is None:
            grace = DEFAULT_GRACE_S
        exits: float = times.accepts_for if times.exits_after is None else times.exits_after
        exits = min(exits, grace)
        if times.accepts_for < exits:
            self._clock.call_after(times.accepts_for, partial(self._refuse, key, life))
        self._clock.call_after(exits, partial(self._remove, key, life))

    def _refuse(self, key: NamespacedName, life: int) -> None:
        if self._lives[key] == life:
            self._cluster.accept(key, accepts=False)
            self._cluster.put_pod(self._with_ready(self._cluster.pods[key], is_ready=False))

    def _remove(self, key: NamespacedName, life: int) -> None:
        if self._lives[key] == life:
            self._cluster.remove_pod(key)

    def _renew(self, key: NamespacedName) -> int:
        self._lives[key] = self._lives.get(key, 0) + 1
        return self._lives[key]

    def _with_ready(self, pod: WorkloadPod, *, is_ready: bool) -> WorkloadPod:
        condition = PodCondition(
            type="Ready",
            status="True" if is_ready else "False",
            last_transition_time=self._cluster.stamp,
        )
        others = tuple(each for each in pod.status.conditions if each.type != "Ready")
        return replace(pod, status=replace(pod.status, conditions=(*others, condition)))


def _with_readiness(node: Node, status: str, *, taints: tuple[Taint, ...]) -> Node:
    others = tuple(each for each in node.status.conditions if each.type != "Ready")
    kept = tuple(taint for taint in node.spec.taints if taint.key != _UNREACHABLE)
    return replace(
        node,
        spec=replace(node.spec, taints=(*kept, *taints)),
        status=replace(
            node.status, conditions=(*others, StatusCondition(type="Ready", status=status))
        ),
    )
