"""The shape of objects, in the words of a kube-apiserver 1.36."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.apiserver.schema.checking import Problems, check_object
from keepclose.apiserver.schema.types import Type, TypeForm, load_types, published
from keepclose.model.gates import FeatureGates

TYPES = load_types(FeatureGates())
QUANTITIES = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


def check(definition: str, text: str) -> tuple[Problems, Any]:
    """Check a value that is given as JSON."""
    value = msgspec.json.decode(text)
    return check_object(TYPES[published(definition)], value), value


@pytest.mark.parametrize(
    ("text", "want_wrong"),
    [
        pytest.param(
            '{"spec":{"ports":[{"port":"80"}]}}',
            "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port"
            " of type int32",
            id="a string for a number",
        ),
        pytest.param(
            '{"spec":{"ports":{}}}',
            "json: cannot unmarshal object into Go struct field ServiceSpec.spec.ports"
            " of type []v1.ServicePort",
            id="an object for a list",
        ),
        pytest.param(
            '{"spec":[]}',
            "json: cannot unmarshal array into Go struct field Service.spec of type v1.ServiceSpec",
            id="a list for an object",
        ),
        pytest.param(
            '{"spec":{"ports":["x"]}}',
            "json: cannot unmarshal string into Go struct field ServiceSpec.spec.ports"
            " of type v1.ServicePort",
            id="a string for an object in a list",
        ),
        pytest.param(
            '{"spec":{"type":3}}',
            "json: cannot unmarshal number into Go struct field ServiceSpec.spec.type"
            " of type v1.ServiceType",
            id="a number for a named string",
        ),
        pytest.param(
            '{"spec":{"ipFamilies":[1]}}',
            "json: cannot unmarshal number into Go struct field ServiceSpec.spec.ipFamilies"
            " of type v1.IPFamily",
            id="a number in a list of named strings",
        ),
        pytest.param(
            '{"spec":{"selector":{"a":3}}}',
            "json: cannot unmarshal number into Go struct field ServiceSpec.spec.selector"
            " of type string",
            id="a number in a map of strings",
        ),
        pytest.param(
            '{"spec":{"selector":[]}}',
            "json: cannot unmarshal array into Go struct field ServiceSpec.spec.selector"
            " of type map[string]string",
            id="a list for a map",
        ),
        pytest.param(
            '{"spec":{"ports":[{"port":1.5}]}}',
            "json: cannot unmarshal number 1.5 into Go struct field ServicePort.spec.ports.port"
            " of type int32",
            id="a broken number",
        ),
        pytest.param(
            '{"spec":{"ports":[{"port":2147483648}]}}',
            "json: cannot unmarshal number 2147483648 into Go struct field"
            " ServicePort.spec.ports.port of type int32",
            id="a number of more than 32 bits",
        ),
        pytest.param(
            '{"metadata":{"generation":9223372036854775808}}',
            "json: cannot unmarshal number 9223372036854775808 into Go struct field"
            " ObjectMeta.metadata.generation of type int64",
            id="a number of more than 64 bits",
        ),
        pytest.param(
            '{"spec":{"ports":[{"port":true}]}}',
            "json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.port"
            " of type int32",
            id="a boolean for a number",
        ),
        pytest.param(
            '{"spec":{"publishNotReadyAddresses":"true"}}',
            "json: cannot unmarshal string into Go struct field"
            " ServiceSpec.spec.publishNotReadyAddresses of type bool",
            id="a string for a boolean",
        ),
        pytest.param(
            '{"spec":{"ports":[{"targetPort":true}]}}',
            "json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.targetPort"
            " of type int32",
            id="a boolean for a port or its name",
        ),
        pytest.param(
            '{"spec":{"ports":[{"targetPort":1.5}]}}',
            "json: cannot unmarshal number 1.5 into Go struct field"
            " ServicePort.spec.ports.targetPort of type int32",
            id="a broken number for a port or its name",
        ),
        pytest.param(
            '{"metadata":{"creationTimestamp":3}}',
            "json: cannot unmarshal number into Go struct field"
            " ObjectMeta.metadata.creationTimestamp of type string",
            id="a number for a time",
        ),
        pytest.param(
            '{"metadata":{"creationTimestamp":"yes"}}',
            'parsing time "yes" as "2006-01-02T15:04:05Z07:00": cannot parse "yes" as "2006"',
            id="a word for a time",
        ),
        pytest.param(
            '{"metadata":{"uid":3,"name":4},"spec":[]}',
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.uid"
            " of type types.UID",
            id="the first of several",
        ),
        pytest.param(
            '{"metadata":{"uid":3},"spec":{"ports":[{"targetPort":[]}]}}',
            "json: cannot unmarshal array into Go struct field ServicePort.spec.ports.targetPort"
            " of type int32",
            id="a value that reads itself ends the reading, whatever came before",
        ),
        pytest.param(
            '{"kind":3}',
            "json: cannot unmarshal number into Go struct field Service.TypeMeta.kind"
            " of type string",
            id="a field of an embedded struct",
        ),
        pytest.param(
            "[]", "json: cannot unmarshal array into Go value of type v1.Service", id="no object"
        ),
    ],
)
def test_wrong_types_are_named_as_go_names_them(text: str, want_wrong: str) -> None:
    """The message is that of Go's decoder, with the place and the type."""
    assert check("core.v1.Service", text)[0].wrong_type == want_wrong


@pytest.mark.parametrize(
    ("definition", "text", "want_wrong"),
    [
        pytest.param(
            "core.v1.Pod",
            '{"spec":{"containers":[{"livenessProbe":{"httpGet":3}}]}}',
            "json: cannot unmarshal number into Go struct field"
            " Probe.spec.containers.livenessProbe.ProbeHandler.httpGet of type v1.HTTPGetAction",
            id="the embedded struct is part of the place",
        ),
        pytest.param(
            "core.v1.Pod",
            '{"spec":{"containers":[{"resources":{"limits":{"cpu":true}}}]}}',
            QUANTITIES,
            id="a boolean for a quantity",
        ),
        pytest.param(
            "core.v1.Pod",
            '{"spec":{"hostNetwork":3,"containers":[{"resources":{"limits":{"cpu":"1mm"}}}]}}',
            "unable to parse quantity's suffix",
            id="an unknown unit",
        ),
        pytest.param(
            "core.v1.ConfigMap",
            '{"binaryData":{"a":3}}',
            "json: cannot unmarshal number into Go struct field ConfigMap.binaryData"
            " of type []uint8",
            id="a number for bytes",
        ),
        pytest.param(
            "core.v1.ConfigMap",
            '{"binaryData":{"a":[1,256]}}',
            "json: cannot unmarshal number 256 into Go struct field ConfigMap.binaryData"
            " of type uint8",
            id="a byte of more than eight bits",
        ),
        pytest.param(
            "core.v1.ConfigMap",
            '{"binaryData":{"a":"???","b":3}}',
            "illegal base64 data at input byte 0",
            id="the first of two, as bad base64 does not end the reading",
        ),
        pytest.param(
            "core.v1.Node",
            '{"status":{"capacity":[]}}',
            "json: cannot unmarshal array into Go struct field NodeStatus.status.capacity"
            " of type v1.ResourceList",
            id="a named map",
        ),
        pytest.param(
            "coordination.v1.Lease",
            '{"spec":{"renewTime":"2026-01-02T03:04:05Z"}}',
            'parsing time "2026-01-02T03:04:05Z" as "2006-01-02T15:04:05.000000Z07:00": cannot'
            ' parse "Z" as ".000000"',
            id="a time that should have microseconds",
        ),
    ],
)
def test_wrong_types_of_other_kinds(definition: str, text: str, want_wrong: str) -> None:
    """Quantities, times and bytes are read by themselves and say so."""
    assert check(definition, text)[0].wrong_type == want_wrong


@pytest.mark.parametrize(
    ("text", "want_unknown", "want_value"),
    [
        pytest.param('{"spec":{"type":"NodePort"}}', [], {"spec": {"type": "NodePort"}}, id="none"),
        pytest.param(
            '{"foo":1,"spec":{"zz":{"a":1},"ports":[{"port":1,"x":[]},{"port":2,"x":1}]},"bar":2}',
            ["foo", "spec.zz", "spec.ports[0].x", "spec.ports[1].x", "bar"],
            {"spec": {"ports": [{"port": 1}, {"port": 2}]}},
            id="at all levels in the order of the document",
        ),
        pytest.param('{"Spec":{},"KIND":1}', ["Spec", "KIND"], {}, id="case matters"),
    ],
)
def test_unknown_fields_are_named_and_dropped(
    text: str, want_unknown: list[str], want_value: object
) -> None:
    """What the kind does not have is not stored."""
    problems, value = check("core.v1.Service", text)
    assert problems == Problems(unknown=want_unknown)
    assert value == want_value


def test_at_most_a_hundred_unknown_fields_are_named() -> None:
    """A body of nonsense gets a bounded answer."""
    text = msgspec.json.encode({f"field{number}": 1 for number in range(150)}).decode()
    problems, value = check("core.v1.Service", text)
    assert problems.unknown == [f"field{number}" for number in range(100)]
    assert value == {}


@pytest.mark.parametrize(
    ("definition", "text", "want"),
    [
        pytest.param(
            "core.v1.Service",
            '{"metadata":{"creationTimestamp":null,"labels":null},"spec":null,"status":{}}',
            {"metadata": {}, "status": {}},
            id="null is absent",
        ),
        pytest.param(
            "core.v1.ConfigMap",
            '{"data":{"a":null,"b":"x"},"binaryData":{"c":null},"immutable":null}',
            {"data": {"a": "", "b": "x"}, "binaryData": {"c": ""}},
            id="null in a map is the empty value",
        ),
        pytest.param(
            "core.v1.Node",
            '{"status":{"capacity":{"cpu":null},"conditions":[null],"volumesInUse":["a",null]}}',
            {"status": {"capacity": {"cpu": "0"}, "conditions": [{}], "volumesInUse": ["a", ""]}},
            id="null in a list is the empty value",
        ),
        pytest.param(
            "core.v1.Service",
            '{"spec":{"type":"","selector":{},"externalIPs":[],"publishNotReadyAddresses":false,'
            '"ports":[{"name":"","port":0,"nodePort":0,"appProtocol":""}]}}',
            {"spec": {"ports": [{"port": 0, "appProtocol": ""}]}},
            id="empty values that Go leaves out",
        ),
        pytest.param(
            "discovery.v1.EndpointSlice",
            '{"addressType":"","endpoints":[{"addresses":[],"zone":"","hints":{"forZones":[]},'
            '"conditions":{"ready":false}}],"ports":[{"name":"","port":0}]}',
            {
                "addressType": "",
                "endpoints": [
                    {"addresses": [], "zone": "", "hints": {}, "conditions": {"ready": False}}
                ],
                "ports": [{"name": "", "port": 0}],
            },
            id="empty values that mean something",
        ),
        pytest.param(
            "core.v1.Node",
            '{"status":{"capacity":{"cpu":"4000m","memory":8388608,"pods":0.5}},'
            '"metadata":{"creationTimestamp":"2026-01-01T01:00:00+01:00"}}',
            {
                "status": {"capacity": {"cpu": "4", "memory": "8388608", "pods": "500m"}},
                "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            },
            id="quantities and times as they are written anew",
        ),
        pytest.param(
            "core.v1.ConfigMap",
            '{"binaryData":{"a":[1,2,null],"b":"YQ=\\n="}}',
            {"binaryData": {"a": "AQIA", "b": "YQ=="}},
            id="bytes",
        ),
        pytest.param(
            "meta.v1.ObjectMeta",
            '{"managedFields":[{"fieldsV1":{"f:spec":{"f:x":{},"y":null}}}]}',
            {"managedFields": [{"fieldsV1": {"f:spec": {"f:x": {}, "y": None}}}]},
            id="raw values stay as they are",
        ),
    ],
)
def test_values_are_brought_to_their_stored_form(definition: str, text: str, want: object) -> None:
    """What is stored is what a kube-apiserver would have written."""
    problems, value = check(definition, text)
    assert problems == Problems()
    assert value == want


def nested(levels: int) -> str:
    """Return objects within each other."""
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{{"metadata":{{"managedFields":[{{"fieldsV1":{}}}]}}}}', id="a raw value"),
        pytest.param('{{"unknown":{}}}', id="an unknown field"),
    ],
)
def test_values_without_a_type_may_not_be_too_deep(text: str) -> None:
    """Two hundred levels are enough for everybody, where no type bounds them."""
    assert check("core.v1.Service", text.format(nested(200)))[0].wrong_type == ""
    assert check("core.v1.Service", text.format(nested(201)))[0].wrong_type == "exceeded max depth"


def test_a_double_is_any_number() -> None:
    """No kind that is served has one, but a type may."""
    shape = Type(
        TypeForm.OBJECT,
        fields={
            "a": Type(TypeForm.NUMBER, go_type="float64"),
            "b": Type(TypeForm.LIST, go_type="[]x"),
        },
        go_type="v1.Thing",
    )
    assert check_object(shape, {"a": 1.5, "b": [1, {}]}) == Problems()
    want = "json: cannot unmarshal string into Go struct field Thing.a of type float64"
    assert check_object(shape, {"a": "1"}).wrong_type == want


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["spec", "ports", "metadata", "labels", "port", "targetPort", "name", "x"]
            ),
            below,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_a_stored_form_is_checked_without_finding_and_stays(value: Any) -> None:
    """Whatever comes, nothing raises; and what was let through once is let through unchanged."""
    shape = TYPES["io.k8s.api.core.v1.Service"]
    if check_object(shape, value).wrong_type:
        return
    stored = msgspec.json.decode(msgspec.json.encode(value))
    assert check_object(shape, stored) == Problems()
    assert stored == value
