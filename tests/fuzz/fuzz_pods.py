"""Pods as a lab's kubelets and controllers read them: any spec gives times and ports that exist."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from fuzzbounds import require
from fuzzobjects import OBJECTS

from keepclose.lab.kubelet.container_modes import (
    find_image_error,
    mode_of,
    ports_of,
    pre_stop_seconds,
    seconds_until_ready,
)
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.workloads.node_fit import pod_requests
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.replica_pods import available_in, rank_for_deletion

MUTATES_JSON = True
_NOW = 1.8e9


def seeds() -> Iterator[bytes]:
    """Yield a pod, and containers with options that say how they behave."""
    yield b"\n" + msgspec.json.encode(OBJECTS["pods"])
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "sleep " + "9" * 400]}}}
    ready = {"type": "Ready", "status": "True"}
    for container in (
        {"command": ["slow-start", "1e999"], "lifecycle": hook},
        {"args": ["slow-start", "--seconds=nan"], "env": [{"name": "SECONDS", "value": "3"}]},
        {"args": ["--port=" + "9" * 5000, "--udp", "--http-port", "80"]},
        {"image": "registry.example/a@sha256:" + "0" * 64},
        {"image": "a" * 300 + "/b:c"},
        {"resources": {"requests": {"cpu": "9" * 5000, "memory": 1e308}}},
    ):
        times = "9999-12-31T23:59:59-23:59"
        conditions = [{**ready, "lastTransitionTime": times}]
        pod = {
            "metadata": {
                "name": "a",
                "creationTimestamp": "0001-01-01T00:00:00+23:59",
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": "9" * 5000},
            },
            "spec": {"containers": [{"name": "c", **container}]},
            "status": {"phase": "Running", "conditions": conditions},
        }
        yield b"\n" + msgspec.json.encode(pod)


def check(data: bytes) -> None:
    """Read the pod, and ask what a lab asks."""
    try:
        raw = msgspec.json.decode(data.partition(b"\n")[2])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    pod = convert_as(WorkloadPod, raw)
    if not isinstance(pod, Rejected):
        for container in pod.spec.containers:
            mode_of(container)
            find_image_error(container.image)
            for seconds in (seconds_until_ready(container), pre_stop_seconds(container)):
                known = seconds is None or (math.isfinite(seconds) and seconds >= 0)
                require(known, f"a time that no clock reaches: {seconds}")
        for port in ports_of(pod.spec.containers).ports:
            require(0 < port.number < 65536, "a port that does not exist")
        rank_for_deletion([pod], [pod])
        available_in(pod, min_ready_s=5, now=_NOW)
        for amount in pod_requests(pod.spec).values():
            require(isinstance(amount, int), "an amount that is no number")
