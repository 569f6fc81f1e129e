"""Metadata shared by all objects, and the base of every struct that mirrors the Kubernetes API.

Only the fields that a decision reads are declared; msgspec ignores the others, so an object of any
Kubernetes version decodes. Sequences are tuples, so that no caller can change a cached object by
accident.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NamedTuple

import msgspec


class ApiStruct(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Base of all API structs: immutable, camel-cased on the wire, absent fields omitted.

    NB: the garbage collector does not track them. Immutable structs form no cycles, and a large
    list decodes in a third of the time.
    """


class NamespacedName(NamedTuple):
    """The identity of a namespaced object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def find_similar_names(name: str, candidates: Iterable[NamespacedName]) -> list[str]:
    """Return up to three objects with a similar name, the closest first.

    An object of the same name in another namespace is the most likely match.
    """
    keys = list(candidates)
    close = get_close_matches(name, {key.name for key in keys}, n=3)
    return [str(key) for close_name in close for key in keys if key.name == close_name][:3]


class OwnerReference(ApiStruct, frozen=True):
    """A reference from an object to its owner."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True):
    """Name, labels and bookkeeping of an object; timestamps stay RFC 3339 strings."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> NamespacedName:
        """The object's identity within its kind."""
        return NamespacedName(self.namespace, self.name)


class ManagedFieldsEntry(ApiStruct, frozen=True):
    """An entry of managedFields: when a manager last wrote the fields that it owns."""

    time: str | None = None
    subresource: str = ""


class WrittenMeta(ApiStruct, frozen=True):
    """The part of metadata that says when an object was written."""

    uid: str = ""
    managed_fields: tuple[ManagedFieldsEntry, ...] = ()


class WrittenObject(ApiStruct, frozen=True):
    """An object of any kind, with the times of its writes alone.

    NB: ObjectMeta has no managedFields, since caches would hold them and writes send them back.
    """

    metadata: WrittenMeta = WrittenMeta()

    @property
    def last_write(self) -> str:
        """The time of the last write of metadata or spec; "" if it is not known."""
        entries = self.metadata.managed_fields
        return max((entry.time or "" for entry in entries if not entry.subresource), default="")


def controller_reference(kind: str, meta: ObjectMeta) -> OwnerReference:
    """Return the owner reference of an object that a core/v1 object of this kind controls."""
    return OwnerReference(
        api_version="v1",
        kind=kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )


class ObjectReference(ApiStruct, frozen=True):
    """A reference to another object, such as the pod of an endpoint."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class Condition(ApiStruct, frozen=True):
    """The standard status condition, keyed by type."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None
