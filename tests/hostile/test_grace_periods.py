"""Grace periods of any length: a pod can always be deleted, and its end can be written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from keepclose.testing.apiservers import Served, serving

PODS = "/api/v1/namespaces/default/pods"
# The largest of 64 bits, and times behind the last that can be written.
LENGTHS = (2**63 - 1, 2**62, 315_360_000_000, 10**12)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory."""
    async with serving(tmp_path / "data") as served:
        yield served


@pytest.mark.parametrize("seconds", LENGTHS)
async def test_a_pod_with_an_endless_grace_period_can_be_deleted(api: Served, seconds: int) -> None:
    """The period of the pod's own spec is taken as kube-apiserver takes it, wrapped to 64 bits."""
    await _create(api, terminationGracePeriodSeconds=seconds)
    reply = await api.call("DELETE", f"{PODS}/web")
    assert reply.status == 200, reply.body
    _check_end(reply.json, seconds)


@pytest.mark.parametrize("seconds", LENGTHS)
async def test_a_client_may_ask_for_an_endless_grace_period(api: Served, seconds: int) -> None:
    """The period that a client asks for is taken likewise, and can be shortened afterwards."""
    await _create(api)
    reply = await api.call("DELETE", f"{PODS}/web?gracePeriodSeconds={seconds}")
    assert reply.status == 200, reply.body
    _check_end(reply.json, seconds)
    shortened = await api.call("DELETE", f"{PODS}/web?gracePeriodSeconds=0")
    # A period that wrapped below zero has ended, and the pod may be gone already.
    assert shortened.status in (200, 404), shortened.body


async def _create(api: Served, **spec: object) -> None:
    containers = [{"name": "c", "image": "web"}]
    whole = {"nodeName": "n1", "containers": containers, **spec}
    await api.create(PODS, {"metadata": {"name": "web"}, "spec": whole})


def _check_end(pod: dict[str, dict[str, str]], seconds: int) -> None:
    wrapped = (seconds * 10**9 + 2**63) % 2**64 - 2**63
    begun = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    ends = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
    assert abs((ends - begun).total_seconds() - wrapped / 10**9) < 120
