"""OpenAPI 3: an index, and one document for each group and version.

kubectl since 1.27 reads these for `explain` and to learn which parameters a server understands. The
address of a document carries its hash, so that a client may keep it for ever.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from keepclose.apiserver.schema.openapi_types import (
    OPENAPI_3,
    TITLE,
    Document,
    make_document,
    render_schemas,
)
from keepclose.apiserver.schema.operations import (
    PARAMETERS,
    PATCH,
    PATCH_TYPES,
    PATH_PARAMETERS,
    ApiOperation,
    group_paths,
    resource_operations,
)
from keepclose.apiserver.schema.types import META
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

# Documents of every group hold these beside what their operations name.
_ALWAYS: Final = tuple(META + name for name in ("APIResourceList", "Status", "WatchEvent"))
_READABLE: Final = ("application/json", "application/yaml")


def index_document(gates: FeatureGates) -> Document:
    """Return the index: where the document of each group and version is."""
    paths = {
        path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={_group_document(path, gates).hash}"}
        for path in sorted(group_paths())
    }
    return make_document(msgspec.json.encode({"paths": paths}))


def group_document(path: str, gates: FeatureGates) -> Document | None:
    """Return the document of a group and version such as apis/apps/v1, or None."""
    return _group_document(path, gates) if path in group_paths() else None


@lru_cache(maxsize=32)
def _group_document(path: str, gates: FeatureGates) -> Document:
    operations = [
        operation for resource in group_paths()[path] for operation in resource_operations(resource)
    ]
    names = {one for each in operations for one in (each.body, each.answer) if one}
    document = {
        "openapi": "3.0.0",
        "info": TITLE,
        "paths": _paths(operations),
        "components": {"schemas": render_schemas(sorted(names.union(_ALWAYS)), gates, OPENAPI_3)},
    }
    return make_document(msgspec.json.encode(document))


def _paths(operations: list[ApiOperation]) -> JsonObject:
    found: JsonObject = {}
    for one in operations:
        path = found.setdefault(one.path, {})
        path[one.method] = _render_operation(one)
    for address, path in found.items():
        parameters = [
            {
                "name": name,
                "in": "path",
                "description": text,
                "required": True,
                "schema": {"type": "string", "uniqueItems": True},
            }
            for name, text in PATH_PARAMETERS.items()
            if f"{{{name}}}" in address
        ]
        if parameters:
            path["parameters"] = parameters
    return dict(sorted(found.items()))


def _render_operation(one: ApiOperation) -> JsonObject:
    operation: JsonObject = {
        "tags": [one.tag],
        "description": one.description,
        "operationId": one.id,
    }
    if one.query:
        operation["parameters"] = [
            {
                "name": name,
                "in": "query",
                "description": PARAMETERS[name][1],
                "schema": {"type": PARAMETERS[name][0], "uniqueItems": True},
            }
            for name in one.query
        ]
    if one.body:
        types = PATCH_TYPES if one.body == PATCH else ("*/*",)
        operation["requestBody"] = {"content": _content(one.body, types)}
        if one.method != "delete":
            operation["requestBody"]["required"] = True
    answer = {"description": "OK", "content": _content(one.answer, _READABLE)}
    operation["responses"] = {"200": answer, "401": {"description": "Unauthorized"}}
    if one.method in ("post", "put", "patch"):
        operation["responses"]["201"] = answer | {"description": "Created"}
    operation["x-kubernetes-action"] = one.action
    operation["x-kubernetes-group-version-kind"] = {
        "group": one.group,
        "version": one.version,
        "kind": one.kind,
    }
    return operation


def _content(definition: str, types: tuple[str, ...]) -> JsonObject:
    return {name: {"schema": {"$ref": OPENAPI_3.prefix + definition}} for name in types}
