"""One write as an object: what it decodes, what it writes back, and what it allocates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.registry import strategy as strategy_module
from keepclose.apiserver.registry.services import ServiceStrategy
from keepclose.apiserver.registry.strategy import ObjectWrite, carry, read_as
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.decoding import convert
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.json_values import JsonObject
from keepclose.model.service.types import LoadBalancerIngress, Service
from keepclose.testing.api_server import Served
from support.kinds import Kinds, raw

SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
MERGE_PATCH = "application/merge-patch+json"
MEDIA_TYPES = {"PATCH": MERGE_PATCH, "APPLY": "application/apply-patch+yaml"}
WEB: JsonObject = {"type": "NodePort", "ports": [{"name": "http", "port": 80}]}


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often whole objects were decoded and carried over."""
    counted: Counter[str] = Counter()

    def count_decode(obj: JsonObject) -> Any:
        counted["decodes"] += 1
        return convert(obj)

    def count_carry(obj: JsonObject, before: msgspec.Struct, after: msgspec.Struct) -> None:
        if "kind" in obj and before is not after:
            counted["carries"] += 1
        carry(obj, before, after)

    monkeypatch.setattr(strategy_module, "convert", count_decode)
    monkeypatch.setattr(strategy_module, "carry", count_carry)
    return counted


@pytest.mark.parametrize(
    ("method", "path", "body", "want_costs"),
    [
        pytest.param(
            "PATCH",
            "/web",
            {"spec": {"trafficDistribution": "PreferSameZone"}},
            {"decodes": 2, "carries": 1},
            id="a patch",
        ),
        pytest.param(
            "PATCH",
            "/web?dryRun=All",
            {"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}},
            # The default of allocateLoadBalancerNodePorts has an owner; the port has none.
            {"decodes": 2, "carries": 2},
            id="a patch that needs a default and allocates",
        ),
        pytest.param(
            "PATCH",
            "/web/status",
            {"status": {"conditions": []}},
            {"decodes": 2},
            id="a patch of the status",
        ),
        pytest.param(
            "APPLY",
            "/web?fieldManager=me",
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {}},
            {"decodes": 2, "carries": 1},
            id="an apply",
        ),
        pytest.param(
            "PUT",
            "/web",
            {"metadata": {"name": "web"}, "spec": WEB},
            {"decodes": 2, "carries": 2},
            id="an update without defaults",
        ),
        pytest.param(
            "POST",
            "",
            {"metadata": {"name": "new"}, "spec": WEB},
            # The defaults are carried before owners are recorded, allocated values after.
            {"decodes": 1, "carries": 2},
            id="a create",
        ),
    ],
)
async def test_a_write_decodes_each_service_once(
    api: Served,
    costs: Counter[str],
    *,
    method: str,
    path: str,
    body: JsonObject,
    want_costs: dict[str, int],
) -> None:
    """A write decodes the new and the stored Service once, and carries only what changed."""
    await api.create(SERVICES, {"metadata": {"name": "web"}, "spec": WEB})
    costs.clear()
    media_type = MEDIA_TYPES.get(method, "application/json")
    verb = "PATCH" if method == "APPLY" else method
    reply = await api.call(verb, SERVICES + path, body, type=media_type)
    assert reply.status in (200, 201), reply.body
    assert costs == want_costs


async def test_a_patch_decodes_each_slice_once(api: Served, costs: Counter[str]) -> None:
    """A slice of a thousand endpoints is costly to decode."""
    endpoint_slice = {"metadata": {"name": "web"}, "addressType": "IPv4", "endpoints": []}
    await api.create(SLICES, endpoint_slice)
    costs.clear()
    patch = {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}
    reply = await api.call("PATCH", f"{SLICES}/web", patch, type=MERGE_PATCH)
    assert reply.json["metadata"]["generation"] == 2
    assert costs == {"decodes": 2, "carries": 1}


def _stored(kinds: Kinds, service_type: str) -> JsonObject:
    metadata = {"uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {**WEB, "type": service_type}
    stored = kinds.write(raw("Service", metadata=metadata, spec=spec)).object
    return {**stored, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(None, id="no spec"),
        pytest.param({"type": "LoadBalancer", "ports": [{"port": 80}]}, id="few fields"),
        pytest.param({"type": "ExternalName", "externalName": "a.b"}, id="another type"),
        pytest.param({"clusterIP": "None", "ports": []}, id="headless"),
    ],
)
@pytest.mark.parametrize("stored_type", ["NodePort", "LoadBalancer", None])
def test_the_struct_is_never_stale(
    stored_type: str | None, spec: JsonObject | None, subresource: str
) -> None:
    """After each step the struct is what the raw object decodes to."""
    kinds = Kinds()
    old = None if stored_type is None else _stored(kinds, stored_type)
    new = raw("Service", spec=spec, metadata={"generation": 4, "annotations": {"a": "b"}})
    new["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}}
    write = ObjectWrite(new, old, subresource="" if old is None else subresource)
    strategy = kinds.of(new)
    prepare: list[Callable[[ObjectWrite], None]] = [strategy.prepare_create]
    if old is not None:
        new["metadata"]["namespace"] = "default"
        prepare = [ObjectWrite.keep_system_metadata, strategy.prepare_update]
    for step in (strategy.set_defaults, *prepare, strategy.on_read):
        try:
            step(write)
        except StatusError:
            break
        assert write.read_new(Service) == read_as(Service, write.new)


def test_generations_that_clients_invent_are_not_taken(costs: Counter[str]) -> None:
    """The stored generation counts, also where a client sends the very next one."""
    kinds = Kinds()
    old = kinds.write(raw("EndpointSlice", addressType="IPv4")).object
    new = {**deepcopy(old), "ports": [{"port": 80}]}
    new["metadata"]["generation"] = 2
    costs.clear()
    assert kinds.write(new, old).object["metadata"]["generation"] == 2
    assert costs["decodes"] == 2


def test_a_status_is_kept_in_both_forms() -> None:
    """The stored status replaces that of the client, in the raw object and in the struct."""
    old = _stored(Kinds(), "LoadBalancer")
    new = deepcopy(old) | {"status": {"loadBalancer": {}}}
    write = ObjectWrite(new, old)
    assert write.read_new(Service).status.load_balancer.ingress == ()
    write.keep_status()
    assert write.new["status"] == old["status"]
    assert write.new["status"] is not old["status"]
    want_ingress = (LoadBalancerIngress(ip="192.0.2.1"),)
    assert write.read_new(Service).status.load_balancer.ingress == want_ingress


def test_an_object_of_another_kind_is_refused() -> None:
    """A write reads an object as its own kind only; on create there is no stored one."""
    write = ObjectWrite(raw("Service"))
    with pytest.raises(StatusError, match="must be of type EndpointSlice"):
        write.read_new(EndpointSlice)
    with pytest.raises(StatusError, match="apiVersion: Required value"):
        write.read_old(Service)


def test_a_write_is_settled_once() -> None:
    """A second call releases nothing, although another write has got the values meanwhile."""
    kinds = Kinds()
    strategy = kinds.of(raw("Service"))
    assert isinstance(strategy, ServiceStrategy)
    spec = {**WEB, "clusterIP": "10.96.0.9"}
    first, second = (ObjectWrite(raw("Service", name, spec=spec)) for name in "ab")
    for write in (first, second):
        strategy.set_defaults(write)
        strategy.prepare_create(write)
        if write is first:
            strategy.settle(first, stored=False)
    strategy.settle(first, stored=False)
    assert strategy.ranges.addresses[0].holds("10.96.0.9")
    strategy.settle(second, stored=True)
    strategy.settle(second, stored=False)
    assert strategy.ranges.addresses[0].holds("10.96.0.9")
