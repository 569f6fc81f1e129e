"""Which Services are honoured by all nodes, and what an answer of a node costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.controller.acknowledgements import AcknowledgementLedger, NodeGroup, newest_version
from keepclose.controller.controller import Controller
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import CONFIG_MAPS, NODES, SERVICES
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
from keepclose.model.meta import NamespacedName, ObjectMeta
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.conditions import Acknowledgements, NodeSample
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, serving
from support.builders import endpoint_slice, node, service
from support.controllers import World, world

WEB, API, DNS = (NamespacedName("default", name) for name in ("web", "api", "dns"))
HONORED = "TrafficDistributionHonored"


class Book:
    """A ledger, what it was told last of each node, and the Services it has looked at again."""

    def __init__(self, *nodes: str) -> None:
        self.due: list[NamespacedName] = []
        self.ledger = AcknowledgementLedger(on_due=self.due.append)
        self.honors = frozenset(HintLevel)
        """What nodes say that they go by."""
        self._told: dict[str, ConfigMap] = {}
        for name in nodes:
            self.ledger.on_node(None, node(name))

    def answer(self, name: str, version: int, *refused: NamespacedName) -> list[NamespacedName]:
        """Let a node answer; return the Services that are looked at again, sorted."""
        words = NodeAcknowledgement(name, version, dict.fromkeys(refused, "Because"), self.honors)
        return self.tell(name, render_acknowledgement(words))

    def tell(self, name: str, new: ConfigMap | None) -> list[NamespacedName]:
        """Let the object of a node come, change or go."""
        self.ledger.on_acknowledgement(self._told.get(name), new)
        if new is None:
            del self._told[name]
        else:
            self._told[name] = new
        return self.take()

    def evaluate(
        self, key: NamespacedName, version: int, *levels: HintLevel
    ) -> Acknowledgements | None:
        """Ask about a Service with hints of these levels, or for zones."""
        return self.ledger.evaluate(key, version, frozenset(levels or (HintLevel.ZONES,)))

    def counts(self, key: NamespacedName, version: int) -> tuple[int, int, int] | None:
        """Return how many nodes are ready, have answered, and use the hints."""
        acks = self.evaluate(key, version)
        return None if acks is None else (acks.nodes, acks.answered, acks.honoured)

    def take(self) -> list[NamespacedName]:
        """Return the Services that were looked at again."""
        taken, self.due[:] = sorted(self.due), []
        return taken


def test_nobody_is_asked_before_somebody_answers() -> None:
    """Without any acknowledgement there is no condition; the first brings it for all."""
    book = Book("n1", "n2")
    assert book.counts(WEB, 5) is None
    assert book.counts(API, 6) is None
    assert book.answer("n1", 9) == [API, WEB]
    assert book.counts(WEB, 5) == (2, 1, 1)
    assert book.tell("n1", None) == [API, WEB]
    assert book.counts(WEB, 5) is None


def test_only_what_the_slowest_node_has_passed_is_looked_at() -> None:
    """An answer costs the Services that it settles, and no others."""
    book = Book("n1", "n2", "n3")
    for name in ("n1", "n2", "n3"):
        book.answer(name, 1)
    for key, version in ((WEB, 10), (API, 20), (DNS, 30)):
        assert book.counts(key, version) == (3, 0, 0)
    assert book.answer("n1", 30) == []
    assert book.answer("n2", 25) == []
    assert book.answer("n3", 9) == []
    assert book.answer("n3", 20) == [API, WEB]
    assert book.counts(API, 20) == (3, 3, 3)
    assert book.answer("n3", 40) == []
    assert book.counts(DNS, 30) == (3, 2, 2)
    assert book.answer("n2", 30) == [DNS]
    assert book.ledger.pending == 0


def test_exceptions_concern_the_services_that_they_name() -> None:
    """A Service is looked at when a node begins or ceases to name it."""
    book = Book("n1", "n2")
    book.answer("n1", 9)
    book.answer("n2", 9)
    assert book.counts(WEB, 5) == (2, 2, 2)
    assert book.answer("n1", 9, WEB, API) == [WEB]
    assert book.counts(WEB, 5) == (2, 2, 1)
    assert book.answer("n1", 10, WEB) == []
    assert book.answer("n2", 10, WEB) == [WEB]
    assert book.counts(WEB, 5) == (2, 2, 0)
    assert book.answer("n1", 10) == [WEB]
    assert book.counts(WEB, 5) == (2, 2, 1)


def test_an_exception_counts_only_once_its_node_has_the_slice() -> None:
    """Whoever has not seen the newest slice has not answered for it, in either way."""
    book = Book("n1", "n2")
    book.answer("n1", 9)
    book.answer("n2", 4, WEB)
    assert book.counts(WEB, 5) == (2, 1, 1)


def test_nodes_that_leave_are_not_waited_for() -> None:
    """Services that waited for a node alone are looked at when it goes or is not ready."""
    book = Book("n1", "n2", "n3")
    book.answer("n1", 9)
    book.answer("n2", 3)
    assert book.counts(WEB, 5) == (3, 1, 1)
    book.ledger.on_node(node("n3"), None)
    assert book.take() == []
    book.ledger.on_node(node("n2"), node("n2", ready=False))
    assert book.take() == [WEB]
    assert book.counts(WEB, 5) == (1, 1, 1)


def test_nodes_that_join_take_nothing_back() -> None:
    """What was honoured is not looked at again for a new node; what waits goes on waiting."""
    book = Book("n1")
    book.answer("n1", 9)
    book.evaluate(WEB, 5)
    book.evaluate(API, 10)
    book.ledger.on_node(None, node("n2"))
    assert book.take() == []
    assert book.answer("n1", 12) == []
    assert book.answer("n2", 12) == [API]


def test_a_node_with_exceptions_concerns_them_when_it_comes_and_goes() -> None:
    """Its exceptions count exactly as long as it is ready."""
    book = Book("n1", "n2")
    book.answer("n1", 9)
    book.answer("n2", 9, WEB)
    assert book.counts(WEB, 5) == (2, 2, 1)
    book.ledger.on_node(node("n2"), node("n2", ready=False))
    assert book.take() == [WEB]
    assert book.counts(WEB, 5) == (1, 1, 1)
    book.ledger.on_node(node("n2", ready=False), node("n2"))
    assert book.take() == [WEB]
    assert book.counts(WEB, 5) == (2, 2, 1)


def test_a_heartbeat_is_no_news() -> None:
    """An update that leaves a node ready changes nothing."""
    book = Book("n1")
    book.answer("n1", 4)
    book.evaluate(WEB, 5)
    book.ledger.on_node(node("n1"), node("n1", "zone-b"))
    assert book.take() == []
    assert book.counts(WEB, 5) == (1, 0, 0)


def test_words_that_make_no_sense_are_no_answer() -> None:
    """A node whose object cannot be read is waited for."""
    book = Book("n1")
    name = ObjectMeta(name=acknowledgement_name("n1"))
    book.tell("n1", ConfigMap(metadata=name, data={"form": "2", "programmed": "soon"}))
    assert book.counts(WEB, 5) == (1, 0, 0)
    book.ledger.on_acknowledgement(None, ConfigMap(metadata=ObjectMeta(name="other")))
    assert book.take() == []


def test_services_that_are_gone_are_forgotten() -> None:
    """Nobody looks at a Service again that is gone or has no hints any more."""
    book = Book("n1")
    book.answer("n1", 1)
    book.evaluate(WEB, 5)
    book.evaluate(API, 5)
    book.ledger.on_service(service("web"), service("web"))
    book.ledger.on_service(service("web"), None)
    book.ledger.forget(API)
    assert book.ledger.pending == 0
    assert book.answer("n1", 9, WEB, API) == []


def test_waiting_costs_no_memory() -> None:
    """A node that never answers lets nothing pile up, and the last version is the one awaited."""
    book = Book("n1", "n2")
    book.answer("n1", 1)
    for version in range(2, 2000):
        book.evaluate(WEB, version)
        book.evaluate(WEB, version)
    assert (book.ledger.pending, len(book.ledger._by_version) < 100) == (1, True)
    book.answer("n1", 5000)
    assert book.answer("n2", 1998) == []
    assert book.answer("n2", 1999) == [WEB]


@pytest.mark.parametrize(
    ("versions", "want"),
    [
        pytest.param((), 0, id="no slice"),
        pytest.param(("7", "12", "9"), 12, id="as numbers, not as texts"),
        pytest.param(("7", "new"), 2**70, id="what cannot be compared is never passed"),
    ],
)
def test_the_newest_version_of_a_service(versions: tuple[str, ...], want: int) -> None:
    """The highest version of its slices is the one that nodes must have."""
    slices = []
    for version in versions:
        one = endpoint_slice()
        slices.append(type(one)(metadata=ObjectMeta(name=version, resource_version=version)))
    assert newest_version(slices) == want


def test_nodes_that_do_not_go_by_the_kind_of_hints_are_named() -> None:
    """One node without the feature is enough, and concerns the Services of that kind alone."""
    book = Book("n1", "n2")
    for name in ("n1", "n2"):
        book.answer(name, 9)
    book.evaluate(WEB, 5, HintLevel.ZONES)
    book.evaluate(API, 5, HintLevel.ZONES, HintLevel.NODES)
    book.honors = frozenset({HintLevel.ZONES})
    assert book.answer("n2", 9) == [API]
    acks = book.evaluate(API, 5, HintLevel.ZONES, HintLevel.NODES)
    assert acks is not None
    assert (acks.lacking, acks.unable) == (HintLevel.NODES, NodeSample(1, ("n2",)))
    web = book.evaluate(WEB, 5, HintLevel.ZONES)
    assert web is not None
    assert web.lacking is None
    # A second one changes the message, which can wait.
    assert book.answer("n1", 9) == []
    book.ledger.tick()
    assert book.take() == [API]
    book.honors = frozenset(HintLevel)
    assert book.answer("n1", 9) == []
    assert book.answer("n2", 9) == [API]


def test_messages_are_written_anew_at_a_bounded_rate() -> None:
    """However many Services a node concerns, each tick looks at some of them only."""
    book = Book("n1", "n2")
    for name in ("n1", "n2"):
        book.answer(name, 9)
    services = [NamespacedName("default", f"s{number:03}") for number in range(120)]
    book.honors = frozenset({HintLevel.ZONES})
    book.answer("n1", 9)
    for key in services:
        book.evaluate(key, 5, HintLevel.NODES)
    assert book.answer("n2", 9) == []
    sizes = []
    for _ in range(4):
        book.ledger.tick()
        sizes.append(len(book.take()))
    assert sizes == [50, 50, 20, 0]


def test_nodes_that_are_behind_are_named_after_a_while() -> None:
    """At first nodes have had no time to answer; later the message says which did not."""
    book = Book("n1", "n2")
    for name in ("n1", "n2"):
        book.answer(name, 4)
    book.answer("n1", 9)
    before = book.evaluate(WEB, 5)
    assert before is not None
    assert before.silent == NodeSample()
    for _ in range(6):
        assert book.take() == []
        book.ledger.tick()
    assert book.take() == [WEB]
    after = book.evaluate(WEB, 5)
    assert after is not None
    assert after.silent == NodeSample(1, ("n2",))


def test_a_node_that_joins_and_never_answers_is_told_after_a_while() -> None:
    """What was honoured is not honoured on a node that runs another proxy."""
    book = Book("n1")
    book.answer("n1", 9)
    assert book.counts(WEB, 5) == (1, 1, 1)
    book.ledger.on_node(None, node("n2"))
    for _ in range(12):
        assert book.take() == []
        book.ledger.tick()
    assert book.take() == [WEB]
    acks = book.evaluate(WEB, 5)
    assert acks is not None
    assert (acks.nodes, acks.answered, acks.silent) == (2, 1, NodeSample(1, ("n2",)))


def test_names_stay_while_their_nodes_belong_to_the_group() -> None:
    """A message keeps the names that it gave, and fills up only when one leaves."""
    group = NodeGroup()
    for name in ("n5", "n6", "n7"):
        assert group.put(name, belongs=True)
    assert group.sample == NodeSample(3, ("n5", "n6", "n7"))
    assert group.put("n1", belongs=True)
    assert not group.put("n1", belongs=True)
    assert group.sample == NodeSample(4, ("n5", "n6", "n7"))
    group.put("n6", belongs=False)
    assert group.sample == NodeSample(3, ("n5", "n7", "n1"))


NODE_NAMES = st.sampled_from(["n1", "n2", "n3"])
KEYS = st.sampled_from([WEB, API, DNS])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), NODE_NAMES, st.integers(0, 9), st.sets(KEYS)),
        st.tuples(st.just("gone"), NODE_NAMES),
        st.tuples(st.just("node"), NODE_NAMES, st.booleans()),
        st.tuples(st.just("written"), KEYS, st.integers(1, 9)),
    ),
    max_size=30,
)


@given(STEPS)
@settings(deadline=None, max_examples=200)
def test_whoever_becomes_honoured_is_looked_at(steps: list[tuple[object, ...]]) -> None:
    """Against plain counting: no Service stays pending that all nodes have answered for.

    And a Service that is not looked at again has the status it had, unless a node joined or took
    its answer back.
    """
    book = Book()
    ready: set[str] = set()
    answers: dict[str, tuple[int, set[NamespacedName]]] = {}
    versions: dict[NamespacedName, int] = {}
    shown: dict[NamespacedName, str] = {}

    def counted(key: NamespacedName) -> Acknowledgements | None:
        if not answers:
            return None
        has = [name for name in ready if answers.get(name, (0, ()))[0] >= versions[key]]
        good = [name for name in has if name not in answers or key not in answers[name][1]]
        return Acknowledgements(len(ready), len(has), len(good))

    for step in steps:
        due: list[NamespacedName] = []
        match step:
            case ("answer", str(name), int(version), set(refused)):
                due = book.answer(name, version, *refused)
                answers[name] = (version, refused)
            case ("gone", str(name)) if name in answers:
                due = book.tell(name, None)
                del answers[name]
            case ("node", str(name), bool(up)):
                was = node(name, ready=name in ready)
                book.ledger.on_node(was, node(name, ready=up))
                due = book.take()
                (ready.add if up else ready.discard)(name)
            case ("written", NamespacedName() as key, int(version)):
                versions[key] = version
                due = [key]
        for key in due:
            got = book.evaluate(key, versions[key])
            want = counted(key)
            assert (got is None) == (want is None)
            if got is not None and want is not None:
                assert got.nodes == want.nodes
                assert (got.answered, got.honoured) == (want.answered, want.honoured)
            shown[key] = _status(got)
        for key, status in shown.items():
            if status == "pending":
                assert _status(counted(key)) == "pending"
            if status == "honoured":
                assert _status(counted(key)) in ("honoured", "pending")
            if status == "partly":
                assert _status(counted(key)) in ("partly", "pending")
            if status == "absent":
                assert counted(key) is None


def _status(acks: Acknowledgements | None) -> str:
    if acks is None:
        return "absent"
    if acks.nodes == 0 or acks.answered < acks.nodes:
        return "pending"
    return "honoured" if acks.honoured == acks.nodes else "partly"


GATES = FeatureGates().with_gates(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)
SETTINGS = ControllerSettings(
    plan=PlannerSettings(gates=GATES), slice_delay_s=0.01, retry_delay_s=0.01
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Two zones of one node each with a pod on each, and a Service that stays in its zone."""
    async with serving(tmp_path) as api, world(api) as found:
        for number in range(2):
            await found.add_node(f"n{number}", f"zone-{'ab'[number]}")
            await found.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number + 1}")
        await found.add_service(trafficDistribution="PreferSameZone")
        yield found


async def acknowledge(
    cluster: World,
    controller: Controller,
    name: str,
    version: int,
    refused: Mapping[NamespacedName, str] | None = None,
    *,
    honors: frozenset[HintLevel] = frozenset(HintLevel),
) -> None:
    """Write what a node says, and wait until the controller has done what follows."""
    words = NodeAcknowledgement(name, version, dict(refused or {}), honors)
    try:
        stored = await cluster.client.patch(
            CONFIG_MAPS,
            acknowledgement_name(name),
            {"data": render_data(words)},
            namespace=ACKNOWLEDGEMENT_NAMESPACE,
        )
    except NotFound:
        body = render_acknowledgement(words)
        stored = await cluster.client.create(CONFIG_MAPS, body, namespace=ACKNOWLEDGEMENT_NAMESPACE)
    cache = controller.caches.acknowledgements
    async with asyncio.timeout(PATIENCE):
        while cache.get(stored.key) != stored:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.005)
    await cluster.settle(controller)


async def version_of(cluster: World) -> int:
    """Return the version that nodes must have passed."""
    return newest_version(await cluster.slices())


async def honored(cluster: World, name: str = "web") -> tuple[str, str] | None:
    """Return status and reason of the condition, None when there is none."""
    for one in await cluster.conditions(name):
        if one.type == HONORED:
            return one.status, one.reason
    return None


PENDING = ("Unknown", "Pending")
ALL = ("True", "AllNodesAcknowledged")
PARTLY = ("False", "PartiallyHonored")


async def test_acknowledgements_lead_to_the_condition(cluster: World) -> None:
    """From no answer at all to all nodes, to an exception, and back when the slices change."""
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        assert await honored(cluster) is None
        version = await version_of(cluster)
        await acknowledge(cluster, controller, "n0", version)
        assert await honored(cluster) == PENDING
        await acknowledge(cluster, controller, "n1", version - 1)
        assert await honored(cluster) == PENDING
        await acknowledge(cluster, controller, "n1", version)
        assert await honored(cluster) == ALL
        await acknowledge(cluster, controller, "n1", version, {WEB: "NoZone"})
        assert await honored(cluster) == PARTLY
        await acknowledge(cluster, controller, "n1", version + 1000)
        assert await honored(cluster) == ALL
        await cluster.set_pod("p0", ip="10.0.0.9")
        await cluster.settle(controller)
        assert await honored(cluster) == PENDING
        await acknowledge(cluster, controller, "n0", version + 1000)
        assert await honored(cluster) == ALL


async def test_the_condition_in_full(cluster: World) -> None:
    """Type, message and the time of the transition are exact; the time moves with the status."""
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        version = await version_of(cluster)
        await acknowledge(cluster, controller, "n0", version)
        pending = (await cluster.conditions())[2]
        await acknowledge(cluster, controller, "n1", version)
        accepted, programmed, done = await cluster.conditions()
        assert (accepted.status, programmed.status) == ("True", "True")
        assert (pending.type, pending.message) == (
            HONORED,
            "no answer for the hints as written from nodes n1",
        )
        assert (done.type, done.message) == (HONORED, "all ready nodes use the hints as written")
        assert done.last_transition_time is not None
        assert pending.last_transition_time is not None
        assert done.last_transition_time >= pending.last_transition_time


async def test_an_answer_that_changes_nothing_writes_nothing(cluster: World) -> None:
    """However often nodes answer, a Service is written when its status changes, and only then."""
    for number in range(5):
        await cluster.add_service(f"more-{number}", trafficDistribution="PreferSameZone")
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        version = max(
            [newest_version(await cluster.slices(f"more-{n}")) for n in range(5)]
            + [await version_of(cluster)]
        )
        cluster.wire.take()
        await acknowledge(cluster, controller, "n0", version)
        assert cluster.wire.take() == ["PATCH services/status"] * 6
        for step in range(1, 6):
            await acknowledge(cluster, controller, "n0", version + step)
            await acknowledge(cluster, controller, "n1", step % 2)
        assert cluster.wire.take() == []
        await acknowledge(cluster, controller, "n1", version)
        assert cluster.wire.take() == ["PATCH services/status"] * 6
        for step in range(1, 6):
            await acknowledge(cluster, controller, "n1", version + step)
        assert cluster.wire.take() == []
        await acknowledge(cluster, controller, "n1", version + 9, {WEB: "NoZone"})
        assert cluster.wire.take() == ["PATCH services/status"]
        assert (await honored(cluster), await honored(cluster, "more-0")) == (PARTLY, ALL)


async def test_a_controller_that_starts_on_answered_services_writes_nothing(
    cluster: World,
) -> None:
    """Everything that the condition says can be read from the API again."""
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        version = await version_of(cluster)
        for name in ("n0", "n1"):
            await acknowledge(cluster, controller, name, version)
        assert await honored(cluster) == ALL
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == []


async def test_a_node_that_leaves_is_not_waited_for(cluster: World) -> None:
    """The Service is honoured when the only node that did not answer is gone."""
    await cluster.add_node("n2", "zone-a")
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        version = await version_of(cluster)
        for name in ("n0", "n1"):
            await acknowledge(cluster, controller, name, version)
        assert await honored(cluster) == PENDING
        await cluster.remove(NODES, "n2")
        await cluster.settle(controller)
        assert await honored(cluster) == ALL


async def test_hints_that_go_take_the_condition_along(cluster: World) -> None:
    """Where nothing is programmed there is nothing to honour, and nobody is asked."""
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        version = await version_of(cluster)
        await acknowledge(cluster, controller, "n0", version)
        assert await honored(cluster) == PENDING
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        assert await cluster.conditions() == ()
        assert controller.services.honored.ledger.pending == 0


async def test_without_the_gate_nobody_listens(cluster: World) -> None:
    """A controller that writes no conditions does not read acknowledgements."""
    quick = ControllerSettings(slice_delay_s=0.01, retry_delay_s=0.01)
    async with cluster.controlled(quick) as controller:
        body = render_acknowledgement(NodeAcknowledgement("n0", 10**6))
        await cluster.client.create(CONFIG_MAPS, body, namespace=ACKNOWLEDGEMENT_NAMESPACE)
        await cluster.settle(controller)
        assert len(controller.caches.acknowledgements) == 0
        assert await cluster.conditions() == ()


@pytest.mark.parametrize(
    ("spec", "labels", "want"),
    [
        pytest.param({"internalTrafficPolicy": "Local"}, {}, "OverriddenByPolicy", id="policy"),
        pytest.param({"clusterIP": "None"}, {}, "Headless", id="headless"),
        pytest.param(
            {}, {"service.kubernetes.io/service-proxy-name": "other"}, "OtherProxy", id="a label"
        ),
    ],
)
async def test_what_no_proxy_leads_by_hints_is_never_honoured(
    cluster: World, spec: dict[str, Any], labels: dict[str, str], want: str
) -> None:
    """Whatever all nodes say, the condition says why hints do not govern."""
    await cluster.add_service("odd", trafficDistribution="PreferSameZone", **spec)
    await cluster.change(SERVICES, "odd", {"metadata": {"labels": labels}})
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        for name in ("n0", "n1"):
            await acknowledge(cluster, controller, name, 10**9)
        found = {one.type: one for one in await cluster.conditions("odd")}
        assert (found[HONORED].status != "True", found[HONORED].reason) == (True, want)
        plain = {one.type: one for one in await cluster.conditions("web")}
        assert plain[HONORED].status == "True"


async def test_a_node_without_the_feature_is_named(cluster: World) -> None:
    """Zone hints are honoured by a node that does not know node hints, those are not."""
    await cluster.add_service("near", trafficDistribution="PreferSameNode")
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        await acknowledge(cluster, controller, "n0", 10**9)
        await acknowledge(cluster, controller, "n1", 10**9, honors=frozenset({HintLevel.ZONES}))
        assert {one.type: one.status for one in await cluster.conditions("web")}[HONORED] == "True"
        near = {one.type: one for one in await cluster.conditions("near")}[HONORED]
        assert (near.status, near.reason) == ("False", "PartiallyHonored")
        assert near.message.endswith("off, on nodes n1")
