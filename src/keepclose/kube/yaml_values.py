"""YAML documents as plain values, converted as sigs.k8s.io/yaml does.

Scalars mean what they mean to kubectl and kube-apiserver: `yes`, `y` and `off` are booleans, 1e3 is
a number, dates and 12:30 stay strings, `<<` merges. Integers have at most 64 bits; larger ones
become floats, and very long numbers are strings.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from functools import lru_cache
from typing import Any, Final

import msgspec
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from keepclose.kube.yaml_nodes import (
    CONTAINS_ITSELF,
    MERGE_KEY,
    NUMBER_CHARACTERS_MAX,
    STR,
    TAG,
    TOO_MANY_ALIASES,
    YamlError,
    YamlLimits,
    compose,
    error_at,
    plain_tag,
)

Scalar = str | float | bool | None

MERGE_NEEDS_MAP: Final = "map merge requires map or sequence of maps as the value"
KEY_NEEDS_TEXT: Final = "invalid map key"
KEY_REPEATED: Final = "already set in map"
# Marks the nodes whose value is being built: a node that needs one of them contains itself.
_OPEN: Final = object()
_NO_MEMBERS: Final[dict[str, Node]] = {}
_BINARY: Final = f"{TAG}binary"
_NUMBERS: Final = (f"{TAG}int", f"{TAG}float")
_TYPED: Final = frozenset({f"{TAG}{name}" for name in ("null", "bool", "int", "float")})
_INT_END: Final = 1 << 63
_UINT_END: Final = 1 << 64
_BOOLEANS: Final = {
    **dict.fromkeys(("y", "yes", "true", "on"), True),
    **dict.fromkeys(("n", "no", "false", "off"), False),
}
_is_octal = re.compile("[-+]?0[0-7]+").fullmatch


def read_yaml(text: str | bytes, limits: YamlLimits) -> tuple[Any, list[str]]:
    """Return the JSON value of the first document, and the warnings of strict decoding.

    No part of the value is shared, so that the caller may change it. Raises YamlError. A pure
    function: it may run on any thread.
    """
    document = compose(text, limits, alone=False)
    if document is None:
        return None, []
    builder = YamlBuilder(limits, exact=True)
    value = builder.build(document.root)
    if document.has_aliases:
        value = msgspec.json.decode(msgspec.json.encode(value))
    return value, builder.repeated


class YamlBuilder:
    """Builds the values of the nodes of one document, each once.

    `exact` builds JSON values as kube-apiserver does: the last of two equal keys wins and is listed
    in `repeated`, and a value that its tag or JSON cannot express is an error. Otherwise a repeated
    key is an error, and a scalar that does not fit its tag stays a string.
    """

    def __init__(self, limits: YamlLimits, *, exact: bool) -> None:
        self.repeated: list[str] = []
        self._exact = exact
        # Nested merges repeat members as aliases do, without any alias.
        self._merges_left = limits.repeated_nodes
        self._values: dict[int, Any] = {}
        self._members: dict[int, dict[str, Node]] = {}

    def build(self, node: Node) -> Any:
        """Return the value of a node; raise YamlError where it has none."""
        if isinstance(node, ScalarNode):
            return node.value if node.tag == STR else self._scalar(node)
        place = id(node)
        built = self._values.get(place)
        if built is not None:
            if built is _OPEN:
                raise error_at(node, CONTAINS_ITSELF)
            return built
        self._values[place] = _OPEN
        value: Any
        if isinstance(node, MappingNode):
            value = {}
            for key, member in self.members(node).items():
                value[key] = self.build(member)
        else:
            value = []
            for item in node.value:
                value.append(
                    item.value
                    if isinstance(item, ScalarNode) and item.tag == STR
                    else self.build(item)
                )
        self._values[place] = value
        return value

    def members(self, node: MappingNode) -> dict[str, Node]:
        """Return the members of a map by their keys, merged ones included; raise YamlError."""
        place = id(node)
        built = self._members.get(place)
        if built is not None:
            if built is _NO_MEMBERS:
                raise error_at(node, CONTAINS_ITSELF)
            return built
        self._members[place] = _NO_MEMBERS
        members: dict[str, Node] = {}
        own: dict[str, Node] = {}
        for key, value in node.value:
            if key.tag == MERGE_KEY:
                self._merge(value, members, own)
                continue
            name = key.value if key.tag == STR else self._key(key)
            if name in own or (self._exact and name in members):
                self._record_repeated(node, key, name)
            own[name] = members[name] = value
        self._members[place] = members
        return members

    def _merge(self, value: Node, members: dict[str, Node], own: dict[str, Node]) -> None:
        """Add the members of one or several merged maps, of which the first wins."""
        bases = value.value if isinstance(value, SequenceNode) else [value]
        merged: dict[str, Node] = {}
        for base in bases:
            if not isinstance(base, MappingNode):
                raise error_at(value, MERGE_NEEDS_MAP)
            inherited = self.members(base)
            self._merges_left -= len(inherited)
            if self._merges_left < 0:
                raise error_at(value, TOO_MANY_ALIASES)
            for name, member in inherited.items():
                merged.setdefault(name, member)
        # sigs.k8s.io/yaml processes a map in its order, so a later merge wins over a member.
        kept = {} if self._exact else {name: own[name] for name in merged if name in own}
        members.update(merged)
        members.update(kept)

    def _record_repeated(self, node: MappingNode, key: Node, name: str) -> None:
        if self._exact:
            line = key.start_mark.line + 1
            self.repeated.append(
                f"line {line}: key {msgspec.json.encode(name).decode()} {KEY_REPEATED}"
            )
            return
        first = next(earlier for earlier, _ in node.value if earlier.value == key.value)
        problem = f'key "{name}" {KEY_REPEATED}'
        raise error_at(key, problem, earlier=first.start_mark.line)

    def _key(self, key: Node) -> str:
        """Return the text of a key that is not a string."""
        if not isinstance(key, ScalarNode):
            raise error_at(key, KEY_NEEDS_TEXT)
        if not self._exact:
            return str(key.value)
        value = resolve_scalar(key.tag, key.value)
        match value:
            case None:
                raise error_at(key, "unsupported map key of type: <nil>")
            case bool():
                return "true" if value else "false"
            case float():
                return _short_float(value)
            case _:
                return str(value)

    def _scalar(self, node: ScalarNode) -> Scalar:
        tag, text = node.tag, node.value
        if not self._exact:
            value = resolve_scalar(tag, text)
            return text if isinstance(value, bytes) else value
        value = resolve_scalar(tag, text)
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, str):
            if tag in _TYPED:
                actual = plain_tag(text).removeprefix(TAG)
                declared = tag.removeprefix(TAG)
                # NB: 1e400 looks like a number but overflows a float, and Go reads it as a text.
                if actual != declared:
                    problem = f"cannot decode !!{actual} `{text[:64]}` as a !!{declared}"
                    raise error_at(node, problem)
            elif tag == _BINARY:
                raise error_at(node, "!!binary value contains invalid base64 data")
        elif isinstance(value, float):
            if not math.isfinite(value):
                name = "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
                raise error_at(node, f"json: unsupported value: {name}")
            # JSON cannot express that 1000.0 is a float.
            return int(value) if value.is_integer() and abs(value) < _INT_END else value
        return value


def resolve_scalar(tag: str, text: str) -> Scalar | bytes:
    """Return the value of a scalar; one that does not fit its tag stays a string."""
    # A cache of long texts would hold the bodies of thousands of requests in memory.
    if len(text) <= NUMBER_CHARACTERS_MAX:
        return _resolve_short(tag, text)
    return _decoded(text) if tag == _BINARY else text


@lru_cache(maxsize=1 << 12)
def _resolve_short(tag: str, text: str) -> Scalar | bytes:
    match tag.removeprefix(TAG):
        case "null":
            return None if plain_tag(text) == tag else text
        case "bool":
            return _BOOLEANS.get(text.lower(), text)
        case "int":
            return _whole_number(text)
        case "float":
            return _fraction(text)
        case "binary":
            return _decoded(text)
        case _:
            return text


def _whole_number(text: str) -> Scalar:
    if plain_tag(text) != f"{TAG}int":
        return text
    digits = text.replace("_", "")
    try:
        number = int(digits, 8) if _is_octal(digits) else int(digits, 0)
    except ValueError:
        return text
    if -_INT_END <= number < _UINT_END:
        return number
    # NB: Go reads a number with a prefix and too many digits as a text.
    return _fraction(digits) if digits.lstrip("+-").isdecimal() else text


def _fraction(text: str) -> Scalar:
    if plain_tag(text) not in _NUMBERS:
        return text
    digits = text.replace("_", "")
    if digits[-3:].lower() in ("inf", "nan"):
        return float(digits.replace(".", ""))
    try:
        number = float(digits)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _decoded(text: str) -> str | bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return text


def _short_float(value: float) -> str:
    """Return a float as a key: in the fewest digits that identify it in 32 bits."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    try:
        packed = struct.pack("f", value)
    except OverflowError:
        return ".inf" if value > 0 else "-.inf"
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next((text for text in texts if struct.pack("f", float(text)) == packed), f"{value:g}")


def explain_yaml_error(error: YamlError) -> str:
    """Return an error in the form of sigs.k8s.io/yaml: `yaml: line 4: exceeded max depth`."""
    if error.problem.startswith("json: "):
        return error.problem
    where = "" if error.line is None else f"line {error.line + 1}: "
    return f"yaml: {where}{error.problem}"
