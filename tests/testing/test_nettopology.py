"""The test bed itself: who reaches whom, and that nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from support.netanswers import (
    Answer,
    Silence,
    answering,
    ask,
    calling,
    count_answers,
    wait_for_answer,
)
from support.netns import (
    PREFIX,
    Namespace,
    ip_batch,
    ip_batches,
    leftovers,
    namespaces_or_skip,
    why_unavailable,
)
from support.nettopology import THREE_ZONES, Bed, NodePlan, topology_or_skip

SMALL = (NodePlan("n1", "zone-a", 1), NodePlan("n2", "zone-b", 1))


def _own() -> set[str]:
    return {one.name for one in Path("/run/netns").glob(f"{PREFIX}-{os.getpid()}-*")}


def test_six_nodes_in_three_zones() -> None:
    """Everybody reaches everybody by both families, and is seen under its own address."""
    with topology_or_skip() as bed, answering(bed.pods):
        assert [node.zone for node in bed.nodes] == [
            *("zone-a", "zone-a", "zone-b", "zone-b", "zone-c", "zone-c")
        ]
        assert len(bed.pods) == 12
        first, last = bed.pods[0], bed.pods[-1]
        for udp in (False, True):
            for one, other in ((first, last), (last, first), (first, bed.pods[1])):
                want = Answer(other.name, one.address)
                assert ask(one.namespace, other.address, 8080, udp=udp) == want
                want = Answer(other.name, one.address6)
                assert ask(one.namespace, other.address6, 8080, udp=udp) == want
        assert ask(bed.outside.namespace, last.address, 8080) == Answer(
            "n6-p2", bed.outside.address
        )
        node = bed.node("n3")
        assert ask(node.namespace, first.address6, 8080) == Answer("n1-p1", node.address6)
        assert count_answers(first.namespace, last.address, 8080, times=5) == {"n6-p2": 5}
    assert _own() == set()


def test_nobody_answers() -> None:
    """A closed port refuses, an address of nobody is silent, one without a route says so."""
    with topology_or_skip(SMALL) as bed, answering(bed.pods[1:]):
        inside = bed.pods[0].namespace
        for address in (bed.pods[1].address, bed.pods[1].address6):
            assert ask(inside, address, 9) is Silence.REFUSED
            assert ask(inside, address, 9, udp=True) is Silence.REFUSED
        assert ask(inside, "10.96.0.1", 80, seconds=0.2) is Silence.DROPPED
        assert ask(bed.outside.namespace, "10.96.0.1", 80) is Silence.UNREACHABLE
        with pytest.raises(TimeoutError, match=r"nobody answers at 10\.244\.2\.11:9"):
            wait_for_answer(inside, "10.244.2.11", 9, seconds=0.2)
        assert wait_for_answer(inside, "10.244.2.11", 8080).name == "n2-p1"


def test_a_route_from_outside() -> None:
    """Packets for a network can be sent through a chosen node."""
    with topology_or_skip(SMALL) as bed, answering(bed.pods):
        _add_service(bed)
        for network, address in (("10.96.0.0/16", "10.96.0.1"), ("fd00:96::/108", "fd00:96::1")):
            bed.route_via(network, bed.nodes[0])
            answer = ask(bed.outside.namespace, address, 80)
            assert isinstance(answer, Answer)
            assert answer.name == "n1-p1"


def _add_service(bed: Bed) -> None:
    lines = []
    for family, address, target in (
        ("ip", "10.96.0.1", "10.244.1.11:8080"),
        ("ip6", "fd00:96::1", "[fd00:244:1::11]:8080"),
    ):
        lines += [
            f"add table {family} t",
            f"add chain {family} t p {{ type nat hook prerouting priority -100 ; }}",
            f"add rule {family} t p {family} daddr {address} tcp dport 80 dnat to {target}",
        ]
    bed.nodes[0].namespace.run("nft", "-f", "-", text="\n".join(lines) + "\n")


def test_one_connection_asks_many_times() -> None:
    """A caller keeps its port and its server."""
    with topology_or_skip(SMALL) as bed, answering(bed.pods):
        for udp in (False, True):
            with calling(bed.pods[0].namespace, bed.pods[1].address, 8080, udp=udp) as caller:
                assert {caller.ask() for _ in range(3)} == {Answer("n2-p1", "10.244.1.11")}
                assert caller.port > 0


def test_cleaning_up_after_a_failure() -> None:
    """An error inside the block leaves no namespace behind."""

    def break_inside() -> None:
        with topology_or_skip(SMALL):
            assert len(_own()) == 6
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        break_inside()
    assert _own() == set()


def test_cleaning_up_after_somebody_who_was_killed(tmp_path: Path) -> None:
    """Namespaces of a process that is no more are removed, those of others are not."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    # NB: others who run this at the same time have other parents.
    dead, foreign = f"{PREFIX}-{process.pid}-1-x", f"{PREFIX}-{os.getppid()}-1-x"
    for name in (dead, foreign, f"{PREFIX}-x", "other"):
        (tmp_path / name).touch()
    assert leftovers(tmp_path) == [dead]
    with namespaces_or_skip("mine") as [mine]:
        ip_batch([f"netns add {dead}", f"netns add {foreign}"])
        try:
            with namespaces_or_skip("more"):
                pass
            assert not Namespace(dead).path.exists()
            assert Namespace(foreign).path.exists()
            assert mine.path.exists()
        finally:
            ip_batch([f"netns delete {foreign}"])


def test_work_inside(tmp_path: Path) -> None:
    """Commands, programs and sockets run inside; errors come out."""
    with namespaces_or_skip("a") as [inside]:
        assert inside.run("ip", "-o", "link").startswith("1: lo: <LOOPBACK,UP,LOWER_UP>")
        with pytest.raises(subprocess.CalledProcessError):
            inside.run("false")
        with pytest.raises(ZeroDivisionError):
            inside.do(lambda: 1 // 0)
        with inside.listen("127.0.0.1", 0) as listener, inside.open_socket() as client:
            client.settimeout(20)
            client.connect(listener.getsockname())
        with inside.open_socket(socket.AF_INET6, socket.SOCK_DGRAM) as one:
            assert (one.family, one.type) == (socket.AF_INET6, socket.SOCK_DGRAM)
        log = tmp_path / "log"
        with inside.running(["sh", "-c", "echo ready; exec sleep 60"], log) as process:
            assert process.poll() is None
            while log.read_text() != "ready\n":
                assert process.poll() is None
        assert process.returncode == -15
        with pytest.raises(subprocess.CalledProcessError):
            ip_batches({inside: ["link set none up"]})


def test_why_there_may_be_no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing tool is named, with the package that has it."""
    if os.geteuid() != 0:
        assert why_unavailable() == "network namespaces need root"
        return
    monkeypatch.setenv("PATH", "/nowhere")
    assert why_unavailable() == "ip is not installed (package iproute2)"
    with (
        pytest.raises(pytest.skip.Exception, match="ip is not installed"),
        topology_or_skip(THREE_ZONES),
    ):
        pass
