"""Nodes as the lab registers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keepclose.kube.requests import Kind
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.kubelet.node_registration import LabNode, register_nodes
from keepclose.lab.network.addresses import node_addresses
from keepclose.testing.api_server import Served, serving
from keepclose.testing.fake_clock import FakeClock
from support.controllers import World, opened, world

NODES: Kind[dict[str, Any]] = Kind("", "v1", "nodes", "Node", False, dict)
ZONE = "topology.kubernetes.io/zone"


async def register(api: Served, *plan: LabNode) -> None:
    """Register nodes as the lab's role may."""
    kubeconfig = api.server.settings.data_dir / "lab.kubeconfig"
    async with opened(kubeconfig) as lab:
        await register_nodes(lab.client, plan, clock=FakeClock())


def a_node(name: str, zone: str = "zone-a", number: int = 1) -> LabNode:
    """Return a node of the plan."""
    return LabNode(name, zone, node_addresses(number))


async def conditions(cluster: World, name: str) -> dict[str, str]:
    """Return the conditions of a node."""
    found = await cluster.client.get(NODES, name)
    return {one["type"]: one["status"] for one in found["status"]["conditions"]}


WANT_HEALTHY = {
    "Ready": "True",
    "MemoryPressure": "False",
    "DiskPressure": "False",
    "PIDPressure": "False",
}


async def test_nodes_are_created_with_all_they_need(tmp_path: Path) -> None:
    """Labels, ranges, addresses, capacity and conditions stand in the node from the first write."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await register(api, a_node("n1"), a_node("n2", "", 2))
        node = await cluster.client.get(NODES, "n1")
        labels = node["metadata"]["labels"]
        assert (labels[ZONE], labels["topology.kubernetes.io/region"]) == ("zone-a", "lab")
        assert (labels["kubernetes.io/hostname"], labels["kubernetes.io/os"]) == ("n1", "linux")
        assert "kubernetes.io/arch" in labels
        assert node["spec"]["podCIDRs"] == ["10.244.1.0/24", "fd00:244:1::/64"]
        assert node["status"]["addresses"] == [
            {"type": "InternalIP", "address": "172.18.0.1"},
            {"type": "InternalIP", "address": "fd00:172::1"},
            {"type": "Hostname", "address": "n1"},
        ]
        assert node["status"]["capacity"] == node["status"]["allocatable"]
        assert node["status"]["allocatable"]["pods"] == "110"
        assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.36")
        assert await conditions(cluster, "n1") == WANT_HEALTHY
        assert ZONE not in (await cluster.client.get(NODES, "n2"))["metadata"]["labels"]


async def test_registering_again_changes_nothing(tmp_path: Path) -> None:
    """A node that is as it should be stays at its version."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await register(api, a_node("n1"))
        before = await cluster.client.get(NODES, "n1")
        await register(api, a_node("n1"))
        assert await cluster.client.get(NODES, "n1") == before


async def test_marks_of_silence_go_and_what_people_did_stays(tmp_path: Path) -> None:
    """A node that was lost is well again; its own taints, labels and cordon are kept."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await register(api, a_node("n1"))
        own = {"key": "example.dev/own", "effect": "NoSchedule"}
        lost = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
        await cluster.client.patch(
            NODES,
            "n1",
            {
                "metadata": {"labels": {"disk": "ssd", ZONE: "zone-x"}},
                "spec": {"taints": [own, lost], "unschedulable": True},
            },
        )
        unknown = [{"type": name, "status": "Unknown"} for name in WANT_HEALTHY]
        await cluster.client.patch(
            NODES, "n1", {"status": {"conditions": unknown}}, subresource="status"
        )
        await register(api, a_node("n1"))
        node = await cluster.client.get(NODES, "n1")
        assert await conditions(cluster, "n1") == WANT_HEALTHY
        assert node["spec"]["taints"] == [own]
        assert node["spec"]["unschedulable"] is True
        assert (node["metadata"]["labels"]["disk"], node["metadata"]["labels"][ZONE]) == (
            "ssd",
            "zone-a",
        )


async def test_a_zone_that_the_lab_gave_is_kept(tmp_path: Path) -> None:
    """A node that was moved on purpose is still where it was moved after a restart."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await register(api, a_node("n1"))
        moved = {"labels": {ZONE: "zone-b"}, "annotations": {"keepclose.dev/lab-zone": "zone-a"}}
        await cluster.client.patch(NODES, "n1", {"metadata": moved})
        await register(api, a_node("n1"))
        assert (await cluster.client.get(NODES, "n1"))["metadata"]["labels"][ZONE] == "zone-b"


async def test_a_node_with_other_ranges_is_made_anew(tmp_path: Path) -> None:
    """Ranges of pods cannot change, so the node of another plan goes."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await register(api, a_node("n1"))
        before = await cluster.client.get(NODES, "n1")
        await register(api, a_node("n1", "zone-b", 7))
        node = await cluster.client.get(NODES, "n1")
        assert node["spec"]["podCIDR"] == "10.244.7.0/24"
        assert node["metadata"]["uid"] != before["metadata"]["uid"]


async def test_nodes_of_a_larger_lab_go_with_their_pods(tmp_path: Path) -> None:
    """Nodes that an earlier lab made and this one does not want are removed, others stay."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await register(api, a_node("n1"), a_node("n2", number=2), a_node("n3", number=3))
        await cluster.add_node("mine", "zone-a")
        for name, node in {"a": "n1", "b": "n2", "c": "n2", "d": "mine"}.items():
            await cluster.add_pod(name, node, ip="10.64.9.9")
        spec = {"containers": [{"name": "x", "image": "x"}]}
        pending = {"metadata": {"name": "e"}, "spec": spec}
        await cluster.client.create(LAB_PODS, pending, namespace="default")
        kept: dict[str, Any] = {"metadata": {"name": "f", "finalizers": ["example.dev/wait"]}}
        kept["spec"] = {**spec, "nodeName": "n3"}
        await cluster.client.create(LAB_PODS, kept, namespace="default")
        await register(api, a_node("n1"), a_node("n9", number=2))
        nodes = (await cluster.client.list_all(NODES)).items
        assert [one["metadata"]["name"] for one in nodes] == ["mine", "n1", "n9"]
        pods = {one.metadata.name: one for one in (await cluster.client.list_all(LAB_PODS)).items}
        assert set(pods) == {"a", "d", "e", "f"}
        assert pods["f"].is_terminating


async def test_pods_of_a_node_that_went_before_go_too(tmp_path: Path) -> None:
    """A start that was broken off leaves no pods that nobody would ever end."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await register(api, a_node("n1"), a_node("n2", number=2))
        await cluster.add_pod("b", "n2", ip="10.64.9.9")
        await cluster.client.delete(NODES, "n2")
        await register(api, a_node("n1"))
        assert (await cluster.client.list_all(LAB_PODS)).items == []


async def test_a_bare_node_gets_what_it_lacks(tmp_path: Path) -> None:
    """A node that somebody else made without ranges and conditions is filled up."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await cluster.client.create(NODES, {"metadata": {"name": "n1"}})
        await register(api, a_node("n1"))
        node = await cluster.client.get(NODES, "n1")
        assert node["spec"]["podCIDRs"] == ["10.244.1.0/24", "fd00:244:1::/64"]
        assert await conditions(cluster, "n1") == WANT_HEALTHY
