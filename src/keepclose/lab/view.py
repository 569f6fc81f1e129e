"""What those who watch the lab or make trouble in it may use."""

from __future__ import annotations

from typing import NamedTuple

from keepclose.kube.client import Client
from keepclose.lab.kubelet.kubelets import Kubelets
from keepclose.lab.network.relays import Relay
from keepclose.lab.network.underlay import Underlay
from keepclose.model.gates import FeatureGates


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
