"""The network of a cluster with real packets: who reaches whom, before and after changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keepclose.lab.network.underlay import NetworkPlace, Underlay
from keepclose.system.namespaces import NetworkError, NetworkNamespace
from support.underlays import call, underlay_or_skip


@pytest.fixture
def underlay() -> Iterator[Underlay]:
    """Make a network with two nodes."""
    with underlay_or_skip("n1", "n2") as made:
        yield made


def _calls(source: NetworkPlace, target: NetworkPlace, *, seconds: float = 20.0) -> tuple[str, ...]:
    """Return under which addresses the source is seen by both families."""
    return tuple(
        call(source.namespace, target.namespace, one, seconds=seconds) for one in target.addresses
    )


def _node(underlay: Underlay, name: str) -> NetworkPlace:
    node = underlay.nodes[name]
    return NetworkPlace(name, node.namespace, (node.addresses.address, node.addresses.address6))


def _links(namespace: NetworkNamespace) -> set[str]:
    lines = namespace.run("ip", "-brief", "link").splitlines()
    return {line.split()[0].partition("@")[0] for line in lines}


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _wait_until(holds: Callable[[], bool]) -> None:
    """Wait for the kernel, which takes away in its own time."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_everybody_reaches_everybody(underlay: Underlay) -> None:
    """Pods, clients, nodes and the host outside see each other under their own addresses."""
    a, b, c = underlay.add_pods([("n1", "a"), ("n1", "b"), ("n2", "c")])
    assert [one.addresses for one in (a, b, c)] == [
        ("10.244.1.3", "fd00:244:1::3"),
        ("10.244.1.4", "fd00:244:1::4"),
        ("10.244.2.3", "fd00:244:2::3"),
    ]
    client = underlay.nodes["n1"].client
    assert client.addresses == ("10.244.1.2", "fd00:244:1::2")
    assert underlay.outside.addresses == ("172.18.255.254", "fd00:172::ffff")
    on_the_wire = [_node(underlay, "n2"), underlay.outside]
    for source in (a, b, c, client, *on_the_wire):
        for target in (a, b, c, client, *on_the_wire):
            if source is not target and (source.name, target.name) != ("n2", "c"):
                assert _calls(source, target) == source.addresses, (source.name, target.name)


def test_a_node_calls_its_own_pods_as_their_gateway(underlay: Underlay) -> None:
    """Answers to a node come back to the address of its pod range."""
    (pod,) = underlay.add_pods([("n1", "a")])
    assert _calls(_node(underlay, "n1"), pod) == ("10.244.1.1", "fd00:244:1::1")


def test_load_balancers_are_reached_through_the_first_node(underlay: Underlay) -> None:
    """The host outside sends packets for load balancers to the first node, also later."""
    underlay.add_nodes(["n3"])
    node = underlay.nodes["n1"].namespace
    addresses = ("203.0.113.7", "2001:db8:cafe::7")
    for address in addresses:
        # NB: else nobody can use an address of IPv6 before the kernel has found the time.
        at_once = ("nodad",) if ":" in address else ()
        node.run("ip", "address", "add", address, "dev", "lo", *at_once)
    assert (
        _calls(underlay.outside, NetworkPlace("n1", node, addresses)) == underlay.outside.addresses
    )


def test_nodes_have_a_way_for_service_addresses(underlay: Underlay) -> None:
    """A node's own packets to a Service are routed before anybody translates them."""
    node = underlay.nodes["n2"].namespace
    gateway, gateway6 = underlay.outside.addresses
    assert f"via {gateway} dev eth0" in node.run("ip", "route", "get", "10.96.0.1")
    assert f"via {gateway6} dev eth0" in node.run("ip", "route", "get", "fd00:96::1")


def test_settings_of_nodes(underlay: Underlay) -> None:
    """Nodes forward, take answers from anywhere and refuse as often as they are asked."""
    names = ["ipv4/ip_forward", "ipv4/conf/eth0/rp_filter", "ipv4/conf/client/rp_filter"]
    names += ["ipv4/icmp_ratelimit", "ipv6/conf/eth0/forwarding", "ipv6/icmp/ratelimit"]
    inside = underlay.nodes["n1"].namespace
    values = inside.do(lambda: [Path("/proc/sys/net", name).read_text().strip() for name in names])
    assert values == ["1", "0", "0", "0", "1", "0"]


def test_a_node_that_is_cut_off(underlay: Underlay) -> None:
    """It reaches nobody and nobody it, but what is on it goes on; mended it is as before."""
    underlay.add_nodes(["n3"])
    a, b, c, d = underlay.add_pods([("n1", "a"), ("n1", "b"), ("n2", "c"), ("n3", "d")])
    for _ in range(2):
        underlay.cut("n1")
        assert _calls(a, c, seconds=0.2) == ("", "")
        assert _calls(c, a, seconds=0.2) == ("", "")
        assert _calls(underlay.outside, _node(underlay, "n1"), seconds=0.2) == ("", "")
        assert _calls(a, b) == a.addresses
        assert _calls(c, d) == c.addresses
        underlay.restore("n1")
        assert _calls(a, c) == a.addresses
        assert _calls(c, a) == c.addresses
        assert _calls(underlay.outside, _node(underlay, "n1")) == underlay.outside.addresses


def test_nodes_that_come_later(underlay: Underlay) -> None:
    """They reach all that were there before, and those them."""
    (a,) = underlay.add_pods([("n1", "a")])
    underlay.add_nodes(["n3", "n4"])
    (b, c) = underlay.add_pods([("n3", "b"), ("n4", "c")])
    assert list(underlay.nodes) == ["n1", "n2", "n3", "n4"]
    for source, target in ((a, b), (b, a), (b, c), (underlay.outside, c), (c, underlay.outside)):
        assert _calls(source, target) == source.addresses


def test_nobody_asks_for_hardware_addresses(underlay: Underlay) -> None:
    """All neighbours are written down, so that many pods fill no table that all share."""
    a, b = underlay.add_pods([("n1", "a"), ("n2", "b")])
    assert _calls(a, b) == a.addresses
    assert _calls(underlay.outside, b) == underlay.outside.addresses
    for place in (a, b, underlay.outside, _node(underlay, "n1"), _node(underlay, "n2")):
        lines = place.namespace.run("ip", "neighbour").splitlines()
        learnt = [one for one in lines if "PERMANENT" not in one]
        assert lines
        assert learnt == []


def test_pods_that_go(underlay: Underlay) -> None:
    """Their links are gone at once, also with sockets inside, and their addresses stay unused."""
    a, b = underlay.add_pods([("n1", "a"), ("n1", "b")])
    node = underlay.nodes["n1"].namespace
    assert _links(node) == {"lo", "eth0", "client", "pod3", "pod4"}
    with a.namespace.open_socket():
        underlay.remove_pods(["a", "nobody", "a"])
        assert _links(node) == {"lo", "eth0", "client", "pod4"}
    assert (underlay.pod("a"), underlay.pod("b")) == (None, b)
    (again,) = underlay.add_pods([("n1", "a")])
    assert again.addresses[0] == "10.244.1.5"
    assert _calls(b, again) == b.addresses
    with pytest.raises(NetworkError, match=r"^the network namespace of a is gone$"):
        a.namespace.open_socket()


def test_pods_that_are_there_already(underlay: Underlay) -> None:
    """They stay as they are, and cannot be on another node too."""
    a, again = underlay.add_pods([("n1", "a"), ("n1", "a")])
    assert again is a
    assert underlay.add_pods([("n2", "b"), ("n1", "a")])[1] is a
    with pytest.raises(NetworkError, match=r"^pod a is on node n1, not on n2$"):
        underlay.add_pods([("n2", "a")])
    with pytest.raises(NetworkError, match=r"^pod c is on node n1, not on n2$"):
        underlay.add_pods([("n1", "c"), ("n2", "c")])
    assert underlay.pod("c") is None


def test_names_that_are_wrong(underlay: Underlay) -> None:
    """A node cannot be added twice, and one that is not there has neither pods nor a link."""
    for names, name in ((["n3", "n1"], "n1"), (["n4", "n4"], "n4")):
        with pytest.raises(NetworkError, match=rf"^node {name} is there already$"):
            underlay.add_nodes(names)
    for work in (
        lambda: underlay.add_pods([("n1", "a"), ("n9", "b")]),
        lambda: underlay.cut("n9"),
        lambda: underlay.restore("n9"),
    ):
        with pytest.raises(NetworkError, match=r"^there is no node n9$"):
            work()
    assert list(underlay.nodes) == ["n1", "n2"]
    assert underlay.pod("a") is None


def test_pods_that_fail_leave_nothing(underlay: Underlay) -> None:
    """When the kernel refuses one of several pods none is made, and more can be made later."""
    node = underlay.nodes["n1"].namespace
    node.run("ip", "link", "add", "pod4", "type", "bridge")
    files = _open_files()
    with pytest.raises(NetworkError, match=r"^n1: ip link add pod4 .*: .*File exists$"):
        underlay.add_pods([("n1", "a"), ("n1", "b"), ("n2", "c")])
    assert [underlay.pod(pod) for pod in "abc"] == [None, None, None]
    assert _open_files() == files
    _wait_until(lambda: "pod3" not in _links(node))
    a, c = underlay.add_pods([("n1", "a"), ("n2", "c")])
    assert (a.addresses[0], c.addresses[0]) == ("10.244.1.5", "10.244.2.4")
    assert _calls(a, c) == a.addresses


def test_nodes_that_fail_leave_nothing(underlay: Underlay) -> None:
    """When the kernel refuses one of several nodes none is made, and they can be made later."""
    wire = underlay._open_wire()
    wire.run("ip", "link", "add", "node4", "type", "bridge")
    with pytest.raises(NetworkError, match=r"^wire: ip link add node4 .*: .*File exists$"):
        underlay.add_nodes(["n3", "n4"])
    assert list(underlay.nodes) == ["n1", "n2"]
    assert _links(wire) == {"lo", "br0", "outside", "node1", "node2"}
    underlay.add_nodes(["n3", "n4"])
    client = underlay.nodes["n4"].client
    assert _calls(underlay.nodes["n1"].client, client) == ("10.244.1.2", "fd00:244:1::2")


def test_a_full_node(underlay: Underlay) -> None:
    """A node without free addresses takes no more, and says so."""
    numbers = underlay._numbers["n1"]
    while numbers.free > 1:
        numbers.take()
    with pytest.raises(
        NetworkError, match=r"^node n1 takes no more pods: all 252 pod addresses are in use$"
    ):
        underlay.add_pods([("n1", "a"), ("n1", "b")])
    assert numbers.free == 1
    (a,) = underlay.add_pods([("n1", "a")])
    assert a.addresses == ("10.244.1.254", "fd00:244:1::254")
    assert _calls(a, underlay.nodes["n1"].client) == a.addresses


def test_calls_from_several_threads(underlay: Underlay) -> None:
    """Pods made at the same time have addresses of their own."""
    made: list[NetworkPlace] = []

    def add(pod: str) -> None:
        made.extend(underlay.add_pods([("n1", pod)]))

    threads = [threading.Thread(target=add, args=(f"p{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.addresses[0] for one in made) == [f"10.244.1.{n}" for n in range(3, 9)]


def test_delays_or_the_reason_why_not(underlay: Underlay) -> None:
    """Packets take their time between nodes, or it is said that the kernel cannot."""
    a, b = underlay.add_pods([("n1", "a"), ("n2", "b")])
    underlay.delay(lambda _source, _target: 0.0)
    try:
        underlay.delay(lambda _source, _target: 50.0)
    except NetworkError as error:
        assert str(error).startswith("this kernel has no netem (sch_netem)")  # noqa: PT017
        assert _calls(a, b) == a.addresses
        return

    begin = time.monotonic()
    assert _calls(a, b) == a.addresses
    assert time.monotonic() - begin >= 0.2
    inside = [node.namespace for node in underlay.nodes.values()]
    assert all("netem" in one.run("tc", "qdisc") for one in inside)
    underlay.delay(lambda _source, _target: 0.0)
    # NB: a busy machine may take as long by itself, so that time tells nothing now.
    assert not any("netem" in one.run("tc", "qdisc") for one in inside)
    assert _calls(a, b) == a.addresses


def test_a_network_that_is_closed(underlay: Underlay) -> None:
    """Nothing is held any more, nothing can be done, and it can be opened anew."""
    underlay.add_pods([("n1", "a")])
    held = [underlay.outside.namespace, underlay.nodes["n1"].namespace]
    underlay.close()
    underlay.close()
    assert [one.fd for one in held] == [-1, -1]
    assert (underlay.nodes, underlay.pod("a")) == ({}, None)
    with pytest.raises(NetworkError, match=r"^the network is not open$"):
        underlay.add_nodes(["n1"])
    with pytest.raises(NetworkError, match=r"^the network is not open$"):
        underlay.restore("n1")
    underlay.open()
    underlay.add_nodes(["n1"])
    assert underlay.nodes["n1"].addresses.number == 1


_HOLDER = """
import json, os, signal
from keepclose.lab.network.underlay import Underlay

underlay = Underlay()
underlay.open()
underlay.add_nodes(["n1", "n2", "n3"])
places = underlay.add_pods([(f"n{i % 3 + 1}", f"p{i}") for i in range(6)])
wire, node = underlay._open_wire(), underlay.nodes["n1"].namespace
print(wire.path, node.path, flush=True)
signal.pause()
"""


def test_nothing_is_left_of_a_process_that_was_killed() -> None:
    """The kernel takes everything away with the process, and the machine's links never change."""
    with underlay_or_skip():
        pass
    links = {one.name for one in Path("/sys/class/net").iterdir()}
    process = subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        paths = process.stdout.readline().split()
        # What is held here stays; what the kernel does to its links tells about all others.
        wire, node = (NetworkNamespace(path, os.open(path, os.O_RDONLY)) for path in paths)
        try:
            assert _links(wire) == {"lo", "br0", "outside", "node1", "node2", "node3"}
            assert _links(node) == {"lo", "eth0", "client", "pod3", "pod4"}
            process.send_signal(signal.SIGKILL)
            process.wait()
            _wait_until(lambda: _links(wire) == {"lo", "br0", "node1"})
            _wait_until(lambda: _links(node) == {"lo", "eth0"})
        finally:
            wire.close()
            node.close()
    assert {one.name for one in Path("/sys/class/net").iterdir()} == links
