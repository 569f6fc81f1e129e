"""A real kube-proxy and ours, on twin nodes with the same objects, send packets to the same places.

The twins have the same addresses and see one API server. Of random Services and slices every
address is asked by every kind of client on both; who answers, what source it sees, and whether
nobody refuses or drops must be the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.kube.requests import ENDPOINT_SLICES, SERVICES
from keepclose.lab.network.relays import Relay
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import ZONE_WEIGHTS_ANNOTATION
from keepclose.testing.api_server import serving
from support.netanswers import PORT, SILENCE, Answer, Silence, answering, ask, calling
from support.netns import Namespace
from support.netproxies import prepared, started
from support.nettopology import (
    SERVICE_NETWORK,
    SERVICE_NETWORK6,
    Bed,
    NodePlan,
    topology_or_skip,
)
from support.packets.chances import UNBELIEVABLE, chance_of
from support.packets.loads import count_inside
from support.proxies import NAMESPACE, ProxyCluster, cluster_of, hinted, plain
from support.real.programs import program

DUAL = AllocationSettings((SERVICE_NETWORK, SERVICE_NETWORK6))
PLAN = (
    NodePlan("n1", "zone-a", 3),
    NodePlan("n2", "zone-a", 2),
    NodePlan("n3", "zone-b", 1),
)
BACKENDS = ("n1-p1", "n1-p2", "n2-p1", "n3-p1")
ZONES = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b"}
POD, SELF, NODE, OUTSIDE, FAR_POD = "n1-p3", "n1-p1", "n1", "outside", "n2-p2"
COUNT = 10
FEW, MANY = 8, 160
SLICE_PORTS = (
    {"name": "http", "port": PORT, "protocol": "TCP"},
    {"name": "dns", "port": PORT, "protocol": "UDP"},
)

Found = frozenset[Answer] | Silence


class Question(NamedTuple):
    """New connections of somebody to an address of a Service."""

    service: str
    who: str
    address: str
    port: int
    udp: bool
    is_sticky: bool


class Twins(NamedTuple):
    """Two networks that differ in the proxy of their first node."""

    theirs: Bed
    ours: Bed
    cluster: ProxyCluster


@contextlib.asynccontextmanager
async def twins(tmp_path: Path, *gates: Gate) -> AsyncIterator[Twins]:
    """Run both proxies against one server for the block; our programs have these gates besides."""
    program("kube-proxy")
    names = tuple(node.name for node in PLAN)
    async with contextlib.AsyncExitStack() as stack:
        theirs, ours = (stack.enter_context(topology_or_skip(PLAN)) for _ in range(2))
        for bed in (theirs, ours):
            stack.enter_context(answering(bed.pods))
            for network in (
                *(SERVICE_NETWORK, SERVICE_NETWORK6),
                *("198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"),
            ):
                bed.route_via(network, bed.nodes[0])
        api = await stack.enter_async_context(
            serving(
                tmp_path / "data",
                nodes=names,
                allocation=DUAL,
                **({"gates": FeatureGates().with_gates(*gates)} if gates else {}),
            )
        )
        cluster = await stack.enter_async_context(cluster_of(api))
        proxies = await stack.enter_async_context(prepared(ours, cluster, tmp_path))
        options = [f"--feature-gates={gate}=true" for gate in gates]
        stack.enter_context(started({"n1": proxies["n1"]}, *options))
        inside = theirs.nodes[0].namespace
        relay = Relay(inside, int(api.url.rpartition(":")[2]))
        await relay.open()
        stack.push_async_callback(relay.cut)
        stack.enter_context(kube_proxy(inside, proxies["n1"].kubeconfig, tmp_path))
        yield Twins(theirs, ours, cluster)


@contextlib.contextmanager
def kube_proxy(inside: Namespace, kubeconfig: Path, directory: Path) -> Iterator[None]:
    """Run a real kube-proxy in a namespace for the block; fail if it has ended by itself."""
    settings, log = directory / "kube-proxy.json", directory / "kube-proxy.log"
    settings.write_text(json.dumps(_settings(kubeconfig)))
    command: list[str | Path] = [program("kube-proxy"), f"--config={settings}", "--v=2"]
    with inside.running(command, log) as process:
        yield
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]


def _settings(kubeconfig: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": "n1",
        "clientConnection": {"kubeconfig": str(kubeconfig), "contentType": "application/json"},
        "detectLocalMode": "NodeCIDR",
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


def random_spec(random: Random, number: int) -> dict[str, Any]:
    """Return the spec of some Service, as the API writes it."""
    kind = random.choice(("ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"))
    spec: dict[str, Any] = {
        "type": kind,
        "ports": [
            {"name": "http", "port": 80, "targetPort": PORT, "protocol": "TCP"},
            {"name": "dns", "port": 53, "targetPort": PORT, "protocol": "UDP"},
        ],
        "ipFamilyPolicy": random.choice(("RequireDualStack", "RequireDualStack", "SingleStack")),
        "internalTrafficPolicy": random.choice(("Cluster", "Cluster", "Local")),
    }
    has_external_ips = random.random() < 0.4
    if has_external_ips:
        spec["externalIPs"] = [f"198.51.100.{number}", f"2001:db8:2::{number:x}"]
    if has_external_ips or kind != "ClusterIP":
        spec["externalTrafficPolicy"] = random.choice(("Cluster", "Local"))
    if kind == "LoadBalancer":
        ranges = random.choice(
            (
                [],
                ["192.168.100.200/32", "fd00:192::200/128"],
                ["10.244.1.0/24", "fd00:244:1::/64"],
                ["192.168.100.1/32"],
                ["192.0.2.0/24", "0.0.0.0/0"],
            )
        )
        if ranges:
            spec["loadBalancerSourceRanges"] = ranges
    if random.random() < 0.2:
        spec["sessionAffinity"] = "ClientIP"
    return spec


def random_endpoints(random: Random, bed: Bed, family: str) -> list[dict[str, Any]]:
    """Return some pods as endpoints, in some state and with some hints, as the API writes them."""
    pods = random.sample(BACKENDS, random.randint(0, len(BACKENDS)))
    style = random.choice(("", "", "zone", "node", "mixed", "foreign"))
    calm = random.random() < 0.4
    found = {pod.name: pod for pod in bed.pods}
    made: list[dict[str, Any]] = []
    for position, name in enumerate(pods):
        node = name.partition("-")[0]
        zone = ZONES[node]
        state = "ready" if calm else random.choice(("ready", "ready", "ending", "ended", "unready"))
        hints: dict[str, Any] = {}
        if style in ("zone", "node", "mixed"):
            hints["forZones"] = [{"name": zone}]
        if style == "node" or (style == "mixed" and position % 2):
            hints["forNodes"] = [{"name": node}]
        if style == "foreign":
            hints["forZones"] = [{"name": random.choice(("zone-a", "zone-b", "zone-x"))}]
        one = found[name]
        made.append(
            {
                "addresses": [one.address6 if family == "IPv6" else one.address],
                "nodeName": node,
                "zone": zone,
                "conditions": {
                    "ready": state == "ready",
                    "serving": state in ("ready", "ending"),
                    "terminating": state in ("ending", "ended"),
                },
                **({"hints": hints} if hints else {}),
            }
        )
    return made


async def write_service(twin: Twins, random: Random, number: int) -> Service:
    """Create a random Service with its slices and return it."""
    cluster = twin.cluster
    name = f"s{number}"
    spec = random_spec(random, number)
    made = await cluster.add_service(name, **spec)
    if spec["type"] == "LoadBalancer":
        mode = {"ipMode": "Proxy"} if random.random() < 0.15 else {}
        ingress = [{"ip": f"203.0.113.{number}", **mode}, {"ip": f"2001:db8:1::{number:x}"}]
        status = {"status": {"loadBalancer": {"ingress": ingress}}}
        made = await cluster.client.patch(
            SERVICES, name, status, namespace=NAMESPACE, subresource="status"
        )
    await write_slices(twin, random, name)
    return made


async def write_slices(twin: Twins, random: Random, name: str) -> None:
    """Give a Service random endpoints in both families, over one slice or two."""
    for family in ("IPv4", "IPv6"):
        ends = random_endpoints(random, twin.ours, family)
        cut = random.randint(0, len(ends)) if random.random() < 0.3 else len(ends)
        for part, piece in (("1", ends[:cut]), ("2", ends[cut:])):
            await twin.cluster.set_endpoints(
                *piece,
                service=name,
                name=f"{name}-{family.lower()}-{part}",
                address_type=family,
                ports=SLICE_PORTS,
            )


async def wait_for_both(twin: Twins, name: str, *, zone: str) -> None:
    """Return when both proxies have written all that was there before.

    That is when a Service that is made last is routed as is right in the zone of the node.
    """
    marker = await twin.cluster.add_service(name, ipFamilyPolicy="RequireDualStack")
    pods = dict(zip(("zone-a", "zone-b"), twin.ours.nodes[0].pods, strict=False))
    for family in ("IPv4", "IPv6"):
        await twin.cluster.set_endpoints(
            *(
                hinted(pod.address6 if family == "IPv6" else pod.address, place)
                for place, pod in pods.items()
            ),
            service=name,
            address_type=family,
        )

    def is_there(bed: Bed) -> bool:
        client = space_of(bed, POD)
        found = [
            ask(client, host, 80, seconds=2.0) for host in marker.spec.cluster_ips for _ in range(8)
        ]
        return all(isinstance(one, Answer) and one.name == pods[zone].name for one in found)

    async with asyncio.timeout(60):
        for bed in (twin.theirs, twin.ours):
            # NB: the kernel tells nobody when rules change.
            while not await asyncio.to_thread(is_there, bed):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


def space_of(bed: Bed, who: str) -> Namespace:
    """Return the namespace of a pod, a node or the outside host."""
    if who == OUTSIDE:
        return bed.outside.namespace
    if "-" not in who:
        return bed.node(who).namespace
    return next(pod for pod in bed.pods if pod.name == who).namespace


def questions_about(one: Service, bed: Bed) -> Iterator[Question]:
    """Return everything that can be asked about a Service."""
    name, spec = one.metadata.name, one.spec
    is_sticky = spec.session_affinity == "ClientIP"
    hosts = [*spec.cluster_ips, *spec.external_ips]
    hosts += [ingress.ip for ingress in one.status.load_balancer.ingress]
    for port in spec.ports:
        udp = port.protocol == "UDP"
        # NB: over UDP the own node cannot tell a drop from a refusal.
        clients = (POD, SELF, OUTSIDE) if udp else (POD, SELF, NODE, OUTSIDE)
        for host in hosts:
            for who in clients if not udp else (POD, OUTSIDE):
                yield Question(name, who, host, port.port, udp, is_sticky)
        if port.node_port:
            node = bed.nodes[0]
            for host in (node.address, node.address6):
                for who in (*clients, FAR_POD):
                    yield Question(name, who, host, port.node_port, udp, is_sticky)
    yield Question(name, POD, spec.cluster_ip, 81, udp=False, is_sticky=False)


def compare(twin: Twins, question: Question, *, seconds: float = SILENCE) -> tuple[Found, Found]:
    """Return what comes of a question here and there, asked until it is the same or certain."""
    found: list[set[Answer]] = [set(), set()]
    spaces = [space_of(bed, question.who) for bed in (twin.theirs, twin.ours)]
    with ThreadPoolExecutor(2) as pool:
        for number in range(MANY):
            # At once, since silence takes long.
            answers = list(
                pool.map(
                    lambda one: ask(
                        one, question.address, question.port, udp=question.udp, seconds=seconds
                    ),
                    spaces,
                )
            )
            if any(isinstance(one, Silence) for one in answers):
                shown = [one if isinstance(one, Silence) else frozenset({one}) for one in answers]
                return shown[0], shown[1]
            for seen, answer in zip(found, answers, strict=True):
                assert isinstance(answer, Answer)
                seen.add(answer)
            if number + 1 >= FEW and (question.is_sticky or found[0] == found[1]):
                break
    return frozenset(found[0]), frozenset(found[1])


def grouped(questions: list[Question]) -> list[list[Question]]:
    """Return the questions in groups that may be asked at once.

    First connections of one client at the same time may well get several endpoints to stay with.
    """
    groups: dict[object, list[Question]] = {}
    for one in questions:
        key = (one.service, one.who, one.udp) if one.is_sticky else one
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def differences(twin: Twins, services: list[Service]) -> tuple[list[str], int, int]:
    """Return where the twins differ, and of how many questions how many met silence."""
    questions = [one for service in services for one in questions_about(service, twin.ours)]
    with ThreadPoolExecutor(100) as pool:
        answers = pool.map(
            lambda group: [(one, compare(twin, one)) for one in group], grouped(questions)
        )
        pairs = [pair for group in answers for pair in group]
    silent = sum(isinstance(theirs, Silence) for _, (theirs, _) in pairs)
    wrong = [question for question, (theirs, ours) in pairs if not agree(question, theirs, ours)]
    # Silence may also be a machine that was too busy for so many at once; those are asked again.
    again = {question: compare(twin, question, seconds=4.0) for question in wrong[:20]}
    shown = [
        f"{question}: kube-proxy {theirs}, ours {ours}"
        for question, (theirs, ours) in again.items()
        if not agree(question, theirs, ours)
    ]
    return shown, len(questions), silent


def agree(question: Question, theirs: Found, ours: Found) -> bool:
    """Return whether both proxies did the same."""
    if question.is_sticky and not (isinstance(theirs, Silence) or isinstance(ours, Silence)):
        # Each client has one endpoint on either side, not the same one.
        return len(theirs) == len(ours) == 1
    return theirs == ours


@pytest.mark.parametrize("seed", [1, 2])
async def test_both_send_packets_to_the_same_places(tmp_path: Path, seed: int) -> None:
    """After random objects and after random changes of them both proxies do the same."""
    random = Random(seed)
    async with twins(tmp_path) as twin:
        services = [await write_service(twin, random, number) for number in range(1, COUNT + 1)]
        await wait_for_both(twin, "marker-1", zone="zone-a")
        wrong, count, silent = await asyncio.to_thread(differences, twin, services)
        assert wrong == []
        assert count > 10 * COUNT
        assert 0 < silent < count

        for one in random.sample(services, COUNT // 2):
            await write_slices(twin, random, one.metadata.name)
        gone = random.sample(services, 2)
        for one in gone:
            await twin.cluster.remove(SERVICES, one.metadata.name)
        bare = random.sample([one for one in services if one not in gone], 2)
        for one in bare:
            for family in ("ipv4", "ipv6"):
                for part in ("1", "2"):
                    await twin.cluster.remove(
                        ENDPOINT_SLICES, f"{one.metadata.name}-{family}-{part}"
                    )
        await twin.cluster.label_node("n1", "zone-b")
        await wait_for_both(twin, "marker-2", zone="zone-b")
        wrong, _, _ = await asyncio.to_thread(differences, twin, services)
        assert wrong == []


async def test_each_takes_over_from_the_other(tmp_path: Path) -> None:
    """Ours goes on from the rules that a kube-proxy left, without a failure, and so does that.

    Open connections outlive both changes.
    """
    program("kube-proxy")
    names = tuple(node.name for node in PLAN)
    async with contextlib.AsyncExitStack() as stack:
        bed = stack.enter_context(topology_or_skip(PLAN))
        stack.enter_context(answering(bed.pods))
        api = await stack.enter_async_context(
            serving(tmp_path / "data", nodes=names, allocation=DUAL)
        )
        cluster = await stack.enter_async_context(cluster_of(api))
        proxies = await stack.enter_async_context(prepared(bed, cluster, tmp_path))
        one, inside = proxies["n1"], bed.nodes[0].namespace
        web = await cluster.add_service("web")
        sticky = await cluster.add_service("sticky", sessionAffinity="ClientIP")
        hosts = (web.spec.cluster_ip, sticky.spec.cluster_ip)
        client = space_of(bed, POD)

        async def use(*pods: str) -> None:
            found = {pod.name: pod.address for pod in bed.pods}
            for name in ("web", "sticky"):
                await cluster.set_endpoints(*(plain(found[pod]) for pod in pods), service=name)

        async def until_used(*pods: str) -> None:
            """Return when both Services lead to these pods alone."""

            def is_so() -> bool:
                answers = [ask(client, host, 80, seconds=5.0) for host in hosts for _ in range(12)]
                return all(isinstance(one, Answer) and one.name in pods for one in answers)

            async with asyncio.timeout(60):
                while not await asyncio.to_thread(is_so):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        await use("n1-p1", "n2-p1")
        with kube_proxy(inside, one.kubeconfig, tmp_path):
            await until_used("n1-p1", "n2-p1")
        caller = stack.enter_context(calling(client, hosts[0], 80, seconds=10.0))
        before = await asyncio.to_thread(caller.ask)
        with one.start():
            over = threading.Event()
            asking = asyncio.create_task(asyncio.to_thread(_ask_until, over, client, hosts))
            async with asyncio.timeout(60):
                while "layout/" not in await asyncio.to_thread(one.rules):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            # NB: what is no longer used is deleted a second later.
            await asyncio.sleep(1.5)
            over.set()
            failures = await asking
            await use("n1-p2")
            await until_used("n1-p2")
            # Of what was there nothing is left but what both have.
            async with asyncio.timeout(60):
                while bed.nodes[0].pods[0].address in await asyncio.to_thread(one.rules):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert one.rules()
        assert failures == []
        assert await asyncio.to_thread(caller.ask) == before
        with kube_proxy(inside, one.kubeconfig, tmp_path):
            await use("n3-p1")
            await until_used("n3-p1")
            assert await asyncio.to_thread(caller.ask) == before
        with one.start():
            await use("n2-p1")
            await until_used("n2-p1")


def _ask_until(over: threading.Event, client: Namespace, hosts: tuple[str, ...]) -> list[Silence]:
    """Return how new connections fail until it is over."""
    failures = []
    while not over.wait(0.002):
        answers = [ask(client, host, 80, seconds=5.0) for host in hosts]
        failures += [one for one in answers if isinstance(one, Silence)]
    return failures


async def test_weights_are_followed_by_ours_alone(tmp_path: Path) -> None:
    """Beside one slice with weights and hints, kube-proxy goes by the hints and ours by weights."""
    async with twins(tmp_path, Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS) as twin:
        web = await twin.cluster.add_service(trafficDistribution="keepclose.dev/Balanced")
        places = {"n1-p1": "zone-a", "n1-p2": "zone-a", "n3-p1": "zone-b"}
        address = {pod.name: pod.address for pod in twin.ours.pods}
        endpoint_slice = await twin.cluster.set_endpoints(
            *(hinted(address[name], zone) for name, zone in places.items())
        )
        weights = {"hints": 0, "weights": {"zone-a": {"zone-a": 100, "zone-b": 400}}}
        annotations = {"annotations": {ZONE_WEIGHTS_ANNOTATION: json.dumps(weights)}}
        await twin.cluster.client.patch(
            ENDPOINT_SLICES,
            endpoint_slice.metadata.name,
            {"metadata": annotations},
            namespace=NAMESPACE,
        )
        await wait_for_both(twin, "marker", zone="zone-a")
        theirs, ours = [
            await asyncio.to_thread(
                count_inside, space_of(bed, POD), web.spec.cluster_ip, 80, times=600
            )
            for bed in (twin.theirs, twin.ours)
        ]
        assert set(theirs) == {"n1-p1", "n1-p2"}
        assert chance_of(ours, {"n1-p1": 1, "n1-p2": 1, "n3-p1": 4}) > UNBELIEVABLE, ours
