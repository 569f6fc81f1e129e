"""Causes render as the API server renders them."""

from __future__ import annotations

import pytest

from keepclose.model.endpointslice.types import ForZone
from keepclose.model.field_errors import (
    FieldError,
    FieldErrorType,
    duplicate,
    forbidden_field,
    internal,
    invalid,
    not_supported,
    render_value,
    required,
    too_long,
    too_many,
)


@pytest.mark.parametrize(
    ("cause", "want_type", "want_text"),
    [
        pytest.param(
            required("addressType"),
            "FieldValueRequired",
            "addressType: Required value",
            id="required without a detail",
        ),
        pytest.param(
            required("metadata.name", "name or generateName is required"),
            "FieldValueRequired",
            "metadata.name: Required value: name or generateName is required",
            id="required with a detail",
        ),
        pytest.param(
            invalid("spec.ports[0].port", 0, "must be between 1 and 65535, inclusive"),
            "FieldValueInvalid",
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            id="invalid shows its value",
        ),
        pytest.param(
            not_supported("spec.trafficDistribution", "Near", ("PreferClose", "PreferSameZone")),
            "FieldValueNotSupported",
            'spec.trafficDistribution: Unsupported value: "Near": '
            'supported values: "PreferClose", "PreferSameZone"',
            id="not supported keeps the given order",
        ),
        pytest.param(
            duplicate("ports[1].name", "http"),
            "FieldValueDuplicate",
            'ports[1].name: Duplicate value: "http"',
            id="duplicate has no detail",
        ),
        pytest.param(
            forbidden_field("metadata.namespace", "not allowed on this type"),
            "FieldValueForbidden",
            "metadata.namespace: Forbidden: not allowed on this type",
            id="forbidden hides its value",
        ),
        pytest.param(
            too_many("endpoints", 1001, 1000),
            "FieldValueTooMany",
            "endpoints: Too many: 1001: must have at most 1000 items",
            id="too many shows the count",
        ),
        pytest.param(
            too_many("list", 2, 1),
            "FieldValueTooMany",
            "list: Too many: 2: must have at most 1 item",
            id="too many of one item",
        ),
        pytest.param(
            too_long("metadata.annotations", 262144),
            "FieldValueTooLong",
            "metadata.annotations: Too long: may not be more than 262144 bytes",
            id="too long hides its value",
        ),
        pytest.param(
            internal("labels[a/b]", "reserved key was not removed in conversion"),
            "InternalError",
            "labels[a/b]: Internal error: reserved key was not removed in conversion",
            id="internal error",
        ),
    ],
)
def test_a_cause_renders(cause: FieldError, want_type: str, want_text: str) -> None:
    """Each kind of cause has its machine type and its text."""
    assert cause.type == want_type
    assert str(cause) == want_text


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param('say "a"\n', '"say \\"a\\"\\n"', id="strings are quoted and escaped"),
        pytest.param(True, "true", id="bools are bare"),
        pytest.param(7, "7", id="ints are bare"),
        pytest.param(1.5, "1.5", id="floats are bare"),
        pytest.param(FieldErrorType.INTERNAL, '"InternalError"', id="enums are quoted"),
        pytest.param((ForZone("a"), ForZone("b")), '[{"name":"a"},{"name":"b"}]', id="json"),
        pytest.param(
            '\x1b[2J\x7f\x9b \u200b\u2028\n"\\\U000e0001\ud800\u00e9',
            r'"\x1b[2J\x7f\u009b \u200b\u2028\n\"\\\U000e0001\ufffd' + '\u00e9"',
            id="what terminals act on",
        ),
    ],
)
def test_a_value_renders(value: object, want: str) -> None:
    """Bad values are shown quoted when they are strings and as compact JSON otherwise."""
    assert render_value(value) == want


def test_causes_are_equal_by_content() -> None:
    """Two causes that say the same are equal, so lists of causes can be compared."""
    assert invalid("a", "b", "c") == invalid("a", "b", "c")
    assert invalid("a", "b", "c") != invalid("a", "b", "d")
