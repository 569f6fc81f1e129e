"""What every kind does with a write, unless its own strategy overrides it.

The write path calls, in this order: `prepare_create` or `prepare_update`, `metadata_causes` (which
is the same for all kinds), `validate` for the rest, `warnings`, the store, and last `settle` with
the very object that was prepared and whether it was stored, so that allocations are kept or
released. Objects are plain JSON values and are changed in place. A typed subset is never encoded
over a user's object, because that would lose the fields it does not know: `carry` compares the
struct that was read from the object with the changed struct, and writes only the difference.
`same` compares raw values as Kubernetes does, to which an empty list and none at all are equal.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from keepclose.apiserver.registry.metadata import carry_system_metadata
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.status_errors import bad_request, invalid_object
from keepclose.model.decoding import KnownObject, Rejected, convert
from keepclose.model.field_errors import FieldError
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

Known = TypeVar("Known", bound=KnownObject)


class WriteContext(msgspec.Struct, frozen=True):
    """The facts of a write that a strategy reads besides the objects."""

    gates: FeatureGates
    # RFC 3339, to the second.
    now: str
    dry_run: bool = False


class KindStrategy:
    """Interface of a strategy; the defaults store an object as it is."""

    # Whether an update may come without a resourceVersion.
    allows_unconditional_update = True
    # Whether a PUT to a free name creates the object.
    allows_create_on_update = False
    # Whether metadata.generation is counted: 1 at creation, one more with every change of the spec.
    counts_generations = False
    # Whether status is written by its own subresource only.
    has_status = False
    # Whether `restore` must see the stored objects at start; most kinds need not.
    restores = False
    # Whether a delete that takes effect at once is answered with the object, not with a Status.
    returns_deleted = False

    def set_defaults(self, new: JsonObject) -> None:
        """Set what a client may leave out; the write path does so before owners are recorded."""

    def prepare_create(self, new: JsonObject, context: WriteContext) -> None:
        """Set defaults, drop what may not be set by a create."""

    def prepare_update(
        self, new: JsonObject, old: JsonObject, context: WriteContext, *, subresource: str = ""
    ) -> None:
        """Set defaults, carry over from the stored object what this write may not change."""

    def validate(
        self,
        new: JsonObject,
        old: JsonObject | None,
        context: WriteContext,
        *,
        subresource: str = "",
    ) -> list[FieldError]:
        """Return the validation errors apart from metadata; `old` is the stored object, if any."""
        del new, old, context, subresource
        return []

    def warnings(self, new: JsonObject, old: JsonObject | None, context: WriteContext) -> list[str]:
        """Return the warnings for the client of an accepted write."""
        del new, old, context
        return []

    def status_warnings(self, new: JsonObject) -> list[str]:
        """Return the warnings for the client of an accepted status update."""
        del new
        return []

    def settle(self, new: JsonObject, old: JsonObject | None, *, stored: bool) -> None:
        """Keep what was allocated for this write, or release it."""

    def restore(self, stored: JsonObject) -> None:
        """Allocate what an object holds that was in the store at start."""

    def remove(self, old: JsonObject) -> None:
        """Release what a deleted object held."""

    def on_read(self, stored: JsonObject) -> None:
        """Change a stored object, in place, to what readers see of it."""

    def grace_period(self, stored: JsonObject, asked: int | None) -> int | None:
        """Return the grace period in seconds of an object whose deletion a client requests.

        `asked` is the client's gracePeriodSeconds, or None. The result is None for kinds without a
        grace period; with 0 the object is removed at once.
        """
        del stored, asked
        return None


def read_as(kind: type[Known], raw: dict[str, Any]) -> Known:
    """Return the raw object as the struct of its kind; raises a StatusError when it is not one."""
    decoded = convert(raw)
    if isinstance(decoded, kind):
        return decoded
    if isinstance(decoded, Rejected):
        name = (raw.get("metadata") or {}).get("name", "")
        raise invalid_object(kind.__name__, "", name, [decoded.cause])
    raise bad_request(f"the object provided is unrecognized (must be of type {kind.__name__})")


class _Member(NamedTuple):
    name: str
    key: str
    # The default value; None where the field has none or is always written.
    default: Any
    omitted: bool


def carry(raw: JsonObject, before: msgspec.Struct, after: msgspec.Struct) -> None:
    """Write into the raw object exactly what differs between the two structs.

    `before` is what the raw object was read as. Fields that became their default are removed.
    """
    if before is after:
        return
    for member in _members(type(after)):
        was, now = getattr(before, member.name), getattr(after, member.name)
        if was is now or was == now:
            continue
        if member.omitted and now == member.default and not _is_part(now, raw.get(member.key)):
            raw.pop(member.key, None)
            continue
        value = _carried(raw.get(member.key), was, now)
        if member.omitted and value == {} and now == member.default:
            raw.pop(member.key, None)
        else:
            raw[member.key] = value


class PlainStrategy(KindStrategy):
    """Strategy of a kind without rules of its own, and the base of all others."""

    # Metadata that a status update does not change; outside metadata and status it changes nothing.
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

    def prepare_create(self, new: JsonObject, context: WriteContext) -> None:
        """Set defaults, start the status and the generation."""
        del context
        if self.has_status:
            new["status"] = self.first_status()
        if self.counts_generations:
            new["metadata"]["generation"] = 1
        self.set_defaults(new)

    def prepare_update(
        self, new: JsonObject, old: JsonObject, context: WriteContext, *, subresource: str = ""
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
        context: WriteContext,
        *,
        subresource: str = "",
    ) -> list[FieldError]:
        """Return the validation errors of the object, or of its status, apart from the metadata."""
        if subresource == "status" and old is not None:
            return self.status_causes(new, old, context)
        return self.causes(new, old, context)

    def causes(
        self, new: JsonObject, old: JsonObject | None, context: WriteContext
    ) -> list[FieldError]:
        """Return the validation errors of the object."""
        del new, old, context
        return []

    def status_causes(
        self, new: JsonObject, old: JsonObject, context: WriteContext
    ) -> list[FieldError]:
        """Return the validation errors of a status update."""
        del new, old, context
        return []


def keep(new: JsonObject, old: JsonObject, key: str) -> None:
    """Copy a member of the old object to the new one; remove it where the old one has none."""
    if key in old:
        # NB: many times as quick as copy.deepcopy, for lists of thousands of conditions.
        new[key] = msgspec.json.decode(msgspec.json.encode(old[key]))
    else:
        new.pop(key, None)


def keep_all_but_status(new: JsonObject, old: JsonObject) -> None:
    """Keep everything as it is stored but the status and the metadata."""
    for key in (new.keys() | old.keys()) - {"apiVersion", "kind", "metadata", "status"}:
        keep(new, old, key)


def same(left: Any, right: Any) -> bool:
    """Return whether two raw values mean the same; empty and absent members are equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        return all(same(left.get(key), right.get(key)) for key in left.keys() | right.keys())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) or (_is_empty(left) and _is_empty(right))


@lru_cache(maxsize=256)
def _members(struct: type[msgspec.Struct]) -> tuple[_Member, ...]:
    omits = struct.__struct_config__.omit_defaults
    members: list[_Member] = []
    for field in msgspec.structs.fields(struct):
        default, omitted = None, omits
        if field.default is not msgspec.NODEFAULT:
            default = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        else:
            omitted = False
        members.append(_Member(field.name, field.encode_name, default, omitted))
    return tuple(members)


def _is_part(now: Any, raw: Any) -> bool:
    # An object that is at its default may still hold fields that the struct does not know.
    return isinstance(now, msgspec.Struct) and isinstance(raw, dict)


def _carried(raw: Any, was: Any, now: Any) -> Any:
    """Return the raw value with the change from `was` to `now` in it."""
    if isinstance(now, msgspec.Struct):
        if isinstance(raw, dict) and isinstance(was, type(now)):
            carry(raw, was, now)
            return raw
        return _plain(now)
    if isinstance(now, tuple) and isinstance(raw, list) and isinstance(was, tuple):
        return _carried_items(raw, was, now)
    return _plain(now)


def _carried_items(raw: list[Any], was: tuple[Any, ...], now: tuple[Any, ...]) -> list[Any]:
    by_name: dict[Any, int] = {}
    if len(was) != len(now):
        by_name = {getattr(item, "name", None): index for index, item in enumerate(was)}
    items: list[Any] = []
    used: set[int] = set()
    for position, item in enumerate(now):
        source = position
        if by_name and hasattr(item, "name"):
            source = by_name.get(item.name, len(was))
        if source in used or source >= min(len(was), len(raw)):
            items.append(_plain(item))
            continue
        used.add(source)
        stored_item = raw[source]
        items.append(
            stored_item if was[source] == item else _carried(stored_item, was[source], item)
        )
    return items


def _plain(value: Any) -> Any:
    # NB: msgspec.to_builtins keeps tuples; a raw object holds lists only.
    return msgspec.json.decode(msgspec.json.encode(value))


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value in ("", [])
