"""Numbers of an update in steps: how many pods may be missing, how many too many, who gets which.

Shares round as in Kubernetes: the surge up, what may be missing of a Deployment down, of a
DaemonSet up. If both of a Deployment come to nothing one pod may be missing, or it would never
move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from keepclose.lab.workloads.types import Deployment, ReplicaSet, Share, Strategy
from keepclose.model.json_values import parse_natural

MOST_REPLICAS: Final = 2**31 - 1
"""An int32 in the API: with maxSurge beside it a size could come to more, which no server takes."""


class Bounds(NamedTuple):
    """How many pods may be missing, and how many may be there beyond those wanted."""

    max_unavailable: int
    max_surge: int


class Size(NamedTuple):
    """How many replicas a ReplicaSet gets."""

    replica_set: ReplicaSet
    replicas: int


def resolve_share(share: Share | None, whole: int, *, up: bool) -> int:
    """Return the number that a share of the whole is; 0 for none and for what is no share."""
    if share is None or isinstance(share, int):
        return max(0, share or 0)
    digits = share.removesuffix("%")
    percent = parse_natural(digits)
    if digits == share or percent is None:
        return 0
    exact = percent * whole
    return -(-exact // 100) if up else exact // 100


def deployment_bounds(deployment: Deployment) -> Bounds:
    """Return the bounds of a Deployment; nothing may be missing where pods are all recreated."""
    strategy, replicas = deployment.spec.strategy, deployment.spec.replicas
    if strategy.type != "RollingUpdate":
        return Bounds(0, 0)
    rolling = strategy.rolling_update
    surge = resolve_share(rolling.max_surge if rolling else "25%", replicas, up=True)
    missing = resolve_share(rolling.max_unavailable if rolling else "25%", replicas, up=False)
    if surge == 0 == missing:
        missing = 1
    return Bounds(min(missing, replicas), min(surge, MOST_REPLICAS))


def daemon_bounds(strategy: Strategy, nodes: int) -> Bounds:
    """Return the bounds of a DaemonSet that wants a pod on so many nodes."""
    if strategy.type != "RollingUpdate":
        return Bounds(0, 0)
    rolling = strategy.rolling_update
    surge = resolve_share(rolling.max_surge if rolling else 0, nodes, up=True)
    missing = resolve_share(rolling.max_unavailable if rolling else 1, nodes, up=True)
    if surge == 0 == missing:
        missing = 1
    return Bounds(missing, surge)


def share_out(
    deployment: Deployment, replica_sets: Sequence[ReplicaSet], former_most: dict[str, int]
) -> list[Size]:
    """Return the sizes when a Deployment is scaled in the middle of an update.

    Every active ReplicaSet grows or shrinks in proportion, so that scaling neither hastens nor
    hinders the update. `former_most` tells by name how many pods the Deployment could have had
    when the ReplicaSet was last sized. The largest takes what rounding leaves over.
    """
    wanted = deployment.spec.replicas
    most = wanted + deployment_bounds(deployment).max_surge if wanted else 0
    to_add = most - sum(one.spec.replicas for one in replica_sets)
    # Of two of one size the newer grows first and the older shrinks first.
    by_age = sorted(
        replica_sets,
        key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name),
        reverse=to_add > 0,
    )
    ordered = sorted(by_age, key=lambda one: -one.spec.replicas)
    added = 0
    sizes: list[Size] = []
    for one in ordered:
        part = _part(one, deployment, former_most.get(one.metadata.name, 0))
        left = to_add - added
        part = min(part, left) if to_add > 0 else max(part, left)
        added += part
        sizes.append(Size(one, one.spec.replicas + part))
    if sizes:
        first = sizes[0]
        rest = max(0, first.replicas + to_add - added)
        sizes[0] = Size(first.replica_set, min(MOST_REPLICAS, rest))
    return sizes


def _part(replica_set: ReplicaSet, deployment: Deployment, former_most: int) -> int:
    size, wanted = replica_set.spec.replicas, deployment.spec.replicas
    if wanted == 0:
        return -size
    before = former_most or deployment.status.replicas
    if before == 0:
        return 0
    most = wanted + deployment_bounds(deployment).max_surge
    return min(MOST_REPLICAS, math.floor(size * most / before + 0.5)) - size
