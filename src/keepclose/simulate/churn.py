"""What a mechanism costs over time: re-hinted endpoints, slices written, steps without hints.

Every step of a scenario goes through the planner that the controller runs, with real objects in
memory, and the slices it writes are compared with those before. A mechanism that forgets gets its
slices without their hints each time, which shows what its memory is worth. Nothing here keeps any
state between two comparisons.

`count_rehints` counts the endpoints that a single change re-hints, on three zones. It compares
counts alone, so every allocator is assumed to make the fewest changes that its allocations allow.
Hints that appear or vanish altogether, because an allocator gives up for a while, do not count.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import FOR_ZONE_LABEL
from keepclose.model.workload import Pod
from keepclose.model.zone_weights import read_zone_weights
from keepclose.routing.allocation.balanced import HintedZones, balance
from keepclose.routing.allocation.kube_auto import allocate_kube_auto
from keepclose.routing.allocation.local import allocate_local
from keepclose.routing.hint_facts import group_of, with_hints, zones_of
from keepclose.routing.traffic_shares import divide_shares
from keepclose.routing.zone_weights import evaluate_zone_weights
from keepclose.simulate.mechanisms import EventKind, Mechanism, Scenario, ScenarioStep, play
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import ClusterNodes

ANY_ZONE: Final = ""
"""The served zone of an endpoint that no hint and no label restricts."""
Serving = dict[str, tuple[str, str]]
"""By pod: the zone of its endpoint, and the group of zones that it serves."""
HintRows = list[dict[HintedZones, int]]
"""By location: how many endpoints are hinted for which zones."""
AllocationStep = Callable[[Sequence[float], Sequence[int], HintRows], HintRows | None]


class StepChurn(msgspec.Struct, frozen=True):
    """What one step cost, and its result."""

    event: EventKind
    endpoints: int
    rehinted: int
    """Endpoints that existed before and now serve other zones, or any zone."""
    written: int
    """Slices created, updated or deleted."""
    is_random: bool
    """Whether an endpoint has neither hint nor label, so that every client uses all endpoints."""
    in_zone: float
    """The share of the traffic that stays in its zone."""
    overload: float
    """The load of the busiest endpoint beyond an even share; 0.25 is a quarter more."""


class Churn(msgspec.Struct, frozen=True):
    """The churn of one mechanism in a scenario; the start is the first step and costs nothing."""

    mechanism: str
    scenario: str
    steps: tuple[StepChurn, ...]

    @property
    def changes(self) -> tuple[StepChurn, ...]:
        """The steps after the start."""
        return self.steps[1:]

    @property
    def rehinted(self) -> int:
        """Endpoints that were re-hinted, in all steps."""
        return sum(step.rehinted for step in self.changes)

    @property
    def written(self) -> int:
        """Slices written, in all steps."""
        return sum(step.written for step in self.changes)

    @property
    def random_share(self) -> float:
        """The share of the steps that left the Service without hints and labels."""
        return _mean([float(step.is_random) for step in self.changes])

    @property
    def in_zone(self) -> float:
        """The mean share of the traffic that stays in its zone."""
        return _mean([step.in_zone for step in self.changes])

    @property
    def mean_overload(self) -> float:
        """The mean over the steps of the busiest endpoint's load beyond an even share."""
        return _mean([step.overload for step in self.changes])

    @property
    def worst_overload(self) -> float:
        """The highest load of any endpoint beyond an even share."""
        return max((step.overload for step in self.changes), default=0.0)


def compare_churn(
    mechanisms: Iterable[Mechanism], scenario: Scenario, seed: int
) -> tuple[Churn, ...]:
    """Return the churn of each mechanism over the same steps of a scenario."""
    steps = play(scenario, seed)
    return tuple(
        measure_churn(mechanism, steps, scenario=scenario.name) for mechanism in mechanisms
    )


def measure_churn(mechanism: Mechanism, steps: Sequence[ScenarioStep], *, scenario: str) -> Churn:
    """Return what each step costs with a mechanism; no steps cost nothing."""
    pods: dict[NamespacedName, Pod] = {}
    slices: list[EndpointSlice] = []
    serving: Serving = {}
    measured = []
    for step in steps:
        for key in step.removed:
            del pods[key]
        pods.update((pod.key, pod) for pod in step.added)
        cluster = ClusterNodes.of(step.nodes)
        seen = slices if mechanism.remembers else list(map(_without_hints, slices))
        plan = plan_service(
            mechanism.service,
            pods=pods.values(),
            slices=seen,
            cluster=cluster,
            settings=mechanism.settings,
        )
        after = seen
        for writes in plan.plans.values():
            after = apply_plan(after, writes)
        now = read_serving(after)
        in_zone, overload = evaluate_traffic(cluster.shares.by_zone, now)
        measured.append(
            StepChurn(
                event=step.event,
                endpoints=len(now),
                rehinted=sum(
                    name in serving and serving[name][1] != served
                    for name, (_, served) in now.items()
                ),
                written=count_written(slices, after),
                is_random=any(served == ANY_ZONE for _, served in now.values()),
                in_zone=in_zone,
                overload=overload,
            )
        )
        slices, serving = after, now
    return Churn(mechanism.name, scenario, tuple(measured))


def evaluate_traffic(shares: Mapping[str, float], serving: Serving) -> tuple[float, float]:
    """Return the share of the traffic that stays in its zone, and the highest overload.

    A zone that no endpoint serves uses all of them, and so do all zones as soon as one endpoint
    serves any zone: proxies then ignore the hints. No endpoints give (0, 0).
    """
    total = len(serving)
    if total == 0:
        return 0.0, 0.0
    located = Counter(zone for zone, _ in serving.values())
    groups = Counter(group for _, group in serving.values())
    users = Counter(zone for _, group in serving.values() for zone in zones_of(group))
    in_own_zone = Counter(zone for zone, group in serving.values() if zone in zones_of(group))
    in_zone = everywhere = 0.0
    by_zone: dict[str, float] = {}
    for zone, share in shares.items():
        if ANY_ZONE in groups or zone not in users:
            everywhere += share / total
            in_zone += share * located[zone] / total
        else:
            by_zone[zone] = share / users[zone]
            in_zone += share * in_own_zone[zone] / users[zone]
    busiest = max(sum(by_zone.get(zone, 0.0) for zone in zones_of(group)) for group in groups)
    return in_zone, max(0.0, total * (busiest + everywhere) - 1.0)


def evaluate_slices(
    shares: Mapping[str, float], slices: Sequence[EndpointSlice], serving: Serving
) -> tuple[float, float]:
    """Return what `evaluate_traffic` does, where all proxies follow the weights of the slices.

    Without weights, or beside an endpoint without hints, proxies go by the hints.
    """
    written = read_zone_weights(slices)
    is_hinted = all(served != ANY_ZONE for _, served in serving.values())
    if written is None or written.problem or not is_hinted:
        return evaluate_traffic(shares, serving)
    matrix: dict[str, Counter[str]] = {}
    for location, group in serving.values():
        matrix.setdefault(location, Counter())[group] += 1
    return evaluate_zone_weights(written, matrix, shares=shares)


def read_serving(slices: Iterable[EndpointSlice]) -> Serving:
    """Return the zone and the served zones of each pod that is an endpoint."""
    serving: Serving = {}
    for endpoint_slice in slices:
        label = endpoint_slice.metadata.labels.get(FOR_ZONE_LABEL, ANY_ZONE)
        for endpoint in endpoint_slice.endpoints:
            served = group_of(endpoint.hints) or label
            if endpoint.target_ref is not None:
                serving[endpoint.target_ref.name] = (endpoint.zone or "", served)
    return serving


def count_written(before: Iterable[EndpointSlice], after: Iterable[EndpointSlice]) -> int:
    """Return how many slices were created, changed or deleted."""
    old = {endpoint_slice.metadata.name: _content(endpoint_slice) for endpoint_slice in before}
    new = {endpoint_slice.metadata.name: _content(endpoint_slice) for endpoint_slice in after}
    return sum(old.get(name) != new.get(name) for name in old.keys() | new.keys())


def step_balanced(
    shares: Sequence[float], endpoints: Sequence[int], written: HintRows
) -> HintRows | None:
    """Return what "balanced" allocates, starting from the written hints."""
    result = balance(shares, endpoints, previous=written)
    return None if result.shared else list(result.hints)


def step_auto(shares: Sequence[float], endpoints: Sequence[int], _: HintRows) -> HintRows | None:
    """Return what the topology mode Auto allocates."""
    matrix = [0] * 9
    code = allocate_kube_auto(3, shares, endpoints, 0.2, 0, matrix, [0] * 64, [0.0] * 64)
    return _rows(matrix) if code == 1 else None


def step_local(shares: Sequence[float], endpoints: Sequence[int], _: HintRows) -> HintRows | None:
    """Return what the allocator local of KEP-2004 allocates."""
    matrix = [0] * 9
    code = allocate_local(3, shares, endpoints, 0.5, 3, matrix, [0] * 64, [0.0] * 64)
    return _rows(matrix) if code == 1 else None


def _rows(matrix: Sequence[int]) -> HintRows:
    return [{(zone,): matrix[row * 3 + zone] for zone in range(3)} for row in range(3)]


REHINT_STEPS: Final[dict[str, AllocationStep]] = {
    "balanced": step_balanced,
    "kube-auto": step_auto,
    "local": step_local,
}


def count_rehints(step: AllocationStep, changes: int, seed: int) -> float:
    """Return how many existing endpoints are re-hinted per added or removed endpoint.

    Each run of 20 changes starts with new zones and 6 to 60 endpoints in them.
    """
    rng = random.Random(seed)  # noqa: S311 (repeatable, not secret)
    rehints = 0
    for _ in range(changes // 20):
        shares = divide_shares([rng.randint(1, 10) for _ in range(3)])
        endpoints = [0, 0, 0]
        for _ in range(rng.randint(6, 60)):
            endpoints[rng.randrange(3)] += 1
        written = step(shares, endpoints, [])
        for _ in range(20):
            total = sum(endpoints)
            adding = total == 6 or (total < 60 and rng.random() < 0.5)
            zone = rng.randrange(3) if adding else rng.choices(range(3), endpoints)[0]
            pick = rng.random()
            if written is not None and not adding:
                number = int(pick * endpoints[zone])
                for served in sorted(written[zone]):
                    if number < written[zone][served]:
                        written[zone][served] -= 1
                        break
                    number -= written[zone][served]
            endpoints[zone] += 1 if adding else -1
            after = step(shares, endpoints, written or [])
            if written is not None and after is not None:
                rehints += sum(
                    max(0, number - new.get(served, 0))
                    for old, new in zip(written, after, strict=True)
                    for served, number in old.items()
                )
            written = after
    return rehints / changes


def _content(endpoint_slice: EndpointSlice) -> tuple[object, ...]:
    metadata = endpoint_slice.metadata
    return endpoint_slice.endpoints, endpoint_slice.ports, metadata.labels, metadata.annotations


def _without_hints(endpoint_slice: EndpointSlice) -> EndpointSlice:
    return replace(
        endpoint_slice,
        endpoints=tuple(with_hints(endpoint, None) for endpoint in endpoint_slice.endpoints),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
