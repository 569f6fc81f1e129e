"""The objects that requests carry: bytes of a known type to a checked JSON value.

A body is bounded in size by the server, in depth and in YAML nodes here. Fields that a kind does
not have are refused, warned of or silently dropped, as `fieldValidation` says; a value of the wrong
type is always refused.
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
from keepclose.kube.yaml_values import explain, read_yaml
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
# A node of YAML takes 3 to 9 microseconds to read, so the costliest body takes a second at most.
# The largest EndpointSlice, of 1,000 endpoints, has 20,000 nodes.
YAML_NODES_MAX: Final = 100_000
YAML_LIMITS: Final = YamlLimits(nodes=YAML_NODES_MAX, repeated_nodes=YAML_NODES_MAX)
# Up to here YAML is read within 10 ms, whatever it holds.
YAML_AT_ONCE_BYTES: Final = 4096
YAML_TYPES: Final = frozenset({YAML_FORM, APPLY_YAML, "application/x-yaml"})
_DEFAULT_VALIDATION: Final = "Warn"
_SHOWN: Final = 30
_REPEATED_MAX: Final = 100
_GO_KINDS: Final = {list: "array", dict: "object", str: "string", bool: "bool", type(None): "null"}
_GO_TYPE: Final = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
    'Kind string "json:\\"kind,omitempty\\"" }'
)


def media_type_of(header: str) -> str:
    """Return the type that a Content-Type header names; JSON where there is none."""
    return header.partition(";")[0].strip().lower() or JSON_FORM


class ParsedYaml(bytes):
    """A body of YAML with what it holds, so that it is parsed elsewhere than it is used."""

    outcome: tuple[Any, list[str]] | YamlError


def parse_body(body: bytes, media_type: str) -> bytes:
    """Return a body with its costly part done: that of YAML which is no JSON is parsed.

    A pure function that never raises, for threads beside the loop; the functions below take what
    it returns in place of the body.
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
    """Return the JSON object that a body holds; messages name the kind that it should be."""
    return _read_values(body, media_type, kind)[0]


def _read_values(body: bytes, media_type: str, kind: str) -> tuple[JsonObject, list[str]]:
    """Return the object and the keys that its YAML repeats, in the words of strict readers."""
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
        found = _GO_KINDS.get(type(value), "number")
        why = f"json: cannot unmarshal {found} into Go value of type {_GO_TYPE}"
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
    """Return the configuration that server-side apply is given; apply itself checks its fields."""
    value = read_values(body, APPLY_YAML, resource.kind)
    for name in ("apiVersion", "kind"):
        if not value.get(name):
            raise bad_request(f"invalid object type: /, Kind={value.get('kind') or ''}")
    check_kind(value, resource)
    if not isinstance(value["metadata"], dict):
        raise bad_request(_cannot_be_handled(resource, ".metadata: expected map"))
    return value


def required_manager(given: str) -> str:
    """Return the name under which a configuration is applied, which must be given."""
    if not given:
        cause = required("fieldManager", "is required for apply patch")
        raise invalid_object("PatchOptions", "meta.k8s.io", "", [cause])
    return given


def check_scale(value: JsonObject, shape: Type, *, patched: bool = False) -> None:
    """Refuse what is no Scale; what a Scale does not have is dropped."""
    _check_kind_is_text(value)
    given = (value.get("apiVersion") or SCALE.api_version, value.get("kind") or SCALE.kind)
    if given != (SCALE.api_version, SCALE.kind):
        version, kind = given
        short = str(version).rpartition("/")[2]
        why = f"converting ({short}.{kind}) to (autoscaling.Scale): unknown conversion"
        raise bad_request(f'{kind} in version "{short}" cannot be handled as a Scale: {why}')
    if patched:
        check_patched(value, SCALE, shape, validation="Ignore")
    else:
        check_shape(value, SCALE, shape, validation="Ignore")


def read_patch(body: bytes) -> JsonObject:
    """Return the patch that a body holds."""
    try:
        value = decode_json(body)
    except JsonValueError as error:
        raise bad_request(f"error decoding patch: {_json_problem(error)}") from None
    if not isinstance(value, dict):
        raise bad_request(f"error decoding patch: expected an object, got {type(value).__name__}")
    return value


def check_kind(value: JsonObject, resource: Resource) -> None:
    """Set apiVersion and kind where they are absent; refuse those of another kind."""
    _check_kind_is_text(value)
    version = value.get("apiVersion") or resource.api_version
    kind = value.get("kind") or resource.kind
    value["apiVersion"], value["kind"] = version, kind
    known = (version, kind) in BY_KIND or (version, kind) == (BINDINGS.api_version, BINDINGS.kind)
    if not known:
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
        # NB: one of another type is left as it is, for the check of types to refuse.
        if value.get("metadata") is None:
            value["metadata"] = {}
        return
    short = str(version).rpartition("/")[2]
    raise bad_request(f'{kind} in version "{short}" cannot be handled as a {resource.kind}: {why}')


def check_patched(
    value: JsonObject, resource: Resource, shape: Type, *, validation: str
) -> list[str]:
    """Do what `check_shape` does for an object that a patch made."""
    try:
        # A patch may nest one value that is allowed in another.
        check_depth(value)
    except JsonDepthError as error:
        raise bad_request(f"error decoding patch: {error}") from None
    problems = check_object(shape, value)
    if problems.wrong_type:
        raise invalid_object(
            "", "", "", [invalid_value("patch", _encode(value), problems.wrong_type)]
        )
    texts = [f'unknown field "{path}"' for path in problems.unknown]
    return _settle(texts, resource, validation or _DEFAULT_VALIDATION)


def check_shape(
    value: JsonObject,
    resource: Resource,
    shape: Type,
    *,
    validation: str,
    body: bytes | None = None,
    repeated: list[str] | None = None,
) -> list[str]:
    """Drop what the kind does not have, and return the warnings that are due."""
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
    return _settle(texts, resource, mode)


def _check_kind_is_text(value: JsonObject) -> None:
    for name in ("apiVersion", "kind"):
        if not isinstance(value.get(name), str | None):
            found = _GO_KINDS.get(type(value[name]), "number")
            raise bad_request(
                f"couldn't get version/kind; json parse error: json: cannot unmarshal {found} "
                f"into Go struct field .{name} of type string"
            )


def _settle(texts: list[str], resource: Resource, mode: str) -> list[str]:
    """Return what to warn of; raise Failure where that is not enough."""
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
    """Return what is wrong with a text, in the words of Go's decoder where they are known."""
    text = str(error)
    return "unexpected end of JSON input" if "truncated" in text else text


def _encode(value: JsonObject) -> str:
    """Return a value as messages show it."""
    try:
        return msgspec.json.encode(value).decode()
    except OverflowError:
        # A number of more than 64 bits, which is of the wrong type wherever it stands.
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _summary(body: bytes) -> str:
    """Return the beginning of a body as messages show it."""
    if not body:
        return "<empty>"
    if not body.startswith(b"{"):
        return body[:_SHOWN].hex() + (" ..." if len(body) > _SHOWN else "")
    shown = body[:_SHOWN].decode(errors="replace")
    return shown + (" ..." if len(body) > _SHOWN else "")


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
    if media_type == APPLY_YAML:
        why = f"error converting YAML to JSON: {explain(outcome)}"
        raise bad_request(f"error decoding YAML: {why}")
    raise bad_request(
        f"the object provided is unrecognized (must be of type {kind}): {explain(outcome)} "
        f"({_summary(body)})"
    )
