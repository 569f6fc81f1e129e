"""Tests of when the garbage collector looks at what a controller holds."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from keepclose.runtime.program import GC_THRESHOLD, IDLE_POLL_S, tune_garbage_collection
from keepclose.testing.fake_clock import FakeClock


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector as it was."""
    threshold = gc.get_threshold()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*threshold)


async def test_the_collector_rests_until_the_first_work_is_done() -> None:
    """It is away while caches fill and syncs are made, and then sees only what is new."""
    clock, ready, idle = FakeClock(), asyncio.Event(), False
    gc.unfreeze()
    task = asyncio.create_task(tune_garbage_collection(ready, lambda: idle, clock=clock))
    await clock.advance(0.0)
    assert not gc.isenabled()
    ready.set()
    await clock.advance(3 * IDLE_POLL_S)
    assert not gc.isenabled()
    idle = True
    await clock.advance(IDLE_POLL_S)
    await task
    assert gc.isenabled()
    assert gc.get_threshold()[0] == GC_THRESHOLD
    assert gc.get_freeze_count() > 0


async def test_a_controller_that_stops_early_leaves_the_collector_as_it_was() -> None:
    """Nothing is frozen when the first work was never done."""
    threshold = gc.get_threshold()
    gc.unfreeze()
    task = asyncio.create_task(
        tune_garbage_collection(asyncio.Event(), lambda: True, clock=FakeClock())
    )
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert gc.isenabled()
    assert gc.get_threshold() == threshold
    assert gc.get_freeze_count() == 0


async def test_a_queue_that_never_empties_does_not_keep_the_collector_away() -> None:
    """After ten minutes it comes back all the same."""
    clock, ready = FakeClock(), asyncio.Event()
    ready.set()
    task = asyncio.create_task(tune_garbage_collection(ready, lambda: False, clock=clock))
    await clock.advance(600 * IDLE_POLL_S)
    await task
    assert gc.isenabled()
