"""A proxy against a real API server in this process: what changes there, and what is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.requests import CONFIG_MAPS, ENDPOINT_SLICES, NODES, SERVICES
from keepclose.model.acknowledgements import (
    HintLevel,
    NodeAcknowledgement,
    parse_acknowledgement,
    render_acknowledgement,
)
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.well_known import (
    HEADLESS_LABEL,
    PROXY_NAME_LABEL,
    REGION_LABEL,
    SERVICE_NAME_LABEL,
)
from keepclose.proxy.assembly import NodeProxy
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.testing.api_server import PATIENCE, serving
from keepclose.testing.recording_writer import RecordingWriter
from support.proxies import ProxyCluster, cluster_of, hinted, plain

WEB = NamespacedName("default", "web")

STATUS = FeatureGates().with_gates(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[ProxyCluster]:
    """Serve a cluster with one node in zone-a."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a", pod_cidrs=("10.244.1.0/24",))
        yield cluster


class Watched:
    """A proxy and what it writes."""

    def __init__(self, cluster: ProxyCluster, proxy: NodeProxy, writer: RecordingWriter) -> None:
        self.cluster, self.proxy, self.writer = cluster, proxy, writer

    async def news(self) -> list[str]:
        """Return the commands written since the last call, sweeps left out."""
        await self.cluster.settle(self.proxy)
        texts, self.writer.applied[:] = list(self.writer.applied), []
        return [line for text in texts for line in text.splitlines()]

    def used(self, key: NamespacedName = WEB) -> dict[str, tuple[str, ...]]:
        """Return where a Service's traffic goes, by port."""
        found = self.proxy.families["IPv4"].states.services.get(key)
        if found is None:
            return {}
        return {
            name: tuple(one.address for one in state.selection.internal.endpoints)
            for (name, _), state in found.ports.items()
        }


@asynccontextmanager
async def watched(cluster: ProxyCluster, **settings: Any) -> AsyncIterator[Watched]:
    """Run a proxy for node n1, with the rights of a node, whose writes are recorded."""
    writer = RecordingWriter()
    wanted = {"role": "node-n1.kubeconfig", "later_s": 3600.0, **settings}
    async with cluster.proxied("n1", writer=writer, **wanted) as proxy:
        yield Watched(cluster, proxy, writer)


async def test_only_what_changes_is_written(tmp_path: Path) -> None:
    """One changed endpoint leads to one changed element, and nothing else."""
    async with world(tmp_path) as cluster:
        service = await cluster.add_service()
        await cluster.add_service("other")
        await cluster.set_endpoints(hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b"))
        async with watched(cluster, families=("IPv4",)) as one:
            await one.news()
            await cluster.set_endpoints(hinted("10.0.0.3", "zone-a"), hinted("10.0.0.2", "zone-b"))
            at = f"ip kube-proxy tcp-counted-endpoints {{ {service.spec.cluster_ip} . tcp . 80 . 0"
            assert await one.news() == [
                f"delete element {at} }}",
                f"add element {at} : 10.0.0.3 . 8080 }}",
            ]
            # What this node does not use changes nothing here.
            await cluster.set_endpoints(hinted("10.0.0.3", "zone-a"), hinted("10.0.0.9", "zone-b"))
            assert await one.news() == []
            assert one.used() == {"http": ("10.0.0.3",)}


async def test_only_what_changes_is_written_where_nothing_is_pooled(tmp_path: Path) -> None:
    """One changed endpoint leads to a new chain, a switched element and those that count."""
    async with world(tmp_path) as cluster:
        service = await cluster.add_service()
        await cluster.add_service("other")
        await cluster.set_endpoints(hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b"))
        async with watched(cluster, families=("IPv4",), pooled=False) as one:
            first = await one.news()
            address = service.spec.cluster_ip
            assert f"add element ip kube-proxy cluster-ips {{ {address} }}" in first
            await cluster.set_endpoints(hinted("10.0.0.3", "zone-a"), hinted("10.0.0.2", "zone-b"))
            chain, rule, counting, *rest = await one.news()
            uncounting, out, into = sorted(rest, key=lambda line: "service-ips" in line)
            assert chain.startswith(
                "add chain ip kube-proxy service-SUSTUHLJ-default/web/tcp/http."
            )
            assert rule.endswith("dnat to 10.0.0.3:8080")
            counted = f"element ip kube-proxy counted-connections {{ {address} . tcp . 80 ."
            assert counting == f"add {counted} 10.0.0.3 . 8080 }}"
            assert uncounting == f"delete {counted} 10.0.0.1 . 8080 }}"
            slot = f"service-ips {{ {address} . tcp . 80"
            assert out == f"delete element ip kube-proxy {slot} }}"
            assert into.startswith(f"add element ip kube-proxy {slot} : goto service-")
            # What this node does not use changes nothing here.
            await cluster.set_endpoints(hinted("10.0.0.3", "zone-a"), hinted("10.0.0.9", "zone-b"))
            assert await one.news() == []
            assert one.used() == {"http": ("10.0.0.3",)}


async def test_the_zone_of_the_node(tmp_path: Path) -> None:
    """A new label selects anew; Services that it does not concern are not written."""
    async with world(tmp_path) as cluster:
        await cluster.add_service()
        await cluster.add_service("plain")
        await cluster.set_endpoints(hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b"))
        await cluster.set_endpoints(plain("10.0.1.1"), service="plain")
        async with watched(cluster, families=("IPv4",), counts_connections=False) as one:
            await one.news()
            assert one.used() == {"http": ("10.0.0.1",)}
            await cluster.label_node("n1", "zone-b")
            commands = await one.news()
            assert one.used() == {"http": ("10.0.0.2",)}
            assert any("10.0.0.2" in line for line in commands)
            assert all("10.0.1.1" not in line for line in commands)
            await cluster.label_node("n1", None)
            await one.news()
            assert one.used() == {"http": ("10.0.0.1", "10.0.0.2")}
            states = one.proxy.families["IPv4"].states
            assert {str(key): code.value for key, code in states.exceptions.items()} == {
                "default/web": "NodeWithoutZone"
            }
            # Heartbeats and other labels are no news.
            patch = {"metadata": {"labels": {"team": "blue"}}}
            await cluster.client.patch(NODES, "n1", patch)
            assert await one.news() == []


async def test_what_is_not_routed(tmp_path: Path) -> None:
    """Headless and ExternalName Services, and those of another proxy, have no rules."""
    async with world(tmp_path) as cluster:
        await cluster.add_service("headless", clusterIP="None")
        await cluster.add_service("named", type="ExternalName", externalName="a.example")
        await cluster.add_service("foreign", metadata={"labels": {PROXY_NAME_LABEL: "other"}})
        await cluster.add_service()
        labels = {SERVICE_NAME_LABEL: "web", HEADLESS_LABEL: ""}
        body = {
            "metadata": {"name": "web-headless", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [plain("10.0.0.7")],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }
        await cluster.client.create(ENDPOINT_SLICES, body, namespace="default")
        async with watched(cluster) as one:
            await one.news()
            assert list(one.proxy.families["IPv4"].states.services) == [WEB]
            assert one.used() == {"http": ()}
            # A Service that another proxy takes over is as good as deleted.
            patch = {"metadata": {"labels": {PROXY_NAME_LABEL: "other"}}}
            await cluster.change_service("web", patch)
            await one.news()
            assert one.used() == {}


async def test_slices_come_before_services_and_stay_after_them(tmp_path: Path) -> None:
    """Endpoints of an unknown Service wait for it, and a Service that comes back finds them."""
    async with world(tmp_path) as cluster:
        await cluster.set_endpoints(plain("10.0.0.1"), plain("10.0.0.1"), plain("10.0.0.2"))
        async with watched(cluster) as one:
            await one.news()
            assert one.used() == {}
            await cluster.add_service()
            await one.news()
            assert one.used() == {"http": ("10.0.0.1", "10.0.0.2")}
            await cluster.remove(SERVICES, "web")
            await one.news()
            assert one.used() == {}
            await cluster.add_service()
            await one.news()
            assert one.used() == {"http": ("10.0.0.1", "10.0.0.2")}


async def test_a_failing_writer_is_tried_again_and_told(tmp_path: Path) -> None:
    """What could not be written comes with the next attempt; metrics and health say so."""
    async with world(tmp_path) as cluster:
        await cluster.add_service()
        async with watched(cluster, families=("IPv4",)) as one:
            await one.news()
            busy = NftError("Device or resource busy", failure=NftFailure.BUSY)
            one.writer.fail_next(busy, busy)
            await cluster.set_endpoints(plain("10.0.0.1"))
            commands = await one.news()
            # NB: the recorder lists no table, so the whole of it is written again.
            assert commands[0].startswith("add table ip kube-proxy")
            assert any("10.0.0.1" in line for line in commands)
            page = one.proxy.metrics.page().decode()
            name = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
            assert f'{name}{{ip_family="IPv4"}} 2.0' in page
            assert one.proxy.health.health().healthy


async def test_ranges_of_cluster_ips(tmp_path: Path) -> None:
    """Addresses of the cluster's own range that no Service has are dropped."""
    async with world(tmp_path) as cluster:
        await cluster.add_service()
        async with watched(cluster, families=("IPv4",)) as one:
            commands = await one.news()
            wanted = "add rule ip kube-proxy cluster-ips-check ip daddr 10.96.0.0/16 drop"
            while not any(line.startswith(wanted) for line in commands):
                commands = await one.news()


async def test_addresses_of_the_node(tmp_path: Path) -> None:
    """New pod ranges change how local traffic is told, without an end of the process."""
    async with world(tmp_path) as cluster:
        await cluster.add_service()
        await cluster.set_endpoints(plain("10.0.0.1"))
        async with watched(cluster, families=("IPv4",)) as one:
            commands = await one.news()
            assert any("ip saddr != 10.244.1.0/24" in line for line in commands)
            address = {"type": "InternalIP", "address": "192.168.100.77"}
            await cluster.client.patch(
                NODES, "n1", {"status": {"addresses": [address]}}, subresource="status"
            )
            commands = await one.news()
            assert one.proxy.node.addresses.ips == {"IPv4": "192.168.100.77"}
            assert any("10.0.0.1" in line for line in commands)
            await cluster.remove(NODES, "n1")
            await one.news()
            assert one.proxy.own_node is None
            assert one.used() == {"http": ("10.0.0.1",)}


async def test_udp_flows_are_cleaned_after_the_rules(tmp_path: Path) -> None:
    """Changes of UDP Services clean with all serving endpoints, changes of TCP ones do not."""
    async with world(tmp_path) as cluster:
        ports = [{"name": "dns", "port": 53, "protocol": "UDP"}]
        dns = await cluster.add_service("dns", ports=ports)
        await cluster.add_service()
        port = ({"name": "dns", "port": 5353, "protocol": "UDP"},)
        await cluster.set_endpoints(
            plain("10.0.0.1"), plain("10.0.0.2", ready=False), service="dns", ports=port
        )
        async with watched(cluster, families=("IPv4",)) as one:
            await one.news()
            flows = cluster.flows["IPv4"]
            serving_now = frozenset({("10.0.0.1", 5353), ("10.0.0.2", 5353)})
            assert flows.cleaned[-1].addresses == {(dns.spec.cluster_ip, 53): serving_now}
            before = len(flows.cleaned)
            await cluster.set_endpoints(plain("10.0.0.9"))
            await one.news()
            assert len(flows.cleaned) == before
            flows.failing = True
            await cluster.set_endpoints(plain("10.0.0.2"), service="dns", ports=port)
            await one.news()
            flows.failing = False
            await cluster.set_endpoints(plain("10.0.0.8"))
            await one.news()
            assert flows.cleaned[-1].addresses == {
                (dns.spec.cluster_ip, 53): frozenset({("10.0.0.2", 5353)})
            }
            await cluster.remove(SERVICES, "dns")
            await one.news()
            assert flows.cleaned[-1].addresses == {}


async def test_the_acknowledgement(tmp_path: Path) -> None:
    """The ConfigMap names the version that is written, and Services whose hints are not used."""
    async with world(tmp_path) as cluster:
        await cluster.add_service()
        await cluster.add_service("odd")
        made = await cluster.set_endpoints(hinted("10.0.0.1", "zone-a"))
        settings = {"acknowledges": True, "acknowledge_every_s": 0.0, "gates": STATUS}
        async with watched(cluster, families=("IPv4",), **settings) as one:
            await one.news()
            acknowledger = one.proxy.acknowledger
            while acknowledger.writes < 1:
                await one.news()
            said = await _acknowledged(cluster)
            assert (said.version, said.exceptions) == (int(made.metadata.resource_version), {})
            made = await cluster.set_endpoints(
                hinted("10.0.0.1", "zone-a"), plain("10.0.0.2"), service="odd"
            )
            # NB: exceptions may be told before the version that brought them is written.
            while said.version < int(made.metadata.resource_version):
                await one.news()
                said = await _acknowledged(cluster)
            assert said.version == int(made.metadata.resource_version)
            want = {NamespacedName("default", "odd"): "ZoneHintMissing"}
            assert (said.node, said.exceptions) == ("n1", want)


async def test_a_node_states_which_hints_it_goes_by(tmp_path: Path) -> None:
    """What feature gates rule out for all Services is said once, and of no Service."""
    gates = STATUS.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION)
    async with world(tmp_path) as cluster:
        await cluster.add_service()
        await cluster.set_endpoints(hinted("10.0.0.1", "zone-a"))
        settings = {"acknowledges": True, "acknowledge_every_s": 0.0}
        for wanted, honors in (
            (
                STATUS.with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS),
                frozenset(HintLevel),
            ),
            (STATUS, {HintLevel.ZONES, HintLevel.NODES}),
            (STATUS.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION), {HintLevel.ZONES}),
            (gates, frozenset()),
        ):
            async with watched(cluster, families=("IPv4",), gates=wanted, **settings) as one:
                while one.proxy.acknowledger.writes < 1:
                    await one.news()
                said = await _acknowledged(cluster)
                assert (said.honors, said.exceptions) == (honors, {})


async def test_without_its_gate_a_proxy_asks_for_nothing(tmp_path: Path) -> None:
    """No ConfigMap is written or looked for; one of before goes where conditions count on it."""
    async with world(tmp_path) as cluster:
        await cluster.add_service()
        settings = {"acknowledges": True, "acknowledge_every_s": 0.0, "families": ("IPv4",)}
        said = NodeAcknowledgement("n1", 7, honors=frozenset(HintLevel))
        uid = (await cluster.client.get(NODES, "n1")).metadata.uid
        node = OwnerReference(api_version="v1", kind="Node", name="n1", uid=uid)
        await cluster.client.create(
            CONFIG_MAPS, render_acknowledgement(said, owner=node), namespace="kube-system"
        )
        async with watched(cluster, **settings) as one:
            await one.proxy.synced.wait()
            await one.news()
            assert one.proxy.acknowledger.writes == 0
        assert await _acknowledged(cluster) == said
        honored = {"type": "TrafficDistributionHonored", "status": "True"}
        await cluster.client.patch(
            SERVICES,
            "web",
            {"status": {"conditions": [honored]}},
            namespace="default",
            subresource="status",
        )
        async with watched(cluster, **settings), asyncio.timeout(PATIENCE):
            while await _acknowledged(cluster) == said:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        assert await _acknowledged(cluster) == NodeAcknowledgement("n1")


async def _acknowledged(cluster: ProxyCluster) -> Any:
    found = await cluster.client.get(CONFIG_MAPS, "keepclose-ack-n1", namespace="kube-system")
    assert found.metadata.labels == {"keepclose.dev/acknowledgement": "true"}
    assert [one.kind for one in found.metadata.owner_references] == ["Node"]
    return parse_acknowledgement(found)


async def test_an_acknowledgement_that_is_forbidden(tmp_path: Path) -> None:
    """A server that says no is asked once; the rules come all the same."""
    async with world(tmp_path) as cluster:
        await cluster.add_service()
        settings = {"acknowledges": True, "acknowledge_every_s": 0.0, "gates": STATUS}
        role = "viewer.kubeconfig"
        async with watched(cluster, families=("IPv4",), role=role, **settings) as one:
            await one.news()
            while not one.proxy.acknowledger.is_off:
                await one.news()
            await cluster.set_endpoints(plain("10.0.0.1"))
            assert any("10.0.0.1" in line for line in await one.news())
            assert one.proxy.acknowledger.writes == 0


async def label(cluster: ProxyCluster, node: str, region: str) -> None:
    """Move a node to another region."""
    patch = {"metadata": {"labels": {REGION_LABEL: region}}}
    await cluster.client.patch(NODES, node, patch)


@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "later"])
async def test_topology_keys_may_be_any_label(tmp_path: Path, is_late: bool) -> None:
    """Regions are those of the endpoints' Nodes, which are followed when a Service needs them."""
    gates = FeatureGates().with_gates(Gate.SERVICE_TOPOLOGY)
    async with (
        serving(tmp_path, nodes=("n1",), gates=gates) as api,
        cluster_of(api) as cluster,
    ):
        for name, region in (("n1", "east"), ("n2", "east"), ("n3", "west")):
            await cluster.add_node(name, "zone-a", pod_cidrs=("10.244.1.0/24",))
            await label(cluster, name, region)
        keys: dict[str, Any] = {"topologyKeys": [REGION_LABEL]}
        await cluster.add_service(**({} if is_late else keys))
        await cluster.set_endpoints(
            plain("10.0.0.2", "zone-a", "n2"), plain("10.0.0.3", "zone-a", "n3")
        )
        async with watched(cluster, families=("IPv4",), gates=gates) as one:
            if is_late:
                await one.news()
                assert one.used() == {"http": ("10.0.0.2", "10.0.0.3")}
                await cluster.client.patch(SERVICES, "web", {"spec": keys}, namespace="default")
            await until(lambda: one.used() == {"http": ("10.0.0.2",)})
            await label(cluster, "n3", "east")
            await until(lambda: one.used() == {"http": ("10.0.0.2", "10.0.0.3")})


async def until(is_so: Callable[[], bool]) -> None:
    """Return when something holds; fail when it does not in time."""
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - several events lead there
            await asyncio.sleep(0.01)
