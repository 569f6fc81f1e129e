"""Fields that are doubled or not known, as a kube-apiserver 1.36 reports them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.apiserver.schema.checking import check_object
from keepclose.apiserver.schema.findings import (
    duplicate_fields,
    has_duplicates,
    strict_texts,
)
from keepclose.apiserver.schema.types import load_types, published
from keepclose.model.gates import FeatureGates

TYPES = load_types(FeatureGates())


@pytest.mark.parametrize(
    ("definition", "text", "want"),
    [
        pytest.param("core.v1.Service", '{"spec":{"type":"NodePort"}}', [], id="nothing"),
        pytest.param(
            "core.v1.Service",
            '{"spec":{"foo":1},"bar":{"a":1}}',
            ['unknown field "spec.foo"', 'unknown field "bar"'],
            id="unknown fields",
        ),
        pytest.param(
            "core.v1.Service",
            '{"spec":{"foo":1,"ports":[{"port":80,"bar":2,"port":81}],"ports":[{"port":82}],'
            '"baz":{"a":1,"a":2}},"spec":{"zz":1}}',
            [
                'unknown field "spec.foo"',
                'unknown field "spec.ports[0].bar"',
                'duplicate field "spec.ports[0].port"',
                'duplicate field "spec.ports"',
                'unknown field "spec.baz"',
                'duplicate field "spec"',
                'unknown field "spec.zz"',
            ],
            id="both, in the order of the document, and nothing inside unknown fields",
        ),
        pytest.param(
            "core.v1.ConfigMap",
            '{"data":{"a":"1","a":"2","a":"3"}}',
            ['duplicate field "data.a"'],
            id="a key of a map, said once",
        ),
        pytest.param(
            "core.v1.Service",
            '{"metadata":{"name":"a","name":"b","managedFields":[{"fieldsV1":{"a":1,"a":2}}]}}',
            ['duplicate field "metadata.name"'],
            id="nobody looks into raw values",
        ),
        pytest.param(
            "core.v1.Service",
            '{"spec":{"a\\"b":1,"type":"x","type":"y"}}',
            ['unknown field "spec.a\\"b"', 'duplicate field "spec.type"'],
            id="quotes in names",
        ),
    ],
)
def test_findings_come_in_the_order_of_the_document(
    definition: str, text: str, want: list[str]
) -> None:
    """The texts are those of a strict decoding error."""
    shape = TYPES[published(definition)]
    problems = check_object(shape, msgspec.json.decode(text))
    assert strict_texts(shape, text.encode(), unknown=problems.unknown) == want


def test_the_number_of_findings_is_bounded() -> None:
    """A hundred are enough to see what is wrong."""
    text = "{" + ",".join(f'"kind":"a","field{number}":1' for number in range(150)) + "}"
    shape = TYPES["io.k8s.api.core.v1.Service"]
    found = strict_texts(shape, text.encode(), unknown=[])
    want = ['unknown field "field0"', 'duplicate field "kind"', 'unknown field "field1"']
    assert found[:3] == want
    assert len(found) == 100


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{}", []),
        ('{"a":{"b":1},"c":[{"b":1},{"b":2}]}', []),
        ('{"a":{"b":1,"b":2},"c":[0,[{"d":1,"d":2}]],"a":3}', ["a.b", "c[1][0].d", "a"]),
        ('{"a":"\\"x\\":1,\\"x\\":2"}', []),
        ('{"\\u0061" : 1, "a":2}', ["a"]),
        ("not json", []),
        ("[" * 100_000, []),
    ],
)
def test_doubled_fields_of_texts_without_a_type(text: str, want: list[str]) -> None:
    """Patches have no certain type; every object in them counts."""
    assert duplicate_fields(text.encode()) == want
    assert has_duplicates(text.encode()) is bool(want)


@given(
    st.recursive(
        st.none() | st.text(max_size=4) | st.integers(),
        lambda below: (
            st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_a_text_made_from_a_value_has_no_doubled_fields(value: Any) -> None:
    """Whatever the names and strings contain."""
    assert not has_duplicates(json.dumps(value).encode())
    assert not has_duplicates(msgspec.json.encode(value))
