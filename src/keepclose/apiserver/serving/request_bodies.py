"""Decodes the bodies of requests from a media type to a checked JSON value.

The HTTP server bounds the size of a body; here its depth and its YAML nodes are bounded. Unknown
fields of a kind are rejected, reported as warnings or silently dropped, as `fieldValidation` says.
A value of the wrong type is always rejected. Errors are those of kube-apiserver, word by word.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from keepclose.apiserver.resources import BINDINGS, BY_KIND, Resource
from keepclose.apiserver.schema.checking import check_object
from keepclose.apiserver.schema.findings import strict_texts
from keepclose.apiserver.schema.protobuf import decode_protobuf
from keepclose.apiserver.schema.protobuf_wire import MessageError
from keepclose.apiserver.schema.types import Type
from keepclose.apiserver.serving.negotiation import JSON_FORM, YAML_FORM
from keepclose.apiserver.status_errors import (
    StatusError,
    bad_request,
    invalid_object,
    unsupported_media_type,
)
from keepclose.kube.yaml_nodes import YamlError, YamlLimits
from keepclose.kube.yaml_values import explain_yaml_error, read_yaml
from keepclose.model.field_errors import invalid as invalid_value
from keepclose.model.field_errors import required
from keepclose.model.json_values import (
    JsonDepthError,
    JsonObject,
    JsonValueError,
    check_depth,
    decode_json,
)

APPLY_YAML: Final = "application/apply-patch+yaml"
JSON_PATCH_TYPE: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
PROTOBUF_TYPE: Final = "application/vnd.kubernetes.protobuf"
ACCEPTED_PATCH_TYPES: Final = (JSON_PATCH_TYPE, MERGE_PATCH, STRATEGIC_PATCH, APPLY_YAML)
SCALE: Final = Resource(
    group="autoscaling",
    version="v1",
    kind="Scale",
    plural="scales",
    singular="scale",
    definition="io.k8s.api.autoscaling.v1.Scale",
)
# A YAML node takes 3 to 9 microseconds to parse, so the costliest body takes a second at most.
# The largest EndpointSlice, of 1,000 endpoints, has 20,000 nodes.
YAML_NODES_MAX: Final = 100_000
YAML_LIMITS: Final = YamlLimits(nodes=YAML_NODES_MAX, repeated_nodes=YAML_NODES_MAX)
# YAML up to this size is parsed within 10 ms.
YAML_AT_ONCE_BYTES: Final = 4096
YAML_TYPES: Final = frozenset({YAML_FORM, APPLY_YAML, "application/x-yaml"})
_DEFAULT_VALIDATION: Final = "Warn"
_SUMMARY_BYTES: Final = 30
_REPEATED_MAX: Final = 100
_GO_KINDS: Final = {list: "array", dict: "object", str: "string", bool: "bool", type(None): "null"}
_GO_TYPE: Final = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
    'Kind string "json:\\"kind,omitempty\\"" }'
)


def media_type_of(header: str) -> str:
    """Return the media type of a Content-Type header; JSON when it is empty."""
    return header.partition(";")[0].strip().lower() or JSON_FORM


class ParsedYaml(bytes):
    """A YAML body with its parsed value, so that a thread can parse it for the event loop."""

    outcome: tuple[Any, list[str]] | YamlError


def parse_body(body: bytes, media_type: str) -> bytes:
    """Return the body with the costly part done: YAML that is not JSON is parsed.

    A pure function that never raises, for threads; the functions below accept its result in place
    of the body.
    """
    if media_type not in YAML_TYPES or isinstance(body, ParsedYaml):
        return body
    try:
        decode_json(body)
    except JsonValueError:
        parsed = ParsedYaml(body)
        try:
            parsed.outcome = read_yaml(body, YAML_LIMITS)
        except YamlError as error:
            parsed.outcome = error
        return parsed
    return body


def read_values(body: bytes, media_type: str, kind: str = "object") -> JsonObject:
    """Return the JSON object of a body; error messages name the expected kind."""
    return _read_values(body, media_type, kind)[0]


def _read_values(body: bytes, media_type: str, kind: str) -> tuple[JsonObject, list[str]]:
    """Return the object, and the errors of strict decoding for keys that its YAML repeats."""
    if media_type == PROTOBUF_TYPE:
        return _read_protobuf(body), []
    if media_type != JSON_FORM and media_type not in YAML_TYPES:
        raise unsupported_media_type((JSON_FORM, YAML_FORM, PROTOBUF_TYPE))
    repeated: list[str] = []
    try:
        value = decode_json(body)
    except JsonValueError as error:
        if media_type == JSON_FORM:
            raise _unreadable(body, kind, _json_problem(error)) from None
        value, repeated = _read_yaml(body, media_type, kind)
    if not isinstance(value, dict):
        go_kind = _GO_KINDS.get(type(value), "number")
        why = f"json: cannot unmarshal {go_kind} into Go value of type {_GO_TYPE}"
        raise _unreadable(body, kind, why)
    return value, repeated


def read_body_object(
    body: bytes, media_type: str, resource: Resource, shape: Type, *, validation: str
) -> tuple[JsonObject, list[str]]:
    """Return the checked object of a create or an update, and warnings about its fields."""
    value, repeated = _read_values(body, media_type, resource.kind)
    check_kind(value, resource)
    warnings = check_shape(
        value,
        resource,
        shape,
        validation=validation,
        body=body if media_type == JSON_FORM else None,
        repeated=repeated,
    )
    return value, warnings


def read_applied(body: bytes, resource: Resource) -> JsonObject:
    """Return the configuration of a server-side apply, which checks its fields itself."""
    value = read_values(body, APPLY_YAML, resource.kind)
    for name in ("apiVersion", "kind"):
        if not value.get(name):
            raise bad_request(f"invalid object type: /, Kind={value.get('kind') or ''}")
    check_kind(value, resource)
    if not isinstance(value["metadata"], dict):
        raise bad_request(_cannot_be_handled(resource, ".metadata: expected map"))
    return value


def required_manager(manager: str) -> str:
    """Return the field manager of an apply. Raises StatusError when it is empty."""
    if not manager:
        cause = required("fieldManager", "is required for apply patch")
        raise invalid_object("PatchOptions", "meta.k8s.io", "", [cause])
    return manager


def check_scale(value: JsonObject, shape: Type, *, patched: bool = False) -> None:
    """Reject an object that is not a Scale; unknown fields are dropped."""
    _check_kind_is_string(value)
    version_and_kind = (
        value.get("apiVersion") or SCALE.api_version,
        value.get("kind") or SCALE.kind,
    )
    if version_and_kind != (SCALE.api_version, SCALE.kind):
        version, kind = version_and_kind
        short = str(version).rpartition("/")[2]
        why = f"converting ({short}.{kind}) to (autoscaling.Scale): unknown conversion"
        raise bad_request(f'{kind} in version "{short}" cannot be handled as a Scale: {why}')
    if patched:
        check_patched(value, SCALE, shape, validation="Ignore")
    else:
        check_shape(value, SCALE, shape, validation="Ignore")


def read_patch(body: bytes) -> JsonObject:
    """Return the patch in a body."""
    try:
        value = decode_json(body)
    except JsonValueError as error:
        raise bad_request(f"error decoding patch: {_json_problem(error)}") from None
    if not isinstance(value, dict):
        raise bad_request(f"error decoding patch: expected an object, got {type(value).__name__}")
    return value


def check_kind(value: JsonObject, resource: Resource) -> None:
    """Set apiVersion and kind where they are absent; reject those of another kind."""
    _check_kind_is_string(value)
    version = value.get("apiVersion") or resource.api_version
    kind = value.get("kind") or resource.kind
    value["apiVersion"], value["kind"] = version, kind
    is_served = (version, kind) in BY_KIND or (version, kind) == (
        BINDINGS.api_version,
        BINDINGS.kind,
    )
    if not is_served:
        why = (
            f'no kind "{kind}" is registered for version "{version}" in scheme '
            '"pkg/runtime/scheme.go:111"'
        )
    elif kind != resource.kind:
        internal = resource.group.partition(".")[0] or "core"
        short = str(version).rpartition("/")[2]
        why = f"converting ({short}.{kind}) to ({internal}.{resource.kind}): unknown conversion"
    elif version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    else:
        # NB: metadata of a wrong type is left to the check of types.
        if value.get("metadata") is None:
            value["metadata"] = {}
        return
    short = str(version).rpartition("/")[2]
    raise bad_request(f'{kind} in version "{short}" cannot be handled as a {resource.kind}: {why}')


def check_patched(
    value: JsonObject, resource: Resource, shape: Type, *, validation: str
) -> list[str]:
    """Check a patched object as `check_shape` does; return the warnings."""
    try:
        # NB: a patch may nest two values that are each within the limit.
        check_depth(value)
    except JsonDepthError as error:
        raise bad_request(f"error decoding patch: {error}") from None
    problems = check_object(shape, value)
    if problems.wrong_type:
        raise invalid_object(
            "", "", "", [invalid_value("patch", _encode(value), problems.wrong_type)]
        )
    texts = [f'unknown field "{path}"' for path in problems.unknown]
    return _warn_or_reject(texts, resource, validation or _DEFAULT_VALIDATION)


def check_shape(
    value: JsonObject,
    resource: Resource,
    shape: Type,
    *,
    validation: str,
    body: bytes | None = None,
    repeated: list[str] | None = None,
) -> list[str]:
    """Drop unknown fields, and return the warnings about them. Raises StatusError."""
    mode = validation or _DEFAULT_VALIDATION
    problems = check_object(shape, value)
    if problems.wrong_type:
        raise bad_request(_cannot_be_handled(resource, problems.wrong_type))
    if mode == "Ignore":
        return []
    unknown = list(problems.unknown)
    if body is not None:
        texts = strict_texts(shape, body, unknown=unknown)
    else:
        texts = [
            *(repeated or [])[:_REPEATED_MAX],
            *(f'unknown field "{path}"' for path in unknown),
        ]
    return _warn_or_reject(texts, resource, mode)


def _check_kind_is_string(value: JsonObject) -> None:
    for name in ("apiVersion", "kind"):
        if not isinstance(value.get(name), str | None):
            go_kind = _GO_KINDS.get(type(value[name]), "number")
            raise bad_request(
                f"couldn't get version/kind; json parse error: json: cannot unmarshal {go_kind} "
                f"into Go struct field .{name} of type string"
            )


def _warn_or_reject(texts: list[str], resource: Resource, mode: str) -> list[str]:
    """Return the warnings of a mode. Raises StatusError in the mode Strict."""
    if mode == "Strict" and texts:
        detail = f"strict decoding error: {', '.join(texts)}"
        raise bad_request(_cannot_be_handled(resource, detail))
    return [] if mode == "Ignore" else texts


def _cannot_be_handled(resource: Resource, why: str) -> str:
    kind, version = resource.kind, resource.version
    return f'{kind} in version "{version}" cannot be handled as a {kind}: {why}'


def _unreadable(body: bytes, kind: str, why: str) -> StatusError:
    return bad_request(
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
        f"json parse error: {why} ({_summary(body)})"
    )


def _json_problem(error: JsonValueError) -> str:
    """Return the error of invalid JSON, in the words of Go's decoder where they are known."""
    text = str(error)
    return "unexpected end of JSON input" if "truncated" in text else text


def _encode(value: JsonObject) -> str:
    """Return a value as JSON for error messages."""
    try:
        return msgspec.json.encode(value).decode()
    except OverflowError:
        # A number of more than 64 bits, which is of the wrong type in any field.
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _summary(body: bytes) -> str:
    """Return the beginning of a body for error messages."""
    if not body:
        return "<empty>"
    if not body.startswith(b"{"):
        return body[:_SUMMARY_BYTES].hex() + (" ..." if len(body) > _SUMMARY_BYTES else "")
    beginning = body[:_SUMMARY_BYTES].decode(errors="replace")
    return beginning + (" ..." if len(body) > _SUMMARY_BYTES else "")


def _read_protobuf(body: bytes) -> JsonObject:
    try:
        return decode_protobuf(body)
    except MessageError as error:
        raise bad_request(f"error decoding protobuf: {error}") from None


def _read_yaml(body: bytes, media_type: str, kind: str) -> tuple[Any, list[str]]:
    parsed = body if isinstance(body, ParsedYaml) else parse_body(body, media_type)
    outcome = parsed.outcome if isinstance(parsed, ParsedYaml) else (decode_json(body), [])
    if not isinstance(outcome, YamlError):
        value, repeated = outcome
        return {} if value is None else value, repeated
    cause = explain_yaml_error(outcome)
    if media_type == APPLY_YAML:
        raise bad_request(f"error decoding YAML: error converting YAML to JSON: {cause}")
    raise bad_request(
        f"the object provided is unrecognized (must be of type {kind}): {cause} ({_summary(body)})"
    )
