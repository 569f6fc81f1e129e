"""An API server of either make, and our client for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.transport.retries import Retries
from support.real.embedded import embedded_server
from support.real.programs import real_control_plane

CLOCK = SystemClock()
ONCE = Retries(max_elapsed=0.0)


class Api(NamedTuple):
    """A running server."""

    make: str
    url: str
    kubeconfig: Path
    # Of somebody who is known and may change nothing.
    weak_kubeconfig: Path


@contextmanager
def serving(make: str, directory: Path) -> Iterator[Api]:
    """Run a server of that make, "real" or "embedded"."""
    if make == "real":
        with real_control_plane(directory) as plane:
            yield Api("real", plane.url, plane.kubeconfig, plane.stranger)
    else:
        # The real one has no kube-controller-manager beside it either.
        with embedded_server(directory / "data", "--no-controllers") as server:
            yield Api("embedded", server.url, server.kubeconfig, server.role("viewer"))


def opened(kubeconfig: Path, *, retries: Retries | None = None) -> Client:
    """Return a client as every program of ours makes one; use it as a context."""
    return connect(load_connection_settings(kubeconfig), clock=CLOCK, retries=retries)


async def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 90.0) -> None:
    """Return when the condition holds; fail in its words when it does not in time."""
    deadline = CLOCK.monotonic() + seconds
    while not condition():
        assert CLOCK.monotonic() < deadline, f"never came true: {what}"
        await asyncio.sleep(0.01)


def config_map(name: str, value: str = "1", **labels: str) -> dict[str, Any]:
    """Return a ConfigMap with one value."""
    return {"metadata": {"name": name, "labels": labels}, "data": {"value": value}}


def service(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Service."""
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return {
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": ports, **spec},
    }


def pod(name: str, node: str = "", **labels: str) -> dict[str, Any]:
    """Return a Pod."""
    container = {"name": "main", "image": "web:1", "ports": [{"containerPort": 8080}]}
    spec = {"nodeName": node} if node else {}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def endpoint_slice(name: str, owner: str, *addresses: str) -> dict[str, Any]:
    """Return an EndpointSlice."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": owner}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]} for address in addresses],
    }
