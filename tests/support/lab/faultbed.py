"""A lab to make trouble in: a real API server and real workloads, a network that takes notes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from keepclose.kube.client import Client
from keepclose.kube.requests import Kind
from keepclose.lab.faults.injector import FaultInjector
from keepclose.lab.kinds import DAEMON_SETS, DEPLOYMENTS
from keepclose.model.json_values import JsonObject
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.system.namespaces import NetworkError
from keepclose.testing.api_server import PATIENCE, serving
from support.labs import Lab, StubKubelet, workloads

ZONES = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b", "n4": "zone-b"}
RAW_NODES: Kind[dict[str, Any]] = Kind("", "v1", "nodes", "Node", False, dict)


class NotedLinks:
    """Notes which nodes are cut; can refuse, and take its time."""

    refusal = ""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.cut_off: set[str] = set()
        self.is_asked = threading.Event()
        self.may_cut = threading.Event()
        self.may_cut.set()
        self.may_mend = threading.Event()
        self.may_mend.set()

    def cut(self, node: str) -> None:
        """Note a cut."""
        self.is_asked.set()
        assert self.may_cut.wait(PATIENCE)
        if self.refusal:
            raise NetworkError(self.refusal)
        self.notes.append(f"cut {node}")
        self.cut_off.add(node)

    def restore(self, node: str) -> None:
        """Record a restore."""
        self.is_asked.set()
        assert self.may_mend.wait(PATIENCE)
        self.notes.append(f"restore {node}")
        self.cut_off.remove(node)


class NotedWay:
    """Notes whether a node reaches the API server; to open it twice is an error."""

    stays_away = False
    """Whether the node comes back only when `come_back` is called."""

    def __init__(self) -> None:
        self.is_open = True
        self.connections = 2

    async def open(self) -> None:
        """Let the node through."""
        assert not self.is_open
        self.is_open = True
        if not self.stays_away:
            self.come_back()

    async def hold(self) -> None:
        """Cut it off."""
        self.is_open = False
        self.connections = 0

    def come_back(self) -> None:
        """Have the connections of the node again."""
        self.connections = 2


class StubKubelets:
    """The stand-in for kubelets, silent on nodes that failed."""

    def __init__(self, kubelet: StubKubelet) -> None:
        self._kubelet = kubelet
        self.silent: set[str] = set()
        kubelet.makes_ready = kubelet.lets_end = self._is_heard

    def fail(self, node: str) -> None:
        """Silence a node."""
        self.silent.add(node)

    def recover(self, node: str) -> None:
        """Let it speak again."""
        self.silent.discard(node)
        self._kubelet.look_again()

    def _is_heard(self, pod: WorkloadPod) -> bool:
        return pod.spec.node_name not in self.silent


class Bed:
    """What troubles get, and what tests look at."""

    def __init__(self, lab: Lab, *, packets: bool = True) -> None:
        self.lab = lab
        self.kubelets = StubKubelets(lab.kubelet)
        self.links = NotedLinks()
        self.underlay: NotedLinks | None = self.links if packets else None
        self.no_packets = "" if packets else "nft is not installed"
        self.ways = {name: NotedWay() for name in ZONES} if packets else {}
        self.troubles = FaultInjector(self)

    @property
    def client(self) -> Client:
        """The administrator's."""
        return self.lab.client

    @property
    def relays(self) -> Mapping[str, NotedWay]:
        """The ways to the API server."""
        return self.ways

    async def node(self, name: str) -> JsonObject:
        """Return a Node as stored."""
        return await self.client.get(RAW_NODES, name)

    async def deploy(self, replicas: int, *, daemons: bool = False) -> None:
        """Run a Deployment `web`, and a DaemonSet `log`, until all pods are ready."""
        await self.client.create(DEPLOYMENTS, _workload("web", replicas), namespace="default")
        if daemons:
            await self.client.create(DAEMON_SETS, _workload("log", 0), namespace="default")
        want = replicas + (len(ZONES) if daemons else 0)
        await self.lab.until(lambda: len(self.ready()) == want)

    def ready(self, node: str = "") -> list[str]:
        """Return the names of the ready pods, of one node or all."""
        return [
            pod.metadata.name
            for pod in self.lab.pods
            if pod.is_ready and not pod.is_terminating and node in ("", pod.spec.node_name)
        ]


def _workload(name: str, replicas: int) -> JsonObject:
    spec: JsonObject = {
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "main", "image": "web:1"}]},
        },
    }
    if replicas:
        spec["replicas"] = replicas
    return {"metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def troubled(directory: Path, *, packets: bool = True) -> AsyncIterator[Bed]:
    """Run a lab of four nodes in two zones for the time of the block."""
    async with serving(directory) as api, workloads(api) as lab:
        for name, zone in ZONES.items():
            await lab.cluster.add_node(name, zone)
        await lab.until(lambda: len(lab.controller.caches.nodes.all()) == len(ZONES))
        yield Bed(lab, packets=packets)
