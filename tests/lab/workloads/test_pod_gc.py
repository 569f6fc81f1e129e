"""Pods of nodes that are gone: when they are deleted, by the clock alone."""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.transport.retries import Retries
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.workloads.pods import QUARANTINE_S, PodCollector
from keepclose.model.meta import NamespacedName
from keepclose.model.workloads.pods import WorkloadPodStatus
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from support.lab.labobjects import a_node, a_pod

N0 = NamespacedName("", "n0")


async def test_a_node_that_goes_again_gives_its_pods_their_time_again() -> None:
    """Each absence of a node counts from its own beginning."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    caches = LabCaches()
    client = Client(cluster, clock=clock, retries=Retries(max_elapsed=0.0))
    collector = PodCollector(client, caches, clock=clock)
    # One that has ended is deleted without a report.
    first = replace(a_pod("first", "n0"), status=WorkloadPodStatus(phase="Failed"))
    cluster.put(LAB_PODS, first)
    caches.pods.put(first)
    assert await collector.sync(N0) == QUARANTINE_S
    await clock.advance(QUARANTINE_S)
    assert await collector.sync(N0) is None
    deleted = [request.path for request in cluster.requests if request.method == "DELETE"]
    assert deleted == ["/api/v1/namespaces/default/pods/first"]
    caches.pods.delete(first.key)
    caches.nodes.put(a_node("n0"))
    caches.pods.put(a_pod("second", "n0"))
    await clock.advance(3600.0)
    caches.nodes.delete(N0)
    assert await collector.sync(N0) == QUARANTINE_S
