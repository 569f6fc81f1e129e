"""Speed of the client's decoding, beside the official Python client and the limits to keep.

Run with `python bench/client.py`. All figures of a comparison are taken in this one run, in turn,
so that a busy machine does not matter much to their ratio. Both sides start from the same bytes of
JSON, as they come from the socket.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import kubernetes
import msgspec

from keepclose.kube.clock import SystemClock
from keepclose.kube.requests import ENDPOINT_SLICES, PODS
from keepclose.kube.watch.list_decoding import decode_page
from keepclose.kube.watch.stream import EventDecoder, LineSplitter, read_events

PODS_IN_LIST = 10_000
EVENTS = 100_000
CHUNK = 1 << 16


def best(work: Callable[[], object], *, runs: int) -> float:
    """Return the shortest time of several runs, in seconds."""
    times = []
    for _ in range(runs):
        gc.collect()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def make_pod(number: int) -> dict[str, Any]:
    """Return a pod as a cluster has them: a container with probes, volumes, a full status."""
    name, when = f"web-7d9c6b5f4-{number:05}", "2026-01-31T12:00:00Z"
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return {
        "metadata": {
            "name": name,
            "generateName": "web-7d9c6b5f4-",
            "namespace": "shop",
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(100_000 + number),
            "creationTimestamp": when,
            "labels": {"app": "web", "pod-template-hash": "7d9c6b5f4", "team": "shop"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "web-7d9c6b5f4",
                    "uid": "00000000-0000-4000-9000-000000000001",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "nodeName": f"n{number % 60:03}",
            "serviceAccountName": "default",
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "token", "secret": {"secretName": "default-token"}}],
            "containers": [
                {
                    "name": "web",
                    "image": "registry.example/shop/web:1.2.3",
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                    "resources": {
                        "limits": {"cpu": "500m", "memory": "256Mi"},
                        "requests": {"cpu": "100m", "memory": "128Mi"},
                    },
                    "env": [{"name": "ZONE", "value": "a"}, {"name": "MODE", "value": "live"}],
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
        },
        "status": {
            "phase": "Running",
            "hostIP": "192.168.0.1",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": when,
            "qosClass": "Burstable",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": when}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": "web",
                    "image": "registry.example/shop/web:1.2.3",
                    "imageID": "registry.example/shop/web@sha256:0123",
                    "ready": True,
                    "restartCount": 0,
                    "started": True,
                    "state": {"running": {"startedAt": when}},
                }
            ],
        },
    }


def bench_list() -> bool:
    """Measure a list of pods from bytes to typed objects, against the official client."""
    listed = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "1"},
        "items": [make_pod(number) for number in range(PODS_IN_LIST)],
    }
    body = msgspec.json.encode(listed)
    official = kubernetes.client.ApiClient()

    def ours() -> None:
        page = decode_page(PODS, body, where="bench")
        assert len(page.items) == PODS_IN_LIST

    def theirs() -> None:
        decoded = official.deserialize(body.decode(), "V1PodList", "application/json")
        assert len(decoded.items) == PODS_IN_LIST

    pairs = [(best(ours, runs=3), best(theirs, runs=1)) for _ in range(3)]
    mine, other = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    ratio = other / mine
    kept = ratio >= 10
    print(
        f"{f'list of {PODS_IN_LIST:,} pods, {len(body) / 1e6:.0f} MB of JSON':<58} "
        f"{mine * 1e3:9.3f} ms   kubernetes {kubernetes.__version__} {other * 1e3:8.1f} ms   "
        f"{ratio:.0f}x (limit 10x) {'ok' if kept else 'MISSED'}"
    )
    return kept


def say_rate(what: str, seconds: float, limit: float) -> bool:
    """Print how many events a second that is; return whether the limit was kept."""
    rate = EVENTS / seconds
    kept = rate >= limit
    print(
        f"{what:<58} {rate:9,.0f} /s   limit {limit:9,.0f} /s   "
        f"{rate / limit:6.1f}x {'ok' if kept else 'MISSED'}"
    )
    return kept


def bench_events() -> bool:
    """Measure small watch events from chunks of bytes to typed events."""
    small = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-x7k2p", "namespace": "shop", "resourceVersion": "1234567"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
    }
    line = msgspec.json.encode({"type": "MODIFIED", "object": small}) + b"\n"
    stream = line * EVENTS
    chunks = [stream[start : start + CHUNK] for start in range(0, len(stream), CHUNK)]

    def frame_and_decode() -> None:
        lines, decode = LineSplitter(), EventDecoder(ENDPOINT_SLICES).decode
        for chunk in chunks:
            for one in lines.feed(chunk):
                decode(one)

    async def iterate() -> None:
        async def arriving() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        decoder = EventDecoder(ENDPOINT_SLICES)
        async for _ in read_events(arriving(), decoder, clock=SystemClock(), idle_timeout=70.0):
            pass

    title = f"watch events of {len(line)} bytes"
    kept = say_rate(f"{title}, framing and decoding", best(frame_and_decode, runs=5), 150_000)
    seconds = best(lambda: asyncio.run(iterate()), runs=5)
    return say_rate(f"{title}, as the client iterates them", seconds, 150_000) and kept


def main() -> int:
    """Print all figures; return 1 when a limit was missed."""
    return 0 if all([bench_list(), bench_events()]) else 1


if __name__ == "__main__":
    sys.exit(main())
