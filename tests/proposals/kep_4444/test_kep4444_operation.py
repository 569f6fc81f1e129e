"""KEP-4444, Production Readiness: monitoring, dependencies, scalability, troubleshooting.

Not counted: calls to a cloud provider (there is no code that could make one), and that no metric is
missed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from structlog.testing import capture_logs

from keepclose.controller.metrics import ControllerMetrics
from keepclose.kube.requests import PODS, SERVICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import Gate, parse_gates
from keepclose.model.meta import NamespacedName
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.routing.reasons import ReasonCode
from keepclose.testing.api_server import PATIENCE, serving
from keepclose.testing.recording_writer import RecordingWriter
from support.controllers import QUICK, World
from support.live.sights import POST, PUT, STATUS, conditions, hints, quick
from support.proposals.proposalapis import PROTOBUF, ProposalApi
from support.proposals.proposalscenes import (
    GATES,
    NO_FIELD,
    THREE_ZONES,
    UNEVEN,
    Scene,
    asking,
    named,
    own_zones,
)
from support.proxies import ProxyCluster, cluster_of, hinted

COUNT = "endpoint_slice_controller_services_count_by_traffic_distribution"
SYNCS = "endpoint_slice_controller_syncs_total"
STAMP = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
WEB = NamespacedName("default", "web")
FEW_RETRIES = replace(QUICK, most_retries=2)
SCENE = Scene(THREE_ZONES, UNEVEN)
LARGE = Scene({"n1": "zone-a", "n2": "zone-b"}, {"n1": 130, "n2": 120})


async def route(cluster: ProxyCluster) -> None:
    """Add a node, a Service, and an endpoint in each of two zones."""
    await cluster.add_node("n1", "zone-a", pod_cidrs=("10.244.1.0/24",))
    await cluster.add_service(trafficDistribution="PreferClose")
    await cluster.set_endpoints(hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b"))


def value(metrics: ControllerMetrics, name: str, **labels: str) -> float | None:
    """Return the value of a series."""
    return metrics.registry.get_sample_value(name, labels)


async def test_the_metric_of_services_by_distribution(two_zones: World) -> None:
    """The metric services_count_by_traffic_distribution tells whether the field is in use."""
    cluster = two_zones
    metrics = ControllerMetrics(max_endpoints=100)
    await cluster.add_service()
    async with cluster.controlled(observer=metrics) as controller:
        await cluster.settle(controller)
        assert f"{COUNT}{{" not in metrics.page().decode()
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": "PreferClose"}})
        await cluster.settle(controller)
        page = metrics.page().decode()
    assert f"# TYPE {COUNT} gauge" in page
    assert f'{COUNT}{{traffic_distribution="PreferClose"}} 1' in page


async def test_the_label_of_that_metric(two_zones: World) -> None:
    """Its label traffic_distribution gives the number of Services with each value."""
    cluster = two_zones
    metrics = ControllerMetrics(max_endpoints=100)
    for name, wanted in (("a", "PreferClose"), ("b", "PreferClose"), ("c", "PreferSameNode")):
        await cluster.add_service(name, trafficDistribution=wanted)
    async with cluster.controlled(observer=metrics) as controller:
        await cluster.settle(controller)
    assert value(metrics, COUNT, traffic_distribution="PreferClose") == 2
    assert value(metrics, COUNT, traffic_distribution="PreferSameNode") == 1


async def test_a_failed_reconciliation_is_an_event(two_zones: World) -> None:
    """A failed reconciliation is visible as an Event on the Service."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(FEW_RETRIES) as controller:
        await cluster.settle(controller)
        cluster.wire.refused = "PUT"
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        await controller._recorder.flush()
        [(kind, reason, message, _)] = await cluster.events()
    assert (kind, reason) == ("Warning", "FailedToUpdateEndpointSlices")
    assert f"{cluster.namespace}/web" in message


def test_success_shows_in_the_slices() -> None:
    """A successful reconciliation shows in hints on all endpoints of all slices."""
    slices = LARGE.plan(asking("PreferClose")).slices
    assert len(slices) == 3
    assert all(one.hints is not None for piece in slices for one in piece.endpoints)


async def test_slo_the_controller_is_consistent(two_zones: World) -> None:
    """The controller configures slices consistently: a new one finds nothing to change."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    for want in ([POST], [], []):
        async with cluster.controlled() as controller:
            await cluster.settle(controller)
            assert cluster.wire.take() == want


async def test_slo_the_proxy_writes_rules_from_the_slices(tmp_path: Path) -> None:
    """kube-proxy establishes routing rules based on the slices and their hints."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await route(cluster)
        writer = RecordingWriter()
        async with cluster.proxied("n1", writer=writer, families=("IPv4",)) as proxy:
            await cluster.settle(proxy)
            text = "\n".join(writer.applied)
            assert ": 10.0.0.1 . 8080" in text
            assert "10.0.0.2" not in text


async def test_sli_syncs_is_a_counter_of_reconciliations(two_zones: World) -> None:
    """endpoint_slice_controller_syncs is incremented each time a Service is reconciled."""
    cluster = two_zones
    metrics = ControllerMetrics(max_endpoints=100)
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(observer=metrics) as controller:
        await cluster.settle(controller)
        before = value(metrics, SYNCS, result="success") or 0
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        assert (value(metrics, SYNCS, result="success") or 0) > before > 0
    assert "# TYPE endpoint_slice_controller_syncs counter" in metrics.page().decode()


async def test_sli_the_time_of_the_last_sync_of_a_proxy(tmp_path: Path) -> None:
    """kubeproxy_sync_proxy_rules_last_timestamp_seconds is updated on each sync of kube-proxy."""
    labels = {"ip_family": "IPv4"}
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await route(cluster)
        async with cluster.proxied("n1", writer=RecordingWriter(), families=("IPv4",)) as proxy:
            await cluster.settle(proxy)
            registry = proxy.metrics.registry
            first = registry.get_sample_value(STAMP, labels) or 0
            await cluster.set_endpoints(hinted("10.0.0.3", "zone-a"))
            await cluster.settle(proxy)
            assert (registry.get_sample_value(STAMP, labels) or 0) > first > 0
            assert f"# TYPE {STAMP} gauge" in proxy.metrics.page().decode()


async def test_no_other_service_is_needed(two_zones: World) -> None:
    """The feature depends on no other service in the cluster: hints are there without any."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    others = (await cluster.client.list_all(PODS, namespace="kube-system")).items
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert set(hints(await cluster.slices()).values()) == {"zone-a", "zone-b"}
    assert list(others) == []


async def test_no_new_api_calls(two_zones: World) -> None:
    """Using the feature results in no new API calls: pods cost the same writes as without it."""
    cluster = two_zones
    writes = []
    for name, wanted in (("plain", None), ("close", "PreferClose")):
        await cluster.add_service(name, trafficDistribution=wanted)
        async with cluster.controlled() as controller:
            await cluster.settle(controller)
            await cluster.add_pod(f"more-{name}", "n1", ip="10.0.0.9")
            await cluster.settle(controller)
            await cluster.remove(PODS, f"more-{name}")
            await cluster.settle(controller)
            writes.append(Counter(cluster.wire.take()))
        await cluster.remove(SERVICES, name)
    assert writes[0] == writes[1] == {POST: 1, PUT: 2}


async def test_no_new_api_types(tmp_path: Path) -> None:
    """Using the feature introduces no new API types."""
    found = []
    for gates in ("ServiceTrafficDistribution=true", "ServiceTrafficDistribution=false"):
        async with serving(tmp_path, gates=parse_gates(gates)) as plain:
            paths = ("/api/v1", "/apis", "/apis/discovery.k8s.io/v1", "/apis/networking.k8s.io/v1")
            found.append([await plain.get(path) for path in paths])
    assert found[0] == found[1]


async def test_the_size_of_a_service(api: ProposalApi) -> None:
    """Users of the field see the Service object grow by about 10 bytes, as it is stored."""
    port = message((1, b"http")) + b"\x18\x50"
    plain = message((1, port))
    asks = plain + message((23, b"PreferClose"))
    found = []
    for name, spec in ((b"one", plain), (b"two", asks)):
        service = message((1, message((1, name))), (2, spec))
        kind = message((1, b"v1"), (2, b"Service"))
        body = b"k8s\x00" + message((1, kind), (2, service))
        reply = await api.plain.call("POST", api.services, body, type=PROTOBUF)
        assert reply.status == 201
        found.append(reply.json["spec"].get("trafficDistribution"))
    assert found == [None, "PreferClose"]
    # The value itself has 11 bytes; the number and the length of the field are 3 more.
    assert len(asks) - len(plain) == 14


def message(*fields: tuple[int, bytes]) -> bytes:
    """Return fields of bytes as protobuf writes them; all numbers and lengths are small."""
    parts = []
    for number, value in fields:
        tag = number << 3 | 2
        head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
        parts.append(head + bytes([len(value)]) + value)
    return b"".join(parts)


async def test_the_status_takes_two_conditions(two_zones: World) -> None:
    """Where status is reported, two condition types are added to the Service."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    gates = GATES.with_gates(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)
    async with cluster.controlled(quick(gates)) as controller:
        await cluster.settle(controller)
        assert len(await conditions(cluster)) == 2
        assert cluster.wire.take().count(STATUS) == 1


def test_no_more_slices() -> None:
    """The number of EndpointSlices does not grow with the use of the field."""
    assert len(LARGE.plan(asking("PreferClose")).slices) == len(LARGE.plan(asking(None)).slices)


def test_a_changed_pod_takes_no_longer() -> None:
    """Operations take no longer: one pod more changes one slice, with the field and without."""
    more = Scene({"n1": "zone-a", "n2": "zone-b"}, {"n1": 130, "n2": 121})
    for wanted in (asking(None), asking("PreferClose")):
        before = named(LARGE.plan(wanted).slices)
        plan = more.plan(wanted, slices=before)
        assert [len(one.create) + len(one.update) for one in plan.plans.values()] == [1]


def test_nodes_use_no_more_resources() -> None:
    """Nodes need no more resources: no node has more endpoints to route to than without it."""
    close, plain = (LARGE.routed(asking(value)) for value in ("PreferClose", None))
    for name, used in close.items():
        assert used <= plain[name]
        assert len(used) < len(plain[name])


async def test_without_the_api_server_traffic_goes_on(tmp_path: Path) -> None:
    """With the API server away, existing Services serve in accordance with their field."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await route(cluster)
        writer = RecordingWriter()
        async with cluster.proxied("n1", writer=writer, families=("IPv4",)) as proxy:
            await cluster.settle(proxy)
            before = list(writer.applied)
            with capture_logs() as logs:
                await api.server.stop()
                async with asyncio.timeout(PATIENCE):
                    # NB: logs send no event.
                    while not levels(logs, "warning"):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            state = proxy.families["IPv4"].states.services[WEB].ports["http", "TCP"]
            assert [one.address for one in state.selection.internal.endpoints] == ["10.0.0.1"]
            assert writer.applied == before


def test_a_missing_field_is_told() -> None:
    """Troubleshooting: whether the field is present in the Service is the first thing told."""
    (reason,) = SCENE.plan(asking(None)).strategy.reasons
    assert reason.code is ReasonCode.NOTHING_ASKED
    assert reason.message == "no mechanism was asked for, so every node uses all endpoints"


def test_missing_slices_are_told() -> None:
    """Troubleshooting: a Service without EndpointSlices is told as one without endpoints."""
    for one in SCENE.selections([]).values():
        assert [reason.code for reason in one.reasons] == [ReasonCode.NO_ENDPOINTS]


def test_hints_can_be_verified_within_the_slice() -> None:
    """Troubleshooting: for PreferClose hints align with the zones beside them in the slice."""
    for piece in SCENE.plan(asking("PreferClose")).slices:
        for one in piece.endpoints:
            assert one.hints is not None
            assert [hint.name for hint in one.hints.for_zones] == [one.zone]


def test_hints_on_all_endpoints_are_accepted() -> None:
    """Troubleshooting: with hints on all endpoints kube-proxy accepts them on every node."""
    for one in SCENE.selections(SCENE.plan(asking("PreferClose")).slices).values():
        codes = {reason.code for reason in one.reasons}
        assert codes <= {ReasonCode.SAME_ZONE, ReasonCode.ZONE_NOT_HINTED, ReasonCode.ALL_ENDPOINTS}


def test_a_missing_hint_is_told() -> None:
    """Troubleshooting: an endpoint without hint, which has all of them ignored, is named."""
    (piece,) = SCENE.plan(asking("PreferClose")).slices
    broken = _without_hint(piece, 0)
    for one in SCENE.selections([broken]).values():
        missing = [r for r in one.reasons if r.code is ReasonCode.ZONE_HINT_MISSING]
        assert [reason.subject for reason in missing] == ["Endpoint 10.0.0.1"]


def _without_hint(piece: EndpointSlice, number: int) -> EndpointSlice:
    ends = list(piece.endpoints)
    ends[number] = replace(ends[number], hints=None)
    return replace(piece, endpoints=tuple(ends))


async def test_the_proxy_logs_what_goes_wrong(tmp_path: Path) -> None:
    """Troubleshooting: the logs of kube-proxy have error messages where rules fail."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await route(cluster)
        writer = RecordingWriter()
        async with cluster.proxied("n1", writer=writer, families=("IPv4",)) as proxy:
            await cluster.settle(proxy)
            with capture_logs() as logs:
                writer.fail_next(NftError("Device or resource busy", failure=NftFailure.BUSY))
                await cluster.set_endpoints(hinted("10.0.0.9", "zone-a"))
                await cluster.settle(proxy)
    assert any("Device or resource busy" in str(one) for one in levels(logs, "error"))


async def test_the_controller_logs_what_goes_wrong(two_zones: World) -> None:
    """If objectives are missed, the logs of the EndpointSlice controller name the Service."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(FEW_RETRIES) as controller:
        await cluster.settle(controller)
        cluster.wire.refused = "PUT"
        with capture_logs() as logs:
            await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
            await cluster.settle(controller)
    told = [str(one) for one in levels(logs, "warning")]
    assert any("failed to update" in one and f"{cluster.namespace}/web" in one for one in told)


def levels(logs: Any, level: str) -> list[Any]:
    """Return the log lines of a level."""
    return [one for one in logs if one["log_level"] == level]


async def test_mitigation_remove_the_field(two_zones: World) -> None:
    """Mitigation: removing the field from a Service removes the hints."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert set(hints(await cluster.slices()).values()) == {"zone-a", "zone-b"}
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        assert set(hints(await cluster.slices()).values()) == {"none"}


def test_mitigation_disable_the_gate() -> None:
    """Mitigation: disabling the gate brings default routing back, the field being set."""
    off = parse_gates("ServiceTrafficDistribution=false")
    routes = SCENE.routed(asking("PreferClose"), controller=off, proxy=off)
    assert routes == SCENE.everywhere()


def test_mitigation_downgrade() -> None:
    """Mitigation: components of a lower version route by default, the field being set."""
    plan = SCENE.plan(asking("PreferClose"))
    assert SCENE.hints(plan) == own_zones(SCENE)
    down = SCENE.plan(asking("PreferClose"), slices=plan.slices, gates=NO_FIELD)
    assert SCENE.routes(down, gates=NO_FIELD) == SCENE.everywhere()
