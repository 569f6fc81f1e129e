"""Which objects an agent watches for the owners of addresses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.owner_history import OwnerKind
from keepclose.flows.name_sources import RANGE_WAIT_S, NameSources, SteadyTime
from keepclose.flows.settings import FlowSettings
from keepclose.kube.client import Client
from keepclose.kube.requests import NODES, PODS
from keepclose.kube.transport.transport import ApiRequest
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.scripted_streams import FakeResponse
from support.flowbeds import pod
from support.flowclusters import address

LOCAL, REMOTE = "10.0.1.7", "10.0.2.7"


class _Cluster(FakeCluster):
    """Answers requests with a selector from the pods of n1."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.own = FakeCluster(clock)

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Answer one request."""
        query = tuple(pair for pair in request.query if pair[0] != "fieldSelector")
        if query != request.query:
            assert ("fieldSelector", "spec.nodeName=n1") in request.query
            return await self.own.send(replace(request, query=query))
        return await super().send(request)


class _Bed:
    """An address book that the objects of a cluster fill."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.cluster = _Cluster(self.clock)
        self.settings = FlowSettings(node_name="n1", **settings)
        self.book = AddressBook(cluster_ranges=self.settings.cluster_ranges)
        self.now = SteadyTime(self.clock)

    def put_node(self, name: str, *ranges: str) -> None:
        """Write a Node with pod CIDRs."""
        spec = {"podCIDR": ranges[0], "podCIDRs": list(ranges)} if ranges else {}
        self.cluster.put(NODES, {"metadata": {"name": name}, "spec": spec})

    def put_pod(self, name: str, node: str, ip: str) -> None:
        """Write a pod."""
        self.cluster.put(PODS, pod(name, node, ip))
        if node == "n1":
            self.cluster.own.put(PODS, pod(name, node, ip))

    def owner(self, ip: str) -> tuple[OwnerKind, str] | None:
        """Return what has an address now, and its node."""
        owner = self.book.owner_of(address(ip), self.now())
        return None if owner is None else (owner.kind, owner.node)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NameSources]:
        """Watch for the time of the block, which begins when all caches are complete."""
        async with Client(self.cluster, clock=self.clock) as client:
            sources = NameSources(
                self.book, self.settings, client=client, clock=self.clock, now=self.now
            )
            task = asyncio.create_task(sources.run())
            try:
                await self.clock.run_until(sources.synced.is_set, within=5.0)
                yield sources
                await self.clock.run_until_idle()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("cluster_ranges", [(), ("10.0.0.0/8",)])
async def test_all_pods_are_watched_where_no_node_has_a_range(
    cluster_ranges: tuple[str, ...],
) -> None:
    """Without pod CIDRs every pod is watched at once, whatever ranges the user names."""
    bed = _Bed(cluster_ranges=cluster_ranges)
    bed.put_node("n1")
    bed.put_node("n2")
    bed.put_pod("far", "n2", REMOTE)
    bed.put_pod("near", "n1", LOCAL)
    async with bed.running():
        assert bed.owner(REMOTE) == (OwnerKind.POD, "n2")
        assert bed.owner(LOCAL) == (OwnerKind.POD, "n1")


async def test_a_node_that_joins_gets_its_range_in_time() -> None:
    """A Node that has no pod CIDR for a moment does not make the agent watch all pods."""
    bed = _Bed()
    bed.put_node("n1", "10.0.1.0/24")
    bed.put_pod("far", "n2", REMOTE)
    async with bed.running():
        bed.put_node("n2")
        await bed.clock.advance(RANGE_WAIT_S / 2)
        bed.put_node("n2", "10.0.2.0/24")
        await bed.clock.advance(2 * RANGE_WAIT_S)
        assert bed.owner(REMOTE) == (OwnerKind.POD_RANGE, "n2")


async def test_all_pods_are_watched_as_long_as_a_node_has_no_range() -> None:
    """A Node that stays without a pod CIDR needs it, and the watch ends with the need."""
    bed = _Bed()
    bed.put_node("n1", "10.0.1.0/24")
    bed.put_node("n2")
    bed.put_pod("far", "n2", REMOTE)
    bed.put_pod("near", "n1", LOCAL)
    async with bed.running():
        assert bed.owner(REMOTE) is None
        await bed.clock.advance(RANGE_WAIT_S + 1)
        assert bed.owner(REMOTE) == (OwnerKind.POD, "n2")
        bed.put_node("n2", "10.0.2.0/24")
        await bed.clock.advance(2.0)
        assert bed.owner(REMOTE) == (OwnerKind.POD_RANGE, "n2")
        assert bed.owner(LOCAL) == (OwnerKind.POD, "n1")
        bed.put_pod("farther", "n2", "10.0.2.8")
        await bed.clock.run_until_idle()
        assert bed.owner("10.0.2.8") == (OwnerKind.POD_RANGE, "n2")


@pytest.mark.parametrize("pod_first", [True, False])
async def test_ranges_that_the_network_does_not_use_are_ignored(*, pod_first: bool) -> None:
    """If a pod of this node has another address, a remote pod in this node's range is remote."""
    bed = _Bed()
    bed.put_node("n1", *(() if pod_first else ("10.0.1.0/24",)))
    bed.put_node("n2", "10.0.2.0/24")
    bed.put_pod("near", "n1", "10.0.77.7")
    bed.put_pod("far", "n2", LOCAL)
    async with bed.running():
        bed.put_node("n1", "10.0.1.0/24")
        await bed.clock.run_until_idle()
        assert bed.owner("10.0.77.7") == (OwnerKind.POD, "n1")
        assert bed.owner(LOCAL) == (OwnerKind.POD, "n2")
        assert bed.owner("10.0.1.99") is None
        assert bed.book.is_of_cluster(address("10.0.1.99"))


@pytest.mark.parametrize("ranges", [(), ("10.0.0.0/16",)])
async def test_unused_ranges_need_those_of_the_cluster(ranges: tuple[str, ...]) -> None:
    """Without --cluster-cidr a warning says what may be counted twice, and the fix."""
    bed = _Bed(cluster_ranges=ranges)
    bed.put_node("n1", "10.0.1.0/24")
    bed.put_pod("near", "n1", "10.0.77.7")
    with capture_logs() as logs:
        async with bed.running():
            pass
    fixes = [log["fix"] for log in logs if log["log_level"] == "warning"]
    want = ["pass --cluster-cidr with the ranges of all pods and Services"]
    assert fixes == ([] if ranges else want)


async def test_a_tunnel_address_that_a_network_writes_later() -> None:
    """An annotation with the address of a tunnel makes that address one of the Node's."""
    bed = _Bed()
    bed.put_node("n2", "10.0.2.0/24")
    async with bed.running():
        assert bed.owner("172.20.2.1") is None
        node = {
            "metadata": {
                "name": "n2",
                "annotations": {"projectcalico.org/IPv4IPIPTunnelAddr": "172.20.2.1"},
            },
            "spec": {"podCIDR": "10.0.2.0/24"},
        }
        bed.cluster.put(NODES, node)
        await bed.clock.run_until_idle()
        assert bed.owner("172.20.2.1") == (OwnerKind.NODE, "n2")


async def test_pods_in_the_host_network_say_nothing_of_ranges() -> None:
    """The address of a node is outside its pod CIDRs, and they hold all the same."""
    bed = _Bed()
    bed.put_node("n1", "10.0.1.0/24")
    agent = pod("agent", "n1", "192.0.2.1")
    agent["spec"]["hostNetwork"] = True
    bed.cluster.own.put(PODS, agent)
    async with bed.running():
        assert bed.owner(LOCAL) == (OwnerKind.POD_RANGE, "n1")


async def test_a_pod_whose_address_comes_with_its_end() -> None:
    """A pod that ran between two reports of its kubelet names the connections of that time."""
    bed = _Bed()
    bed.put_node("n1", "10.0.1.0/24")
    waiting = {**pod("brief", "n1", LOCAL), "status": {"phase": "Pending"}}
    bed.cluster.own.put(PODS, waiting)
    async with bed.running():
        seen_at = bed.now()
        await bed.clock.advance(0.5)
        ended = pod("brief", "n1", LOCAL)
        ended["status"]["phase"] = "Succeeded"
        bed.cluster.own.put(PODS, ended)
        await bed.clock.advance(2.0)
        owner = bed.book.owner_of(address(LOCAL), seen_at)
        assert owner is not None
        assert owner.name == "default/brief"
        assert bed.owner(LOCAL) == (OwnerKind.POD_RANGE, "n1")


@pytest.mark.parametrize(
    ("own", "want"),
    [
        pytest.param("192.0.2.9", ("worker-9", "address 192.0.2.9"), id="by an address"),
        pytest.param("198.51.100.1", ("n10", "n10 is the nearest"), id="by the name"),
    ],
)
async def test_a_name_that_no_node_has(own: str, want: tuple[str, str]) -> None:
    """The Node that is meant is named, until a Node with the given name appears."""
    bed = _Bed()
    bed.put_node("n10", "10.0.1.0/24")
    status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}
    bed.cluster.put(NODES, {"metadata": {"name": "worker-9"}, "status": status})
    async with bed.running() as sources:
        wrong = sources.find_wrong_name({address(own)})
        assert wrong is not None
        assert wrong.nearest == want[0]
        assert want[1] in wrong.problem
        assert f"--node-name {want[0]}" in wrong.fix
        bed.put_node("n1")
        await bed.clock.run_until_idle()
        assert sources.find_wrong_name({address(own)}) is None


async def test_a_cluster_without_nodes() -> None:
    """The kubeconfig may name another cluster."""
    async with _Bed().running() as sources:
        wrong = sources.find_wrong_name(())
        assert wrong is not None
        assert "has no Nodes" in wrong.problem
