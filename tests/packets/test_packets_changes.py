"""Changes of every kind while connections are open and while new ones come all the time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

import pytest

from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from support.netanswers import Answer, Caller, ask, calling
from support.netns import ip_batch
from support.nettopology import NodePlan
from support.packets.loads import loading
from support.packets.packetflows import do_at_once
from support.packets.tabledbeds import TabledBed, address_of, tabled
from support.packets.webobjects import FAMILIES, Addresses, Backend, addresses_of, ending, web

PLAN = (NodePlan("n1", "zone-a", 3), NodePlan("n2", "zone-b", 2))
PODS = ("n1-p1", "n1-p2", "n2-p1", "n2-p2")


@contextlib.contextmanager
def open_callers(bed: TabledBed, where: Addresses, family: str) -> Iterator[dict[str, Caller]]:
    """Open connections of every kind of client to every kind of address, for the block."""
    node = address_of(bed.bed.node("n1"), family)
    targets = {
        "cluster IP": (where.cluster, 80),
        "load balancer": (where.load_balancer, 80),
        "node port": (node, where.node_port),
        "UDP": (where.cluster, 53),
    }
    with contextlib.ExitStack() as stack:
        yield {
            f"{who} at {what}": stack.enter_context(
                calling(bed.namespace(who), *target, udp=what == "UDP")
            )
            for who in ("n1-p3", "n1", "outside", "n1-p1")
            for what, target in targets.items()
        }


def stages(
    bed: TabledBed, one: Service
) -> Iterator[tuple[str, list[Service], list[EndpointSlice]]]:
    """Make every kind of change, one after the other; return what it is in words."""
    zoned = [
        Backend(pod, for_zones=(bed.node_of(pod).zone,), for_nodes=(bed.node_of(pod).name,))
        for pod in PODS
    ]
    zones_only = [one._replace(for_nodes=()) for one in zoned]
    yield "zone hints", [one], bed.slices("web", *zones_only)
    bed.zones["n1"] = "zone-b"
    yield "the node is in another zone", [one], bed.slices("web", *zones_only)
    bed.zones["n1"] = ""
    yield "the node is in no zone", [one], bed.slices("web", *zones_only)
    bed.zones["n1"] = "zone-a"
    yield "node hints", [one], bed.slices("web", *zoned)
    yield "all terminate", [one], bed.slices("web", *(ending(pod) for pod in PODS))
    unready = [Backend(pod, ready=False, serving=False) for pod in PODS]
    yield "none is ready", [one], bed.slices("web", *unready)
    yield "none is there", [one], []
    sticky = web("web", 10, is_external=True, session_affinity="ClientIP")
    yield "clients are sticky", [sticky], bed.slices("web", *PODS)
    closed = web(
        "web",
        10,
        is_external=True,
        internal_traffic_policy="Local",
        external_traffic_policy="Local",
        load_balancer_source_ranges=("192.0.2.0/24", "2001:db8:ff::/64"),
    )
    yield "only local clients, and none at the load balancer", [closed], bed.slices("web", "n2-p1")
    yield "the Service is gone", [], []
    yield "it is back", [one], bed.slices("web", *PODS)


@pytest.mark.parametrize("family", FAMILIES)
def test_open_connections_stay_where_they_are(family: str) -> None:
    """No change of topology, endpoints, policies or the Service itself moves or cuts them."""
    one = web("web", 10, is_external=True)
    with tabled(PLAN) as bed:
        bed.write((one,), bed.slices("web", *PODS))
        with open_callers(bed, addresses_of(one, family), family) as callers:
            before = {name: caller.ask() for name, caller in callers.items()}
            for what, services, slices in stages(bed, one):
                bed.write(services, slices)
                after = {name: caller.ask() for name, caller in callers.items()}
                assert after == before, what


def test_new_connections_follow_every_change_at_once() -> None:
    """The first connection after a write goes where the new rules say."""
    one = web("web", 10)
    with tabled(PLAN) as bed:
        bed.write((one,), [])
        client, address = bed.namespace("n1-p3"), addresses_of(one, IPV4).cluster
        random = Random(7)
        for _ in range(60):
            pods = random.sample(PODS, random.randint(1, 3))
            bed.write((one,), bed.slices("web", *pods))
            answer = ask(client, address, 80)
            assert isinstance(answer, Answer)
            assert answer.name in pods


def test_no_connection_is_lost_while_rules_change() -> None:
    """A hundred changes under load: each connection is answered, by whomever it may be."""
    services = [
        web("web", 10, is_external=True),
        web("sticky", 11, session_affinity="ClientIP"),
    ]
    with tabled(PLAN) as bed:
        bed.linger_s = 1.0
        random = Random(11)

        def change() -> list[EndpointSlice]:
            return [
                piece
                for one in services
                for piece in bed.slices(
                    one.metadata.name, *choose(random, bed), part=str(random.randint(1, 2))
                )
            ]

        bed.write(services, change())
        targets = [
            (addresses_of(services[0], IPV4).cluster, 80),
            (addresses_of(services[0], IPV6).load_balancer, 80),
            (addresses_of(services[1], IPV4).cluster, 80),
        ]
        clients = [bed.namespace(who) for who in ("n1-p3", "n1")]
        with loading(clients, targets) as load:
            for _ in range(100):
                bed.write(services, change())
                load.wait_for(10)
        assert load.failures == []
        assert load.count > 500


def test_an_address_passes_to_another_service() -> None:
    """A Service that takes over the addresses of one that goes loses no connection on the way."""
    old, new = web("old", 10, is_external=True), web("new", 10, is_external=True)
    with tabled(PLAN) as bed:
        bed.linger_s = 1.0
        slices = [*bed.slices("old", "n1-p1"), *bed.slices("new", "n2-p1")]
        bed.write((old,), slices)
        where = addresses_of(old, IPV4)
        node = address_of(bed.bed.node("n1"), IPV4)
        targets = [(where.cluster, 80), (where.external, 80), (node, where.node_port)]
        with loading([bed.namespace("n1-p3"), bed.namespace("n1")], targets) as load:
            for services, want in (((new,), "n2-p1"), ((old,), "n1-p1"), ((new,), "n2-p1")):
                bed.write(services, slices)
                load.wait_for(6 * 2)
                load.take()
                load.wait_for(6 * 4)
                assert set(load.take()) == {want}
        assert load.failures == []


@pytest.mark.parametrize("family", FAMILIES)
def test_doors_close(family: str) -> None:
    """A Service that is external no longer is found at its cluster IP alone, until it is again."""
    wide, narrow = web("web", 10, is_external=True), web("web", 10)
    with tabled(PLAN) as bed:
        slices = bed.slices("web", "n1-p1")
        where = addresses_of(wide, family)
        node = address_of(bed.bed.node("n1"), family)
        # Who sends there is told at once that nobody has these addresses.
        routes = [
            f"route add unreachable {where.load_balancer}",
            f"route add unreachable {where.external}",
        ]
        ip_batch(routes, bed.namespace("n1"))
        targets = {
            "cluster IP": (where.cluster, 80),
            "load balancer": (where.load_balancer, 80),
            "external IP": (where.external, 80),
            "node port": (node, where.node_port),
        }

        def open_doors() -> set[str]:
            answers = do_at_once(
                {
                    name: partial(ask, bed.namespace("n1-p3"), *target)
                    for name, target in targets.items()
                }
            )
            return {name for name, one in answers.items() if isinstance(one, Answer)}

        for one, want in (
            (wide, set(targets)),
            (narrow, {"cluster IP"}),
            (wide, set(targets)),
        ):
            bed.write((one,), slices)
            assert open_doors() == want


def choose(random: Random, bed: TabledBed) -> Sequence[Backend]:
    """Return some pods as endpoints, with or without hints."""
    pods = random.sample(PODS, random.randint(1, len(PODS)))
    hinted = random.random() < 0.5
    return [Backend(pod, for_zones=(bed.node_of(pod).zone,) if hinted else ()) for pod in pods]
