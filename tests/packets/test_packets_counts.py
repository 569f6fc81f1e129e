"""Real connections, and what the counters of the kernel say of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from keepclose.model.addresses import IPV6
from keepclose.model.service.types import ClientIPConfig, SessionAffinityConfig
from keepclose.proxy.counters.kernel_counters import read_counts
from keepclose.proxy.nft.element_messages import decode_key
from keepclose.proxy.nft.writer import NftFamily
from keepclose.ruleset import Counted
from keepclose.ruleset.connection_sets import CONNECTION_SETS
from support.nettopology import NodePlan
from support.packets.loads import count_inside
from support.packets.tabledbeds import TabledBed, address_of, tabled
from support.packets.webobjects import FAMILIES, addresses_of, web

PLAN = (NodePlan("n1", "zone-a", 2), NodePlan("n2", "zone-b", 2))
BACKENDS = ("n1-p1", "n2-p1")
ZONES = {"n1-p1": "zone-a", "n2-p1": "zone-b"}
POD, NODE, OUTSIDE = "n1-p2", "n1", "outside"
TIMES = 6

Counts = Counter[tuple[str, str, bool]]
"""Connections by protocol, zone of the endpoint, and whether they came from outside."""


def counted_by_kernel(bed: TabledBed, family: str) -> Counts:
    """Return what the first node counted."""
    ruleset = bed._rulesets["n1", family]
    ip: NftFamily = "ip6" if family == IPV6 else "ip"
    counts: Counts = Counter()
    for container in CONNECTION_SETS:
        read = bed.namespace("n1").do(
            lambda name=container: read_counts(ip, "kube-proxy", name)  # type: ignore[misc]
        )
        for key, count in read.items():
            slot = (container, decode_key(key, ip, has_endpoint=True))
            counted = ruleset.counted_by(slot)
            assert isinstance(counted, Counted)
            at = (counted.port.protocol, counted.zone, counted.is_from_outside)
            counts[at] += count.packets
    return +counts


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_sticky", [False, True], ids=["any endpoint", "session affinity"])
def test_every_connection_counts_once(family: str, is_sticky: bool) -> None:
    """By protocol, endpoint and origin, at each address of a Service, for each kind of client."""
    spec: dict[str, Any] = {}
    if is_sticky:
        config = SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=600))
        spec = {"session_affinity": "ClientIP", "session_affinity_config": config}
    public = web("public", 11, is_external=True, **spec)
    at = addresses_of(public, family)
    want: Counts = Counter()
    with tabled(PLAN, families=(family,)) as bed:
        bed.write((public,), bed.slices("public", *BACKENDS))
        node = address_of(bed.bed.nodes[0], family)
        for udp in (False, True):
            port = 53 if udp else 80
            doors = [(at.load_balancer, port), (at.external, port), (node, at.node_port)]
            for who in (POD, NODE, OUTSIDE):
                for address, number in [(at.cluster, port), *doors]:
                    answers = count_inside(
                        bed.namespace(who), address, number, times=TIMES, udp=udp
                    )
                    is_from_outside = who == OUTSIDE and address != at.cluster
                    for pod, times in answers.items():
                        want["UDP" if udp else "TCP", ZONES[pod], is_from_outside] += times
        assert counted_by_kernel(bed, family) == want
        assert sum(want.values()) == 2 * 3 * 4 * TIMES
