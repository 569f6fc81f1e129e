"""The controller as a process: leader election, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from keepclose.controller.process import LEASE_NAME, LEASE_NAMESPACE, serve_controller
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.requests import ENDPOINT_SLICES, LEASES
from keepclose.reconcile.settings import ControllerSettings
from keepclose.testing.api_server import PATIENCE, serving
from support.controllers import CLOCK, World, world


async def slices_appear(cluster: World, service: str) -> None:
    """Return when the Service has slices."""
    async with cluster.api.watch("/apis/discovery.k8s.io/v1/endpointslices") as events:
        while not await cluster.slices(service):
            await events.next()


async def test_the_leader_works_and_gives_its_lease_back(tmp_path: Path) -> None:
    """The lease names its holder while it works, and nobody afterwards."""
    async with serving(tmp_path) as api, world(api) as cluster:
        connection = load_connection_settings(tmp_path / "controller.kubeconfig", env={})
        await cluster.add_service()
        task = asyncio.create_task(
            serve_controller(ControllerSettings(), connection, leader_elect=True, clock=CLOCK)
        )
        await slices_appear(cluster, "web")
        lease = await cluster.client.get(LEASES, LEASE_NAME, namespace=LEASE_NAMESPACE)
        assert f"_{os.getpid()}_" in (lease.spec.holder_identity or "")
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        lease = await cluster.client.get(LEASES, LEASE_NAME, namespace=LEASE_NAMESPACE)
        assert lease.spec.holder_identity == ""


async def test_the_command_works_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """`keepclose controller` writes slices under its own role, and ends with code 0."""
    async with serving(tmp_path) as api, world(api) as cluster:
        await cluster.add_service()
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "keepclose",
            "controller",
            "--kubeconfig",
            str(tmp_path / "controller.kubeconfig"),
            "--leader-elect=false",
            "--metrics-address",
            "127.0.0.1:0",
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                await slices_appear(cluster, "web")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert process.returncode == 0, errors.decode()
        page = await cluster.client.list_all(ENDPOINT_SLICES, namespace="default")
        assert [one.service_key.name for one in page.items] == ["web"]
