"""An API server of either make, ours or Kubernetes' own, and a clean cluster for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from keepclose.kube.requests import NAMESPACES
from support.controllers import World, opened
from support.real.programs import real_control_plane
from support.recorded_replay import SERVICE_RANGES
from support.server_processes import embedded_server

# Only values that the other server does not look at need it.
GATES = "--feature-gates=TrafficDistributionCustomHeuristics=true"
_NUMBERS = itertools.count(1)


class Server(NamedTuple):
    """A running API server: how its administrator and how a controller gets in."""

    kubeconfig: Path
    controller: Path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that would take too long beside the real server."""
    long = [
        item
        for item in items
        if item.get_closest_marker("embedded") is not None
        and item.get_closest_marker("real") is not None
    ]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session", params=["embedded", pytest.param("real", marks=pytest.mark.real)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Run one server of each make for all tests."""
    directory = tmp_path_factory.mktemp(request.param)
    ranges = f"--service-cluster-ip-range={','.join(SERVICE_RANGES)}"
    if request.param == "real":
        with real_control_plane(directory, ranges) as plane:
            yield Server(plane.kubeconfig, plane.kubeconfig)
    else:
        with embedded_server(directory / "data", ranges, GATES) as found:
            yield Server(found.kubeconfig, found.role("controller"))


@pytest.fixture
async def cluster(server: Server) -> AsyncIterator[World]:
    """Open an empty cluster, in a namespace of its own, and empty it again."""
    name = f"live-{next(_NUMBERS)}"
    async with opened(server.kubeconfig, controller=server.controller, namespace=name) as found:
        await found.client.create(NAMESPACES, {"metadata": {"name": name}})
        try:
            yield found
        finally:
            await found.clear()
