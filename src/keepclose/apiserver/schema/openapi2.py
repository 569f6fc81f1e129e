"""OpenAPI 2: one document for everything, as JSON and as the protobuf that old kubectls insist on.

kubectl 1.20 reads no other form than protobuf, validates with it on the client's side, and looks in
the paths whether PATCH of a kind takes `dryRun`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from keepclose.apiserver.schema.openapi_types import OPENAPI_2, render_schemas
from keepclose.apiserver.schema.operations import (
    PARAMETERS,
    PATCH,
    PATCH_TYPES,
    PATH_PARAMETERS,
    Operation,
    group_paths,
    resource_operations,
)
from keepclose.apiserver.schemas.definitions import META
from keepclose.apiserver.schemas.documents import TITLE, Document, make_document
from keepclose.apiserver.schemas.gnostic import encode_document
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

# NB: clients ask for "...spec.v2@v1.0+protobuf", but an answer of that type breaks every kubectl:
# "@" may not stand in a media type.
PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_ALWAYS: Final = tuple(
    META + name
    for name in (
        "APIGroup",
        "APIGroupList",
        "APIResourceList",
        "APIVersions",
        "Status",
        "WatchEvent",
    )
)
_READABLE: Final = ["application/json", "application/yaml"]


@lru_cache(maxsize=4)
def json_document(gates: FeatureGates) -> Document:
    """Return the document as JSON."""
    return make_document(msgspec.json.encode(build_document(gates)))


@lru_cache(maxsize=4)
def protobuf_document(gates: FeatureGates) -> Document:
    """Return the document as protobuf."""
    return make_document(encode_document(build_document(gates)), PROTOBUF)


def build_document(gates: FeatureGates) -> JsonObject:
    """Return the document as a JSON value."""
    operations = [
        operation
        for resources in group_paths().values()
        for resource in resources
        for operation in resource_operations(resource)
    ]
    names = {one for each in operations for one in (each.body, each.answer) if one}
    return {
        "swagger": "2.0",
        "info": TITLE,
        "paths": _paths(operations),
        "definitions": render_schemas(sorted(names.union(_ALWAYS)), gates, OPENAPI_2),
    }


def _paths(operations: list[Operation]) -> JsonObject:
    found: JsonObject = {}
    for one in operations:
        found.setdefault(one.path, {})[one.method] = _render_operation(one)
    for address, path in found.items():
        parameters = [
            {"name": name, "in": "path", "description": text, "required": True, "type": "string"}
            for name, text in PATH_PARAMETERS.items()
            if f"{{{name}}}" in address
        ]
        if parameters:
            path["parameters"] = parameters
    return dict(sorted(found.items()))


def _render_operation(one: Operation) -> JsonObject:
    parameters: list[JsonObject] = []
    if one.body:
        body = {"name": "body", "in": "body", "schema": {"$ref": OPENAPI_2.prefix + one.body}}
        parameters.append(body if one.method == "delete" else body | {"required": True})
    parameters += [
        {
            "name": name,
            "in": "query",
            "description": PARAMETERS[name][1],
            "type": PARAMETERS[name][0],
            "uniqueItems": True,
        }
        for name in one.query
    ]
    answer = {"description": "OK", "schema": {"$ref": OPENAPI_2.prefix + one.answer}}
    responses = {"200": answer, "401": {"description": "Unauthorized"}}
    if one.method in ("post", "put", "patch"):
        responses["201"] = answer | {"description": "Created"}
    return {
        "tags": [one.tag],
        "description": one.description,
        "operationId": one.id,
        "produces": _READABLE,
        "consumes": list(PATCH_TYPES) if one.body == PATCH else ["*/*"],
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": one.action,
        "x-kubernetes-group-version-kind": {
            "group": one.group,
            "kind": one.kind,
            "version": one.version,
        },
    }
