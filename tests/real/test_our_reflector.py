"""A reflector's cache comes to equal the server's state through every failure of the way."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from keepclose.kube.client import Client
from keepclose.kube.errors import Expired
from keepclose.kube.requests import CONFIG_MAPS, NAMESPACES
from support.real.apis import Api, config_map, opened, wait_until
from support.real.embedded import embedded_server, start_embedded
from support.real.followers import following
from support.real.programs import running_apiserver, running_etcd
from support.real.wires import Wire, rewired

WRITES = 300
LONG = "x" * 300_000


async def _write_at_random(client: Client, namespace: str, random: Random) -> None:
    name = f"m-{random.randrange(40)}"
    page = await client.list_page(
        CONFIG_MAPS, namespace=namespace, field_selector=f"metadata.name={name}"
    )
    if not page.items:
        await client.create(CONFIG_MAPS, config_map(name), namespace=namespace)
    elif random.random() < 0.3:
        await client.delete(CONFIG_MAPS, name, namespace=namespace)
    else:
        patch = {"data": {"value": str(random.random())}}
        await client.patch(CONFIG_MAPS, name, patch, namespace=namespace)


async def test_a_cache_survives_a_bad_wire(api: Api, namespace: str, tmp_path: Path) -> None:
    """After cuts, silence, refusals and half a line the cache is what the server has."""
    random = Random(20)
    port = int(api.url.rpartition(":")[2])
    async with opened(api.kubeconfig) as writer, Wire(port) as wire:
        kubeconfig = rewired(api.kubeconfig, tmp_path / "kubeconfig", wire.port)
        async with following(kubeconfig, namespace, idle_s=1.5) as follower:
            reflector = follower.reflector
            for number in range(1, WRITES + 1):
                await _write_at_random(writer, namespace, random)
                match number:
                    case 40 | 90 | 260:
                        wire.cut()
                    case 120:
                        stalls = reflector.stalls
                        wire.stall()
                        await _write_at_random(writer, namespace, random)
                        await wait_until(lambda n=stalls: reflector.stalls > n, "silence noticed")  # type: ignore[misc]
                        wire.cut()
                    case 170:
                        errors = reflector.errors
                        await wire.refuse()
                        await wait_until(lambda n=errors: reflector.errors > n + 1, "refusals seen")  # type: ignore[misc]
                        await wire.accept()
                    case 220:
                        await follower.expect_equality(writer)
                        cuts = wire.cuts
                        wire.cut_after(100_000)
                        long = config_map("long", LONG)
                        await writer.create(CONFIG_MAPS, long, namespace=namespace)
                        await wait_until(lambda n=cuts: wire.cuts > n, "cut within a line")  # type: ignore[misc]
            await follower.expect_equality(writer)
            assert reflector.stalls >= 1
            assert reflector.errors >= 4
            assert wire.cuts >= 4


async def test_a_cache_outlives_a_real_server(tmp_path: Path) -> None:
    """A kube-apiserver that dies and is started again on the same etcd and port is followed on."""
    with running_etcd(tmp_path) as etcd, ExitStack() as stack:
        plane = stack.enter_context(running_apiserver(tmp_path, etcd))
        port = int(plane.url.rpartition(":")[2])
        async with opened(plane.kubeconfig) as writer:
            await writer.create(CONFIG_MAPS, config_map("a"), namespace="default")
        async with following(plane.kubeconfig, "default") as follower:
            # NB: asked politely it would wait for the end of our watch.
            plane.process.kill()
            plane.process.wait(20)
            plane = stack.enter_context(running_apiserver(tmp_path, etcd, port=port))
            async with opened(plane.kubeconfig) as writer:
                await writer.delete(CONFIG_MAPS, "a", namespace="default")
                await writer.create(CONFIG_MAPS, config_map("b"), namespace="default")
                await follower.expect_equality(writer)
            assert follower.reflector.errors >= 1


async def test_a_cache_goes_on_after_our_server_was_killed(tmp_path: Path) -> None:
    """History survives kill -9, so that a watch goes on and nothing is read anew."""
    killed = start_embedded(tmp_path / "data", "--no-controllers")
    port = int(killed.url.rpartition(":")[2])
    try:
        async with opened(killed.kubeconfig) as writer:
            for number in range(20):
                made = config_map(f"m-{number}")
                await writer.create(CONFIG_MAPS, made, namespace="default")
        async with following(killed.kubeconfig, "default") as follower:
            async with opened(killed.kubeconfig) as writer:
                await writer.delete(CONFIG_MAPS, "m-3", namespace="default")
                killed.process.kill()
                killed.process.wait(20)
            with embedded_server(tmp_path / "data", "--no-controllers", port=port) as server:
                async with opened(server.kubeconfig) as writer:
                    await writer.delete(CONFIG_MAPS, "m-5", namespace="default")
                    await writer.create(CONFIG_MAPS, config_map("new"), namespace="default")
                    await follower.expect_equality(writer)
                    assert len(follower.cache) == 19
                    assert follower.reflector.relists == 0
    finally:
        killed.process.kill()
        killed.process.wait(20)
        assert killed.process.stdout is not None
        killed.process.stdout.close()


async def test_a_list_that_expires_midway_says_so(tmp_path: Path) -> None:
    """When etcd forgets the version of a page, the next one is refused with a way on."""
    # Otherwise the server would serve the old version from its own memory.
    flag = "--feature-gates=ListFromCacheSnapshot=false"
    with running_etcd(tmp_path) as etcd, running_apiserver(tmp_path, etcd, flag) as plane:
        async with opened(plane.kubeconfig) as client:
            await client.create(NAMESPACES, {"metadata": {"name": "test"}})
            for name in "abcde":
                await client.create(CONFIG_MAPS, config_map(name), namespace="test")
            first = await client.list_page(CONFIG_MAPS, namespace="test", limit=2)
            made = await client.create(CONFIG_MAPS, config_map("f"), namespace="test")
            await asyncio.to_thread(_compact, etcd, int(made.metadata.resource_version))
            with pytest.raises(Expired) as caught:
                await client.list_page(
                    CONFIG_MAPS, namespace="test", limit=2, continue_token=first.continue_token
                )
            assert caught.value.code == 410
            rest = await client.list_page(
                CONFIG_MAPS, namespace="test", continue_token=caught.value.continue_token
            )
            assert [one.metadata.name for one in rest.items] == ["c", "d", "e", "f"]


def _compact(etcd: str, revision: int) -> None:
    """Make etcd forget everything before a revision."""
    body = json.dumps({"revision": revision, "physical": True}).encode()
    request = urllib.request.Request(f"{etcd}/v3/kv/compaction", body, method="POST")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200
