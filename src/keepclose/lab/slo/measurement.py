"""Measures what KEP-3015's first draft only guesses: availability and speed of traffic policies.

For each policy in turn, connections come from all nodes and, by node ports, from outside, while the
endpoints are restarted and moved. All policies meet the same trouble at the same times.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Annotated, Final, NamedTuple

import msgspec

from keepclose.kube.clock import Clock, SystemClock
from keepclose.lab.access import LabRefusal, LabView
from keepclose.lab.faults.node_status import PLAIN_NODES, MarkedNode
from keepclose.lab.network.underlay import Underlay
from keepclose.lab.slo.figures import (
    EXTERNAL_TRAFFIC,
    INTERNAL_TRAFFIC,
    SOME,
    Policy,
    SloFigures,
    SloSample,
    judge,
    list_policies,
    sum_up_slo,
    tell_choice,
)
from keepclose.lab.slo.setup import SloBed
from keepclose.lab.traffic.answers import ConnectionFailure, ConnectionResult, PodAnswer
from keepclose.lab.traffic.connections import ConnectionSource, connect_all
from keepclose.model.json_values import JsonObject
from keepclose.model.service.policy_validation import CLUSTER_POLICY
from keepclose.model.service.types import Service
from keepclose.model.well_known import PREFER_SAME_ZONE
from keepclose.system.namespaces import NetworkError
from keepclose.system.threads import finish_in_thread

PER_SECOND: Final = 240.0
_MOST_OPEN: Final = 1000
_REST_S: Final = 0.2
_Tell = Callable[[JsonObject], None]
RESTART_AT: Final = 0.1
MOVE_AT: Final = 0.6
_LEAST_NODES: Final = 2


class Way(NamedTuple):
    """From where, by which node, to which address."""

    traffic: str
    node: str
    caller: ConnectionSource


async def keep_connecting(
    ways: Sequence[Way],
    until: asyncio.Event,
    *,
    record: Callable[[SloSample], object],
    per_second: float = PER_SECOND,
) -> None:
    """Connect by all ways in turn until the event, and wait for the last answers.

    `record` gets each connection when it is over.
    """
    clock = asyncio.get_running_loop().time
    open_now: set[asyncio.Task[None]] = set()
    due = clock()
    try:
        for way in itertools.cycle(ways):
            await _sleep_until(due, clock(), until)
            if until.is_set():
                break
            due = max(due + 1.0 / per_second, clock())
            if len(open_now) < _MOST_OPEN:
                task = asyncio.create_task(_connect(way, clock, record))
                open_now.add(task)
                task.add_done_callback(open_now.discard)
        if open_now:
            await asyncio.wait(open_now)
    finally:
        for task in open_now:
            task.cancel()


async def probe(ways: Sequence[Way]) -> list[ConnectionResult]:
    """Return who answers by each way, asked once."""
    results = await connect_all([way.caller for way in ways])
    return [next(iter(counts), ConnectionFailure.BROKEN) for counts in results]


async def until_steady(
    ways: Sequence[Way],
    is_right: Callable[[Way, ConnectionResult], bool],
    *,
    steady_s: float = 1.0,
    patience_s: float = 30.0,
) -> bool:
    """Return whether all ways were right for some time without a break before patience ended."""
    clock = asyncio.get_running_loop().time
    began = right_since = clock()
    while clock() - began < patience_s:
        results = await probe(ways)
        if not all(is_right(way, one) for way, one in zip(ways, results, strict=True)):
            right_since = clock()
        elif clock() - right_since >= steady_s:
            return True
        await asyncio.sleep(_REST_S)
    return False


async def _connect(
    way: Way, clock: Callable[[], float], record: Callable[[SloSample], object]
) -> None:
    began = clock()
    try:
        (result,) = await probe([way])
    except (OSError, NetworkError):
        # No socket could be made, or the place is gone: nobody got an answer.
        result = ConnectionFailure.BROKEN
    record(SloSample(way.traffic, way.node, result, clock() - began))


async def _sleep_until(due: float, now: float, until: asyncio.Event) -> None:
    """Sleep until it is time, or the event comes; always let others run."""
    if due <= now:
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(due - now):
            await until.wait()
    except TimeoutError:
        pass


class SloRequest(msgspec.Struct, frozen=True):
    """What to measure."""

    seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 10.0
    """For each policy."""
    zone_latency: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 0.0
    """Milliseconds that packets take from one zone to another."""


class FaultMoment(NamedTuple):
    """When something happens to the endpoints, in seconds from the beginning."""

    at_s: float
    what: str


def plan_trouble(seconds: float) -> list[FaultMoment]:
    """Return what happens to the endpoints of each policy, in order."""
    return [FaultMoment(RESTART_AT * seconds, "restart"), FaultMoment(MOVE_AT * seconds, "move")]


async def handle_slo(lab: LabView, params: JsonObject, tell: _Tell) -> JsonObject:
    """Measure all policies and return their figures; raises LabRefusal."""
    try:
        request = msgspec.convert(params, SloRequest)
    except msgspec.ValidationError as error:
        raise LabRefusal(f"this cannot be measured: {error}") from None
    if lab.underlay is None:
        raise LabRefusal(f"there are no packets to measure here: {lab.no_packets}", code=5)
    # One at a time: a second one would remove the first one's namespace as left behind.
    if lab.underlay.measuring.locked():
        raise LabRefusal("another measurement runs in this lab; wait until it is over")
    async with lab.underlay.measuring:
        return await Measurement(lab, lab.underlay, request, tell).run()


class Measurement:
    """All policies, one after the other."""

    def __init__(
        self,
        lab: LabView,
        underlay: Underlay,
        request: SloRequest,
        tell: _Tell,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._lab, self._underlay, self._request, self._tell = lab, underlay, request, tell
        self._clock = clock or SystemClock()
        random = Random()  # noqa: S311 - names of namespaces are no secret
        self._bed = SloBed(lab.client, clock=self._clock, random=random)
        self._zones: dict[str, str] = {}

    async def run(self) -> JsonObject:
        """Return the figures of all policies, and what to know about them."""
        policies = list_policies(self._lab.gates)
        self._zones = choose_nodes(
            (await self._lab.client.list_all(PLAIN_NODES)).items, self._underlay
        )
        notes = [note for note in (tell_choice(self._lab.gates),) if note]
        rows: list[SloFigures] = []
        try:
            notes += await self._delay(self._request.zone_latency)
            self._tell({"doing": "starting endpoints"})
            services = await self._bed.make(policies, len(self._zones))
            for policy in policies:
                rows += await self._measure(policy, services[policy.title])
        finally:
            self._tell({"doing": "cleaning up"})
            # NB: whoever cancels twice must not leave anything behind either.
            await asyncio.shield(asyncio.create_task(self._clean()))
        return {
            "seconds": self._request.seconds,
            "nodes": len(self._zones),
            "rows": [msgspec.to_builtins(row) for row in judge(rows)],
            "notes": notes,
        }

    async def _measure(self, policy: Policy, service: Service) -> list[SloFigures]:
        ways = self._ways(service)
        self._tell({"doing": f"waiting for {policy.title}"})
        await self._bed.until_ready(policy.workload)

        def is_right(way: Way, result: ConnectionResult) -> bool:
            if not isinstance(result, PodAnswer):
                return False
            if policy.name == PREFER_SAME_ZONE:
                return self._zones.get(result.node) == self._zones.get(way.node)
            is_near = policy.name == CLUSTER_POLICY or policy.workload == SOME
            return is_near or result.node == way.node

        if not await until_steady(ways, is_right):
            raise LabRefusal(
                f"{policy.title}: connections do not get where they should even before any "
                "trouble; keepclose lab status shows the nodes",
                code=1,
            )
        samples: list[SloSample] = []
        over = asyncio.Event()
        load = asyncio.create_task(keep_connecting(ways, over, record=samples.append))
        try:
            await self._trouble(policy, samples)
            over.set()
            await load
        finally:
            load.cancel()
            await self._bed.uncordon()
        return [
            _figures(policy, traffic, samples, self._zones)
            for traffic in (INTERNAL_TRAFFIC, EXTERNAL_TRAFFIC)
        ]

    async def _trouble(self, policy: Policy, samples: list[SloSample]) -> None:
        """Let happen what is planned, and come back when the time of the policy is over."""
        began = self._clock.monotonic()

        async def wait_until(at_s: float, what: str) -> None:
            while (left := began + at_s - self._clock.monotonic()) > 0:
                failed = sum(not isinstance(one.result, PodAnswer) for one in samples)
                self._tell(
                    {"doing": policy.title, "now": what, "done": len(samples), "failed": failed}
                )
                await self._clock.sleep(min(left, 1.0))

        now = "quiet"
        for moment in plan_trouble(self._request.seconds):
            await wait_until(moment.at_s, now)
            now = moment.what
            happen = self._bed.restart if now == "restart" else self._bed.move
            await happen(policy.workload)
        await wait_until(self._request.seconds, now)

    def _ways(self, service: Service) -> list[Way]:
        port = service.spec.ports[0]
        ways = []
        for name in self._zones:
            node = self._underlay.nodes[name]
            inside = ConnectionSource(node.client.namespace, service.spec.cluster_ip, port.port, 1)
            ways.append(Way(INTERNAL_TRAFFIC, name, inside))
            outside = self._underlay.outside.namespace
            address = node.addresses.address
            ways.append(
                Way(EXTERNAL_TRAFFIC, name, ConnectionSource(outside, address, port.node_port, 1))
            )
        return ways

    async def _delay(self, milliseconds: float) -> list[str]:
        """Make zones far from each other; return what there is to say about it."""
        if not milliseconds:
            return []
        zones = dict(self._zones)

        def between(one: str, other: str) -> float:
            return milliseconds if zones.get(one) != zones.get(other) else 0.0

        try:
            await finish_in_thread(lambda: self._underlay.delay(between))
        except NetworkError as error:
            return [f"latency is that of this machine alone: {error}"]
        return [f"{milliseconds:g} ms from zone to zone, each way"]

    async def _clean(self) -> None:
        if self._request.zone_latency:
            # Where delays cannot be taken away there were none.
            with suppress(NetworkError):
                await finish_in_thread(lambda: self._underlay.delay(lambda _one, _other: 0.0))
        await self._bed.remove()


def choose_nodes(nodes: list[MarkedNode], underlay: Underlay) -> dict[str, str]:
    """Return the nodes that are well, with their zones; raises LabRefusal when they are too few."""
    chosen = {
        node.name: node.zone
        for node in sorted(nodes, key=lambda node: node.name)
        if node.name in underlay.nodes
        and node.is_ready
        and not node.is_unreachable
        and not node.spec.unschedulable
    }
    if len(chosen) < _LEAST_NODES:
        raise LabRefusal(
            f"{len(chosen)} of {len(nodes)} nodes are well, and a comparison needs "
            f"{_LEAST_NODES}; keepclose lab heal",
            code=1,
        )
    return chosen


def _figures(
    policy: Policy, traffic: str, samples: list[SloSample], zones: dict[str, str]
) -> SloFigures:
    sums = sum_up_slo((one for one in samples if one.traffic == traffic), zones)
    return SloFigures(
        policy=policy.name,
        role=policy.role,
        traffic=traffic,
        connections=sums.connections,
        failed=sums.failed,
        failures=sums.failures,
        availability=sums.availability,
        node_hops=sums.node_hops,
        zone_crossings=sums.zone_crossings,
        p50_ms=sums.p50_ms,
        p99_ms=sums.p99_ms,
        guessed_availability=policy.availability or "",
        guessed_speed=policy.speed or "",
    )
