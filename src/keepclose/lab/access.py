"""What of a lab those need who make trouble in it: the API, kubelets, links and ways to the API.

A running lab has all of it; tests bring their own. Nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from keepclose.kube.client import Client
from keepclose.lab.kubelet.kubelets import Kubelets
from keepclose.lab.network.relays import Relay
from keepclose.lab.network.underlay import Underlay
from keepclose.model.gates import FeatureGates


class LabRefusal(Exception):  # noqa: N818 - a refusal is no error of the lab
    """Why the lab does not do what it was asked; `code` is the command's exit code."""

    def __init__(self, text: str, *, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


class LabView(NamedTuple):
    """A running lab."""

    client: Client
    """With the rights of the administrator."""
    kubelets: Kubelets
    gates: FeatureGates
    """Of the proxies, which decide where packets go."""
    underlay: Underlay | None
    """None when no packets can be sent here."""
    no_packets: str
    """Why not, or ""."""
    relays: dict[str, Relay]
    """By node: how its proxy reaches the API server."""


class Links(Protocol):
    """Where nodes are joined; both calls may block."""

    def cut(self, node: str) -> None:
        """Take the node's link away."""
        ...

    def mend(self, node: str) -> None:
        """Give it back."""
        ...


class ApiWay(Protocol):
    """How a node reaches the API server."""

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        ...

    async def open(self) -> None:
        """Let the node through."""
        ...

    async def hold(self) -> None:
        """Break what is open and leave whoever comes without an answer."""
        ...


class NodeKubelets(Protocol):
    """The kubelets."""

    def fail(self, node: str) -> None:
        """Let the node's kubelet report nothing any more."""
        ...

    def recover(self, node: str) -> None:
        """Let it report again, all that it has."""
        ...


class TroubledLab(Protocol):
    """What of a lab troubles need."""

    @property
    def client(self) -> Client:
        """The API with the rights of the administrator."""
        ...

    @property
    def kubelets(self) -> NodeKubelets:
        """The kubelets of all nodes."""
        ...

    @property
    def underlay(self) -> Links | None:
        """The network, None without packets."""
        ...

    @property
    def no_packets(self) -> str:
        """Why there are no packets, or ""."""
        ...

    @property
    def relays(self) -> Mapping[str, ApiWay]:
        """By node: the way to the API server, of those that have one of their own."""
        ...
