"""What flow agents count is what clients and servers sent, whatever routes the connections.

Connections are equal exactly. Bytes are those of packets: payload and between 40 and 80 bytes of
headers for each TCP segment over IPv4 (60 to 100 over IPv6); for UDP 28 (48) for each datagram, to
the byte.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from keepclose.accounting.flow_table import FlowKind
from support.lab.counted_lines import connecting, sent_resets, silenced
from support.lab.flowbeds import (
    LONG_TIMEOUTS,
    OUTSIDE,
    SHORT_TIMEOUTS,
    FlowBed,
    flow_bed,
    wait_for,
)
from support.netanswers import PORT

ALL = ("n1-p1", "n2-p1", "n3-p1")
CLIENTS = ("n1-p2", "n2-p2", "n3-p2")


@pytest.fixture(
    scope="module",
    params=[
        "ours",
        pytest.param("kube-proxy-nftables", marks=pytest.mark.real),
        pytest.param("kube-proxy-iptables", marks=pytest.mark.real),
    ],
)
def bed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlowBed]:
    """Run three zones of a node each, with proxies of one make.

    In the end, when the kernels have forgotten most connections, flows must still be what was sent.
    """
    with flow_bed(request.param, tmp_path_factory.mktemp("flows")) as found:
        yield found
        for name in sorted({pair.service for pair in found.sent}):
            if not name.startswith("probe"):
                found.expect_flows(name)
        assert found.of_kind(FlowKind.POD).connections == found.direct
        assert found.of_kind(FlowKind.UNKNOWN).connections == 0
        assert sum(found.answers.connections.values()) >= sum(found.answered.values())


def test_cluster_ips(bed: FlowBed) -> None:
    """Connections of pods in every zone count once, between the zones of client and endpoint."""
    bed.add_service("web", ALL)
    for client in CLIENTS:
        bed.wait_routed(client, "web", ALL)
        places: set[str] = set()
        while places < {*ALL}:
            places |= {*bed.send(client, "web", times=20, request=5_000, response=60_000)}
    assert len({pair[2:4] for pair in bed.sent if pair.service == "web"}) == 9
    bed.expect_flows("web")


def test_both_families(bed: FlowBed) -> None:
    """A dual-stack Service has the connections of both families in the same flows."""
    bed.add_service("dual", ALL)
    for ipv6 in (False, True):
        for client in CLIENTS:
            bed.wait_routed(client, "dual", ALL, ipv6=ipv6)
            bed.send(client, "dual", times=8, ipv6=ipv6)
    bed.expect_flows("dual")


def test_datagrams(bed: FlowBed) -> None:
    """A UDP client is one connection as long as it keeps its port, and bytes are exact."""
    bed.add_service("names", ALL)
    for client, ipv6 in zip(CLIENTS, (False, True, False), strict=True):
        bed.wait_routed(client, "names", ALL, udp=True, ipv6=ipv6)
        bed.send(client, "names", times=10, udp=True, ipv6=ipv6, request=100, response=900)
    to = bed.address("names", udp=True)
    with connecting(bed.place("n1-p2"), to, udp=True) as line:
        for _ in range(12):
            line.exchange(64, 512)
        bed.record("n1-p2", "names", line)
    bed.expect_flows("names")


def test_node_ports_from_outside(bed: FlowBed) -> None:
    """The node that receives a connection from outside counts it, also if it passes it on."""
    bed.add_service("shop", ALL, type="NodePort")
    for node in bed.bed.nodes:
        to = (node.address, bed.node_port("shop"))
        bed.wait_routed(OUTSIDE, "shop", ALL, to=to)
        bed.send(OUTSIDE, "shop", times=10, to=to)
    assert {pair.client_zone for pair in bed.sent if pair.service == "shop"} == {"(outside)"}
    bed.expect_flows("shop")


def test_node_ports_of_other_nodes(bed: FlowBed) -> None:
    """A pod that uses the node port of another node is counted there, with its own zone."""
    bed.add_service("far", ["n3-p1"], type="NodePort", externalTrafficPolicy="Local")
    to = (bed.bed.node("n3").address, bed.node_port("far"))
    bed.wait_routed("n1-p2", "far", ["n3-p1"], to=to)
    bed.send("n1-p2", "far", times=10, to=to)
    bed.expect_flows("far")


def test_session_affinity(bed: FlowBed) -> None:
    """Connections of a client that stays with its endpoint are all counted there."""
    bed.add_service("sticky", ALL, sessionAffinity="ClientIP")
    for client in CLIENTS:
        bed.wait_routed(client, "sticky", ALL)
        assert len(bed.send(client, "sticky", times=15)) == 1
    bed.expect_flows("sticky")


def test_hairpin(bed: FlowBed) -> None:
    """A pod that reaches itself through its Service counts once, within its zone."""
    bed.add_service("self", ["n2-p1"])
    bed.wait_routed("n2-p1", "self", ["n2-p1"])
    bed.send("n2-p1", "self", times=10)
    bed.expect_flows("self")


def test_nodes_as_clients(bed: FlowBed) -> None:
    """Programs of a node itself are clients in the node's zone."""
    bed.add_service("host", ALL)
    for node in ("n1", "n3"):
        bed.wait_routed(node, "host", ALL)
        bed.send(node, "host", times=10)
    bed.expect_flows("host")


def test_a_rolling_update(bed: FlowBed) -> None:
    """Pods that are replaced at the same addresses keep the connections of their time."""
    bed.add_service("roll", ["n1-p3", "n2-p3"])
    bed.wait_routed("n3-p2", "roll", ["n1-p3", "n2-p3"])
    bed.send("n3-p2", "roll", times=10)
    for place in ("n1-p3", "n2-p3"):
        bed.expect_flows("roll")
        bed.name_pod(place, f"{place}-next")
        bed.set_endpoints("roll", ["n1-p3", "n2-p3"])
        bed.wait_named("n3-p2", place)
        bed.send("n3-p2", "roll", times=10)
    bed.set_endpoints("roll", ["n3-p3"])
    bed.wait_routed("n3-p2", "roll", ["n3-p3"])
    bed.send("n3-p2", "roll", times=10)
    assert len({pair.endpoint for pair in bed.sent if pair.service == "roll"}) >= 4
    bed.expect_flows("roll")


def test_a_zone_that_is_lost(bed: FlowBed) -> None:
    """Connections to endpoints that went away are unanswered, later ones go to other zones."""
    bed.add_service("lost", ["n2-p3"])
    bed.wait_routed("n1-p2", "lost", ["n2-p3"])
    bed.send("n1-p2", "lost", times=5)
    before = bed.timeouts["lost"]
    with silenced(bed.pod("n2-p3")):
        assert not bed.send("n1-p2", "lost", times=3, within_s=0.5)
        bed.set_endpoints("lost", ["n3-p3"])
        bed.wait_routed("n1-p2", "lost", ["n3-p3"])
        bed.send("n1-p2", "lost", times=5)
        wait_for(
            lambda: bed.failed("lost", "zone-b").unanswered == bed.timeouts["lost"] - before,
            lambda: (before, bed.timeouts["lost"], bed.failed("lost", "zone-b")),
        )
    bed.expect_flows("lost")


def test_an_agent_that_is_killed(bed: FlowBed) -> None:
    """Nothing is lost or counted twice when an agent dies amid connections and starts again."""
    bed.add_service("kill", ALL)
    client, agent = "n1-p2", bed.agents["n1"]
    # A connection that begins and is forgotten while no agent runs cannot be counted.
    bed.set_timeouts(LONG_TIMEOUTS)
    bed.wait_routed(client, "kill", ALL)
    to = bed.address("kill")
    with connecting(bed.place(client), to) as line:
        line.exchange(1_000, 200_000)
        bed.send(client, "kill", times=10)
        agent.read()
        has_died = threading.Event()

        def die() -> None:
            agent.end(signal.SIGKILL)
            has_died.set()
            agent.start()

        killer = threading.Thread(target=die)
        killer.start()
        while not has_died.is_set():
            bed.send(client, "kill", times=1)
        # No agent is ready yet, and this connection is older than the next one.
        line.exchange(1_000, 300_000)
        bed.send(client, "kill", times=10)
        killer.join()
        agent.wait_ready()
        line.exchange(1_000, 50_000)
        bed.send(client, "kill", times=10)
        bed.record(client, "kill", line)
    bed.expect_flows("kill")
    assert agent.starts == 2
    bed.set_timeouts(SHORT_TIMEOUTS)


def test_refused_connections(bed: FlowBed) -> None:
    """Connections that an endpoint refuses are counted as refused, at its zone."""
    before = sent_resets(bed.pod("n2-p1"))
    ports = [{"name": "http", "port": 80, "targetPort": 9, "protocol": "TCP"}]
    bed.add_service("closed", [], ports=ports)
    bed.set_endpoints("closed", ["n2-p1"], [{"name": "http", "port": 9, "protocol": "TCP"}])
    # The proxy itself refuses connections as long as it knows no endpoint.
    wait_for(
        lambda: refuses(bed, "closed") and sent_resets(bed.pod("n2-p1")) >= before + 10,
        lambda: "connections are not refused",
    )
    want = sent_resets(bed.pod("n2-p1")) - before
    wait_for(
        lambda: bed.failed("closed", "zone-b").refused == want,
        lambda: (want, bed.flows("closed")),
    )
    assert {pair[2:4] for pair in bed.flows("closed")} == {("zone-c", "zone-b")}


def refuses(bed: FlowBed, name: str) -> bool:
    """Return whether a connection of a pod in zone-c is refused."""
    try:
        with connecting(bed.place("n3-p2"), bed.address(name), within_s=1.0):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def test_pods_without_a_service(bed: FlowBed) -> None:
    """Connections to a pod's own address, as of headless Services, are a kind of their own.

    No other connection is: none of those to Services counts again where its endpoint runs.
    """
    assert bed.of_kind(FlowKind.POD).connections == 0
    for client in CLIENTS:
        for place in ALL:
            with connecting(bed.place(client), (bed.pod(place).address, PORT)) as line:
                assert line.exchange(100, 10_000) == place
                bed.direct += 1
    wait_for(
        lambda: bed.of_kind(FlowKind.POD).connections == bed.direct,
        lambda: bed.of_kind(FlowKind.POD),
    )
