"""Grace periods of any length: a pod can always be deleted, and its end can be written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from keepclose.testing.api_server import Served, serving

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


# What waits for the end of a pod, beside a few that no longer count.
MAX_QUEUED = 100


async def test_pods_of_endless_periods_are_forgotten_with_them(api: Served) -> None:
    """Nothing is kept until the end of a period, a year from now, of a pod that is gone."""
    for number in range(2 * MAX_QUEUED):
        await _create(api, f"web-{number}")
        for seconds in (31_536_000, 0):
            path = f"{PODS}/web-{number}?gracePeriodSeconds={seconds}"
            reply = await api.call("DELETE", path)
            assert reply.status == 200, reply.body
    assert _queued(api) < MAX_QUEUED


async def test_a_pod_that_ends_is_queued_once(api: Served) -> None:
    """However often a pod is written in the year that it has to end, its end is noted once."""
    await _create(api)
    await api.call("DELETE", f"{PODS}/web?gracePeriodSeconds=31536000")
    merge = "application/merge-patch+json"
    for number in range(2 * MAX_QUEUED):
        patch = {"metadata": {"labels": {"a": str(number)}}}
        reply = await api.call("PATCH", f"{PODS}/web", patch, type=merge)
        assert reply.status == 200, reply.body
    assert 0 < _queued(api) < MAX_QUEUED


def _queued(api: Served) -> int:
    return max(len(queued) for _, queued in api.server._pod_reaper._queues)


async def _create(api: Served, name: str = "web", **spec: object) -> None:
    containers = [{"name": "c", "image": "web"}]
    whole = {"nodeName": "n1", "containers": containers, **spec}
    await api.create(PODS, {"metadata": {"name": name}, "spec": whole})


def _check_end(pod: dict[str, dict[str, str]], seconds: int) -> None:
    wrapped = (seconds * 10**9 + 2**63) % 2**64 - 2**63
    begun = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    ends = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
    assert abs((ends - begun).total_seconds() - wrapped / 10**9) < 120
