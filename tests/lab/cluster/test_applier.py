"""Objects of manifests put into a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import NODES, SERVICES
from keepclose.lab.cluster.readiness import Applier, ApplyError, find_manifest_error
from keepclose.testing.api_server import serving

SERVICE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"ports": [{"port": 80}]},
}


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[Client]:
    """Serve an API and connect to it as its administrator."""
    async with serving(directory):
        settings = load_connection_settings(directory / "kubeconfig", env={})
        async with connect(settings, clock=SystemClock()) as client:
            yield client


async def test_an_object_is_there_with_its_namespace(tmp_path: Path) -> None:
    """Also one that stands in no namespace, and one that is applied again."""
    async with connected(tmp_path) as client:
        applier = Applier(client)
        await applier.apply(SERVICE)
        await applier.apply({**SERVICE, "spec": {"ports": [{"port": 81}]}})
        await applier.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        service = await client.get(SERVICES, "web", namespace="shop")
        assert [port.port for port in service.spec.ports] == [81]
        assert (await client.get(NODES, "n1")).name == "n1"


@pytest.mark.parametrize(
    ("change", "want"),
    [
        pytest.param(
            {"spec": {"ports": [{"port": 0}]}},
            r"^Service shop/web: .*spec.ports\[0\].port: Invalid value: 0",
            id="the server refuses it",
        ),
        pytest.param(
            {"kind": "Servise"},
            "^Servise shop/web: this cluster has no kind Servise in v1$",
            id="no such kind",
        ),
        pytest.param(
            {"apiVersion": "shop.example/v1"},
            "^Service shop/web: this cluster has no kind Service in shop.example/v1$",
            id="no such group",
        ),
        pytest.param(
            {"apiVersion": "\x1b[31m/v1\r\nHost: other"},
            r"^Service shop/web: this cluster has no kind Service in \x1b\[31m/v1\r\nHost: other$",
            id="a group that is no path",
        ),
        pytest.param(
            {"apiVersion": "v1?as=1"},
            r"^Service shop/web: this cluster has no kind Service in v1\?as=1$",
            id="a version with a query",
        ),
    ],
)
async def test_what_cannot_be_applied_is_named(
    tmp_path: Path, change: dict[str, Any], want: str
) -> None:
    """With the object and what is wrong with it."""
    async with connected(tmp_path) as client:
        with pytest.raises(ApplyError, match=want):
            await Applier(client).apply({**SERVICE, **change})


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(SERVICE, "", id="an object"),
        pytest.param(
            [1],
            "expected a Kubernetes object: a map with apiVersion, kind and metadata",
            id="a list",
        ),
        pytest.param({"kind": "Pod"}, "Pod: apiVersion: Required value", id="no version"),
        pytest.param({"apiVersion": "v1"}, "object: kind: Required value", id="no kind"),
        pytest.param(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop"}},
            "Pod shop: metadata.name: Required value",
            id="no name",
        ),
        pytest.param(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": 7}},
            "Pod 7/web: metadata.namespace: expected a string; put it in quotes",
            id="a number for a namespace",
        ),
    ],
)
def test_what_is_no_object_is_told_before(value: object, want: str) -> None:
    """No server need be asked for that."""
    assert find_manifest_error(value) == want
