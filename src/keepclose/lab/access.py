"""The parts of a running lab that traffic, measurements and fault injection may use.

`LabView` is a running lab. The protocols are the smaller part that fault injection needs: the API,
kubelets, links between nodes and links to the API server; tests implement them with fakes.
`LabRefusal` is what a user reads, in one line, when the lab rejects a request. Nothing here acts,
and nothing that acts is imported: commands that only ask a running lab start sooner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from keepclose.kube.client import Client
    from keepclose.lab.kubelet.kubelets import Kubelets
    from keepclose.lab.network.relays import Relay
    from keepclose.lab.network.underlay import Underlay
    from keepclose.model.gates import FeatureGates


class LabRefusal(Exception):  # noqa: N818 - a refusal is no error of the lab
    """Why the lab rejects a request; `code` is the command's exit code."""

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
    """None on a machine that cannot have the lab's network."""
    no_packets: str
    """Why it cannot, or ""."""
    relays: dict[str, Relay]
    """By node: how its proxy reaches the API server."""


class Links(Protocol):
    """The links between nodes; both calls may block."""

    def cut(self, node: str) -> None:
        """Take the node's link down."""
        ...

    def restore(self, node: str) -> None:
        """Take the node's link up again."""
        ...


class ApiLink(Protocol):
    """The link between a node and the API server."""

    @property
    def connections(self) -> int:
        """How many connections are open."""
        ...

    async def open(self) -> None:
        """Pass the node's connections on."""
        ...

    async def hold(self) -> None:
        """Break open connections and leave new ones without an answer."""
        ...


class NodeKubelets(Protocol):
    """The kubelets of all nodes."""

    def fail(self, node: str) -> None:
        """Stop all reports of the node's kubelet."""
        ...

    def recover(self, node: str) -> None:
        """Let the node's kubelet report again, beginning with the status of all its pods."""
        ...


class FaultTarget(Protocol):
    """The part of a lab that fault injection needs."""

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
        """The network, None on a machine that cannot have it."""
        ...

    @property
    def no_packets(self) -> str:
        """Why there is no network, or ""."""
        ...

    @property
    def relays(self) -> Mapping[str, ApiLink]:
        """By node: its link to the API server, where it has a link of its own."""
        ...
