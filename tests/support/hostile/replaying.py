"""Attacks replayed in a loop from a process of their own, while other clients are timed.

    with besieged(tmp_path / "data", ATTACKS["yaml-list"]) as siege:
        figures = siege.measure(seconds=2)

Two clients are measured: one gets an object again and again, one writes an object and hears of it
by a watch. What the server itself says goes with it: how long its loop was held, in CPU time of its
thread, which does not depend on what else the machine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.apiserver.storage.store import Store
from support.hostile.attackers import NODE, Attacker, Target, Wire
from support.server_processes import Embedded, embedded_server

GET_LIMIT_SECONDS: Final = 0.1
"""What a GET of another client may take at the 99th percentile during an attack."""
EVENT_LIMIT_SECONDS: Final = 0.25
"""What may pass between another client's write and its event during an attack."""
_GET_PAUSE: Final = 0.005
_WRITE_PAUSE: Final = 0.02
_NAMESPACE: Final = "default"
_PATIENCE: Final = 120.0
_BUSY: Final = re.compile(r'apiserver_loop_busy_seconds_bucket\{le="([^"]+)"\} (\S+)')

Strike = Callable[[Attacker], Awaitable[None]]
Seed = Callable[[Store], None]


class Attack(NamedTuple):
    """What one identity repeats; `seed` fills the store before the server starts."""

    name: str
    strike: Strike
    seed: Seed | None = None
    # So many rounds run at once.
    parallel: int = 1


class Delays(NamedTuple):
    """Sorted seconds."""

    seconds: list[float]

    def at(self, share: float) -> float:
        """Return the delay that this share of all keeps."""
        count = len(self.seconds)
        return self.seconds[min(count - 1, int(count * share))] if count else float("inf")

    def __str__(self) -> str:
        shown = (self.at(0.5), self.at(0.99), self.at(1.0))
        return "/".join(f"{value * 1000:.1f}" for value in shown)


class Figures(NamedTuple):
    """What other clients and the server noticed."""

    gets: Delays
    events: Delays
    # Beats of the loop by the least CPU time that was spent since the beat before, in seconds.
    busy: dict[float, int]
    rounds: int
    statuses: dict[int, int]

    def longer_than(self, seconds: float) -> int:
        """Return how often the loop was held for longer than this CPU time."""
        return sum(count for least, count in self.busy.items() if least >= seconds)

    @property
    def longest(self) -> float:
        """The bucket of the longest time for which the loop was held, in seconds of CPU time."""
        return max((least for least, count in self.busy.items() if count), default=0.0)

    def __str__(self) -> str:
        return (
            f"GET {self.gets} ms, event {self.events} ms (p50/p99/max), loop held past "
            f"{self.longest * 1000:.0f} ms CPU, {self.rounds} rounds, answers {self.statuses}"
        )


class Siege:
    """A running server and the attack on it."""

    def __init__(self, server: Embedded, attack: Attack) -> None:
        """Hold both; the attack runs while something is measured."""
        self.server = server
        self.attack = attack
        self.target = Target(server.port, server.directory)

    def measure(self, seconds: float) -> Figures:
        """Return how other clients fare while the attack runs for so long."""
        spawn = multiprocessing.get_context("spawn")
        begun, results = spawn.Event(), spawn.SimpleQueue()
        attacker = spawn.Process(
            target=_attack, args=(self.attack, self.target, begun, results), daemon=True
        )
        attacker.start()
        try:
            if not begun.wait(_PATIENCE):
                raise TimeoutError("the attacker did not start")
            gets, events, busy = asyncio.run(_probe(self.target, seconds))
            os.kill(attacker.pid or 0, signal.SIGTERM)
            rounds, statuses = results.get()
        finally:
            attacker.kill()
            attacker.join()
        return Figures(gets, events, busy, rounds, statuses)

    def idle(self, seconds: float) -> Figures:
        """Return how clients fare without any attack."""
        gets, events, busy = asyncio.run(_probe(self.target, seconds))
        return Figures(gets, events, busy, 0, {})


@contextlib.contextmanager
def besieged(directory: Path, attack: Attack, *flags: str) -> Iterator[Siege]:
    """Run a server that the attack is meant for, filled as the attack wants it."""
    directory.mkdir(parents=True, exist_ok=True)
    if attack.seed is not None:
        # NB: the server makes the directory's other files itself.
        store = Store.open(directory)
        with store.batch():
            attack.seed(store)
        store.close()
    node = NODE.removeprefix("node-")
    with embedded_server(directory, "--node", node, *flags) as server:
        try:
            yield Siege(server, attack)
        except BaseException:
            # A server that hangs would hide what was found, and outlive the test.
            server.process.kill()
            raise


def _attack(attack: Attack, target: Target, begun: Any, results: Any) -> None:
    asyncio.run(_repeat(attack, target, begun, results))


async def _repeat(attack: Attack, target: Target, begun: Any, results: Any) -> None:
    attackers = [Attacker(target) for _ in range(attack.parallel)]
    tasks = [asyncio.ensure_future(_strike(attack.strike, attacker)) for attacker in attackers]
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    begun.set()
    await ended.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    statuses: dict[int, int] = {}
    for attacker in attackers:
        for status, count in attacker.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    results.put((sum(attacker.rounds for attacker in attackers), statuses))


async def _strike(strike: Strike, attacker: Attacker) -> None:
    while True:
        try:
            await strike(attacker)
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            await asyncio.sleep(0.02)
        attacker.rounds += 1


async def _probe(target: Target, seconds: float) -> tuple[Delays, Delays, dict[float, int]]:
    client = Attacker(target)
    path = f"/api/v1/namespaces/{_NAMESPACE}/configmaps"
    probe = {"metadata": {"name": "probe"}, "data": {"sent": "0"}}
    await client.exchange(client.request("POST", path, probe, who="admin"))
    before = await _busy(client)
    ended = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, ended.set)
    gets, events = await asyncio.gather(
        _time_gets(client, f"{path}/probe", ended), _time_events(client, path, ended)
    )
    after = await _busy(client)
    await client.close()
    busy = {least: count - before.get(least, 0) for least, count in after.items()}
    return gets, events, busy


async def _time_gets(client: Attacker, path: str, ended: asyncio.Event) -> Delays:
    wire = await client.connect()
    request = client.request("GET", path, who="controller")
    delays: list[float] = []
    while not (delays and ended.is_set()):
        start = time.perf_counter()
        await wire.send(request)
        reply = await wire.reply()
        if reply.status != 200:
            raise AssertionError(f"{path}: {reply.status} {reply.body[:300]!r}")
        delays.append(time.perf_counter() - start)
        await asyncio.sleep(_GET_PAUSE)
    wire.close()
    return Delays(sorted(delays))


async def _time_events(client: Attacker, path: str, ended: asyncio.Event) -> Delays:
    watch, writer = await client.connect(), await client.connect()
    query = "?watch=1&fieldSelector=metadata.name%3Dprobe"
    await watch.send(client.request("GET", path + query, who="viewer"))
    await watch.reader.readuntil(b"\r\n\r\n")
    delays: list[float] = []
    while not (delays and ended.is_set()):
        sent = str(time.perf_counter_ns())
        patch = msgspec.json.encode({"data": {"sent": sent}})
        await writer.send(
            client.request(
                "PATCH",
                f"{path}/probe",
                patch,
                media_type="application/merge-patch+json",
                who="admin",
            )
        )
        await _await_event(watch, sent.encode())
        delays.append((time.perf_counter_ns() - int(sent)) / 1e9)
        await writer.reply()
        await asyncio.sleep(_WRITE_PAUSE)
    watch.close()
    writer.close()
    return Delays(sorted(delays))


async def _await_event(watch: Wire, sent: bytes) -> None:
    async with asyncio.timeout(_PATIENCE):
        while sent not in await watch.reader.readuntil(b"\n"):
            pass


async def _busy(client: Attacker) -> dict[float, int]:
    """Return how many beats of the loop took more CPU time than each bound, and none above it."""
    (reply,) = await client.exchange(client.request("GET", "/metrics", who="admin"))
    found = _BUSY.findall(reply.body.decode())
    busy: dict[float, int] = {}
    least, below = 0.0, 0.0
    for bound, count in found:
        busy[least] = int(float(count) - below)
        least, below = float(bound), float(count)
    return busy
