"""Demand over simulated time: the requests a second that the clients of each zone send, by step.

A trace holds fixed steps; its rates hold for a whole step. The built-in traces are functions of
their options alone: the same seed always gives the same trace. Except for zones that are lost,
rates scatter from step to step as measured ones do, because a rule that follows noise would look
calm on smooth curves. The mean rate of all zones together is `MEAN_RATE` as long as nothing
happens; only shares matter to hints.

Nothing here reads a clock or a file; `simulate.csv.demand` reads a trace from text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

MEAN_RATE: Final = 1000.0
NOISE: Final = 0.03
"""The relative standard deviation of a rate in one step."""
_LEAST_NOISE: Final = 0.05
"""No noise hides a zone that sends something."""
DAY_S: Final = 86_400.0
MAX_STEPS: Final = 20_000
MAX_TRACE_ZONES: Final = 12
MIN_STEP_S: Final = 1.0

_SWING: Final = 0.6
"""How far a zone's day curve rises above its mean, and falls below it."""
_CROWD: Final = 5.0
_RISE_S: Final = 120.0
_HALVING_S: Final = 120.0
_WALK_SPREAD: Final = 0.5
"""The standard deviation of the logarithm of a walking rate, in the long run."""
_WALK_MEMORY_S: Final = 21_600.0
_STEP_WEIGHTS: Final = (7.0, 2.0, 1.0)


class DemandStep(msgspec.Struct, frozen=True):
    """One step of a trace: rates by zone, and the zones whose nodes are lost."""

    rates: dict[str, float]
    lost: frozenset[str] = frozenset()

    @property
    def total(self) -> float:
        """The requests a second of all zones."""
        return math.fsum(self.rates.values())

    @property
    def shares(self) -> dict[str, float]:
        """Each zone's share of the requests, 1 together; empty if no zone sends any."""
        total = self.total
        if not total > 0.0:
            return {}
        return {zone: rate / total for zone, rate in self.rates.items()}


class DemandTrace(msgspec.Struct, frozen=True):
    """Demand by zone over time, in steps of the same length."""

    name: str
    about: str
    zones: tuple[str, ...]
    step_s: float
    steps: tuple[DemandStep, ...]

    @property
    def duration_s(self) -> float:
        """The simulated time of all steps."""
        return self.step_s * len(self.steps)


class TraceOptions(msgspec.Struct, frozen=True):
    """Size and seed of a built-in trace; `duration_s` of None is the trace's own."""

    zones: int = 3
    duration_s: float | None = None
    step_s: float | None = None
    seed: int = 0
    noise: float = NOISE


class _Frame(msgspec.Struct, frozen=True):
    """What a built-in trace is drawn on."""

    zones: tuple[str, ...]
    duration_s: float
    step_s: float
    rng: random.Random

    @property
    def times(self) -> Iterator[float]:
        """The beginnings of all steps."""
        return (number * self.step_s for number in range(count_steps(self.duration_s, self.step_s)))

    @property
    def base(self) -> float:
        """The mean rate of one zone."""
        return MEAN_RATE / len(self.zones)

    def step(self, weights: Sequence[float], lost: frozenset[str] = frozenset()) -> DemandStep:
        """Return a step from the rates of the zones in units of the mean."""
        pairs = zip(self.zones, weights, strict=True)
        return DemandStep(
            {zone: 0.0 if zone in lost else self.base * weight for zone, weight in pairs}, lost
        )


class TraceKind(msgspec.Struct, frozen=True):
    """A built-in trace: how its steps are drawn, and how long it is by default."""

    name: str
    about: str
    draw: Callable[[_Frame], Iterator[DemandStep]]
    duration_s: float = 1800.0
    step_s: float = 15.0


def make_trace(kind: TraceKind, options: TraceOptions) -> DemandTrace:
    """Return a built-in trace.

    Raises ValueError for a number of zones or steps that is out of range.
    """
    if not 2 <= options.zones <= MAX_TRACE_ZONES:
        raise ValueError(f"{options.zones} zones are not between 2 and {MAX_TRACE_ZONES}")
    duration_s = kind.duration_s if options.duration_s is None else options.duration_s
    step_s = kind.step_s if options.step_s is None else options.step_s
    check_steps(duration_s, step_s)
    frame = _Frame(
        tuple(f"zone-{'abcdefghijkl'[number]}" for number in range(options.zones)),
        duration_s,
        step_s,
        random.Random(options.seed),  # noqa: S311 (repeatable, not secret)
    )
    scatter = random.Random(f"noise {options.seed}")  # noqa: S311 (repeatable, not secret)
    steps = tuple(
        DemandStep(
            {
                zone: rate * max(_LEAST_NOISE, scatter.gauss(1.0, options.noise))
                for zone, rate in step.rates.items()
            },
            step.lost,
        )
        for step in kind.draw(frame)
    )
    return DemandTrace(kind.name, kind.about, frame.zones, step_s, steps)


def check_steps(duration_s: float, step_s: float) -> None:
    """Raise ValueError unless the duration is divided into 2 to `MAX_STEPS` steps."""
    if not (math.isfinite(step_s) and step_s >= MIN_STEP_S):
        raise ValueError(f"a step of {step_s:g} s is shorter than {MIN_STEP_S:g} s")
    if not (math.isfinite(duration_s) and count_steps(duration_s, step_s) >= 2):
        raise ValueError(f"{duration_s:g} s hold less than two steps of {step_s:g} s")
    if count_steps(duration_s, step_s) > MAX_STEPS:
        raise ValueError(f"{duration_s:g} s hold more than {MAX_STEPS:,} steps of {step_s:g} s")


def count_steps(duration_s: float, step_s: float) -> int:
    """Return how many whole steps a duration holds."""
    return int(duration_s / step_s + 1e-9)


def _draw_day(frame: _Frame) -> Iterator[DemandStep]:
    """Yield a sine for each zone; the day of each begins later than that of the zone before."""
    count = len(frame.zones)
    for time in frame.times:
        yield frame.step(
            [
                1.0 + _SWING * math.sin(2.0 * math.pi * (time / DAY_S - number / count))
                for number in range(count)
            ]
        )


def _draw_flash_crowd(frame: _Frame) -> Iterator[DemandStep]:
    """Yield equal rates, and from the first to the second third a crowd in the first zone."""
    start, end = frame.duration_s / 3.0, frame.duration_s * 2.0 / 3.0
    for time in frame.times:
        risen = min(1.0, max(0.0, time - start) / _RISE_S)
        left = 0.5 ** (max(0.0, time - end) / _HALVING_S)
        yield frame.step([1.0 + (_CROWD - 1.0) * risen * left, *[1.0] * (len(frame.zones) - 1)])


def _draw_zone_loss(frame: _Frame) -> Iterator[DemandStep]:
    """Yield equal rates; the last zone is lost from the first to the second third."""
    start, end = frame.duration_s / 3.0, frame.duration_s * 2.0 / 3.0
    for time in frame.times:
        lost = frozenset(frame.zones[-1:]) if start <= time < end else frozenset[str]()
        yield frame.step([1.0] * len(frame.zones), lost)


def _draw_random_walk(frame: _Frame) -> Iterator[DemandStep]:
    """Yield rates that walk by about a fifth in half an hour, and return to the mean in hours."""
    kept = math.exp(-frame.step_s / _WALK_MEMORY_S)
    scale = _WALK_SPREAD * math.sqrt(1.0 - kept * kept)
    logarithms = [0.0] * len(frame.zones)
    for _ in frame.times:
        yield frame.step(list(map(math.exp, logarithms)))
        logarithms = [kept * value + frame.rng.gauss(0.0, scale) for value in logarithms]


def _draw_step(frame: _Frame) -> Iterator[DemandStep]:
    """Yield equal rates, and from the first third on 70, 20 and 10 % of them."""
    count = len(frame.zones)
    weights = [*_STEP_WEIGHTS, *[_STEP_WEIGHTS[-1]] * count][:count]
    after = [weight * count / sum(weights) for weight in weights]
    for time in frame.times:
        yield frame.step(after if time >= frame.duration_s / 3.0 else [1.0] * count)


TRACES: Final = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            TraceKind(
                "day",
                "each zone's demand rises and falls by 60 % in a day, one after the other",
                _draw_day,
                DAY_S,
                60.0,
            ),
            TraceKind(
                "flash-crowd",
                "for a third of the time one zone sends five times as much",
                _draw_flash_crowd,
            ),
            TraceKind(
                "zone-loss",
                "for a third of the time one zone has neither clients nor endpoints",
                _draw_zone_loss,
            ),
            TraceKind("random-walk", "the demand of each zone walks at random", _draw_random_walk),
            TraceKind(
                "step", "after a third of the time the zones send 70, 20 and 10 %", _draw_step
            ),
        )
    }
)
"""The built-in traces by name."""
