"""Our controller beside the real kube-controller-manager: refused, or noticed when forced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from keepclose.kube.client import Client
from keepclose.kube.requests import ENDPOINT_SLICES, EVENTS, LEASES, NAMESPACES, SERVICES
from support.real.apis import opened, service
from support.real.clusters import create_nodes, create_pods
from support.real.controllers import JSON, controller_manager
from support.real.embedded import Embedded, embedded_server

ELECTION = ("--leader-elect=true", "--leader-elect-retry-period=500ms")
PATIENCE = 90.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Embedded]:
    """Run our API server."""
    with embedded_server(tmp_path / "data") as found:
        yield found


@pytest.fixture
async def client(server: Embedded) -> AsyncIterator[Client]:
    """Connect as an administrator, to a cluster with a Service whose pods have zones."""
    async with opened(server.kubeconfig) as connected:
        await create_nodes(connected)
        await connected.create(NAMESPACES, {"metadata": {"name": "shop"}})
        body = service("web")
        body["metadata"]["annotations"] = {"keepclose.dev/traffic-distribution": "PreferSameZone"}
        await connected.create(SERVICES, body, namespace="shop")
        await create_pods(connected, "shop", "web", range(3))
        yield connected


class Ours:
    """A controller of ours as a process."""

    def __init__(self, server: Embedded, directory: Path, *flags: str) -> None:
        self.log = directory / "ours.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "keepclose", "controller"),
                    *("--kubeconfig", str(server.role("controller"))),
                    *("--metrics-address", "none"),
                    *("--feature-gates", "TrafficDistributionCustomHeuristics=true"),
                    *flags,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "400"},
            )

    async def end(self) -> int:
        """Return its exit code, once it ends by itself."""
        async with asyncio.timeout(PATIENCE):
            while self.process.poll() is None:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.1)
        return self.process.wait()

    def stop(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)


async def until_led(client: Client) -> None:
    """Return once a kube-controller-manager holds its lease."""
    async with asyncio.timeout(PATIENCE):
        while True:
            page = await client.list_all(LEASES, namespace="kube-system")
            found = [one for one in page.items if one.metadata.name == "kube-controller-manager"]
            if found and found[0].spec.holder_identity:
                return
            await asyncio.sleep(0.1)


async def until_sliced(client: Client) -> None:
    """Return once the built-in controller keeps slices, so that it is at work."""
    async with asyncio.timeout(PATIENCE):
        while not (await client.list_all(ENDPOINT_SLICES, namespace="shop")).items:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def until_hinted(client: Client) -> None:
    """Return once our controller has put hints on the slices."""
    async with asyncio.timeout(PATIENCE):
        while True:
            page = await client.list_all(ENDPOINT_SLICES, namespace="shop")
            endpoints = [each for one in page.items for each in one.endpoints]
            if endpoints and all(one.hints for one in endpoints):
                return
            await asyncio.sleep(0.1)


async def test_we_refuse_to_start_beside_the_built_in_controller(
    server: Embedded, client: Client, tmp_path: Path
) -> None:
    """The error names the rival and the fix, and nothing of the attempt is left."""
    log = tmp_path / "manager.log"
    with controller_manager(server.role("controller"), log, JSON, *ELECTION):
        await until_led(client)
        await until_sliced(client)
        ours = Ours(server, tmp_path)
        try:
            assert await ours.end() == 2
        finally:
            ours.stop()
        said = ours.log.read_text()
        assert "another controller manages the EndpointSlices of this cluster" in said
        assert "--controllers=*,-endpointslice-controller,-endpointslice-mirroring" in said
        page = await client.list_all(ENDPOINT_SLICES, namespace="shop")
        assert not [one for one in page.items if "probe" in one.metadata.name]


async def test_a_manager_without_the_controllers_is_no_rival(
    server: Embedded, client: Client, tmp_path: Path
) -> None:
    """It renews the same lease; we start, and the probe is gone."""
    with controller_manager(
        server.role("controller"),
        tmp_path / "manager.log",
        JSON,
        *ELECTION,
        controllers=("endpoints-controller",),
    ):
        await until_led(client)
        ours = Ours(server, tmp_path)
        try:
            await until_hinted(client)
            page = await client.list_all(ENDPOINT_SLICES, namespace="shop")
            assert not [one for one in page.items if "probe" in one.metadata.name]
            assert ours.process.poll() is None
        finally:
            ours.stop()


async def test_a_forced_fight_is_noticed_within_seconds(
    server: Embedded, client: Client, tmp_path: Path
) -> None:
    """An Event names kube-controller-manager, and few generations are written from then on."""
    log = tmp_path / "manager.log"
    with controller_manager(server.role("controller"), log, JSON, *ELECTION):
        await until_led(client)
        ours = Ours(server, tmp_path, "--force")
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    events = (await client.list_all(EVENTS, namespace="shop")).items
                    told = [one for one in events if one.reason == "EndpointSlicesContended"]
                    if told:
                        break
                    await asyncio.sleep(0.1)
            assert told[0].message.startswith("kube-controller-manager keeps undoing")
            before = await generations(client)
            await asyncio.sleep(10)
            # NB: at most after 1, 2, 4 and 8 seconds, and each time the rival undoes it.
            assert await generations(client) - before <= 8
        finally:
            ours.stop()


async def generations(client: Client) -> int:
    """Return how often the slices of the Service were written."""
    page = await client.list_all(ENDPOINT_SLICES, namespace="shop")
    return sum(one.metadata.generation for one in page.items)
