"""Subsetting as live changes, with its churn counted: the test plan of KEP-2004 from T8 to T14.

Three zones of equal weight begin to be divided at 9 + 3 endpoints and end at 9 - 3. What a change
costs is how many endpoints change their group and how many slices are written; both are printed and
recorded, and bounded where the proposal promises a bound.
"""

from __future__ import annotations

import itertools

import pytest

from keepclose.controller.controller import Controller
from keepclose.kube.requests import NODES, SERVICES
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import (
    OVERLOAD_THRESHOLD_ANNOTATION,
    PADDING_ANNOTATION,
    STARTING_THRESHOLD_ANNOTATION,
    SUBSETTING_ANNOTATION,
)
from keepclose.routing.reasons import ReasonCode
from support.controllers import World
from support.crowds import do_all
from support.live.sights import DELETE, POST, PUT, Churn, RecordProperty, groups, quick
from support.live.traffic import followed

GATES = FeatureGates().with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.ENDPOINT_SLICE_SUBSETTING)
SETTINGS = quick(GATES)
PREFER = {SUBSETTING_ANNOTATION: "Prefer"}
A, B, C = ZONES = ("zone-a", "zone-b", "zone-c")


class Pods:
    """Pods by number, each of which is in one of the three zones."""

    def __init__(self, cluster: World) -> None:
        self.cluster = cluster
        self.made = 0
        self.alive: dict[int, str] = {}

    async def add(self, **counts: int) -> None:
        """Start so many pods in the zones a, b and c."""
        new = [zone for zone, count in counts.items() for _ in range(count)]
        numbers = range(self.made, self.made + len(new))
        self.made += len(new)
        self.alive.update(zip(numbers, new, strict=True))
        await do_all(
            self.cluster.add_pod(f"p{number:03}", f"n-{zone}", ip=address(number))
            for number, zone in zip(numbers, new, strict=True)
        )

    def take(self, **counts: int) -> list[int]:
        """Choose so many of the oldest pods in the zones a, b and c."""
        chosen: list[int] = []
        for zone, count in counts.items():
            chosen += [number for number, where in self.alive.items() if where == zone][:count]
        for number in chosen:
            del self.alive[number]
        return chosen

    async def remove(self, **counts: int) -> None:
        """End so many of the oldest pods at once."""
        await self.end(self.take(**counts), grace=0)

    async def end(self, numbers: list[int], *, grace: int) -> None:
        """Ask pods to end."""
        await do_all(self.cluster.end_pod(f"p{number:03}", grace=grace) for number in numbers)


def address(number: int) -> str:
    """Return the address of a pod; none is ever used again."""
    return f"10.0.{number // 200}.{number % 200 + 1}"


@pytest.fixture
async def pods(cluster: World) -> Pods:
    """Three zones with a node each, and a hand for pods."""
    for zone in ZONES:
        await cluster.add_node(f"n-{zone[-1]}", zone)
    return Pods(cluster)


async def approach(cluster: World, value: str | None) -> None:
    """Set or remove the annotation."""
    annotations = {SUBSETTING_ANNOTATION: value}
    await cluster.change(SERVICES, "web", {"metadata": {"annotations": annotations}})


async def settled(
    cluster: World, controller: Controller, churn: Churn, name: str
) -> tuple[dict[str, int], list[str], int]:
    """Return group sizes, writes and moves when the controller rests."""
    await cluster.settle(controller)
    return await churn.step(name)


async def test_growing_and_shrinking_with_padding(
    pods: Pods, record_property: RecordProperty
) -> None:
    """T8 to T11: nothing is divided below 12 endpoints, and nothing undivided above 6.

    Between the limits no endpoint changes its group; at a limit each one does, once.
    """
    cluster = pods.cluster
    await pods.add(a=3, b=3, c=3)
    await cluster.add_service(annotations=PREFER)
    churn = Churn(cluster)
    async with cluster.controlled(SETTINGS) as controller:
        assert await settled(cluster, controller, churn, "9") == ({"": 9}, [POST], 0)
        for count, zone in ((10, "a"), (11, "b")):
            await pods.add(**{zone: 1})
            found = await settled(cluster, controller, churn, f"T8, {count}")
            assert found == ({"": count}, [PUT], 0)

        await pods.add(c=1)
        sizes, writes, moved = await settled(cluster, controller, churn, "T9, 12")
        assert (sizes, moved) == ({A: 4, B: 4, C: 4}, 11)
        assert writes == [POST, POST, PUT]

        for count, zone in ((11, "a"), (10, "b"), (9, "c"), (8, "a"), (7, "b")):
            await pods.remove(**{zone: 1})
            sizes, writes, moved = await settled(cluster, controller, churn, f"T10, {count}")
            # NB: a pod that goes may be seen as one that ends first, which is another write.
            assert (set(sizes), set(writes), moved) == (set(ZONES), {PUT}, 0)
        assert sizes == {A: 2, B: 2, C: 3}

        await pods.remove(c=1)
        sizes, writes, moved = await settled(cluster, controller, churn, "T11, 6")
        assert (sizes, moved) == ({"": 6}, 6)
        assert writes in ([DELETE, DELETE, PUT], [DELETE, DELETE, PUT, PUT])

        for count in range(7, 12):
            await pods.add(**{"abc"[count % 3]: 1})
            found = await settled(cluster, controller, churn, f"again {count}")
            assert found == ({"": count}, [PUT], 0)
    record_property("churn", dict(churn.total))
    assert churn.total["moved"] == 11 + 6


async def test_the_annotation_is_followed_from_each_value_to_each_other(
    pods: Pods, record_property: RecordProperty
) -> None:
    """T12 and T13: the division is that of the new value, and everything can be taken back."""
    cluster = pods.cluster
    await pods.add(a=8, b=4, c=2)
    want = {
        None: {"": 14},
        "Random": {"": 14},
        "Require": {A: 8, B: 4, C: 2},
        "Prefer": {A: 6, B: 4, C: 4},
        "Nonsense": {"": 14},
    }
    walk = [None, "Prefer", "Require", "Prefer", "Random", "Require", None, "Require", "Random"]
    walk += ["Prefer", "Nonsense", "Prefer", None, "Random", "Nonsense"]
    await cluster.add_service()
    churn = Churn(cluster)
    async with cluster.controlled(SETTINGS) as controller:
        assert await settled(cluster, controller, churn, "nothing") == ({"": 14}, [POST], 0)
        for old, new in itertools.pairwise(walk):
            before = groups(await cluster.slices())
            await approach(cluster, new)
            sizes, writes, moved = await settled(cluster, controller, churn, f"{old} to {new}")
            after = groups(await cluster.slices())
            assert sizes == want[new], (old, new)
            assert moved == sum(before[one] != after[one] for one in before)
            if want[old] == want[new]:
                assert (writes, moved) == ([], 0)
            # Each group has one slice, so no change needs more than one write for each.
            assert len(writes) <= 4, (old, new)
    record_property("churn", dict(churn.total))


async def test_limits_of_a_service_are_its_own(pods: Pods) -> None:
    """A lower start divides sooner, and five pods on three zones are downgraded by the overload."""
    cluster = pods.cluster
    await pods.add(a=2, b=2, c=1)
    limits = {STARTING_THRESHOLD_ANNOTATION: "1", PADDING_ANNOTATION: "0"}
    await cluster.add_service(annotations={**PREFER, **limits})
    churn = Churn(cluster)
    async with cluster.controlled(SETTINGS) as controller:
        # One endpoint for a third of the traffic of five is 67 % too much, and none can be spared.
        assert (await settled(cluster, controller, churn, "5"))[0] == {"": 5}
        plan = controller.explain(NamespacedName(cluster.namespace, "web"))
        assert plan is not None
        assert plan.reasons[-1].code is ReasonCode.DOWNGRADED
        await limit(cluster, **{OVERLOAD_THRESHOLD_ANNOTATION: "0.7"})
        assert (await settled(cluster, controller, churn, "0.7"))[0] == {A: 2, B: 2, C: 1}
        await limit(cluster, **{OVERLOAD_THRESHOLD_ANNOTATION: None})
        assert (await settled(cluster, controller, churn, "0.5"))[0] == {"": 5}
        await pods.add(c=1)
        assert (await settled(cluster, controller, churn, "6"))[0] == {A: 2, B: 2, C: 2}


async def test_a_starting_threshold_that_is_none_is_announced(pods: Pods) -> None:
    """T5: the default holds, Prefer begins when that is met, and one Event names the annotation."""
    cluster = pods.cluster
    await pods.add(a=4, b=4, c=3)
    await cluster.add_service(annotations={**PREFER, STARTING_THRESHOLD_ANNOTATION: "some"})
    churn = Churn(cluster)
    field = f"metadata.annotations[{STARTING_THRESHOLD_ANNOTATION}]"
    message = f"{field}: 'some' is not a number above 0, so 3 holds"
    want = ("Warning", "StartingThresholdInvalid", message, 1)
    async with cluster.controlled(SETTINGS) as controller:
        assert (await settled(cluster, controller, churn, "11"))[0] == {"": 11}
        await pods.add(c=1)
        assert (await settled(cluster, controller, churn, "12"))[0] == {A: 4, B: 4, C: 4}
        await controller._recorder.flush()
        assert await cluster.events() == [want]


async def limit(cluster: World, **annotations: str | None) -> None:
    """Set limits of the Service, or remove them."""
    await cluster.change(SERVICES, "web", {"metadata": {"annotations": annotations}})


async def test_groups_stay_until_a_zone_is_overloaded(
    pods: Pods, record_property: RecordProperty
) -> None:
    """A zone may lack up to half of its share more; then just so many endpoints move as needed."""
    cluster = pods.cluster
    await pods.add(a=4, b=4, c=4)
    await cluster.add_service(annotations=PREFER)
    churn = Churn(cluster)
    async with cluster.controlled(SETTINGS) as controller:
        assert (await settled(cluster, controller, churn, "12"))[0] == {A: 4, B: 4, C: 4}
        for number in range(5, 10):
            await pods.add(a=1)
            found = await settled(cluster, controller, churn, f"a has {number}")
            assert found == ({A: number, B: 4, C: 4}, [PUT], 0)
        # 18 endpoints: b and c should have 6 each and have 4, which is one half too few.
        await pods.add(a=1)
        sizes, writes, moved = await settled(cluster, controller, churn, "a has 10")
        assert (sizes, moved, writes) == ({A: 6, B: 6, C: 6}, 3, [PUT, PUT, PUT])
        # Those that help out stay where they are although their zone has fewer now.
        await pods.remove(a=2)
        sizes, writes, moved = await settled(cluster, controller, churn, "a loses 2")
        assert (sizes, moved) == ({A: 4, B: 6, C: 6}, 0)
    record_property("churn", dict(churn.total))


async def test_a_lost_node_leaves_its_zone_without_a_group(
    pods: Pods, record_property: RecordProperty
) -> None:
    """Not ready, without pods, gone, back: endpoints of other zones move only where they must."""
    cluster = pods.cluster
    await pods.add(a=6, b=6, c=6)
    await cluster.add_service(annotations=PREFER)
    churn = Churn(cluster)
    async with cluster.controlled(SETTINGS) as controller:
        assert (await settled(cluster, controller, churn, "18"))[0] == {A: 6, B: 6, C: 6}
        before = groups(await cluster.slices())
        status = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        await cluster.client.patch(NODES, "n-c", status, subresource="status")
        lost = pods.take(c=6)
        for number in lost:
            await cluster.set_pod(f"p{number:03}", ip=address(number), ready=False)
        await settled(cluster, controller, churn, "n-c is not ready")
        after = groups(await cluster.slices())
        stayed = [one for one in before if before[one] != C]
        assert {one: after[one] for one in stayed} == {one: before[one] for one in stayed}
        assert C not in after.values()
        await pods.end(lost, grace=0)
        sizes, _, moved = await settled(cluster, controller, churn, "its pods are gone")
        assert (sizes, moved) == ({A: 6, B: 6}, 0)
        await cluster.remove(NODES, "n-c")
        found = await settled(cluster, controller, churn, "n-c is gone")
        assert found == ({A: 6, B: 6}, [], 0)
        await cluster.add_node("n-c", C)
        sizes, _, moved = await settled(cluster, controller, churn, "n-c is back")
        assert (sizes, moved) == ({A: 4, B: 4, C: 4}, 4)
        await pods.add(c=6)
        # Of 18 endpoints 4 would be one half too few for a zone, so those lent return.
        sizes, _, moved = await settled(cluster, controller, churn, "its pods are back")
        assert (sizes, moved) == ({A: 6, B: 6, C: 6}, 4)
    record_property("churn", dict(churn.total))


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([(8, 8, 8), (8, 8, 8)], id="the same again"),
        pytest.param([(8, 8, 8), (20, 2, 2), (8, 8, 8)], id="almost all into one zone and back"),
        pytest.param([(12, 12, 0), (0, 12, 12)], id="one zone is empty, then another"),
        pytest.param([(4, 4, 4), (2, 2, 2), (5, 5, 5)], id="below the limit and above it again"),
        pytest.param([(9, 2, 2), (2, 9, 2), (2, 2, 9)], id="the bulk moves around"),
    ],
)
async def test_an_aggressive_rolling_update(
    pods: Pods, layouts: list[tuple[int, int, int]], record_property: RecordProperty
) -> None:
    """T14: all pods are replaced at once; the end is as expected, and no zone ever goes without.

    In the end no group lacks one half of its share or more, and every endpoint is in one group.
    """
    cluster = pods.cluster
    await pods.add(**dict(zip("abc", layouts[0], strict=True)))
    service = await cluster.add_service(annotations=PREFER)
    churn = Churn(cluster)
    async with cluster.controlled(SETTINGS) as controller:
        await settled(cluster, controller, churn, f"{layouts[0]}")
        async with followed(cluster, service, GATES) as traffic:
            for layout in layouts[1:]:
                leaving = pods.take(a=99, b=99, c=99)
                await pods.add(**dict(zip("abc", layout, strict=True)))
                await pods.end(leaving, grace=3600)
                traffic.retired |= {address(number) for number in leaving}
                await pods.end(leaving, grace=0)
                sizes, writes, _ = await settled(cluster, controller, churn, f"{layout}")
                slices = await cluster.slices()
                await traffic.catch_up(slices)
                print(f"{layout}: {traffic.moved} moved on the way")  # noqa: T201 - asked for
                total = sum(layout)
                if total <= 6:
                    assert sizes == {"": total}
                else:
                    assert set(sizes) == set(ZONES)
                    # Overload is what is expected for what is there: 1/3 of all is expected.
                    assert all(total / 3 / size - 1 < 0.5 for size in sizes.values())
                assert set(groups(slices)) == {address(number) for number in pods.alive}
                assert len(slices) == len(sizes)
                # A pod comes, is asked to end and goes: three changes, each of one slice.
                changes = total + 2 * len(leaving)
                assert len(writes) <= changes + 2 * traffic.moved + len(sizes)
    assert traffic.flaws == []
    record_property("churn", {**churn.total, "moved": traffic.moved})
