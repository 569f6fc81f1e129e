"""Plain storage of a kind: status apart from the rest, defaults set, generations counted.

Kinds with rules of their own build on this one. `same` tells whether two raw values mean the same
to Kubernetes, to which an empty list and none at all are alike.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keepclose.apiserver.registry.metadata import carry_system_metadata
from keepclose.apiserver.registry.resources import Resource
from keepclose.apiserver.registry.strategy import Context, Strategy
from keepclose.model.field_errors import Cause
from keepclose.model.json_values import JsonObject


class PlainStrategy(Strategy):
    """What becomes of an object whose kind has no rules of its own."""

    # What an update through the status subresource leaves as it is, besides all but metadata.
    kept_by_status_updates: tuple[str, ...] = ()

    def __init__(self, resource: Resource) -> None:
        """Serve the objects of one kind."""
        self.resource = resource

    def set_defaults(self, new: JsonObject) -> None:
        """Set what a client may leave out; called on every write but to a status."""

    def is_new_generation(self, new: JsonObject, old: JsonObject) -> bool:
        """Return whether an update changes what the generation counts."""
        return not same(new.get("spec"), old.get("spec"))

    def first_status(self) -> JsonObject:
        """Return the status that a new object starts with."""
        return {}

    def prepare_create(self, new: JsonObject, context: Context) -> None:
        """Set defaults, start the status and the generation."""
        del context
        if self.has_status:
            new["status"] = self.first_status()
        if self.counts_generations:
            new["metadata"]["generation"] = 1
        self.set_defaults(new)

    def prepare_update(
        self, new: JsonObject, old: JsonObject, context: Context, *, subresource: str = ""
    ) -> None:
        """Set defaults; keep the status, or with a status update everything else."""
        del context
        carry_system_metadata(new, old)
        if subresource == "status":
            keep_all_but_status(new, old)
            for key in self.kept_by_status_updates:
                keep(new["metadata"], old["metadata"], key)
            return
        self.set_defaults(new)
        if self.has_status:
            keep(new, old, "status")
        if self.counts_generations and self.is_new_generation(new, old):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate(
        self,
        new: JsonObject,
        old: JsonObject | None,
        context: Context,
        *,
        subresource: str = "",
    ) -> list[Cause]:
        """Return what is wrong with the object, or with its status, apart from the metadata."""
        if subresource == "status" and old is not None:
            return self.status_causes(new, old, context)
        return self.causes(new, old, context)

    def causes(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[Cause]:
        """Return what is wrong with the object."""
        del new, old, context
        return []

    def status_causes(self, new: JsonObject, old: JsonObject, context: Context) -> list[Cause]:
        """Return what is wrong with an update of the status."""
        del new, old, context
        return []


def keep(new: JsonObject, old: JsonObject, key: str) -> None:
    """Give the new object the old one's member, or none where the old one has none."""
    if key in old:
        # NB: many times as quick as copy.deepcopy, for lists of thousands of conditions.
        new[key] = msgspec.json.decode(msgspec.json.encode(old[key]))
    else:
        new.pop(key, None)


def keep_all_but_status(new: JsonObject, old: JsonObject) -> None:
    """Keep everything as it is stored but the status and the metadata."""
    for key in (new.keys() | old.keys()) - {"apiVersion", "kind", "metadata", "status"}:
        keep(new, old, key)


def same(one: Any, other: Any) -> bool:
    """Return whether two raw values mean the same; empty and absent members are alike."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (_is_empty(one) and _is_empty(other))


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value in ("", [])
