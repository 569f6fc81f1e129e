"""How an object is deleted: at once, after a grace period, or when its last finalizer is removed.

This module decides only; the caller stores the result. An object is removed at once unless it has
finalizers, its kind has a grace period (pods have one), or the client asks the garbage collector to
act first, which is expressed by a finalizer. An object that is being deleted is removed with the
update that removes its last finalizer. Namespaces have a second list of finalizers, in their spec,
which their contents hold.
"""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from keepclose.apiserver.registry.metadata import (
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    finalizers_of,
)
from keepclose.apiserver.registry.strategy import KindStrategy
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.status_errors import StatusError, conflict, forbidden, invalid_object
from keepclose.model.field_errors import FieldError, not_supported
from keepclose.model.field_errors import invalid as invalid_value
from keepclose.model.json_values import JsonObject

IMMORTAL_NAMESPACES: Final = frozenset({"default", "kube-system", "kube-public"})
_NANOSECONDS: Final = 10**9
_HALF_RANGE: Final = 1 << 63
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


class Propagation(StrEnum):
    """How the dependents of a deleted object are treated."""

    FOREGROUND = "Foreground"
    BACKGROUND = "Background"
    ORPHAN = "Orphan"


class Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    """Preconditions of a deletion; a conflict rejects it when the stored object differs."""

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    """The client's DeleteOptions; the members are those of the API."""

    grace_period_seconds: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    preconditions: Preconditions = Preconditions()


class DeletionStep(StrEnum):
    """What the write path does with the stored object."""

    # Remove it from the store; the object is its last state.
    REMOVE = "remove"
    # Store the object with its deletionTimestamp.
    MARK = "mark"
    # Do nothing: the object is being deleted already.
    WAIT = "wait"


class Deletion(msgspec.Struct, frozen=True):
    """Result of a delete request. The stored object is never changed."""

    step: DeletionStep
    object: JsonObject


def check_options(options: DeleteOptions) -> None:
    """Raise a StatusError when the options contradict each other."""
    policy = options.propagation_policy
    causes: list[FieldError] = []
    if policy is not None and options.orphan_dependents is not None:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(invalid_value("propagationPolicy", policy, detail))
    if policy is not None and policy not in list(Propagation):
        causes.append(not_supported("propagationPolicy", policy, (*Propagation, "nil")))
    if causes:
        raise invalid_object("DeleteOptions", "meta.k8s.io", "", causes)


def decide_deletion(
    resource: Resource,
    stored: JsonObject,
    strategy: KindStrategy,
    options: DeleteOptions,
    *,
    now: str,
) -> Deletion:
    """Return the result of a request to delete the object; raises a StatusError to reject it.

    `now` is RFC 3339, to the second.
    """
    check_options(options)
    _check_preconditions(resource, stored, options.preconditions)
    if resource.kind == "Namespace":
        return _decide_namespace(stored, options, now)
    asked = options.grace_period_seconds
    if asked is not None and asked < 0:
        asked = 1
    marked = _copy(stored)
    graceful = _begin_grace(marked, strategy.grace_period(stored, asked), asked, now)
    if graceful is None:
        return Deletion(DeletionStep.WAIT, stored)
    _set_finalizers(marked, _desired_finalizers(stored, options))
    if finalizers_of(marked):
        if not graceful:
            _mark(marked, now)
        return Deletion(DeletionStep.WAIT if marked == stored else DeletionStep.MARK, marked)
    if graceful and marked["metadata"]["deletionGracePeriodSeconds"] > 0:
        return Deletion(DeletionStep.MARK, marked)
    return Deletion(DeletionStep.REMOVE, marked)


def is_finished(new: JsonObject) -> bool:
    """Return whether to remove an updated object: it is being deleted and no finalizer is left."""
    metadata = new["metadata"]
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    if new.get("kind") == "Namespace" and (new.get("spec") or {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def reject_immortal_namespace(resource: Resource, name: str) -> None:
    """Raise a StatusError for the namespaces that every cluster has."""
    if resource.kind == "Namespace" and name in IMMORTAL_NAMESPACES:
        raise forbidden("namespaces", "", name, "this namespace may not be deleted")


def reject_new_content(resource: Resource, name: str, namespace: JsonObject) -> None:
    """Raise a StatusError when an object is created in a namespace that is being deleted."""
    if not namespace["metadata"].get("deletionTimestamp"):
        return
    namespace_name = namespace["metadata"]["name"]
    why = (
        f"unable to create new content in namespace {namespace_name} because it is being terminated"
    )
    error = forbidden(resource.plural, resource.group, name, why)
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace_name} is being terminated",
        "field": "metadata.namespace",
    }
    error.details = {**(error.details or {}), "causes": [cause]}
    raise error


def _check_preconditions(resource: Resource, stored: JsonObject, required: Preconditions) -> None:
    metadata = stored["metadata"]
    # NB: these conflicts name the kind, as in kube-apiserver; all others name the resource.
    if required.uid is not None and required.uid != metadata.get("uid", ""):
        raise _conflict(
            resource,
            stored,
            f"the UID in the precondition ({required.uid}) does not match the UID in record "
            f"({metadata.get('uid', '')}). The object might have been deleted and then recreated",
        )
    version = metadata.get("resourceVersion", "")
    if required.resource_version is not None and required.resource_version != version:
        raise _conflict(
            resource,
            stored,
            f"the ResourceVersion in the precondition ({required.resource_version}) does not match "
            f"the ResourceVersion in record ({version}). The object might have been modified",
        )


def _conflict(resource: Resource, stored: JsonObject, why: str) -> StatusError:
    return conflict(resource.kind, resource.group, stored["metadata"]["name"], why)


def _begin_grace(
    marked: JsonObject, period: int | None, asked: int | None, now: str
) -> bool | None:
    """Start or shorten the grace period; return whether there is one, None when nothing changes."""
    metadata = marked["metadata"]
    if period is None:
        return False
    if not metadata.get("deletionTimestamp"):
        metadata["deletionTimestamp"] = _later(now, period)
        metadata["deletionGracePeriodSeconds"] = period
        _count_generation(metadata)
        return True
    remaining = metadata.get("deletionGracePeriodSeconds") or 0
    if remaining == 0:
        return False
    if asked is None or asked >= remaining:
        # A grace period can be shortened only.
        return None
    ends = _later(metadata["deletionTimestamp"], asked - remaining)
    if ends < now:
        ends, asked = now, min(asked, 1)
    metadata["deletionTimestamp"] = ends
    metadata["deletionGracePeriodSeconds"] = asked
    return True


def _mark(marked: JsonObject, now: str) -> None:
    metadata = marked["metadata"]
    before = metadata.get("deletionTimestamp")
    if not before:
        _count_generation(metadata)
    if not before or before > now:
        metadata["deletionTimestamp"] = now
    metadata["deletionGracePeriodSeconds"] = 0


def _desired_finalizers(stored: JsonObject, options: DeleteOptions) -> list[str]:
    """Return the finalizers that tell the garbage collector what to do first."""
    finalizers = finalizers_of(stored)
    others = [
        finalizer
        for finalizer in finalizers
        if finalizer not in (ORPHAN_FINALIZER, FOREGROUND_FINALIZER)
    ]
    if options.orphan_dependents is not None:
        return [*others, ORPHAN_FINALIZER] if options.orphan_dependents else others
    if options.propagation_policy == Propagation.ORPHAN:
        return [*others, ORPHAN_FINALIZER]
    if options.propagation_policy == Propagation.FOREGROUND:
        return [*others, FOREGROUND_FINALIZER]
    if options.propagation_policy == Propagation.BACKGROUND:
        return others
    return finalizers


def _set_finalizers(marked: JsonObject, finalizers: list[str]) -> None:
    if finalizers:
        marked["metadata"]["finalizers"] = finalizers
    else:
        marked["metadata"].pop("finalizers", None)


def _decide_namespace(stored: JsonObject, options: DeleteOptions, now: str) -> Deletion:
    metadata = stored["metadata"]
    if not metadata.get("deletionTimestamp"):
        marked = _copy(stored)
        marked["metadata"]["deletionTimestamp"] = now
        marked["status"] = {**(marked.get("status") or {}), "phase": "Terminating"}
        _set_finalizers(marked, _desired_finalizers(stored, options))
        return Deletion(DeletionStep.REMOVE if is_finished(marked) else DeletionStep.MARK, marked)
    return Deletion(DeletionStep.REMOVE if is_finished(stored) else DeletionStep.WAIT, stored)


def _copy(stored: JsonObject) -> JsonObject:
    # NB: many times as quick as copy.deepcopy.
    copied: JsonObject = msgspec.json.decode(msgspec.json.encode(stored))
    return copied


def _count_generation(metadata: JsonObject) -> None:
    # A new generation tells the controller of the object that its desired state has changed.
    if metadata.get("generation"):
        metadata["generation"] += 1


def _later(moment: str, seconds: int) -> str:
    """Return the moment so many seconds later, by the arithmetic of kube-apiserver.

    NB: Go counts nanoseconds in 64 bits, which hold 292 years and wrap below zero. So a client may
    ask for any number of seconds, and the result is always a time that can be written.
    """
    read = dt.datetime.strptime(moment, _TIME_FORMAT).replace(tzinfo=dt.UTC)
    wrapped = (seconds * _NANOSECONDS + _HALF_RANGE) % (2 * _HALF_RANGE) - _HALF_RANGE
    return (read + dt.timedelta(seconds=wrapped // _NANOSECONDS)).strftime(_TIME_FORMAT)
