"""A running API server for the statements of all proposals, and the count of those that hold."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from keepclose.kube.requests import NAMESPACES
from keepclose.testing.api_server import Api, connected
from support.controllers import World, opened
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposalworlds import add_two_zones
from support.proposals.statements import TITLES, proposal_of
from support.server_processes import Embedded, embedded_server

_NUMBERS = itertools.count(1)
_WORDS = {"passed": "hold", "xfailed": "do not hold yet", "failed": "FAILED", "skipped": "skipped"}
_WORST_FIRST = ("failed", "error", "xpassed", "skipped", "xfailed", "passed")


@pytest.fixture(scope="session")
def proposal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Run one API server with the default gates for all statements."""
    with embedded_server(tmp_path_factory.mktemp("proposals") / "data") as server:
        yield server


@pytest.fixture
async def cluster(proposal_server: Embedded) -> AsyncIterator[World]:
    """Open an empty cluster, in a namespace of its own, and empty it again."""
    name = f"statement-{next(_NUMBERS)}"
    controller = proposal_server.role("controller")
    async with opened(proposal_server.kubeconfig, controller=controller, namespace=name) as world:
        await world.client.create(NAMESPACES, {"metadata": {"name": name}})
        try:
            yield world
        finally:
            await world.clear()


@pytest.fixture
async def two_zones(cluster: World) -> World:
    """Two zones of one node and one pod each."""
    await add_two_zones(cluster)
    return cluster


@pytest.fixture
async def api(proposal_server: Embedded) -> AsyncIterator[ProposalApi]:
    """Open the HTTP API as administrator, in a namespace of its own."""
    name = f"statement-{next(_NUMBERS)}"
    ca = proposal_server.directory / "pki" / "ca.crt"
    async with connected(ca) as session:
        plain = Api(proposal_server.url, token=proposal_server.token(), ca=ca, session=session)
        await plain.create("/api/v1/namespaces", {"metadata": {"name": name}})
        found = ProposalApi(plain, name)
        yield found
        # Controllers of later tests look at the whole cluster.
        for path in (found.services, found.slices):
            await plain.call("DELETE", path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say for each proposal how many of its statements that ran hold.

    A statement with several examples holds if all of them do.
    """
    worst: dict[tuple[str, str], str] = {}
    root = terminalreporter.config.rootpath
    for outcome in reversed(_WORST_FIRST):
        for report in terminalreporter.stats.get(outcome, []):
            name = report.nodeid.partition("[")[0]
            proposal = proposal_of(root / Path(name.partition("::")[0]))
            if proposal is not None:
                worst[proposal, name] = outcome
    if not worst:
        return
    terminalreporter.section("statements of the proposals")
    for proposal, title in TITLES.items():
        outcomes = [outcome for (folder, _), outcome in worst.items() if folder == proposal]
        counts = {outcome: outcomes.count(outcome) for outcome in reversed(_WORST_FIRST)}
        said = [f"{count} {_WORDS.get(name, name)}" for name, count in counts.items() if count]
        if said:
            terminalreporter.line(f"{title}: {len(outcomes)} statements, {', '.join(said)}")
