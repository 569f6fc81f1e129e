"""Keeps the programs of a cluster running: starts them, starts them again, and stops them.

A program that ends by itself comes back after a short wait, which grows while it keeps ending.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Final

import structlog

from keepclose.cluster.nursery import Ended, Event, Nursery, Ready
from keepclose.cluster.programs import Program, ProgramError

_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 10.0
# What ran for so long has not failed at its start.
_STEADY_S: Final = 30.0
_START_S: Final = 60.0
_STOP_S: Final = 1.5
_log = structlog.get_logger(__name__)


class _Kept:
    """One program and how it is."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.started_at = 0.0
        self.wait_s = _FIRST_WAIT_S
        self.comeback: asyncio.TimerHandle | None = None


class Keeper:
    """Runs programs by a nursery; make it in a running loop."""

    def __init__(self, nursery: Nursery, logs: Path) -> None:
        self._nursery, self._logs = nursery, logs
        self._kept: dict[str, _Kept] = {}
        self._stopping: dict[str, _Kept] = {}
        nursery.follow(self._note)

    @property
    def programs(self) -> dict[str, Program]:
        """What is kept running, by name."""
        return {name: kept.program for name, kept in self._kept.items()}

    async def start(self, program: Program) -> str:
        """Start a program and return what it says when it works; raises ProgramError."""
        kept = self._kept[program.name] = _Kept(program)
        self._launch(kept)
        try:
            return await asyncio.wait_for(asyncio.shield(kept.ready), _START_S)
        except TimeoutError:
            raise ProgramError(
                f"{program.name} did not start within {_START_S:g} s; {self._see(program.name)}"
            ) from None

    async def stop(self, *names: str) -> None:
        """Stop programs and return when they have ended; those that hang are killed."""
        found = [kept for name in names if (kept := self._kept.pop(name, None)) is not None]
        waits = []
        for kept in found:
            if kept.comeback is not None:
                kept.comeback.cancel()
                continue
            name = kept.program.name
            self._stopping[name] = kept
            self._nursery.signal(name, signal.SIGTERM)
            # One that was halted takes no notice before it goes on.
            self._nursery.signal(name, signal.SIGCONT)
            waits.append(asyncio.create_task(kept.ended.wait()))
        if waits:
            _, late = await asyncio.wait(waits, timeout=_STOP_S)
            if late:
                for name in tuple(self._stopping):
                    self._nursery.signal(name, signal.SIGKILL)
                await asyncio.wait(late)

    async def stop_all(self) -> None:
        """Stop everything."""
        await self.stop(*self._kept)

    async def replace(self, program: Program) -> str:
        """Stop the program of this name and start this one in its place; raises ProgramError."""
        await self.stop(program.name)
        return await self.start(program)

    def amend(self, program: Program) -> None:
        """Have the program of this name come back as this one, whenever it ends."""
        self._kept[program.name].program = program

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a program a signal."""
        self._nursery.signal(name, number)

    def _launch(self, kept: _Kept) -> None:
        kept.comeback = None
        kept.started_at = asyncio.get_running_loop().time()
        self._nursery.start(kept.program, self._logs / f"{kept.program.name}.log")

    def _note(self, event: Event) -> None:
        match event:
            case Ready(name, text):
                kept = self._kept.get(name)
                if kept is not None and not kept.ready.done():
                    kept.ready.set_result(text)
            case Ended(name, code, why):
                stopped = self._stopping.pop(name, None)
                if stopped is not None:
                    stopped.ended.set()
                elif name in self._kept:
                    self._note_end(self._kept[name], code, why)

    def _note_end(self, kept: _Kept, code: int, why: str) -> None:
        name = kept.program.name
        if not kept.ready.done():
            text = why or f"{name} ended with code {code}; {self._see(name)}"
            kept.ready.set_exception(ProgramError(text))
            del self._kept[name]
            return
        loop = asyncio.get_running_loop()
        if loop.time() - kept.started_at > _STEADY_S:
            kept.wait_s = _FIRST_WAIT_S
        _log.warning("a program ended and is started again", program=name, code=code, why=why)
        kept.comeback = loop.call_later(kept.wait_s, self._launch, kept)
        kept.wait_s = min(2 * kept.wait_s, _LONGEST_WAIT_S)

    def _see(self, name: str) -> str:
        return f"see {self._logs / name}.log"
