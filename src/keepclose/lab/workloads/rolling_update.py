"""Numbers of an update in steps: how many pods may be missing, how many too many, who gets which.

Shares round as in Kubernetes: the surge up, what may be missing of a Deployment down, of a
DaemonSet up. If both of a Deployment come to nothing one pod may be missing, or it would never
move.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.lab.workloads.types import (
    Deployment,
    IntOrPercent,
    ReplicaSet,
    RolloutStrategy,
    owned_by,
)
from keepclose.model.json_values import JsonObject, parse_natural
from keepclose.model.meta import ObjectMeta

TEMPLATE_HASH_LABEL: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
REVISION_HISTORY: Final = "deployment.kubernetes.io/revision-history"
DESIRED_REPLICAS: Final = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS: Final = "deployment.kubernetes.io/max-replicas"
_NOT_INHERITED: Final = frozenset(
    (
        "kubectl.kubernetes.io/last-applied-configuration",
        REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
        "deprecated.deployment.rollback.to",
    )
)
# No vowels and nothing that looks like one, so that no words come out.
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_HASH_LENGTH: Final = 10
_NAME_LENGTH: Final = 253
MOST_REPLICAS: Final = 2**31 - 1
"""An int32 in the API: with maxSurge beside it a size could come to more, which no server takes."""


def template_hash(template: JsonObject, collisions: int = 0) -> str:
    """Return a short text that is the same for equal templates."""
    text = msgspec.json.encode(_essence(template), order="deterministic")
    if collisions:
        text += str(collisions).encode()
    digest = hashlib.sha256(text).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:_HASH_LENGTH])


def is_same_template(one: JsonObject, other: JsonObject) -> bool:
    """Return whether two templates make the same pods; the label with the hash does not count."""
    return bool(_essence(one) == _essence(other))


def find_current(deployment: Deployment, replica_sets: Iterable[ReplicaSet]) -> ReplicaSet | None:
    """Return the ReplicaSet of the present template, the oldest if there are several."""
    template = deployment.spec.template
    return next(
        (one for one in by_age(replica_sets) if is_same_template(one.spec.template, template)),
        None,
    )


def by_age(replica_sets: Iterable[ReplicaSet]) -> list[ReplicaSet]:
    """Return them with the oldest first."""
    return sorted(
        replica_sets, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)
    )


def revision_of(meta: ObjectMeta) -> int:
    """Return the revision that an object carries, 0 for none."""
    return number_in(meta, REVISION)


def number_in(meta: ObjectMeta, annotation: str) -> int:
    """Return the number that an annotation holds, 0 where it holds none."""
    return parse_natural(meta.annotations.get(annotation, "")) or 0


def next_revision(old: Sequence[ReplicaSet]) -> int:
    """Return the revision that comes after those of the old ReplicaSets."""
    return max((revision_of(one.metadata) for one in old), default=0) + 1


def new_replica_set(deployment: Deployment, *, replicas: int, revision: int) -> JsonObject:
    """Return the ReplicaSet for the present template."""
    meta, spec = deployment.metadata, deployment.spec
    hashed = template_hash(spec.template, deployment.status.collision_count or 0)
    template_meta = spec.template.get("metadata") or {}
    labels = {**(template_meta.get("labels") or {}), TEMPLATE_HASH_LABEL: hashed}
    selector: JsonObject = {} if spec.selector is None else msgspec.to_builtins(spec.selector)
    selector["matchLabels"] = {**selector.get("matchLabels", {}), TEMPLATE_HASH_LABEL: hashed}
    return {
        "metadata": {
            "name": f"{meta.name[: _NAME_LENGTH - _HASH_LENGTH - 1]}-{hashed}",
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": {
                **inherited_annotations(meta),
                REVISION: str(revision),
                **size_annotations(deployment),
            },
            "ownerReferences": [owned_by(deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.min_ready_seconds,
            "selector": selector,
            "template": {**spec.template, "metadata": {**template_meta, "labels": labels}},
        },
    }


def inherited_annotations(meta: ObjectMeta) -> dict[str, str]:
    """Return the annotations of a Deployment that its ReplicaSet gets too."""
    return {key: value for key, value in meta.annotations.items() if key not in _NOT_INHERITED}


def size_annotations(deployment: Deployment) -> dict[str, str]:
    """Return by what a ReplicaSet knows for which size of its Deployment it was made."""
    replicas = deployment.spec.replicas
    most = replicas + deployment_bounds(deployment).max_surge
    return {DESIRED_REPLICAS: str(replicas), MAX_REPLICAS: str(most)}


def current_annotations(
    deployment: Deployment, current: ReplicaSet, old: Sequence[ReplicaSet]
) -> dict[str, str]:
    """Return the annotations that the present ReplicaSet lacks or has otherwise.

    One that comes back keeps its former revisions in its history.
    """
    wanted = inherited_annotations(deployment.metadata)
    have, revision = current.metadata.annotations, next_revision(old)
    former = revision_of(current.metadata)
    if former < revision:
        wanted[REVISION] = str(revision)
        if former:
            before = have.get(REVISION_HISTORY, "")
            wanted[REVISION_HISTORY] = f"{before},{former}" if before else str(former)
    return {key: value for key, value in wanted.items() if have.get(key) != value}


def _essence(template: JsonObject) -> Any:
    """Return the template without the hash, and without members that say nothing."""
    meta = dict(template.get("metadata") or {})
    labels = dict(meta.get("labels") or {})
    labels.pop(TEMPLATE_HASH_LABEL, None)
    return _without_nulls({**template, "metadata": {**meta, "labels": labels}})


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value


class RolloutBounds(NamedTuple):
    """How many pods may be missing, and how many may be there beyond those wanted."""

    max_unavailable: int
    max_surge: int


class Size(NamedTuple):
    """How many replicas a ReplicaSet gets."""

    replica_set: ReplicaSet
    replicas: int


def resolve_share(share: IntOrPercent | None, whole: int, *, up: bool) -> int:
    """Return the number that a share of the whole is; 0 for none and for what is no share."""
    if share is None or isinstance(share, int):
        return max(0, share or 0)
    digits = share.removesuffix("%")
    percent = parse_natural(digits)
    if digits == share or percent is None:
        return 0
    exact = percent * whole
    return -(-exact // 100) if up else exact // 100


def deployment_bounds(deployment: Deployment) -> RolloutBounds:
    """Return the bounds of a Deployment; nothing may be missing where pods are all recreated."""
    strategy, replicas = deployment.spec.strategy, deployment.spec.replicas
    if strategy.type != "RollingUpdate":
        return RolloutBounds(0, 0)
    rolling = strategy.rolling_update
    surge = resolve_share(rolling.max_surge if rolling else "25%", replicas, up=True)
    missing = resolve_share(rolling.max_unavailable if rolling else "25%", replicas, up=False)
    if surge == 0 == missing:
        missing = 1
    return RolloutBounds(min(missing, replicas), min(surge, MOST_REPLICAS))


def daemon_bounds(strategy: RolloutStrategy, nodes: int) -> RolloutBounds:
    """Return the bounds of a DaemonSet that wants a pod on so many nodes."""
    if strategy.type != "RollingUpdate":
        return RolloutBounds(0, 0)
    rolling = strategy.rolling_update
    surge = resolve_share(rolling.max_surge if rolling else 0, nodes, up=True)
    missing = resolve_share(rolling.max_unavailable if rolling else 1, nodes, up=True)
    if surge == 0 == missing:
        missing = 1
    return RolloutBounds(missing, surge)


def spread_proportionally(
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
