"""`keepclose resolve` against what real Kubernetes components decided on recorded clusters.

The recordings hold, step by step, the slices that the EndpointSlice controller of Kubernetes 1.37
wrote and where kube-proxy on every node led new connections.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app

RECORDINGS = Path(__file__).parent.parent / "data" / "kubernetes-recorded.json.gz"
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


def run_resolve(path: Path, manifests: list[Raw]) -> dict[str, Raw]:
    """Return the answer of the command for these objects, by namespace."""
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    result = CliRunner().invoke(app, ["resolve", "-f", str(path), "-o", "json"])
    assert result.exit_code == 0, result.output
    return {one["namespace"]: one for one in json.loads(result.stdout)["services"]}


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


def outcomes(nodes: Raw, *, counts: bool) -> Raw:
    """Return what becomes of connections by node, port and direction: endpoints or their number."""
    return {
        node: {
            port: {
                way: len(answer[way]["endpoints"])
                if counts and "endpoints" in answer[way]
                else answer[way]
                for way in ("internal", "nodePort")
                if way in answer
            }
            for port, answer in ports.items()
        }
        for node, ports in nodes.items()
    }


def check_step(step: Raw, answer: Raw, *, largest: int, settled: bool) -> None:
    """Compare one Service at one step; `settled` when it started from this very step's slices."""
    got = endpoints_of(answer["slices"], pod=lambda one: one["targetRef"]["name"])
    want = endpoints_of(step["slices"], pod=lambda one: one["pod"])
    assert without_hints(got) == without_hints(want)
    assert labels(answer["slices"]) == labels(step["slices"])
    small = largest <= MAX_PER_SLICE
    auto = is_auto(step["service"])
    if small:
        assert sizes(answer["slices"]) == sizes(step["slices"])
    if settled or not auto:
        assert got == want
    elif small:
        assert zone_moves(got) == zone_moves(want)
    if settled or not auto or small:
        nodes = {node: answer["nodes"][node] for node in step["proxy"]}
        counts = auto and not settled
        assert outcomes(nodes, counts=counts) == outcomes(step["proxy"], counts=counts)


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


@pytest.mark.parametrize("start", ["recorded", "own", "settled"])
@pytest.mark.parametrize("number", range(len(CLUSTERS)))
def test_every_recorded_step_is_reproduced(number: int, start: str, tmp_path: Path) -> None:
    """From the recorded state, from our own, and from the end state: the same decisions.

    Each step starts from the slices of the step before, as recorded or as we answered there;
    "settled" starts from the slices of the step itself, which must then stay as they are.
    """
    cluster = CLUSTERS[number]
    nodes = [node_manifest(node) for node in cluster["nodes"]]
    state: dict[str, list[Raw]] = {}
    checked = 0
    for index in range(max(len(service["steps"]) for service in cluster["services"])):
        current = [one for one in cluster["services"] if index < len(one["steps"])]
        manifests = list(nodes)
        for service in current:
            step = service["steps"][index]
            namespace = step["service"]["metadata"]["namespace"]
            manifests.append(service_manifest(service, step))
            manifests += [pod_manifest(pod, namespace) for pod in step["pods"]]
            manifests += (
                slice_manifests(step, namespace) if start == "settled" else state.get(namespace, [])
            )
        answers = run_resolve(tmp_path / "cluster.json", manifests)
        for service in current:
            step = service["steps"][index]
            namespace = step["service"]["metadata"]["namespace"]
            answer = answers[namespace]
            check_step(
                step, answer, largest=largest_group(service, index), settled=start == "settled"
            )
            state[namespace] = (
                answer["slices"] if start == "own" else slice_manifests(step, namespace)
            )
            checked += 1
    assert checked == sum(len(service["steps"]) for service in cluster["services"])


def test_the_recordings_are_complete() -> None:
    """All ten clusters with their 432 steps are there to be checked."""
    assert (len(CLUSTERS), STEPS) == (10, 432)
