"""The harness that judges hostile cases can tell a held loop from an idle one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from keepclose.apiserver.metrics import BEAT_SECONDS, LoopMeter
from support.hostile.attacks import ATTACKS
from support.hostile.replaying import besieged


def _burn(seconds: float) -> None:
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


async def test_a_held_loop_shows_with_all_its_cpu_time() -> None:
    """What holds the loop is observed in CPU time, and sleeping is not."""
    observed: list[float] = []
    meter = LoopMeter(observed.append)
    meter.wake()
    _burn(0.2)
    await asyncio.sleep(5 * BEAT_SECONDS)
    assert observed[0] >= 0.2
    time.sleep(0.3)  # noqa: ASYNC251 - the loop is held without CPU time
    await asyncio.sleep(5 * BEAT_SECONDS)
    assert max(observed[1:]) < 0.2


async def test_the_meter_rests_without_requests() -> None:
    """Beats end some time after the last request."""
    observed: list[float] = []
    meter = LoopMeter(observed.append)
    meter.wake()
    async with asyncio.timeout(60):
        while not observed or meter.beating:  # noqa: ASYNC110 - the meter has no event
            await asyncio.sleep(BEAT_SECONDS)
    count = len(observed)
    await asyncio.sleep(10 * BEAT_SECONDS)
    assert len(observed) == count


def test_a_replayed_attack_is_measured(tmp_path: Path) -> None:
    """Another process sends the attack while both clients are timed."""
    with besieged(tmp_path / "data", ATTACKS["idle"]) as siege:
        figures = siege.measure(0.5)
    assert figures.rounds > 0
    assert figures.statuses[200] > 0
    assert figures.gets.seconds
    assert figures.events.seconds
    assert sum(figures.busy.values()) > 0
