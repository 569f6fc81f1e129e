"""Types as JSON schemas, with descriptions, in the two dialects of OpenAPI that clients read.

The dialects differ in how a reference is written beside other keywords, and in the types that allow
both a number and a string. `kubectl explain` shows the descriptions: our own for the types that
this project is about. Where the optional package lightkube-models is installed, the descriptions of
all other types and fields come from its docstrings, at the first use of an OpenAPI document;
without it they are absent and everything works the same. A document has a hash, by which clients
and caches identify it.
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

TITLE: Final = {"title": "Kubernetes", "version": "1.36"}
_JSON: Final = "application/json"
# By short name of the definition; "" is the definition itself.
_OWN_DESCRIPTIONS: Final[dict[str, dict[str, str]]] = {
    "apps.v1.DaemonSet": {"": "A pod on every node, or on every node that matches."},
    "apps.v1.Deployment": {
        "": "A number of identical pods, replaced by rolling updates when their template changes."
    },
    "apps.v1.ReplicaSet": {"": "A number of identical pods."},
    "autoscaling.v1.Scale": {"": "The desired and actual number of replicas of a workload."},
    "coordination.v1.Lease": {"": "The holder of a lock, and until when it holds it."},
    "core.v1.ConfigMap": {"": "Configuration as plain data."},
    "core.v1.ServiceAccount": {"": "A name under which pods call the API server."},
    "core.v1.Endpoints": {
        "": "The addresses behind a Service in one object. EndpointSlices replace it."
    },
    "core.v1.Event": {"": "Something that happened to an object."},
    "core.v1.Namespace": {"": "A scope for names."},
    "core.v1.Node": {"": "A machine. Its label topology.kubernetes.io/zone names its zone."},
    "core.v1.Pod": {"": "Containers that run together on one node."},
    "core.v1.Service": {
        "": "A name and an address for a set of endpoints.",
        "spec": "The desired state of the Service.",
        "status": "The observed state of the Service.",
    },
    "core.v1.ServiceSpec": {
        "": "The desired state of a Service.",
        "externalTrafficPolicy": (
            "How nodes route traffic that reaches the Service from outside. Cluster takes all"
            " endpoints, Local only those on the node, and keeps the client's address."
        ),
        "internalTrafficPolicy": (
            "How nodes route traffic to the cluster IP. Cluster takes all endpoints, Local only"
            " those on the node, and drops traffic where there are none."
        ),
        "ports": "The ports at which the Service answers.",
        "selector": (
            "The labels of the pods behind the Service. Without any, no controller writes its"
            " EndpointSlices."
        ),
        "topologyKeys": (
            "Labels of nodes, closest first: traffic goes to endpoints whose node shares"
            " the first label that any does. The last may be *, for all endpoints."
        ),
        "trafficDistribution": (
            "How traffic is kept close to clients while all endpoints are equally suitable."
            " PreferSameZone and its older name PreferClose keep it in the zone of the client,"
            " PreferSameNode on its node; where that is not possible, it goes anywhere."
        ),
    },
    "discovery.v1.Endpoint": {
        "": "One backend of a Service.",
        "hints": (
            "The clients that should use the endpoint. Hints count only if every endpoint has some."
        ),
        "nodeName": "The node on which the endpoint runs.",
        "zone": "The zone of the node on which the endpoint runs.",
    },
    "discovery.v1.EndpointHints": {
        "": "The clients that should use an endpoint, so that traffic stays close to them.",
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
        "": "The metadata that every stored object has.",
        "annotations": "Arbitrary data of tools and users.",
        "labels": "Names and values by which objects are selected.",
        "name": "The name, unique for its kind in its namespace.",
        "namespace": "The scope of the name.",
        "resourceVersion": "The version of the object. It changes with every write.",
        "uid": "The identity, unique in space and time.",
    },
    "networking.v1.ServiceCIDR": {"": "Ranges from which Services are allocated cluster IPs."},
}
_COMMON_DESCRIPTIONS: Final = {
    "apiVersion": "Group and version of this object's kind.",
    "kind": "The kind of this object.",
    "metadata": "Name, namespace, labels and the like.",
}
_field_start = re.compile(r"^\s*\* \*\*(\w+)\*\* ``[^`]*``(?: - (.*))?$").match
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
    """A document that never changes while the process runs."""

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
    common = {name: text for name, text in _COMMON_DESCRIPTIONS.items() if short.count(".") > 1}
    return common | _lightkube_descriptions(short) | _OWN_DESCRIPTIONS.get(short, {})


def read_docstring(text: str) -> dict[str, str]:
    """Return the descriptions in a docstring of lightkube-models."""
    head, marker, rest = text.partition("**parameters**")
    if not marker:
        # A class without a docstring gets its signature for one.
        return {}
    lines: dict[str, list[str]] = {"": head.split()}
    field = ""
    for line in rest.splitlines():
        match = _field_start(line)
        if match is not None:
            field = match[1]
            lines[field] = (match[2] or "").split()
        elif field:
            lines[field] += line.split()
    return {field: " ".join(words) for field, words in lines.items() if words}


class Dialect(msgspec.Struct, frozen=True):
    """One version of OpenAPI."""

    # The prefix of a reference to a definition.
    prefix: str
    # Whether other keywords may be beside a reference; otherwise it is wrapped in allOf.
    keywords_beside: bool
    special: dict[str, JsonObject]


OPENAPI_2: Final = Dialect("#/definitions/", keywords_beside=True, special=_SPECIAL_2)
OPENAPI_3: Final = Dialect("#/components/schemas/", keywords_beside=False, special=_SPECIAL_3)


def render_schemas(
    names: Iterable[str], gates: FeatureGates, dialect: Dialect
) -> dict[str, JsonObject]:
    """Return the schemas of the named definitions and of all that they reference, by name."""
    types = load_types(gates)
    schemas: dict[str, JsonObject] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in schemas:
            continue
        if name in _SPECIAL_NAMES:
            schemas[name] = dialect.special[_SPECIAL_NAMES[name]]
            continue
        schemas[name] = _render_object(types[name], dialect)
        pending.extend(_references(types[name]))
    return dict(sorted(schemas.items()))


def short_name(name: str) -> str:
    """Return a published name as the data file writes it."""
    if name.startswith(META):
        return "meta.v1." + name[len(META) :]
    return name.removeprefix("io.k8s.api.")


@lru_cache(maxsize=512)
def _lightkube_descriptions(short: str) -> dict[str, str]:
    package, _, name = short.rpartition(".")
    try:
        module = importlib.import_module(f"lightkube.models.{package.replace('.', '_')}")
    except ImportError:
        return {}
    return read_docstring(getattr(getattr(module, name, None), "__doc__", None) or "")


def _references(shape: Type) -> list[str]:
    names = []
    for field_type in shape.fields.values():
        inner = field_type
        while inner.items is not None:
            inner = inner.items
        if inner.name:
            names.append(inner.name)
    return names


def _render_object(shape: Type, dialect: Dialect) -> JsonObject:
    short = short_name(shape.name)
    texts = describe_field(short)
    schema: JsonObject = {"type": "object"}
    if "" in texts:
        schema["description"] = texts[""]
    if shape.required:
        schema["required"] = list(shape.required)
    schema["properties"] = {
        field: _render_field(field_type, dialect, texts.get(field, ""))
        for field, field_type in shape.fields.items()
    }
    if shape.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    kinds = load_definitions()[short].kinds
    if kinds:
        schema["x-kubernetes-group-version-kind"] = [
            {"group": group, "kind": kind, "version": version} for group, version, kind in kinds
        ]
    return schema


def _render_field(field_type: Type, dialect: Dialect, description: str) -> JsonObject:
    schema = _render_type(field_type, dialect)
    keywords: JsonObject = {}
    if description:
        keywords["description"] = description
    if field_type.default:
        keywords["default"] = field_type.default
    if field_type.form is TypeForm.LIST:
        keywords["x-kubernetes-list-type"] = field_type.list_kind.value
        if field_type.list_kind is ListKind.MAP:
            keywords["x-kubernetes-list-map-keys"] = list(field_type.list_keys)
    if field_type.form is TypeForm.MAP and field_type.atomic:
        keywords["x-kubernetes-map-type"] = "atomic"
    if field_type.merge_key:
        keywords["x-kubernetes-patch-merge-key"] = field_type.merge_key
    if field_type.patch_strategies:
        keywords["x-kubernetes-patch-strategy"] = ",".join(field_type.patch_strategies)
    if "$ref" in schema and keywords and not dialect.keywords_beside:
        schema = {"allOf": [schema]}
    return keywords | schema


def _render_type(field_type: Type, dialect: Dialect) -> JsonObject:
    if field_type.name:
        return {"$ref": dialect.prefix + field_type.name}
    if field_type.items is not None:
        items = _render_type(field_type.items, dialect)
        if field_type.form is TypeForm.LIST:
            return {"type": "array", "items": items}
        return {"type": "object", "additionalProperties": items}
    schema: JsonObject = {"type": _SCALARS.get(field_type.form, "object")}
    if field_type.format:
        schema["format"] = field_type.format
    return schema
