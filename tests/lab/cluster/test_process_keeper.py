"""How programs are kept by whoever has a fork_server, seen from its events alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from keepclose.lab.cluster.data_dir import ClusterDirectory
from keepclose.lab.cluster.fork_server import (
    ForkServer,
    ForkServerLost,
    ProcessEnded,
    ProcessEvent,
    ProcessReady,
)
from keepclose.lab.cluster.process_keeper import Components, ProcessKeeper
from keepclose.lab.cluster.programs import (
    LAB_GATES,
    ClusterLayout,
    ControllerProgram,
    Program,
    ProgramError,
    ProxyProgram,
)
from keepclose.model.gates import Gate
from keepclose.runtime.program import ReadyMessage

HERE = ReadyMessage("here")
ONE = ControllerProgram("/none", LAB_GATES)
OTHER = ProxyProgram("n1", "/none", "/none", LAB_GATES)
FEWER = LAB_GATES.without(Gate.TOPOLOGY_AWARE_HINTS)


class FakeForkServer(ForkServer):
    """Starts nothing, and says what a test wants to be said."""

    def __init__(self) -> None:
        self.tell: Callable[[ProcessEvent], None] = lambda _: None
        self.started: list[Program] = []
        self.signals: list[tuple[str, signal.Signals]] = []
        self.asked = asyncio.Event()
        """Set when a program was asked to end."""
        self.fails = ""
        """The name of a program that does not start with fewer gates."""
        self.hangs = ""
        """The name of a program that takes no notice of SIGTERM."""

    def follow(self, on_event: Callable[[ProcessEvent], None]) -> None:
        """Remember whom to tell."""
        self.tell = on_event

    def start(self, program: Program, log: Path) -> None:
        """Say soon that it works, or not."""
        del log
        self.started.append(program)
        fails = program.name == self.fails and getattr(program, "gates", None) == FEWER
        event = ProcessEnded(program.name, 2, "no") if fails else ProcessReady(program.name, HERE)
        asyncio.get_running_loop().call_soon(self.tell, event)

    def signal(self, name: str, number: signal.Signals) -> None:
        """End it, unless it hangs."""
        self.signals.append((name, number))
        self.asked.set()
        if number is signal.SIGKILL or (number is signal.SIGTERM and name != self.hangs):
            asyncio.get_running_loop().call_soon(self.tell, ProcessEnded(name, 0))


def components_of(fork_server: FakeForkServer, tmp_path: Path) -> tuple[ProcessKeeper, Components]:
    """Return a keeper and what is built on it."""
    keeper = ProcessKeeper(fork_server, tmp_path)
    return keeper, Components(ClusterDirectory(tmp_path), keeper, ClusterLayout(), LAB_GATES)


async def test_only_those_that_hang_are_killed(tmp_path: Path) -> None:
    """Others that are being stopped at the same time have their own time."""
    fork_server = FakeForkServer()
    keeper = ProcessKeeper(fork_server, tmp_path)
    for program in (ONE, OTHER):
        await keeper.start(program)
    fork_server.hangs = ONE.name
    await asyncio.gather(keeper.stop(ONE.name), keeper.stop(OTHER.name))
    killed = [name for name, number in fork_server.signals if number is signal.SIGKILL]
    assert killed == [ONE.name]
    assert keeper.programs == {}


async def test_whoever_cannot_start_anew_runs_on_as_before(tmp_path: Path) -> None:
    """The failure is told, and neither programs nor what is known of them has changed."""
    fork_server = FakeForkServer()
    keeper, components = components_of(fork_server, tmp_path)
    for program in (ONE, OTHER):
        await keeper.start(program)
    fork_server.fails = ONE.name
    with pytest.raises(ProgramError, match="no"):
        await components.change({"controller": FEWER})
    assert keeper.programs == {ONE.name: ONE, OTHER.name: OTHER}
    assert components.gates["controller"] == LAB_GATES
    assert await components.change({"proxy": FEWER}) == [OTHER.name]
    assert components.gates["proxy"] == FEWER


async def test_a_change_goes_on_without_whoever_asked_for_it(tmp_path: Path) -> None:
    """Ctrl-C in the middle leaves no program behind, and the next change waits its turn."""
    fork_server = FakeForkServer()
    keeper, components = components_of(fork_server, tmp_path)
    await keeper.start(ONE)
    asked = asyncio.create_task(components.change({"controller": FEWER}))
    await fork_server.asked.wait()
    asked.cancel()
    await components.change({"controller": LAB_GATES})
    gates = [getattr(program, "gates", None) for program in fork_server.started]
    assert gates == [LAB_GATES, FEWER, LAB_GATES]
    assert keeper.programs == {ONE.name: ONE}


async def test_the_end_of_the_nursery_is_told_to_everybody(tmp_path: Path) -> None:
    """Those who wait for a start, those who wait for an end, and whoever runs it all."""
    fork_server = FakeForkServer()
    keeper = ProcessKeeper(fork_server, tmp_path)
    await keeper.start(ONE)
    fork_server.hangs = ONE.name
    stopping = asyncio.create_task(keeper.stop(ONE.name))
    await asyncio.sleep(0)
    starting = asyncio.create_task(keeper.start(OTHER))
    await asyncio.sleep(0)
    fork_server.tell(ForkServerLost())
    await stopping
    with pytest.raises(ProgramError, match="the process that starts programs has ended"):
        await starting
    with pytest.raises(ProgramError, match="the process that starts programs has ended"):
        await keeper.lost


async def test_hundreds_can_be_started_at_once(tmp_path: Path) -> None:
    """The channel takes what comes, even if the other end is slower."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    taken: list[bytes] = []
    all_sent = threading.Event()

    def take() -> None:
        while data := theirs.recv(1 << 17):
            taken.append(data)
        all_sent.set()

    fork_server = ForkServer(ours, os.getpid())
    fork_server.follow(lambda _: None)
    thread = threading.Thread(target=take)
    thread.start()
    long = str(tmp_path / ("x" * 700))
    for number in range(500):
        fork_server.start(ProxyProgram(f"n{number}", long, long, LAB_GATES), tmp_path)
    asyncio.get_running_loop().remove_reader(ours.fileno())
    ours.close()
    await asyncio.to_thread(thread.join, 60)
    assert all_sent.is_set()
    assert len(taken) == 500
    theirs.close()
