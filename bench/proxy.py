"""Our node proxy beside kube-proxy, on the same Services of one API server, in a network namespace.

Run with `python bench/proxy.py [--sizes 300,5000] [--rounds N] [--changes N]` as root. The API
server is our own, its store filled beforehand; the proxies run one after the other as users start
them, several rounds of it, but with no least time between two syncs. First programming counts
twice: from the start of the process until the kernel has the dispatch of all Services looked for,
asked by netlink every 20 ms; and as the proxies themselves say, by the metric that both export
(kubeproxy_sync_proxy_rules_duration_seconds after the first sync). A change is one
write of one EndpointSlice, in turn an address replaced, one removed and one added; it counts from
the request until the kernel announces the last transaction that has to do with the Service (by
netlink multicast; nothing is listed). The page is one reading of /metrics, which with counters
reads those of all endpoints from the kernel. Without kube-proxy (`make real`) ours runs alone.
With `--kind node-port` or `--kind affinity` the Services have chains of their own; the goals are
those of plain Services and do not count then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import resource
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from keepclose.apiserver.storage.store import Store
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.system.namespaces import enter_network

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.netns import namespaces
from support.server_processes import Embedded, embedded_server

ENDPOINTS = 10
NODE, NODE_IP, NAMESPACE = "node-a", "192.168.100.1", "default"
PLAIN, NODE_PORTS, AFFINITY = "plain", "node-port", "affinity"
OURS, COUNTING, THEIRS = "keepclose --no-counters", "keepclose (default)", "kube-proxy"
NFT, IP = shutil.which("nft") or "nft", shutil.which("ip") or "ip"
FIRST_SECONDS, CHANGE_SECONDS = 180.0, 20.0
QUIET_SECONDS, PAUSE_SECONDS = 0.3, 1.6
# The goals: parts of what kube-proxy needs, and growth of our own change from the least size.
MAX_CHANGE, MAX_CHANGE_OF_FEW, MAX_MEMORY, MAX_GROWTH = 0.05, 0.5, 1.0, 1.5
MANY_SERVICES = 5000
MAX_FIRST_OF_MANY, MAX_FIRST_OF_FEW = 0.5, 1.0
PAGES = "127.0.0.1:10249"
SYNC_METRIC = 'kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv4"} '

_NEW_GENERATION: Final = 10 << 8 | 15
_GET_ELEMENT: Final = 10 << 8 | 13
_GROUP: Final = 7


class Figures(NamedTuple):
    """What one proxy did: seconds, milliseconds, MiB."""

    first: float
    first_cpu: float
    sync: float
    replaced: float
    removed: float
    added: float
    slowest: float
    change_cpu: float
    resident: float
    peak: float
    page: float

    @property
    def change(self) -> float:
        """The mean of the medians of the three kinds of change."""
        return statistics.mean((self.replaced, self.removed, self.added))


class Kernel:
    """What the kernel says of the nftables of this namespace."""

    def __init__(self) -> None:
        self._asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
        self._asking.bind((0, 0))
        self._hearing = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
        self._hearing.bind((0, 0))
        self._hearing.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)

    def has_dispatch(self, address: str) -> bool:
        """Tell whether TCP port 80 of the address leads anywhere."""
        key = socket.inet_aton(address) + b"\x06\0\0\0" + struct.pack(">HH", 80, 0)
        element = _attribute(1 | 0x8000, _attribute(1 | 0x8000, _attribute(1, key)))
        body = b"\x02\0\0\0" + _attribute(1, b"kube-proxy\0") + _attribute(2, b"service-ips\0")
        body += _attribute(3 | 0x8000, element)
        self._asking.send(struct.pack("=IHHII", 16 + len(body), _GET_ELEMENT, 1, 1, 0) + body)
        answer = self._asking.recv(1 << 16)
        return int.from_bytes(answer[4:6], sys.byteorder) != 2

    def listen(self) -> None:
        """Have transactions announced from now on."""
        self._hearing.setsockopt(270, 1, _GROUP)

    def ignore(self) -> None:
        """Have nothing announced any more."""
        self._hearing.setsockopt(270, 2, _GROUP)
        self.forget()

    def forget(self) -> None:
        """Drop what was announced so far."""
        with contextlib.suppress(BlockingIOError):
            while self._hearing.recv(1 << 20, socket.MSG_DONTWAIT):
                pass

    def settle(self, signs: list[bytes]) -> float:
        """Return when the last transaction that has one of the signs in it was announced."""
        last, until, is_ours = 0.0, time.perf_counter() + CHANGE_SECONDS, False
        while (left := until - time.perf_counter()) > 0:
            if not select.select([self._hearing], [], [], left)[0]:
                break
            data = self._hearing.recv(1 << 20)
            now, at = time.perf_counter(), 0
            while at < len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                message = data[at : at + length]
                is_ours = is_ours or any(sign in message for sign in signs)
                # A generation is announced behind all that it brings.
                if kind == _NEW_GENERATION:
                    if is_ours:
                        last, until = now, now + QUIET_SECONDS
                    is_ours = False
                at += length + 3 & ~3
        if not last:
            sys.exit("a change never reached the kernel")
        return last


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


class Running(NamedTuple):
    """A proxy as a process."""

    process: subprocess.Popen[bytes]
    started: float

    def cpu(self) -> float:
        """Return the seconds of CPU that it and the programs it ran have used."""
        text = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def memory(self, name: str) -> float:
        """Return a figure of its memory in MiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in text.splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024


def vip(number: int) -> str:
    """Return the cluster IP of a Service."""
    return f"10.96.{number + 1 >> 8}.{number + 1 & 255}"


def endpoint(number: int) -> dict[str, Any]:
    """Return an endpoint."""
    address = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    place = number % 60
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": f"node-{place}",
        "zone": f"zone-{'abc'[place % 3]}",
        "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": f"pod-{number}"},
    }


def fill(directory: Path, services: int, kind: str) -> None:
    """Put a node, Services and slices into the store of a server that does not run."""
    store = Store.open(directory)
    with store.batch():
        store.create("nodes", _node())
        for number in range(services):
            store.create("services", _service(number, kind))
            store.create("endpointslices.discovery.k8s.io", _slice(number))
    store.close()


def _metadata(name: str, number: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "uid": f"00000000-0000-0000-0000-{number:012}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **more,
    }


def _node() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": _metadata(NODE, 0, labels={"topology.kubernetes.io/zone": "zone-a"}),
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_IP}]},
    }


def _service(number: int, kind: str) -> dict[str, Any]:
    port: dict[str, Any] = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}
    spec: dict[str, Any] = {"sessionAffinity": "None", "type": "ClusterIP"}
    if kind == NODE_PORTS:
        port["nodePort"] = 30000 + number
        spec |= {"type": "NodePort", "externalTrafficPolicy": "Cluster"}
    elif kind == AFFINITY:
        config = {"clientIP": {"timeoutSeconds": 10800}}
        spec |= {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(f"svc-{number}", number + 1, namespace=NAMESPACE),
        "spec": {
            "clusterIP": vip(number),
            "clusterIPs": [vip(number)],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "ports": [port],
            "selector": {"app": f"svc-{number}"},
            **spec,
        },
        "status": {"loadBalancer": {}},
    }


def _slice(number: int) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": f"svc-{number}"}
    name = f"svc-{number}-abcde"
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": _metadata(name, 1_000_000 + number, namespace=NAMESPACE, labels=labels),
        "addressType": "IPv4",
        "endpoints": [endpoint(number * ENDPOINTS + one) for one in range(ENDPOINTS)],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def kube_proxy() -> Path | None:
    """Return the real program if it is there."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "keepclose"
    cache = Path(os.environ.get("KEEPCLOSE_CACHE", default)) / "real"
    return max(cache.glob("v*/kube-proxy"), default=None)


def command(name: str, server: Embedded, directory: Path) -> list[str | Path]:
    """Return the command line of a proxy."""
    kubeconfig = server.role(f"node-{NODE}")
    if name == THEIRS:
        settings = directory / "kube-proxy.json"
        settings.write_text(json.dumps(_settings(kubeconfig)))
        return [kube_proxy() or "", f"--config={settings}"]
    flags: list[str | Path] = ["--node-name", NODE, "--kubeconfig", kubeconfig]
    flags += ["--min-sync-period=0s", *(["--no-counters"] if name == OURS else [])]
    return [sys.executable, "-m", "keepclose", "proxy", *flags]


def _settings(kubeconfig: Path) -> dict[str, object]:
    never = {"tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": NODE,
        "clientConnection": {"kubeconfig": str(kubeconfig), "contentType": "application/json"},
        "clusterCIDR": "10.244.0.0/16",
        "conntrack": {"maxPerCore": 0, "min": 0, **never},
        "nftables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": PAGES,
    }


def compiled(directory: Path) -> dict[str, str]:
    """Return an environment in which our modules are compiled already, as installed ones are."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    imports = "import keepclose.cli.main, keepclose.cli.proxy, keepclose.proxy.process"
    subprocess.run([sys.executable, "-c", imports], env=environment, check=True)
    return environment


@contextlib.contextmanager
def running(arguments: list[str | Path], log: Path) -> Iterator[Running]:
    """Run a proxy for the block, and take its tables away afterwards."""
    environment = compiled(log.parent / "bytecode")
    with log.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(arguments, stdout=output, stderr=output, env=environment)
    try:
        yield Running(process, started)
    finally:
        process.terminate()
        process.wait(30)
        for family in ("ip", "ip6"):
            command = [NFT, "delete", "table", family, "kube-proxy"]
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


async def measure(
    name: str, services: int, *, server: Embedded, directory: Path, changes: int
) -> Figures:
    """Return the figures of one proxy."""
    kernel, log = Kernel(), directory / "proxy.log"
    wanted = [vip(number) for number in range(0, services, max(1, services // 50))]
    settings = load_connection_settings(server.kubeconfig)
    with running(command(name, server, directory), log) as proxy:
        while not all(kernel.has_dispatch(address) for address in wanted):
            if time.perf_counter() > proxy.started + FIRST_SECONDS or proxy.process.poll():
                sys.exit(f"{name} wrote no rules\n{log.read_text()[-3000:]}")
            await asyncio.sleep(0.02)
        first, first_cpu = time.perf_counter() - proxy.started, proxy.cpu()
        sync = await first_sync()
        await asyncio.sleep(3)
        kernel.listen()
        async with connect(settings, clock=SystemClock(), user_agent="bench/1") as client:
            cpu = proxy.cpu()
            took = await change(client, kernel, services, changes)
            change_cpu = (proxy.cpu() - cpu) * 1e3 / (3 * changes)
        kernel.ignore()
        started = time.perf_counter()
        await asyncio.to_thread(_read_metrics)
        page = (time.perf_counter() - started) * 1e3
        return Figures(
            first=first,
            first_cpu=first_cpu,
            sync=sync,
            replaced=statistics.median(took[::3]),
            removed=statistics.median(took[1::3]),
            added=statistics.median(took[2::3]),
            slowest=max(took),
            change_cpu=change_cpu,
            resident=proxy.memory("VmRSS"),
            peak=proxy.memory("VmHWM"),
            page=page,
        )


async def first_sync() -> float:
    """Return how long the first sync took by the proxy's own metric, once it is there."""
    until = time.perf_counter() + CHANGE_SECONDS
    while time.perf_counter() < until:
        with contextlib.suppress(OSError):
            for line in (await asyncio.to_thread(_read_metrics)).splitlines():
                if line.startswith(SYNC_METRIC):
                    return float(line.removeprefix(SYNC_METRIC))
        await asyncio.sleep(0.1)
    return sys.exit("a proxy does not tell how long its first sync took")


def _read_metrics() -> str:
    host, _, port = PAGES.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def medians(rounds: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(*[statistics.median(values) for values in zip(*rounds, strict=True)])


async def change(client: Client, kernel: Kernel, services: int, changes: int) -> list[float]:
    """Replace, remove and add one endpoint of a Service after the other; return milliseconds."""
    took: list[float] = []
    for turn in range(changes):
        number = turn * 7919 % services
        plain = _slice(number)["endpoints"]
        newcomer = endpoint((1 << 20) + os.getpid() % 60_000 + turn * 64)
        addresses = [vip(number), *[one["addresses"][0] for one in (newcomer, *plain)]]
        signs = [socket.inet_aton(address) for address in addresses]
        for endpoints in ([*plain[:4], newcomer, *plain[5:]], [*plain[:4], *plain[5:]], plain):
            await asyncio.sleep(PAUSE_SECONDS)
            kernel.forget()
            started = time.perf_counter()
            written = asyncio.create_task(
                client.patch(
                    ENDPOINT_SLICES,
                    f"svc-{number}-abcde",
                    {"endpoints": endpoints},
                    namespace=NAMESPACE,
                )
            )
            seen = await asyncio.to_thread(kernel.settle, signs)
            await written
            took.append((seen - started) * 1e3)
    return took


def show(services: int, figures: dict[str, Figures]) -> bool:
    """Print the figures of one size; return whether ours keep the goals."""
    print(f"\n{services:,} Services x {ENDPOINTS} endpoints", flush=True)
    print(
        f"{'':<26}{'first s':>9}{'CPU s':>8}{'metric s':>10}{'replaced':>10}{'removed':>9}"
        f"{'added':>9}{'slowest ms':>12}{'CPU ms':>8}{'RSS MiB':>9}{'peak':>7}{'page ms':>9}"
    )
    for name, one in figures.items():
        print(
            f"{name:<26}{one.first:>9.2f}{one.first_cpu:>8.2f}{one.sync:>10.2f}{one.replaced:>10.2f}"
            f"{one.removed:>9.2f}{one.added:>9.2f}{one.slowest:>12.2f}{one.change_cpu:>8.2f}"
            f"{one.resident:>9.0f}{one.peak:>7.0f}{one.page:>9.0f}"
        )
    theirs = figures.get(THEIRS)
    if theirs is None:
        return True
    kept = True
    most_first = MAX_FIRST_OF_MANY if services >= MANY_SERVICES else MAX_FIRST_OF_FEW
    # A change of a small table is mostly the request that makes it.
    most_change = MAX_CHANGE if services >= MANY_SERVICES else MAX_CHANGE_OF_FEW
    for name, one in figures.items():
        if name == THEIRS:
            continue
        ratios = (
            ("first from the start", one.first / theirs.first, most_first),
            ("first by the metric", one.sync / theirs.sync, most_first),
            ("change", one.change / theirs.change, most_change),
            ("memory", one.resident / theirs.resident, MAX_MEMORY),
        )
        text = ", ".join(f"{what} {value:.3f} (goal {most})" for what, value, most in ratios)
        print(f"{name} / {THEIRS}: {text}")
        kept = kept and (name != OURS or all(value <= most for _, value, most in ratios))
    return kept


def main() -> int:
    """Print the figures and ratios; return 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description="Measure our node proxy beside kube-proxy.")
    parser.add_argument("--sizes", default="300,5000")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")
    parser.add_argument("--changes", type=int, default=3, help="of each of three kinds")
    parser.add_argument("--only", default="", help="part of a proxy's name")
    parser.add_argument("--kind", choices=(PLAIN, NODE_PORTS, AFFINITY), default=PLAIN)
    options = parser.parse_args()
    sizes = [int(one) for one in options.sizes.split(",")]
    names = [OURS, COUNTING, *([THEIRS] if kube_proxy() else [])]
    names = [name for name in names if options.only in name]
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    kept, changes = True, []
    with namespaces("proxy") as (inside,), tempfile.TemporaryDirectory() as name:
        # NB: this process and all that it starts live in there from here on.
        enter_network(inside.path)
        subprocess.run([IP, "address", "add", f"{NODE_IP}/32", "dev", "lo"], check=True)
        for size in sizes:
            directory = Path(name, str(size))
            directory.mkdir()
            fill(directory / "data", size, options.kind)
            with embedded_server(directory / "data", "--node", NODE) as server:
                rounds: dict[str, list[Figures]] = {one: [] for one in names}
                # In turn, so that whatever else the machine does meets all of them.
                for _ in range(options.rounds):
                    for one in names:
                        measured = measure(
                            one, size, server=server, directory=directory, changes=options.changes
                        )
                        rounds[one].append(asyncio.run(measured))
                figures = {one: medians(found) for one, found in rounds.items()}
            kept = show(size, figures) and kept
            if OURS in figures:
                changes.append(figures[OURS].change)
    if len(changes) > 1:
        growth = changes[-1] / changes[0]
        print(f"\na change costs {growth:.2f} times what it does at {sizes[0]:,} Services", end=" ")
        print(f"(goal {MAX_GROWTH})")
        kept = kept and growth <= MAX_GROWTH
    return 0 if kept or options.kind != PLAIN else 1


if __name__ == "__main__":
    sys.exit(main())
