"""Both makes of API server, for the tests of our client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from keepclose.kube.requests import NAMESPACES
from support.real.apis import Api, opened, serving
from support.real.unit_tables import summary_lines

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session", params=["real", "embedded"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run one server of each make for all tests of our client."""
    with serving(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture
async def namespace(api: Api) -> str:
    """Make a namespace for one test."""
    name = f"test-{next(_NUMBERS)}"
    async with opened(api.kubeconfig) as client:
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many cases of the unit tables of Kubernetes agree, if some were compared."""
    lines = summary_lines()
    if lines:
        terminalreporter.section("unit tables of Kubernetes")
    for line in lines:
        terminalreporter.write_line(line)
