"""Settings of a flows agent: its node, what it tells apart, and how often it reads the kernel."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Final

import msgspec

from keepclose.accounting.flow_table import ZONES_ONLY, Detail

FLOWS_COMPONENT: Final = "keepclose-flows"


class FlowSettings(msgspec.Struct, frozen=True):
    """The settings of a flows agent; times are in seconds."""

    node_name: str
    detail: Detail = ZONES_ONLY
    cluster_ranges: tuple[str, ...] = ()
    """The ranges of pods and Services; an address in them is never outside the cluster."""
    subnets: tuple[tuple[str, str], ...] = ()
    """Ranges outside the cluster and their zones, such as that of a database."""
    walk_s: float = 30.0
    """The period in which bytes of open connections are counted."""
    checkpoint: Path | None = None
    checkpoint_s: float = 30.0
    """The longest time between two checkpoints; a scrape makes one as well."""
    enables_accounting: bool = False
    most_services: int = 1000
    """How many Services have metrics of their own; the others are summed up."""
    most_flows: int = 20_000
    """How many flows are told apart at all; further ones are summed up by zones.

    NB: 20,000 with all detail take 130 MiB while a page is written; the DaemonSet has 256.
    """
    most_waiting: int = 10_000
    """How many connections wait for the names of their addresses at most."""
    name_wait_s: float = 10.0
    """How long a connection waits for the names of its addresses."""
    start_wait_s: float = 3.0
    """How long the agent waits at start for the API server before it reads events."""
    watches_all_pods: bool | None = None
    """Whether pods of other nodes are watched; None if that depends on the Nodes' pod CIDRs."""
    buffer_bytes: int = 16 << 20
    """The buffer for events in the kernel, which doubles it."""


def flow_settings_errors(settings: FlowSettings) -> list[str]:
    """Return the validation errors, each with the name of its option; empty if valid."""
    errors = []
    if not settings.node_name:
        errors.append("node-name must be the name of the Node of this host")
    if settings.walk_s < 1:
        errors.append("walk-period must be at least 1s")
    if settings.most_services < 1:
        errors.append("top must be at least 1")
    errors += [
        f"cluster-cidr: {text!r} is no CIDR, such as 10.244.0.0/16"
        for text in settings.cluster_ranges
        if not _is_range(text)
    ]
    for text, zone in settings.subnets:
        if not _is_range(text) or not zone:
            errors.append(f"subnet: {text}={zone} must be CIDR=ZONE, such as 10.1.0.0/16=zone-a")
    return errors


def _is_range(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
