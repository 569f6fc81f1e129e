"""Connections lost while the endpoints of a Service change over and over.

Run with `python bench/swaps.py [--swaps N] [--seconds N] [--others N]` as root; less than three
minutes unless told otherwise. Clients in a pod's namespace open thousands of connections a second
to a cluster IP, through the node's nftables; meanwhile the endpoint set is swapped, in three ways:
ours where plain ports share a map of endpoints; ours with chains, as ports with node ports or
affinity have them; and kube-proxy's, which empties the chain and writes its rule anew in one
transaction. Every connection that is refused, or gets no answer in five seconds, is lost; those
that took a second lost a packet. First a while without swaps, which must lose nothing either.
"""

from __future__ import annotations

import argparse
import errno
import multiprocessing
import random
import select
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName
from keepclose.proxy.nft.libnftables import LibnftablesContext
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.selection import select as select_endpoints
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset import (
    DetectLocal,
    LocalTraffic,
    Ruleset,
    RulesetSettings,
    ServicePortKey,
    TableListing,
    cleanup_text,
)
from keepclose.system.namespaces import enter_network

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.nettopology import Bed, NodePlan, topology

ADDRESS, PORT = "10.96.0.10", 80
TARGETS = range(8080, 8096)
MAX_ENDPOINTS = 5
CLIENTS = 2
AT_ONCE = 48
# Of each client, so that something is left for the swaps.
MAX_A_SECOND = 3_200
LATER_SECONDS, LOST_SECONDS, LATE_SECONDS = 1.1, 5.0, 0.9
NODE = NodeView("n1", "zone-a")
ONE = RoutedPort(NamespacedName("default", "web"), "http", "TCP", ADDRESS, PORT)
CHAIN = "service-GWWWHJZU-default/web/tcp/http"
_RESET = struct.pack("ii", 1, 0)


class Tally(NamedTuple):
    """What became of connections."""

    opened: int
    refused: int
    unanswered: int
    late: int
    seconds: float

    @property
    def lost(self) -> int:
        """Connections that never came about."""
        return self.refused + self.unanswered


def serve(namespaces: list[Path], stop: Event, ready: Any) -> None:
    """Take connections in all the namespaces, and close them at once, until told to stop."""
    poll = select.epoll()
    listeners = {}
    for namespace in namespaces:
        enter_network(namespace)
        for port in TARGETS:
            one = socket.create_server(("", port), backlog=4096)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            listeners[one.fileno()] = one
            poll.register(one, select.EPOLLIN)
    ready.put("server")
    while not stop.is_set():
        for number, _ in poll.poll(0.2):
            try:
                while True:
                    listeners[number].accept()[0].close()
            except OSError:
                pass


def call(namespace: Path, stop: Event, results: Any) -> None:
    """Open connections until told to stop; report what became of them."""
    enter_network(namespace)
    poll = select.epoll()
    waiting: dict[int, tuple[socket.socket, float]] = {}
    counts: Counter[str] = Counter()
    begun_so_far = 0
    started = checked = time.monotonic()
    while not stop.is_set() or waiting:
        allowed = (time.monotonic() - started) * MAX_A_SECOND
        while len(waiting) < AT_ONCE and begun_so_far < allowed and not stop.is_set():
            begun_so_far += 1
            one = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            if one.connect_ex((ADDRESS, PORT)) not in (0, errno.EINPROGRESS):
                counts["refused"] += 1
                one.close()
                continue
            poll.register(one, select.EPOLLOUT)
            waiting[one.fileno()] = one, time.monotonic()
        for number, _ in poll.poll(0.002):
            one, begun = waiting.pop(number)
            failure = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            # NB: the server hangs up at once, which may be seen before the connection is.
            is_open = failure in (0, errno.ECONNRESET, errno.EPIPE)
            counts["opened" if is_open else "refused"] += 1
            counts["late"] += time.monotonic() - begun > LATE_SECONDS
            one.close()
        now = time.monotonic()
        if now - checked > 1:
            checked = now
            for number in [n for n, (_, begun) in waiting.items() if now - begun > LOST_SECONDS]:
                waiting.pop(number)[0].close()
                counts["unanswered"] += 1
    results.put((dict(counts), time.monotonic() - started))


class Swapper:
    """Changes the endpoints of the Service, in one of the ways."""

    def __init__(self, bed: Bed, way: str) -> None:
        node = bed.node("n1")
        self._context = node.namespace.do(LibnftablesContext)
        self._way = way
        self._endpoints = [
            PortEndpoint(pod.address, port, node_name="n1", zone="zone-a")
            for pod in node.pods[1:]
            for port in TARGETS
        ]
        self._ruleset = Ruleset(
            RulesetSettings(
                node_name="n1",
                node_ip=node.address,
                local_traffic=LocalTraffic(DetectLocal.CIDR, node.pod_cidr),
                nodeport_ips=(node.address,),
                service_cidrs=("10.96.0.0/16",),
                pooled=way == "shared",
            )
        )
        self._context.apply(cleanup_text(self._ruleset.settings))
        self._set(self._endpoints[:1])
        self._write(self._ruleset.reconcile(TableListing()).phases)
        self._due: deque[tuple[float, int]] = deque()
        self._random = random.Random(1)
        self._last: list[PortEndpoint] = []
        if way == "rewritten":
            self._become_plain()

    def swap(self) -> int:
        """Change the endpoints once, and delete what is due; return how many transactions."""
        chosen = self._last
        while chosen == self._last:
            count = self._random.randint(1, MAX_ENDPOINTS)
            chosen = sorted(self._random.sample(self._endpoints, count), key=lambda one: one.key)
        self._last = chosen
        if self._way == "rewritten":
            self._context.apply(_rewriting(chosen))
            return 1
        self._set(chosen)
        update = self._ruleset.commit()
        if update is None:
            return 0
        self._write(update.phases)
        now, done = time.monotonic(), len(update.phases)
        self._due.append((now + LATER_SECONDS, update.serial))
        while self._due and self._due[0][0] <= now:
            texts = self._ruleset.sweep(self._due.popleft()[1])
            self._write(texts)
            done += len(texts)
        return done

    def close(self) -> None:
        """Let go of the kernel."""
        self._context.close()

    def _set(self, endpoints: list[PortEndpoint]) -> None:
        selection = select_endpoints(ONE, tuple(endpoints), node=NODE, gates=FeatureGates())
        self._ruleset.set_port(ServicePortKey.of(ONE), ONE, selection)

    def _write(self, texts: tuple[str, ...]) -> None:
        for text in texts:
            self._context.apply(text)

    def _become_plain(self) -> None:
        key = f"{ADDRESS} . tcp . {PORT}"
        self._context.apply(
            f"add chain ip kube-proxy {CHAIN}\n{_rewriting(self._endpoints[:2])}"
            f"delete element ip kube-proxy service-ips {{ {key} }}\n"
            f"add element ip kube-proxy service-ips {{ {key} : goto {CHAIN} }}\n"
        )


def _rewriting(endpoints: list[PortEndpoint]) -> str:
    elements = ", ".join(
        [f"{index} : {one.address} . {one.port}" for index, one in enumerate(endpoints)]
    )
    target = f"numgen random mod {len(endpoints)} map {{ {elements} }}"
    return (
        f"add chain ip kube-proxy {CHAIN}\nflush chain ip kube-proxy {CHAIN}\n"
        f"add rule ip kube-proxy {CHAIN} meta l4proto tcp dnat ip addr . port to {target}\n"
    )


def under_load(bed: Bed, work: Callable[[], None]) -> Tally:
    """Do the work while clients open connections; return what became of those."""
    spawn = multiprocessing.get_context("spawn")
    stop, results = spawn.Event(), spawn.Queue()
    client = bed.node("n1").pods[0].namespace.path
    callers = [
        spawn.Process(target=call, args=(client, stop, results), daemon=True)
        for _ in range(CLIENTS)
    ]
    for one in callers:
        one.start()
    time.sleep(1.5)
    work()
    stop.set()
    reports = [results.get(timeout=60) for _ in callers]
    for one in callers:
        one.join(10)
    total: Counter[str] = Counter()
    for counts, _ in reports:
        total.update(counts)
    seconds = max(took for _, took in reports)
    return Tally(total["opened"], total["refused"], total["unanswered"], total["late"], seconds)


def measure(bed: Bed, way: str, *, swaps: int, seconds: float) -> Tally:
    """Swap in one way until there were so many, or for so long; print a line."""
    swapper = Swapper(bed, way)
    done = transactions = 0
    took = 0.0

    def work() -> None:
        nonlocal done, transactions, took
        begun = time.monotonic()
        while done < swaps and time.monotonic() - begun < seconds:
            transactions += swapper.swap()
            done += 1
        took = time.monotonic() - begun
        if not swaps:
            time.sleep(seconds)

    tally = under_load(bed, work)
    swapper.close()
    per_swap = took / done * 1e3 if done else 0.0
    rate = tally.opened / tally.seconds
    print(
        f"{way:<12}{done:>9,}{transactions:>9,}{per_swap:>9.2f}{tally.opened:>13,}{rate:>10,.0f}"
        f"{tally.refused:>9}{tally.unanswered:>12}{tally.late:>7}{tally.lost:>7}",
        flush=True,
    )
    return tally


def main() -> int:
    """Print what each way loses; return 1 when ours lose anything."""
    parser = argparse.ArgumentParser(description="Count connections lost to changes of endpoints.")
    parser.add_argument("--swaps", type=int, default=30_000, help="in each way")
    parser.add_argument("--seconds", type=float, default=75.0, help="at most, in our first way")
    parser.add_argument("--others", type=float, default=30.0, help="at most, in the others")
    options = parser.parse_args()
    with topology((NodePlan("n1", "zone-a", 4),)) as bed:
        _make_room(bed)
        spawn = multiprocessing.get_context("spawn")
        stop, ready = spawn.Event(), spawn.Queue()
        places = [pod.namespace.path for pod in bed.node("n1").pods[1:]]
        server = spawn.Process(target=serve, args=(places, stop, ready), daemon=True)
        server.start()
        ready.get(timeout=60)
        print(
            f"{'way':<12}{'swaps':>9}{'writes':>9}{'ms each':>9}{'connections':>13}{'a second':>10}"
            f"{'refused':>9}{'unanswered':>12}{'late':>7}{'lost':>7}",
            flush=True,
        )
        measure(bed, "none", swaps=0, seconds=5.0)
        lost = measure(bed, "shared", swaps=options.swaps, seconds=options.seconds).lost
        lost += measure(bed, "chains", swaps=options.swaps, seconds=options.others).lost
        measure(bed, "rewritten", swaps=options.swaps, seconds=options.others)
        stop.set()
        server.join(10)
    print(f"lost by ours: {lost}")
    return 1 if lost else 0


def _make_room(bed: Bed) -> None:
    node = bed.node("n1")
    # Connections are closed at once, and thousands come each second: forget them soon.
    for name in ("close", "time_wait", "fin_wait", "last_ack", "close_wait"):
        node.namespace.set_values({f"netfilter/nf_conntrack_tcp_timeout_{name}": 1})
    node.pods[0].namespace.set_values({"ipv4/ip_local_port_range": "1024 65000"})
    for pod in node.pods:
        pod.namespace.set_values({"core/somaxconn": 4096, "ipv4/tcp_max_syn_backlog": 8192})


if __name__ == "__main__":
    sys.exit(main())
