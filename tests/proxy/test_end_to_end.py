"""`keepclose proxy` on the nodes of a network of namespaces: real packets, real connections."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.testing.api_server import serving
from support.netanswers import Answer, Silence, answering, ask, calling, count_answers
from support.netproxies import HEALTH, RunningProxy, prepared, started
from support.nettopology import (
    SERVICE_NETWORK,
    SERVICE_NETWORK6,
    Bed,
    NodePlan,
    topology_or_skip,
)
from support.proxies import ProxyCluster, cluster_of, hinted, plain

DUAL = AllocationSettings((SERVICE_NETWORK, SERVICE_NETWORK6))
PLAN = (NodePlan("n1", "zone-a", 2), NodePlan("n2", "zone-b", 1))
TIMES = 40


class Scene(NamedTuple):
    """A cluster of two zones with a proxy on each node."""

    bed: Bed
    cluster: ProxyCluster
    proxies: dict[str, RunningProxy]


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Make the network, the server and what connects them."""
    names = tuple(node.name for node in PLAN)
    with topology_or_skip(PLAN) as bed, answering(bed.pods):
        async with (
            serving(tmp_path / "data", nodes=names, allocation=DUAL) as api,
            cluster_of(api) as cluster,
            prepared(bed, cluster, tmp_path) as proxies,
        ):
            yield Scene(bed, cluster, proxies)


async def until(is_so: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Return when something holds, looked at from a thread; fail when it does not in time."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.05)


async def answers(bed: Bed, client: str, address: str, *, times: int = TIMES) -> set[str]:
    """Return who answers to new connections of a pod at port 80.

    NB: that one of two endpoints is never chosen has a chance of one in 2 ** 39.
    """
    pod = next(one for one in bed.pods if one.name == client)
    found: Counter[str] = await asyncio.to_thread(
        count_answers, pod.namespace, address, 80, times=times
    )
    return set(found)


async def expect(bed: Bed, client: str, address: str, want: set[str]) -> None:
    """Return when exactly these answer; what a page says may be ahead of the kernel."""
    found: set[str] = set()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = await answers(bed, client, address)
        if found == want:
            return
        await asyncio.sleep(0.05)
    assert found == want


def endpoints_of(bed: Bed, make: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an endpoint for each pod, made with its address, zone and node."""
    return [make(pod.address, node.zone, node.name) for node in bed.nodes for pod in node.pods]


async def test_connections_stay_in_their_zone_and_fall_back(tmp_path: Path) -> None:
    """Hints keep connections in the zone; without endpoints there all others are used."""
    async with scene(tmp_path) as (bed, cluster, proxies):
        web = await cluster.add_service(trafficDistribution="PreferSameZone")
        address = web.spec.cluster_ip
        await cluster.set_endpoints(*endpoints_of(bed, hinted))
        with started(proxies):
            for one in proxies.values():
                await until(lambda one=one: f"{address} . tcp . 80" in one.rules())  # type: ignore[misc]
            assert await answers(bed, "n1-p1", address) == {"n1-p1", "n1-p2"}
            assert await answers(bed, "n2-p1", address) == {"n2-p1"}

            done = await asyncio.to_thread(proxies["n1"].call, "proxy", "status", "-o", "json")
            assert (done.returncode, done.stderr) == (0, "")
            [found] = json.loads(done.stdout)["services"]
            assert found["ports"][0]["mode"] == "PreferSameZone"
            assert found["connections"] == {"zone-a": TIMES}
            shown = await asyncio.to_thread(proxies["n1"].call, "proxy", "status", "web")
            assert "same zone  2 endpoints of 3" in shown.stdout
            assert f"went to  zone-a 100.0% ({TIMES})" in shown.stdout

            # The last endpoint of zone-b goes: its node falls back to all that are left.
            left = [one for one in endpoints_of(bed, hinted) if one["zone"] == "zone-a"]
            await cluster.set_endpoints(*left)
            await expect(bed, "n2-p1", address, {"n1-p1", "n1-p2"})
            assert await answers(bed, "n1-p1", address) == {"n1-p1", "n1-p2"}

            await cluster.remove(ENDPOINT_SLICES, "web-ipv4")
            await expect(bed, "n1-p1", address, {Silence.REFUSED.value})


def _used(proxy: RunningProxy) -> list[str]:
    """Return the addresses to which a node sends connections of its first Service."""
    _, body = proxy.fetch("/debug/services.json")
    [service] = json.loads(body)["services"]
    return [one["address"] for one in service["ports"][0]["endpoints"] if one["used"]]


async def test_established_connections_outlive_topology_and_restarts(tmp_path: Path) -> None:
    """A connection stays with its endpoint when the zone moves, the proxy stops and starts."""
    async with scene(tmp_path) as (bed, cluster, proxies):
        web = await cluster.add_service()
        address = web.spec.cluster_ip
        await cluster.set_endpoints(*endpoints_of(bed, hinted))
        client = bed.node("n1").pods[0].namespace
        first = {"n1": proxies["n1"]}
        with started(first):
            await until(lambda: f"{address} . tcp . 80" in proxies["n1"].rules())
            with calling(client, address, 80) as caller:
                before = await asyncio.to_thread(caller.ask)
                await cluster.label_node("n1", "zone-b")
                await expect(bed, "n1-p1", address, {"n2-p1"})
                assert await asyncio.to_thread(caller.ask) == before
                # What was replaced is deleted before long: of two endpoints one is left.
                await until(lambda: f"{address} . tcp . 80 . 1 " not in proxies["n1"].rules())
                assert f"{address} . tcp . 80 . 0 " in proxies["n1"].rules()
        rules = proxies["n1"].rules()
        assert f"{address} . tcp . 80" in rules
        assert await answers(bed, "n1-p1", address) == {"n2-p1"}
        with calling(client, address, 80) as caller, started(first):
            before = await asyncio.to_thread(caller.ask)
            await until(lambda: _status(proxies["n1"]) == 200)
            await until(lambda: _used(proxies["n1"]) == [bed.node("n2").pods[0].address])
            assert await asyncio.to_thread(caller.ask) == before
            assert await answers(bed, "n1-p1", address) == {"n2-p1"}
            assert _elements(proxies["n1"].rules(), address) == _elements(rules, address)
            # NB: ranges of cluster IPs may be known a moment after the rules were compared, and
            # then the chain that stands for the layout is made twice.
            await until(lambda: _layouts(proxies["n1"].rules()) == _layouts(rules))


def _status(proxy: RunningProxy) -> int:
    """Return the status of the health page, 0 while nobody answers."""
    try:
        return proxy.fetch("/healthz", HEALTH)[0]
    except OSError:
        return 0


def _layouts(rules: str) -> list[str]:
    return [line for line in rules.splitlines() if line.startswith("\tchain layout/")]


def _elements(rules: str, address: str) -> list[str]:
    """Return the elements of an address, without what they have counted."""
    uncounted = re.sub(r" counter packets \d+ bytes \d+", "", rules)
    found = re.findall(rf"{re.escape(address)} [^,}}]*[^,}}\s]", uncounted)
    assert len(found) >= 2
    return sorted(found)


async def test_a_server_that_is_gone_and_a_table_that_is_gone(tmp_path: Path) -> None:
    """Traffic flows on without a server, and a removed table is made again without one."""
    async with scene(tmp_path) as (bed, cluster, proxies):
        web = await cluster.add_service()
        address = web.spec.cluster_ip
        await cluster.set_endpoints(*endpoints_of(bed, plain))
        one = proxies["n1"]
        with started({"n1": one}, "--sync-period", "500ms", "--no-counters"):
            await until(lambda: f"{address} . tcp . 80" in one.rules())
            await one.relay.cut()
            want = {"n1-p1", "n1-p2", "n2-p1"}
            assert await answers(bed, "n1-p1", address, times=80) == want
            await asyncio.to_thread(one.node.namespace.run, "nft", "delete table ip kube-proxy")
            await until(lambda: f"{address} . tcp . 80" in one.rules())
            assert await answers(bed, "n1-p1", address, times=80) == want
            await until(lambda: "request failed" in one.log.read_text())
            await one.relay.open()
            await cluster.set_endpoints(plain(bed.pods[2].address))
            await expect(bed, "n1-p1", address, {"n2-p1"})


async def test_one_shot_commands(tmp_path: Path) -> None:
    """--dry-run writes nothing, --once writes all and ends, --cleanup leaves nothing."""
    async with scene(tmp_path) as (bed, cluster, proxies):
        web = await cluster.add_service()
        address = web.spec.cluster_ip
        await cluster.set_endpoints(*endpoints_of(bed, plain))
        one = proxies["n1"]
        dry = await asyncio.to_thread(one.run, "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert f"add element ip kube-proxy cluster-ips {{ {address} }}" in dry.stdout
        assert one.rules() == ""
        once = await asyncio.to_thread(one.run, "--once", "--writer", "nft")
        assert once.returncode == 0, once.stderr
        client = bed.pods[0].namespace
        assert isinstance(await asyncio.to_thread(ask, client, address, 80), Answer)
        cleaned = await asyncio.to_thread(one.run, "--cleanup")
        assert cleaned.returncode == 0, cleaned.stderr
        assert (one.rules("ip"), one.rules("ip6")) == ("", "")
        again = await asyncio.to_thread(one.run, "--cleanup")
        assert again.returncode == 0, again.stderr


async def test_udp_flows_leave_an_endpoint_that_is_gone(tmp_path: Path) -> None:
    """A client that goes on sending is led to another endpoint, without a new socket."""
    async with scene(tmp_path) as (bed, cluster, proxies):
        ports = [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "UDP"}]
        slice_ports = ({"name": "http", "port": 8080, "protocol": "UDP"},)
        web = await cluster.add_service(ports=ports)
        address = web.spec.cluster_ip
        first, second = bed.pods[1], bed.pods[2]
        await cluster.set_endpoints(plain(first.address), ports=slice_ports)
        one = proxies["n1"]
        client = bed.pods[0].namespace
        with started({"n1": one}):
            await until(lambda: f"{address} . udp . 80" in one.rules())
            with calling(client, address, 80, udp=True, seconds=5.0) as caller:
                assert (await asyncio.to_thread(caller.ask)).name == first.name
                both = (plain(first.address), plain(second.address))
                await cluster.set_endpoints(*both, ports=slice_ports)
                await until(lambda: first.address in one.rules() and second.address in one.rules())
                assert (await asyncio.to_thread(caller.ask)).name == first.name
                await cluster.set_endpoints(plain(second.address), ports=slice_ports)

                def moved() -> bool:
                    # NB: an answer on its way while its flow is ended has no way back; datagrams
                    # may get lost, and callers ask again.
                    with suppress(TimeoutError):
                        return caller.ask().name == second.name
                    return False

                await until(moved)


async def test_no_connection_is_lost_while_endpoints_change(tmp_path: Path) -> None:
    """With both forms of the table, every connection finds an endpoint during many changes."""
    async with scene(tmp_path) as (bed, cluster, proxies):
        web = await cluster.add_service()
        address = web.spec.cluster_ip
        await cluster.set_endpoints(*endpoints_of(bed, hinted))
        one = proxies["n1"]
        client = bed.pods[0].namespace
        for option in ("--counters", "--no-counters"):
            with started({"n1": one}, option):
                await until(lambda: f"{address} . tcp . 80" in one.rules())
                await until(lambda: _status(one) == 200)
                found: Counter[str] = Counter()
                done = asyncio.Event()

                async def ask_on(found: Counter[str], done: asyncio.Event) -> None:
                    while not done.is_set():
                        found.update(
                            await asyncio.to_thread(count_answers, client, address, 80, times=10)
                        )

                asking = asyncio.create_task(ask_on(found, done))
                for number in range(20):
                    make = hinted if number % 2 else plain
                    await cluster.set_endpoints(*endpoints_of(bed, make)[number % 3 :])
                    await cluster.label_node("n1", "zone-b" if number % 4 == 3 else "zone-a")
                    # However slow the machine is, some connections fall into each change.
                    goal = found.total() + 20
                    await until(lambda goal=goal, found=found: found.total() >= goal)  # type: ignore[misc]
                done.set()
                await asking
                assert set(found) == {"n1-p1", "n1-p2", "n2-p1"}
                assert found.total() >= 400


async def test_both_families(tmp_path: Path) -> None:
    """A dual-stack Service answers at both of its addresses."""
    async with scene(tmp_path) as (bed, cluster, proxies):
        web = await cluster.add_service(ipFamilyPolicy="RequireDualStack")
        four, six = web.spec.cluster_ips
        await cluster.set_endpoints(plain(bed.pods[1].address))
        await cluster.set_endpoints(plain(bed.pods[2].address6), address_type="IPv6")
        one = proxies["n1"]
        with started({"n1": one}):
            await until(lambda: f"{six} . tcp . 80" in one.rules("ip6"))
            await until(lambda: f"{four} . tcp . 80" in one.rules("ip"))
            assert await answers(bed, "n1-p1", four) == {"n1-p2"}
            assert await answers(bed, "n1-p1", six) == {"n2-p1"}


def _service(proxy: RunningProxy, name: str) -> dict[str, Any]:
    """Return what a proxy says of a Service, once its counters are fresh."""
    _, body = proxy.fetch(f"/debug/services.json?service={name}")
    [service] = json.loads(body)["services"]
    found: dict[str, Any] = service
    return found


async def test_connections_that_find_no_endpoint_are_counted(tmp_path: Path) -> None:
    """What is refused and what is dropped is told by Service, also after endpoints came back."""
    async with scene(tmp_path) as (bed, cluster, proxies):
        web = await cluster.add_service()
        local = await cluster.add_service("local", internalTrafficPolicy="Local")
        far = bed.node("n2")
        elsewhere = plain(far.pods[0].address, far.zone, far.name)
        await cluster.set_endpoints(elsewhere, service="local")
        one = proxies["n1"]
        client = bed.pods[0].namespace
        with started({"n1": one}):
            await until(lambda: web.spec.cluster_ip in one.rules())
            refused = await asyncio.to_thread(
                count_answers, client, web.spec.cluster_ip, 80, times=5
            )
            assert set(refused) == {Silence.REFUSED.value}
            silent = await asyncio.to_thread(ask, client, local.spec.cluster_ip, 80, seconds=0.5)
            assert silent is Silence.DROPPED
            await until(lambda: _service(one, "web").get("unserved", {}).get("reject", 0) >= 5)
            await until(lambda: _service(one, "local").get("unserved", {}).get("drop", 0) >= 1)
            _, page = await asyncio.to_thread(one.fetch, "/metrics")
            labels = 'action="drop",namespace="default",service="local"'
            assert f"keepclose_proxy_unserved_packets_total{{{labels}}}" in page
            # Connections are added up over endpoints that come and go; refusals stay.
            near = plain(bed.pods[1].address, "zone-a", "n1")
            await cluster.set_endpoints(near)
            await expect(bed, "n1-p1", web.spec.cluster_ip, {"n1-p2"})
            await until(lambda: _service(one, "web")["connections"].get("zone-a", 0) >= TIMES)
            before = _service(one, "web")["connections"]["zone-a"]
            # These are read by nothing but the change that takes their endpoint away.
            await answers(bed, "n1-p1", web.spec.cluster_ip)
            await cluster.set_endpoints(elsewhere)
            await expect(bed, "n1-p1", web.spec.cluster_ip, {"n2-p1"})
            await until(lambda: _service(one, "web")["connections"].get("zone-b", 0) >= TIMES)
            after = _service(one, "web")
            assert after["connections"]["zone-a"] >= before + TIMES
            assert after["unserved"]["reject"] >= 5
            shown = await asyncio.to_thread(one.call, "proxy", "status", "local")
            assert "unserved  " in shown.stdout
            assert " dropped" in shown.stdout
