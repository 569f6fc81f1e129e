"""Server-side apply over HTTP: a configuration that is applied again changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.testing.api_server import Served, serving

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory."""
    async with serving(tmp_path / "data") as api:
        yield api


async def test_a_pod_with_tolerations_is_applied_twice(served: Served) -> None:
    """Tolerations that admission adds to the applied ones are no change of the spec."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {
            "containers": [{"name": "c", "image": "web"}],
            "tolerations": [{"key": "a", "operator": "Exists"}],
        },
    }
    path = f"{PODS}/web?fieldManager=one"
    kind = "application/apply-patch+yaml"
    created = (await served.call("PATCH", path, pod, type=kind)).json
    applied = (await served.call("PATCH", path, pod, type=kind)).json
    assert len(created["spec"]["tolerations"]) == 3
    assert applied["metadata"]["generation"] == created["metadata"]["generation"]
    assert applied["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
