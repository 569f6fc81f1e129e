"""Speed of the embedded API server as a process, over TLS, each figure beside its limit.

Run with `make bench`. One client process drives it; the hundred watchers are a process of their
own, because they stand for a hundred machines. Rates are the best of three rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast

import msgspec
import uvloop

from keepclose.apiserver.storage.store import Store

CONNECTIONS = 16
CREATES = 6_000
GETS = 40_000
ROUNDS = 3
WATCHERS = 100
WRITERS = 4
EVENTS_PER_SECOND = 500
WATCH_SECONDS = 10
STORED_PODS = 150_000
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "", "namespace": "default", "labels": {"app": "web", "tier": "front"}},
    "spec": {
        "nodeName": "node-7",
        "containers": [
            {
                "name": "main",
                "image": "web:1",
                "ports": [{"containerPort": 8080}],
                "env": [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(8)],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            }
        ],
    },
}


class Client(asyncio.Protocol):
    """One keep-alive connection that sends its next request when the last one is answered."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.requests = requests
        self.done = asyncio.Event()
        self.answers = 0
        self.failures = 0
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        """Count an answer when it is complete."""
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self.buffer.find(b"Content-Length: ")
        length = int(self.buffer[at + 16 : self.buffer.find(b"\r\n", at)])
        if len(self.buffer) < end + 4 + length:
            return
        if self.buffer[9:10] != b"2":
            self.failures += 1
        self.buffer = self.buffer[end + 4 + length :]
        self.answers += 1
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, also where the server hung up."""
        del exc
        self.done.set()

    def _next(self) -> None:
        request = next(self.requests, None)
        if request is None:
            self.transport.close()
        else:
            self.transport.write(request)


class Served:
    """The server as a process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        command = [sys.executable, "-m", "keepclose", "apiserver", "--data-dir", str(directory)]
        self.started = time.perf_counter()
        self.process = subprocess.Popen([*command, "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready_after = time.perf_counter() - self.started
        url = next(word for word in line.split() if word.startswith("https"))
        self.port = int(url.rpartition(":")[2])
        self.token = (directory / "tokens" / "admin").read_text().strip()

    def context(self) -> ssl.SSLContext:
        """Trust the server's CA."""
        return ssl.create_default_context(cafile=str(self.directory / "pki" / "ca.crt"))

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the bytes of a request."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n"
            f"Accept: application/json\r\nUser-Agent: bench/1\r\n"
        )
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body

    def resident(self) -> int:
        """Return the bytes of memory that the process holds."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert match is not None
        return int(match.group(1)) * 1024

    def stop(self) -> None:
        """End the process."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


@contextlib.contextmanager
def served(directory: Path) -> Iterator[Served]:
    """Serve for the time of the block."""
    server = Served(directory)
    try:
        yield server
    finally:
        server.stop()


async def drive(server: Served, requests: list[bytes]) -> float:
    """Send all requests over several connections; return how many were answered a second."""
    loop = asyncio.get_running_loop()
    source = iter(requests)
    clients: list[Client] = []
    context = server.context()
    start = time.perf_counter()
    for _ in range(CONNECTIONS):
        _, client = await loop.create_connection(
            lambda: Client(source), "127.0.0.1", server.port, ssl=context
        )
        clients.append(client)
    for client in clients:
        await client.done.wait()
    took = time.perf_counter() - start
    failed = sum(client.failures for client in clients)
    answered = sum(client.answers for client in clients)
    if failed or answered != len(requests):
        sys.exit(f"{failed} of {answered} requests failed")
    return answered / took


def pod_bytes(name: str, annotation: str = "") -> bytes:
    """Return the JSON of a pod."""
    metadata = {**POD["metadata"], "name": name}
    if annotation:
        metadata["annotations"] = {"sent": annotation}
    return msgspec.json.encode({**POD, "metadata": metadata})


def watch(port: int, token: str, cafile: str, ready: Event, results: Any) -> None:
    """Hold a hundred watches in this process and report the delays of all events."""
    uvloop.run(_watch(port, token, cafile, ready, results))


async def _watch(port: int, token: str, cafile: str, ready: Event, results: Any) -> None:
    context = ssl.create_default_context(cafile=cafile)
    delays: list[float] = []
    want = EVENTS_PER_SECOND * WATCH_SECONDS
    stamp = re.compile(rb'"sent":"(\d+)"')
    opened = 0

    async def one() -> None:
        nonlocal opened
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(
            b"GET /api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0 HTTP/1.1\r\n"
            b"Host: localhost\r\nAuthorization: Bearer " + token.encode() + b"\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        opened += 1
        if opened == WATCHERS:
            ready.set()
        seen, rest = 0, b""
        while seen < want:
            data = rest + await reader.read(1 << 16)
            now = time.monotonic_ns()
            # NB: a stamp that the read cut in two is counted with the next one.
            cut = data.rfind(b"\n") + 1
            found = stamp.findall(data, 0, cut)
            rest = data[cut:]
            seen += len(found)
            delays.extend((now - int(value)) / 1e6 for value in found)
        writer.close()

    await asyncio.gather(*(one() for _ in range(WATCHERS)))
    delays.sort()
    results.put((len(delays), delays[len(delays) // 2], delays[int(len(delays) * 0.99)]))


async def write_steadily(server: Served) -> float:
    """Create config maps at the set rate over a few connections; return the rate reached."""
    count = EVENTS_PER_SECOND * WATCH_SECONDS
    numbers = iter(range(count))
    start = time.perf_counter()

    async def one() -> None:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=server.context()
        )
        for number in numbers:
            wait = start + number / EVENTS_PER_SECOND - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            body = msgspec.json.encode(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": f"c{number}"},
                    "data": {"sent": str(time.monotonic_ns()), "text": "x" * 300},
                }
            )
            writer.write(server.request("POST", "/api/v1/namespaces/default/configmaps", body))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head[head.find(b"Content-Length: ") + 16 :].split(b"\r\n")[0])
            await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 201"):
                sys.exit(head.decode())
        writer.close()

    await asyncio.gather(*(one() for _ in range(WRITERS)))
    return count / (time.perf_counter() - start)


def say(what: str, value: float, unit: str, limit: float, *, at_most: bool = False) -> bool:
    """Print a figure beside its limit, and return whether it keeps it."""
    kept = value <= limit if at_most else value >= limit
    sign = "at most" if at_most else "at least"
    print(
        f"{what:<48}{value:>12,.1f} {unit:<8} {sign} {limit:>9,.0f}  {'ok' if kept else 'MISSED'}"
    )
    return kept


def bench_requests(directory: Path) -> bool:
    """Measure creates and gets."""
    with served(directory) as server:
        path = "/api/v1/namespaces/default/pods"
        creates = 0.0
        for attempt in range(ROUNDS):
            requests = [
                server.request("POST", path, pod_bytes(f"p{attempt}-{number}"))
                for number in range(CREATES)
            ]
            creates = max(creates, uvloop.run(drive(server, requests)))
        gets = 0.0
        for _ in range(ROUNDS):
            requests = [
                server.request("GET", f"{path}/p0-{number % CREATES}") for number in range(GETS)
            ]
            gets = max(gets, uvloop.run(drive(server, requests)))
    return all(
        (say("durable creates", creates, "/s", 1_500), say("gets of one pod", gets, "/s", 10_000))
    )


def bench_watches(directory: Path) -> bool:
    """Measure how late a hundred watchers hear of changes."""
    spawn = multiprocessing.get_context("spawn")
    with served(directory) as server:
        ready, results = spawn.Event(), spawn.Queue()
        cafile = str(server.directory / "pki" / "ca.crt")
        watcher = spawn.Process(
            target=watch, args=(server.port, server.token, cafile, ready, results)
        )
        watcher.start()
        ready.wait(30)
        rate = uvloop.run(write_steadily(server))
        count, median, late = results.get(timeout=60)
        watcher.join()
    print(f"{WATCHERS} watchers heard of {count:,} events, median {median:.1f} ms")
    return all(
        (
            say("events a second", rate, "/s", EVENTS_PER_SECOND * 0.98),
            say("99th percentile of their delay", late, "ms", 100, at_most=True),
        )
    )


def bench_start(directory: Path) -> bool:
    """Measure the start with many pods, and what each costs in memory."""
    with served(directory) as server:
        empty = server.resident()
    store = Store.open(directory)
    size = 0
    with store.batch():
        for number in range(STORED_PODS):
            pod = msgspec.json.decode(pod_bytes(f"p{number}"))
            pod["metadata"]["uid"] = f"00000000-0000-0000-0000-{number:012}"
            size += len(store.create("pods", pod).data)
    store.close()
    with served(directory) as server:
        ready, full = server.ready_after, server.resident()
    each = (full - empty - size) / STORED_PODS
    print(f"{STORED_PODS:,} pods of {size / STORED_PODS:,.0f} bytes of JSON")
    return all(
        (
            say("start", ready, "s", 15, at_most=True),
            say("memory of a pod above its JSON", each, "bytes", 2_500, at_most=True),
        )
    )


def main() -> None:
    """Print all figures; exit with 1 when one misses its limit."""
    kept = True
    for part in (bench_requests, bench_watches, bench_start):
        with tempfile.TemporaryDirectory() as directory:
            kept = part(Path(directory)) and kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
