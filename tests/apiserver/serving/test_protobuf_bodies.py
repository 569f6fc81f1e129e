"""Bodies by their media type: protobuf is read like JSON, and what cannot be read is a 400."""

from __future__ import annotations

import pytest

from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.schema.types import type_of
from keepclose.apiserver.serving.request_bodies import (
    PROTOBUF_TYPE,
    media_type_of,
    read_body_object,
    read_values,
)
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.gates import FeatureGates

CONFIG_MAP = b"k8s\x00\n\x0f\n\x02v1\x12\tConfigMap\x12\x10\n\x04\n\x02cm\x12\x08\n\x01a\x12\x03one"


def test_a_protobuf_body_is_an_object_of_its_kind() -> None:
    """A create in protobuf is checked like one in JSON, and nothing is to warn of."""
    resource = BY_KIND["v1", "ConfigMap"]
    found = read_body_object(
        CONFIG_MAP,
        media_type_of("application/vnd.kubernetes.protobuf"),
        resource,
        type_of(resource, FeatureGates()),
        validation="Strict",
    )
    want = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "cm"},
        "data": {"a": "one"},
    }
    assert found == (want, [])


def test_a_protobuf_body_of_another_kind_is_refused() -> None:
    """The kind in the envelope must be that of the path."""
    resource = BY_KIND["v1", "Pod"]
    shape = type_of(resource, FeatureGates())
    with pytest.raises(StatusError) as caught:
        read_body_object(CONFIG_MAP, PROTOBUF_TYPE, resource, shape, validation="")
    assert caught.value.code == 400
    assert caught.value.message.startswith('ConfigMap in version "v1" cannot be handled as a Pod: ')


@pytest.mark.parametrize(
    ("body", "media_type", "want_code", "want_message"),
    [
        pytest.param(
            CONFIG_MAP[:-1],
            PROTOBUF_TYPE,
            400,
            "error decoding protobuf: unexpected end of the message",
            id="cut short",
        ),
        pytest.param(
            b"{}",
            "text/plain",
            415,
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
            id="a type that is not read",
        ),
    ],
)
def test_a_body_that_cannot_be_read_is_answered_with_the_reason(
    body: bytes, media_type: str, want_code: int, want_message: str
) -> None:
    """Malformed bodies are 400, unknown types 415."""
    with pytest.raises(StatusError) as caught:
        read_values(body, media_type)
    assert (caught.value.code, caught.value.message) == (want_code, want_message)
