"""What the flows agent needs, beside `conntrack -E` reading the same events.

    python bench/flows.py [--seconds 10]

Runs in a network namespace of its own: our API server, the agent as a user starts it, and a program
that writes connections into the kernel's table and deletes them, so that the kernel sends the
events of real connections. Prints each figure beside its limit; exits with 1 if one is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import msgspec

from keepclose.accounting.flow_files import read_json_lines, write_json_lines
from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowTable
from keepclose.cli.flows_top import FlowsView, Readings, Tally
from keepclose.cli.options import FlowGrouping, FlowOrder
from keepclose.cli.render.screen import Screen
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, SERVICES, Kind
from keepclose.system.namespaces import CLONE_NEWNET, unshare
from keepclose.system.netlink import (
    CREATE,
    NETFILTER,
    encode_attribute,
    encode_message,
    encode_nested,
    netfilter_head,
)

RATE: Final = 10_000
OFFERED_RATE: Final = 10_200
"""A little more than the limit, because the time of a run ends with its last deletions."""
SLOW_RATE: Final = 200
OPEN: Final = 100_000
MAX_RSS_MIB: Final = 64
MAX_SLOW_SHARE: Final = 0.02
TOP_SERVICES: Final = 1000
ZONES: Final = 3
MAX_REFRESH_S: Final = 0.2
SERVICE_COUNT: Final = 100
_NEW, _DELETE = 0x0100, 0x0102
_EXCLUSIVE: Final = 0x200
_TICK_S: Final = 0.01


def _tuple(kind: int, source: bytes, destination: bytes, ports: tuple[int, int]) -> bytes:
    addresses = encode_attribute(1, source) + encode_attribute(2, destination)
    proto = (
        encode_attribute(1, b"\x06")
        + encode_attribute(2, struct.pack(">H", ports[0]))
        + encode_attribute(3, struct.pack(">H", ports[1]))
    )
    return encode_nested(kind, encode_nested(1, addresses) + encode_nested(2, proto))


def _messages(number: int, *, seconds: int) -> tuple[bytes, bytes]:
    """Return the messages that create and delete the connection of a number."""
    client = bytes((10, 244, 1, 2 + number // 60_000 % 200))
    sport = 1024 + number % 60_000
    service = number % SERVICE_COUNT
    frontend = bytes((10, 96, 0, 20 + service))
    endpoint = bytes((10, 244, 2, 1 + service))
    original = _tuple(1, client, frontend, (sport, 80))
    reply = _tuple(2, endpoint, client, (8080, sport))
    timeout = encode_attribute(7, struct.pack(">I", seconds))
    state = encode_nested(4, encode_nested(1, encode_attribute(1, b"\x03")))
    status = encode_attribute(3, struct.pack(">I", 0x0E))
    head = netfilter_head(socket.AF_INET)
    new = encode_message(
        _NEW, CREATE | _EXCLUSIVE, head + original + reply + timeout + state + status
    )
    return new, encode_message(_DELETE, 0, head + original)


def generate(rate: int, seconds: float, first: int) -> None:
    """Create connections at a rate, and delete each after a tenth of a second."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
    netlink.bind((0, 0))
    netlink.setsockopt(socket.SOL_SOCKET, 32, 4 << 20)
    step = max(1, int(rate * _TICK_S))
    total = int(rate * seconds)
    batches = []
    for start in range(first, first + total, step):
        pairs = [_messages(number, seconds=600) for number in range(start, start + step)]
        batches.append((b"".join(new for new, _ in pairs), b"".join(end for _, end in pairs)))
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    wait = 10
    for index in range(len(batches) + wait):
        if index < len(batches):
            _send(netlink, batches[index][0])
        if index >= wait:
            _send(netlink, batches[index - wait][1])
        pause = begun + (index + 1) * step / rate - time.monotonic()
        if pause > 0:
            time.sleep(pause)
    print(f"{total} {time.monotonic() - begun:.3f}", flush=True)


def fill(number: int, first: int) -> None:
    """Create connections that stay."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
    netlink.bind((0, 0))
    netlink.setsockopt(socket.SOL_SOCKET, 32, 4 << 20)
    for start in range(first, first + number, 100):
        batch = [_messages(one, seconds=3600)[0] for one in range(start, start + 100)]
        _send(netlink, b"".join(batch))
        time.sleep(0.005)


def _send(netlink: socket.socket, data: bytes) -> None:
    netlink.send(data)
    try:
        while reply := netlink.recv(65536, socket.MSG_DONTWAIT):
            code = struct.unpack_from("=i", reply, 16)[0]
            if code:
                raise OSError(-code, os.strerror(-code))
    except BlockingIOError:
        pass


class Process:
    """A process and what it uses."""

    def __init__(self, *command: str, is_read: bool = True) -> None:
        self.popen = subprocess.Popen(
            command,
            stdout=subprocess.PIPE if is_read else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def line(self) -> str:
        """Return the next line of output."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def cpu_s(self) -> float:
        """Return the seconds of processor time so far."""
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Return the resident memory."""
        for line in Path(f"/proc/{self.popen.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def stop(self) -> None:
        """End the process."""
        self.popen.send_signal(signal.SIGTERM)
        self.popen.wait(30)


def _objects() -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        }
        for name, zone, cidr in (("n1", "a", "10.244.1.0/24"), ("n2", "b", "10.244.2.0/24"))
    ]
    # NB: the clients as endpoints, because only a kubelet may write the addresses of pods.
    clients = [
        {"addresses": [f"10.244.1.{2 + index}"], "nodeName": "n1", "zone": "a"}
        for index in range(200)
    ]
    objects.append(_slice("clients", clients))
    for index in range(SERVICE_COUNT):
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": f"s{index}", "namespace": "default"},
                "spec": {
                    "clusterIP": f"10.96.0.{20 + index}",
                    "ports": [{"port": 80, "targetPort": 8080}],
                },
            }
        )
        address = f"10.244.2.{1 + index}"
        objects.append(
            _slice(f"s{index}", [{"addresses": [address], "nodeName": "n2", "zone": "b"}])
        )
    return objects


def _slice(service: str, endpoints: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service}-x",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"port": 8080, "protocol": "TCP"}],
    }


def _populate(kubeconfig: Path) -> None:
    kinds: dict[str, Kind[Any]] = {
        "Node": NODES,
        "Service": SERVICES,
        "EndpointSlice": ENDPOINT_SLICES,
    }

    async def write() -> None:
        clock = SystemClock()
        async with connect(load_connection_settings(kubeconfig), clock=clock) as client:
            for plain in _objects():
                kind = kinds[plain["kind"]]
                await client.create(kind, msgspec.convert(plain, kind.struct))

    asyncio.run(write())


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 - our own agent
        return str(response.read().decode())


def _counted(url: str) -> int:
    rows = [json.loads(line) for line in _get(f"{url}/flows?walk=true").splitlines()[1:]]
    return sum(row.get("connections", 0) for row in rows)


def _metric(url: str, name: str) -> float:
    for line in _get(f"{url}/metrics").splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    return 0.0


def _stream(rate: int, seconds: float, first: int) -> tuple[int, float]:
    """Run the generator; return how many connections it made, and how long it took."""
    generator = subprocess.Popen(
        [sys.executable, __file__, "--generate", str(rate), str(seconds), str(first)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert generator.stdin is not None
    assert generator.stdout is not None
    generator.stdout.readline()
    generator.stdin.write("\n")
    generator.stdin.flush()
    total, took = generator.stdout.readline().split()
    generator.wait()
    return int(total), float(took)


def _report(what: str, figure: str, limit: str, *, holds: bool) -> bool:
    print(f"{what:<58} {figure:>14}  {limit:<22} {'ok' if holds else 'EXCEEDED'}", flush=True)
    return holds


def measure(seconds: float) -> bool:
    """Run all parts; return whether all limits hold."""
    unshare(CLONE_NEWNET)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)  # noqa: S607
    directory = Path(tempfile.mkdtemp(prefix="keepclose-flows-"))
    program = str(Path(sys.executable).with_name("keepclose"))
    server = Process(program, "apiserver", "--data-dir", str(directory / "data"), "--port", "0")
    agent = None
    try:
        server.line()
        kubeconfig = directory / "data" / "kubeconfig"
        _populate(kubeconfig)
        agent = Process(
            program,
            "flows",
            *("--kubeconfig", str(kubeconfig), "--node-name", "n1", "--enable-accounting"),
            *("--metrics-bind-address", "127.0.0.1:0", "--cluster-cidr", "10.0.0.0/8"),
        )
        url = agent.line().split()[-1]
        while True:
            try:
                _get(f"{url}/readyz")
                break
            except OSError:
                time.sleep(0.1)
        return _measure_parts(agent, url, seconds)
    finally:
        if agent is not None:
            agent.stop()
        server.stop()
        shutil.rmtree(directory)


def _measure_parts(agent: Process, url: str, seconds: float) -> bool:
    holds = True
    before, cpu = _counted(url), agent.cpu_s()
    other = None
    if shutil.which("conntrack"):
        options = ("-E", "-e", "NEW,DESTROY", "-b", str(32 << 20))
        other = Process("conntrack", *options, is_read=False)
    total, took = _stream(OFFERED_RATE, seconds, 0)
    counted = _counted(url) - before
    share = (agent.cpu_s() - cpu) / took
    lost = int(_metric(url, "keepclose_flows_lost_events_total"))
    holds &= _report(
        "new connections a second",
        f"{total / took:,.0f}",
        f">= {RATE:,} made",
        holds=total / took >= RATE,
    )
    holds &= _report("  events lost", str(lost), "0", holds=lost == 0)
    holds &= _report(
        "  counted of those made", f"{counted:,}", f"{total:,}", holds=counted == total
    )
    holds &= _report(
        "  processor time of the agent", f"{share:.0%}", "< 100 % of a core", holds=share < 1
    )
    if other is None:
        print("  conntrack -E: not installed")
    else:
        print(f"  processor time of conntrack -E, which only prints {other.cpu_s() / took:>16.0%}")
        other.stop()
    before, cpu = _counted(url), agent.cpu_s()
    total, took = _stream(SLOW_RATE, 2 * seconds, 0)
    share = (agent.cpu_s() - cpu) / took
    counted = _counted(url) - before
    holds &= _report(
        f"processor time at {SLOW_RATE} connections a second",
        f"{share:.2%}",
        f"< {MAX_SLOW_SHARE:.0%} of a core",
        holds=share < MAX_SLOW_SHARE,
    )
    holds &= _report(
        "  counted of those made", f"{counted:,}", f"{total:,}", holds=counted == total
    )
    fill(OPEN, 0)
    cpu = agent.cpu_s()
    _counted(url)
    walk_s = agent.cpu_s() - cpu
    _get(f"{url}/metrics")
    number = int(_metric(url, "keepclose_flows_open_connections"))
    rss = agent.rss_mib()
    holds &= _report(
        f"memory with {number:,} open connections",
        f"{rss:.1f} MiB",
        f"< {MAX_RSS_MIB} MiB",
        holds=rss < MAX_RSS_MIB and number >= OPEN,
    )
    _report("  processor time of a walk over them", f"{walk_s:.2f} s", "every 30 s", holds=True)
    return holds


def measure_top() -> bool:
    """Refresh `flows top` of a cluster with many Services; return whether the limit holds.

    A refresh takes the pages of one agent in each of three zones, the differences to the pages
    before, and draws the table. The best of several is taken: the time on a quiet machine.
    """
    pages = [list(write_json_lines(_make_table(zone))) for zone in range(ZONES)]
    view = FlowsView(FlowGrouping.SERVICE, FlowOrder.CROSS_ZONE, None)
    screen = Screen(file=io.StringIO(), width=120, height=50)

    def read_all() -> Readings:
        tables = {f"n{n}": read_json_lines(page, name=f"n{n}") for n, page in enumerate(pages)}
        return Readings(tables, {})

    tally = Tally(read_all())
    took = []
    for _ in range(5):
        began = time.perf_counter()
        tally.take(read_all())
        screen.print(view.render_live(screen, tally.reading))
        took.append(time.perf_counter() - began)
    return _report(
        f"flows top refreshes, {TOP_SERVICES:,} Services, {sum(map(len, pages)):,} flows",
        f"{min(took) * 1000:.0f} ms",
        f"< {MAX_REFRESH_S * 1000:.0f} ms",
        holds=min(took) < MAX_REFRESH_S,
    )


def _make_table(zone: int) -> FlowTable:
    table = FlowTable(start=0.0, end=60.0, has_bytes=True)
    for number in range(TOP_SERVICES):
        for other in range(ZONES):
            key = FlowKey(
                namespace=f"team-{number % 20}",
                service=f"service-{number}",
                port="http",
                client_zone=f"zone-{zone}",
                endpoint_zone=f"zone-{other}",
            )
            table.add(key, FlowCounts(100 + number, 0, 0, 1000 * number, 10_000 * number))
    return table


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--generate", nargs=3, metavar=("RATE", "SECONDS", "FIRST"))
    arguments = parser.parse_args()
    if arguments.generate:
        rate, seconds, first = arguments.generate
        generate(int(rate), float(seconds), int(first))
        return
    if os.geteuid() != 0:
        print("skipped: network namespaces need root")
        return
    holds = measure_top()
    sys.exit(0 if measure(arguments.seconds) and holds else 1)


if __name__ == "__main__":
    main()
