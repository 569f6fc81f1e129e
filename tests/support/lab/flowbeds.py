"""Nodes with a proxy and a flow agent each, and traffic whose both ends count what they sent.

    with flow_bed("ours", directory) as bed:
        bed.add_service("web", ["n1-p1"])
        bed.send("n2-p2", "web", times=20)
        bed.expect_flows("web")

The API server runs in a thread of this process; proxies and agents are processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from keepclose.accounting.flow_files import read_json_lines
from keepclose.accounting.flow_table import (
    FlowCounts,
    FlowKind,
    FlowTable,
    is_zone,
)
from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.kube.requests import PODS
from keepclose.model.service.types import Service
from keepclose.testing.api_server import serving
from support.lab.counted_lines import Answers, Line, Sent, connecting
from support.netanswers import PATIENCE, PORT
from support.netproxies import RunningProxy, prepared, started
from support.nettopology import (
    POD_NETWORK,
    POD_NETWORK6,
    SERVICE_NETWORK,
    SERVICE_NETWORK6,
    Bed,
    NodePlan,
    Place,
    topology_or_skip,
)
from support.proxies import NAMESPACE, ProxyCluster, cluster_of, plain
from support.real.programs import program

_T = TypeVar("_T")
PLAN: Final = (
    NodePlan("n1", "zone-a", 3),
    NodePlan("n2", "zone-b", 3),
    NodePlan("n3", "zone-c", 3),
)
OUTSIDE: Final = "outside"
PORTS: Final = (
    {"name": "http", "port": PORT, "protocol": "TCP"},
    {"name": "dns", "port": PORT, "protocol": "UDP"},
)
_DUAL: Final = AllocationSettings((SERVICE_NETWORK, SERVICE_NETWORK6))
_AGENT_PAGES: Final = "127.0.0.1:10247"
_FLOWS_S: Final = 90.0
# Connections end soon, so that their ends are counted as well as their beginnings.
SHORT_TIMEOUTS: Final = {
    "netfilter/nf_conntrack_tcp_timeout_syn_sent": 3,
    "netfilter/nf_conntrack_tcp_timeout_time_wait": 3,
    "netfilter/nf_conntrack_tcp_timeout_close": 3,
    "netfilter/nf_conntrack_udp_timeout": 3,
    "netfilter/nf_conntrack_udp_timeout_stream": 3,
}
LONG_TIMEOUTS: Final = dict.fromkeys(SHORT_TIMEOUTS, 120)
_KUBE_PROXY: Final = {"kube-proxy-nftables": "nftables", "kube-proxy-iptables": "iptables"}


class Pair(NamedTuple):
    """The ends of connections."""

    service: str
    protocol: str
    client_zone: str
    endpoint_zone: str
    endpoint: str
    """The pod that answered, as its own name in the cluster."""


class Agent:
    """The flow agent of a node, as a process in its namespace."""

    def __init__(self, proxy: RunningProxy, viewer: Path, directory: Path) -> None:
        self._proxy, self._viewer = proxy, viewer
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def log(self) -> Path:
        """What it has logged since its last start."""
        return self._directory / f"flows-{self._proxy.node.name}-{self.starts}.log"

    def start(self) -> None:
        """Start the agent; it need not be ready yet."""
        self.starts += 1
        name = self._proxy.node.name
        command: list[str | Path] = [
            *(Path(sys.executable).parent / "keepclose", "flows"),
            *("--node-name", name, "--kubeconfig", self._viewer),
            *("--detail", "nodes,workloads,pods", "--enable-accounting", "--walk-period", "1s"),
            *("--cluster-cidr", f"{POD_NETWORK},{POD_NETWORK6},{SERVICE_NETWORK}"),
            *("--checkpoint", self._directory / f"{name}.flows"),
            *("--metrics-bind-address", _AGENT_PAGES),
        ]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._proxy.node.namespace.command(*command),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Return when the agent counts and knows all names."""
        wait_for(lambda: self._status("/readyz") == 200, lambda: self.log.read_text()[-3000:])

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the agent with a signal, and wait for it."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None

    def read(self) -> FlowTable:
        """Return its table; raises OSError while it does not answer."""
        status, body = self._proxy.fetch("/flows?walk=true", _AGENT_PAGES)
        if status != 200:
            raise OSError(body)
        return read_json_lines(body.splitlines(), name=self._proxy.node.name)

    def _status(self, path: str) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        try:
            return self._proxy.fetch(path, _AGENT_PAGES)[0]
        except OSError:
            return 0


def wait_for(is_so: Callable[[], bool], explain: Callable[[], object]) -> None:
    """Return when it is so; fail with the explanation when it is not in time."""
    end = time.monotonic() + _FLOWS_S
    while not is_so():
        assert time.monotonic() < end, explain()
        # NB: pages of other processes tell no event.
        time.sleep(0.1)


class FlowBed:
    """The network, its proxies and agents, and what was sent through it."""

    def __init__(self, bed: Bed, cluster: ProxyCluster, agents: dict[str, Agent]) -> None:
        self.bed, self.cluster, self.agents = bed, cluster, agents
        self.answers = Answers()
        self.do: Callable[[Coroutine[Any, Any, Any]], Any]
        self.services: dict[str, Service] = {}
        self.names: dict[str, str] = {}
        """The pod that has the address of a place now, by the place."""
        self.sent: defaultdict[Pair, Sent] = defaultdict(Sent)
        self.timeouts: Counter[str] = Counter()
        """Connections without any answer, by Service."""
        self.direct = 0
        """Connections to pods without a Service."""
        self.answered: Counter[str] = Counter()
        """Answers that clients got, by the place that gave them."""

    def pod(self, name: str) -> Place:
        """Return a place by the name of its pod."""
        return next(pod for pod in self.bed.pods if pod.name == name)

    def place(self, name: str) -> Place:
        """Return a pod, a node or the host outside."""
        if name == OUTSIDE:
            return self.bed.outside
        for node in self.bed.nodes:
            if node.name == name:
                return Place(name, node.namespace, node.address, node.address6)
        return self.pod(name)

    def zone(self, name: str) -> str:
        """Return the zone of a pod or a node."""
        return "(outside)" if name == OUTSIDE else self.bed.node(name.partition("-")[0]).zone

    def name_pod(self, place: str, name: str) -> None:
        """Let a pod of this name have the place; one that had it is deleted."""
        self.do(self._name_pod(place, name))

    async def _name_pod(self, place: str, name: str) -> None:
        client = self.cluster.client
        if place in self.names:
            await client.delete(PODS, self.names[place], namespace=NAMESPACE, grace_period=0)
        self.names[place] = name
        one = self.pod(place)
        spec = {"nodeName": place.partition("-")[0], "containers": [{"name": "a", "image": "a"}]}
        await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)
        addresses = [{"ip": one.address}, {"ip": one.address6}]
        status = {"phase": "Running", "podIP": one.address, "podIPs": addresses}
        await client.patch(
            PODS, name, {"status": status}, namespace=NAMESPACE, subresource="status"
        )

    def add_service(self, name: str, pods: Sequence[str], **spec: Any) -> None:
        """Add a Service with these pods as endpoints in both families."""
        ports = [
            {"name": "http", "port": 80, "targetPort": PORT, "protocol": "TCP"},
            {"name": "dns", "port": 53, "targetPort": PORT, "protocol": "UDP"},
        ]
        wanted = {"ports": ports, "ipFamilyPolicy": "RequireDualStack", **spec}
        self.services[name] = self.do(self.cluster.add_service(name, **wanted))
        self.set_endpoints(name, pods)

    def set_endpoints(
        self, name: str, pods: Sequence[str], ports: Sequence[dict[str, Any]] = PORTS
    ) -> None:
        """Make these pods the endpoints of a Service."""
        for family in ("IPv4", "IPv6"):
            endpoints = []
            for pod in pods:
                one = self.pod(pod)
                address = one.address if family == "IPv4" else one.address6
                endpoint = plain(address, self.zone(pod), pod.partition("-")[0])
                reference = {"kind": "Pod", "namespace": NAMESPACE, "name": self.names[pod]}
                endpoints.append({**endpoint, "targetRef": reference})
            self.do(
                self.cluster.set_endpoints(
                    *endpoints, service=name, address_type=family, ports=ports
                )
            )

    def wait_named(self, client: str, place: str) -> None:
        """Return when the agent of a client's node knows which pod has a place now.

        A Service of its own shows it. Slices come in the order of their changes, so that the agent
        knows all that was written before.
        """
        name = f"probe-{self.names[place]}"
        self.add_service(name, [place])

        def is_so() -> bool:
            self.send(client, name, times=1, within_s=1.0)
            names = {pair.endpoint for pair in self.flows(name)}
            return f"{NAMESPACE}/{self.names[place]}" in names

        wait_for(is_so, lambda: self.flows(name))

    def address(self, name: str, *, udp: bool = False, ipv6: bool = False) -> tuple[str, int]:
        """Return the cluster IP and the port of a Service."""
        ips = self.services[name].spec.cluster_ips
        (address,) = [ip for ip in ips if (":" in ip) == ipv6]
        return address, 53 if udp else 80

    def node_port(self, name: str, *, udp: bool = False) -> int:
        """Return the node port of a Service."""
        return self.services[name].spec.ports[1 if udp else 0].node_port

    def wait_routed(self, client: str, name: str, pods: Sequence[str], **to: Any) -> None:
        """Return when connections of the client reach one of these pods; they count too."""
        last: list[object] = []

        def is_so() -> bool:
            last[:] = [self.send(client, name, times=1, within_s=1.0, **to)]
            return set(last[0]) <= {*pods} and bool(last[0])  # type: ignore[call-overload]

        wait_for(is_so, lambda: f"{client} to {name}: {last}")

    def send(
        self,
        client: str,
        name: str,
        *,
        times: int,
        udp: bool = False,
        ipv6: bool = False,
        to: tuple[str, int] | None = None,
        request: int = 400,
        response: int = 3000,
        within_s: float = PATIENCE,
    ) -> Counter[str]:
        """Open connections to a Service one after the other, and return which places answered.

        Only connections with an answer count, as they have an endpoint that is known.
        """
        address = to or self.address(name, udp=udp, ipv6=ipv6)
        counts: Counter[str] = Counter()
        for _ in range(times):
            try:
                with connecting(self.place(client), address, udp=udp, within_s=within_s) as line:
                    line.exchange(request, response)
                    self.record(client, name, line)
                    counts[line.answered_by] += 1
            except TimeoutError:
                self.timeouts[name] += 1
            except OSError:
                continue
        return counts

    def failed(self, name: str, endpoint_zone: str) -> FlowCounts:
        """Return what the agents have counted for a Service and its endpoints in a zone."""
        total = FlowCounts()
        for pair, counts in self.flows(name).items():
            if pair.endpoint_zone == endpoint_zone:
                total.add(counts)
        return total

    def record(self, client: str, name: str, line: Line) -> None:
        """Add a connection to what was sent."""
        place = line.answered_by
        protocol = "UDP" if line.udp else "TCP"
        endpoint = f"{NAMESPACE}/{self.names[place]}"
        pair = Pair(name, protocol, self.zone(client), self.zone(place), endpoint)
        self.answered[place] += 1
        line.add_to(self.sent[pair])

    def flows(self, name: str) -> dict[Pair, FlowCounts]:
        """Return what the agents have counted for a Service, where there was an endpoint."""
        rows: dict[Pair, FlowCounts] = {}
        for key, counts in self.read_all():
            if key.kind is FlowKind.SERVICE and key.service == name and is_zone(key.endpoint_zone):
                pair = Pair(name, key.protocol, key.client_zone, key.endpoint_zone, key.endpoint)
                rows.setdefault(pair, FlowCounts()).add(counts)
        return rows

    def set_timeouts(self, values: dict[str, int]) -> None:
        """Set how long the kernels of all nodes remember connections that have ended."""
        for node in self.bed.nodes:
            node.namespace.set_values(values)

    def of_kind(self, kind: FlowKind) -> FlowCounts:
        """Return the sum of a kind of traffic."""
        return self.read_all().selected(lambda key: key.kind is kind).total()

    def read_all(self) -> FlowTable:
        """Return the flows of all agents."""
        total = FlowTable()
        for agent in self.agents.values():
            total.merge(agent.read())
        return total

    def expect_flows(self, name: str) -> None:
        """Return when the agents have counted what clients sent to a Service, no more or less."""
        want = {pair: sent for pair, sent in self.sent.items() if pair.service == name}
        assert want
        rows: dict[Pair, FlowCounts] = {}

        def is_so() -> bool:
            with contextlib.suppress(OSError):
                rows.clear()
                rows.update(self.flows(name))
            return differences(want, rows) == []

        wait_for(is_so, lambda: "\n".join(differences(want, rows)))


def differences(want: dict[Pair, Sent], rows: dict[Pair, FlowCounts]) -> list[str]:
    """Return where flows differ from what was sent."""
    problems = []
    for pair in sorted({*want, *rows}):
        sent, row = want.get(pair, Sent()), rows.get(pair, FlowCounts())
        is_so = (
            sent.connections == row.connections - row.refused - row.unanswered
            and sent.least_request <= row.request_bytes <= sent.most_request
            and sent.least_response <= row.response_bytes <= sent.most_response
        )
        if not is_so:
            problems.append(f"{pair}: sent {sent}, flows {row}")
    return problems


class _Loop:
    """An event loop in a thread, for servers beside tests that block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="servers")

    def __enter__(self) -> Callable[[Coroutine[Any, Any, _T]], _T]:
        self._thread.start()
        return self._run

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(3 * _FLOWS_S)


@contextlib.contextmanager
def flow_bed(router: str, directory: Path) -> Iterator[FlowBed]:
    """Run nodes, proxies of this make and flow agents for the block, or skip the test.

    Routers are "ours", "kube-proxy-nftables" and "kube-proxy-iptables".
    """
    if router in _KUBE_PROXY:
        program("kube-proxy")
    if router == "kube-proxy-iptables" and not shutil.which("iptables"):
        pytest.skip("iptables is not installed")
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(topology_or_skip(PLAN))
        do = stack.enter_context(_Loop())
        servers = contextlib.AsyncExitStack()
        stack.callback(lambda: do(servers.aclose()))

        async def start() -> tuple[ProxyCluster, dict[str, RunningProxy]]:
            names = tuple(node.name for node in PLAN)
            api = await servers.enter_async_context(
                serving(directory / "data", nodes=names, allocation=_DUAL)
            )
            cluster = await servers.enter_async_context(cluster_of(api))
            return cluster, await servers.enter_async_context(prepared(bed, cluster, directory))

        cluster, proxies = do(start())
        viewer = directory / "data" / "viewer.kubeconfig"
        agents = {name: Agent(proxy, viewer, directory) for name, proxy in proxies.items()}
        flows = FlowBed(bed, cluster, agents)
        flows.do = do
        for network in (SERVICE_NETWORK, SERVICE_NETWORK6):
            bed.route_via(network, bed.nodes[0])
        for pod in bed.pods:
            flows.name_pod(pod.name, pod.name)
        stack.enter_context(flows.answers.running(bed.pods))
        for agent in agents.values():
            stack.callback(agent.end)
            agent.start()
        if router == "ours":
            stack.enter_context(started(proxies))
        else:
            for proxy in proxies.values():
                stack.enter_context(_kube_proxy(proxy, directory, _KUBE_PROXY[router]))
        for agent in agents.values():
            agent.wait_ready()
        flows.set_timeouts(SHORT_TIMEOUTS)
        yield flows


@contextlib.contextmanager
def _kube_proxy(proxy: RunningProxy, directory: Path, mode: str) -> Iterator[None]:
    """Run a real kube-proxy on a node for the block; fail if it has ended by itself."""
    name = proxy.node.name
    settings, log = directory / f"{name}-proxy.json", directory / f"{name}-proxy.log"
    conntrack = {
        "maxPerCore": 0,
        "min": 0,
        "tcpEstablishedTimeout": "0s",
        "tcpCloseWaitTimeout": "0s",
    }
    settings.write_text(
        json.dumps(
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": mode,
                "hostnameOverride": name,
                "clientConnection": {
                    "kubeconfig": str(proxy.kubeconfig),
                    "contentType": "application/json",
                },
                "detectLocalMode": "NodeCIDR",
                "conntrack": conntrack,
                mode: {"minSyncPeriod": "0s", "syncPeriod": "30s"},
                "healthzBindAddress": "127.0.0.1:10256",
                "metricsBindAddress": "127.0.0.1:10249",
            }
        )
    )
    command: list[str | Path] = [program("kube-proxy"), f"--config={settings}", "--v=2"]
    with proxy.node.namespace.running(command, log) as process:
        yield
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
