"""Types as JSON schemas, in the two dialects of OpenAPI that clients of Kubernetes read.

The dialects differ in how a reference is written beside other marks, and in the types that allow
both a number and a string.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from keepclose.apiserver.schema.types import Form, ListKind, Type
from keepclose.apiserver.schemas.definitions import META, SPECIAL, load_definitions, load_types
from keepclose.apiserver.schemas.descriptions import describe
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

_SCALARS: Final = {Form.STRING: "string", Form.INTEGER: "integer", Form.BOOLEAN: "boolean"}
_TIME: Final = {"type": "string", "format": "date-time"}
_SPECIAL_3: Final[dict[str, JsonObject]] = {
    "FieldsV1": {"type": "object"},
    "IntOrString": {
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
    "MicroTime": _TIME,
    "Patch": {"type": "object"},
    "Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "RawExtension": {"type": "object"},
    "Time": _TIME,
}
_SPECIAL_2: Final[dict[str, JsonObject]] = _SPECIAL_3 | {
    "IntOrString": {"type": "string", "format": "int-or-string"},
    "Quantity": {"type": "string"},
}
_SPECIAL_NAMES: Final = {name: short for short, name in SPECIAL.items()}


class Dialect(msgspec.Struct, frozen=True):
    """One version of OpenAPI."""

    # What stands before the name of a definition.
    prefix: str
    # Whether marks may stand beside a reference; otherwise it is wrapped.
    marks_beside: bool
    special: dict[str, JsonObject]


OPENAPI_2: Final = Dialect("#/definitions/", marks_beside=True, special=_SPECIAL_2)
OPENAPI_3: Final = Dialect("#/components/schemas/", marks_beside=False, special=_SPECIAL_3)


def render_schemas(
    names: Iterable[str], gates: FeatureGates, dialect: Dialect
) -> dict[str, JsonObject]:
    """Return the schemas of the named definitions and of all that they refer to, by name."""
    types = load_types(gates)
    found: dict[str, JsonObject] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        if name in _SPECIAL_NAMES:
            found[name] = dialect.special[_SPECIAL_NAMES[name]]
            continue
        found[name] = _render_object(types[name], dialect)
        todo.extend(_references(types[name]))
    return dict(sorted(found.items()))


def _references(shape: Type) -> list[str]:
    found = []
    for below in shape.fields.values():
        inner = below
        while inner.items is not None:
            inner = inner.items
        if inner.name:
            found.append(inner.name)
    return found


def _render_object(shape: Type, dialect: Dialect) -> JsonObject:
    short = short_name(shape.name)
    texts = describe(short)
    schema: JsonObject = {"type": "object"}
    if "" in texts:
        schema["description"] = texts[""]
    if shape.required:
        schema["required"] = list(shape.required)
    schema["properties"] = {
        field: _render_field(below, dialect, texts.get(field, ""))
        for field, below in shape.fields.items()
    }
    if shape.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    kinds = load_definitions()[short].kinds
    if kinds:
        schema["x-kubernetes-group-version-kind"] = [
            {"group": group, "kind": kind, "version": version} for group, version, kind in kinds
        ]
    return schema


def short_name(name: str) -> str:
    """Return a published name as the data file writes it."""
    if name.startswith(META):
        return "meta.v1." + name[len(META) :]
    return name.removeprefix("io.k8s.api.")


def _render_field(below: Type, dialect: Dialect, description: str) -> JsonObject:
    schema = _render_type(below, dialect)
    marks: JsonObject = {}
    if description:
        marks["description"] = description
    if below.default:
        marks["default"] = below.default
    if below.form is Form.LIST:
        marks["x-kubernetes-list-type"] = below.list_kind.value
        if below.list_kind is ListKind.MAP:
            marks["x-kubernetes-list-map-keys"] = list(below.list_keys)
    if below.form is Form.MAP and below.atomic:
        marks["x-kubernetes-map-type"] = "atomic"
    if below.merge_key:
        marks["x-kubernetes-patch-merge-key"] = below.merge_key
    if below.patch_strategies:
        marks["x-kubernetes-patch-strategy"] = ",".join(below.patch_strategies)
    if "$ref" in schema and marks and not dialect.marks_beside:
        schema = {"allOf": [schema]}
    return marks | schema


def _render_type(below: Type, dialect: Dialect) -> JsonObject:
    if below.name:
        return {"$ref": dialect.prefix + below.name}
    if below.items is not None:
        items = _render_type(below.items, dialect)
        if below.form is Form.LIST:
            return {"type": "array", "items": items}
        return {"type": "object", "additionalProperties": items}
    schema: JsonObject = {"type": _SCALARS.get(below.form, "object")}
    if below.format:
        schema["format"] = below.format
    return schema
