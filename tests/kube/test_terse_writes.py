"""Tests of writes whose answers hold metadata alone."""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import ObjectMeta
from keepclose.testing.fake_clock import FakeClock
from support.echoes import EchoTransport


async def test_an_object_with_a_name_is_replaced_and_one_without_is_created() -> None:
    """The metadata comes back as stored, and the rest of the answer is not asked for."""
    transport = EchoTransport()
    client = Client(transport, clock=FakeClock())
    new = EndpointSlice(metadata=ObjectMeta(namespace="default", generate_name="web-"))
    created = await client.write(ENDPOINT_SLICES, new)
    stored = replace(new, metadata=created)
    updated = await client.write(ENDPOINT_SLICES, stored)
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    want_requests = [("POST", path), ("PUT", f"{path}/{created.name}")]
    assert [(one.method, one.path) for one in transport.requests] == want_requests
    assert (created.generation, updated.generation) == (1, 2)
    assert int(updated.resource_version) == int(created.resource_version) + 1
    want_accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    assert [one.headers["Accept"] for one in transport.requests] == [want_accept, want_accept]
