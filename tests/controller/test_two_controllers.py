"""Two controllers at once: without a leader they disturb nobody, with one only it writes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from keepclose.controller.controller import Controller
from keepclose.controller.process import (
    LEASE_NAME,
    LEASE_NAMESPACE,
    SEEK_PERIOD_S,
    serve_controller,
)
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.leader_election import LeaderElector, LeadershipLost
from keepclose.kube.requests import ENDPOINT_SLICES, PODS
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest
from keepclose.model.endpointslice.types import EndpointHints
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.reconcile.settings import CONTROLLER_COMPONENT, ControllerSettings
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, serving
from keepclose.testing.fake_cluster_state import Change
from support.builders import node, pod, service
from support.controllerprocess import controller_process
from support.controllers import CLOCK, World, world
from support.faultycluster import Desk, Fact, desk, facts

APPS = ("web", "api", "db")
SETTINGS = ControllerSettings(plan=PlannerSettings(max_endpoints=4))
LAG_S = 0.08
# The lease runs out from when its last renewal was seen, and that is seen when somebody looks.
LATEST_S = 15.0 + 2 * 2.2 * SEEK_PERIOD_S


class Witness:
    """Sees every write of a slice in the order of the server."""

    def __init__(self, cluster: Desk) -> None:
        self._cluster = cluster
        self._served: dict[str, set[str]] = {}
        self.retired: set[str] = set()
        """Addresses that may go."""
        self.lost: list[tuple[int, str, list[str]]] = []
        self.events = 0
        self.doubled = 0
        """After how many events some address stood in two slices."""
        cluster.server.store.listeners.append(self._see)

    def _see(self, change: Change) -> None:
        if change.plural != ENDPOINT_SLICES.plural:
            return
        self.events += 1
        for app in APPS:
            found = Counter(
                address
                for piece in self._cluster.slices(app)
                for one in piece.endpoints
                for address in one.addresses
            )
            lost = self._served.get(app, set()) - set(found) - self.retired
            if lost:
                self.lost.append((change.version, app, sorted(lost)))
            self.doubled += any(count > 1 for count in found.values())
            self._served[app] = set(found)


class Hand:
    """Changes pods, nodes and Services at random, and minds no controller."""

    def __init__(self, cluster: Desk, witness: Witness, random: Random) -> None:
        self._cluster = cluster
        self._witness = witness
        self._random = random
        self._made = 0
        self._pods: dict[str, tuple[str, str, str]] = {}

    def change(self) -> None:
        """Make one change."""
        dice = self._random.random()
        if dice < 0.4 or len(self._pods) < 15:
            self._made += 1
            address = f"10.0.{self._made // 250}.{self._made % 250 + 1}"
            app = self._random.choice(APPS)
            self._put(f"p{self._made}", (app, f"n{self._random.randrange(6)}", address))
        elif dice < 0.6:
            name = self._random.choice(sorted(self._pods))
            self._put(name, self._pods[name], ready=self._random.random() < 0.6)
        elif dice < 0.9:
            name = self._random.choice(sorted(self._pods))
            app, where, address = self._pods.pop(name)
            self._witness.retired.add(address)
            self._cluster.delete(pod(name, where, ip=address, labels={"app": app}))
        elif dice < 0.95:
            zone = self._random.choice(("zone-a", "zone-b", "zone-c"))
            self._cluster.put(node(f"n{self._random.randrange(6)}", zone))
        else:
            app = self._random.choice(APPS)
            wish = self._random.choice((None, "PreferSameZone", "PreferSameNode"))
            notes = {TOPOLOGY_MODE_ANNOTATION: "Auto"} if self._random.random() < 0.3 else {}
            self._cluster.put(
                service(app, selector={"app": app}, annotations=notes, traffic_distribution=wish)
            )

    def _put(self, name: str, facts: tuple[str, str, str], *, ready: bool = True) -> None:
        self._pods[name] = facts
        app, where, address = facts
        self._cluster.put(pod(name, where, ip=address, labels={"app": app}, ready=ready))


def populate(cluster: Desk) -> None:
    """Add three zones of two nodes and the Services."""
    cluster.put(*(node(f"n{number}", f"zone-{'abc'[number % 3]}") for number in range(6)))
    cluster.put(*(service(app, selector={"app": app}) for app in APPS))


def check(cluster: Desk) -> None:
    """Fail unless every endpoint stands in one slice, with all that a plan from nothing says.

    The mode Auto leaves hints that are good enough as they are, so there they may differ.
    """
    for app in APPS:
        found, want = facts(cluster.slices(app)), cluster.want(app, SETTINGS)
        if cluster.service(app).metadata.annotations:
            found, want = unhinted(found), unhinted(want)
        assert found == want


def unhinted(found: list[Fact]) -> list[Fact]:
    """Return the facts without hints."""
    return [tuple(part for part in one if not isinstance(part, EndpointHints)) for one in found]


@pytest.mark.parametrize("seed", range(4))
async def test_two_that_work_at_once_lose_nothing_agree_and_rest(seed: int) -> None:
    """No endpoint is lost at any event; when changes stop both agree, and then nobody writes."""
    random = Random(seed)
    async with desk() as cluster:
        populate(cluster)
        witness = Witness(cluster)
        hand = Hand(cluster, witness, random)
        lag = partial(random.uniform, 0.0, LAG_S)
        async with (
            cluster.controlled(SETTINGS, lag=lag) as one,
            cluster.controlled(SETTINGS, lag=lag) as other,
        ):
            for _ in range(200):
                hand.change()
                await cluster.clock.advance(random.choice((0.0, 0.01, 0.05, 0.3)))
            assert one.wire.writes
            assert other.wire.writes
            await cluster.clock.advance(60)
            assert one.controller.is_idle
            assert other.controller.is_idle
            at_rest = len(one.wire.writes), len(other.wire.writes)
            check(cluster)
            await cluster.clock.advance(3 * 3600)
            assert (len(one.wire.writes), len(other.wire.writes)) == at_rest
    assert witness.lost == []
    assert witness.events > 100


class Candidate:
    """A controller that works while it holds the lease."""

    def __init__(self, cluster: Desk, name: str) -> None:
        self.wire = cluster.wire()
        self._clock = cluster.clock
        self._name = name
        self.started_at: float | None = None
        self.task = asyncio.ensure_future(self._run())

    @property
    def wrote_at(self) -> list[float]:
        """When it sent writes of slices."""
        return [at for at, _ in self.wire.writes]

    async def _run(self) -> None:
        clock = self._clock
        async with Client(self.wire, clock=clock, retries=Retries(max_elapsed=0.0)) as client:
            controller = Controller(
                client,
                SETTINGS,
                clock=clock,
                recorder=EventRecorder(client, component=CONTROLLER_COMPONENT, clock=clock),
            )
            elector = LeaderElector(
                client,
                namespace=LEASE_NAMESPACE,
                name=LEASE_NAME,
                identity=self._name,
                clock=clock,
                seek_period_s=SEEK_PERIOD_S,
            )

            async def lead() -> None:
                self.started_at = clock.monotonic()
                await controller.run()

            await elector.run(lead)


@asynccontextmanager
async def candidates(cluster: Desk) -> AsyncIterator[tuple[Candidate, Candidate]]:
    """Run two of them; the first one leads."""
    first = Candidate(cluster, "first")
    await cluster.clock.advance(5)
    second = Candidate(cluster, "second")
    await cluster.clock.advance(5)
    assert (first.started_at, second.started_at) == (1000.0, None)
    try:
        yield first, second
    finally:
        for one in (first, second):
            one.wire.is_cut = False
            one.task.cancel()
        await cluster.clock.run_until(lambda: first.task.done() and second.task.done())


def _is_lease(request: ApiRequest) -> bool:
    return "/leases/" in request.path


async def test_a_leader_that_loses_its_lease_writes_nothing_once_another_one_leads() -> None:
    """Only its lease cannot be written, its slices can: it stops before the other one starts."""
    async with desk() as cluster:
        populate(cluster)
        hand = Hand(cluster, Witness(cluster), Random(1))
        async with candidates(cluster) as (first, second):
            first.wire.cuts = _is_lease
            cut_at = cluster.clock.monotonic()
            while cluster.clock.monotonic() < cut_at + 40:
                hand.change()
                await cluster.clock.advance(0.25)
            assert isinstance(first.task.exception(), LeadershipLost)
            assert second.started_at is not None
            # Ten seconds after its last renewal, and whatever a sync under way may take.
            assert cut_at + 5 < max(first.wrote_at) <= cut_at + 10 + SETTINGS.grace_s
            assert max(first.wrote_at) < second.started_at <= min(second.wrote_at)
            await cluster.clock.advance(5)
            check(cluster)


async def test_a_clean_stop_hands_over_as_soon_as_somebody_looks() -> None:
    """Within 2.2 seconds the next one has begun, and does what the first one left undone."""
    async with desk() as cluster:
        populate(cluster)
        hand = Hand(cluster, Witness(cluster), Random(4))
        async with candidates(cluster) as (first, second):
            for _ in range(20):
                hand.change()
            first.task.cancel()
            stopped_at = cluster.clock.monotonic()
            await cluster.clock.run_until(lambda: second.started_at is not None)
            assert second.started_at is not None
            assert second.started_at - stopped_at <= 2.2 * SEEK_PERIOD_S
            await cluster.clock.advance(1)
            check(cluster)


async def test_a_leader_that_dies_is_followed_when_its_lease_has_run_out() -> None:
    """15 seconds after the last renewal the next one does all that was left undone."""
    async with desk() as cluster:
        populate(cluster)
        hand = Hand(cluster, Witness(cluster), Random(2))
        async with candidates(cluster) as (first, second):
            first.wire.is_cut = True
            died_at = cluster.clock.monotonic()
            for _ in range(20):
                hand.change()
            await cluster.clock.advance(30)
            assert second.started_at is not None
            assert died_at + 12 < second.started_at < died_at + LATEST_S
            check(cluster)


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
async def test_a_leader_whose_wall_clock_jumps_keeps_its_lease(jump_s: float) -> None:
    """Nobody judges a lease by the time that is written in it."""
    async with desk() as cluster:
        populate(cluster)
        hand = Hand(cluster, Witness(cluster), Random(3))
        async with candidates(cluster) as (first, second):
            cluster.clock.jump(jump_s)
            for _ in range(100):
                hand.change()
                await cluster.clock.advance(1)
            assert not first.task.done()
            assert (second.started_at, second.wrote_at) == (None, [])
            check(cluster)


async def test_a_leader_that_wakes_up_late_cannot_undo_what_the_next_one_did() -> None:
    """Its old view is worth nothing: updates and deletes name the version that they are meant for.

    The first one has planned, and its writes are on their way for longer than a lease lasts.
    """
    settings = ControllerSettings(plan=PlannerSettings(max_endpoints=2), batch_s=0.5)
    async with desk() as cluster:
        populate(cluster)
        pods = [
            pod(f"p{number}", "n1", ip=f"10.0.0.{number + 1}", labels={"app": "web"})
            for number in range(7)
        ]
        cluster.put(*pods[:4])
        async with cluster.controlled(settings) as first:
            names = [one.metadata.name for one in cluster.slices("web")]
            assert len(names) == 2
            asked = len(first.wire.requests)
            first.wire.lag = lambda: 60.0
            # One slice shrinks and the other one is to be deleted; the next one fills both.
            cluster.delete(pods[0], *pods[2:4])
            await cluster.clock.advance(1)
            cluster.put(*pods[4:])
            async with cluster.controlled(settings) as second:
                assert [one.metadata.name for one in cluster.slices("web")] == names
                done = facts(cluster.slices("web"))
                assert done == cluster.want("web", settings)
                written = len(second.wire.writes)
                await cluster.clock.advance(600)
                assert facts(cluster.slices("web")) == done
                assert len(second.wire.writes) == written
        sent = [request.method for _, request in first.wire.requests[asked:]]
        assert [method for method in sent if method != "GET"][:2] == ["PUT", "DELETE"]


async def slices_hold(cluster: World, *addresses: str) -> None:
    """Return when the slices of the Service hold exactly these addresses."""
    want = [(one,) for one in sorted(addresses)]
    async with cluster.api.watch("/apis/discovery.k8s.io/v1/endpointslices") as events:
        while True:
            found = [one.addresses for piece in await cluster.slices() for one in piece.endpoints]
            if sorted(found) == want:
                return
            await events.next()


async def test_a_clean_stop_hands_over_within_seconds(tmp_path: Path) -> None:
    """From the stop of one to the first write of the next, on the machine's own clock."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        await cluster.add_service()
        await cluster.add_pod("p1", "n1", ip="10.0.0.1")
        connection = load_connection_settings(tmp_path / "controller.kubeconfig", env={})

        def start() -> asyncio.Task[None]:
            return asyncio.create_task(
                serve_controller(ControllerSettings(), connection, leader_elect=True, clock=CLOCK)
            )

        first = start()
        await slices_hold(cluster, "10.0.0.1")
        second = start()
        try:
            # NB: some time in which the second one has seen that the lease is held.
            await asyncio.sleep(0.3)
            stopped_at = CLOCK.monotonic()
            first.cancel()
            await asyncio.wait((first,))
            await cluster.add_pod("p2", "n1", ip="10.0.0.2")
            await slices_hold(cluster, "10.0.0.1", "10.0.0.2")
            # Under three on a machine with nothing else to do; without the hand-over it would be
            # the fifteen of the lease, less the two since it was renewed.
            assert CLOCK.monotonic() - stopped_at < 12.0
        finally:
            second.cancel()
            await asyncio.wait((second,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="asleep, and awake again after another one leads"),
    ],
)
async def test_a_process_that_is_gone_is_followed_by_the_next(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The next one works once the lease has run out; a sleeper that wakes up ends with code 1."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        await cluster.add_service()
        await cluster.add_pod("p1", "n1", ip="10.0.0.1")
        kubeconfig, log = tmp_path / "controller.kubeconfig", tmp_path / "log"
        async with controller_process(kubeconfig, log=log) as first:
            async with asyncio.timeout(PATIENCE):
                await slices_hold(cluster, "10.0.0.1")
            async with controller_process(kubeconfig, log=log) as second:
                first.send_signal(number)
                gone_at = CLOCK.monotonic()
                await cluster.add_pod("p2", "n1", ip="10.0.0.2")
                async with asyncio.timeout(2 * PATIENCE):
                    await slices_hold(cluster, "10.0.0.1", "10.0.0.2")
                assert 10.0 < CLOCK.monotonic() - gone_at < LATEST_S + 20.0
                if number == signal.SIGSTOP:
                    await cluster.remove(PODS, "p1")
                    async with asyncio.timeout(PATIENCE):
                        await slices_hold(cluster, "10.0.0.2")
                    versions = await versions_of(cluster)
                    first.send_signal(signal.SIGCONT)
                    async with asyncio.timeout(PATIENCE):
                        assert await first.wait() == 1
                    assert await versions_of(cluster) == versions
                second.terminate()
                async with asyncio.timeout(PATIENCE):
                    assert await second.wait() == 0


async def versions_of(cluster: World) -> list[tuple[str, str]]:
    """Return name and version of the slices of the Service."""
    return [(one.metadata.name, one.metadata.resource_version) for one in await cluster.slices()]
