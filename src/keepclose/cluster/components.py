"""The programs of a cluster by their roles: with which gates they run, and how to change these.

Proxies reach the API server through relays out of their namespaces, which can be cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from keepclose.cluster.layout import Layout
from keepclose.lab.cluster.data_dir import Home
from keepclose.lab.cluster.process_keeper import Keeper
from keepclose.lab.cluster.programs import (
    ApiServerProgram,
    ControllerProgram,
    Program,
    ProxyProgram,
)
from keepclose.lab.network.relays import Relay
from keepclose.lab.network.underlay import Underlay
from keepclose.model.gates import FeatureGates
from keepclose.routing.node_level import NodeLevelMode

ROLES: Final = ("apiserver", "controller", "proxy")


class Components:
    """API server, controller and the proxies of all nodes."""

    def __init__(self, home: Home, keeper: Keeper, layout: Layout, gates: FeatureGates) -> None:
        self._home, self._keeper, self._layout = home, keeper, layout
        self._gates = dict.fromkeys(ROLES, gates)
        self._turn = asyncio.Lock()
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
        said = await self._keeper.start(program)
        self.url = next(word for word in said.split() if word.startswith("https://"))
        # Everybody knows this port from now on, also if it was any free one.
        self._keeper.amend(replace(program, port=self._port))
        return self.url

    @property
    def _port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def start_rest(self, underlay: Underlay | None) -> str:
        """Start the controller and all proxies; return what the controller says.

        Raises ProgramError.
        """
        programs: list[Program] = [
            ControllerProgram(str(self._home.controller_kubeconfig), self._gates["controller"])
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
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keeper.start(program)) for program in programs]
        return tasks[0].result()

    async def change(
        self, wanted: Mapping[str, FeatureGates], node_level: NodeLevelMode | None = None
    ) -> list[str]:
        """Start the programs of some roles anew with these gates, and return their names.

        One change after the other, each to its end, even if whoever asked for it goes away. Raises
        ProgramError for the first that does not start; it runs on as it was, like all others.
        """
        return await asyncio.shield(asyncio.create_task(self._change(wanted, node_level)))

    async def _change(
        self, wanted: Mapping[str, FeatureGates], node_level: NodeLevelMode | None
    ) -> list[str]:
        names: list[str] = []
        async with self._turn:
            for role, gates in wanted.items():
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
