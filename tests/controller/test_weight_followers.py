"""Which zones follow weights, and that the controller writes the weights of the limit for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.controller.acknowledgements import ANSWER_TICKS, AcknowledgementLedger
from keepclose.controller.controller import Controller
from keepclose.controller.weight_followers import WeightFollowers
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import CONFIG_MAPS, ENDPOINT_SLICES, SERVICES
from keepclose.model.acknowledgements import (
    ACKNOWLEDGEMENT_NAMESPACE,
    HintLevel,
    NodeAcknowledgement,
    acknowledgement_name,
    render_acknowledgement,
    render_data,
)
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import ZONE_WEIGHTS_ANNOTATION
from keepclose.model.workload import Node
from keepclose.model.zone_weights import ZoneWeights, read_zone_weights
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.balanced import BALANCED
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, serving
from support.builders import node
from support.controllers import World
from support.controllers import world as world_of

GATES = FeatureGates().with_gates(
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS, Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS
)
SETTINGS = ControllerSettings(
    PlannerSettings(gates=GATES, heuristics={"keepclose.dev/Balanced": BALANCED}),
    slice_delay_s=0.01,
    retry_delay_s=0.01,
)
FOLLOWS = frozenset(HintLevel)
HINTS = frozenset({HintLevel.ZONES, HintLevel.NODES})


def answer_of(name: str, honors: frozenset[HintLevel], *, version: int = 7) -> ConfigMap:
    """Return what a node publishes."""
    return render_acknowledgement(NodeAcknowledgement(name, version, honors=honors))


class Nodes:
    """The ledger and the followers, and what was published about them."""

    def __init__(self, *nodes: tuple[str, str]) -> None:
        self.published: list[frozenset[str]] = []
        self.ledger = AcknowledgementLedger(on_due=lambda _: None)
        self.followers = WeightFollowers(self.ledger, on_change=self.published.append)
        for name, zone in nodes:
            self.change(None, node(name, zone))

    def change(self, old: Node | None, new: Node | None) -> None:
        """Let a node join, change or leave."""
        self.ledger.on_node(old, new)
        self.followers.on_node(old, new)

    def answer(
        self, name: str, honors: frozenset[HintLevel] = FOLLOWS, *, version: int = 7
    ) -> None:
        """Let a node answer."""
        self.ledger.on_acknowledgement(None, answer_of(name, honors, version=version))

    def tick(self, count: int = 1) -> None:
        """Let time pass."""
        for _ in range(count):
            self.ledger.tick()
            self.followers.tick()


def test_a_zone_follows_weights_when_all_its_nodes_do() -> None:
    """The last node of a zone completes it; each change is published once."""
    nodes = Nodes(("n1", "a"), ("n2", "a"), ("n3", "b"))
    assert nodes.followers.zones == set()
    nodes.answer("n1")
    nodes.answer("n3", HINTS)
    assert nodes.published == []
    nodes.answer("n2")
    nodes.answer("n2")
    assert nodes.published == [{"a"}]
    nodes.answer("n3")
    nodes.answer("n1", HINTS)
    assert nodes.published == [{"a"}, {"a", "b"}, {"b"}]


def test_an_answer_that_goes_or_cannot_be_read_counts_no_more() -> None:
    """A deleted or damaged acknowledgement makes the zone a mixed one."""
    nodes = Nodes(("n1", "a"))
    nodes.answer("n1")
    nodes.ledger.on_acknowledgement(answer_of("n1", FOLLOWS), None)
    nodes.answer("n1")
    nodes.ledger.on_acknowledgement(
        answer_of("n1", FOLLOWS), render_acknowledgement(NodeAcknowledgement("n1"))
    )
    assert nodes.published == [{"a"}, set(), {"a"}, set()]


def test_nodes_that_are_not_ready_do_not_count() -> None:
    """A node counts while it is ready, in the zone of its label."""
    nodes = Nodes(("n1", "a"), ("n2", "a"))
    nodes.answer("n1")
    nodes.change(node("n2", "a"), node("n2", "a", ready=False))
    assert nodes.followers.zones == {"a"}
    nodes.change(node("n2", "a", ready=False), node("n2", "b"))
    assert nodes.followers.zones == {"a"}
    nodes.answer("n2")
    assert nodes.followers.zones == {"a", "b"}
    nodes.change(node("n2", "b"), None)
    assert nodes.followers.zones == {"a"}
    nodes.change(node("n1", "a"), node("n1", None))
    assert nodes.followers.zones == set()


def test_a_node_that_joins_has_time_to_answer() -> None:
    """A new node does not end the state of its zone at once, only if it stays silent."""
    nodes = Nodes(("n1", "a"))
    nodes.answer("n1")
    nodes.tick()
    nodes.change(None, node("n2", "a"))
    nodes.tick(ANSWER_TICKS - 1)
    assert nodes.followers.zones == {"a"}
    nodes.tick()
    assert nodes.followers.zones == set()
    nodes.answer("n2")
    nodes.tick(ANSWER_TICKS)
    nodes.change(None, node("n3", "a"))
    assert nodes.followers.zones == {"a"}
    # It says that it follows hints alone: that needs no time.
    nodes.answer("n3", HINTS)
    assert nodes.followers.zones == set()


def test_a_node_that_returns_has_no_time_to_answer() -> None:
    """A node without an answer that was ready before makes its zone a mixed one at once."""
    nodes = Nodes(("n1", "a"))
    nodes.answer("n1")
    nodes.tick()
    nodes.change(None, node("n2", "a", ready=False))
    nodes.change(node("n2", "a", ready=False), node("n2", "a"))
    assert nodes.followers.zones == {"a"}
    nodes.change(node("n2", "a"), node("n2", "a", ready=False))
    assert nodes.followers.zones == {"a"}
    nodes.change(node("n2", "a", ready=False), node("n2", "a"))
    assert nodes.followers.zones == set()
    # Another node of its name is a new one.
    nodes.change(node("n2", "a"), node("n2", "a", ready=False))
    nodes.change(node("n2", "a", ready=False), None)
    nodes.tick(ANSWER_TICKS)
    nodes.change(None, node("n2", "a"))
    assert nodes.followers.zones == {"a"}


def test_an_acknowledgement_that_stays_behind_counts_no_more() -> None:
    """The ConfigMap of a proxy that is gone keeps no zone from being a mixed one."""
    nodes = Nodes(("n1", "a"), ("n2", "b"))
    nodes.answer("n1")
    nodes.answer("n2")
    nodes.tick(3 * ANSWER_TICKS)
    assert nodes.followers.zones == {"a", "b"}
    web, levels = NamespacedName("default", "web"), frozenset({HintLevel.ZONES})
    nodes.ledger.evaluate(web, 9, levels)
    nodes.answer("n1", version=9)
    nodes.tick(ANSWER_TICKS)
    assert nodes.followers.zones == {"a", "b"}
    nodes.tick()
    assert nodes.followers.zones == {"a"}
    # It stays a mixed one while its node comes and goes, until its proxy answers.
    nodes.change(node("n2", "b"), node("n2", "b", ready=False))
    nodes.change(node("n2", "b", ready=False), node("n2", "b"))
    nodes.tick(ANSWER_TICKS)
    assert nodes.followers.zones == {"a"}
    nodes.answer("n2", version=9)
    nodes.tick(ANSWER_TICKS)
    assert nodes.followers.zones == {"a", "b"}


def test_a_zone_that_comes_and_goes_is_published_seldom() -> None:
    """It is dropped at once, and counts again when it has followed for some ticks on end."""
    nodes = Nodes(("n1", "a"))
    nodes.answer("n1")
    nodes.tick()
    for _ in range(5):
        nodes.answer("n1", HINTS)
        nodes.tick(ANSWER_TICKS // 2)
        nodes.answer("n1")
        nodes.tick(ANSWER_TICKS - 1)
    assert nodes.published == [{"a"}, set()]
    nodes.tick()
    assert nodes.published == [{"a"}, set(), {"a"}]


def test_a_slow_node_that_still_answers_is_counted() -> None:
    """A node that is never up to date, because slices change all the time, follows weights."""
    nodes = Nodes(("n1", "a"))
    nodes.answer("n1")
    web, levels = NamespacedName("default", "web"), frozenset({HintLevel.WEIGHTS})
    for version in range(10, 14):
        nodes.ledger.evaluate(web, version, levels)
        nodes.tick(ANSWER_TICKS)
        nodes.answer("n1", version=version - 1)
    assert nodes.published == [{"a"}]


def test_other_objects_say_nothing() -> None:
    """A ConfigMap of another name is no acknowledgement."""
    nodes = Nodes(("n1", "a"))
    nodes.ledger.on_acknowledgement(None, ConfigMap())
    nodes.ledger.on_acknowledgement(None, None)
    nodes.change(None, None)
    assert nodes.published == []


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Two zones of a node each, with one and three pods of a Service that asks for weights."""
    async with serving(tmp_path, gates=GATES) as api, world_of(api) as world:
        await world.add_node("n0", "zone-a")
        await world.add_node("n1", "zone-b")
        for number in range(4):
            await world.add_pod(f"p{number}", f"n{number > 0:d}", ip=f"10.0.0.{number + 1}")
        await world.add_service()
        annotations = {
            "keepclose.dev/traffic-distribution": "keepclose.dev/Balanced",
            "keepclose.dev/weights": "Enabled",
        }
        await world.change(SERVICES, "web", {"metadata": {"annotations": annotations}})
        yield world


async def acknowledge(
    cluster: World, controller: Controller, name: str, honors: frozenset[HintLevel]
) -> None:
    """Write the answer of a node, and wait until the controller has done what follows."""
    answer = NodeAcknowledgement(name, 10**9, honors=honors)
    where, namespace = acknowledgement_name(name), ACKNOWLEDGEMENT_NAMESPACE
    try:
        data = {"data": render_data(answer)}
        stored = await cluster.client.patch(CONFIG_MAPS, where, data, namespace=namespace)
    except NotFound:
        body = render_acknowledgement(answer)
        stored = await cluster.client.create(CONFIG_MAPS, body, namespace=namespace)
    cache = controller.caches.acknowledgements
    async with asyncio.timeout(PATIENCE):
        while cache.get(stored.key) != stored:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.005)
    await cluster.settle(controller)


async def written(cluster: World) -> ZoneWeights | None:
    """Return the weights in the stored slices."""
    return read_zone_weights(await cluster.slices())


async def test_weights_follow_what_nodes_acknowledge(cluster: World) -> None:
    """Full weights are written while all nodes follow them, blended ones in a mixed cluster."""
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        mixed = await written(cluster)
        assert mixed is not None
        assert mixed.hints > 0
        await acknowledge(cluster, controller, "n0", FOLLOWS)
        await acknowledge(cluster, controller, "n1", FOLLOWS)
        full = await written(cluster)
        assert full is not None
        assert full.hints == 0
        messages = {each.type: each.message for each in await cluster.conditions()}
        assert ", with weights beside the hints" in messages["TrafficDistributionProgrammed"]
        want = "all ready nodes have programmed the hints and weights as written"
        assert messages["TrafficDistributionHonored"] == want
        # Half of the traffic is zone-a's, with one of four endpoints: half of it goes to zone-b.
        assert full.weights == {
            "zone-a": {"zone-a": 10000, "zone-b": 3333},
            "zone-b": {"zone-b": 10000},
        }
        await acknowledge(cluster, controller, "n1", HINTS)
        partly = await written(cluster)
        assert partly is not None
        assert 0 < partly.hints < mixed.hints
        await acknowledge(cluster, controller, "n0", HINTS)
        assert await written(cluster) == mixed
        patch = {"metadata": {"annotations": {"keepclose.dev/weights": None}}}
        await cluster.change(SERVICES, "web", patch)
        await cluster.settle(controller)
        assert await written(cluster) is None


@pytest.mark.parametrize("text", [None, "garbage"])
async def test_weights_that_a_person_changes_come_back(cluster: World, text: str | None) -> None:
    """The annotation of a slice is restored at once, as endpoints are."""
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        before = await written(cluster)
        assert before is not None
        for each in await cluster.slices():
            patch = {"metadata": {"annotations": {ZONE_WEIGHTS_ANNOTATION: text}}}
            await cluster.change(ENDPOINT_SLICES, each.metadata.name, patch)
        await cluster.settle(controller)
        assert await written(cluster) == before
