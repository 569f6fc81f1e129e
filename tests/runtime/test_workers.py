"""Workers: failures come back a limited number of times, and stopping is orderly."""

from __future__ import annotations

import asyncio

from keepclose.kube.errors import ApiError, Conflict, ConnectionLost
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.meta import NamespacedName
from keepclose.runtime.workers import Result, SyncResult, Workers
from keepclose.testing.fake_clock import FakeClock

KEY = NamespacedName("default", "web")


class Work:
    """Syncs that end as a test says; an exception is raised."""

    def __init__(self, clock: FakeClock, *results: SyncResult | Exception) -> None:
        self._clock = clock
        self._results = list(results)
        self.visits: list[float] = []
        self.told: list[Result] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def sync(self, key: NamespacedName) -> SyncResult:
        """Return or raise the next result, the last one again and again."""
        assert key == KEY
        self.visits.append(self._clock.monotonic())
        await self.gate.wait()
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(result, Exception):
            raise result
        return result

    def tell(self, _key: NamespacedName, result: Result, _seconds: float) -> None:
        """Note a result."""
        self.told.append(result)


def start(
    clock: FakeClock, work: Work
) -> tuple[WorkQueue[NamespacedName], Workers[NamespacedName]]:
    """Start two workers."""
    queue: WorkQueue[NamespacedName] = WorkQueue(clock)
    workers = Workers(queue, work.sync, number=2, most_retries=3, clock=clock, on_synced=work.tell)
    workers.start()
    return queue, workers


async def test_a_failed_key_comes_back_after_growing_delays_and_is_given_up() -> None:
    """1, 2 and 4 seconds later; then only a new change brings it back, from the start."""
    clock = FakeClock()
    work = Work(clock, Result.ERROR)
    queue, workers = start(clock, work)
    queue.add(KEY)
    await clock.advance(100)
    assert [at - 1000 for at in work.visits] == [0, 1, 3, 7]
    queue.add(KEY)
    await clock.advance(1)
    assert [at - 1000 for at in work.visits[4:]] == [100, 101]
    await workers.stop(1)


async def test_an_exception_is_one_failure_and_success_resets_the_delays() -> None:
    """A worker survives whatever a sync raises."""
    clock = FakeClock()
    work = Work(clock, ValueError("broken"), Result.STALE, Result.SUCCESS)
    queue, workers = start(clock, work)
    queue.add(KEY)
    await clock.advance(100)
    assert work.told == [Result.ERROR, Result.STALE, Result.SUCCESS]
    assert queue.failures(KEY) == 0
    await workers.stop(1)


async def test_stopping_lets_a_sync_end_and_begins_no_other() -> None:
    """What is under way ends; what stands in line is left to the next controller."""
    clock = FakeClock()
    work = Work(clock, Result.SUCCESS)
    work.gate.clear()
    queue, workers = start(clock, work)
    queue.add(KEY)
    await clock.run_until_idle()
    queue.add(KEY)
    stopping = asyncio.create_task(workers.stop(3))
    await clock.run_until_idle()
    assert not stopping.done()
    work.gate.set()
    await clock.run_until_idle()
    assert stopping.done()
    assert work.told == [Result.SUCCESS]


async def test_a_sync_that_does_not_end_is_cut_off() -> None:
    """After the time of grace the workers are gone all the same."""
    clock = FakeClock()
    work = Work(clock, Result.SUCCESS)
    work.gate.clear()
    queue, workers = start(clock, work)
    queue.add(KEY)
    stopping = asyncio.create_task(workers.stop(3))
    await clock.advance(3)
    assert stopping.done()
    assert work.told == []


async def test_errors_of_the_server_are_retried_when_it_says() -> None:
    """A conflict is a stale cache; Retry-After holds even beyond the number of retries."""
    clock = FakeClock()
    busy = ApiError(429, retry_after=30.0)
    work = Work(clock, Conflict(409), ConnectionLost("server", "gone"), busy, busy, None)
    queue, workers = start(clock, work)
    queue.add(KEY)
    await clock.advance(100)
    assert [at - 1000 for at in work.visits] == [0, 1, 3, 33, 63]
    assert work.told == [Result.STALE, *(Result.ERROR,) * 3, Result.SUCCESS]
    await workers.stop(1)


async def test_a_key_that_is_due_again_comes_back() -> None:
    """A sync that returns seconds has succeeded, and its key is synced again after them."""
    clock = FakeClock()
    work = Work(clock, 5.0, 7.0, None)
    queue, workers = start(clock, work)
    queue.add(KEY)
    await clock.advance(100)
    assert [at - 1000 for at in work.visits] == [0, 5, 12]
    assert queue.failures(KEY) == 0
    await workers.stop(1)


async def test_without_a_limit_every_key_is_synced_at_once() -> None:
    """Keys that wait delay no other; a run that is cancelled cancels them."""
    clock = FakeClock()
    running: list[int] = []
    cancelled: list[int] = []

    async def sync(key: int) -> None:
        running.append(key)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.append(key)

    queue: WorkQueue[int] = WorkQueue(clock)
    task = asyncio.create_task(Workers(queue, sync, clock=clock).run())
    for key in range(20):
        queue.add(key)
    await clock.run_until_idle()
    assert running == list(range(20))
    task.cancel()
    await asyncio.wait((task,))
    assert sorted(cancelled) == running
    assert queue.running == 0
