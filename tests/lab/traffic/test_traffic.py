"""Traffic in a cluster with real packets and real proxies; skipped where there are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from keepclose.kube.errors import AlreadyExists
from keepclose.kube.requests import PODS, SERVICES
from keepclose.lab.access import LabRefusal, LabView
from keepclose.lab.traffic.run import handle_traffic
from support.lab.trafficbeds import JsonObject, TrafficBed, traffic_bed

pytestmark = pytest.mark.asyncio(loop_scope="module")
ZONES = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b", "n4": "zone-c"}


def hinted(endpoint: JsonObject, zone: str) -> JsonObject:
    """Return an endpoint with a hint for a zone."""
    return {**endpoint, "hints": {"forZones": [{"name": zone}]}}


class Web:
    """The Service web with three pods: two in zone-a, one in zone-b."""

    def __init__(self, bed: TrafficBed, endpoints: list[JsonObject]) -> None:
        self.bed, self.endpoints = bed, endpoints

    async def reset(self) -> None:
        """Make everything as it was first."""
        self.bed.told.clear()
        self.bed.on_tell = lambda _news: None
        plain = {
            "type": "NodePort",
            "externalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "sessionAffinityConfig": None,
        }
        await self.bed.cluster.change_service("web", {"spec": plain})
        await self.bed.cluster.set_endpoints(*self.endpoints)
        await self.bed.settle()

    async def hint(self) -> None:
        """Give each endpoint a hint for its own zone."""
        await self.bed.cluster.set_endpoints(*(hinted(one, one["zone"]) for one in self.endpoints))
        await self.bed.settle()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Web]:
    """Make the cluster, once for all tests here."""
    async with traffic_bed(tmp_path_factory.mktemp("api"), ZONES) as bed:
        endpoints = [
            await bed.add_pod("web-1", "n1", "zone-a"),
            await bed.add_pod("web-2", "n2", "zone-a"),
            await bed.add_pod("web-3", "n3", "zone-b"),
        ]
        ports = [
            {"name": "http", "port": 80, "targetPort": 8080},
            {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 8080},
        ]
        await bed.cluster.add_service(type="NodePort", ports=ports)
        await bed.cluster.set_endpoints(*endpoints)
        udp = [{"name": "dns", "port": 8080, "protocol": "UDP"}]
        await bed.cluster.set_endpoints(*endpoints, name="web-udp", ports=udp)
        await bed.settle()
        yield Web(bed, endpoints)


@pytest_asyncio.fixture(loop_scope="module")
async def web(shared: Web) -> Web:
    """Return the cluster as it was first."""
    await shared.reset()
    return shared


async def test_every_zone_by_hints(web: Web) -> None:
    """Zones with endpoints keep their connections, the third uses all, and each is as expected."""
    await web.hint()
    report = await web.bed.send(connections=300)
    assert report.is_fine, report
    assert (report.connections, report.failed) == (900, 0)
    assert report.service == "default/web"
    assert report.zones == ("zone-a", "zone-b", "zone-c")
    a, b, c = report.rows
    assert [row.source for row in report.rows] == ["zone-a", "zone-b", "zone-c"]
    assert (a.answered, b.answered) == ({"zone-a": 300}, {"zone-b": 300})
    assert a.expected == pytest.approx({"zone-a": 1.0})
    assert b.expected == pytest.approx({"zone-b": 1.0})
    assert sum(c.answered.values()) == 300
    assert c.expected == pytest.approx({"zone-a": 2 / 3, "zone-b": 1 / 3})
    assert [reason.code for reason in c.reasons] == ["ZoneNotHinted"]
    assert a.reasons == b.reasons == ()
    assert [(row.source, row.connections) for row in report.sources] == [
        ("n1", 150),
        ("n2", 150),
        ("n3", 300),
        ("n4", 300),
    ]
    assert report.in_zone == pytest.approx(2 / 3)
    assert report.busiest is not None
    assert report.busiest.pod == "web-3"
    assert web.bed.told[0] == {"done": 0, "of": 900}
    assert web.bed.told[-1] == {"done": 900, "of": 900}


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param({"from": "zone-a"}, [("n1", 140), ("n2", 140)], id="all nodes of a zone"),
        pytest.param({"from": "n2"}, [("n2", 280)], id="one node"),
        pytest.param({"from": "web-3"}, [("web-3", 280)], id="one pod"),
        pytest.param({"from": "default/web-3"}, [("web-3", 280)], id="one pod by namespace"),
        pytest.param(
            {"from": "outside"},
            [(f"outside via {name}", 70) for name in ZONES],
            id="the host outside",
        ),
        pytest.param(
            {"udp": True, "from": "n1"}, [("n1", 280)], id="datagrams to the first UDP port"
        ),
    ],
)
async def test_sources(web: Web, asked: dict[str, Any], want: list[tuple[str, int]]) -> None:
    """Connections come from whom they were asked for, spread evenly."""
    # NB: so many that no pod is left out by chance, which of 70 has one of 10 ** 11.
    report = await web.bed.send(connections=280, **asked)
    assert report.is_fine, report
    assert [(row.source, row.connections) for row in report.sources] == want
    assert set(report.sources[0].pods) == {"web-1", "web-2", "web-3"}


async def test_outside_under_the_local_policy(web: Web) -> None:
    """Each node serves what comes to it by itself; one without endpoints drops, as expected."""
    await web.bed.cluster.change_service("web", {"spec": {"externalTrafficPolicy": "Local"}})
    await web.bed.settle()
    report = await web.bed.send(connections=80, via="node-port")
    assert report.as_expected, report
    assert (report.failed, report.failures) == (20, {"timed out": 20})
    assert not report.is_fine
    assert [row.pods for row in report.sources] == [
        {"web-1": 20},
        {"web-2": 20},
        {"web-3": 20},
        {},
    ]
    assert report.on_node == 1.0
    assert report.rows[2].expected_failures == {"timed out": 1.0}
    assert report.mechanism == "externalTrafficPolicy Local"
    assert [reason.code for reason in report.rows[2].reasons] == ["NoLocalEndpoint"]


async def test_a_load_balancer_spares_nodes_without_endpoints(web: Web) -> None:
    """The outside host passes connections on to healthy nodes only, and then forgets the way."""
    spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    await web.bed.cluster.change_service("web", {"spec": spec})
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}}
    await web.bed.cluster.client.patch(
        SERVICES, "web", status, namespace="default", subresource="status"
    )
    await web.bed.settle()
    async with web.bed.underlay.routing:
        # Somebody else shows the outside host another way, which this one waits for.
        waiting = asyncio.create_task(web.bed.send(connections=90, via="load-balancer"))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
    report = await waiting
    assert report.is_fine, report
    assert [(row.source, row.pods) for row in report.sources] == [
        ("outside via n1", {"web-1": 30}),
        ("outside via n2", {"web-2": 30}),
        ("outside via n3", {"web-3": 30}),
    ]
    routes = web.bed.underlay.outside.namespace.run("ip", "route")
    assert "192.0.2.7" not in routes


async def test_rules_of_others_are_called_out(web: Web) -> None:
    """Whoever is asked although the API says otherwise is a fault, which names the pod."""
    await web.hint()
    # Another program's rule on one node comes before those of the proxy.
    table = web.bed.underlay.nodes["n3"].namespace
    address = web.endpoints[0]["addresses"][0]
    service = await web.bed.cluster.client.get(SERVICES, "web", namespace="default")
    rule = (
        "table ip wrong { chain c { type nat hook prerouting priority dstnat - 1; "
        f"ip daddr {service.spec.cluster_ip} tcp dport 80 dnat to {address}:8080\n}}\n}}\n"
    )
    table.run("nft", "-f", "-", text=rule)
    try:
        report = await web.bed.send(connections=60)
    finally:
        table.run("nft", "delete", "table", "ip", "wrong")
    assert not report.as_expected
    faults = {row.source: row.fault for row in report.rows}
    assert faults == {
        "zone-a": "",
        "zone-b": "n3: 60 answered by web-1, which should get none",
        "zone-c": "",
    }


async def test_no_endpoints(web: Web) -> None:
    """Connections are refused, which is as expected but not fine."""
    await web.bed.cluster.set_endpoints()
    await web.bed.settle()
    report = await web.bed.send(connections=60)
    assert (report.as_expected, report.failures) == (True, {"refused": 180})
    assert (report.busiest, report.in_zone, report.endpoints) == (None, None, 0)
    assert [reason.code for reason in report.rows[0].reasons] == ["NoEndpoints"]
    want = "the Service has no selector, so its endpoints are those of manually created slices"
    assert report.causes == (want,)


async def test_affinity_is_not_compared(web: Web) -> None:
    """Every client stays with one endpoint, and the report says why that is no fault."""
    await web.bed.cluster.change_service("web", {"spec": {"sessionAffinity": "ClientIP"}})
    await web.bed.settle()
    report = await web.bed.send(connections=100)
    assert report.is_fine, report
    assert all(len(row.pods) == 1 for row in report.sources)
    assert report.notes == (
        "sessionAffinity ClientIP: a client stays with its endpoint, so shares are not compared",
    )


async def test_a_change_during_the_run_is_told(web: Web) -> None:
    """What is allowed before or after the change is no fault."""
    changes: list[asyncio.Task[Any]] = []

    def change(_news: JsonObject) -> None:
        if not changes:
            patch = web.bed.cluster.set_endpoints(*web.endpoints[:2])
            changes.append(asyncio.create_task(patch))

    web.bed.on_tell = change
    report = await web.bed.send(connections=400)
    await changes[0]
    assert report.as_expected, report
    assert report.notes == (
        "endpoints changed during the run, so shares are not compared on every node",
    )


async def test_endpoints_without_a_pod_reference(web: Web) -> None:
    """Their pods are found by address."""
    status = {"status": {"podIPs": [{"ip": web.endpoints[0]["addresses"][0]}]}}
    await web.bed.cluster.client.patch(
        PODS, "web-1", status, namespace="default", subresource="status"
    )
    bare = {name: value for name, value in web.endpoints[0].items() if name != "targetRef"}
    await web.bed.cluster.set_endpoints(bare)
    await web.bed.settle()
    report = await web.bed.send(connections=20)
    assert report.is_fine, report
    assert report.sources[0].expected_pods == {"web-1": 1.0}


@pytest.mark.parametrize(
    ("asked", "want", "code"),
    [
        pytest.param(
            {"from": "zone-d"},
            "--from: no zone, node or pod zone-d; did you mean zone-c or zone-b?",
            3,
            id="an unknown zone",
        ),
        pytest.param(
            {"from": "a/b/c"}, "--from: no zone, node or pod a/b/c", 3, id="no name at all"
        ),
        pytest.param(
            {"from": "idle"}, "--from: pod default/idle is not running", 3, id="a pod without place"
        ),
        pytest.param(
            {"service": "wbe"},
            "there is no Service default/wbe; did you mean default/web?",
            3,
            id="an unknown Service",
        ),
    ],
)
async def test_refusals(web: Web, asked: dict[str, Any], want: str, code: int) -> None:
    """What is not there is said, with near names."""
    body = {"metadata": {"name": "idle"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    with suppress(AlreadyExists):
        await web.bed.cluster.client.create(PODS, body, namespace="default")
    with pytest.raises(LabRefusal) as refusal:
        await web.bed.send(**{"service": "web", **asked})
    assert (str(refusal.value), refusal.value.code) == (want, code)


async def test_a_pod_that_goes_breaks_its_traffic_off(web: Web) -> None:
    """One line says that its place is gone."""
    endpoint = await web.bed.add_pod("short", "n4", "zone-c")
    uid = endpoint["targetRef"]["uid"]

    def end(_news: JsonObject) -> None:
        web.bed.underlay.remove_pods([uid])

    web.bed.on_tell = end
    with pytest.raises(LabRefusal) as refusal:
        await web.bed.send(**{"from": "short"})
    want = f"the traffic broke off: the network namespace of {uid} is gone"
    assert (str(refusal.value), refusal.value.code) == (want, 1)


async def test_without_packets() -> None:
    """A cluster without packets says why, and what shows the decisions anyway."""
    nothing: Any = None
    lab = LabView(nothing, nothing, nothing, None, "nft is not installed", {})
    with pytest.raises(LabRefusal) as refusal:
        await handle_traffic(lab, {"service": "web"}, lambda _news: None)
    assert str(refusal.value) == (
        "this cluster has no packets (nft is not installed); "
        "keepclose resolve -f FILE shows where they would go"
    )
    assert refusal.value.code == 5
