"""Work beside the event loop is shared fairly, is bounded, and ends with the server."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keepclose.apiserver.serving.fair_queue import (
    SHARE_SECONDS,
    TURN_SECONDS,
    Abandoned,
    RequestThreads,
    Turns,
    collect_cycles,
)
from keepclose.apiserver.status_errors import StatusError
from keepclose.testing.api_server import PATIENCE
from support.hostile.attackers import Attacker, Target
from support.hostile.attacks import Tree
from support.server_processes import embedded_server


def _burn(seconds: float) -> None:
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


async def _started(
    workers: RequestThreads, hold: threading.Event, identity: str
) -> asyncio.Task[bool]:
    """Have the identity hold a thread until the event is set."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> bool:
        loop.call_soon_threadsafe(begun.set)
        return hold.wait(PATIENCE)

    task = asyncio.ensure_future(workers.run(identity, work))
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    return task


async def test_the_identity_that_used_least_goes_first() -> None:
    """A node that has used much CPU time waits behind a controller that comes later."""
    workers = RequestThreads(threads=1)
    order: list[str] = []
    try:
        await workers.run("node", lambda: _burn(0.05))
        hold = threading.Event()
        holder = await _started(workers, hold, "other")
        tasks = [
            asyncio.ensure_future(workers.run(name, lambda name=name: order.append(name)))  # type: ignore[misc]
            for name in ("node", "node", "controller")
        ]
        await asyncio.sleep(0)
        hold.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(holder, *tasks)
        assert order == ["controller", "node", "node"]
    finally:
        workers.close()


async def test_an_identity_runs_one_thing_at_a_time() -> None:
    """A second piece of work of one identity waits although a thread is free."""
    workers = RequestThreads(threads=2)
    hold = threading.Event()
    try:
        first = await _started(workers, hold, "node")
        second = asyncio.ensure_future(workers.run("node", lambda: "second"))
        async with asyncio.timeout(PATIENCE):
            assert await workers.run("controller", lambda: "other") == "other"
        assert not second.done()
        hold.set()
        async with asyncio.timeout(PATIENCE):
            await first
            assert await second == "second"
    finally:
        hold.set()
        workers.close()


async def test_a_full_queue_answers_429_and_exempts_administrators() -> None:
    """Beyond the bound an identity is asked to try later; an administrator's work is queued."""
    workers = RequestThreads(threads=1, most_queued=2)
    hold = threading.Event()
    try:
        first = await _started(workers, hold, "node")
        queued = [asyncio.ensure_future(workers.run("node", int)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StatusError) as refused:
            await workers.run("node", int)
        assert (refused.value.code, refused.value.retry_after) == (429, 1)
        admin = asyncio.ensure_future(workers.run("node", lambda: "admin", exempt=True))
        hold.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(first, *queued)
            assert await admin == "admin"
    finally:
        hold.set()
        workers.close()


async def test_work_that_waits_for_the_loop_ends_when_the_workers_are_closed() -> None:
    """A step that the loop has not taken yet is given up, and so is all that comes after."""
    workers = RequestThreads(threads=1)
    hold = threading.Event()
    outcome: list[str] = []
    ended = threading.Event()

    def work() -> None:
        hold.wait(PATIENCE)
        try:
            workers.on_loop(lambda: None)
        except Abandoned:
            outcome.append("abandoned")
        ended.set()

    task = asyncio.ensure_future(workers.run("node", work))
    await asyncio.sleep(0)
    workers.close()
    hold.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert outcome == ["abandoned"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_small_requests_beyond_the_share_take_turns() -> None:
    """Others get their answer before all that a busy identity has queued."""
    turns: Turns[str] = Turns()
    now = time.perf_counter()
    assert not turns.must_wait("node", now)
    turns.spend("node", now, SHARE_SECONDS * 2)
    assert turns.must_wait("node", now)
    assert not turns.must_wait("controller", now)
    order: list[str] = []

    def work(name: str) -> Callable[[], str]:
        def run() -> str:
            _burn(TURN_SECONDS)
            order.append(name)
            return name

        return run

    tasks = [asyncio.ensure_future(turns.run("node", work("node"))) for _ in range(10)]
    tasks.append(asyncio.ensure_future(turns.run("controller", work("controller"))))
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)
    assert order.index("controller") <= 2
    assert order.count("node") == 10


async def test_a_full_queue_of_small_requests_answers_429() -> None:
    """So many connections of one identity may wait, and no more."""
    turns: Turns[str] = Turns(most_queued=2)
    tasks = [asyncio.ensure_future(turns.run("node", lambda: "x")) for _ in range(3)]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[:2] == ["x", "x"]
    assert isinstance(outcomes[2], StatusError)
    assert outcomes[2].code == 429


async def test_sigterm_ends_a_server_whose_threads_work(tmp_path: Path) -> None:
    """The server ends within its grace while it computes for several clients."""
    with embedded_server(tmp_path / "data", "--node", "hostile") as server:
        attacker = Attacker(Target(server.port, server.directory))
        body = Tree("labels").encode()
        path = "/api/v1/namespaces/default/events"
        wires = [await attacker.connect() for _ in range(6)]
        for wire, who in zip(wires, ("admin", "node-hostile") * 3, strict=True):
            await wire.send(attacker.request("POST", path, body, who=who))
        # The server has all of them when it answers a request that came later.
        await attacker.exchange(attacker.request("GET", "/healthz", who="admin"))
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        for wire in wires:
            wire.close()
        await attacker.close()


@contextmanager
def _collections() -> Iterator[asyncio.Event]:
    """Yield an event that each collection of all objects sets; none comes by itself."""
    collected = asyncio.Event()

    def hear(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            collected.set()

    was_on = gc.isenabled()
    gc.disable()
    gc.callbacks.append(hear)
    try:
        yield collected
    finally:
        gc.callbacks.remove(hear)
        if was_on:
            gc.enable()


async def test_all_objects_are_looked_at_when_no_work_is_under_way() -> None:
    """A large request is not stopped by a collection that has to go through all it made."""
    workers = RequestThreads(threads=1)
    hold = threading.Event()
    holder = await _started(workers, hold, "node")
    with _collections() as collected:
        collecting = asyncio.ensure_future(collect_cycles(workers, every=0))
        try:
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not collected.is_set()
            hold.set()
            async with asyncio.timeout(PATIENCE):
                await holder
                await collected.wait()
        finally:
            collecting.cancel()
            workers.close()


async def test_work_without_end_keeps_no_garbage_for_ever() -> None:
    """After a while all objects are looked at whatever is under way."""
    workers = RequestThreads(threads=1)
    hold = threading.Event()
    holder = await _started(workers, hold, "node")
    with _collections() as collected:
        collecting = asyncio.ensure_future(collect_cycles(workers, every=0, at_last=0))
        try:
            async with asyncio.timeout(PATIENCE):
                await collected.wait()
            assert not holder.done()
        finally:
            collecting.cancel()
            hold.set()
            await holder
            workers.close()
