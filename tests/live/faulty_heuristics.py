"""Heuristics as third parties may write them, most of them faulty, for processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from keepclose.routing.answers import Matrix, ZoneDemand

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


stay = Made(_stay)
raises = Made(_raise)
spins = Made(_spin)
exits = Made(_exit)
kills = Made(_kill)
waits = Made(_wait)
abuses = Made(_abuse)
