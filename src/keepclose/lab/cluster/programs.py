"""The layout of a cluster, its programs as values, and what a process runs for each of them.

Programs call the same functions as the commands of these names, so that a cluster of one command
behaves as one that was started by hand. The layout has the number and the names of zones and nodes.
"""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Final, NamedTuple

import msgspec

from keepclose.accounting.flow_table import ALL_DETAIL
from keepclose.apiserver.assembly import ServerSettings, StartError, run_apiserver
from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.controller.process import run_controller
from keepclose.demand.settings import DemandOptions, DemandOrigin
from keepclose.flows.checkpoint import CheckpointUnavailableError
from keepclose.flows.collector import ConntrackUnavailableError
from keepclose.flows.process import run_agent
from keepclose.flows.settings import FlowSettings
from keepclose.heuristics.discovery import find_heuristics
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.errors import ConfigError
from keepclose.lab.cluster.node_pages import FLOW_PAGES, pages_of_nodes
from keepclose.lab.network.addresses import POD_NETWORKS, SERVICE_NETWORKS
from keepclose.model.gates import FeatureGates, Gate
from keepclose.proxy.nft.select_writer import NftablesUnavailableError
from keepclose.proxy.process import ProxyHostSettings, find_families, run_proxy
from keepclose.proxy.settings import ProxySettings
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.demand import DemandSettings
from keepclose.routing.node_level import NodeLevelMode
from keepclose.runtime.pages import ListenAddress
from keepclose.runtime.program import OnReady
from keepclose.slices.settings import PlannerSettings
from keepclose.system.namespaces import enter_network

_MAX_NODES: Final = 200
# All gates but the one that excludes others.
LAB_GATES: Final = FeatureGates(frozenset(Gate)).without(Gate.SERVICE_TOPOLOGY)


# Faster than in a cluster: half of a step has arrived after 20 s, and hints follow it every 20 s.
_LAB_DEMAND: Final = DemandOptions(
    DemandOrigin.FLOWS, use=DemandSettings(half_life_s=20.0, interval_s=20.0), period_s=5.0
)
# In a lab all is near and little: counts are worth more than the work they take.
_WALK_S: Final = 1.0
_CHECKPOINT_S: Final = 1.0
# The lab's clients have addresses of pods, and no pod is ever reported for them.
_NAME_WAIT_S: Final = 1.0


class ClusterLayout(NamedTuple):
    """The zones and nodes of a cluster."""

    zones: int = 3
    nodes_per_zone: int = 2

    @property
    def nodes(self) -> dict[str, str]:
        """The zone of each node, zone by zone."""
        total = self.zones * self.nodes_per_zone
        return {
            f"n{number + 1}": zone_name(number // self.nodes_per_zone) for number in range(total)
        }

    @property
    def by_zone(self) -> dict[str, list[str]]:
        """The nodes of each zone."""
        zones: dict[str, list[str]] = {}
        for node, zone in self.nodes.items():
            zones.setdefault(zone, []).append(node)
        return zones

    def flaws(self) -> list[str]:
        """Return the validation errors by option."""
        flaws = []
        if self.zones < 1:
            flaws.append("--zones must be at least 1")
        if self.nodes_per_zone < 1:
            flaws.append("--nodes-per-zone must be at least 1")
        if self.zones * self.nodes_per_zone > _MAX_NODES:
            flaws.append(
                f"--zones times --nodes-per-zone is {self.zones * self.nodes_per_zone}; "
                f"more than {_MAX_NODES} nodes do not fit on one machine"
            )
        return flaws


def zone_name(number: int) -> str:
    """Return the name of a zone, zone-a for 0."""
    if number < len(ascii_lowercase):
        return f"zone-{ascii_lowercase[number]}"
    first, second = divmod(number - len(ascii_lowercase), len(ascii_lowercase))
    return f"zone-{ascii_lowercase[first]}{ascii_lowercase[second]}"


class ProgramError(Exception):
    """Why a program cannot run, in one line."""


class ApiServerProgram(msgspec.Struct, frozen=True, tag="apiserver"):
    """The API server, on the loopback address of the machine."""

    data_dir: str
    port: int
    gates: FeatureGates
    nodes: tuple[str, ...] = ()
    name: str = "apiserver"

    def run(self, on_ready: OnReady) -> None:
        """Serve until a signal; raises ProgramError."""
        settings = ServerSettings(
            data_dir=Path(self.data_dir),
            port=self.port,
            gates=self.gates,
            allocation=AllocationSettings(service_cidrs=SERVICE_NETWORKS),
            nodes=self.nodes,
        )
        try:
            run_apiserver(settings, on_ready=on_ready)
        except StartError as error:
            raise ProgramError(str(error)) from error


class ControllerProgram(msgspec.Struct, frozen=True, tag="controller"):
    """The EndpointSlice controller."""

    kubeconfig: str
    gates: FeatureGates
    node_level: NodeLevelMode = NodeLevelMode.MANUAL
    agents: dict[str, str] = {}
    """Files of the namespaces of nodes, whose flow agents measure demand; none if CPU counts."""
    name: str = "controller"

    def run(self, on_ready: OnReady) -> None:
        """Work until a signal; raises ProgramError."""
        try:
            plan = PlannerSettings(
                gates=self.gates,
                heuristics=find_heuristics(self.gates),
                node_level_mode=self.node_level,
            )
            run_controller(
                ControllerSettings(plan=plan),
                load_connection_settings(Path(self.kubeconfig)),
                # There is only one, and waiting for a lease would delay its restart.
                leader_elect=False,
                listening=ListenAddress("127.0.0.1", 0),
                demand=_LAB_DEMAND if self.agents else None,
                read_pages=pages_of_nodes(self.agents) if self.agents else None,
                on_ready=on_ready,
            )
        except ConfigError as error:
            raise ProgramError(str(error)) from error


class ProxyProgram(msgspec.Struct, frozen=True, tag="proxy"):
    """The proxy of a node, inside the node's network namespace."""

    node: str
    kubeconfig: str
    namespace: str
    gates: FeatureGates

    @property
    def name(self) -> str:
        """The name of the process."""
        return f"proxy-{self.node}"

    def run(self, on_ready: OnReady) -> None:
        """Work until a signal; raises ProgramError."""
        try:
            enter_network(Path(self.namespace))
            run_proxy(
                ProxySettings(
                    node_name=self.node, gates=self.gates, families=find_families(), min_sync_s=0.0
                ),
                load_connection_settings(Path(self.kubeconfig)),
                host_settings=ProxyHostSettings(
                    pages=ListenAddress("127.0.0.1", 10249),
                    health=ListenAddress("0.0.0.0", 10256),  # noqa: S104 - inside the namespace
                ),
                on_ready=on_ready,
            )
        except (ConfigError, NftablesUnavailableError, OSError) as error:
            raise ProgramError(str(error)) from error


class FlowsProgram(msgspec.Struct, frozen=True, tag="flows"):
    """The flow agent of a node, inside the node's network namespace."""

    node: str
    kubeconfig: str
    namespace: str
    checkpoint: str

    @property
    def name(self) -> str:
        """The name of the process."""
        return f"flows-{self.node}"

    def run(self, on_ready: OnReady) -> None:
        """Work until a signal; raises ProgramError."""
        try:
            enter_network(Path(self.namespace))
            run_agent(
                FlowSettings(
                    node_name=self.node,
                    detail=ALL_DETAIL,
                    cluster_ranges=(*POD_NETWORKS, *SERVICE_NETWORKS),
                    walk_s=_WALK_S,
                    checkpoint=Path(self.checkpoint),
                    checkpoint_s=_CHECKPOINT_S,
                    enables_accounting=True,
                    name_wait_s=_NAME_WAIT_S,
                ),
                load_connection_settings(Path(self.kubeconfig)),
                pages=FLOW_PAGES,
                on_ready=on_ready,
            )
        except (
            ConfigError,
            ConntrackUnavailableError,
            CheckpointUnavailableError,
            OSError,
        ) as error:
            raise ProgramError(str(error)) from error


Program = ApiServerProgram | ControllerProgram | ProxyProgram | FlowsProgram
