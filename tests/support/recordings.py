"""What real Kubernetes components decided on recorded clusters, and how to compare with it.

The recordings hold, step by step, the slices that the EndpointSlice controller of Kubernetes 1.37
wrote and where kube-proxy on every node led new connections. Two things are open there: under the
mode Auto, which endpoints change zones, and above one full slice, how endpoints are packed.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parents[1] / "data" / "kubernetes-recorded.json.gz"
CLUSTERS: list[dict[str, Any]] = json.loads(gzip.decompress(RECORDINGS.read_bytes()))
STEPS = sum(len(service["steps"]) for cluster in CLUSTERS for service in cluster["services"])
MAX_PER_SLICE = 100

Raw = dict[str, Any]


def node_manifest(node: Raw) -> Raw:
    """Return a recorded node as an object."""
    labels = {} if node["zone"] is None else {"topology.kubernetes.io/zone": node["zone"]}
    if node["control_plane"]:
        labels["node-role.kubernetes.io/control-plane"] = ""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node["name"], "labels": labels},
        "status": {
            "allocatable": {} if node["cpu"] is None else {"cpu": node["cpu"]},
            "conditions": [{"type": "Ready", "status": str(node["ready"])}],
        },
    }


def pod_manifest(pod: Raw, namespace: str) -> Raw:
    """Return a recorded pod as an object."""
    meta = {"name": pod["name"], "namespace": namespace, "labels": pod["labels"]}
    if pod["terminating"]:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    port = {"name": "http", "containerPort": 8080}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": pod["node"], "containers": [{"name": "c", "ports": [port]}]},
        "status": {
            "phase": "Running",
            "podIP": pod["ips"][0],
            "podIPs": [{"ip": ip} for ip in pod["ips"]],
            "conditions": [{"type": "Ready", "status": str(pod["ready"])}],
        },
    }


def service_manifest(service: Raw, step: Raw) -> Raw:
    """Return a recorded Service at a step, with what the API server had allocated."""
    manifest: Raw = json.loads(json.dumps(step["service"]))
    manifest["spec"]["clusterIP"] = service["clusterIPs"][0]
    manifest["spec"]["clusterIPs"] = service["clusterIPs"]
    for port, number in zip(manifest["spec"]["ports"], service["nodePorts"], strict=True):
        if number is not None:
            port["nodePort"] = number
    return manifest


def slice_manifests(step: Raw, namespace: str) -> list[Raw]:
    """Return the recorded slices of a step as objects; their names were not recorded."""
    manifests = []
    for number, one in enumerate(step["slices"]):
        endpoints = []
        for recorded in one["endpoints"]:
            endpoint = {
                key: recorded[key]
                for key in ("addresses", "conditions", "nodeName", "zone", "hints")
                if recorded[key] is not None
            }
            pod = {"kind": "Pod", "namespace": namespace, "name": recorded["pod"]}
            endpoints.append({**endpoint, "targetRef": pod})
        manifests.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": f"recorded-{number}",
                    "namespace": namespace,
                    "labels": one["labels"],
                },
                "addressType": one["addressType"],
                "ports": one["ports"],
                "endpoints": endpoints,
            }
        )
    return manifests


def is_auto(service: Raw) -> bool:
    """Return whether the topology mode is Auto; then it is open which endpoints change zones."""
    annotations = service["metadata"].get("annotations") or {}
    return any(value in ("Auto", "auto") for value in annotations.values())


Endpoints = dict[tuple[str, str, str], tuple[Any, ...]]


def endpoints_of(slices: list[Raw], *, pod: Any) -> Endpoints:
    """Return all endpoints by family, ports and pod; hints only of ready ones."""
    found: Endpoints = {}
    for one in slices:
        ports = json.dumps(
            sorted([p.get("name") or "", p["protocol"], p["port"]] for p in one["ports"] or [])
        )
        for endpoint in one["endpoints"] or []:
            hints = endpoint.get("hints") if endpoint["conditions"]["ready"] else None
            key = (one["addressType"], ports, pod(endpoint))
            assert key not in found
            found[key] = (
                endpoint["addresses"],
                endpoint["conditions"],
                endpoint.get("nodeName"),
                endpoint.get("zone"),
                hints or None,
            )
    return found


def without_hints(endpoints: Endpoints) -> Endpoints:
    """Return everything but the hints."""
    return {key: facts[:-1] for key, facts in endpoints.items()}


def zone_moves(endpoints: Endpoints) -> Counter[tuple[str, str, str]]:
    """Return how many endpoints each zone gives away and receives, by family."""
    moves: Counter[tuple[str, str, str]] = Counter()
    for (family, _, _), (_, _, _, zone, hints) in endpoints.items():
        served = hints["forZones"][0]["name"] if hints else "nobody"
        if served != zone:
            moves[family, str(zone), "gives"] += 1
            moves[family, served, "receives"] += 1
    return moves


def sizes(slices: list[Raw]) -> list[tuple[str, int]]:
    """Return the sizes of the slices by family."""
    return sorted((one["addressType"], len(one["endpoints"] or [])) for one in slices)


def labels(slices: list[Raw]) -> list[str]:
    """Return the labels of all slices."""
    return sorted(
        json.dumps(one.get("labels") or one["metadata"]["labels"], sort_keys=True) for one in slices
    )


def largest_group(service: Raw, upto: int) -> int:
    """Return the most endpoints that a family and port set of the Service ever had."""
    return max(
        count
        for step in service["steps"][: upto + 1]
        for count in (
            *Counter(
                key[:2] for key in endpoints_of(step["slices"], pod=lambda e: e["pod"])
            ).values(),
            0,
        )
    )


def check_slices(step: Raw, slices: list[Raw], *, largest: int, settled: bool = False) -> None:
    """Compare the slices of one Service; `settled` when they come from this very step's slices."""
    got = endpoints_of(slices, pod=lambda one: one["targetRef"]["name"])
    want = endpoints_of(step["slices"], pod=lambda one: one["pod"])
    assert without_hints(got) == without_hints(want)
    assert labels(slices) == labels(step["slices"])
    small = largest <= MAX_PER_SLICE
    if small:
        assert sizes(slices) == sizes(step["slices"])
    if settled or not is_auto(step["service"]):
        assert got == want
    elif small:
        assert zone_moves(got) == zone_moves(want)
