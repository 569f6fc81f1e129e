"""One write of an object, and what every kind does with it unless its own strategy overrides it.

The write path calls, in this order: `set_defaults`, `prepare_create` or `prepare_update`,
`metadata_causes` (which is the same for all kinds), `validate` for the rest, `on_read`, `warnings`,
the store, and last `settle`, so that allocations are kept or released. All get the same
`ObjectWrite`. Objects are plain JSON values and are changed in place. A typed subset is never
encoded over a user's object, because that would lose the fields it does not know: `carry` compares
the struct that was read from the object with the changed struct, and writes only the difference.
`same` compares raw values as Kubernetes does, to which an empty list and none at all are equal.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from keepclose.apiserver.registry.metadata import carry_system_metadata, read_object_metadata
from keepclose.apiserver.registry.service_allocation import Reservation
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.status_errors import bad_request, invalid_object
from keepclose.model.decoding import KnownObject, Rejected, convert
from keepclose.model.field_errors import FieldError
from keepclose.model.gates import DEFAULT_GATES, FeatureGates
from keepclose.model.json_values import JsonObject

Known = TypeVar("Known", bound=KnownObject)
# All other members of an object are kept by a status update.
_CHANGED_BY_STATUS_UPDATES: Final = {"apiVersion", "kind", "metadata", "status"}


class ObjectWrite:
    """One write: the object that is to be stored, the stored one, and the facts of the request.

    Strategies change the raw object `new` in place. Kinds with a struct read it by `read_new`,
    which decodes it once. From then on the methods below change the raw object and the struct
    together. The struct does not show what is written into `new` past them: a first status, the
    generation, metadata that a status update keeps.
    """

    def __init__(
        self,
        new: JsonObject,
        old: JsonObject | None = None,
        *,
        gates: FeatureGates = DEFAULT_GATES,
        now: str = "",
        dry_run: bool = False,
        subresource: str = "",
    ) -> None:
        """Hold the raw objects; `old` is None on create, `now` is RFC 3339, to the second."""
        self.new = new
        # Empty on create.
        self.old: JsonObject = {} if old is None else old
        self.is_create = old is None
        self.gates = gates
        self.now = now
        self.dry_run = dry_run
        self.subresource = subresource
        # What a strategy has allocated for this write, until it is settled.
        self.reservation: Reservation | None = None
        self._new: KnownObject | None = None
        self._old: KnownObject | None = None

    def read_new(self, kind: type[Known]) -> Known:
        """Return the new object as its struct; raises a StatusError when it is not one."""
        if not isinstance(self._new, kind):
            self._new = read_as(kind, self.new)
        return self._new

    def read_old(self, kind: type[Known]) -> Known:
        """Return the stored object as its struct; raises a StatusError when it is not one."""
        if not isinstance(self._old, kind):
            self._old = read_as(kind, self.old)
        return self._old

    def change(self, after: KnownObject) -> None:
        """Write into the new object what differs between its struct and the given one."""
        carry(self.new, self.read_new(type(after)), after)
        self._new = after

    def keep_system_metadata(self) -> None:
        """Give an update the metadata of the stored object that a client cannot change."""
        carry_system_metadata(self.new, self.old)
        if self._new is not None:
            self._new = msgspec.structs.replace(self._new, metadata=read_object_metadata(self.new))

    def keep_status(self) -> None:
        """Keep the stored status."""
        keep(self.new, self.old, "status")
        if self._new is not None:
            stored: Any = self.read_old(type(self._new))
            self._new = msgspec.structs.replace(self._new, status=stored.status)

    def keep_all_but_status(self) -> None:
        """Keep everything as it is stored but the status and the metadata."""
        for key in (self.new.keys() | self.old.keys()) - _CHANGED_BY_STATUS_UPDATES:
            keep(self.new, self.old, key)
        if self._new is not None:
            sent: Any = self._new
            self._new = msgspec.structs.replace(
                self.read_old(type(self._new)), metadata=sent.metadata, status=sent.status
            )


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

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set what a client may leave out.

        Create and update record the owners of fields afterwards; apply, and all writes of
        events.k8s.io, have recorded them before.
        """

    def prepare_create(self, write: ObjectWrite) -> None:
        """Allocate, drop what may not be set by a create."""

    def prepare_update(self, write: ObjectWrite) -> None:
        """Carry over from the stored object what this write may not change; allocate."""

    def validate(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors apart from metadata."""
        del write
        return []

    def on_read(self, write: ObjectWrite) -> None:
        """Change the valid object, in place, to what readers see of it."""

    def warnings(self, write: ObjectWrite) -> list[str]:
        """Return the warnings for the client of an accepted write."""
        del write
        return []

    def status_warnings(self, write: ObjectWrite) -> list[str]:
        """Return the warnings for the client of an accepted status update."""
        del write
        return []

    def settle(self, write: ObjectWrite, *, stored: bool) -> None:
        """Keep what was allocated for this write, or release it."""

    def restore(self, stored: JsonObject) -> None:
        """Allocate what an object holds that was in the store at start."""

    def remove(self, old: JsonObject) -> None:
        """Release what a deleted object held."""

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

    def is_new_generation(self, write: ObjectWrite) -> bool:
        """Return whether an update changes what the generation counts."""
        return not same(write.new.get("spec"), write.old.get("spec"))

    def first_status(self) -> JsonObject:
        """Return the status that a new object starts with."""
        return {}

    def prepare_create(self, write: ObjectWrite) -> None:
        """Start the status and the generation."""
        if self.has_status:
            write.new["status"] = self.first_status()
        if self.counts_generations:
            write.new["metadata"]["generation"] = 1

    def prepare_update(self, write: ObjectWrite) -> None:
        """Keep the status, or with a status update everything else; count the generation."""
        metadata, before = write.new["metadata"], write.old["metadata"]
        if write.subresource == "status":
            write.keep_all_but_status()
            for key in self.kept_by_status_updates:
                keep(metadata, before, key)
            return
        if self.has_status:
            write.keep_status()
        if self.counts_generations and self.is_new_generation(write):
            metadata["generation"] = before.get("generation", 0) + 1

    def validate(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the object, or of its status, apart from the metadata."""
        return self.status_causes(write) if write.subresource == "status" else self.causes(write)

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the object."""
        del write
        return []

    def status_causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of a status update."""
        del write
        return []


def keep(new: JsonObject, old: JsonObject, key: str) -> None:
    """Copy a member of the old object to the new one; remove it where the old one has none."""
    if key in old:
        # NB: many times as quick as copy.deepcopy, for lists of thousands of conditions.
        new[key] = msgspec.json.decode(msgspec.json.encode(old[key]))
    else:
        new.pop(key, None)


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
