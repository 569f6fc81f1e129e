"""A real kube-proxy reads our API server and sends real packets where the hints say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from keepclose.kube.client import Client
from keepclose.kube.requests import NODES, PODS, SERVICES
from support.real.apis import CLOCK, opened, pod, service
from support.real.clusters import create_nodes, expected_places, make_ready, wait_for_places
from support.real.controllers import JSON, controller_manager, repeated_errors
from support.real.embedded import embedded_server
from support.real.namespaces import NodeNetwork, node_network
from support.real.programs import program, running
from support.real.wires import Wire

PROTOBUF = "application/vnd.kubernetes.protobuf"


class Proxied(NamedTuple):
    """A node of zone-a that a kube-proxy looks after."""

    client: Client
    network: NodeNetwork
    log: Path

    async def rules(self) -> str:
        """Return the rules in the node's namespace."""
        command = ("nft", "list", "table", "ip", "kube-proxy")
        try:
            return await asyncio.to_thread(self.network.node.run, *command)
        except AssertionError:
            return ""

    async def expect_endpoints(self, name: str, want: set[str]) -> None:
        """Return when connections to the Service are spread over exactly these addresses."""
        found: set[str] = set()
        deadline = CLOCK.monotonic() + 90
        while CLOCK.monotonic() < deadline:
            found = endpoints_in(await self.rules(), name)
            if found == want:
                return
            await asyncio.sleep(0.1)
        end = self.log.read_text(errors="replace")[-3000:]
        assert found == want, f"{await self.rules()}\n{end}"


def endpoints_in(rules: str, name: str) -> set[str]:
    """Return the addresses to which a Service of the default namespace leads."""
    chain = re.search(rf"chain service-\w+-default/{name}/tcp/http {{(.*?)\n\t}}", rules, re.DOTALL)
    if chain is None:
        return set()
    return set(re.findall(r"\d+ : ([\d.]+) \. 8080", chain.group(1)))


@contextlib.asynccontextmanager
async def proxied(directory: Path, content_type: str) -> AsyncIterator[Proxied]:
    """Run our server, real controllers and a real kube-proxy in a namespace of its own.

    Each has the rights of its role and no more.
    """
    kube_proxy = program("kube-proxy")
    log = directory / "proxy.log"
    async with contextlib.AsyncExitStack() as stack:
        network = stack.enter_context(node_network(3))
        server = stack.enter_context(embedded_server(directory / "data", "--node", "node-a"))
        flags = [JSON] if content_type != PROTOBUF else []
        stack.enter_context(
            controller_manager(server.role("controller"), directory / "manager.log", *flags)
        )
        # The node reaches the server at the same local address, through a wire out of its world.
        port = int(server.url.rpartition(":")[2])
        listener = network.node.listen("127.0.0.1", port)
        await stack.enter_async_context(Wire(port, listener=listener))
        client = await stack.enter_async_context(opened(server.kubeconfig))
        await create_nodes(client)
        addresses = {"addresses": [{"type": "InternalIP", "address": "10.244.1.1"}]}
        await client.patch(NODES, "node-a", {"status": addresses}, subresource="status")
        settings = directory / "proxy.json"
        settings.write_text(json.dumps(_settings(server.role("node-node-a"), content_type)))
        command: list[str | Path] = [
            "ip",
            "netns",
            "exec",
            network.node.name,
            kube_proxy,
            f"--config={settings}",
        ]
        process = stack.enter_context(running([*command, "--v=2"], log))
        yield Proxied(client, network, log)
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]


def _settings(kubeconfig: Path, content_type: str) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": "node-a",
        "clientConnection": {"kubeconfig": str(kubeconfig), "contentType": content_type},
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


async def _create_web(one: Proxied) -> str:
    """Create a Service with a pod in this zone and one in another; return its cluster IP."""
    spec = {"trafficDistribution": "PreferSameZone"}
    made = await one.client.create(SERVICES, service("web", **spec), namespace="default")
    for name, node, inside in (
        ("near", "node-a", one.network.pods[0]),
        ("far", "node-b", one.network.pods[1]),
    ):
        await one.client.create(PODS, pod(name, node, app="web"), namespace="default")
        await make_ready(one.client, "default", name, inside.address)
    want = await expected_places(one.client, "default", "web")
    assert len(want) == 2
    await wait_for_places(one.client, "default", "web", want)
    return made.spec.cluster_ip


async def test_packets_stay_in_their_zone_while_they_can(tmp_path: Path) -> None:
    """Rules and packets go to the pod of the zone, and to the other one when that is gone."""
    async with proxied(tmp_path, "application/json") as one:
        near, far, visitor = one.network.pods
        with near.answering(8080, "near"), far.answering(8080, "far"):
            address = await _create_web(one)
            await one.expect_endpoints("web", {near.address})
            assert f"{address} . tcp . 80 : goto service-" in await one.rules()
            for _ in range(5):
                assert await asyncio.to_thread(visitor.ask, address, 80) == "near"
            await one.client.delete(PODS, "near", namespace="default", grace_period=0)
            await one.expect_endpoints("web", {far.address})
            assert await asyncio.to_thread(visitor.ask, address, 80) == "far"
            await one.client.delete(SERVICES, "web", namespace="default")
            await one.expect_endpoints("web", set())
            with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
                await asyncio.to_thread(visitor.ask, address, 80)
        assert repeated_errors(one.log) == {}


async def test_a_proxy_with_its_default_encoding(tmp_path: Path) -> None:
    """A kube-proxy that prefers protobuf takes our JSON and makes the same rules."""
    async with proxied(tmp_path, PROTOBUF) as one:
        near, far, _ = one.network.pods
        await _create_web(one)
        await one.expect_endpoints("web", {near.address})
        patch = {"spec": {"trafficDistribution": None}}
        await one.client.patch(SERVICES, "web", patch, namespace="default")
        await one.expect_endpoints("web", {near.address, far.address})
        assert repeated_errors(one.log) == {}
