"""`keepclose verify --probe` on a real kube-apiserver, as far as pods can run without a kubelet."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from keepclose.kube.requests import NODES, PODS, SERVICES
from support.real.apis import Api, opened, service

ZONE = "topology.kubernetes.io/zone"


async def _verify(api: Api, home: Path, *arguments: str) -> tuple[int, str]:
    """Run the command and return its exit code and errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "keepclose", "verify", *arguments),
        *("--kubeconfig", str(api.kubeconfig)),
        env={**os.environ, "HOME": str(home), "KEEPCLOSE_DATA_DIR": str(home / "lab")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_pods_are_accepted_and_removed(api: Api, namespace: str, tmp_path: Path) -> None:
    """The server accepts the pods; without a kubelet they stay Pending, and are removed."""
    async with opened(api.kubeconfig) as client:
        node = {
            "metadata": {"name": f"{namespace}-n1", "labels": {ZONE: "zone-a"}},
        }
        await client.create(NODES, node)
        status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        try:
            await client.patch(NODES, f"{namespace}-n1", status, subresource="status")
            await client.create(SERVICES, service("web"), namespace=namespace)
            name = f"{namespace}/web"
            code, errors = await _verify(api, tmp_path, name, "--probe")
            assert (code, "add --yes to let it" in errors) == (2, True), errors

            version = (await client.list_all(PODS, namespace=namespace)).resource_version

            async def first_event() -> str:
                async with client.watch(
                    PODS, namespace=namespace, resource_version=version
                ) as events:
                    return str(await anext(events))

            seen = asyncio.create_task(first_event())
            code, errors = await _verify(
                api, tmp_path, name, "--probe", "--yes", "--probe-timeout", "2"
            )
            assert code == 3, errors
            assert "1 of 1 probe pods did not end within 2 s: that of zone-a is Pending" in errors
            assert "the pods were deleted" in errors
            assert "keepclose-probe-" in await seen
            assert (await client.list_all(PODS, namespace=namespace)).items == []
            code, errors = await _verify(
                api, tmp_path, name, "--probe", "--yes", "--per-node", "--probe-timeout", "2"
            )
            assert (code, "no kubelet has started it" in errors) == (3, True), errors
            assert (await client.list_all(PODS, namespace=namespace)).items == []
        finally:
            await client.delete(NODES, f"{namespace}-n1")
