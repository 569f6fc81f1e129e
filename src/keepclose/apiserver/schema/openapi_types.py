"""Types as JSON schemas, in the two dialects of OpenAPI that clients of Kubernetes read.

The dialects differ in how a reference is written beside other marks, and in the types that allow
both a number and a string.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha512
from typing import Final

import msgspec

from keepclose.apiserver.schema.types import (
    META,
    SPECIAL,
    ListKind,
    Type,
    TypeForm,
    load_definitions,
    load_types,
)
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

_JSON: Final = "application/json"
TITLE: Final = {"title": "Kubernetes", "version": "1.36"}
# By short name of the definition; "" is the definition itself.
_OWN: Final[dict[str, dict[str, str]]] = {
    "apps.v1.DaemonSet": {"": "A pod on every node, or on every node of some kind."},
    "apps.v1.Deployment": {"": "A number of equal pods, replaced step by step when they change."},
    "apps.v1.ReplicaSet": {"": "A number of equal pods."},
    "autoscaling.v1.Scale": {"": "How many replicas a workload asks for and has."},
    "coordination.v1.Lease": {"": "Who leads, and until when."},
    "core.v1.ConfigMap": {"": "Configuration as plain data."},
    "core.v1.ServiceAccount": {"": "A name under which pods call the API server."},
    "core.v1.Endpoints": {
        "": "The addresses behind a Service in one object. EndpointSlices have taken its place."
    },
    "core.v1.Event": {"": "Something that happened to an object."},
    "core.v1.Namespace": {"": "A scope for names."},
    "core.v1.Node": {
        "": "A machine. Its label topology.kubernetes.io/zone says where traffic is close to it."
    },
    "core.v1.Pod": {"": "Containers that run together on one node."},
    "core.v1.Service": {
        "": "A name and an address for a set of endpoints.",
        "spec": "What the Service asks for.",
        "status": "What the cluster made of it.",
    },
    "core.v1.ServiceSpec": {
        "": "What a Service asks for.",
        "externalTrafficPolicy": (
            "How nodes route traffic that reaches the Service from outside. Cluster takes all"
            " endpoints, Local only those on the node, and keeps the client's address."
        ),
        "internalTrafficPolicy": (
            "How nodes route traffic to the cluster IP. Cluster takes all endpoints, Local only"
            " those on the node, and drops traffic where there are none."
        ),
        "ports": "The ports at which the Service answers.",
        "selector": "The labels of the pods behind the Service. Without any, endpoints are yours.",
        "topologyKeys": (
            "Labels of nodes, from the closest on: traffic goes to endpoints whose node shares"
            " the first label that any does. The last may be *, for all endpoints."
        ),
        "trafficDistribution": (
            "How traffic is kept close to clients while all endpoints are equally fit."
            " PreferSameZone and its older name PreferClose keep it in the zone of the client,"
            " PreferSameNode on its node; where that is not possible, it goes anywhere."
        ),
    },
    "discovery.v1.Endpoint": {
        "": "One backend of a Service.",
        "hints": "For whom the endpoint is meant. Hints count only if every endpoint has some.",
        "nodeName": "The node on which the endpoint runs.",
        "zone": "The zone of the node on which the endpoint runs.",
    },
    "discovery.v1.EndpointHints": {
        "": "For whom an endpoint is meant, so that traffic stays close to its clients.",
        "forNodes": "The nodes from which traffic should come to this endpoint, at most 8.",
        "forZones": "The zones from which traffic should come to this endpoint, at most 8.",
    },
    "discovery.v1.EndpointSlice": {
        "": "Some of the endpoints of a Service.",
        "addressType": "The kind of all addresses in the slice: IPv4, IPv6 or FQDN.",
        "endpoints": "The endpoints, at most 1000.",
        "ports": "The ports of every endpoint in the slice.",
    },
    "discovery.v1.ForNode": {"": "A node that should use an endpoint.", "name": "Its name."},
    "discovery.v1.ForZone": {"": "A zone that should use an endpoint.", "name": "Its name."},
    "events.v1.Event": {"": "Something that happened to an object."},
    "meta.v1.ObjectMeta": {
        "": "What every stored object has.",
        "annotations": "Free notes of tools and people.",
        "labels": "Names and values by which objects are selected.",
        "name": "The name, unique for its kind in its namespace.",
        "namespace": "The scope of the name.",
        "resourceVersion": "The version of the object. It changes with every write.",
        "uid": "The identity, unique in space and time.",
    },
    "networking.v1.ServiceCIDR": {"": "Ranges from which Services get their addresses."},
}
_EVERYWHERE: Final = {
    "apiVersion": "Group and version of this object's kind.",
    "kind": "The kind of this object.",
    "metadata": "Name, namespace, labels and the like.",
}
_start = re.compile(r"^\s*\* \*\*(\w+)\*\* ``[^`]*``(?: - (.*))?$").match
_SCALARS: Final = {
    TypeForm.STRING: "string",
    TypeForm.INTEGER: "integer",
    TypeForm.BOOLEAN: "boolean",
}
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


class Document(msgspec.Struct, frozen=True):
    """Bytes that stay the same as long as the process lives."""

    body: bytes
    media_type: str
    # Without quotes; the same for the same bytes in every process.
    hash: str

    @property
    def etag(self) -> str:
        """The hash as the header ETag writes it."""
        return f'"{self.hash}"'


def make_document(body: bytes, media_type: str = _JSON) -> Document:
    """Return a document with its hash."""
    return Document(body, media_type, sha512(body).hexdigest().upper())


def describe_field(short: str) -> dict[str, str]:
    """Return the descriptions of a definition's fields by name, and its own under ""."""
    found = {name: text for name, text in _EVERYWHERE.items() if short.count(".") > 1}
    return found | _borrowed(short) | _OWN.get(short, {})


@lru_cache(maxsize=512)
def _borrowed(short: str) -> dict[str, str]:
    package, _, name = short.rpartition(".")
    try:
        module = importlib.import_module(f"lightkube.models.{package.replace('.', '_')}")
    except ImportError:
        return {}
    return read_docstring(getattr(getattr(module, name, None), "__doc__", None) or "")


def read_docstring(text: str) -> dict[str, str]:
    """Return the descriptions in a docstring of lightkube-models."""
    head, marker, rest = text.partition("**parameters**")
    if not marker:
        # A class without a docstring gets its signature for one.
        return {}
    lines: dict[str, list[str]] = {"": head.split()}
    field = ""
    for line in rest.splitlines():
        begun = _start(line)
        if begun is not None:
            field = begun[1]
            lines[field] = (begun[2] or "").split()
        elif field:
            lines[field] += line.split()
    return {field: " ".join(words) for field, words in lines.items() if words}


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
    texts = describe_field(short)
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
    if below.form is TypeForm.LIST:
        marks["x-kubernetes-list-type"] = below.list_kind.value
        if below.list_kind is ListKind.MAP:
            marks["x-kubernetes-list-map-keys"] = list(below.list_keys)
    if below.form is TypeForm.MAP and below.atomic:
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
        if below.form is TypeForm.LIST:
            return {"type": "array", "items": items}
        return {"type": "object", "additionalProperties": items}
    schema: JsonObject = {"type": _SCALARS.get(below.form, "object")}
    if below.format:
        schema["format"] = below.format
    return schema
