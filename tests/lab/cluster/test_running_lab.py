"""`keepclose lab` on a cluster that runs: trouble, its end, and measurements under it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import NAMESPACES
from support.commands.upcommands import Ground, ground_for, skip_without_packets
from support.commands.upcommands import until as until_so

FOUR_NODES = ("--zones", "2", "--nodes-per-zone", "2")
SECONDS = 120.0
WATCHES = re.compile(
    r'^apiserver_longrunning_requests{.*resource="(\w+)",scope="cluster".*} (\S+)$', re.MULTILINE
)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Run a cluster of two zones with two nodes each."""
    skip_without_packets()
    with ground_for(tmp_path_factory.mktemp("lab") / "home") as found:
        found.up(*FOUR_NODES)
        yield found
        found.run("lab", "heal")


def states(ground: Ground) -> dict[str, dict[str, Any]]:
    """Return the state of all nodes."""
    done = ground.run("lab", "status", "-o", "json")
    assert done.code == 0, done
    return {one["node"]: one for one in json.loads(done.out)["nodes"]}


def until(ground: Ground, want: dict[str, str], ready: int = 5) -> None:
    """Return when the nodes are as wanted, others well, and that many pods are ready."""
    end = time.monotonic() + SECONDS
    while True:
        found = states(ground)
        is_so = {name: one["state"] for name, one in found.items() if one["state"] != "ok"}
        if is_so == want and sum(one["readyPods"] for one in found.values()) == ready:
            return
        assert time.monotonic() < end, found
        time.sleep(0.1)


def traffic(ground: Ground, node: str) -> dict[str, Any]:
    """Return what connections from a node do, once none of them fails."""
    end = time.monotonic() + SECONDS
    while True:
        found = ground.traffic("--from", node)
        if not found["failed"]:
            return found
        assert time.monotonic() < end, found
        time.sleep(0.2)


def test_a_zone_fails_and_heals(ground: Ground) -> None:
    """Without its zone traffic goes elsewhere; afterwards all pods are ready and reached again."""
    until(ground, {})
    before = sum(states(ground)[name]["readyPods"] for name in ("n1", "n2"))
    done = ground.run("lab", "fail", "zone-a")
    assert done.out.startswith(f"✓ zone-a (n1, n2) failed; {before} pods no longer ready\n")
    until(ground, {"n1": "failed", "n2": "failed"}, ready=5 - before)
    assert traffic(ground, "n3")["failed"] == 0
    assert ground.run("lab", "heal").out.startswith("✓ healed n1 (fail), n2 (fail)\n")
    until(ground, {})
    found = traffic(ground, "n1")
    assert found["rows"][0]["answered"] == {"zone-a": found["connections"]}


def test_a_partition(ground: Ground) -> None:
    """A node that is cut off still counts, cannot be reached from others, and comes back."""
    until(ground, {})
    assert ground.run("lab", "partition", "n2").code == 0
    until(ground, {"n2": "partitioned"})
    # Where the node's proxy tells of its health.
    script = "import socket; socket.create_connection(('172.18.0.2', 10256), 2)"
    connect = (sys.executable, "-c", script)
    assert ground.run("lab", "exec", "n3", "--", *connect).code == 1
    assert ground.run("lab", "heal", "n2").out.startswith("✓ healed n2 (partition)\n")
    assert ground.run("lab", "exec", "n3", "--", *connect).code == 0
    until(ground, {})


def test_a_drain_and_a_move(ground: Ground) -> None:
    """Pods leave a drained node; a node that moves is in its new zone until it is healed."""
    until(ground, {})
    assert ground.run("lab", "drain", "n4").code == 0
    assert ground.run("lab", "relabel", "n3", "zone-a").code == 0
    until(ground, {"n4": "cordoned"})
    found = states(ground)
    assert (found["n4"]["pods"], found["n3"]["words"]) == (0, "was in zone-b")
    assert ground.run("lab", "heal").out.startswith("✓ healed n3 (relabel), n4 (cordon)\n")
    assert states(ground)["n3"]["zone"] == "zone-b"


@pytest.mark.parametrize(
    ("place", "want"),
    [
        pytest.param("n1", "172.18.0.1/16", id="a node"),
        pytest.param("client/n1", "10.244.1.2/32", id="the client on a node"),
        pytest.param("outside", "172.18.255.254/16", id="the outside host"),
    ],
)
def test_commands_inside(ground: Ground, place: str, want: str) -> None:
    """A command sees the network of its place."""
    done = ground.run("lab", "exec", place, "--", "ip", "-4", "-br", "address", "show", "eth0")
    assert done.code == 0, done
    assert want in done.out.split()


def open_watches(ground: Ground) -> dict[str, int]:
    """Return how many watches of all namespaces the API server counts, by resource."""

    async def read() -> str:
        settings = load_connection_settings(ground.directory / "kubeconfig", env={})
        async with connect(settings, clock=SystemClock()) as client:
            return (await client.raw("GET", "/metrics")).decode()

    found = WATCHES.findall(asyncio.run(read()))
    return {resource: int(float(number)) for resource, number in found}


def test_the_lab_watches_each_kind_once(ground: Ground) -> None:
    """Other watches of pods and nodes are those of the controller and of the four proxies."""
    until(ground, {})
    want = {"nodes": 6, "pods": 2, "replicasets": 1, "deployments": 1, "daemonsets": 1}
    until_so(lambda: want.items() <= open_watches(ground).items())


def namespaces(ground: Ground) -> list[str]:
    """Return the namespaces of measurements that are there."""

    async def read() -> list[str]:
        settings = load_connection_settings(ground.directory / "kubeconfig", env={})
        async with connect(settings, clock=SystemClock()) as client:
            return [one.metadata.name for one in (await client.list_all(NAMESPACES)).items]

    return [name for name in asyncio.run(read()) if name.startswith("keepclose-slo")]


@pytest.mark.slow
def test_policies_measured(ground: Ground) -> None:
    """Availability and hops are as the draft of KEP-3015 guesses, and nothing is left behind."""
    until(ground, {})
    done = ground.run("lab", "slo", "--seconds", "6", "-o", "json")
    assert done.code == 0, done
    rows = json.loads(done.out)["rows"]
    assert [(row["policy"], row["role"], row["traffic"]) for row in rows] == [
        ("Cluster", "", "internal"),
        ("Cluster", "", "external"),
        ("Local", "", "internal"),
        ("Local", "", "external"),
        ("PreferLocal", "as fallback", "internal"),
        ("PreferLocal", "as fallback", "external"),
        ("PreferLocal", "as optimisation", "internal"),
        ("PreferLocal", "as optimisation", "external"),
        ("PreferSameZone", "", "internal"),
        ("PreferSameZone", "", "external"),
        ("PreferSameNode", "", "internal"),
        ("PreferSameNode", "", "external"),
    ]
    assert all(row["connections"] > 50 for row in rows)
    guessed, present = rows[:8], rows[8:]
    wrong = [row for row in guessed if not (row["availabilityAsGuessed"] and row["speedAsGuessed"])]
    assert wrong == []
    cluster = {row["traffic"]: row for row in rows[:2]}
    for row in present:
        assert (row["guessedAvailability"], row["availabilityAsGuessed"]) == ("", None)
        assert row["availability"] >= 99.5
        assert row["zoneCrossings"] < 0.5 * cluster[row["traffic"]]["zoneCrossings"]
    assert namespaces(ground) == []
    assert set(states(ground)) == {"n1", "n2", "n3", "n4"}
    until(ground, {})


@pytest.mark.slow
def test_a_measurement_that_is_stopped(ground: Ground) -> None:
    """Ctrl-C ends it, and all that was made for it goes."""
    until(ground, {})
    command = ground.command("lab", "slo", "--seconds", "30")
    with subprocess.Popen(
        command,
        env=ground.environment,
        stderr=subprocess.PIPE,
        # NB: whoever runs the tests in the background lets no child hear this signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as process:
        until_so(lambda: namespaces(ground))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert said.decode() == "stopped; the lab removes the namespace of the measurement\n"
    until_so(lambda: not namespaces(ground))
    until(ground, {})


def test_without_packets(tmp_path: Path) -> None:
    """A lab that sends no packets still fails and heals; what needs packets is refused."""
    env = {"PATH": "/nonexistent", "HOME": str(tmp_path)}
    with ground_for(tmp_path / "home", env=env) as ground:
        ground.up()
        assert ground.run("lab", "fail", "n1").code == 0
        assert states(ground)["n1"]["state"] == "failed"
        for command in (("partition", "n2"), ("slo",), ("exec", "n1", "--", "true")):
            done = ground.run("lab", *command)
            assert (done.code, done.out) == (5, ""), done
        assert ground.run("lab", "heal").out.startswith("✓ healed n1 (fail)\n")
