"""Decoding of typed objects from JSON or plain values, or the field error that prevents it.

Types are strict, as in the API: `port: "80"` and a label `app: 1` are rejected with the path of the
field. A null member counts as absent, and in a map of strings as "", as in the decoder of the API.
Unknown kinds are distinguished from invalid objects, so that a caller can skip a Deployment and
still report an invalid Service. Nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from keepclose.model.core_kinds import Event, Lease
from keepclose.model.endpointslice.types import Endpoints, EndpointSlice
from keepclose.model.field_errors import FieldError, invalid, required
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod

_T = TypeVar("_T")
KnownObject = Node | Pod | Service | EndpointSlice | Endpoints | Event | Lease

KINDS: Final[dict[tuple[str, str], type[KnownObject]]] = {
    ("v1", "Node"): Node,
    ("v1", "Pod"): Pod,
    ("v1", "Service"): Service,
    ("discovery.k8s.io/v1", "EndpointSlice"): EndpointSlice,
    ("v1", "Endpoints"): Endpoints,
    ("v1", "Event"): Event,
    ("coordination.k8s.io/v1", "Lease"): Lease,
}
API_VERSIONS: Final = {kind: api_version for api_version, kind in KINDS}
CLUSTER_SCOPED: Final = frozenset({"Node"})
# The field of an error about the object as a whole.
WHOLE_OBJECT: Final = "object"

_DECODERS: Final = {kind: msgspec.json.Decoder(struct) for (_, kind), struct in KINDS.items()}
# NB: in these maps a null member has the value "" and is not absent: a node with the label
# `node-role.kubernetes.io/control-plane:` belongs to the control plane.
_STRING_MAPS: Final = frozenset({"labels", "annotations", "selector", "deprecatedTopology"})
_SCALARS = (str, int, float, type(None))
_DISPLAY_NAMES: Final = {
    "int": "a number",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "a list",
    "object": "a map",
    "null": "null",
}
_step = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")
_read_message = re.compile(
    r"(?:Expected `(?P<expected>[^`]+)`, got `(?P<got>[^`]+)`"
    r"|Object missing required field `(?P<missing>[^`]+)`"
    r"|(?P<other>.*?))"
    r"(?: - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`)?",
    re.DOTALL,
).fullmatch
_TYPE_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (type(None), "null"),
    (list, "array"),
    (dict, "object"),
)


class Rejected(msgspec.Struct, frozen=True):
    """The field error for which an object was rejected."""

    cause: FieldError


class UnknownKind(msgspec.Struct, frozen=True):
    """A kind, or a version of a kind, that keepclose does not decode."""

    api_version: str
    kind: str


def decode(kind: str, data: bytes | bytearray | memoryview) -> KnownObject | Rejected | UnknownKind:
    """Return the object of the given kind that the JSON holds.

    apiVersion and kind may be absent, as in the items of a list; if present they must be those of
    the kind.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return UnknownKind("", kind)
    try:
        decoded = decoder.decode(data)
    except msgspec.ValidationError:
        try:
            raw = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _reject_json(data, error)
        result = convert_as(KINDS[API_VERSIONS[kind], kind], raw)
        if isinstance(result, Rejected):
            return result
        decoded = result
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _reject_json(data, error)
    if decoded.kind != kind:
        return Rejected(invalid("kind", decoded.kind, f"must be {kind}"))
    if decoded.api_version != API_VERSIONS[kind]:
        detail = f"must be {API_VERSIONS[kind]}"
        return Rejected(invalid("apiVersion", decoded.api_version, detail))
    return decoded


def convert(
    raw: dict[str, Any], *, kinds: Mapping[tuple[str, str], type[KnownObject]] = KINDS
) -> KnownObject | Rejected | UnknownKind:
    """Return the object in plain values, by its apiVersion and kind.

    The values are those of JSON; they are not changed. `kinds` has the struct of each kind.
    """
    for field in ("apiVersion", "kind"):
        value = raw.get(field)
        if value is None or value == "":
            return Rejected(required(field))
        if not isinstance(value, str):
            return Rejected(
                invalid(field, display_value(value), _mismatch("str", _type_name(value)))
            )
    api_version, kind = raw["apiVersion"], raw["kind"]
    struct = kinds.get((api_version, kind))
    return UnknownKind(api_version, kind) if struct is None else convert_as(struct, raw)


def convert_as(
    struct: type[_T], raw: object, *, dec_hook: Callable[[type, Any], Any] | None = None
) -> _T | Rejected:
    """Return the plain values as the given struct; their apiVersion and kind are not checked.

    `dec_hook` decodes types that JSON does not have; the message of its ValueError is the detail.
    """
    try:
        return msgspec.convert(raw, struct, dec_hook=dec_hook)
    except msgspec.ValidationError:
        pruned = _without_nulls(raw, seen={})
    try:
        return msgspec.convert(pruned, struct, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        return Rejected(_explain(str(error), raw))


def path_steps(path: str) -> tuple[str, ...]:
    """Return the steps of a field path: members, list indexes and map keys."""
    return tuple(name or bracketed for name, bracketed in _step.findall(path))


def display_value(value: object) -> object:
    """Return a value for display in an error: itself if small, else a short description."""
    if isinstance(value, _SCALARS):
        return value
    if (
        isinstance(value, list)
        and len(value) < 4
        and all(isinstance(item, _SCALARS) for item in value)
    ):
        return value
    if isinstance(value, dict) and not value:
        return value
    if isinstance(value, dict | list):
        return f"{_DISPLAY_NAMES[_type_name(value)]} of {len(value)}"
    return type(value).__name__


def _without_nulls(value: object, *, seen: dict[int, object], nulls: str | None = None) -> object:
    """Return the value without null members at any depth, or with `nulls` in their place.

    Shared and recursive values are visited once.
    """
    if not isinstance(value, dict | list):
        return value
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, list):
        kept_items: list[object] = []
        seen[id(value)] = kept_items
        kept_items.extend(_without_nulls(item, seen=seen) for item in value)
        return kept_items
    kept: dict[object, object] = {}
    seen[id(value)] = kept
    for key, member in value.items():
        if member is not None:
            nulls_below = "" if key in _STRING_MAPS else None
            kept[key] = _without_nulls(member, seen=seen, nulls=nulls_below)
        elif nulls is not None:
            kept[key] = nulls
    return kept


def _explain(message: str, raw: object) -> FieldError:
    """Return the field error for a message of msgspec."""
    match = _read_message(message)
    if match is None:
        return invalid(WHOLE_OBJECT, display_value(raw), message)
    expected, got, missing, other, in_key, path = match.group(
        "expected", "got", "missing", "other", "key", "path"
    )
    path = path or ""
    if missing is not None:
        return required(f"{path}.{missing}" if path else missing)
    value = _follow(raw, path_steps(path.removesuffix("[...]")))
    if in_key is not None and isinstance(value, dict):
        key = next((key for key in value if not isinstance(key, str)), None)
        return invalid(
            path,
            display_value(key),
            f"expected a string as key, got {_DISPLAY_NAMES.get(got, got)}",
        )
    if path.endswith("[...]") and isinstance(value, dict):
        # msgspec does not name the member: it is the first one of that type.
        bad = next((key for key, member in value.items() if _type_name(member) == got), "")
        path, value = f"{path.removesuffix('[...]')}[{bad}]", value.get(bad)
    detail = _mismatch(expected, got) if expected is not None else _lower_first(other)
    return invalid(path or WHOLE_OBJECT, display_value(value), detail)


def _follow(value: object, steps: tuple[str, ...]) -> object:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _mismatch(expected: str, got: str) -> str:
    kinds = [kind for kind in expected.split(" | ") if kind != "null"]
    if kinds == ["int"] and got == "float":
        return "expected a whole number, got a fraction"
    names = " or ".join(dict.fromkeys(_DISPLAY_NAMES.get(kind, kind) for kind in kinds))
    return f"expected {names}, got {_DISPLAY_NAMES.get(got, got)}"


def _type_name(value: object) -> str:
    for kinds, name in _TYPE_NAMES:
        if isinstance(value, kinds):
            return name
    return type(value).__name__


def _reject_json(data: bytes | bytearray | memoryview, error: Exception) -> Rejected:
    if isinstance(error, RecursionError):
        text = "nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        text = "not UTF-8 text"
    else:
        text = _lower_first(str(error))
    return Rejected(invalid(WHOLE_OBJECT, bytes(data[:40]).decode(errors="replace"), text))


def _lower_first(text: str) -> str:
    return text if text[:4] == "JSON" else text[:1].lower() + text[1:]
