"""Which ReplicaSet belongs to which template of a Deployment, and what it is called and told.

A template is known by its content: the name of its ReplicaSet and the label pod-template-hash come
from a hash of it, so that whoever crashes and comes back finds the same one, and a template that is
changed back finds the ReplicaSet that it had before. Revisions count up as `kubectl rollout
history` and `undo` read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from keepclose.lab.workloads.rolling_update import deployment_bounds
from keepclose.lab.workloads.types import Deployment, ReplicaSet, owned_by
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
