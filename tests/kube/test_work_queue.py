"""Keys in line, one worker each, with delays after failures."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.kube.work_queue import WorkQueue
from keepclose.testing.fake_clock import FakeClock


def next_of(queue: WorkQueue[str]) -> asyncio.Future[str | None]:
    """Start to wait for a key."""
    return asyncio.ensure_future(queue.get())


async def test_a_key_stands_in_line_once() -> None:
    """Adding a key that waits already changes nothing; order is that of the first adding."""
    queue: WorkQueue[str] = WorkQueue(FakeClock())

    for key in ("a", "b", "a", "a"):
        queue.add(key)

    assert (queue.depth, queue.adds) == (2, 2)
    assert [await queue.get(), await queue.get()] == ["a", "b"]


async def test_a_key_is_never_with_two_workers() -> None:
    """A key added while it is worked on comes once more, and only after the work has ended."""
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add("a")
    assert await queue.get() == "a"
    second = next_of(queue)

    queue.add("a")
    queue.add("a")
    await clock.run_until_idle()
    assert not second.done()
    assert queue.depth == 0

    queue.done("a")
    await clock.run_until_idle()
    assert second.result() == "a"

    queue.done("a")
    assert queue.depth == 0


async def test_done_without_work_is_harmless() -> None:
    """Handing back what was not taken changes nothing."""
    queue: WorkQueue[str] = WorkQueue(FakeClock())
    queue.add("a")

    queue.done("a")
    queue.done("b")

    assert queue.depth == 1
    assert await queue.get() == "a"


async def test_waiting_workers_get_one_key_each() -> None:
    """Keys added together wake as many workers as there are keys."""
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    waiting = [next_of(queue) for _ in range(3)]
    await clock.run_until_idle()

    queue.add("a")
    queue.add("b")
    await clock.run_until_idle()

    assert [one.result() for one in waiting if one.done()] == ["a", "b"]
    queue.shut_down()
    await clock.run_until_idle()
    assert waiting[2].result() is None


async def test_a_cancelled_worker_takes_no_key_with_it() -> None:
    """When the worker that was woken is cancelled before it looks, another one gets the key."""
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    first, second = next_of(queue), next_of(queue)
    await clock.run_until_idle()

    queue.add("a")
    first.cancel()
    await clock.run_until_idle()

    assert first.cancelled()
    assert second.result() == "a"


async def test_delayed_keys_come_when_they_are_due() -> None:
    """A delayed key is not in line before its time, and wakes a worker that waits."""
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("late", 5.0)
    waiting = next_of(queue)

    await clock.advance(4.9)
    assert not waiting.done()
    assert (queue.depth, queue.delayed, queue.adds) == (0, 1, 0)

    await clock.advance(0.1)
    assert waiting.result() == "late"
    assert (queue.depth, queue.delayed, queue.adds) == (0, 0, 1)


@pytest.mark.parametrize(
    ("delays", "want_times"),
    [
        pytest.param([5.0, 2.0], [2.0], id="an earlier time replaces a later one"),
        pytest.param([2.0, 5.0], [2.0], id="a later time is ignored"),
        pytest.param([5.0, 0.0], [0.0, 5.0], id="a visit now does not replace the one to come"),
        pytest.param([5.0, -1.0], [0.0, 5.0], id="a time in the past is now"),
    ],
)
async def test_the_earliest_of_several_times_counts(
    delays: list[float], want_times: list[float]
) -> None:
    """One key has at most one time to come, the earliest asked for."""
    clock = FakeClock(monotonic=0.0)
    queue: WorkQueue[str] = WorkQueue(clock)
    times: list[float] = []

    async def work() -> None:
        while (key := await queue.get()) is not None:
            times.append(clock.monotonic())
            queue.done(key)

    worker = asyncio.ensure_future(work())
    await clock.run_until_idle()
    for delay in delays:
        queue.add_after("a", delay)
    await clock.advance(20.0)
    queue.shut_down()
    await clock.run_until_idle()

    assert times == want_times
    assert worker.done()


async def test_a_worker_that_waits_for_later_learns_of_sooner() -> None:
    """A nearer time added meanwhile is kept although the worker waited for a farther one."""
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("later", 10.0)
    waiting = next_of(queue)
    await clock.run_until_idle()

    queue.add_after("sooner", 1.0)
    await clock.advance(1.0)

    assert waiting.result() == "sooner"


async def test_a_time_that_was_replaced_does_not_come_up_again() -> None:
    """The later of two times is dropped for good, also when a third one is set meanwhile."""
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("a", 5.0)
    queue.add_after("a", 2.0)
    await clock.advance(2.0)
    assert await queue.get() == "a"
    queue.done("a")

    queue.add_after("a", 10.0)
    await clock.advance(9.0)
    assert (queue.depth, queue.delayed) == (0, 1)
    await clock.advance(1.0)

    assert (queue.depth, queue.delayed) == (1, 0)


async def test_failures_of_one_key_double_its_delay() -> None:
    """The delay starts at 1 s, doubles up to 1000 s, and starts anew once forgotten."""
    queue: WorkQueue[str] = WorkQueue(FakeClock())

    delays = [queue.retry("a") for _ in range(12)]

    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]
    assert queue.failures("a") == 12
    assert queue.retry("b") == 1
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") == 1
    assert queue.retries == 14


async def test_delays_can_be_set() -> None:
    """The delays of queues for pods start at 5 ms."""
    queue: WorkQueue[str] = WorkQueue(FakeClock(), first_delay_s=0.005, cap_delay_s=0.015)

    assert [queue.retry("a") for _ in range(3)] == [0.005, 0.01, 0.015]


async def test_many_failures_at_once_are_spread_by_the_overall_rate() -> None:
    """Beyond a burst of 100, retries of any keys come at 10 a second."""
    queue: WorkQueue[str] = WorkQueue(FakeClock())

    delays = [queue.retry(f"key-{number}") for number in range(130)]

    assert delays[:110] == [1.0] * 110
    assert delays[129] == pytest.approx(3.0)


async def test_a_retried_key_comes_back_after_its_delay() -> None:
    """The usual loop: work fails, the key is retried and done, and comes again later."""
    clock = FakeClock(monotonic=0.0)
    queue: WorkQueue[str] = WorkQueue(clock)
    times: list[float] = []

    async def work() -> None:
        while (key := await queue.get()) is not None:
            times.append(clock.monotonic())
            queue.retry(key)
            queue.done(key)

    worker = asyncio.ensure_future(work())
    queue.add("a")
    await clock.advance(20.0)

    assert times == [0.0, 1.0, 3.0, 7.0, 15.0]
    queue.shut_down()
    await clock.run_until_idle()
    assert worker.done()


async def test_a_queue_that_was_shut_down_hands_out_what_is_left() -> None:
    """Keys in line are still handed out, delayed ones and new ones are not."""
    queue: WorkQueue[str] = WorkQueue(FakeClock())
    queue.add("a")
    queue.add_after("b", 1.0)

    queue.shut_down()
    queue.add("c")
    queue.add_after("d", 0.0)
    queue.retry("e")

    assert [await queue.get(), await queue.get()] == ["a", None]
    assert (queue.delayed, queue.retries) == (0, 0)


async def test_draining_waits_for_the_workers() -> None:
    """Draining ends when nothing is in line and no worker is at a key."""
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "a"
    draining = asyncio.ensure_future(queue.drain())

    await clock.run_until_idle()
    queue.done("a")
    await clock.run_until_idle()
    assert not draining.done()

    assert await queue.get() == "b"
    queue.done("b")
    await clock.run_until_idle()
    assert draining.done()


async def test_figures_tell_what_workers_are_at() -> None:
    """Latency counts from when a key was due, work from when it was taken."""
    clock = FakeClock()
    latencies: list[float] = []
    works: list[float] = []
    queue: WorkQueue[str] = WorkQueue(clock, on_latency=latencies.append, on_work=works.append)
    queue.add_after("a", 2.0)
    await clock.advance(5.0)
    queue.add("b")

    assert queue.longest_running_s == 0.0
    assert await queue.get() == "a"
    await clock.advance(3.0)
    assert await queue.get() == "b"
    await clock.advance(1.0)

    assert (queue.running, queue.longest_running_s, queue.unfinished_s) == (2, 4.0, 5.0)
    queue.done("a")
    queue.done("b")
    assert latencies == [3.0, 3.0]
    assert works == [4.0, 1.0]
    assert (queue.running, queue.longest_running_s) == (0, 0.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "after", "retry", "advance"]),
        st.sampled_from("abc"),
        st.sampled_from([0.5, 1.0, 3.0]),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=100)
@given(steps=STEPS, workers=st.integers(1, 3))
def test_nothing_added_is_lost_and_nobody_works_on_the_same(
    steps: list[tuple[str, str, float]], workers: int
) -> None:
    """Every key is visited after it was last added, and by one worker at a time."""

    async def play() -> None:
        clock = FakeClock()
        queue: WorkQueue[str] = WorkQueue(clock)
        busy: set[str] = set()
        visited: dict[str, int] = {}
        added: dict[str, int] = {}

        async def work() -> None:
            while (key := await queue.get()) is not None:
                assert key not in busy
                busy.add(key)
                visited[key] = now[0]
                await clock.sleep(0.7)
                busy.discard(key)
                queue.done(key)

        now = [0]
        tasks = [asyncio.ensure_future(work()) for _ in range(workers)]
        for step, key, seconds in steps:
            now[0] += 1
            if step == "advance":
                await clock.advance(seconds)
                continue
            added[key] = now[0]
            if step == "add":
                queue.add(key)
            elif step == "after":
                queue.add_after(key, seconds)
            else:
                queue.retry(key)
        now[0] += 1
        await clock.advance(1200.0 * 5)
        assert queue.depth == queue.delayed == queue.running == 0
        assert all(visited[key] >= added[key] for key in added)
        queue.shut_down()
        await asyncio.gather(*tasks)

    asyncio.run(play())
