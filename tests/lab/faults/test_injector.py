"""Trouble for nodes on our own API server, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.kube.requests import NODES
from keepclose.lab.access import LabRefusal
from keepclose.lab.faults.injector import DrainResult, FaultResult, HealResult
from keepclose.lab.faults.node_states import NodeState
from keepclose.lab.faults.node_status import CORDON_ANNOTATION, UNREACHABLE, ZONE_ANNOTATION
from keepclose.lab.kinds import LAB_PODS
from keepclose.model.well_known import ZONE_LABEL
from keepclose.system.namespaces import NetworkError
from keepclose.testing.api_server import PATIENCE
from support.lab.faultbed import Bed, troubled


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    """Run a lab with packets."""
    async with troubled(tmp_path / "data") as found:
        yield found


@pytest.fixture
async def dry(tmp_path: Path) -> AsyncIterator[Bed]:
    """Run a lab without packets."""
    async with troubled(tmp_path / "data", packets=False) as found:
        yield found


async def states(bed: Bed) -> dict[str, str]:
    """Return the state of each node in words."""
    return {one.node: one.words for one in await bed.troubles.states()}


async def test_failing_a_zone(bed: Bed) -> None:
    """All nodes of a zone are silent and cut off, tainted, and their pods no longer ready."""
    await bed.deploy(4)
    unready = sorted([*bed.ready("n1"), *bed.ready("n2")])

    done = await bed.troubles.fail("zone-a")

    assert (done.nodes, done.changed) == (["n1", "n2"], ["n1", "n2"])
    assert sorted(done.unready) == [f"default/{name}" for name in unready]
    assert bed.kubelets.silent == {"n1", "n2"}
    assert bed.links.notes == ["cut n1", "cut n2"]
    assert {name for name, way in bed.ways.items() if not way.is_open} == {"n1", "n2"}
    node = await bed.node("n1")
    (condition,) = node["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"], condition["message"]) == (
        "Ready",
        "Unknown",
        "NodeStatusUnknown",
        "Kubelet stopped posting node status.",
    )
    assert [(one["key"], one["effect"]) for one in node["spec"]["taints"]] == [
        (UNREACHABLE, "NoSchedule"),
        (UNREACHABLE, "NoExecute"),
    ]
    await bed.lab.until(lambda: len(bed.ready()) == 2)
    assert not bed.ready("n1")
    assert len(bed.lab.pods) == 4
    assert await states(bed) == {"n1": "failed", "n2": "failed", "n3": "ok", "n4": "ok"}


async def test_failing_twice_and_healing_twice(bed: Bed) -> None:
    """A second time changes nothing, and says so."""
    await bed.deploy(4)
    await bed.troubles.fail("n1")
    before = await bed.node("n1")
    assert await bed.troubles.fail("n1") == FaultResult(["n1"], [], [])
    assert await bed.node("n1") == before
    assert (await bed.troubles.fail("zone-a")).changed == ["n2"]

    assert (await bed.troubles.heal("zone-a")).healed == {"n1": ["fail"], "n2": ["fail"]}

    assert (await bed.troubles.heal("zone-a")).healed == {}
    assert bed.links.notes == ["cut n1", "cut n2", "restore n1", "restore n2"]
    await bed.lab.until(lambda: len(bed.ready()) == 4)
    node = await bed.node("n1")
    assert "taints" not in node["spec"]
    (condition,) = node["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("True", "KubeletReady")
    assert set((await states(bed)).values()) == {"ok"}


async def test_healing_waits_for_proxies(bed: Bed) -> None:
    """Healing ends when nodes have their connections to the API server again, and tells of it."""
    await bed.troubles.fail("zone-a")
    bed.ways["n2"].stays_away = True
    told: list[list[str]] = []

    def hear(nodes: list[str]) -> None:
        told.append(nodes)
        bed.ways["n2"].come_back()

    done = await bed.troubles.heal(on_wait=hear)
    assert done == HealResult({"n1": ["fail"], "n2": ["fail"]}, [])
    assert told == [["n2"]]
    assert bed.ways["n2"].connections == 2


async def test_healing_keeps_other_taints(bed: Bed) -> None:
    """Taints that the lab did not make stay through failure and recovery."""
    mine = {"key": "example.dev/mine", "effect": "NoSchedule"}
    await bed.client.patch(NODES, "n1", {"spec": {"taints": [mine]}})
    await bed.troubles.fail("n1")
    assert len((await bed.node("n1"))["spec"]["taints"]) == 3
    await bed.troubles.heal()
    assert (await bed.node("n1"))["spec"]["taints"] == [mine]


async def test_healing_what_an_earlier_run_left(bed: Bed) -> None:
    """Marks of a lab that ended meanwhile are taken away as well."""
    await bed.troubles.fail("n1")
    other = Bed(bed.lab)
    assert (await states(other))["n1"] == "not ready"
    assert (await other.troubles.heal()).healed == {"n1": ["fail"]}
    assert other.links.notes == []
    assert (await states(other))["n1"] == "ok"


async def test_partition(bed: Bed) -> None:
    """A node that is cut off keeps its looks until the cluster notices."""
    await bed.deploy(4)
    before = await bed.node("n1")

    assert await bed.troubles.partition("n1") == FaultResult(["n1"], ["n1"], [], is_noticed=False)

    assert await bed.node("n1") == before
    assert bed.links.cut_off == {"n1"}
    assert not bed.ways["n1"].is_open
    assert (await states(bed))["n1"] == "cut off, not noticed"

    noticed = await bed.troubles.partition("n1", notice=True)
    assert (noticed.changed, len(noticed.unready), noticed.is_noticed) == ([], 1, True)
    assert (await states(bed))["n1"] == "cut off, noticed"
    assert await bed.troubles.partition("n1") == FaultResult(["n1"], [], [])
    assert (await bed.troubles.heal("n1")).healed == {"n1": ["partition"]}
    await bed.lab.until(lambda: len(bed.ready()) == 4)


async def test_failing_a_partitioned_node(bed: Bed) -> None:
    """What is cut off already is not cut again, and healed once."""
    await bed.troubles.partition("n1")
    assert (await bed.troubles.fail("n1")).changed == ["n1"]
    assert bed.links.notes == ["cut n1"]
    assert (await bed.troubles.partition("n1")).changed == []
    assert (await states(bed))["n1"] == "failed"
    assert (await bed.troubles.heal()).healed == {"n1": ["fail"]}


async def test_healing_a_node_that_was_deleted(bed: Bed) -> None:
    """Link, kubelet and way to the API come back also where no Node is left to be healed."""
    await bed.troubles.fail("zone-a")
    await bed.troubles.partition("n3")
    for name in ("n1", "n2", "n3"):
        await bed.client.delete(NODES, name)

    assert (await bed.troubles.heal("n1")).healed == {"n1": ["fail"]}

    assert bed.links.cut_off == {"n2", "n3"}
    assert (await bed.troubles.heal("n4")).healed == {}
    assert (await bed.troubles.heal()).healed == {"n2": ["fail"], "n3": ["partition"]}
    assert bed.links.cut_off == bed.kubelets.silent == set()
    assert all(way.is_open for way in bed.ways.values())
    assert (await bed.troubles.heal()).healed == {}


async def test_a_cut_that_is_refused(bed: Bed) -> None:
    """A node whose link cannot be cut stays as it was, and can fail later."""
    bed.links.refusal = "ip: no such link"
    for work in (bed.troubles.fail("n1"), bed.troubles.partition("n2")):
        with pytest.raises(NetworkError, match="ip: no such link"):
            await work
    assert set((await states(bed)).values()) == {"ok"}
    assert bed.kubelets.silent == set()
    assert all(way.is_open for way in bed.ways.values())
    bed.links.refusal = ""
    assert (await bed.troubles.fail("n1")).changed == ["n1"]
    assert (await bed.troubles.partition("n2")).changed == ["n2"]
    assert (await bed.troubles.heal()).healed == {"n1": ["fail"], "n2": ["partition"]}


@pytest.mark.parametrize("times", [1, 2], ids=["cancelled", "cancelled again"])
async def test_a_cut_is_finished_when_nobody_waits_for_it(bed: Bed, times: int) -> None:
    """Whoever goes away in the middle leaves a node that is cut off wholly, and heals wholly."""
    bed.links.may_cut.clear()
    asking = asyncio.create_task(bed.troubles.partition("n1"))
    await asyncio.to_thread(bed.links.is_asked.wait, PATIENCE)
    for _ in range(times):
        asking.cancel()
        await asyncio.sleep(0)
    healing = asyncio.create_task(bed.troubles.heal("n1"))
    await asyncio.sleep(0.05)
    bed.links.may_cut.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    # NB: it had to wait for its turn until the cut was whole.
    assert (await healing).healed == {"n1": ["partition"]}
    assert bed.links.notes == ["cut n1", "restore n1"]
    assert bed.kubelets.silent == set()
    assert bed.ways["n1"].is_open


async def test_a_mend_is_finished_when_nobody_waits_for_it(bed: Bed) -> None:
    """A mend whose waiter was cancelled cannot undo a cut that is made afterwards."""
    await bed.troubles.partition("n1")
    bed.links.is_asked.clear()
    bed.links.may_mend.clear()
    healing = asyncio.create_task(bed.troubles.heal("n1"))
    await asyncio.to_thread(bed.links.is_asked.wait, PATIENCE)
    healing.cancel()
    failing = asyncio.create_task(bed.troubles.fail("n1"))
    await asyncio.sleep(0.05)
    bed.links.may_mend.set()
    with pytest.raises(asyncio.CancelledError):
        await healing
    await failing
    assert bed.links.notes[:2] == ["cut n1", "restore n1"]
    assert bed.kubelets.silent == bed.links.cut_off


async def test_cordon(bed: Bed) -> None:
    """A cordoned node takes no pods until it is uncordoned or healed."""
    assert await bed.troubles.cordon("n1") is True
    assert await bed.troubles.cordon("n1") is False
    await bed.deploy(3)
    assert bed.ready("n1") == []
    assert (await states(bed))["n1"] == "cordoned"
    assert await bed.troubles.uncordon("n1") is True
    assert await bed.troubles.uncordon("n1") is False
    node = await bed.node("n1")
    assert "unschedulable" not in node["spec"]
    assert CORDON_ANNOTATION not in node["metadata"].get("annotations", {})
    await bed.troubles.cordon("n1")
    assert (await bed.troubles.heal("n1")).healed == {"n1": ["cordon"]}
    assert (await states(bed))["n1"] == "ok"


async def test_cordons_of_others(bed: Bed) -> None:
    """What kubectl cordoned is not healed, but can be uncordoned."""
    await bed.client.patch(NODES, "n1", {"spec": {"unschedulable": True}})
    assert await bed.troubles.cordon("n1") is False
    assert (await bed.troubles.heal()).healed == {}
    assert (await states(bed))["n1"] == "cordoned"
    assert await bed.troubles.uncordon("n1") is True


async def test_relabel(bed: Bed) -> None:
    """A node moves to another zone and to none, and heals to its first."""
    assert await bed.troubles.relabel("n1", "zone-c") == ("zone-a", True)
    assert await bed.troubles.relabel("n1", "zone-c") == ("zone-c", False)
    assert await bed.troubles.relabel("n1", "") == ("zone-c", True)
    meta = (await bed.node("n1"))["metadata"]
    assert ZONE_LABEL not in meta.get("labels", {})
    assert meta["annotations"][ZONE_ANNOTATION] == "zone-a"
    assert (await states(bed))["n1"] == "was in zone-a"

    assert (await bed.troubles.heal("zone-a")).healed == {"n1": ["relabel"]}

    meta = (await bed.node("n1"))["metadata"]
    assert meta["labels"][ZONE_LABEL] == "zone-a"
    assert ZONE_ANNOTATION not in meta.get("annotations", {})


async def test_moving_back_by_hand(bed: Bed) -> None:
    """A node that is relabelled to its first zone is as it was."""
    await bed.troubles.relabel("n1", "zone-b")
    await bed.troubles.relabel("n1", "zone-a")
    assert ZONE_ANNOTATION not in (await bed.node("n1"))["metadata"].get("annotations", {})
    await bed.troubles.relabel("n1", "zone-b")
    await bed.lab.cluster.label_node("n1", "zone-a")
    assert (await bed.troubles.heal()).healed == {"n1": ["relabel"]}
    assert (await bed.troubles.heal()).healed == {}


async def test_drain(bed: Bed) -> None:
    """Pods leave a drained node and come up elsewhere; those of DaemonSets stay."""
    await bed.deploy(4, daemons=True)
    web = [name for name in bed.ready("n1") if name.startswith("web")]
    log = [name for name in bed.ready("n1") if name.startswith("log")]
    assert len(web) == 1
    gone: list[str] = []

    done = await bed.troubles.drain("n1", on_gone=gone.append)

    assert done == DrainResult("n1", [f"default/{web[0]}"], [f"default/{log[0]}"])
    assert gone == done.evicted
    await bed.lab.until(lambda: len(bed.ready()) == 8)
    assert bed.ready("n1") == log
    assert await bed.troubles.drain("n1") == DrainResult("n1", [], done.kept)
    assert (await states(bed))["n1"] == "cordoned"


async def test_draining_pods_of_nobody(bed: Bed) -> None:
    """A pod that nothing would replace is only deleted by force."""
    await bed.lab.cluster.add_pod("alone", "n1", ip="10.64.9.9")
    with pytest.raises(LabRefusal) as refusal:
        await bed.troubles.drain("n1")
    assert refusal.value.code == 1
    assert str(refusal.value) == (
        "n1 is cordoned but not drained: cannot delete Pods that declare no controller "
        "(use --force to override): default/alone"
    )
    assert (await states(bed))["n1"] == "cordoned"
    assert (await bed.troubles.drain("n1", force=True)).evicted == ["default/alone"]
    assert (await bed.client.list_all(LAB_PODS)).items == []


async def test_draining_a_dead_node(bed: Bed) -> None:
    """Nothing ends on a failed node, and the refusal says what would help."""
    await bed.deploy(4)
    await bed.troubles.fail("n1")
    with pytest.raises(LabRefusal) as refusal:
        await bed.troubles.drain("n1", timeout_s=0.2)
    assert refusal.value.code == 1
    text = str(refusal.value)
    assert text.startswith("n1: 1 of 1 pods are still there after 0.2 s: default/web-")
    assert text.endswith("failed or partitioned node: keepclose lab heal n1")
    assert (await bed.troubles.heal()).healed == {"n1": ["fail", "cordon"]}
    await bed.lab.until(lambda: len(bed.ready()) == 4 and len(bed.lab.pods) == 4)


async def test_drain_waits_for_the_grace(bed: Bed) -> None:
    """A pod that still runs after the time is named."""
    await bed.deploy(4)
    bed.lab.kubelet.lets_end = lambda _pod: False
    with pytest.raises(LabRefusal, match=r"1 of 1 pods .* they run until their grace period ends"):
        await bed.troubles.drain("n1", timeout_s=0.1)


async def test_without_packets(dry: Bed) -> None:
    """Nodes fail in the API all the same; a partition is refused with the reason."""
    await dry.deploy(4)
    assert len((await dry.troubles.fail("n1")).unready) == 1
    with pytest.raises(LabRefusal) as refusal:
        await dry.troubles.partition("n2")
    assert refusal.value.code == 5
    assert str(refusal.value) == (
        "a partition needs packets, and there are none here: nft is not installed"
    )
    assert (await dry.troubles.heal()).healed == {"n1": ["fail"]}


async def test_unknown_names(bed: Bed) -> None:
    """Whoever names what is not there is told what is, with code 3."""
    with pytest.raises(LabRefusal) as refusal:
        await bed.troubles.fail("zone-x")
    assert refusal.value.code == 3
    assert str(refusal.value) == (
        "no node or zone is called 'zone-x'; there are zones zone-a, zone-b and nodes n1, n2, n3, "
        "n4; did you mean zone-b?"
    )
    for work in (
        bed.troubles.drain("zone-a"),
        bed.troubles.cordon("zone-a"),
        bed.troubles.relabel("zone-a", "zone-b"),
        bed.troubles.partition("zone-a"),
    ):
        with pytest.raises(LabRefusal, match="no node is called 'zone-a'; there are nodes n1"):
            await work


async def test_states(bed: Bed) -> None:
    """Nodes are listed by zone and name, with their running and ready pods."""
    await bed.deploy(4)
    await bed.troubles.fail("n3")
    first, *_, last = await bed.troubles.states()
    assert first == NodeState("n1", "zone-a", "zone-a", "ok", False, False, 1, 1)
    assert last == NodeState("n4", "zone-b", "zone-b", "ok", False, False, 1, 1)
    failed = (await bed.troubles.states())[2]
    assert failed == NodeState("n3", "zone-b", "zone-b", "failed", True, False, 1, 0)
