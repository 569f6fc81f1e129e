"""Keeps the programs of a cluster running: starts, restarts and stops them.

A program that ends by itself is restarted with a backoff, which grows while it keeps ending.
`Components` are the programs by their roles, with their feature gates. Proxies reach the API server
through relays out of their namespaces, which faults can cut.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from msgspec.structs import replace

from keepclose.lab.cluster.data_dir import ClusterDirectory
from keepclose.lab.cluster.fork_server import (
    ForkServer,
    ForkServerLost,
    ProcessEnded,
    ProcessEvent,
    ProcessReady,
)
from keepclose.lab.cluster.programs import (
    ApiServerProgram,
    ClusterLayout,
    ControllerProgram,
    FlowsProgram,
    Program,
    ProgramError,
    ProxyProgram,
)
from keepclose.lab.network.relays import Relay
from keepclose.lab.network.underlay import Underlay
from keepclose.model.gates import FeatureGates
from keepclose.routing.node_level import NodeLevelMode
from keepclose.runtime.program import ReadyMessage

_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 10.0
# A program that ran for so long has not failed at its start, so its backoff is reset.
_STEADY_S: Final = 30.0
_START_S: Final = 60.0
_STOP_S: Final = 1.5
_LOST: Final = "the process that starts programs has ended"
_log = structlog.get_logger(__name__)
ROLES: Final = ("apiserver", "controller", "proxy")


class _Kept:
    """A program that is kept running, and its state."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ready: asyncio.Future[ReadyMessage] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.started_at = 0.0
        self.backoff_s = _FIRST_BACKOFF_S
        self.restart_timer: asyncio.TimerHandle | None = None


class ProcessKeeper:
    """Keeps the programs of a fork server running; create it in a running event loop."""

    def __init__(self, fork_server: ForkServer, logs: Path) -> None:
        self._fork_server, self._logs = fork_server, logs
        self._kept: dict[str, _Kept] = {}
        self._stopping: dict[str, _Kept] = {}
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with ProgramError when the fork server has ended."""
        fork_server.follow(self._on_event)

    @property
    def programs(self) -> dict[str, Program]:
        """The programs that are kept running, by name."""
        return {name: kept.program for name, kept in self._kept.items()}

    async def start(self, program: Program) -> ReadyMessage:
        """Start a program and return its ready message; raises ProgramError.

        A program that does not start is not restarted.
        """
        kept = self._kept[program.name] = _Kept(program)
        try:
            self._launch(kept)
            return await asyncio.wait_for(asyncio.shield(kept.ready), _START_S)
        except TimeoutError:
            await self.stop(program.name)
            raise ProgramError(
                f"{program.name} did not start within {_START_S:g} s; "
                f"{self._log_hint(program.name)}"
            ) from None
        except OSError:
            del self._kept[program.name]
            raise ProgramError(_LOST) from None

    async def stop(self, *names: str) -> None:
        """Stop programs and return when they have ended; programs that do not end are killed."""
        kept_programs = [kept for name in names if (kept := self._kept.pop(name, None)) is not None]
        running = [kept for kept in kept_programs if kept.restart_timer is None]
        for kept in kept_programs:
            if kept.restart_timer is not None:
                kept.restart_timer.cancel()
        for kept in running:
            name = kept.program.name
            self._stopping[name] = kept
            self._fork_server.signal(name, signal.SIGTERM)
            # A stopped process handles the signal only when it continues.
            self._fork_server.signal(name, signal.SIGCONT)
        try:
            async with asyncio.timeout(_STOP_S):
                for kept in running:
                    await kept.ended.wait()
        except TimeoutError:
            late = [kept for kept in running if not kept.ended.is_set()]
            for kept in late:
                self._fork_server.signal(kept.program.name, signal.SIGKILL)
            for kept in late:
                await kept.ended.wait()

    async def stop_all(self) -> None:
        """Stop all programs."""
        await self.stop(*self._kept)

    async def replace(self, program: Program) -> ReadyMessage:
        """Stop the program of this name and start this one instead.

        If it does not start, starts the old one again and raises ProgramError.
        """
        old = self.programs.get(program.name)
        await self.stop(program.name)
        try:
            return await self.start(program)
        except ProgramError:
            if old is not None:
                with suppress(ProgramError):
                    await self.start(old)
            raise

    def update(self, program: Program) -> None:
        """Set the program to start when the one of this name is restarted."""
        self._kept[program.name].program = program

    def _launch(self, kept: _Kept) -> None:
        kept.restart_timer = None
        kept.started_at = asyncio.get_running_loop().time()
        self._fork_server.start(kept.program, self._logs / f"{kept.program.name}.log")

    def _relaunch(self, kept: _Kept) -> None:
        # `lost` reports the end of the fork server.
        with suppress(OSError):
            self._launch(kept)

    def _on_event(self, event: ProcessEvent) -> None:
        match event:
            case ProcessReady(name, message):
                kept = self._kept.get(name)
                if kept is not None and not kept.ready.done():
                    kept.ready.set_result(message)
            case ProcessEnded(name, code, why):
                stopped = self._stopping.pop(name, None)
                if stopped is not None:
                    stopped.ended.set()
                elif name in self._kept:
                    self._on_end(self._kept[name], code, why)
            case ForkServerLost():
                self._on_loss()

    def _on_end(self, kept: _Kept, code: int, why: str) -> None:
        name = kept.program.name
        if not kept.ready.done():
            text = why or f"{name} ended with code {code}; {self._log_hint(name)}"
            kept.ready.set_exception(ProgramError(text))
            del self._kept[name]
            return
        loop = asyncio.get_running_loop()
        if loop.time() - kept.started_at > _STEADY_S:
            kept.backoff_s = _FIRST_BACKOFF_S
        _log.warning("program ended and is restarted", program=name, code=code, why=why)
        kept.restart_timer = loop.call_later(kept.backoff_s, self._relaunch, kept)
        kept.backoff_s = min(2 * kept.backoff_s, _MAX_BACKOFF_S)

    def _on_loss(self) -> None:
        for kept in self._kept.values():
            if not kept.ready.done():
                kept.ready.set_exception(ProgramError(_LOST))
        for kept in (*self._kept.values(), *self._stopping.values()):
            kept.ended.set()
        if not self.lost.done():
            self.lost.set_exception(ProgramError(_LOST))
            # Marks the exception as retrieved: during shutdown no task waits for it.
            self.lost.exception()

    def _log_hint(self, name: str) -> str:
        return f"see {self._logs / name}.log"


class Components:
    """API server, controller, and the proxies and flow agents of all nodes."""

    def __init__(
        self,
        home: ClusterDirectory,
        keeper: ProcessKeeper,
        layout: ClusterLayout,
        gates: FeatureGates,
        *,
        counts_flows: bool = False,
        measures_demand: bool = False,
    ) -> None:
        self._home, self._keeper, self._layout = home, keeper, layout
        self.counts_flows = counts_flows or measures_demand
        """Whether nodes have flow agents."""
        self._measures_demand = measures_demand
        self._gates = dict.fromkeys(ROLES, gates)
        self._lock = asyncio.Lock()
        self.relays: dict[str, Relay] = {}
        self.url = ""

    @property
    def gates(self) -> dict[str, FeatureGates]:
        """The gates of each role."""
        return dict(self._gates)

    async def start_apiserver(self, port: int) -> str:
        """Start the API server and return its address; raises ProgramError."""
        program = ApiServerProgram(
            data_dir=str(self._home.directory),
            port=port,
            gates=self._gates["apiserver"],
            nodes=tuple(self._layout.nodes),
        )
        self.url = (await self._keeper.start(program)).url
        # Clients have this port from now on, so a restart must not choose another free one.
        self._keeper.update(replace(program, port=self._port))
        return self.url

    @property
    def _port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def start_rest(self, underlay: Underlay | None) -> ReadyMessage:
        """Start controller, proxies and flow agents; return the controller's ready message.

        Raises ProgramError.
        """
        agents: dict[str, str] = {}
        if underlay is not None and self._measures_demand:
            agents = {name: str(place.namespace.path) for name, place in underlay.nodes.items()}
        kubeconfig = str(self._home.controller_kubeconfig)
        programs: list[Program] = [
            ControllerProgram(kubeconfig, self._gates["controller"], agents=agents)
        ]
        if underlay is not None:
            for name, place in underlay.nodes.items():
                relay = self.relays[name] = Relay(place.namespace, self._port)
                await relay.open()
                programs.append(
                    ProxyProgram(
                        name,
                        str(self._home.node_kubeconfig(name)),
                        str(place.namespace.path),
                        self._gates["proxy"],
                    )
                )
                if self.counts_flows:
                    programs.append(
                        FlowsProgram(
                            name,
                            str(self._home.viewer_kubeconfig),
                            str(place.namespace.path),
                            str(self._home.flow_checkpoint(name)),
                        )
                    )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keeper.start(program)) for program in programs]
        return tasks[0].result()

    async def change(
        self, desired: Mapping[str, FeatureGates], node_level: NodeLevelMode | None = None
    ) -> list[str]:
        """Restart the programs of these roles with these gates, and return their names.

        Changes run one after the other, each to its end, even if the caller is cancelled. Raises
        ProgramError for the first program that does not start; it and all others keep their gates.
        """
        return await asyncio.shield(asyncio.create_task(self._change(desired, node_level)))

    async def _change(
        self, desired: Mapping[str, FeatureGates], node_level: NodeLevelMode | None
    ) -> list[str]:
        names: list[str] = []
        async with self._lock:
            for role, gates in desired.items():
                programs = [
                    _changed(program, gates, node_level)
                    for program in self._keeper.programs.values()
                    if _role(program) == role
                ]
                replacing = (self._keeper.replace(program) for program in programs)
                for outcome in await asyncio.gather(*replacing, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
                self._gates[role] = gates
                names += sorted(program.name for program in programs)
        return names


def _changed(program: Program, gates: FeatureGates, node_level: NodeLevelMode | None) -> Program:
    if isinstance(program, ControllerProgram) and node_level is not None:
        program = replace(program, node_level=node_level)
    return replace(program, gates=gates)


def _role(program: Program) -> str:
    return "proxy" if isinstance(program, ProxyProgram) else program.name
