"""Measured demand on a cluster that is not ours, with kube-apiserver, controllers and kube-proxy.

The webhook reads demand and sets hints beside a real kube-controller-manager; a real kube-proxy on
a node of each zone follows them with real connections. The nodes have networks of their own with
the same nine pods, so that any of them can answer anywhere; where a pod runs is what its Node says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from keepclose.kube.client import Client
from keepclose.kube.requests import NODES, PODS, SERVICES
from support.expected_loads import expect_busiest
from support.real.apis import CLOCK, opened, pod, service
from support.real.clusters import ZONES, create_nodes, make_ready, node_of, places, read_slices
from support.real.controllers import controller_manager
from support.real.namespaces import NodeNetwork, node_network
from support.real.programs import (
    ControlPlane,
    free_port,
    program,
    real_control_plane,
    running,
    wait_until_answering,
)
from support.real.wires import Wire

BALANCED: Final = {"keepclose.dev/traffic-distribution": "keepclose.dev/Balanced"}
SERVICE_ANNOTATIONS: Final = {
    "by-cpu": {**BALANCED, "keepclose.dev/demand": "CPU"},
    "by-demand": BALANCED,
}
FIRST: Final = (70, 20, 10)
STEP: Final = (10, 20, 70)
ASKED = 1000
PODS_EACH = 3
SUITABLE = 1.25
"""How many times an equal share an endpoint may get by the hints; 1.2 is the bound of Balanced."""
SETTLED_S = 5.0
Hints = dict[str, frozenset[str]]
"""The zones that each address is hinted for."""


class Result(NamedTuple):
    """What connections of all zones to one Service did."""

    in_zone: float
    busiest: float
    """How many times an equal share the busiest endpoint got."""


class Cluster(NamedTuple):
    """The control plane, the networks of the nodes, and the file with demand."""

    client: Client
    networks: dict[str, NodeNetwork]
    demand: Path
    pages: str

    def measure(self, demand: tuple[int, ...]) -> None:
        """Say what the clients of each zone send to both Services."""
        rates = dict(zip(ZONES, demand, strict=True))
        new = self.demand.with_suffix(".new")
        new.write_text(json.dumps({f"default/{name}": rates for name in SERVICE_ANNOTATIONS}))
        new.rename(self.demand)

    async def hints(self, name: str) -> Hints:
        """Return the zones that endpoints are hinted for."""
        found = places(await read_slices(self.client, "default", name))
        return {address: frozenset(zones) for address, (_, _, zones, _) in found.items()}

    async def wait_for_hints(self, name: str, demand: dict[str, int]) -> Hints:
        """Return the hints once they suit a demand, and have not changed for a while."""
        deadline = CLOCK.monotonic() + 120
        found: Hints = {}
        since = CLOCK.monotonic()
        while CLOCK.monotonic() < deadline:
            before, found = found, await self.hints(name)
            is_suitable = len(found) == len(ZONES) * PODS_EACH and all(found.values())
            if found != before or not is_suitable or expect_busiest(found, demand) > SUITABLE:
                since = CLOCK.monotonic()
            if CLOCK.monotonic() - since > SETTLED_S:
                return found
            await asyncio.sleep(0.1)
        pytest.fail(f"{name}: {found}")

    async def wait_for_proxies(self, name: str) -> Hints:
        """Return the hints once the kube-proxy of each zone follows them as they are now."""
        deadline = CLOCK.monotonic() + 120
        followed: dict[str, set[str]] = {}
        while CLOCK.monotonic() < deadline:
            hints = await self.hints(name)
            want = {
                zone: {address for address, zones in hints.items() if zone in zones} or {*hints}
                for zone in self.networks
            }
            followed = {
                zone: await asyncio.to_thread(endpoints_of, network, name)
                for zone, network in self.networks.items()
            }
            if followed == want:
                return hints
        pytest.fail(f"{name}: {followed}")

    async def judge(self, name: str, demand: tuple[int, ...], *, by: dict[str, int]) -> Result:
        """Connect once hints suit some shares and are followed; again if they changed meanwhile."""
        for _ in range(5):
            await self.wait_for_hints(name, by)
            hints = await self.wait_for_proxies(name)
            result = await self.ask(name, demand)
            if await self.hints(name) == hints:
                return result
        pytest.fail(f"the hints of {name} change all the time")

    async def ask(self, name: str, demand: tuple[int, ...]) -> Result:
        """Connect from all zones in the proportions of a demand."""
        address = (await self.client.get(SERVICES, name, namespace="default")).spec.cluster_ip

        def connect(zone: str, number: int) -> Counter[str]:
            visitor = self.networks[zone].pods[-1]
            return Counter(visitor.ask(address, 80) for _ in range(number))

        counts = [number * ASKED // 100 for number in demand]
        answers = await asyncio.gather(
            *(
                asyncio.to_thread(connect, zone, number)
                for zone, number in zip(ZONES, counts, strict=True)
            )
        )
        own = sum(
            number
            for zone, counted in zip(ZONES, answers, strict=True)
            for text, number in counted.items()
            if text.startswith(zone)
        )
        pods: Counter[str] = sum(answers, Counter())
        mean = pods.total() / (PODS_EACH * len(ZONES))
        return Result(own / pods.total(), max(pods.values()) / mean)


def endpoints_of(network: NodeNetwork, name: str) -> set[str]:
    """Return the addresses to which the rules of a node send connections to a Service."""
    try:
        rules = network.node.run("nft", "list", "table", "ip", "kube-proxy")
    except AssertionError:
        return set()
    chain = re.search(rf"chain service-\w+-default/{name}/tcp/http {{(.*?)\n\t}}", rules, re.DOTALL)
    return set() if chain is None else set(re.findall(r"\d+ : ([\d.]+) \. 8080", chain[1]))


async def run_proxy(
    stack: contextlib.AsyncExitStack, plane: ControlPlane, directory: Path, zone: str
) -> NodeNetwork:
    """Run a kube-proxy in a network of its own, whose node reaches the real API server."""
    network = stack.enter_context(node_network(PODS_EACH * len(ZONES) + 1, zone[-1]))
    port = int(plane.url.rpartition(":")[2])
    await stack.enter_async_context(Wire(port, listener=network.node.listen("127.0.0.1", port)))
    settings = directory / f"proxy-{zone}.json"
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": node_of(zone),
        "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
        "clusterCIDR": "10.244.0.0/16",
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "nftables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
    settings.write_text(json.dumps(document))
    command = ("ip", "netns", "exec", network.node.name, program("kube-proxy"))
    stack.enter_context(
        running([*command, f"--config={settings}", "--v=2"], directory / f"proxy-{zone}.log")
    )
    for number, inside in enumerate(network.pods[:-1]):
        stack.enter_context(inside.answering(8080, pod_name(number)))
    return network


def pod_name(number: int) -> str:
    """Return the name of a pod, which begins with its zone."""
    return f"{ZONES[number % len(ZONES)]}-{number}"


@contextlib.contextmanager
def hooked(plane: ControlPlane, directory: Path, demand: Path) -> Iterator[str]:
    """Run our webhook with measured demand; yield the address of its pages."""
    port, pages = free_port(), f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        *(Path(sys.executable).parent / "keepclose", "controller", "--mode=webhook"),
        f"--kubeconfig={plane.kubeconfig}",
        f"--webhook-address=127.0.0.1:{port}",
        f"--webhook-url=https://127.0.0.1:{port}",
        f"--metrics-address={pages}",
        "--feature-gates=TrafficDistributionCustomHeuristics=true",
        *("--demand=file", f"--demand-file={demand}", "--demand-period=1s"),
        *("--demand-half-life=1s", "--demand-interval=2s"),
    ]
    log = directory / "webhook.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until_answering(f"http://{pages}/readyz", process, log)
            yield f"http://{pages}"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()[-3000:]
    assert "Traceback" not in log.read_text()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run all programs, with two Services over nine pods, three in each zone."""
    demand = tmp_path / "demand.json"
    async with contextlib.AsyncExitStack() as stack:
        plane = stack.enter_context(real_control_plane(tmp_path))
        manager = stack.enter_context(
            controller_manager(plane.kubeconfig, tmp_path / "manager.log")
        )
        client = await stack.enter_async_context(opened(plane.kubeconfig))
        await create_nodes(client)
        for zone in ZONES:
            addresses = {"addresses": [{"type": "InternalIP", "address": "10.244.1.1"}]}
            await client.patch(NODES, node_of(zone), {"status": addresses}, subresource="status")
        networks = {zone: await run_proxy(stack, plane, tmp_path, zone) for zone in ZONES}
        found = Cluster(client, networks, demand, "")
        found.measure(FIRST)
        pages = stack.enter_context(hooked(plane, tmp_path, demand))
        for name, annotations in SERVICE_ANNOTATIONS.items():
            new = service(name)
            new["metadata"]["annotations"] = annotations
            new["spec"]["selector"] = {"app": "web"}
            await client.create(SERVICES, new, namespace="default")
        for number, inside in enumerate(networks[ZONES[0]].pods[:-1]):
            node = node_of(ZONES[number % len(ZONES)])
            new = pod(pod_name(number), node, app="web")
            await client.create(PODS, new, namespace="default")
            await make_ready(client, "default", pod_name(number), inside.address)
        yield found._replace(pages=pages)
        assert manager.repeated_errors() == {}


async def test_hints_of_a_managed_cluster_follow_demand(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """By demand no endpoint is far above the mean, before and after a step; by CPU one is."""
    lines = [
        f"{'':<16}by CPU{'':<19}by demand",
        f"{'demand':<16}{'in zone  busiest':<25}in zone  busiest",
    ]
    before: dict[str, Hints] = {}
    for demand in (FIRST, STEP):
        cluster.measure(demand)
        measured = dict(zip(ZONES, demand, strict=True))
        cpu = await cluster.judge("by-cpu", demand, by=dict.fromkeys(ZONES, 1))
        by_demand = await cluster.judge("by-demand", demand, by=measured)
        assert cpu.busiest > 1.7
        assert by_demand.busiest < 1.6
        assert by_demand.in_zone > 0.4
        shown = [f"{result.in_zone:9.1%}{result.busiest:8.2f}x" for result in (cpu, by_demand)]
        lines.append(f"{'/'.join(map(str, demand)):<14}{shown[0]}{'':<6}{shown[1]}")
        hints = {name: await cluster.hints(name) for name in SERVICE_ANNOTATIONS}
        rehinted = {
            name: sum(hints[name][address] != old for address, old in before.get(name, {}).items())
            for name in SERVICE_ANNOTATIONS
        }
        before = hints
    lines.append(
        f"re-hinted for the step: {rehinted['by-demand']} of 9 by demand, "
        f"{rehinted['by-cpu']} by CPU"
    )
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
