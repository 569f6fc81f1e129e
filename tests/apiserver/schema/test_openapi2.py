"""The OpenAPI 2 document, as JSON and as protobuf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.schema.openapi2 import OPENAPI2_PROTOBUF, json_document, protobuf_document
from keepclose.model.gates import FeatureGates

GATES = FeatureGates()
DOCUMENT: dict[str, Any] = msgspec.json.decode(json_document(GATES).body)
Fields = dict[int, list[Any]]


def read_message(data: bytes) -> Fields:
    """Return the fields of a protobuf message: numbers, and bytes of whatever is below."""
    found: Fields = {}
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = data[place]
            place += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while place < len(data):
        key = varint()
        value: int | bytes = varint()
        if key & 7 == 2:
            assert isinstance(value, int)
            end = place + value
            value = data[place:end]
            place = end
        else:
            assert key & 7 == 0
        found.setdefault(key >> 3, []).append(value)
    assert place == len(data)
    return found


def text(fields: Fields, number: int) -> str:
    """Return a string field."""
    return bytes(fields[number][0]).decode()


def named(entries: list[bytes], read: Callable[[bytes], Any]) -> dict[str, Any]:
    """Return a map that is a repeated message of names and values."""
    pairs = (read_message(entry) for entry in entries)
    return {text(pair, 1): read(pair[2][0]) for pair in pairs}


def read_yaml(data: bytes) -> Any:
    """Return the value of an Any."""
    return msgspec.json.decode(read_message(data)[2][0])


def inner(data: bytes, *numbers: int) -> bytes:
    """Return what messages hold that only hold another."""
    for number in numbers:
        (data,) = read_message(data)[number]
    return data


def read_schema(data: bytes) -> dict[str, Any]:
    """Return a Schema as JSON."""
    fields = read_message(data)
    schema: dict[str, Any] = {}
    for number, name in ((1, "$ref"), (2, "format"), (4, "description")):
        if number in fields:
            schema[name] = text(fields, number)
    if 5 in fields:
        schema["default"] = read_yaml(fields[5][0])
    if 19 in fields:
        schema["required"] = [one.decode() for one in fields[19]]
    if 21 in fields:
        schema["additionalProperties"] = read_schema(inner(fields[21][0], 1))
    if 22 in fields:
        schema["type"] = inner(fields[22][0], 1).decode()
    if 23 in fields:
        schema["items"] = read_schema(inner(fields[23][0], 1))
    if 25 in fields:
        schema["properties"] = named(read_message(fields[25][0])[1], read_schema)
    return schema | named(fields.get(31, []), read_yaml)


def read_parameter(data: bytes) -> dict[str, Any]:
    """Return a ParametersItem as JSON."""
    kind, (content,) = next(iter(read_message(inner(data, 1)).items()))
    if kind == 1:
        fields = read_message(content)
        found: dict[str, Any] = {"name": text(fields, 2), "in": text(fields, 3)}
        if 4 in fields:
            found["required"] = bool(fields[4][0])
        return found | {"schema": read_schema(fields[5][0])}
    kind, (content,) = next(iter(read_message(content).items()))
    fields = read_message(content)
    found = {"in": text(fields, 2), "description": text(fields, 3), "name": text(fields, 4)}
    if kind == 3:
        return found | {"type": text(fields, 6), "uniqueItems": bool(fields[20][0])}
    assert kind == 4
    return found | {"required": bool(fields[1][0]), "type": text(fields, 5)}


def read_response(data: bytes) -> dict[str, Any]:
    """Return a ResponseValue as JSON."""
    fields = read_message(inner(data, 1))
    found: dict[str, Any] = {"description": text(fields, 1)}
    if 2 in fields:
        found["schema"] = read_schema(inner(fields[2][0], 1))
    return found


def read_operation(data: bytes) -> dict[str, Any]:
    """Return an Operation as JSON."""
    fields = read_message(data)
    return {
        "tags": [one.decode() for one in fields[1]],
        "description": text(fields, 3),
        "operationId": text(fields, 5),
        "produces": [one.decode() for one in fields[6]],
        "consumes": [one.decode() for one in fields[7]],
        "parameters": [read_parameter(one) for one in fields.get(8, [])],
        "responses": named(read_message(fields[9][0])[1], read_response),
        **named(fields[13], read_yaml),
    }


def read_path(data: bytes) -> dict[str, Any]:
    """Return a PathItem as JSON."""
    fields = read_message(data)
    methods = {2: "get", 3: "put", 4: "post", 5: "delete", 8: "patch"}
    found: dict[str, Any] = {
        name: read_operation(fields[number][0])
        for number, name in methods.items()
        if number in fields
    }
    if 9 in fields:
        found["parameters"] = [read_parameter(one) for one in fields[9]]
    return found


def test_the_protobuf_says_the_same_as_the_json() -> None:
    """Read back message by message, nothing is missing and nothing is new."""
    document = protobuf_document(GATES)
    assert document.media_type == OPENAPI2_PROTOBUF
    fields = read_message(document.body)
    assert sorted(fields) == [1, 2, 8, 9]
    info = read_message(fields[2][0])
    assert text(fields, 1) == DOCUMENT["swagger"]
    assert {"title": text(info, 1), "version": text(info, 2)} == DOCUMENT["info"]
    assert named(read_message(fields[8][0])[2], read_path) == DOCUMENT["paths"]
    assert named(read_message(fields[9][0])[1], read_schema) == DOCUMENT["definitions"]


def test_the_media_type_can_be_parsed_by_kubectl() -> None:
    """An @ in it would break every kubectl."""
    assert OPENAPI2_PROTOBUF == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def test_documents_are_built_once() -> None:
    """The same bytes and the same mark for every request."""
    assert json_document(GATES) is json_document(FeatureGates())
    assert protobuf_document(GATES) is protobuf_document(FeatureGates())
    assert json_document(GATES).hash != protobuf_document(GATES).hash


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("io.k8s.apimachinery.pkg.api.resource.Quantity", {"type": "string"}),
        (
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
            {"type": "string", "format": "int-or-string"},
        ),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", {"type": "string", "format": "date-time"}),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.Patch", {"type": "object"}),
    ],
)
def test_definitions_that_are_no_objects(name: str, want: object) -> None:
    """Old clients know one type a value, so what allows two is called a string."""
    assert DOCUMENT["definitions"][name] == want


def test_marks_stand_beside_references() -> None:
    """There kubectl 1.20 reads the marks of a field."""
    strategy = DOCUMENT["definitions"]["io.k8s.api.apps.v1.DeploymentSpec"]["properties"][
        "strategy"
    ]
    assert strategy["$ref"] == "#/definitions/io.k8s.api.apps.v1.DeploymentStrategy"
    assert strategy["x-kubernetes-patch-strategy"] == "retainKeys"


def test_patch_takes_a_dry_run() -> None:
    """The document is asked by kubectl 1.20 before it dares `--dry-run=server`."""
    patch = DOCUMENT["paths"]["/api/v1/namespaces/{namespace}/services/{name}"]["patch"]
    query = [one["name"] for one in patch["parameters"] if one["in"] == "query"]
    assert query == ["dryRun", "fieldManager", "fieldValidation", "force"]
    assert patch["x-kubernetes-group-version-kind"] == {
        "group": "",
        "kind": "Service",
        "version": "v1",
    }
    assert patch["parameters"][0] == {
        "name": "body",
        "in": "body",
        "schema": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Patch"},
        "required": True,
    }
