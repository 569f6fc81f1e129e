"""`keepclose up --flows`: agents on every node of a lab, and what commands make of their counts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.lab.kinds import DEPLOYMENTS
from keepclose.model.workloads.types import Deployment
from support.commands.upcommands import (
    Ground,
    ground_for,
    skip_without_packets,
    until,
    watching,
)

REPLICAS = 4
PORTS = [
    {"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"},
    {"name": "dns", "port": 53, "targetPort": 8080, "protocol": "UDP"},
]
LABELS = {"app": "spread"}
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": LABELS},
}
CONTAINER = {
    "name": "main",
    "image": "web:1",
    "ports": [{"containerPort": 8080}, {"containerPort": 8080, "protocol": "UDP"}],
}
OBJECTS = (
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "spread"},
        "spec": {
            "type": "NodePort",
            "selector": LABELS,
            "ports": PORTS,
            "ipFamilyPolicy": "RequireDualStack",
        },
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "spread"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"containers": [CONTAINER], "topologySpreadConstraints": [SPREAD]},
            },
        },
    },
)
FOUR_NODES = ("--zones", "2", "--nodes-per-zone", "2", "--flows")
Pairs = Counter[tuple[str, str]]
SECONDS = 120.0


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Run a cluster of two zones with two nodes each, all with flow agents."""
    skip_without_packets()
    with ground_for(tmp_path_factory.mktemp("lab") / "home") as found:
        manifest = tmp_path_factory.mktemp("manifest") / "spread.json"
        manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": OBJECTS}))
        found.up(*FOUR_NODES, "--manifest", str(manifest))
        yield found


def flows(ground: Ground) -> dict[str, Any]:
    """Return what `flows top` says of pairs of zones."""
    done = ground.run("flows", "top", "--by", "zones", "-o", "json")
    assert done.code == 0, done
    found: dict[str, Any] = json.loads(done.out)
    return found


def pairs(ground: Ground) -> Pairs:
    """Return the connections that agents have counted between zones, without failed ones."""
    return Counter(
        {
            tuple(line["name"].split(" → ")): line["total"]["connections"] - line["total"]["failed"]
            for line in flows(ground)["lines"]
        }
    )


def answered(report: dict[str, Any]) -> Pairs:
    """Return the connections of a report of traffic, between zones."""
    counts: Pairs = Counter()
    for row in report["rows"]:
        source = row["from"] if report["via"] == "cluster-ip" else "(outside)"
        for zone, count in row["answered"].items():
            counts[source, zone] += count
    return counts


def steady(ground: Ground) -> Pairs:
    """Return what agents have counted, once they know the owner of each address."""
    end = time.monotonic() + SECONDS
    before, now = Counter({("", ""): 1}), pairs(ground)
    while before != now:
        assert time.monotonic() < end
        # NB: the lab's clients are no pods, so that agents wait a second for their names.
        time.sleep(1.5)
        before, now = now, pairs(ground)
    return now


def expect(ground: Ground, want: Pairs) -> None:
    """Return when agents have counted exactly these connections."""
    end = time.monotonic() + SECONDS
    while (found := pairs(ground)) != want:
        assert time.monotonic() < end, (found, want)
        time.sleep(0.2)


def agent_of(ground: Ground, node: str) -> int:
    """Return the process of a node's agent, which listens in the node's namespace."""
    log = ground.directory / "logs" / f"flows-{node}.log"
    for pid in ground.processes():
        try:
            if Path(f"/proc/{pid}/fd/2").readlink() == log:
                return pid
        except OSError:
            continue
    return 0


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="TCP"),
        pytest.param(("--udp", "--port", "dns"), id="UDP"),
        pytest.param(("--family", "ipv6"), id="IPv6"),
        pytest.param(("--via", "node-port"), id="from outside"),
    ],
)
def test_traffic_and_flows_agree_to_the_connection(
    ground: Ground, options: tuple[str, ...]
) -> None:
    """What `keepclose traffic` sent between zones is what agents have counted since."""
    before = steady(ground)
    report = traffic(ground, *options)
    sent = answered(report)
    assert sum(sent.values()) == report["connections"] >= 60
    expect(ground, before + sent)


def test_a_rolling_update_amid_traffic(ground: Ground) -> None:
    """Connections to pods that come and go are counted in the zones that answered."""
    before = steady(ground)
    with start(ground, "--connections", "1500") as process:
        restart_pods(ground)
        sent = answered(json.loads(process.communicate(timeout=SECONDS)[0]))
    sent += answered(traffic(ground))
    until(lambda: traffic_is_fine(ground, sent))
    expect(ground, before + sent)


def test_a_zone_fails_and_heals(ground: Ground) -> None:
    """Flows follow the traffic to the other zone and back."""
    before = steady(ground)
    assert ground.run("lab", "fail", "zone-a").code == 0
    sent: Pairs = Counter()
    until(lambda: traffic_is_fine(ground, sent, "--from", "zone-b"))
    assert ground.run("lab", "heal").code == 0
    until(lambda: traffic_is_fine(ground, sent))
    expect(ground, before + sent)


def test_an_agent_is_killed_amid_traffic(ground: Ground) -> None:
    """The lab starts it again, and no connection is missing or counted twice."""
    before = steady(ground)
    first = agent_of(ground, "n1")
    with start(ground, "--connections", "1500") as process:
        os.kill(first, signal.SIGKILL)
        sent = answered(json.loads(process.communicate(timeout=SECONDS)[0]))
    until(lambda: agent_of(ground, "n1") not in (0, first))
    sent += answered(traffic(ground))
    expect(ground, before + sent)


def test_services_are_named(ground: Ground) -> None:
    """The table names Services, and the files of all flows hold their bytes."""
    traffic(ground)
    done = ground.run("flows", "top")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("total  ")
    assert "\ndefault/spread " in done.out
    lines = ground.run("flows", "top", "-o", "csv").out.splitlines()
    assert any(",default,spread,http,TCP," in line and ",zone-a,zone-b," in line for line in lines)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Agents and their files go with the cluster, and a cluster without them says what to do."""
    skip_without_packets()
    with ground_for(tmp_path / "home") as ground:
        assert "flows top" in ground.up("--flows").out
        assert agent_of(ground, "n2")
        until((ground.directory / "flows" / "n2.json").exists)
        with watching(ground) as watcher:
            assert ground.run("down").code == 0
            assert ground.processes() == []
            until(lambda: watcher.remaining() == 0)
        assert not (ground.directory / "flows").exists()
        ground.up("--manifest", "/dev/null")
        done = ground.run("flows", "top")
        assert (done.code, done.out) == (3, "")
        assert done.err.endswith(" up --flows\n")


def traffic(ground: Ground, *options: str) -> dict[str, Any]:
    """Send connections to the Service from each zone, and return the report."""
    done = ground.run("traffic", "spread", "--connections", "60", "-o", "json", *options)
    assert done.code in (0, 1), done
    found: dict[str, Any] = json.loads(done.out)
    return found


def traffic_is_fine(ground: Ground, sent: Pairs, *options: str) -> bool:
    """Send connections and add those that were answered; return whether all were."""
    report = traffic(ground, *options)
    sent += answered(report)
    return not report["failed"]


@contextmanager
def start(ground: Ground, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Send connections in a process of their own."""
    command = ground.command("traffic", "spread", "-o", "json", *options)
    with subprocess.Popen(
        command, env=ground.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def restart_pods(ground: Ground) -> None:
    """Replace all pods of the Service, as kubectl rollout restart does, and wait for new ones."""
    meta = {"annotations": {"restarted": str(time.monotonic())}}
    patch = {"spec": {"template": {"metadata": meta}}}
    new = ask_deployment(ground, patch)
    until(lambda: is_complete(ask_deployment(ground), new.metadata.generation))


def ask_deployment(ground: Ground, patch: dict[str, Any] | None = None) -> Deployment:
    """Return the Deployment, after a change of it."""

    async def ask() -> Deployment:
        settings = load_connection_settings(ground.directory / "kubeconfig", env={})
        async with connect(settings, clock=SystemClock()) as client:
            if patch is None:
                return await client.get(DEPLOYMENTS, "spread", namespace="default")
            return await client.patch(DEPLOYMENTS, "spread", patch, namespace="default")

    return asyncio.run(ask())


def is_complete(deployment: Deployment, generation: int) -> bool:
    """Return whether a rollout has ended, as kubectl judges it."""
    status = deployment.status
    return (
        status.observed_generation >= generation
        and status.updated_replicas == status.replicas == status.available_replicas == REPLICAS
    )
