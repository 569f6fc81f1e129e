"""Speed and size of the API server's storage, each figure beside the limit that it must keep.

Run with `make bench`. Pods look like those of a Deployment, about 1.8 kB of JSON each. Rates of
durable writes depend on the disk under the temporary directory more than on anything else; every
figure is the best of several parts of the work, so that a busy machine matters less.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from keepclose.apiserver.storage.log import Synchronous
from keepclose.apiserver.storage.store import Store

PODS = 150_000
NAMESPACES = 50
MEASURED_PODS = 20_000


def make_pod(number: int) -> dict[str, Any]:
    """Return a pod as a kubelet leaves it, of a Deployment with 30 replicas."""
    group = number // 30
    name = f"checkout-{group:05x}-{number * 2654435761 % 2**32:08x}"
    started = "2026-01-01T00:00:00Z"
    ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": f"team-{number % NAMESPACES:02}",
            "uid": f"{number:08x}-7d1c-4a52-9f60-3b8a{number:08x}",
            "creationTimestamp": started,
            "labels": {"app": f"checkout-{group}", "pod-template-hash": f"{group:010x}"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"checkout-{group:05x}",
                    "uid": f"{group:08x}-52aa-4b31-8c2d-90f1{group:08x}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "nodeName": f"node-{number % 1000:04}",
            "restartPolicy": "Always",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {
                    "name": "server",
                    "image": "registry.example.com/checkout/server:v1.42.0",
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                    "env": [{"name": f"SETTING_{n}", "value": "some value"} for n in range(6)],
                }
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "hostIP": "192.0.2.7",
            "startTime": started,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": started}
                for kind in conditions
            ],
        },
    }


def say(what: str, value: float, unit: str, *, at_least: float = 0, at_most: float = 0) -> bool:
    """Print one figure with its limit; return whether the limit was kept."""
    ratio = value / at_least if at_least else at_most / value
    bound = f"at least {at_least:,.0f}" if at_least else f"at most {at_most:,.0f}"
    print(
        f"{what:<50} {value:12,.1f} {unit:<6} limit {bound:<18} {ratio:6.1f}x "
        f"{'ok' if ratio >= 1 else 'MISSED'}"
    )
    return ratio >= 1


def rate(work: Callable[[Any], object], items: Iterable[Any], *, parts: int = 1) -> float:
    """Return how many items a second are worked on, in the best of several equal parts."""
    chosen = list(items)
    size = len(chosen) // parts
    best = 0.0
    for part in range(parts):
        start = time.perf_counter()
        for item in chosen[part * size : (part + 1) * size]:
            work(item)
        best = max(best, size / (time.perf_counter() - start))
    return best


def bench_writes(directory: Path, synchronous: Synchronous, *, count: int, limit: float) -> bool:
    """Measure creates and updates that are durable one by one."""
    pods = [make_pod(number) for number in range(count)]
    store = Store.open(directory / synchronous, synchronous=synchronous, history=count // 2)
    creates = rate(lambda pod: store.create("pods", pod), pods, parts=4)
    random.Random(1).shuffle(pods)
    updates = rate(lambda pod: store.update("pods", pod), pods, parts=4)
    store.close()
    kept = say(f"durable creates, synchronous {synchronous}", creates, "/s", at_least=limit)
    kept &= say(
        f"durable updates with compaction, {synchronous}", updates, "/s", at_least=limit / 2
    )
    return kept


def bench_size() -> bool:
    """Measure the memory of a pod above its JSON, with all indexes, history left out."""
    pods = [make_pod(number) for number in range(MEASURED_PODS)]
    store = Store.open(None, history=0)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for pod in pods:
        store.create("pods", pod)
        # The version that was written into the caller's object is not the store's.
        del pod["metadata"]["resourceVersion"]
    store.entries("pods")
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    text = sum(len(entry.data) for entry in store.entries("pods"))
    print(f"{'JSON of one pod':<50} {text / MEASURED_PODS:12,.1f} bytes")
    above = (taken - text) / MEASURED_PODS
    return say("memory of one pod above its JSON", above, "bytes", at_most=2500)


def bench_many(directory: Path) -> bool:
    """Measure a store of 150,000 pods: opening, reading, listing, adding."""
    store = Store.open(directory / "many")
    for first in range(0, PODS, 10_000):
        with store.batch():
            for number in range(first, first + 10_000):
                store.create("pods", make_pod(number))
    opened = 60.0
    for _ in range(3):
        store.close()
        gc.collect()
        start = time.perf_counter()
        store = Store.open(directory / "many")
        opened = min(opened, time.perf_counter() - start)
    kept = say(f"open a store of {store.count('pods'):,} pods", opened, "s", at_most=15)
    start = time.perf_counter()
    entries = store.entries("pods")
    first_list = (time.perf_counter() - start) * 1e3
    kept &= say(f"first list of {PODS:,} pods, which sorts", first_list, "ms", at_most=1000)
    lists = rate(lambda _: store.entries("pods"), range(10), parts=10)
    kept &= say(f"list of {PODS:,} pods", 1e3 / lists, "ms", at_most=100)
    keys = [(entry.namespace, entry.name) for entry in random.Random(2).sample(entries, 50_000)]
    reads = rate(lambda key: store.get("pods", *key), keys, parts=5)
    kept &= say("reads of one pod", reads, "/s", at_least=100_000)
    version = store.version
    added = [make_pod(PODS + number) for number in range(5000)]
    creates = rate(lambda pod: store.create("pods", pod), added, parts=5)
    kept &= say(f"durable creates beside {PODS:,} pods", creates, "/s", at_least=5000)
    past = rate(lambda _: store.entries_at("pods", version), range(5), parts=5)
    kept &= say("list as it was 5,000 changes ago", 1e3 / past, "ms", at_most=1000)
    store.close()
    return kept


def main() -> int:
    """Print all figures; return 1 when a limit was missed."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        results = [
            bench_writes(directory, "normal", count=20_000, limit=5000),
            bench_writes(directory, "full", count=1000, limit=200),
            bench_size(),
            bench_many(directory),
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
