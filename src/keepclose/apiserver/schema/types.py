"""The types of all kinds that are served, as validation, patches and OpenAPI read them.

One description serves all of them: unknown fields, wrong types, merge keys of strategic merge
patches, list and map types of server-side apply, and the documents that clients download. It is
read from one data file that ships with the package. The file holds structure only, one line a
field: `[]core.v1.ServicePort list=map keys=port,protocol`. scripts/schemas.py writes it; it is
never edited by hand. Types are built once per process and shared, so identity distinguishes them,
and no caller may change one.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import Final

import msgspec

from keepclose.apiserver.resources import Resource
from keepclose.model.gates import FeatureGates, Gate


class TypeForm(StrEnum):
    """The kind of JSON value that a type allows."""

    OBJECT = "object"  # named fields
    MAP = "map"  # any keys, values of one type
    LIST = "list"
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    QUANTITY = "quantity"  # "100m", or a number
    INT_OR_STRING = "int-or-string"
    TIME = "time"  # RFC 3339
    ANY = "any"  # not validated


class ListKind(StrEnum):
    """How server-side apply identifies the items of a list."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


class Type(msgspec.Struct, frozen=True):
    """One type, with all types below it."""

    form: TypeForm
    # The published name of an object type, such as io.k8s.api.core.v1.ServiceSpec.
    name: str = ""
    fields: dict[str, Type] = {}
    required: tuple[str, ...] = ()
    # The type of the items of a list or the values of a map.
    items: Type | None = None
    list_kind: ListKind = ListKind.ATOMIC
    list_keys: tuple[str, ...] = ()
    # Whether a map or an object is applied as a whole.
    atomic: bool = False
    # How a strategic merge patch treats the field: "merge", "replace", "retainKeys" (several may
    # be combined), and the field that identifies items.
    patch_strategies: tuple[str, ...] = ()
    merge_key: str = ""
    # int32, int64, double, byte, date-time ... as published.
    format: str = ""
    description: str = ""
    # Go's name of the type and of the embedded struct that the field belongs to: both appear in
    # the messages of kube-apiserver.
    go_type: str = ""
    embedded: str = ""
    # The value of an absent key when list items are identified.
    default: str | None = None
    # Whether an empty value ("", 0, false, [] or {}) is stored as an absent one.
    omits_empty: bool = False


ANY_TYPE: Final = Type(TypeForm.ANY)
META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
API: Final = "io.k8s.api."
SPECIAL: Final = {
    "FieldsV1": META + "FieldsV1",
    "IntOrString": "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
    "MicroTime": META + "MicroTime",
    "Patch": META + "Patch",
    "Quantity": "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "RawExtension": "io.k8s.apimachinery.pkg.runtime.RawExtension",
    "Time": META + "Time",
}
_BUILTIN_TYPES: Final = {
    "FieldsV1": Type(TypeForm.ANY, name=SPECIAL["FieldsV1"], go_type="v1.FieldsV1"),
    "IntOrString": Type(
        TypeForm.INT_OR_STRING,
        name=SPECIAL["IntOrString"],
        format="int-or-string",
        go_type="intstr.IntOrString",
    ),
    "MicroTime": Type(
        TypeForm.TIME, name=SPECIAL["MicroTime"], format="date-time", go_type="v1.MicroTime"
    ),
    "Patch": Type(TypeForm.ANY, name=SPECIAL["Patch"], go_type="v1.Patch"),
    "Quantity": Type(TypeForm.QUANTITY, name=SPECIAL["Quantity"], go_type="resource.Quantity"),
    "RawExtension": Type(
        TypeForm.ANY, name=SPECIAL["RawExtension"], go_type="runtime.RawExtension"
    ),
    "Time": Type(TypeForm.TIME, name=SPECIAL["Time"], format="date-time", go_type="v1.Time"),
    "boolean": Type(TypeForm.BOOLEAN, go_type="bool"),
    "bytes": Type(TypeForm.STRING, format="byte", go_type="[]uint8"),
    "int32": Type(TypeForm.INTEGER, format="int32", go_type="int32"),
    "int64": Type(TypeForm.INTEGER, format="int64", go_type="int64"),
    "number": Type(TypeForm.NUMBER, format="double", go_type="float64"),
    "string": Type(TypeForm.STRING, go_type="string"),
}
_FORMS_WITH_EMPTY: Final = frozenset(
    {TypeForm.STRING, TypeForm.INTEGER, TypeForm.BOOLEAN, TypeForm.LIST, TypeForm.MAP}
)
_MARKS: Final = {"key": "merge_key", "in": "embedded", "default": "default"}
# KEP-536 was removed from Kubernetes; its field is served while its gate is on.
_TOPOLOGY_KEYS: Final = {"core.v1.ServiceSpec": {"topologyKeys": "[]string"}}
_TRAFFIC_DISTRIBUTION: Final = ("core.v1.ServiceSpec", "trafficDistribution")
_NODE_HINTS: Final = ("discovery.v1.EndpointHints", "forNodes")
_Field = tuple[str, str]
"""The short name of a definition, and a field of it."""


class Definition(msgspec.Struct, frozen=True):
    """An object type as the data file describes it."""

    fields: dict[str, str]
    required: tuple[str, ...] = ()
    atomic: bool = False
    # Each group, version and kind under which such an object is served.
    kinds: tuple[tuple[str, str, str], ...] = ()


def load_types(gates: FeatureGates) -> dict[str, Type]:
    """Return every object type by its published name; the same one for the same gates."""
    return _load_types(
        topology_keys=gates.on(Gate.SERVICE_TOPOLOGY), hidden=_fields_of_later_releases(gates)
    )


def type_of(resource: Resource, gates: FeatureGates) -> Type:
    """Return the type of the objects of a resource."""
    return load_types(gates)[resource.definition]


@lru_cache(maxsize=1)
def load_definitions() -> dict[str, Definition]:
    """Return the content of the data file by short names such as core.v1.Service."""
    data = files(__package__).joinpath("definitions.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, Definition])


def published(short: str) -> str:
    """Return the published name of a definition."""
    if short in SPECIAL:
        return SPECIAL[short]
    return META + short[8:] if short.startswith("meta.v1.") else API + short


def _fields_of_later_releases(gates: FeatureGates) -> frozenset[_Field]:
    """Return the fields that the emulated release does not have yet."""
    fields: set[_Field] = set()
    if not gates.knows_since(30):
        fields.add(_TRAFFIC_DISTRIBUTION)
    if not gates.knows_since(33) and not gates.on(Gate.NODE_LEVEL_TOPOLOGY):
        fields.add(_NODE_HINTS)
    return frozenset(fields)


@lru_cache(maxsize=4)
def _load_types(*, topology_keys: bool, hidden: frozenset[_Field]) -> dict[str, Type]:
    builder = _Builder(_TOPOLOGY_KEYS if topology_keys else {}, hidden)
    return {published(name): builder.object_type(name) for name in load_definitions()}


class _Builder:
    """Builds types: one for each definition and one for each distinct field text."""

    def __init__(self, extra: dict[str, dict[str, str]], hidden: frozenset[_Field]) -> None:
        self._extra = extra
        self._hidden = hidden
        self._objects: dict[str, Type] = {}
        self._texts: dict[str, Type] = {}
        self._in_progress: set[str] = set()

    def object_type(self, name: str) -> Type:
        """Return the type of a definition, with all types below it."""
        cached = self._objects.get(name)
        if cached is not None:
            return cached
        if name in self._in_progress:
            # No served kind contains itself; one that did would not be validated below this level.
            return ANY_TYPE
        self._in_progress.add(name)
        definition = load_definitions()[name]
        texts = definition.fields | self._extra.get(name, {})
        built = Type(
            TypeForm.OBJECT,
            name=published(name),
            fields={
                field: self.field_type(texts[field])
                for field in sorted(texts)
                if (name, field) not in self._hidden
            },
            required=definition.required,
            atomic=definition.atomic,
            go_type="v1." + name.rpartition(".")[2],
        )
        self._in_progress.discard(name)
        self._objects[name] = built
        return built

    def field_type(self, text: str) -> Type:
        """Return the type that a line of the data file describes."""
        cached = self._texts.get(text)
        if cached is None:
            cached = self._texts[text] = self._read(text)
        return cached

    def _read(self, text: str) -> Type:
        shape, *words = text.split(" ")
        marks = dict(word.partition("=")[::2] for word in words)
        built = self._shape(shape, marks.pop("go", ""))
        changes: dict[str, str | bool | tuple[str, ...] | ListKind] = {}
        for mark, value in marks.items():
            if mark == "list":
                changes["list_kind"] = ListKind(value)
            elif mark == "keys":
                changes["list_keys"] = tuple(value.split(","))
            elif mark == "patch":
                changes["patch_strategies"] = tuple(value.split(","))
            elif mark == "atomic":
                changes["atomic"] = True
            elif mark != "keep":
                changes[_MARKS[mark]] = value
        if "keep" not in marks and built.form in _FORMS_WITH_EMPTY:
            changes["omits_empty"] = True
        return msgspec.structs.replace(built, **changes) if changes else built

    def _shape(self, shape: str, go: str) -> Type:
        if shape in _BUILTIN_TYPES:
            plain = _BUILTIN_TYPES[shape]
            return msgspec.structs.replace(plain, go_type=go) if go else plain
        for form, prefix, go_prefix in (
            (TypeForm.LIST, "[]", "[]"),
            (TypeForm.MAP, "map[]", "map[string]"),
        ):
            if shape.startswith(prefix):
                below = go.removeprefix(go_prefix) if go.startswith(go_prefix) else ""
                items = self._shape(shape.removeprefix(prefix), below)
                return Type(form, items=items, go_type=go or go_prefix + items.go_type)
        return self.object_type(shape)
