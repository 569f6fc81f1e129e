"""Both makes of API server, for the tests of our client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from apis import Api, opened
from embedded import embedded_server
from programs import real_control_plane

from keepclose.kube.kinds import NAMESPACES

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session", params=["real", "embedded"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run one server of each make for all tests of our client."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "real":
        with real_control_plane(directory) as plane:
            yield Api("real", plane.url, plane.kubeconfig, plane.stranger)
    else:
        with embedded_server(directory / "data") as server:
            yield Api("embedded", server.url, server.kubeconfig, server.role("viewer"))


@pytest.fixture
async def namespace(api: Api) -> str:
    """Make a namespace for one test."""
    name = f"test-{next(_NUMBERS)}"
    async with opened(api.kubeconfig) as client:
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name
