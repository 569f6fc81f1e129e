"""Tests of the way from settings to a client, end to end with a program that logs in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from aiohttp import web

from keepclose.kube.auth.credentials import ClientCertificate, Proof
from keepclose.kube.auth.exec_plugin import ExecSpec
from keepclose.kube.auth.kubeconfig import load_kubeconfig
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import ConnectionSettings, ConnectionUser, connect, make_credentials
from keepclose.kube.errors import Unauthorized
from keepclose.kube.requests import NODES
from keepclose.kube.transport.aiohttp_transport import ServerAddress
from keepclose.testing.fake_clock import FakeClock
from support.builders import node

PROGRAM = ExecSpec("client.authentication.k8s.io/v1", "/does/not/exist")


@pytest.mark.parametrize(
    ("user", "want"),
    [
        pytest.param(ConnectionUser(), Proof(), id="anonymous"),
        pytest.param(
            ConnectionUser(token="t", exec=PROGRAM),  # noqa: S106
            Proof("Bearer t"),
            id="token before program",
        ),
        pytest.param(
            ConnectionUser(username="a", password="b", exec=PROGRAM),  # noqa: S106
            Proof("Basic YTpi"),
            id="password before program",
        ),
        pytest.param(
            ConnectionUser(token="t", token_file="{}/token"),  # noqa: S106
            Proof("Bearer from file"),
            id="token file before token",
        ),
        pytest.param(
            ConnectionUser(certificate=b"C", certificate_file="/none", key_file="{}/token"),
            Proof("", ClientCertificate(b"C", b"from file")),
            id="data before files",
        ),
    ],
)
async def test_which_credentials_count(tmp_path: Path, user: ConnectionUser, want: Proof) -> None:
    """Where several are given, the order is client-go's."""
    (tmp_path / "token").write_text("from file")
    user = msgspec.structs.replace(
        user,
        token_file=user.token_file.format(tmp_path),
        key_file=user.key_file.format(tmp_path),
    )
    settings = ConnectionSettings(ServerAddress("http://x"), user)
    assert await make_credentials(settings, clock=FakeClock()).proof() == want


async def test_a_missing_file_of_a_user_is_told_with_its_field() -> None:
    """The error names the field of the kubeconfig that named the file."""
    user = ConnectionUser(token_file="/none", field="users[a].user")  # noqa: S106
    settings = ConnectionSettings(ServerAddress("http://x"), user, source="/kc")
    with pytest.raises(Exception, match=r"/kc: users\[a\].user.tokenFile: cannot read /none"):
        await make_credentials(settings, clock=FakeClock()).proof()


async def test_from_a_kubeconfig_through_a_program_to_an_answer(tmp_path: Path) -> None:
    """A kubeconfig names a program, its first token is refused, its second one is taken."""
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        if seen[-1] != "Bearer token-2":
            return web.Response(status=401, text="expired")
        return web.Response(body=msgspec.json.encode(node()))

    program = tmp_path / "login"
    program.write_text(
        "#!/bin/sh\n"
        f"echo run >> {tmp_path}/runs\n"
        f"number=$(wc -l < {tmp_path}/runs)\n"
        'echo "{\\"apiVersion\\": \\"client.authentication.k8s.io/v1\\",'
        ' \\"kind\\": \\"ExecCredential\\", \\"status\\": {\\"token\\": \\"token-$number\\"}}"\n'
    )
    program.chmod(0o755)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    entry = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login"}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [
            {"name": "k", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}
        ],
        "users": [{"name": "u", "user": {"exec": entry}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    settings = load_kubeconfig(tmp_path / "config", env={})
    async with connect(settings, clock=SystemClock()) as client:
        assert await client.get(NODES, "n1") == node()
        assert await client.get(NODES, "n1") == node()
        (tmp_path / "runs").write_text("")
        seen.clear()
    assert seen == []
    async with connect(settings, clock=SystemClock()) as client:
        (tmp_path / "runs").write_text("x\n" * 9)
        with pytest.raises(Unauthorized, match="expired"):
            await client.get(NODES, "n1")
    await runner.cleanup()
    assert seen == ["Bearer token-10", "Bearer token-11"]
