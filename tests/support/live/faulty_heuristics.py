"""Heuristics as third parties may write them, most of them faulty, for processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keepclose.routing.heuristic_answers import (
    Allotment,
    FailureCause,
    HeuristicFailure,
    Matrix,
    ZoneDemand,
)

HOLD_VARIABLE = "KEEPCLOSE_TEST_HOLD"
"""Names the file that `waits` waits for to be removed."""


class Made:
    """A heuristic made of a function."""

    def __init__(self, allocate: Callable[[ZoneDemand], object]) -> None:
        self._allocate = allocate

    def allocate(self, demand: ZoneDemand) -> object:
        """Do what the function does."""
        return self._allocate(demand)


def _stay(demand: ZoneDemand) -> Matrix:
    print("a heuristic may print")  # noqa: T201 - that is what is tried
    return {zone: {zone: number} for zone, number in demand.endpoints.items()}


def _raise(demand: ZoneDemand) -> Matrix:
    raise ValueError(f"cannot divide\n{len(demand.endpoints)} zones")


def _spin(_demand: ZoneDemand) -> Matrix:
    # One call of C code that never gives way to another thread of its process.
    sum(range(10**15))
    return {}


def _exit(_demand: ZoneDemand) -> Matrix:
    os._exit(3)


def _kill(_demand: ZoneDemand) -> Matrix:
    os.kill(os.getpid(), signal.SIGRTMIN + 6)
    return {}


def _wait(demand: ZoneDemand) -> Matrix:
    hold = Path(os.environ[HOLD_VARIABLE])
    if hold.exists():
        hold.with_suffix(".asked").touch()
    while hold.exists():
        time.sleep(0.01)
    return _stay(demand)


def _abuse(demand: ZoneDemand) -> object:
    return {zone: {zone: float("nan")} for zone in demand.endpoints}


def _weigh_badly(demand: ZoneDemand) -> object:
    return Allotment(_stay(demand), (), {zone: {"zone-x": 10**30} for zone in demand.shares})


def _serve_unknown(demand: ZoneDemand) -> object:
    return {zone: {f"{zone},zone-x": number} for zone, number in demand.endpoints.items()}


def _share_all(demand: ZoneDemand) -> object:
    # Only where every endpoint has a node of its own, so that the answer shows what was asked.
    alone = all(set(row) == {1} for row in demand.spread.values())
    if not alone or demand.nodes.keys() != demand.shares.keys() or demand.source != "cpu":
        return {}
    group = ",".join(sorted(demand.nodes))
    return {zone: {group: number} for zone, number in demand.endpoints.items()}


def _scribble(demand: ZoneDemand) -> object:
    given: Any = demand
    for mapping in (given.nodes, given.spread[next(iter(given.spread))], given.spread):
        mapping.clear()
    return _stay(demand)


def _leave(_demand: ZoneDemand) -> Matrix:
    sys.exit(4)


def _signal(_demand: ZoneDemand) -> Matrix:
    os.kill(os.getpid(), signal.SIGRTMIN + 6)
    return {}


def _fork(demand: ZoneDemand) -> Matrix:
    if os.fork() == 0:
        signal.pause()
    return _stay(demand)


def _fork_and_spin(demand: ZoneDemand) -> Matrix:
    _fork(demand)
    return _spin(demand)


def _return_twice(demand: ZoneDemand) -> Matrix:
    os.fork()
    return _stay(demand)


def _find_replies() -> int:
    """Return the descriptor of the pipe that answers go to."""
    return max(
        number
        for number in range(3, 64)
        if os.path.exists(f"/proc/self/fd/{number}")  # noqa: PTH110 - quick
        and os.readlink(f"/proc/self/fd/{number}").startswith("pipe:")  # noqa: PTH115
    )


def _answer_first(demand: ZoneDemand) -> Matrix:
    os.write(_find_replies(), b'1 {"type":"Refusal","reason":{"code":"Allocated","message":""}}\n')
    return _stay(demand)


def _nest(demand: ZoneDemand) -> Matrix:
    os.write(_find_replies(), b'1 {"type":"Allotment","x":' + b"[" * 50_000 + b"\n")
    return _stay(demand)


def _close(demand: ZoneDemand) -> Matrix:
    os.closerange(0, 64)
    return _stay(demand)


def _hoard(demand: ZoneDemand) -> Matrix:
    bytearray(3 << 30)
    return _stay(demand)


def _ramble(_demand: ZoneDemand) -> object:
    return HeuristicFailure(FailureCause.RAISED, "\x1b[2Jno\nidea " * 50_000)


def _mumble(_demand: ZoneDemand) -> object:
    raise ValueError("\ud800 is no letter")


stay = Made(_stay)
leaves = Made(_leave)
signals = Made(_signal)
forks = Made(_fork)
forks_and_spins = Made(_fork_and_spin)
returns_twice = Made(_return_twice)
answers_first = Made(_answer_first)
nests = Made(_nest)
closes = Made(_close)
hoards = Made(_hoard)
rambles = Made(_ramble)
mumbles = Made(_mumble)
raises = Made(_raise)
spins = Made(_spin)
exits = Made(_exit)
kills = Made(_kill)
waits = Made(_wait)
abuses = Made(_abuse)
weighs_badly = Made(_weigh_badly)
serves_unknown = Made(_serve_unknown)
shares_all = Made(_share_all)
scribbles = Made(_scribble)
