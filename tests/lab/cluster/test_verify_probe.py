"""`keepclose verify` on a running lab: probe pods and agents see where real connections go."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import ENDPOINT_SLICES, PODS, SERVICES
from support.commands.upcommands import Ground, ground_for, skip_without_packets, until

FOUR_NODES = ("--zones", "2", "--nodes-per-zone", "2", "--flows")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Run a cluster of two zones with two nodes each and agents."""
    skip_without_packets()
    with ground_for(tmp_path_factory.mktemp("lab") / "home") as found:
        found.up(*FOUR_NODES)
        yield found


def verified(ground: Ground, *options: str, code: int = 0) -> dict[str, Any]:
    """Return the verdict on the demo's only port."""
    done = ground.run("verify", "demo-svc", "-o", "json", *options)
    assert done.code == code, done
    (port,) = json.loads(done.out)["services"]
    document: dict[str, Any] = port
    return document


async def pods_of(ground: Ground) -> list[str]:
    """Return the names of all pods."""
    settings = load_connection_settings(ground.state["kubeconfig"])
    async with connect(settings, clock=SystemClock()) as client:
        return [pod.metadata.name for pod in (await client.list_all(PODS)).items]


async def test_probe_by_zone(ground: Ground) -> None:
    """One pod a zone opens real connections, which stay in the zone, and is removed."""
    port = verified(ground, "--probe", "--probe-connections", "60")
    assert (port["verdict"], port["connections"]) == ("honoured", 120)
    assert {row["from"]: row["observed"] for row in port["rows"]} == {
        "zone-a": {"zone-a": 60},
        "zone-b": {"zone-b": 60},
    }
    assert not [name for name in await pods_of(ground) if "probe" in name]


def test_probe_by_node(ground: Ground) -> None:
    """One pod a node names the nodes whose proxies differ."""
    arguments = ("--probe", "--per-node", "--probe-connections", "60")
    port = verified(ground, *arguments)
    assert (port["verdict"], port["connections"]) == ("honoured", 240)
    done = ground.run("lab", "gates", "ServiceTrafficDistribution=false", "--only", "proxy")
    assert done.code == 0, done
    gates = ("--feature-gates", "ServiceTrafficDistribution=true")
    port = verified(ground, *arguments, *gates, code=1)
    codes = [cause["code"] for cause in port["causes"]]
    assert "ProxyRefusesHints" in codes
    assert "HintsNotFollowed" in codes
    assert verified(ground, *arguments, code=1)["causes"][0]["code"] == "GateIsOff"
    done = ground.run("lab", "gates", "ServiceTrafficDistribution=true", "--only", "proxy")
    assert done.code == 0, done


def test_agents_are_asked(ground: Ground) -> None:
    """Without --flows the agents of the lab say where connections went, probes included."""
    verified(ground, "--probe", "--probe-connections", "60")
    done = ground.run("verify", "demo-svc", "-o", "json", "--min-connections", "1")
    (port,) = json.loads(done.out)["services"]
    assert port["connections"] >= 120


async def _set_distribution(ground: Ground, value: str | None) -> None:
    """Set the field of the demo's Service, and wait until its slices have hints or have none."""
    settings = load_connection_settings(ground.state["kubeconfig"])
    async with connect(settings, clock=SystemClock()) as client, asyncio.timeout(60):
        patch = {"spec": {"trafficDistribution": value}}
        await client.patch(SERVICES, "demo-svc", patch, namespace="default")
        while True:
            slices = [
                each
                for each in (await client.list_all(ENDPOINT_SLICES, namespace="default")).items
                if each.service_key.name == "demo-svc"
            ]
            hinted = {bool(point.hints) for each in slices for point in each.endpoints}
            if hinted == {value is not None}:
                return
            await asyncio.sleep(0.2)


async def test_hints_that_are_newer_than_flows(ground: Ground) -> None:
    """Connections from before the field was set again are no fault of proxies or clients."""
    await _set_distribution(ground, None)
    probed = verified(ground, "--probe", "--probe-connections", "200", code=3)
    assert (probed["verdict"], probed["mechanism"]) == ("no preference", "no trafficDistribution")
    assert probed["causes"] == []
    counted = verified(ground, code=3)
    assert (counted["verdict"], counted["causes"]) == ("no preference", [])
    await _set_distribution(ground, "PreferSameZone")
    port = verified(ground, code=3)
    assert port["verdict"] == "changed within the period"
    (cause,) = port["causes"]
    assert cause["code"] == "ChangedWithinPeriod"
    assert cause["fix"] == "keepclose verify default/demo-svc --observe 60s"


def test_missing_service(ground: Ground) -> None:
    """A Service that does not exist is named, with one that does."""
    done = ground.run("verify", "demo-svs", "--probe")
    assert done.code == 3
    assert "did you mean default/demo-svc?" in done.err


def test_the_log_is_served(ground: Ground) -> None:
    """A pod in the mode of probes ends, and its log can be read as kubectl reads logs."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "nothing", "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "c",
                    "image": "busybox",
                    "env": [
                        {"name": "KEEPCLOSE_MODE", "value": "keepclose-probe"},
                        {"name": "KEEPCLOSE_PROBE_ADDRESS", "value": "127.0.0.1"},
                        {"name": "KEEPCLOSE_PROBE_PORT", "value": "9"},
                        {"name": "KEEPCLOSE_PROBE_CONNECTIONS", "value": "2"},
                    ],
                }
            ],
        },
    }
    url, token = ground.state["url"], _token(ground)
    curl = ["curl", "-sk", "-H", f"Authorization: Bearer {token}"]
    pods = f"{url}/api/v1/namespaces/default/pods"
    subprocess.run(
        [*curl, "-H", "Content-Type: application/json", "-d", json.dumps(manifest), pods],
        check=True,
        capture_output=True,
    )
    watch = f"{pods}?watch=true&fieldSelector=metadata.name%3Dnothing&timeoutSeconds=60"
    with subprocess.Popen([*curl, "-N", watch], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        phases = (json.loads(line)["object"]["status"].get("phase") for line in watching.stdout)
        assert "Succeeded" in phases
        watching.terminate()
    log = subprocess.run([*curl, f"{pods}/nothing/log"], check=True, capture_output=True, text=True)
    assert log.stdout == "failed\nfailed\n"


def _token(ground: Ground) -> str:
    settings = load_connection_settings(ground.state["kubeconfig"])
    return str(settings.user.token)


def test_agents_name_pods_of_a_moment(ground: Ground) -> None:
    """Probe pods have ended before an agent sees their connections, and are their clients."""
    before = connections_of_probes(ground)
    verified(ground, "--probe", "--per-node", "--probe-connections", "25")
    until(lambda: connections_of_probes(ground) >= before + 100)


def connections_of_probes(ground: Ground) -> int:
    """Return how many connections agents have counted for probe pods."""
    rows = csv.DictReader(io.StringIO(ground.run("flows", "top", "-o", "csv").out))
    return sum(int(row["connections"]) for row in rows if "-probe-" in row["client"])
