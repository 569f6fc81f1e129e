"""Carries what typed rules changed over to the raw object they were read from.

Rules work on structs that know some fields of a kind; users write the others too. So nothing is
ever encoded over a raw object: two structs are compared, the one that was read from it and the one
that the rules made of it, and only the difference is written. What the structs do not know stays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from keepclose.model.json_values import JsonObject


class _Member(NamedTuple):
    name: str
    key: str
    # How the default looks; None where the field has none or is always written.
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
        by_name = {getattr(item, "name", None): place for place, item in enumerate(was)}
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
        found = raw[source]
        items.append(found if was[source] == item else _carried(found, was[source], item))
    return items


def _plain(value: Any) -> Any:
    # NB: msgspec.to_builtins keeps tuples; a raw object holds lists only.
    return msgspec.json.decode(msgspec.json.encode(value))
