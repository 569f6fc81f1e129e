"""Tests of how objects are read from JSON and from plain values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.decoding import (
    API_VERSIONS,
    KINDS,
    KnownObject,
    Rejected,
    UnknownKind,
    convert,
    decode,
    display_value,
    path_steps,
)
from keepclose.model.field_errors import FieldError, invalid, required
from keepclose.model.service.types import Service
from keepclose.model.workload import Node
from support import builders


def raw_service(**members: Any) -> dict[str, Any]:
    """Return a Service as plain values."""
    return {"apiVersion": "v1", "kind": "Service", **members}


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(builders.node(), id="node"),
        pytest.param(builders.pod(terminating=True), id="pod"),
        pytest.param(builders.service(traffic_distribution="PreferClose"), id="service"),
        pytest.param(builders.endpoint_slice(builders.endpoint(for_zones=("a",))), id="slice"),
    ],
)
def test_object_survives_both_ways(obj: KnownObject) -> None:
    """An object that was encoded is read again as it was, from bytes and from plain values."""
    data = msgspec.json.encode(obj)

    assert decode(obj.kind, data) == obj
    assert convert(msgspec.json.decode(data)) == obj


def test_every_kind_is_registered_under_its_own_names() -> None:
    """The registry names each struct by the apiVersion and kind that the struct itself writes."""
    want = {(struct().api_version, struct().kind): struct for struct in KINDS.values()}

    assert want == KINDS
    assert set(API_VERSIONS) == {kind for _, kind in KINDS}


def test_item_of_a_list_needs_no_kind() -> None:
    """Bytes without apiVersion and kind are read as the kind that was asked for."""
    assert decode("Service", b'{"metadata":{"name":"web"}}') == convert(
        raw_service(metadata={"name": "web"})
    )


@pytest.mark.parametrize(
    ("kind", "data", "want_cause"),
    [
        pytest.param(
            "Service",
            b'{"kind":"Pod"}',
            invalid("kind", "Pod", "must be Service"),
            id="another kind",
        ),
        pytest.param(
            "EndpointSlice",
            b'{"apiVersion":"discovery.k8s.io/v1beta1"}',
            invalid("apiVersion", "discovery.k8s.io/v1beta1", "must be discovery.k8s.io/v1"),
            id="another version",
        ),
        pytest.param(
            "Service", b"", invalid("object", "", "input data was truncated"), id="nothing"
        ),
        pytest.param(
            "Service",
            b"{x}",
            invalid("object", "{x}", "JSON is malformed: object keys must be strings (byte 1)"),
            id="no JSON",
        ),
        pytest.param(
            "Service",
            b'{"kind":"\xff"}',
            invalid("object", '{"kind":"\ufffd"}', "not UTF-8 text"),
            id="no UTF-8",
        ),
        pytest.param(
            "Service",
            b"[" * 100_000,
            invalid("object", "[" * 40, "nested too deeply"),
            id="brackets without end",
        ),
        pytest.param(
            "Service", b"[1]", invalid("object", [1], "expected a map, got a list"), id="a list"
        ),
        pytest.param(
            "Service",
            b'{"spec":{"ports":[{"port":"80"}]}}',
            invalid("spec.ports[0].port", "80", "expected a number, got a string"),
            id="a quoted port",
        ),
        pytest.param(
            "Service",
            b'{"spec":{"ports":"x"}',
            invalid("object", '{"spec":{"ports":"x"}', "input data was truncated"),
            id="a bad type and an open end",
        ),
    ],
)
def test_bad_bytes_are_rejected(kind: str, data: bytes, want_cause: FieldError) -> None:
    """Bytes that do not hold the object give the cause."""
    assert decode(kind, data) == Rejected(want_cause)


def test_unknown_kind_is_told_apart() -> None:
    """A kind that is not read is not an error."""
    assert decode("Deployment", b"{}") == UnknownKind("", "Deployment")
    assert convert({"apiVersion": "apps/v1", "kind": "Deployment"}) == UnknownKind(
        "apps/v1", "Deployment"
    )
    assert convert({"apiVersion": "v2", "kind": "Service"}) == UnknownKind("v2", "Service")


@pytest.mark.parametrize(
    ("raw", "want_cause"),
    [
        pytest.param({"kind": "Service"}, required("apiVersion"), id="no apiVersion"),
        pytest.param({"apiVersion": "v1"}, required("kind"), id="no kind"),
        pytest.param({"apiVersion": "v1", "kind": ""}, required("kind"), id="empty kind"),
        pytest.param(
            {"apiVersion": 1, "kind": "Service"},
            invalid("apiVersion", 1, "expected a string, got a number"),
            id="a number as apiVersion",
        ),
        pytest.param(
            {"apiVersion": "v1", "kind": ["Service"]},
            invalid("kind", ["Service"], "expected a string, got a list"),
            id="a list as kind",
        ),
        pytest.param(
            raw_service(metadata={"labels": {"tier": "x", "app": 1}}),
            invalid("metadata.labels[app]", 1, "expected a string, got a number"),
            id="a number as label",
        ),
        pytest.param(
            raw_service(metadata={"annotations": {"a/b": True}}),
            invalid("metadata.annotations[a/b]", True, "expected a string, got a boolean"),
            id="a boolean as annotation",
        ),
        pytest.param(
            raw_service(metadata={"labels": {1: "x"}}),
            invalid("metadata.labels", 1, "expected a string as key, got a number"),
            id="a number as key",
        ),
        pytest.param(
            raw_service(metadata=None, spec={"ports": [{"port": 80}, {"port": "80"}]}),
            invalid("spec.ports[1].port", "80", "expected a number, got a string"),
            id="a quoted port",
        ),
        pytest.param(
            raw_service(spec={"ports": [{"port": 80.5}]}),
            invalid("spec.ports[0].port", 80.5, "expected a whole number, got a fraction"),
            id="a fraction as port",
        ),
        pytest.param(
            raw_service(spec={"ports": [{"targetPort": [1]}]}),
            invalid("spec.ports[0].targetPort", [1], "expected a number or a string, got a list"),
            id="several types would do",
        ),
        pytest.param(
            raw_service(spec={"ports": [None]}),
            invalid("spec.ports[0]", None, "expected a map, got null"),
            id="null in a list is no item",
        ),
        pytest.param(
            raw_service(spec={"ports": {"port": 80, "name": "http"}}),
            invalid("spec.ports", "a map of 2", "expected a list, got a map"),
            id="a map instead of a list",
        ),
        pytest.param(
            raw_service(status={"conditions": [{"status": "True"}]}),
            required("status.conditions[0].type"),
            id="a field that must be there",
        ),
        pytest.param(
            {"apiVersion": "v1", "kind": "Node", "status": {"allocatable": {"cpu": True}}},
            invalid(
                "status.allocatable[cpu]", True, "expected a number or a string, got a boolean"
            ),
            id="a boolean as quantity",
        ),
    ],
)
def test_bad_values_are_rejected(raw: dict[str, Any], want_cause: FieldError) -> None:
    """Values of a wrong type are rejected with the path of the field and the value."""
    assert convert(raw) == Rejected(want_cause)


def test_null_is_absent() -> None:
    """Null members count as absent at any depth, and the given values stay as they are."""
    raw = raw_service(
        metadata={"name": "web", "labels": None, "uid": None},
        spec={"ports": [{"port": 80, "name": None}], "selector": None, "clusterIPs": None},
    )
    want = convert(raw_service(metadata={"name": "web"}, spec={"ports": [{"port": 80}]}))

    assert isinstance(want, Service)
    assert convert(raw) == want
    assert decode("Service", msgspec.json.encode(raw)) == want
    assert raw["metadata"]["labels"] is None


def test_null_label_is_an_empty_one() -> None:
    """A label without a value is there, so that a control-plane node is known as one."""
    raw = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"node-role.kubernetes.io/control-plane": None}},
    }
    node = convert(raw)

    assert isinstance(node, Node)
    assert node.metadata.labels == {"node-role.kubernetes.io/control-plane": ""}
    assert node.is_excluded


def test_values_that_contain_themselves_are_rejected() -> None:
    """A value that stands in itself neither raises nor is followed for ever."""
    ports: list[Any] = [None]
    ports.append(ports)

    assert convert(raw_service(spec={"ports": ports})) == Rejected(
        invalid("spec.ports[0]", None, "expected a map, got null")
    )


@pytest.mark.parametrize(
    ("path", "want_steps"),
    [
        pytest.param("spec.ports[0].port", ("spec", "ports", "0", "port"), id="members and items"),
        pytest.param("metadata.labels[a.b/c]", ("metadata", "labels", "a.b/c"), id="map keys"),
        pytest.param("", (), id="nothing"),
    ],
)
def test_path_is_split(path: str, want_steps: tuple[str, ...]) -> None:
    """A path is split into its steps."""
    assert path_steps(path) == want_steps


@pytest.mark.parametrize(
    ("value", "want_shown"),
    [
        pytest.param("x", "x", id="a string"),
        pytest.param(None, None, id="null"),
        pytest.param([1, "a"], [1, "a"], id="a short list"),
        pytest.param([1] * 4, "a list of 4", id="a long list"),
        pytest.param([[]], "a list of 1", id="a nested list"),
        pytest.param({}, {}, id="an empty map"),
        pytest.param({"a": 1}, "a map of 1", id="a map"),
        pytest.param(b"x", "bytes", id="something else"),
    ],
)
def test_value_is_shown_briefly(value: object, want_shown: object) -> None:
    """Causes show small values as they are and large ones in a few words."""
    assert display_value(value) == want_shown


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=12,
)
_objects = st.fixed_dictionaries(
    {
        "apiVersion": st.sampled_from(["v1", "discovery.k8s.io/v1"]),
        "kind": st.sampled_from(sorted(API_VERSIONS)),
    },
    optional={
        "metadata": _json | st.fixed_dictionaries({}, optional={"labels": _json, "name": _json}),
        "spec": _json
        | st.fixed_dictionaries({"ports": st.lists(st.fixed_dictionaries({"port": _json}))}),
        "status": _json | st.fixed_dictionaries({"allocatable": st.dictionaries(st.text(), _json)}),
        "endpoints": _json,
    },
)


@given(_objects | st.dictionaries(st.text(max_size=10), _json, max_size=3))
@settings(deadline=None, max_examples=200)
def test_converting_never_raises(raw: dict[str, Any]) -> None:
    """Any values give an object, an unknown kind or a cause that can be shown."""
    result = convert(raw)
    if isinstance(result, Rejected):
        assert result.cause.field in str(result.cause)
    elif not isinstance(result, UnknownKind):
        assert convert(msgspec.to_builtins(result)) == result


@given(
    st.sampled_from(sorted(API_VERSIONS)),
    st.binary(max_size=30) | _objects.map(msgspec.json.encode),
)
@settings(deadline=None, max_examples=200)
def test_decoding_never_raises(kind: str, data: bytes) -> None:
    """Any bytes give an object of the kind or a cause that can be shown."""
    result = decode(kind, data)

    assert not isinstance(result, UnknownKind)
    if isinstance(result, Rejected):
        assert result.cause.field in str(result.cause)
    else:
        assert result.kind == kind
