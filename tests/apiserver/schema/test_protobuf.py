"""Bodies in protobuf: what Go clients write, byte for byte, against the JSON that they write."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.resources import RESOURCES
from keepclose.apiserver.schema.checking import check_object
from keepclose.apiserver.schema.protobuf import decode_protobuf, load_messages
from keepclose.apiserver.schema.protobuf_wire import MessageError
from keepclose.apiserver.schema.types import load_definitions, load_types, published
from keepclose.model.gates import FeatureGates

# Written by k8s.io/apimachinery 0.36: each object by its protobuf and its JSON serializer.
PAIRS = json.loads((Path(__file__).parent / "protobuf_bodies.json").read_text())
BODIES = [b64decode(pair["protobuf"]) for pair in PAIRS]
NO_PROTOBUF = (
    "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
)


def varint(value: int) -> bytes:
    """Return a number of 64 bits as it is on the wire."""
    value &= (1 << 64) - 1
    sent = bytearray()
    while value >= 0x80:
        sent.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*sent, value])


def number(field: int, value: int) -> bytes:
    """Return a field that holds a number."""
    return varint(field << 3) + varint(value)


def block(field: int, *parts: bytes | str) -> bytes:
    """Return a field that holds text, bytes or a message of several fields."""
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return varint(field << 3 | 2) + varint(len(data)) + data


def envelope(version: str, kind: str, *fields: bytes) -> bytes:
    """Return a body with an object made of some fields."""
    introduced = block(1, block(1, version), block(2, kind))
    return b"k8s\x00" + introduced + block(2, *fields) + block(3) + block(4)


def pod_spec(*fields: bytes) -> dict[str, Any]:
    """Return the spec of a pod that was sent with some fields."""
    spec: dict[str, Any] = decode_protobuf(envelope("v1", "Pod", block(2, *fields)))["spec"]
    return spec


@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair["about"]) for pair in PAIRS])
def test_a_body_means_what_the_same_client_writes_as_json(pair: dict[str, Any]) -> None:
    """The object is the one that the client would have sent as JSON, null by null."""
    assert decode_protobuf(b64decode(pair["protobuf"])) == pair["json"]


@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair["about"]) for pair in PAIRS])
def test_a_body_has_the_shape_of_its_kind(pair: dict[str, Any]) -> None:
    """Nothing that was decoded is unknown to the kind or of the wrong type."""
    value = decode_protobuf(b64decode(pair["protobuf"]))
    names = {
        (f"{group}/{version}" if group else version, kind): short
        for short, definition in load_definitions().items()
        for group, version, kind in definition.kinds
    }
    shape = load_types(FeatureGates())[published(names[value["apiVersion"], value["kind"]])]
    problems = check_object(shape, value)
    assert (problems.wrong_type, list(problems.unknown)) == ("", [])


def test_every_kind_that_is_served_was_compared() -> None:
    """The recorded bodies cover all kinds, scales and delete options."""
    want = {(one.api_version, one.kind) for one in RESOURCES}
    want |= {("autoscaling/v1", "Scale"), ("v1", "DeleteOptions"), ("apps/v1", "DeleteOptions")}
    assert {(pair["json"]["apiVersion"], pair["json"]["kind"]) for pair in PAIRS} == want


def test_a_binding_is_read_as_schedulers_send_it() -> None:
    """The pod is named by the metadata, the node by the target."""
    metadata = block(1, block(1, "p"), block(3, "shop"), block(5, "some-uid"))
    target = block(2, block(1, "Node"), block(3, "n1"))
    found = decode_protobuf(envelope("v1", "Binding", metadata, target))
    assert (found["apiVersion"], found["kind"]) == ("v1", "Binding")
    assert found["metadata"] == {"name": "p", "namespace": "shop", "uid": "some-uid"}
    assert found["target"] == {"kind": "Node", "name": "n1"}


def test_no_message_holds_itself() -> None:
    """The depth of every message is bounded by the types alone."""
    messages = load_messages()

    def depth(name: str, above: tuple[str, ...] = ()) -> int:
        assert name not in above
        below = [field.type for field in messages[name] if field.type in messages]
        return 1 + max((depth(one, (*above, name)) for one in below), default=0)

    assert max(depth(name) for name in messages) == 11


def test_members_of_the_core_types_are_those_of_the_definitions() -> None:
    """A name in JSON is one that the kind has."""
    definitions = load_definitions()
    strange = {
        f"{name}.{field.name}"
        for name, fields in load_messages().items()
        if name in definitions
        for field in fields
        if field.name and field.name not in definitions[name].fields
    }
    # Withdrawn again in 1.37, from which the definitions are.
    assert strange <= {"core.v1.NodeAllocatableResourceClaimStatus.resources"}


@pytest.mark.parametrize(
    ("fields", "name", "want"),
    [
        pytest.param([number(11, 1)], "hostNetwork", True, id="a truth value"),
        pytest.param([number(11, 0)], "hostNetwork", None, id="false where empty is left out"),
        pytest.param([number(4, 0)], "terminationGracePeriodSeconds", 0, id="pointer to zero"),
        pytest.param([block(10, "")], "nodeName", None, id="empty text is left out"),
        pytest.param([block(10, "a"), block(10, "b")], "nodeName", "b", id="the last one counts"),
        pytest.param([number(25, -1)], "priority", -1, id="negative number of 32 bits"),
        pytest.param([number(25, (1 << 32) - 2)], "priority", -2, id="negative number in 5 bytes"),
        pytest.param([number(25, 1 << 32)], "priority", 0, id="what 32 bits cannot hold is cut"),
        pytest.param(
            [block(7, block(1, "a"), block(2, "1")), block(7, block(1, "b")), block(7)],
            "nodeSelector",
            {"a": "1", "b": "", "": ""},
            id="entries of a map without key or value",
        ),
        pytest.param(
            [block(14, number(4, 5), number(4, 6))],
            "securityContext",
            {"supplementalGroups": [5, 6]},
            id="numbers one by one",
        ),
        pytest.param(
            [block(14, block(4, varint(5), varint(-7)), number(4, 8), block(4))],
            "securityContext",
            {"supplementalGroups": [5, -7, 8]},
            id="numbers packed and not packed",
        ),
        pytest.param(
            [block(14, block(4))], "securityContext", {}, id="no packed numbers are no list"
        ),
        pytest.param(
            [block(14, number(2, 1)), block(14, number(6, 2))],
            "securityContext",
            {"runAsUser": 1, "runAsGroup": 2},
            id="a struct in two parts",
        ),
        pytest.param(
            [block(1, block(2, block(2)), block(1, "v"), block(2, block(2, block(1, "m"))))],
            "volumes",
            [{"name": "v", "emptyDir": {"medium": "m"}}],
            id="an embedded struct in two parts",
        ),
        pytest.param([block(2, b"")], "containers", [{"name": "", "resources": {}}], id="blank"),
        pytest.param([], "containers", None, id="a list that is kept is null"),
        pytest.param([number(4000, 1), block(4001, "x")], "hostname", None, id="unknown fields"),
        pytest.param([b"\xa3\xb8\x02\x08\x01\xa4\xb8\x02"], "hostname", None, id="unknown group"),
        pytest.param([varint(4000 << 3 | 1) + bytes(8)], "hostname", None, id="unknown fixed64"),
    ],
)
def test_a_field_is_read_by_its_type(fields: list[bytes], name: str, want: Any) -> None:
    """Numbers, maps, lists and structs come out as JSON has them, however they were cut up."""
    assert pod_spec(*fields).get(name) == want


def test_a_field_that_omits_empty_values_is_absent_and_one_that_keeps_them_is_not() -> None:
    """Absence, null and emptiness are told apart as Go does."""
    assert pod_spec(block(10, ""), number(11, 0)) == {"containers": None}
    assert decode_protobuf(envelope("apps/v1", "DaemonSet"))["status"] == {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    }


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(
            b"",
            NO_PROTOBUF,
            id="nothing",
        ),
        pytest.param(
            b'{"kind":"Pod"}',
            NO_PROTOBUF,
            id="JSON",
        ),
        pytest.param(b"k8s\x00", "empty body", id="prefix alone"),
        pytest.param(
            b"k8s\x00" + block(2), "Object 'Kind' is missing in a protobuf body", id="no kind"
        ),
        pytest.param(
            envelope("", "Pod"),
            "Object 'apiVersion' is missing in a protobuf body",
            id="no version",
        ),
        pytest.param(
            envelope("v1", "Gizmo"),
            'no kind "Gizmo" is registered for version "v1"',
            id="a kind that is not served",
        ),
        pytest.param(
            envelope("v1", "Deployment"),
            'no kind "Deployment" is registered for version "v1"',
            id="a kind of another group",
        ),
        pytest.param(b"k8s\x00" + number(1, 5), "wrong wire type", id="envelope of numbers"),
        pytest.param(
            envelope("v1", "Pod", number(2, 7)), "spec: wrong wire type", id="number for a struct"
        ),
        pytest.param(
            envelope("v1", "Pod", block(2, block(2, number(1, 7)))),
            "spec.containers.name: wrong wire type",
            id="number for text",
        ),
        pytest.param(
            envelope("v1", "Pod", block(2, block(25, "x"))),
            "spec.priority: wrong wire type",
            id="text for a number",
        ),
        pytest.param(
            envelope("v1", "Pod", block(2, block(1, block(2, number(2, 1))))),
            "spec.volumes.emptyDir: wrong wire type",
            id="inside of an embedded struct",
        ),
        pytest.param(
            envelope("v1", "Pod", block(1, block(1, b"\xff"))),
            "metadata.name: invalid UTF-8",
            id="text that is none",
        ),
        pytest.param(
            envelope("v1", "Pod", block(2, b"\x0a\x05ab")),
            "spec: unexpected end of the message",
            id="cut short",
        ),
        pytest.param(
            envelope("v1", "Pod", block(1, block(17, block(7, block(1, "{"))))),
            "metadata.managedFields.fieldsV1: not JSON: Input data was truncated",
            id="field set that is no JSON",
        ),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_place(body: bytes, want: str) -> None:
    """The error names the field and what is wrong with it."""
    with pytest.raises(MessageError) as caught:
        decode_protobuf(body)
    assert str(caught.value) == want


def test_a_body_cut_anywhere_is_refused() -> None:
    """Only at the ends of the envelope's own fields does a part pass for a whole."""
    for body in BODIES:
        after_kind = 6 + body[5]
        # The last four bytes are two empty fields.
        want = [after_kind, len(body) - 4, len(body) - 2]
        assert [end for end in range(len(body)) if decoded(body[:end])] == want


def decoded(body: bytes) -> bool:
    """Return whether a body can be read; anything but a MessageError passes through."""
    try:
        value = decode_protobuf(body)
    except MessageError:
        return False
    msgspec.json.encode(value)
    return True


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300), st.sampled_from(PAIRS))
def test_arbitrary_bytes_never_raise_anything_else(data: bytes, pair: dict[str, Any]) -> None:
    """Whatever comes, the answer is a JSON object or a MessageError."""
    assert not decoded(data)
    decoded(b"k8s\x00" + data)
    decoded(envelope(pair["json"]["apiVersion"], pair["json"]["kind"], data))


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(BODIES), st.data())
def test_damaged_bodies_never_raise_anything_else(body: bytes, data: st.DataObject) -> None:
    """A valid body with bytes changed, added, doubled or gone is read or refused."""
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, min(len(body), start + 20)))
        put = data.draw(st.one_of(st.binary(max_size=10), st.just(body[start:end] * 2)))
        body = body[:start] + put + body[end:]
    decoded(body)


def test_a_body_of_many_empty_structs_takes_time_in_proportion() -> None:
    """The smallest fields, which make the most of their bytes, do not make decoding slow."""
    body = envelope("v1", "Pod", block(2, block(2, b"") * 25_000))
    started = time.process_time()
    assert len(decode_protobuf(body)["spec"]["containers"]) == 25_000
    assert time.process_time() - started < 5
