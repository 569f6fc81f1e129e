"""`keepclose proxy` and `keepclose proxy status` as commands."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from keepclose.cli.main import app
from keepclose.cli.proxy_status import _uses
from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.status import PortStatus, ProxyPages
from keepclose.testing.api_server import serving
from keepclose.testing.recording_writer import RecordingWriter
from support.ports import reserved_port
from support.proxies import FakeCounters, cluster_of, hinted, plain

COMMAND = Path(sys.executable).parent / "keepclose"


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(
            ["--once", "--cleanup"],
            "--once, --dry-run and --cleanup exclude each other",
            id="two things at once",
        ),
        pytest.param(
            ["--feature-gates", "Nonsense=true"],
            "--feature-gates: unknown feature gate 'Nonsense'",
            id="an unknown gate",
        ),
        pytest.param(
            ["--sync-period", "soon"],
            "--sync-period: 'soon' must be a duration such as 1s",
            id="no duration",
        ),
        pytest.param(
            ["--masquerade-bit", "40"],
            "--masquerade-bit must be from 0 to 31, but got 40",
            id="no such bit",
        ),
        pytest.param(
            ["--metrics-bind-address", "10249"],
            "--metrics-bind-address: '10249' must be HOST:PORT, or none",
            id="no address",
        ),
        pytest.param(
            ["--kubeconfig", "/nowhere"],
            "cannot read /nowhere: no such file or directory",
            id="a kubeconfig that is not there",
        ),
    ],
)
def test_bad_input(options: list[str], want: str) -> None:
    """Each flaw is one line that names the option, with exit code 2."""
    result = CliRunner().invoke(app, ["proxy", "--node-name", "n1", *options])
    assert result.exit_code == 2
    assert f"error: {want}" in result.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_without_rights() -> None:
    """A proxy that may not change the network says so, with exit code 2."""
    done = subprocess.run(
        [
            *("setpriv", "--inh-caps=-all", "--bounding-set=-all"),
            *(str(COMMAND), "proxy", "--node-name", "n1", "--cleanup"),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "error: nftables cannot be used here: the process lacks CAP_NET_ADMIN" in done.stderr


@pytest.fixture
def port() -> Iterator[int]:
    """Keep a port, so that nobody else answers there after a proxy has ended."""
    with reserved_port() as kept:
        yield kept


async def show(*options: str) -> tuple[int, str, str]:
    """Run the status command; return its code and what it said."""
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "proxy",
        "status",
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "100"},
    )
    out, errors = await process.communicate()
    return process.returncode or 0, out.decode(), errors.decode()


async def test_the_status(tmp_path: Path, port: int) -> None:
    """Modes, endpoints by zone, reasons, fixes and shares, as people read them."""
    async with serving(tmp_path) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        web = await cluster.add_service()
        await cluster.set_endpoints(
            hinted("10.0.0.1", "zone-a"),
            hinted("10.0.0.2", "zone-b"),
            plain("10.0.0.3", "zone-b"),
        )
        counts = FakeCounters()
        async with cluster.proxied("n1", writer=RecordingWriter(), counts=counts) as proxy:
            await cluster.settle(proxy)
            # Endpoints stand in the order of their addresses.
            counts.lead(web.spec.cluster_ip, 80, [30, 4, 6])
            pages = ProxyPages(
                ProxySettings("n1"),
                metrics=proxy.metrics.page,
                refresh=proxy.counters.refresh,
                status=proxy.status,
            )
            await pages.start("127.0.0.1", port)
            address = ("--metrics-address", f"127.0.0.1:{port}")
            try:
                code, out, errors = await show("web", *address)
                missing = await show("default/absent", *address)
                empty = await show("-n", "absent", *address)
            finally:
                await pages.stop()
        assert (code, errors) == (0, "")
        lines = [line.rstrip() for line in out.splitlines()]
        assert lines[0] == "node n1  zone-a"
        assert lines[1:3] == ["  IPv4  1 port, in effect", "  IPv6  0 ports, in effect"]
        assert "everywhere  3 endpoints of 3" in lines[5]
        assert lines[6:8] == ["    zone-a: 10.0.0.1", "    zone-b: 10.0.0.2, 10.0.0.3"]
        assert lines[8].startswith("  why  every ready endpoint must have a zone hint; 10.0.0.3")
        assert "  went to  zone-a 75.0% (30), zone-b 25.0% (10)" in lines
        assert (missing[0], missing[2]) == (
            3,
            "error: no Service default/absent is routed on this node\n",
        )
        assert (empty[0], empty[2]) == (
            3,
            "error: no Service in absent is routed on this node\n",
        )
        code, out, errors = await show(*address)
        assert (code, out) == (4, "")
        assert errors.startswith(f"error: no proxy answers at {address[1]}: [Errno 111] Connection")


@pytest.mark.parametrize(
    ("internal", "external", "want"),
    [
        pytest.param("reject", "", "rejected, no endpoint", id="no endpoint"),
        pytest.param("drop", "", "dropped, no endpoint on this node", id="a Local policy"),
        pytest.param(
            "0 endpoints",
            "drop",
            "0 endpoints of 0, from outside dropped, no endpoint on this node",
            id="a Local policy from outside",
        ),
    ],
)
def test_what_happens_without_endpoints(internal: str, external: str, want: str) -> None:
    """The status says in words what happens to connections that find no endpoint."""
    port = PortStatus(
        family="IPv4",
        name="http",
        protocol="TCP",
        cluster_ip="10.96.0.10",
        port=80,
        mode="Everywhere",
        internal=internal,
        external=external,
        endpoints=(),
        reasons=(),
    )
    assert _uses(port) == want


@pytest.mark.parametrize("address", ["10249", "localhost:http", "127.0.0.1:65536", ""])
def test_an_address_that_is_none(address: str) -> None:
    """What is no address is told as such, with exit code 2."""
    result = CliRunner().invoke(app, ["proxy", "status", "--metrics-address", address])
    assert result.exit_code == 2
    assert result.output == f"error: --metrics-address: {address!r} must be HOST:PORT\n"


async def test_somebody_else_answers(port: int) -> None:
    """What is no keepclose proxy is told from one that does not answer, with exit code 4."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    address = f"127.0.0.1:{port}"
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        want = f"error: the server at {address} is no keepclose proxy: status 404\n"
        assert await show("--metrics-address", address) == (4, "", want)
    code, out, errors = await show("--metrics-address", address)
    assert (code, out) == (4, "")
    assert errors.endswith(
        "Connection refused; run this on a node where keepclose proxy runs, or set "
        "--metrics-address to where it serves its pages\n"
    )


async def run(*options: str) -> tuple[int, str, str]:
    """Run the command; return its code and what it said."""
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "proxy",
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    return process.returncode or 0, out.decode(), errors.decode()


@pytest.mark.parametrize("once", ["--dry-run", "--once"])
async def test_a_node_that_is_not_there(tmp_path: Path, once: str) -> None:
    """A name that no Node has is an error, and no rules come of it."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        kubeconfig = str(api.server.settings.data_dir / "kubeconfig")
        code, out, errors = await run("--node-name", "TYPO", "--kubeconfig", kubeconfig, once)
    assert (code, out) == (3, "")
    assert "error: the cluster has no Node 'TYPO'\n" in errors
    assert "--node-name" in errors


@pytest.mark.parametrize("once", ["--dry-run", "--once"])
async def test_a_user_without_rights(tmp_path: Path, once: str) -> None:
    """What the server refuses is told in its words, with the role that would help."""
    async with serving(tmp_path, nodes=("n1",)) as api:
        data_dir = api.server.settings.data_dir
        document = yaml.safe_load((data_dir / "kubeconfig").read_text())
        document["users"][0]["user"] = {}
        stranger = tmp_path / "stranger.kubeconfig"
        stranger.write_text(yaml.safe_dump(document))
        code, out, errors = await run("--node-name", "n1", "--kubeconfig", str(stranger), once)
    assert (code, out) == (4, "")
    want = 'services is forbidden: User "system:anonymous" cannot watch resource "services"'
    [line] = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: the cluster denies access: ")
    assert want in line
    assert "docs/howto/proxy.yaml" in errors


async def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    """Rules piped into a reader that closes early end the command without a word of error."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        kubeconfig = api.server.settings.data_dir / "kubeconfig"
        options = f"--node-name n1 --kubeconfig {kubeconfig} --dry-run"
        code, _, errors = await run_shell(f"{COMMAND} proxy {options} | true")
    assert code == 141
    assert "error" not in errors
    assert "Broken pipe" not in errors


async def run_shell(line: str) -> tuple[int, str, str]:
    """Run a pipeline; return the code of its first command and what all said."""
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        f"{line}; exit ${{PIPESTATUS[0]}}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    return process.returncode or 0, out.decode(), errors.decode()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("resolve -f examples/three-zones.yaml -o json", id="JSON"),
        pytest.param("resolve -f examples/three-zones.yaml", id="a table"),
        pytest.param("--version", id="one line"),
        pytest.param("proxy --help", id="help"),
        pytest.param("simulate --dataset kep2004-small --algorithm local", id="a simulation"),
    ],
)
async def test_every_command_ends_quietly_without_its_reader(command: str) -> None:
    """No command complains when the reader of its output has gone."""
    code, _, errors = await run_shell(f"(sleep 0.1; {COMMAND} {command}) | true")
    assert code == 141
    assert [line for line in errors.splitlines() if "rror" in line or "Broken" in line] == []
