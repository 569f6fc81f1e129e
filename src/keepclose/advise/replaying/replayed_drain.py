"""Drains of a replay, as `kubectl drain` does them: cordon, evict, wait, one node after the other.

An eviction that a PodDisruptionBudget refuses is tried again every 5 s. Pods of DaemonSets stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from keepclose.advise.replaying.replayed_cluster import ReplayedCluster
from keepclose.advise.replaying.replayed_deployment import ReplayedDeployment
from keepclose.advise.replaying.replayed_kubelets import ReplayedKubelets
from keepclose.advise.replaying.start_workloads import is_of_daemon_set
from keepclose.model.workloads.disruption_budgets import PodDisruptionBudget, eviction_refusal
from keepclose.model.workloads.pods import WorkloadPod

EVICTION_RETRY_S: Final = 5.0
"""After how long kubectl tries a refused eviction again."""
_POLL_S: Final = 1.0
"""How often kubectl looks whether an evicted pod is gone."""


class ReplayedDrain:
    """One drain of some nodes."""

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        back_after: float | None,
        cluster: ReplayedCluster,
        kubelets: ReplayedKubelets,
        deployments: Sequence[ReplayedDeployment],
        budgets: Sequence[PodDisruptionBudget],
    ) -> None:
        self._left = list(nodes)
        self._back_after = back_after
        self._cluster, self._kubelets = cluster, kubelets
        self._deployments, self._budgets = deployments, budgets
        self._refusal = ""

    def begin(self) -> None:
        """Cordon all nodes and drain the first."""
        for name in self._left:
            self._set_schedulable(name, is_schedulable=False)
        self._cluster.say(f"drain of {_name_some(self._left)} begins")
        self._step()

    def _step(self) -> None:
        while self._left:
            wait_s = self._drain(self._left[0])
            if wait_s:
                self._cluster.clock.call_after(wait_s, self._step)
                return
            name = self._left.pop(0)
            self._cluster.say(f"{name} is drained")
            if self._back_after is not None:
                self._cluster.clock.call_after(self._back_after, partial(self._return, name))

    def _drain(self, name: str) -> float:
        """Evict what may be evicted; return after how long to go on, 0 for an empty node."""
        pods = [pod for pod in self._cluster.pods_on([name]) if not is_of_daemon_set(pod)]
        refusal = ""
        for pod in pods:
            if pod.is_terminating:
                continue
            reason = self._refuse(pod)
            if reason:
                refusal = reason
            else:
                self._kubelets.delete(pod)
        if refusal and refusal != self._refusal:
            self._cluster.say(f"{name}: an eviction is refused, {refusal}")
        self._refusal = refusal
        if refusal:
            return EVICTION_RETRY_S
        return _POLL_S if any(pod.key in self._cluster.pods for pod in pods) else 0.0

    def _refuse(self, pod: WorkloadPod) -> str:
        covering = [budget for budget in self._budgets if budget.covers(pod)]
        replicas = sum(
            deployment.replicas
            for deployment in self._deployments
            if any(budget.covers(other) for budget in covering[:1] for other in deployment.pods)
        )
        pods = [*self._cluster.pods.values(), *self._cluster.other_pods]
        return eviction_refusal(pod, self._budgets, pods=pods, replicas=replicas)

    def _return(self, name: str) -> None:
        self._set_schedulable(name, is_schedulable=True)
        self._cluster.say(f"{name} is uncordoned")

    def _set_schedulable(self, name: str, *, is_schedulable: bool) -> None:
        node = self._cluster.nodes[name]
        spec = replace(node.spec, unschedulable=not is_schedulable)
        self._cluster.put_node(replace(node, spec=spec))


def _name_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
