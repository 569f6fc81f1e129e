"""The command: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from keepclose.testing.api_server import PATIENCE, serving
from support.dashboards import create_zones

COMMAND = (sys.executable, "-m", "keepclose", "dashboard")


def refuse(*arguments: str) -> tuple[int, str]:
    """Return exit code and error of a call that must not serve."""
    done = subprocess.run(
        [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def write_kubeconfig(folder: Path, url: str) -> str:
    """Write a kubeconfig for a server that may not be there."""
    path = folder / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
    )
    return str(path)


async def test_it_prints_a_url_and_ends_with_a_signal(tmp_path: Path) -> None:
    """Each run has a token of its own, and an open window does not keep it from ending."""
    async with serving(tmp_path) as api:
        await create_zones(api)
        tokens = set()
        for _ in range(2):
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                "--kubeconfig",
                str(api.server.kubeconfig),
                "--address",
                "127.0.0.1:0",
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            async with asyncio.timeout(PATIENCE):
                title = (await process.stdout.readline()).decode()
                url = (await process.stdout.readline()).decode().strip()
            assert title.startswith(f"dashboard of {api.url}, which only reads")
            root, _, token = url.partition("/#token=")
            tokens.add(token)
            headers = {"Authorization": f"Bearer {token}"}
            async with api.session.get(f"{root}/api/stream", headers=headers) as response:
                assert (await response.content.readline()).startswith(b"data: ")
                process.send_signal(signal.SIGINT)
                async with asyncio.timeout(PATIENCE):
                    assert await process.wait() == 0
        assert len(tokens) == 2
        assert min(map(len, tokens)) >= 32


async def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    """The error says what to do."""
    async with serving(tmp_path) as api:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            code, text = await asyncio.to_thread(
                refuse, "--kubeconfig", str(api.server.kubeconfig), "--address", address
            )
    assert code == 2
    assert f"error: --address: cannot listen at {address}" in text
    assert "port 0" in text


async def test_a_user_without_rights_is_told_what_it_needs(tmp_path: Path) -> None:
    """An anonymous user may list nothing."""
    async with serving(tmp_path / "api") as api:
        text = api.server.kubeconfig.read_text()
        kubeconfig = tmp_path / "anonymous"
        token = (tmp_path / "api" / "tokens" / "admin").read_text().strip()
        assert token in text
        kubeconfig.write_text(text.replace(token, "another"))
        code, text = await asyncio.to_thread(refuse, "--kubeconfig", str(kubeconfig))
    assert code == 4
    assert "the cluster denies access" in text
    assert "list and watch services" in text


def test_a_cluster_that_does_not_answer_ends_it(tmp_path: Path) -> None:
    """Nothing is served for a cluster that was never seen."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{unused.getsockname()[1]}"
        code, text = refuse("--kubeconfig", write_kubeconfig(tmp_path, url))
    assert code == 4
    assert f"error: {url} does not answer" in text


@pytest.mark.parametrize("address", ["7070x", "127.0.0.1", "127.0.0.1:99999"])
def test_a_bad_address_is_refused(tmp_path: Path, address: str) -> None:
    """It is HOST:PORT."""
    code, text = refuse(
        "--kubeconfig", write_kubeconfig(tmp_path, "https://127.0.0.1:1"), "--address", address
    )
    assert code == 2
    assert "--address" in text


def test_an_address_beyond_loopback_is_warned_of(tmp_path: Path) -> None:
    """The warning comes before anything is served."""
    kubeconfig = write_kubeconfig(tmp_path, "https://127.0.0.1:1")
    _, text = refuse("--kubeconfig", kubeconfig, "--address", "0.0.0.0:0")
    assert "warning: 0.0.0.0:0 may be reached from other machines" in text
    _, text = refuse("--kubeconfig", kubeconfig, "--address", "127.0.0.1:0")
    assert "warning" not in text
