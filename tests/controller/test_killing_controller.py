"""The controller killed in the middle of its writes, again and again, during a rolling update.

500 pods are replaced by 500 others, 125 at a time, while `keepclose controller` gets SIGKILL after
a random number of its writes and a new one is started. Every event of a slice is seen as the
proxies of all nodes see it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from keepclose.kube.cache import Cache
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import Service
from keepclose.model.well_known import SERVICE_NAME_LABEL
from keepclose.model.workload import Pod
from keepclose.routing.port_endpoints import NodeView
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.testing.api_server import PATIENCE
from support.controllerprocess import controller_process
from support.controllers import CLOCK, LONG_GRACE_S, World, opened
from support.crowds import do_all
from support.faultycluster import facts
from support.live.traffic import Traffic
from support.server_processes import embedded_server

PODS_WANTED: Final = 500
SURGE: Final = PODS_WANTED // 4
NODE_COUNT: Final = 12
KILLS: Final = 50
ZONES: Final = ("zone-a", "zone-b", "zone-c")
MAX_PORTIONS: Final = 4
LATEST_S: Final = 0.03
Step = Callable[[], Coroutine[Any, Any, None]]


def address_of(number: int) -> str:
    """Return the address of a pod; none is ever used again."""
    return f"10.64.{number // 250}.{number % 250 + 1}"


class Rollout:
    """A rolling update, pod by pod."""

    def __init__(self, cluster: World, retired: list[str]) -> None:
        self._cluster = cluster
        self._retired = retired

    def steps(self, order: list[int]) -> list[Step]:
        """Return the whole of it: surge, ask to end, end, wave after wave."""
        found: list[Step] = []
        for first in range(0, PODS_WANTED, SURGE):
            leaving = order[first : first + SURGE]
            coming = range(PODS_WANTED + first, PODS_WANTED + first + SURGE)
            found += [partial(self.start, number) for number in coming]
            found += [partial(self._mark, number) for number in leaving]
            found += [partial(self._remove, number) for number in leaving]
        return found

    async def start(self, number: int) -> None:
        """Create a pod that is not ready at first and then is."""
        name, address = f"p{number:04}", address_of(number)
        await self._cluster.add_pod(name, f"n{number % NODE_COUNT:02}", ip=address, ready=False)
        await self._cluster.set_pod(name, ip=address, ready=True)

    async def _mark(self, number: int) -> None:
        await self._cluster.end_pod(f"p{number:04}", grace=LONG_GRACE_S)

    async def _remove(self, number: int) -> None:
        self._retired.append(address_of(number))
        await self._cluster.end_pod(f"p{number:04}", grace=0)


class Record:
    """Every event of a slice in order; judged when the rollout is over, so that seeing is quick."""

    def __init__(self, retired: list[str]) -> None:
        self.cache: Cache[EndpointSlice] = Cache()
        self.events = 0
        self._retired = retired
        self._story: list[tuple[EndpointSlice | None, EndpointSlice | None, int]] = []
        self._alarm: tuple[int, asyncio.Future[None]] | None = None
        self.cache.subscribe(self._see)

    def after(self, number: int) -> asyncio.Future[None]:
        """Return what is done after so many further events."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._alarm = (self.events + number, done)
        return done

    def forget(self) -> None:
        """Begin with the present: what led there is not judged."""
        self._story = [(None, one, 0) for one in self.cache.all()]

    def evaluate(self, traffic: Traffic) -> None:
        """Let somebody see everything again."""
        known = len(self.cache)
        for number, (old, new, retired) in enumerate(self._story):
            traffic.retired = set(self._retired[:retired])
            if new is not None:
                traffic.cache.put(new)
            elif old is not None:
                traffic.cache.delete(old.metadata.key)
            if number == 0:
                traffic.cache.subscribe(traffic.see)
        assert len(traffic.cache) == known

    def _see(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self.events += 1
        self._story.append((old, new, len(self._retired)))
        if self._alarm is not None and self.events >= self._alarm[0]:
            done, self._alarm = self._alarm[1], None
            if not done.done():
                done.set_result(None)


@asynccontextmanager
async def recorded(cluster: World, retired: list[str]) -> AsyncIterator[Record]:
    """Record for the time of the block."""
    record = Record(retired)
    reflector = Reflector(
        cluster.client,
        ENDPOINT_SLICES,
        record.cache,
        clock=CLOCK,
        namespace=cluster.namespace,
        # The slice of the API server itself has nothing to do with the rollout.
        label_selector=f"{SERVICE_NAME_LABEL}=web",
    )
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        yield record
    finally:
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def rolling(directory: Path) -> AsyncIterator[tuple[World, Path]]:
    """Open a cluster of three zones with all the old pods."""
    with embedded_server(directory / "data") as server:
        async with opened(server.kubeconfig, controller=server.role("controller")) as cluster:
            for number in range(NODE_COUNT):
                await cluster.add_node(f"n{number:02}", ZONES[number % len(ZONES)])
            rollout = Rollout(cluster, [])
            await do_all(rollout.start(number) for number in range(PODS_WANTED))
            yield cluster, server.role("controller")


async def now(cluster: World, service: Service) -> tuple[list[Pod], ClusterNodes]:
    """Return what a plan depends on."""
    return await cluster.selected(service), await cluster.cluster()


async def until_settled(cluster: World, want: list[tuple[object, ...]], record: Record) -> None:
    """Return when the slices say what they should."""
    async with asyncio.timeout(PATIENCE):
        while facts(record.cache.all()) != want:
            await record.after(1)
    assert facts(await cluster.slices()) == want


async def kill_at_random(
    kubeconfig: Path, steps: list[Step], *, record: Record, random: Random, log: Path
) -> None:
    """Run a controller beside some steps of the update, and kill it soon after one of its writes.

    The steps come in portions. Each of them asks for a write at least, and the controller has begun
    to answer one before the next comes.
    """
    count = random.randint(1, MAX_PORTIONS)
    portions = [steps[number::count] for number in range(count)]
    async with controller_process(kubeconfig, "--no-leader-elect", log=log) as process:
        for number, portion in enumerate(portions, 1):
            written = record.after(1)
            hand = asyncio.create_task(do_all(step() for step in portion))
            async with asyncio.timeout(PATIENCE):
                await written
            if number == count:
                await asyncio.sleep(random.uniform(0.0, LATEST_S))
                assert process.returncode is None, f"see {log}"
                process.kill()
            await hand


@pytest.mark.slow
async def test_a_rollout_outlives_fifty_killed_controllers(tmp_path: Path) -> None:
    """No node is without an endpoint at any event, and the end is as if nobody had been killed."""
    random = Random(50)
    order = list(range(PODS_WANTED))
    random.shuffle(order)
    log = tmp_path / "controllers.log"
    async with rolling(tmp_path) as (cluster, kubeconfig):
        service = await cluster.add_service(trafficDistribution="PreferSameZone")

        async def want() -> list[tuple[object, ...]]:
            pods, nodes = await now(cluster, service)
            plan = plan_service(service, pods=pods, cluster=nodes, settings=PlannerSettings())
            return facts(plan.slices)

        retired: list[str] = []
        async with recorded(cluster, retired) as record:
            async with controller_process(kubeconfig, "--no-leader-elect", log=log):
                await until_settled(cluster, await want(), record)
            record.forget()
            steps = Rollout(cluster, retired).steps(order)
            # So that there is something to do for the one that is not killed.
            last_step = steps.pop()
            portion = -(-len(steps) // KILLS)
            unfinished = 0
            for number in range(KILLS):
                await kill_at_random(
                    kubeconfig,
                    steps[number * portion : (number + 1) * portion],
                    record=record,
                    random=random,
                    log=log,
                )
                unfinished += facts(record.cache.all()) != await want()
            async with controller_process(kubeconfig, "--no-leader-elect", log=log) as process:
                await last_step()
                await until_settled(cluster, await want(), record)
                process.terminate()
                assert await process.wait() == 0
        slices, pods, nodes = record.cache.all(), *(await now(cluster, service))
    views = [NodeView.of(one) for one in nodes.nodes.values()]
    traffic = Traffic(service, views, FeatureGates())
    record.evaluate(traffic)
    assert traffic.flaws == []
    # Else the points would not be in the middle of anything.
    assert unfinished >= KILLS // 5
    addresses = Counter(one.addresses for piece in slices for one in piece.endpoints)
    assert addresses == {(address_of(PODS_WANTED + number),): 1 for number in range(PODS_WANTED)}
    assert all(piece.endpoints for piece in slices)
    assert all(piece.metadata.owner_references[0].uid == service.metadata.uid for piece in slices)
    again = plan_service(
        service, pods=pods, slices=slices, cluster=nodes, settings=PlannerSettings()
    )
    assert again.is_empty
