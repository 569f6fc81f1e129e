"""What a measurement makes in a cluster, and how it is taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from keepclose.kube.clock import SystemClock
from keepclose.kube.requests import NAMESPACES, SERVICES
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.slo.figures import MEASUREMENT_LABEL, list_policies
from keepclose.lab.slo.setup import SloNamespace
from keepclose.model.gates import FeatureGates, Gate
from support.lab.faultbed import ZONES, Bed, troubled

POLICIES = list_policies(FeatureGates().with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY))


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    """Run a lab of four nodes."""
    async with troubled(tmp_path / "data") as found:
        yield found


def a_measurement(bed: Bed) -> SloNamespace:
    """Return what a measurement works with."""
    return SloNamespace(bed.client, clock=SystemClock(), random=Random(1))


async def pods_of(bed: Bed, slo: SloNamespace, app: str) -> dict[str, str]:
    """Return the node of each pod of a workload, by name."""
    page = await bed.client.list_all(LAB_PODS, namespace=slo.namespace, label_selector=f"app={app}")
    return {pod.metadata.name: pod.spec.node_name for pod in page.items}


def ready_of(bed: Bed, app: str, *, but: set[str]) -> list[str]:
    """Return the names of a workload's ready pods, but for some."""
    return [name for name in bed.ready() if name.startswith(app) and name not in but]


async def test_everything_is_made_and_removed(bed: Bed) -> None:
    """Pods are on all and on half of the nodes, Services have node ports, and all goes again."""
    slo = a_measurement(bed)
    services = await slo.create(POLICIES, len(ZONES))
    assert sorted((await pods_of(bed, slo, "everywhere")).values()) == ["n1", "n2", "n3", "n4"]
    assert len(await pods_of(bed, slo, "some")) == 2
    assert list(services) == [policy.title for policy in POLICIES]
    assert all(one.spec.cluster_ip and one.spec.ports[0].node_port for one in services.values())

    await slo.remove()

    left = await bed.client.list_all(NAMESPACES, label_selector=MEASUREMENT_LABEL)
    assert left.items == []
    assert (await bed.client.list_all(LAB_PODS)).items == []
    names = [one.metadata.name for one in (await bed.client.list_all(SERVICES)).items]
    assert names == []


async def test_restarts_make_all_pods_new(bed: Bed) -> None:
    """After a restart no pod is one of before, and each node has one."""
    slo = a_measurement(bed)
    await slo.create(POLICIES, len(ZONES))
    before = await pods_of(bed, slo, "everywhere")
    await slo.restart("everywhere")
    await slo.until_ready("everywhere")
    after = await pods_of(bed, slo, "everywhere")
    assert not before.keys() & after.keys()
    assert sorted(after.values()) == sorted(ZONES)
    await slo.restart("some")
    await slo.until_ready("some")


async def test_moves(bed: Bed) -> None:
    """Daemons come back where they were; other pods go elsewhere, and the node is free again."""
    slo = a_measurement(bed)
    await slo.create(POLICIES, len(ZONES))
    before = await pods_of(bed, slo, "everywhere")
    await slo.move("everywhere")
    gone = {name for name, node in before.items() if node in ("n1", "n4")}
    await bed.lab.until(lambda: len(ready_of(bed, "everywhere", but=gone)) == len(ZONES))
    after = await pods_of(bed, slo, "everywhere")
    assert before.keys() - after.keys() == gone

    before = await pods_of(bed, slo, "some")
    left = min(before.values())
    gone = {name for name, node in before.items() if node == left}
    await slo.move("some")
    await bed.lab.until(lambda: len(ready_of(bed, "some", but=gone)) == len(before))
    assert left not in (await pods_of(bed, slo, "some")).values()
    assert (await bed.node(left))["spec"]["unschedulable"] is True
    await slo.uncordon()
    assert "unschedulable" not in (await bed.node(left))["spec"]
    await slo.remove()


async def test_what_a_killed_measurement_left(bed: Bed) -> None:
    """The next one removes it before it begins."""
    first = a_measurement(bed)
    await first.create(POLICIES, len(ZONES))
    second = SloNamespace(bed.client, clock=SystemClock(), random=Random(2))
    await second.create(POLICIES, len(ZONES))
    there = (await bed.client.list_all(NAMESPACES, label_selector=MEASUREMENT_LABEL)).items
    assert [one.metadata.name for one in there] == [second.namespace]
