"""OpenAPI 3: an index, and one document for each group and version.

kubectl since 1.27 reads these for `explain` and to learn which parameters a server understands. The
URL of a document carries its hash, so that a client may cache it for ever.
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

# The document of every group holds these besides the definitions that its operations name.
_COMMON_DEFINITIONS: Final = tuple(
    META + name for name in ("APIResourceList", "Status", "WatchEvent")
)
_RESPONSE_TYPES: Final = ("application/json", "application/yaml")


def index_document(gates: FeatureGates) -> Document:
    """Return the index: the URL of the document of each group and version."""
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
    names = {
        name for operation in operations for name in (operation.body, operation.answer) if name
    }
    document = {
        "openapi": "3.0.0",
        "info": TITLE,
        "paths": _paths(operations),
        "components": {
            "schemas": render_schemas(sorted(names.union(_COMMON_DEFINITIONS)), gates, OPENAPI_3)
        },
    }
    return make_document(msgspec.json.encode(document))


def _paths(operations: list[ApiOperation]) -> JsonObject:
    paths: JsonObject = {}
    for operation in operations:
        path = paths.setdefault(operation.path, {})
        path[operation.method] = _render_operation(operation)
    for url_path, path in paths.items():
        parameters = [
            {
                "name": name,
                "in": "path",
                "description": text,
                "required": True,
                "schema": {"type": "string", "uniqueItems": True},
            }
            for name, text in PATH_PARAMETERS.items()
            if f"{{{name}}}" in url_path
        ]
        if parameters:
            path["parameters"] = parameters
    return dict(sorted(paths.items()))


def _render_operation(operation: ApiOperation) -> JsonObject:
    rendered: JsonObject = {
        "tags": [operation.tag],
        "description": operation.description,
        "operationId": operation.id,
    }
    if operation.query:
        rendered["parameters"] = [
            {
                "name": name,
                "in": "query",
                "description": PARAMETERS[name][1],
                "schema": {"type": PARAMETERS[name][0], "uniqueItems": True},
            }
            for name in operation.query
        ]
    if operation.body:
        types = PATCH_TYPES if operation.body == PATCH else ("*/*",)
        rendered["requestBody"] = {"content": _content(operation.body, types)}
        if operation.method != "delete":
            rendered["requestBody"]["required"] = True
    answer = {"description": "OK", "content": _content(operation.answer, _RESPONSE_TYPES)}
    rendered["responses"] = {"200": answer, "401": {"description": "Unauthorized"}}
    if operation.method in ("post", "put", "patch"):
        rendered["responses"]["201"] = answer | {"description": "Created"}
    rendered["x-kubernetes-action"] = operation.action
    rendered["x-kubernetes-group-version-kind"] = {
        "group": operation.group,
        "version": operation.version,
        "kind": operation.kind,
    }
    return rendered


def _content(definition: str, types: tuple[str, ...]) -> JsonObject:
    return {name: {"schema": {"$ref": OPENAPI_3.prefix + definition}} for name in types}
