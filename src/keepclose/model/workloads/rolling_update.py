"""Rolling updates: the ReplicaSet of each template of a Deployment, and the bounds of an update.

The name of a ReplicaSet and the label pod-template-hash come from a hash of the template. So a
controller finds the same ReplicaSet again after a crash, and a template that is changed back finds
its former ReplicaSet. Revisions count up as `kubectl rollout history` and `undo` read them.

Percentages round as in Kubernetes: maxSurge up, maxUnavailable of a Deployment down, of a DaemonSet
up. If both of a Deployment are 0, one pod may be unavailable, or the update would never progress.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.model.json_values import JsonObject, parse_natural
from keepclose.model.meta import ObjectMeta
from keepclose.model.workloads.types import (
    Deployment,
    IntOrPercent,
    ReplicaSet,
    RolloutStrategy,
    owned_by,
)

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
# No vowels and no digits that look like one, so that a hash spells no word.
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_HASH_LENGTH: Final = 10
_NAME_LENGTH: Final = 253
MOST_REPLICAS: Final = 2**31 - 1
"""An int32 in the API: with maxSurge a size could exceed it, which no server accepts."""


def template_hash(template: JsonObject, collisions: int = 0) -> str:
    """Return a short text that is the same for equal templates."""
    text = msgspec.json.encode(_essence(template), order="deterministic")
    if collisions:
        text += str(collisions).encode()
    digest = hashlib.sha256(text).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:_HASH_LENGTH])


def is_same_template(template: JsonObject, other: JsonObject) -> bool:
    """Return whether two templates give the same pods; the label with the hash does not count."""
    return bool(_essence(template) == _essence(other))


def find_current(deployment: Deployment, replica_sets: Iterable[ReplicaSet]) -> ReplicaSet | None:
    """Return the ReplicaSet of the current template, the oldest if there are several."""
    template = deployment.spec.template
    return next(
        (
            replica_set
            for replica_set in by_age(replica_sets)
            if is_same_template(replica_set.spec.template, template)
        ),
        None,
    )


def by_age(replica_sets: Iterable[ReplicaSet]) -> list[ReplicaSet]:
    """Return the ReplicaSets with the oldest first."""
    return sorted(
        replica_sets,
        key=lambda replica_set: (
            replica_set.metadata.creation_timestamp or "",
            replica_set.metadata.name,
        ),
    )


def revision_of(meta: ObjectMeta) -> int:
    """Return the revision that an object carries, 0 for none."""
    return number_in(meta, REVISION)


def number_in(meta: ObjectMeta, annotation: str) -> int:
    """Return the number in an annotation, 0 if there is none."""
    return parse_natural(meta.annotations.get(annotation, "")) or 0


def next_revision(old: Sequence[ReplicaSet]) -> int:
    """Return the revision that comes after those of the old ReplicaSets."""
    return max((revision_of(replica_set.metadata) for replica_set in old), default=0) + 1


def new_replica_set(deployment: Deployment, *, replicas: int, revision: int) -> JsonObject:
    """Return the ReplicaSet for the current template."""
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
    """Return the annotations of a ReplicaSet that record the size of its Deployment."""
    replicas = deployment.spec.replicas
    most = replicas + deployment_bounds(deployment).max_surge
    return {DESIRED_REPLICAS: str(replicas), MAX_REPLICAS: str(most)}


def current_annotations(
    deployment: Deployment, current: ReplicaSet, old: Sequence[ReplicaSet]
) -> dict[str, str]:
    """Return the annotations that the current ReplicaSet lacks or has with another value.

    A ReplicaSet that is current again keeps its former revisions in its history.
    """
    annotations = inherited_annotations(deployment.metadata)
    have, revision = current.metadata.annotations, next_revision(old)
    former = revision_of(current.metadata)
    if former < revision:
        annotations[REVISION] = str(revision)
        if former:
            before = have.get(REVISION_HISTORY, "")
            annotations[REVISION_HISTORY] = f"{before},{former}" if before else str(former)
    return {key: value for key, value in annotations.items() if have.get(key) != value}


class RolloutBounds(NamedTuple):
    """How many pods may be unavailable, and how many may exist beyond the desired number."""

    max_unavailable: int
    max_surge: int


class Size(NamedTuple):
    """How many replicas a ReplicaSet gets."""

    replica_set: ReplicaSet
    replicas: int


def resolve_share(share: IntOrPercent | None, whole: int, *, up: bool) -> int:
    """Return a number or percentage as a number; 0 for None and for an invalid percentage."""
    if share is None or isinstance(share, int):
        return max(0, share or 0)
    digits = share.removesuffix("%")
    percent = parse_natural(digits)
    if digits == share or percent is None:
        return 0
    exact = percent * whole
    return -(-exact // 100) if up else exact // 100


def deployment_bounds(deployment: Deployment) -> RolloutBounds:
    """Return the bounds of a Deployment; both are 0 with the strategy Recreate."""
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
    """Return the bounds of a DaemonSet that should run on this number of nodes."""
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
    """Return the sizes when a Deployment is scaled during an update.

    Every active ReplicaSet is scaled in proportion, so that scaling neither speeds up nor slows
    down the update. `former_most` has by name how many pods the Deployment could have had when the
    ReplicaSet was last sized. The largest takes the remainder of rounding.
    """
    desired = deployment.spec.replicas
    most = desired + deployment_bounds(deployment).max_surge if desired else 0
    to_add = most - sum(replica_set.spec.replicas for replica_set in replica_sets)
    # Of two equal sizes the newer is scaled up first and the older is scaled down first.
    by_age = sorted(
        replica_sets,
        key=lambda replica_set: (
            replica_set.metadata.creation_timestamp or "",
            replica_set.metadata.name,
        ),
        reverse=to_add > 0,
    )
    ordered = sorted(by_age, key=lambda replica_set: -replica_set.spec.replicas)
    added = 0
    sizes: list[Size] = []
    for replica_set in ordered:
        part = _part(replica_set, deployment, former_most.get(replica_set.metadata.name, 0))
        left = to_add - added
        part = min(part, left) if to_add > 0 else max(part, left)
        added += part
        sizes.append(Size(replica_set, replica_set.spec.replicas + part))
    if sizes:
        first = sizes[0]
        rest = max(0, first.replicas + to_add - added)
        sizes[0] = Size(first.replica_set, min(MOST_REPLICAS, rest))
    return sizes


def _essence(template: JsonObject) -> Any:
    """Return the template without the hash and without nulls."""
    meta = dict(template.get("metadata") or {})
    labels = dict(meta.get("labels") or {})
    labels.pop(TEMPLATE_HASH_LABEL, None)
    return _without_nulls({**template, "metadata": {**meta, "labels": labels}})


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _part(replica_set: ReplicaSet, deployment: Deployment, former_most: int) -> int:
    size, desired = replica_set.spec.replicas, deployment.spec.replicas
    if desired == 0:
        return -size
    before = former_most or deployment.status.replicas
    if before == 0:
        return 0
    most = desired + deployment_bounds(deployment).max_surge
    return min(MOST_REPLICAS, math.floor(size * most / before + 0.5)) - size
