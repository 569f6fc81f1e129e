"""Our controller beside kube-controller-manager, on the same objects of one real kube-apiserver.

Run with `python bench/sidebyside.py`; takes about five minutes. A pod's Ready condition is turned
over by a write of its status; the time counts from that request until a watcher sees the slice that
says so. First the changes come one after the other, each waiting for the last to be seen, then at a
steady pace. CPU and memory are those of the controller's process as a user starts it. The other
controller's own limit of requests a second is lifted, or it would be waiting most of the time.
Without the real programs (`make real`) ours runs alone, on our own API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import uvloop

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.errors import Conflict
from keepclose.kube.requests import ENDPOINT_SLICES, NAMESPACES, NODES, PODS, SERVICES, Kind
from keepclose.model.meta import ObjectMeta

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.real.controllers import controller_manager
from support.real.programs import program, real_control_plane
from support.server_processes import embedded_server

WRITERS = 12
NODE_COUNT = 60
SYNC_SECONDS = 180.0
CHANGE_SECONDS = 30.0
GROWTH_TURNS = 7
GROWTH_CHANGES = 100
OURS, THEIRS = "keepclose", "kube-controller-manager"
FLAGS = ("--controllers=endpointslice-controller", "--kube-api-qps=1000", "--kube-api-burst=2000")


class Scene(NamedTuple):
    """Services of one size, the number of changes of either kind, and the pace of the second."""

    name: str
    services: int
    pods: int
    serial: int
    paced: int
    per_second: float

    @property
    def slices(self) -> int:
        """How many slices the Services need."""
        return self.services * -(-self.pods // 100)

    @property
    def label(self) -> str:
        """The scene in words."""
        return f"{self.services:,} x {self.pods:,} pods"


SCENES = (
    Scene("small", 1, 50, 400, 200, 25.0),
    Scene("middle", 1, 500, 400, 200, 25.0),
    Scene("large", 1, 5_000, 200, 100, 5.0),
    Scene("many", 1_000, 10, 400, 300, 50.0),
)


_EXTREMES = (SCENES[0], SCENES[2])


class Figures(NamedTuple):
    """What one controller did with one scene: milliseconds, and CPU for each change."""

    p50: float
    p99: float
    paced_p50: float
    paced_p99: float
    cpu: float
    paced_cpu: float
    resident: float


class _Conditions(msgspec.Struct):
    ready: bool = True


class _Reference(msgspec.Struct):
    name: str = ""


class _Endpoint(msgspec.Struct):
    target_ref: _Reference | None = msgspec.field(default=None, name="targetRef")
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Seen(msgspec.Struct):
    metadata: ObjectMeta
    endpoints: list[_Endpoint] | None = None


_SLICES = Kind(
    ENDPOINT_SLICES.group, "v1", ENDPOINT_SLICES.plural, ENDPOINT_SLICES.kind, True, _Seen
)


class Watcher:
    """Waits for slices that show the latest state of pods."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self._wanted: dict[str, tuple[bool, asyncio.Future[float]]] = {}

    def expect(self, pod: str, *, ready: bool) -> asyncio.Future[float]:
        """Return when the pod will have been seen like that."""
        seen: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._wanted[pod] = (ready, seen)
        return seen

    async def run(self, client: Client, namespace: str, version: str) -> None:
        """Follow the slices of a namespace."""
        async with client.watch(_SLICES, namespace=namespace, resource_version=version) as events:
            self.opened.set()
            async for event in events:
                if event.object is not None and self._wanted:
                    self._look(event.object, time.perf_counter())

    def _look(self, one: _Seen, now: float) -> None:
        for endpoint in one.endpoints or ():
            name = "" if endpoint.target_ref is None else endpoint.target_ref.name
            wanted = self._wanted.get(name)
            if wanted is not None and wanted[0] == endpoint.conditions.ready:
                del self._wanted[name]
                wanted[1].set_result(now)


def open_client(kubeconfig: Path) -> Client:
    """Return a client of the benchmark's own."""
    return connect(load_connection_settings(kubeconfig), clock=SystemClock(), user_agent="bench/1")


async def fill(client: Client, scenes: Sequence[Scene]) -> None:
    """Create the nodes, Services and ready pods of all scenes."""
    for number in range(NODE_COUNT):
        labels = {"topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}"}
        await client.create(NODES, {"metadata": {"name": f"n{number}", "labels": labels}})
    for scene in scenes:
        with contextlib.suppress(Conflict):
            await client.create(NAMESPACES, {"metadata": {"name": scene.name}})
    await _spread(client, [(one, s, -1) for one in scenes for s in range(one.services)])
    pods = [(one, s, p) for one in scenes for s in range(one.services) for p in range(one.pods)]
    await _spread(client, pods)


async def _spread(client: Client, objects: list[tuple[Scene, int, int]]) -> None:
    left = iter(objects)

    async def work() -> None:
        for scene, service, pod in left:
            if pod < 0:
                await client.create(SERVICES, _service(service), namespace=scene.name)
            else:
                await client.create(PODS, _pod(service, pod), namespace=scene.name)
                await turn_over(client, scene.name, f"s{service}-p{pod}", ready=True)

    await asyncio.gather(*(work() for _ in range(WRITERS)))


def _service(number: int) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return {
        "metadata": {"name": f"s{number}"},
        "spec": {"selector": {"app": f"s{number}"}, "ports": ports},
    }


def _pod(service: int, number: int) -> dict[str, Any]:
    settings = [{"name": f"SETTING_{one}", "value": "x" * 30} for one in range(6)]
    container = {
        "name": "main",
        "image": "web:1",
        "ports": [{"containerPort": 8080, "name": "http"}],
        "env": settings,
    }
    return {
        "metadata": {"name": f"s{service}-p{number}", "labels": {"app": f"s{service}"}},
        "spec": {"nodeName": f"n{number % NODE_COUNT}", "containers": [container]},
    }


async def turn_over(client: Client, namespace: str, name: str, *, ready: bool) -> None:
    """Write a pod's status as a kubelet would."""
    service, number = (int(part) for part in re.findall(r"\d+", name))
    place = (service * 16 + number) & 0xFFFFFF
    address = f"10.{place >> 16}.{place >> 8 & 255}.{place & 255}"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "lastTransitionTime": now,
    }
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [condition],
    }
    await client.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")


async def wait_for_slices(client: Client, scenes: Sequence[Scene]) -> None:
    """Return when the slices of all scenes hold all pods."""
    for scene in scenes:
        want = scene.services * scene.pods
        deadline = time.monotonic() + SYNC_SECONDS
        while True:
            page = await client.list_all(_SLICES, namespace=scene.name, resource_version="0")
            found = sum(len(one.endpoints or ()) for one in page.items)
            if found == want:
                break
            if time.monotonic() > deadline:
                sys.exit(f"{scene.name}: {found} of {want} endpoints are in slices")
            await asyncio.sleep(0.2)


async def delete_slices(client: Client, scenes: Sequence[Scene]) -> None:
    """Leave the next controller nothing of what the last one wrote."""
    for scene in scenes:
        await client.raw("DELETE", ENDPOINT_SLICES.path(scene.name))


async def measure(client: Client, scene: Scene, process: int, ready: dict[str, bool]) -> Figures:
    """Turn pods over and see how the controller with this process id takes it.

    `ready` is kept from one measurement of the same pods to the next.
    """
    page = await client.list_all(_SLICES, namespace=scene.name)
    watcher = Watcher()
    watching = asyncio.create_task(watcher.run(client, scene.name, page.resource_version))
    await watcher.opened.wait()

    async def change(number: int) -> float:
        name = _chosen(scene, number)
        ready[name] = not ready.get(name, True)
        seen = watcher.expect(name, ready=ready[name])
        started = time.perf_counter()
        await turn_over(client, scene.name, name, ready=ready[name])
        async with asyncio.timeout(CHANGE_SECONDS):
            return (await seen - started) * 1e3

    for number in range(20):
        await change(number)
    await asyncio.sleep(0.5)
    before = cpu_seconds(process)
    serial = [await change(number) for number in range(scene.serial)]
    between = cpu_seconds(process)
    await asyncio.sleep(0.5)
    paced_before = cpu_seconds(process)
    start = time.perf_counter()
    tasks: list[asyncio.Task[float]] = []
    for number in range(scene.paced):
        await asyncio.sleep(max(0.0, start + number / scene.per_second - time.perf_counter()))
        tasks.append(asyncio.create_task(change(scene.serial + number)))
    paced = list(await asyncio.gather(*tasks))
    paced_after = cpu_seconds(process)
    watching.cancel()
    await asyncio.wait((watching,))
    return Figures(
        p50=statistics.median(serial),
        p99=_late(serial),
        paced_p50=statistics.median(paced),
        paced_p99=_late(paced),
        cpu=(between - before) / scene.serial * 1e3,
        paced_cpu=(paced_after - paced_before) / scene.paced * 1e3,
        resident=resident_bytes(process) / 2**20,
    )


async def measure_growth(
    client: Client, scenes: Sequence[Scene], process: int, ready: dict[str, dict[str, bool]]
) -> float:
    """Return how much more CPU a change takes in the last scene than in the first.

    Both take turns, so that others on the machine disturb them alike; medians are compared.
    """
    costs: dict[str, list[float]] = {scene.name: [] for scene in scenes}
    for _ in range(GROWTH_TURNS):
        for scene in scenes:
            part = scene._replace(serial=GROWTH_CHANGES, paced=1)
            costs[scene.name].append((await measure(client, part, process, ready[scene.name])).cpu)
    return statistics.median(costs[scenes[-1].name]) / statistics.median(costs[scenes[0].name])


def _chosen(scene: Scene, number: int) -> str:
    """Return a pod such that neighbours in time are in different slices, where there are any."""
    place = number * 7919 % (scene.services * scene.pods)
    return f"s{place % scene.services}-p{place // scene.services}"


def _late(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process, all threads of it.

    NB: /proc/PID/stat counts in hundredths of a second, which is a tenth of what 100 changes take.
    The clock of another process has its number as clock_getcpuclockid(3) makes it.
    """
    return time.clock_gettime((~process << 3) | 2)


def resident_bytes(process: int) -> int:
    """Return the memory that a process holds."""
    text = Path(f"/proc/{process}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert match is not None
    return int(match.group(1)) * 1024


@contextlib.contextmanager
def our_controller(kubeconfig: Path, log: Path) -> Iterator[int]:
    """Run our controller as a user starts it, and give its process id."""
    command = [sys.executable, "-m", "keepclose", "controller", f"--kubeconfig={kubeconfig}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--no-leader-elect", "--metrics-address=127.0.0.1:0"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextlib.contextmanager
def their_controller(kubeconfig: Path, log: Path) -> Iterator[int]:
    """Run the real controller alone, and give its process id."""
    with controller_manager(kubeconfig, log, *FLAGS) as manager:
        yield manager.process.pid


async def compare(
    kubeconfig: Path, directory: Path, controllers: Sequence[str], scenes: Sequence[Scene] = SCENES
) -> tuple[dict[str, dict[str, Figures]], float]:
    """Return the figures of each controller by its name and the scene, and how our CPU grows."""
    found: dict[str, dict[str, Figures]] = {}
    growth = 0.0
    ready: dict[str, dict[str, bool]] = {scene.name: {} for scene in scenes}
    async with open_client(kubeconfig) as client:
        started = time.perf_counter()
        await fill(client, scenes)
        print(f"objects created in {time.perf_counter() - started:.0f} s", flush=True)
        for name in controllers:
            await delete_slices(client, scenes)
            run = our_controller if name == OURS else their_controller
            started = time.perf_counter()
            with run(kubeconfig, directory / f"{name}.log") as process:
                await wait_for_slices(client, scenes)
                print(
                    f"{name}: complete after {time.perf_counter() - started:.1f} s, CPU "
                    f"{cpu_seconds(process):.1f} s, {resident_bytes(process) >> 20} MiB",
                    flush=True,
                )
                await asyncio.sleep(3)
                found[name] = {}
                for scene in scenes:
                    one = await measure(client, scene, process, ready[scene.name])
                    found[name][scene.name] = one
                    print_figures(name, scene, one)
                if name == OURS:
                    growth = await measure_growth(client, _EXTREMES, process, ready)
    return found, growth


def print_heading() -> None:
    """Print the names of the columns."""
    print(
        f"{'controller':<25}{'scene':<20}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms':>8}"
        f"{'paced: p50':>12}{'p99':>8}{'CPU ms':>8}{'CPU s/10,000':>14}{'MiB':>7}"
    )


def print_figures(name: str, scene: Scene, one: Figures) -> None:
    """Print a line; the CPU of 10,000 changes is that of the sample, scaled."""
    print(
        f"{name:<25}{scene.label:<20}{one.p50:>8.1f}{one.p99:>8.1f}{one.cpu:>8.2f}"
        f"{one.paced_p50:>12.1f}{one.paced_p99:>8.1f}{one.paced_cpu:>8.2f}"
        f"{one.cpu * 10:>14.1f}{one.resident:>7.0f}",
        flush=True,
    )


def say(what: str, value: float, limit: float) -> bool:
    """Print a ratio beside the most it may be, and return whether it keeps that."""
    kept = value <= limit
    print(f"{what:<52}{value:>8.3f}  at most {limit:.3f}  {'ok' if kept else 'MISSED'}")
    return kept


def judge(found: dict[str, dict[str, Figures]], growth: float) -> bool:
    """Print how ours compares; return whether all goals are kept."""
    ours = found[OURS]
    kept = [say("our CPU for a change at 5,000 pods / at 50", growth, 1.5)]
    theirs = found.get(THEIRS)
    if theirs is not None:
        large, their_large = ours["large"], theirs["large"]
        middle, their_middle = ours["middle"], theirs["middle"]
        kept += [
            say("5,000 pods: CPU, ours / theirs", large.cpu / their_large.cpu, 1 / 20),
            say("5,000 pods: p50, ours / theirs", large.p50 / their_large.p50, 1 / 4),
            say("5,000 pods: p99, ours / theirs", large.p99 / their_large.p99, 1 / 4),
            say("500 pods: CPU, ours / theirs", middle.cpu / their_middle.cpu, 1 / 3),
            say("500 pods: p50, ours / theirs", middle.p50 / their_middle.p50, 1.0),
        ]
    return all(kept)


def main() -> int:
    """Print the figures of both; fail when ours misses a goal."""
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        try:
            program("kube-controller-manager")
        except pytest.skip.Exception as missing:
            print(f"ours alone, on our own API server: {missing}")
            print_heading()
            with embedded_server(directory / "data") as server:
                found, growth = uvloop.run(compare(server.kubeconfig, directory, (OURS,)))
        else:
            print(f"{THEIRS} runs with {' '.join(FLAGS)}")
            print_heading()
            with real_control_plane(directory) as plane:
                found, growth = uvloop.run(compare(plane.kubeconfig, directory, (THEIRS, OURS)))
    return 0 if judge(found, growth) else 1


if __name__ == "__main__":
    sys.exit(main())
