"""Our controller in a large cluster: 5,000 nodes, 150,000 pods, 10,000 Services, no slice yet.

Run with `python bench/controllerscale.py`. The objects are put into the store of our own API server
before it starts. The time counts from the start of the controller's process until the last slice is
written; memory is the most that the process held, and what it holds once it is idle. A few changes
afterwards show that one still costs what it does in a small cluster.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from keepclose.apiserver.storage.store import Store
from keepclose.kube.client import Client
from keepclose.kube.requests import ENDPOINT_SLICES
from sidebyside import Scene, cpu_seconds, measure, open_client, our_controller, resident_bytes
from storage import make_pod

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.server_processes import embedded_server

NODES = 5_000
SERVICES = 10_000
PODS_EACH = 15
NAMESPACES = 50
SYNC_SECONDS = 180.0
MAX_BYTES = 3 << 30
PATIENCE_SECONDS = 900.0
CHANGED = Scene("team-00", SERVICES // NAMESPACES, PODS_EACH, 200, 100, 20.0)


def fill(directory: Path) -> None:
    """Write all objects to the store."""
    store = Store.open(directory)
    with store.batch():
        for number in range(NAMESPACES):
            name = f"team-{number:02}"
            store.create("namespaces", _named("v1", "Namespace", name, number))
        for number in range(NODES):
            node = _named("v1", "Node", f"node-{number:04}", number)
            node["metadata"]["labels"] = {
                "topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}"
            }
            node["status"] = {
                "allocatable": {"cpu": "8", "memory": "32Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            store.create("nodes", node)
        for number in range(SERVICES):
            service = _named("v1", "Service", f"s{number // NAMESPACES}", number)
            service["metadata"]["namespace"] = f"team-{number % NAMESPACES:02}"
            service["spec"] = {
                "type": "ClusterIP",
                "clusterIP": f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "selector": {"app": f"s{number // NAMESPACES}"},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
            }
            store.create("services", service)
        for number in range(SERVICES * PODS_EACH):
            store.create("pods", _pod(number))
    store.close()


def _named(version: str, kind: str, name: str, number: int) -> dict[str, Any]:
    metadata = {
        "name": name,
        "uid": f"{number:08x}-0000-4000-8000-{len(kind):012}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _pod(number: int) -> dict[str, Any]:
    service, place = number % SERVICES, number // SERVICES
    pod = make_pod(number)
    pod["metadata"]["name"] = f"s{service // NAMESPACES}-p{place}"
    pod["metadata"]["namespace"] = f"team-{service % NAMESPACES:02}"
    pod["metadata"]["labels"] = {"app": f"s{service // NAMESPACES}", "pod-template-hash": "5d8f"}
    # NB: an owner that exists, or the server's garbage collector would take the pod.
    owner = _named("v1", "Service", f"s{service // NAMESPACES}", service)
    pod["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]
    pod["spec"]["nodeName"] = f"node-{number % NODES:04}"
    return pod


async def wait_until_written(client: Client, process: int) -> int:
    """Return the most memory that the process held until there is a slice for each Service."""
    most = 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    found = 0
    while found < SERVICES:
        if time.monotonic() > deadline:
            sys.exit(f"only {found} slices after {PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(0.5)
        page = await client.list_page(ENDPOINT_SLICES, limit=1)
        found = len(page.items) + (page.remaining or 0)
        most = max(most, peak_bytes(process))
    return most


def peak_bytes(process: int) -> int:
    """Return the most memory that a process ever held."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert match is not None
    return int(match.group(1)) * 1024


async def run(kubeconfig: Path, log: Path) -> bool:
    """Start the controller, wait, change some pods, and print the figures."""
    async with open_client(kubeconfig) as client:
        await client.list_page(ENDPOINT_SLICES, limit=1)
        started = time.perf_counter()
        with our_controller(kubeconfig, log) as process:
            most = await wait_until_written(client, process)
            took = time.perf_counter() - started
            print(f"CPU until then {cpu_seconds(process):.1f} s", flush=True)
            page = await client.list_all(ENDPOINT_SLICES)
            endpoints = sum(len(one.endpoints) for one in page.items)
            await asyncio.sleep(5)
            one = await measure(client, CHANGED, process, {})
            print(
                f"a change afterwards: p50 {one.p50:.1f} ms, p99 {one.p99:.1f} ms, "
                f"CPU {one.cpu:.2f} ms; {resident_bytes(process) >> 20} MiB held"
            )
    print(f"{len(page.items):,} slices with {endpoints:,} endpoints")
    whole = endpoints == SERVICES * PODS_EACH and len(page.items) == SERVICES
    return (
        say("first sync, seconds", took, SYNC_SECONDS)
        & say("most memory, MiB", most / 2**20, MAX_BYTES / 2**20)
        & whole
    )


def say(what: str, value: float, limit: float) -> bool:
    """Print a figure beside the most it may be, and return whether it keeps that."""
    kept = value <= limit
    print(f"{what:<30}{value:>10,.1f}  at most {limit:>8,.0f}  {'ok' if kept else 'MISSED'}")
    return kept


def main() -> int:
    """Print the figures; fail when one misses its goal."""
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        with embedded_server(directory / "data"):
            pass
        started = time.perf_counter()
        fill(directory / "data")
        print(f"store filled in {time.perf_counter() - started:.0f} s", flush=True)
        with embedded_server(directory / "data") as server:
            kept = uvloop.run(run(server.kubeconfig, directory / "controller.log"))
            print(
                f"the API server took {cpu_seconds(server.process.pid):.1f} s of CPU, "
                f"{resident_bytes(server.process.pid) >> 20} MiB"
            )
        if not kept:
            print((directory / "controller.log").read_text()[-3000:])
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
