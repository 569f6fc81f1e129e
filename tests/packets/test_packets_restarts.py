"""`keepclose proxy` as a process that is stopped, killed and robbed of its table, under load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.testing.api_server import serving
from support.netanswers import Answer, answering, ask, calling
from support.netproxies import HEALTH, RunningProxy, prepared
from support.nettopology import (
    SERVICE_NETWORK,
    SERVICE_NETWORK6,
    Bed,
    NodePlan,
    topology_or_skip,
)
from support.packets.loads import Load, loading
from support.proxies import ProxyCluster, cluster_of, plain

DUAL = AllocationSettings((SERVICE_NETWORK, SERVICE_NETWORK6))
PLAN = (NodePlan("n1", "zone-a", 4), NodePlan("n2", "zone-b", 2))
NODE_PORT = 30080


class Scene(NamedTuple):
    """A node whose proxy the test starts and stops, and a Service."""

    bed: Bed
    cluster: ProxyCluster
    proxy: RunningProxy
    address: str

    async def use(self, *pods: str) -> None:
        """Make these pods the endpoints."""
        found = {pod.name: pod.address for pod in self.bed.pods}
        await self.cluster.set_endpoints(*(plain(found[name]) for name in pods))

    async def until_used(self, load: Load, *pods: str) -> None:
        """Return when new connections reach exactly these pods; fail when they do not in time."""
        got: set[str] = set()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            load.take()
            await asyncio.to_thread(load.wait_for, 60)
            got = set(load.take())
            if got == set(pods):
                return
        assert got == set(pods)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Make two nodes, a server, and a Service with a node port."""
    async with AsyncExitStack() as stack:
        bed = stack.enter_context(topology_or_skip(PLAN))
        stack.enter_context(answering(bed.pods))
        names = tuple(node.name for node in PLAN)
        api = await stack.enter_async_context(
            serving(tmp_path / "data", nodes=names, allocation=DUAL)
        )
        cluster = await stack.enter_async_context(cluster_of(api))
        proxies = await stack.enter_async_context(prepared(bed, cluster, tmp_path))
        port = {"name": "http", "port": 80, "targetPort": 8080, "nodePort": NODE_PORT}
        service = await cluster.add_service(type="NodePort", ports=[port])
        bed.route_via(SERVICE_NETWORK, bed.nodes[0])
        yield Scene(bed, cluster, proxies["n1"], service.spec.cluster_ip)


async def until(is_so: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Return when something holds, looked at from a thread; fail when it does not in time."""
    async with asyncio.timeout(seconds):
        # NB: the kernel tells nobody when rules change.
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def is_healthy(proxy: RunningProxy) -> bool:
    """Return whether the proxy says that all is well."""
    try:
        return proxy.fetch("/healthz", HEALTH)[0] == 200
    except OSError:
        return False


def kill(process: Popen[bytes]) -> None:
    """End the proxy without any warning."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


async def test_restarts_under_load(tmp_path: Path) -> None:
    """Whether it is stopped, killed or started, no connection fails, and none is stuck in the past.

    What changes while nobody is there is made up for after the start.
    """
    async with scene(tmp_path) as one:
        await one.use("n1-p1", "n1-p2", "n2-p1")
        bed, proxy = one.bed, one.proxy
        node = bed.node("n1")
        clients = [node.pods[3].namespace, node.namespace, bed.outside.namespace]
        targets = [(one.address, 80), (node.address, NODE_PORT)]
        with proxy.start():
            await until(lambda: f"{one.address} . tcp . 80" in proxy.rules())
            await until(lambda: isinstance(ask(clients[2], *targets[1]), Answer))
        with loading(clients, targets) as load:
            # The proxy has been stopped; the rules serve on.
            await one.until_used(load, "n1-p1", "n1-p2", "n2-p1")
            await one.use("n1-p2", "n2-p2")
            with proxy.start() as process:
                await one.until_used(load, "n1-p2", "n2-p2")
                await one.use("n1-p1")
                await one.until_used(load, "n1-p1")
                kill(process)
                rules = proxy.rules()
                assert f"{one.address} . tcp . 80" in rules
                await asyncio.to_thread(load.wait_for, 60)
            with proxy.start() as process:
                # Killed before or while it writes for the first time.
                await asyncio.sleep(0.5)
                kill(process)
            with proxy.start() as process:
                await until(lambda: is_healthy(proxy))
                await one.use("n1-p3", "n2-p1")
                # Killed in the midst of it.
                kill(process)
            await asyncio.to_thread(load.wait_for, 60)
            with proxy.start():
                await one.until_used(load, "n1-p3", "n2-p1")
        assert load.failures == []


async def test_a_table_that_somebody_deletes(tmp_path: Path) -> None:
    """It is made again within the sync period, whole or in part, without news from the server."""
    async with scene(tmp_path) as one:
        await one.use("n1-p1")
        proxy = one.proxy
        client = one.bed.node("n1").pods[3].namespace
        inside = one.bed.node("n1").namespace

        def answers() -> bool:
            return isinstance(ask(client, one.address, 80, seconds=1.0), Answer)

        with proxy.start("--sync-period", "300ms"):
            await until(answers)
            rules = await asyncio.to_thread(_chains, proxy)
            await asyncio.to_thread(inside.run, "nft", "delete table ip kube-proxy")
            await until(answers)
            assert await asyncio.to_thread(_chains, proxy) == rules
            # Everything of every program, as a firewall does that starts anew.
            await asyncio.to_thread(inside.run, "nft", "flush ruleset")
            await until(answers)
            await until(lambda: "cluster-ips" in proxy.rules("ip6"))
            assert await asyncio.to_thread(_chains, proxy) == rules
        assert "table removed or changed by another program" in proxy.log.read_text()


def _chains(proxy: RunningProxy) -> set[str]:
    lines = proxy.rules().splitlines()
    return {line.strip() for line in lines if line.startswith("\tchain ")}


async def test_udp_clients_leave_only_endpoints_that_are_gone(tmp_path: Path) -> None:
    """A flow moves when its endpoint is gone, at any address and family, and for nothing less."""
    async with scene(tmp_path) as one:
        cluster, bed, proxy = one.cluster, one.bed, one.proxy
        port = {"name": "dns", "port": 53, "targetPort": 8080, "protocol": "UDP"}
        service = await cluster.add_service(
            "dns",
            type="NodePort",
            ports=[{**port, "nodePort": 30053}],
            ipFamilyPolicy="RequireDualStack",
        )
        four, six = service.spec.cluster_ips
        node = bed.node("n1")

        async def use(*pods: str, **conditions: bool) -> None:
            ports = ({"name": "dns", "port": 8080, "protocol": "UDP"},)
            for family in ("IPv4", "IPv6"):
                ends = [
                    {
                        **plain(pod.address if family == "IPv4" else pod.address6),
                        "conditions": {"ready": True, **conditions},
                    }
                    for pod in bed.pods
                    if pod.name in pods
                ]
                await cluster.set_endpoints(*ends, service="dns", address_type=family, ports=ports)

        await use("n1-p1")
        client, outside = node.pods[3].namespace, bed.outside.namespace
        async with AsyncExitStack() as stack:
            stack.enter_context(proxy.start())
            await until(lambda: f"{four} . udp . 53" in proxy.rules())
            await until(lambda: f"{six} . udp . 53" in proxy.rules("ip6"))
            callers = {
                name: stack.enter_context(calling(who, host, number, udp=True, seconds=5.0))
                for name, who, host, number in (
                    ("a pod", client, four, 53),
                    ("a pod, IPv6", client, six, 53),
                    ("outside, node port", outside, node.address, 30053),
                )
            }

            def seen() -> set[str]:
                return {caller.ask().name for caller in callers.values()}

            assert await asyncio.to_thread(seen) == {"n1-p1"}
            await use("n1-p1", ready=False, serving=True, terminating=True)
            await use("n1-p1", "n2-p1")
            await cluster.label_node("n1", "zone-z")
            await until(lambda: bed.pods[4].address in proxy.rules())
            for _ in range(5):
                assert await asyncio.to_thread(seen) == {"n1-p1"}
                await asyncio.sleep(0.05)
            await use("n2-p1")

            def all_moved() -> bool:
                # NB: an answer on its way while its flow is ended has no way back, and the caller
                # waits in vain; datagrams may get lost, and callers ask again.
                with suppress(TimeoutError):
                    return seen() == {"n2-p1"}
                return False

            await until(all_moved)
