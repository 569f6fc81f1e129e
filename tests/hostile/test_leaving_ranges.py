"""A ServiceCIDR that is deleted while Services need it costs those who write Services little."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.apiserver.controllers import service_cidrs
from keepclose.apiserver.registry.service_allocation import held_addresses
from keepclose.model.service.types import Service
from keepclose.testing.api_server import Reply, serving

RANGES = "/apis/networking.k8s.io/v1/servicecidrs"
SERVICES = "/api/v1/namespaces/default/services"
MANY = 200
# Services that are read for a change of one.
MAX_READ = 10


async def test_services_are_not_all_read_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels do not matter to the range, and of deletions only what is left until one needs it."""
    read = 0

    def count(service: Service) -> tuple[str, ...]:
        nonlocal read
        read += 1
        return held_addresses(service)

    monkeypatch.setattr(service_cidrs, "held_addresses", count)
    async with serving(tmp_path, runs_controllers=True) as api:
        for number in range(MANY):
            body = {"metadata": {"name": f"s{number}"}, "spec": {"ports": [{"port": 80}]}}
            await api.create(SERVICES, body)
        assert (await api.call("DELETE", f"{RANGES}/kubernetes")).status == 200
        merge = "application/merge-patch+json"
        for number in range(MANY):
            patch = {"metadata": {"labels": {"a": "b"}}}
            reply = await api.call("PATCH", f"{SERVICES}/s{number}", patch, type=merge)
            assert reply.status == 200
        assert (await api.call("DELETE", SERVICES)).status == 200
        await api.until_gone(f"{RANGES}/kubernetes")
    assert read < 3 * MANY * MAX_READ


async def test_ranges_are_not_all_read_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new ServiceCIDR is made ready without another look at all those that are."""
    async with serving(tmp_path, runs_controllers=True) as api:
        conditions = api.server._service_cidrs
        read = 0
        sync = conditions._sync

        def count(name: str) -> None:
            nonlocal read
            read += 1
            sync(name)

        monkeypatch.setattr(conditions, "_sync", count)
        for number in range(MANY):
            body = {"metadata": {"name": f"c{number}"}, "spec": {"cidrs": [f"10.1.{number}.0/24"]}}
            await api.create(RANGES, body)

        def are_ready(reply: Reply) -> bool:
            return all((one.get("status") or {}).get("conditions") for one in reply.json["items"])

        await api.until(RANGES, are_ready)
    # Each is created, gets its finalizer and its condition.
    assert read < MANY * MAX_READ
