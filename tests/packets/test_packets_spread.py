"""How connections fall to endpoints: evenly, by weight, or always to the same one."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest

from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.service.types import ClientIPConfig, Service, SessionAffinityConfig
from keepclose.model.well_known import ENDPOINT_WEIGHTS_ANNOTATION
from keepclose.ruleset import CountBy
from support.netanswers import Answer, ask
from support.nettopology import NodePlan
from support.packets.chances import UNBELIEVABLE, chance_of
from support.packets.loads import count_inside
from support.packets.packetflows import do_at_once
from support.packets.tabledbeds import TabledBed, tabled
from support.packets.webobjects import FAMILIES, addresses_of, web

PLAN = (
    NodePlan("n1", "zone-a", 4),
    NodePlan("n2", "zone-a", 2),
    NodePlan("n3", "zone-b", 3),
)
PODS = ("n1-p1", "n1-p2", "n1-p3", "n2-p1", "n2-p2", "n3-p1", "n3-p2")
CLIENT = "n1-p4"
TIMES = 2_000


@pytest.mark.parametrize(
    ("family", "count_by", "udp"),
    [
        pytest.param(IPV4, CountBy.ZONE, False, id="counted by zone"),
        pytest.param(IPV4, CountBy.NODE, False, id="counted by node"),
        pytest.param(IPV4, CountBy.NOTHING, False, id="not counted"),
        pytest.param(IPV4, CountBy.ZONE, True, id="UDP"),
        pytest.param(IPV6, CountBy.ZONE, False, id="IPv6"),
    ],
)
def test_connections_are_spread_evenly(family: str, count_by: CountBy, udp: bool) -> None:
    """Without weights each endpoint is as likely as any other, however they are grouped."""
    one = web("web", 10)
    with tabled(PLAN, settings={"count_by": count_by}) as bed:
        bed.write((one,), bed.slices("web", *PODS))
        counts = count(bed, one, family, udp=udp)
    assert sum(counts.values()) == TIMES
    assert chance_of(counts, dict.fromkeys(PODS, 1)) > UNBELIEVABLE, counts


@pytest.mark.parametrize("count_by", list(CountBy))
def test_weights(count_by: CountBy) -> None:
    """Connections fall to endpoints in proportion to their weights, however they are grouped."""
    weights = {"n1-p1": 1, "n1-p2": 7, "n2-p1": 2, "n3-p1": 5, "n3-p2": 20}
    one = web("web", 10)
    annotations = {ENDPOINT_WEIGHTS_ANNOTATION: json.dumps(list(weights.values()))}
    with tabled(PLAN, settings={"count_by": count_by}) as bed:
        bed.write((one,), bed.slices("web", *weights, annotations=annotations))
        counts = count(bed, one, IPV4)
        assert chance_of(counts, weights) > UNBELIEVABLE, counts
        # The test can fail: the counts are nothing like even ones.
        assert chance_of(counts, dict.fromkeys(weights, 1)) < UNBELIEVABLE
        # A list that does not fit is not followed at all.
        unfit = {ENDPOINT_WEIGHTS_ANNOTATION: "[1, 7]"}
        bed.write((one,), bed.slices("web", *weights, annotations=unfit))
        counts = count(bed, one, IPV4, times=500)
        assert chance_of(counts, dict.fromkeys(weights, 1)) > UNBELIEVABLE, counts


def count(
    bed: TabledBed, one: Service, family: str, *, udp: bool = False, times: int = TIMES
) -> Counter[str]:
    """Return how often each pod answers to the client."""
    address, port = addresses_of(one, family).cluster, 53 if udp else 80
    return count_inside(bed.namespace(CLIENT), address, port, times=times, udp=udp)


def sticky(seconds: int, **spec: Any) -> Service:
    """Return a Service whose clients stay with their endpoints for so long."""
    config = SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=seconds))
    return web("sticky", 20, session_affinity="ClientIP", session_affinity_config=config, **spec)


def endpoint_of(
    bed: TabledBed, who: str, address: str, port: int = 80, *, udp: bool = False
) -> str:
    """Return the one pod that answers to somebody, many times."""
    names = set(count_inside(bed.namespace(who), address, port, times=16, udp=udp))
    assert len(names) == 1, names
    return names.pop()


@pytest.mark.parametrize("family", FAMILIES)
def test_clients_stay_with_their_endpoint(family: str) -> None:
    """A client keeps its endpoint at every address of the port, while that endpoint is there."""
    one = sticky(10_800, is_external=True)
    with tabled(PLAN) as bed:
        some = ("n1-p1", "n2-p1", "n3-p1")
        bed.write((one,), bed.slices("sticky", *some))
        where = addresses_of(one, family)
        clients = ("n1-p4", "n1-p3", "n1")
        homes = {who: endpoint_of(bed, who, where.cluster) for who in clients}
        home = homes["n1-p4"]
        assert endpoint_of(bed, "n1-p4", where.load_balancer) == home
        assert endpoint_of(bed, "n1-p4", bed.source("n1", family), where.node_port) == home
        # Each port has its own memory.
        other = endpoint_of(bed, "n1-p4", where.cluster, 53, udp=True)
        assert endpoint_of(bed, "n1-p4", where.external, 53, udp=True) == other
        # More endpoints, and the end of some other, move nobody.
        more = {*PODS} - {"n1-p4"}
        bed.write((one,), bed.slices("sticky", *sorted(more)))
        assert {who: endpoint_of(bed, who, where.cluster) for who in clients} == homes
        bed.write((one,), bed.slices("sticky", *sorted({*homes.values(), "n3-p2"})))
        assert {who: endpoint_of(bed, who, where.cluster) for who in clients} == homes
        # The end of their own does, for good.
        left = sorted(more - {home})
        bed.write((one,), bed.slices("sticky", *left))
        moved = endpoint_of(bed, "n1-p4", where.cluster)
        assert moved != home
        bed.write((one,), bed.slices("sticky", *left, home))
        assert endpoint_of(bed, "n1-p4", where.cluster) == moved
        stay = {who: at for who, at in homes.items() if at != home}
        assert {who: endpoint_of(bed, who, where.cluster) for who in stay} == stay


def test_stickiness_ends_with_time() -> None:
    """It lasts for its time after the last new connection, and a new time counts at once."""
    many = (NodePlan("n1", "zone-a", 11), NodePlan("n2", "zone-b", 7))
    ends = tuple(f"n2-p{i}" for i in range(1, 8))
    clients = tuple(f"n1-p{i}" for i in range(1, 12))
    address = addresses_of(sticky(1), IPV4).cluster

    def homes(bed: TabledBed) -> dict[str, str]:
        found = {who: ask(bed.namespace(who), address, 80) for who in clients}
        return {who: one.name for who, one in found.items() if isinstance(one, Answer)}

    with tabled(many) as bed:
        bed.write((sticky(10_800),), bed.slices("sticky", *ends))
        first = homes(bed)
        assert set(first) == set(clients)
        bed.write((sticky(3),), bed.slices("sticky", *ends))
        assert homes(bed) == first
        for _ in range(3):
            # NB: the rest of the time is for a machine that is slow to ask.
            time.sleep(1.05)
            assert homes(bed) == first
        time.sleep(3.3)
        # NB: that all of them choose the same again has a chance of one in 7 ** 11.
        second = homes(bed)
        assert set(second) == set(clients)
        assert second != first


def test_local_and_cluster_traffic_share_a_memory() -> None:
    """An outside client stays with a local endpoint, under the policy Local."""
    one = sticky(10_800, is_external=True, external_traffic_policy="Local")
    with tabled(PLAN) as bed:
        bed.write((one,), bed.slices("sticky", *PODS))
        where = addresses_of(one, IPV4)
        work = {
            who: lambda who=who: endpoint_of(bed, who, where.load_balancer)
            for who in ("outside", "n1-p4", "n1")
        }
        found = do_at_once(work)
        assert found["outside"] in {"n1-p1", "n1-p2", "n1-p3"}
        assert endpoint_of(bed, "n1-p4", where.cluster) == found["n1-p4"]
        # Its endpoint is gone: it is led to another one of the node.
        left = [pod for pod in PODS if pod != found["outside"]]
        bed.write((one,), bed.slices("sticky", *left))
        moved = endpoint_of(bed, "outside", where.load_balancer)
        assert moved in {"n1-p1", "n1-p2", "n1-p3"} - {found["outside"]}
