"""Measures what KEP-3015's first draft only guesses: availability and speed of traffic policies.

For each policy in turn, connections come from all nodes and, by node ports, from outside, while the
endpoints are restarted and moved. All policies have the same disruptions at the same times.

Connections are opened at a steady rate, one after the other from all nodes in turn: one that waits
for its answer delays no other. Connections that a busy machine could not open in time are left out
and not made up for in a burst.
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
from keepclose.lab.faults.node_status import LIFECYCLE_NODES, LifecycleNode
from keepclose.lab.network.underlay import Underlay
from keepclose.lab.slo.figures import (
    EXTERNAL_TRAFFIC,
    INTERNAL_TRAFFIC,
    SOME,
    Policy,
    SloFigures,
    SloSample,
    compare_with_guesses,
    explain_choice,
    list_policies,
    sum_up_slo,
)
from keepclose.lab.slo.setup import SloNamespace
from keepclose.lab.traffic.answers import ConnectionFailure, ConnectionResult, PodAnswer
from keepclose.lab.traffic.connections import ConnectionSource, connect_all
from keepclose.model.json_values import JsonObject
from keepclose.model.service.policy_validation import CLUSTER_POLICY
from keepclose.model.service.types import Service
from keepclose.model.well_known import PREFER_SAME_ZONE
from keepclose.system.namespaces import NetworkError
from keepclose.system.threads import finish_in_thread

PER_SECOND: Final = 240.0
_MAX_OPEN: Final = 1000
_POLL_S: Final = 0.2
_ReportProgress = Callable[[JsonObject], None]
RESTART_AT: Final = 0.1
MOVE_AT: Final = 0.6
_MIN_NODES: Final = 2


class ConnectionPath(NamedTuple):
    """From where a connection comes, and which node routes it."""

    traffic: str
    node: str
    caller: ConnectionSource


async def keep_connecting(
    paths: Sequence[ConnectionPath],
    until: asyncio.Event,
    *,
    record: Callable[[SloSample], object],
    per_second: float = PER_SECOND,
) -> None:
    """Connect over all paths in turn until the event, and wait for the last answers.

    `record` gets each connection when it has ended.
    """
    clock = asyncio.get_running_loop().time
    open_now: set[asyncio.Task[None]] = set()
    due = clock()
    try:
        for path in itertools.cycle(paths):
            await _sleep_until(due, clock(), until)
            if until.is_set():
                break
            due = max(due + 1.0 / per_second, clock())
            if len(open_now) < _MAX_OPEN:
                task = asyncio.create_task(_connect(path, clock, record))
                open_now.add(task)
                task.add_done_callback(open_now.discard)
        if open_now:
            await asyncio.wait(open_now)
    finally:
        for task in open_now:
            task.cancel()


async def probe(paths: Sequence[ConnectionPath]) -> list[ConnectionResult]:
    """Connect once over each path and return the results."""
    results = await connect_all([path.caller for path in paths])
    return [next(iter(counts), ConnectionFailure.BROKEN) for counts in results]


async def until_steady(
    paths: Sequence[ConnectionPath],
    is_right: Callable[[ConnectionPath, ConnectionResult], bool],
    *,
    steady_s: float = 1.0,
    timeout_s: float = 30.0,
) -> bool:
    """Return whether all results were right for `steady_s` without a break before the timeout."""
    clock = asyncio.get_running_loop().time
    began = right_since = clock()
    while clock() - began < timeout_s:
        results = await probe(paths)
        if not all(is_right(path, result) for path, result in zip(paths, results, strict=True)):
            right_since = clock()
        elif clock() - right_since >= steady_s:
            return True
        await asyncio.sleep(_POLL_S)
    return False


class SloRequest(msgspec.Struct, frozen=True):
    """What to measure."""

    seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 10.0
    """For each policy."""
    zone_latency: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 0.0
    """Milliseconds that packets take from one zone to another."""


class FaultMoment(NamedTuple):
    """A disruption of the endpoints, in seconds from the beginning."""

    at_s: float
    what: str


def plan_faults(seconds: float) -> list[FaultMoment]:
    """Return the disruptions of the endpoints of each policy, in order."""
    return [FaultMoment(RESTART_AT * seconds, "restart"), FaultMoment(MOVE_AT * seconds, "move")]


async def handle_slo(lab: LabView, params: JsonObject, report: _ReportProgress) -> JsonObject:
    """Measure all policies and return their figures; raises LabRefusal."""
    try:
        request = msgspec.convert(params, SloRequest)
    except msgspec.ValidationError as error:
        raise LabRefusal(f"invalid request: {error}") from None
    if lab.underlay is None:
        raise LabRefusal(f"there are no packets to measure here: {lab.no_packets}", code=5)
    # One at a time: a second one would delete the first one's namespace as a leftover.
    if lab.underlay.measuring.locked():
        raise LabRefusal("another measurement runs in this lab; wait until it is over")
    async with lab.underlay.measuring:
        return await Measurement(lab, lab.underlay, request, report).run()


class Measurement:
    """A measurement of all policies, one after the other."""

    def __init__(
        self,
        lab: LabView,
        underlay: Underlay,
        request: SloRequest,
        report: _ReportProgress,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._lab, self._underlay, self._request, self._report = lab, underlay, request, report
        self._clock = clock or SystemClock()
        random = Random()  # noqa: S311 - names of namespaces are no secret
        self._slo_namespace = SloNamespace(lab.client, clock=self._clock, random=random)
        self._zones: dict[str, str] = {}

    async def run(self) -> JsonObject:
        """Return the figures of all policies, with notes on them."""
        policies = list_policies(self._lab.gates)
        self._zones = choose_nodes(
            (await self._lab.client.list_all(LIFECYCLE_NODES)).items, self._underlay
        )
        notes = [note for note in (explain_choice(self._lab.gates),) if note]
        rows: list[SloFigures] = []
        try:
            notes += await self._delay(self._request.zone_latency)
            self._report({"doing": "starting endpoints"})
            services = await self._slo_namespace.create(policies, len(self._zones))
            for policy in policies:
                rows += await self._measure(policy, services[policy.title])
        finally:
            self._report({"doing": "cleaning up"})
            # NB: a second cancellation must not leave anything behind either.
            await asyncio.shield(asyncio.create_task(self._clean()))
        return {
            "seconds": self._request.seconds,
            "nodes": len(self._zones),
            "rows": [msgspec.to_builtins(row) for row in compare_with_guesses(rows)],
            "notes": notes,
        }

    async def _measure(self, policy: Policy, service: Service) -> list[SloFigures]:
        paths = self._paths(service)
        self._report({"doing": f"waiting for {policy.title}"})
        await self._slo_namespace.until_ready(policy.workload)

        def is_right(path: ConnectionPath, result: ConnectionResult) -> bool:
            if not isinstance(result, PodAnswer):
                return False
            if policy.name == PREFER_SAME_ZONE:
                return self._zones.get(result.node) == self._zones.get(path.node)
            is_near = policy.name == CLUSTER_POLICY or policy.workload == SOME
            return is_near or result.node == path.node

        if not await until_steady(paths, is_right):
            raise LabRefusal(
                f"{policy.title}: connections do not go where they should even before the "
                "first disruption; keepclose lab status shows the nodes",
                code=1,
            )
        samples: list[SloSample] = []
        over = asyncio.Event()
        load = asyncio.create_task(keep_connecting(paths, over, record=samples.append))
        try:
            await self._inject_faults(policy, samples)
            over.set()
            await load
        finally:
            load.cancel()
            await self._slo_namespace.uncordon()
        return [
            _figures(policy, traffic, samples, self._zones)
            for traffic in (INTERNAL_TRAFFIC, EXTERNAL_TRAFFIC)
        ]

    async def _inject_faults(self, policy: Policy, samples: list[SloSample]) -> None:
        """Disrupt the endpoints as planned; return when the time of the policy is over."""
        began = self._clock.monotonic()

        async def wait_until(at_s: float, what: str) -> None:
            while (left := began + at_s - self._clock.monotonic()) > 0:
                failed = sum(not isinstance(sample.result, PodAnswer) for sample in samples)
                self._report(
                    {"doing": policy.title, "now": what, "done": len(samples), "failed": failed}
                )
                await self._clock.sleep(min(left, 1.0))

        now = "quiet"
        for moment in plan_faults(self._request.seconds):
            await wait_until(moment.at_s, now)
            now = moment.what
            happen = self._slo_namespace.restart if now == "restart" else self._slo_namespace.move
            await happen(policy.workload)
        await wait_until(self._request.seconds, now)

    def _paths(self, service: Service) -> list[ConnectionPath]:
        port = service.spec.ports[0]
        paths = []
        for name in self._zones:
            node = self._underlay.nodes[name]
            inside = ConnectionSource(node.client.namespace, service.spec.cluster_ip, port.port, 1)
            paths.append(ConnectionPath(INTERNAL_TRAFFIC, name, inside))
            outside = self._underlay.outside.namespace
            address = node.addresses.address
            paths.append(
                ConnectionPath(
                    EXTERNAL_TRAFFIC, name, ConnectionSource(outside, address, port.node_port, 1)
                )
            )
        return paths

    async def _delay(self, milliseconds: float) -> list[str]:
        """Delay packets between zones; return notes on it."""
        if not milliseconds:
            return []
        zones = dict(self._zones)

        def between(source: str, target: str) -> float:
            return milliseconds if zones.get(source) != zones.get(target) else 0.0

        try:
            await finish_in_thread(lambda: self._underlay.delay(between))
        except NetworkError as error:
            return [f"latency is that of this machine alone: {error}"]
        return [f"{milliseconds:g} ms from zone to zone, each way"]

    async def _clean(self) -> None:
        if self._request.zone_latency:
            # If delays cannot be removed there were none.
            with suppress(NetworkError):
                await finish_in_thread(lambda: self._underlay.delay(lambda _one, _other: 0.0))
        await self._slo_namespace.remove()


def choose_nodes(nodes: list[LifecycleNode], underlay: Underlay) -> dict[str, str]:
    """Return the healthy nodes with their zones; raises LabRefusal if there are too few."""
    chosen = {
        node.name: node.zone
        for node in sorted(nodes, key=lambda node: node.name)
        if node.name in underlay.nodes
        and node.is_ready
        and not node.is_unreachable
        and not node.spec.unschedulable
    }
    if len(chosen) < _MIN_NODES:
        raise LabRefusal(
            f"{len(chosen)} of {len(nodes)} nodes are healthy, and a comparison needs "
            f"{_MIN_NODES}; keepclose lab heal",
            code=1,
        )
    return chosen


async def _connect(
    path: ConnectionPath, clock: Callable[[], float], record: Callable[[SloSample], object]
) -> None:
    began = clock()
    try:
        (result,) = await probe([path])
    except (OSError, NetworkError):
        # The socket could not be opened, or its namespace is gone: there is no answer.
        result = ConnectionFailure.BROKEN
    record(SloSample(path.traffic, path.node, result, clock() - began))


async def _sleep_until(due: float, now: float, until: asyncio.Event) -> None:
    """Sleep until a connection is due or the event is set; always yield to other tasks."""
    if due <= now:
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(due - now):
            await until.wait()
    except TimeoutError:
        pass


def _figures(
    policy: Policy, traffic: str, samples: list[SloSample], zones: dict[str, str]
) -> SloFigures:
    sums = sum_up_slo((sample for sample in samples if sample.traffic == traffic), zones)
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
