"""PodDisruptionBudgets: whether a pod may be evicted now.

Follows the disruption controller and the eviction subresource. Healthy are pods that are ready and
not being deleted. A budget with maxUnavailable, or with a percentage, counts from the replicas that
the workloads of its pods should have; percentages round up. One without either number permits no
eviction. A pod that does not run yet, or is being deleted, needs no budget. A pod with several
budgets is never evicted. A budget with an empty selector covers all pods of its namespace, one
without a selector none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from keepclose.model.meta import ApiStruct, ObjectMeta
from keepclose.model.workloads.constraints import NodeLabelSelector
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.rolling_update import resolve_share
from keepclose.model.workloads.types import IntOrPercent

_ALWAYS_ALLOW: Final = "AlwaysAllow"
_PENDING: Final = "Pending"


class DisruptionBudgetSpec(ApiStruct, frozen=True):
    """How many pods must stay healthy, or how many may be missing."""

    min_available: IntOrPercent | None = None
    max_unavailable: IntOrPercent | None = None
    selector: NodeLabelSelector | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudget(ApiStruct, frozen=True, omit_defaults=False):
    """A PodDisruptionBudget, without its status."""

    api_version: str = "policy/v1"
    kind: str = "PodDisruptionBudget"
    metadata: ObjectMeta = ObjectMeta()
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()

    def covers(self, pod: WorkloadPod) -> bool:
        """Return whether the budget counts the pod."""
        selector = self.spec.selector
        return (
            selector is not None
            and pod.metadata.namespace == self.metadata.namespace
            and selector.matches(pod.metadata.labels)
        )


def desired_healthy(budget: PodDisruptionBudget, *, pods: int, replicas: int) -> int:
    """Return how many of the covered pods must stay healthy.

    `pods` is the number of covered pods, `replicas` what their workloads should have.
    """
    spec = budget.spec
    if spec.max_unavailable is not None:
        return max(0, replicas - resolve_share(spec.max_unavailable, replicas, up=True))
    if spec.min_available is None:
        # Without either the disruption controller expects no pods, and then permits no eviction.
        return max(pods, replicas)
    if isinstance(spec.min_available, int):
        return spec.min_available
    return resolve_share(spec.min_available, replicas, up=True) if pods else 0


def eviction_refusal(
    pod: WorkloadPod,
    budgets: Iterable[PodDisruptionBudget],
    *,
    pods: Sequence[WorkloadPod],
    replicas: int,
) -> str:
    """Return why the pod may not be evicted now, "" if it may.

    `pods` are all pods of the namespace, `replicas` the number that the workloads of the covered
    ones should have.
    """
    if pod.is_terminating or pod.has_ended or pod.status.phase == _PENDING:
        return ""
    covering = [budget for budget in budgets if budget.covers(pod)]
    if not covering:
        return ""
    if len(covering) > 1:
        names = ", ".join(sorted(budget.metadata.name for budget in covering))
        return f"more than one PodDisruptionBudget covers the pod: {names}"
    (budget,) = covering
    covered = [other for other in pods if budget.covers(other)]
    healthy = sum(other.is_ready and not other.is_terminating for other in covered)
    desired = desired_healthy(budget, pods=len(covered), replicas=replicas)
    if not pod.is_ready and (
        budget.spec.unhealthy_pod_eviction_policy == _ALWAYS_ALLOW or healthy >= desired > 0
    ):
        return ""
    if healthy > desired:
        return ""
    return (
        f"PodDisruptionBudget {budget.metadata.name} needs {desired} healthy pods and has {healthy}"
    )
