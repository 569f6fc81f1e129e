"""Both makes of API server, for the tests of our client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import yaml

from keepclose.kube.requests import NAMESPACES
from support.real import same_answers
from support.real.apis import Api, opened, serving
from support.real.embedded import embedded_server
from support.real.programs import real_control_plane
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


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[same_answers.Api, same_answers.Api]]:
    """Run both servers for the tests of one module."""
    real = tmp_path_factory.mktemp("real")
    ours = tmp_path_factory.mktemp("ours") / "data"
    # NB: in ours nothing removes the taint of a new node, so it sets none.
    flag = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"
    with (
        real_control_plane(real, flag) as plane,
        embedded_server(ours, "--no-controllers") as embedded,
    ):
        user = yaml.safe_load(embedded.kubeconfig.read_text())["users"][0]["user"]
        yield (
            same_answers.Api(plane.url, plane.token),
            same_answers.Api(embedded.url, user["token"]),
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many cases of the unit tables of Kubernetes agree, if some were compared."""
    lines = summary_lines()
    if lines:
        terminalreporter.section("unit tables of Kubernetes")
    for line in lines:
        terminalreporter.write_line(line)
