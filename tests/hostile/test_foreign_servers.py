"""Commands that run once against a server that is no API server: they end, and say what it is."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from aiohttp import web

SIGN_IN = "<html>\x1b[31mSign in</html>"


async def run_once(handler: web.Application, tmp_path: Path) -> tuple[int, str]:
    """Run the proxy once against a server; return its exit code and its error."""
    runner = web.AppRunner(handler, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, users: [{name: a, user: {}}],\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}],\n"
        f'clusters: [{{name: a, cluster: {{server: "http://127.0.0.1:{runner.addresses[0][1]}"}}}}]}}'
    )
    words = ["proxy", "--dry-run", "--node-name", "n1", "--kubeconfig", str(kubeconfig)]
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "keepclose",
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
    finally:
        await runner.cleanup()
    lines = [one for one in errors.decode().splitlines() if not one.startswith("{")]
    assert process.returncode is not None
    return process.returncode, "\n".join(lines)


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param((302, ""), "HTTP status 302", id="a redirect"),
        pytest.param((404, SIGN_IN), r"<html>\x1b[31mSign in</html>", id="no such page"),
        pytest.param((200, SIGN_IN), "the answer is not a list", id="a page"),
        pytest.param((200, "[1, 2]"), "the answer is not a list", id="other JSON"),
    ],
)
async def test_a_server_that_is_none_of_kubernetes_is_named(
    tmp_path: Path, answer: tuple[int, str], want: str
) -> None:
    """The command does not wait for it to become one, and does not say that it was silent."""

    async def handle(_: web.Request) -> web.StreamResponse:
        status, text = answer
        return web.Response(status=status, text=text, headers={"Location": "http://127.0.0.1:1/"})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    code, error = await run_once(application, tmp_path)
    assert code == 4
    assert error.startswith("error: http://127.0.0.1:")
    assert "does not answer as an API server" in error
    assert want in error
    assert "check the server that the kubeconfig names" in error
