"""Delays on the way from one node to another, as the kernel's netem makes them.

Each node delays what leaves its link to all others, by where it goes: to another node itself or to
its pods. What goes elsewhere, and what stays on the node, is never delayed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Final

from keepclose.lab.network.addresses import NodeAddresses
from keepclose.lab.network.links import run_batch
from keepclose.system.namespaces import NetworkError, make_namespace, search_path

NO_DELAY_LINES: Final = ("qdisc delete dev eth0 root",)
_MOST_DELAYS: Final = 15
_PROBES: Final = (
    ("qdisc add dev lo root netem delay 1ms", "netem (sch_netem)"),
    ("qdisc replace dev lo root handle 1: prio", "prio (sch_prio)"),
    ("filter add dev lo parent 1: protocol ip u32 match u32 0 0 flowid 1:1", "u32 (cls_u32)"),
)


def delay_lines(delays: Iterable[tuple[NodeAddresses, float]]) -> list[str]:
    """Return what `tc` does on a node to delay packets to others, by milliseconds.

    Nothing where nobody is far away. Raises NetworkError with too many different delays: a prio
    qdisc has sixteen bands, and one is for all that is not delayed.
    """
    groups: dict[str, list[NodeAddresses]] = {}
    for node, milliseconds in delays:
        if milliseconds > 0:
            groups.setdefault(f"{milliseconds:.3f}ms", []).append(node)
    if not groups:
        return []
    if len(groups) > _MOST_DELAYS:
        raise NetworkError(f"{len(groups)} different delays from one node, {_MOST_DELAYS} at most")
    bands = len(groups) + 1
    # NB: a prio qdisc needs at least two bands and a map for all sixteen priorities.
    lines = [f"qdisc add dev eth0 root handle 1: prio bands {bands} priomap{' 0' * 16}"]
    for band, (delay, nodes) in enumerate(groups.items(), 2):
        flow = f"1:{band:x}"
        lines.append(f"qdisc add dev eth0 parent {flow} netem limit 100000 delay {delay}")
        for node in nodes:
            addresses = (f"{node.address}/32", f"{node.address6}/128")
            for network in (*addresses, node.pod_cidr, node.pod_cidr6):
                match = "ipv6 prio 2 u32 match ip6" if ":" in network else "ip prio 1 u32 match ip"
                lines.append(
                    f"filter add dev eth0 parent 1: protocol {match} dst {network} flowid {flow}"
                )
    return lines


def check_delays() -> None:
    """Try out delays in a namespace of their own; raises NetworkError where there are none."""
    if shutil.which("tc", path=search_path()) is None:
        raise NetworkError("tc is not installed (package iproute2)")
    trial = make_namespace("trial")
    try:
        for line, kind in _PROBES:
            try:
                run_batch(trial, [line], tool="tc")
            except NetworkError as error:
                said = str(error)
                if "unknown" in said or "No such file" in said:
                    raise NetworkError(f"this kernel has no {kind}") from None
                raise
    finally:
        trial.close()
