"""The server put together: started, stopped, started again, and not started at all."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from keepclose.apiserver.assembly import (
    NAMESPACES,
    ApiServer,
    ServerSettings,
    StartError,
    run_apiserver,
)
from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.runtime.program import ReadyMessage
from keepclose.testing.api_server import Served, serving

JsonObject = dict[str, Any]
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"


def _service(name: str, **spec: Any) -> JsonObject:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


async def _start(directory: Path, **settings: Any) -> None:
    server = ApiServer(ServerSettings(**{"data_dir": directory, "port": 0, **settings}))
    await server.start()
    await server.stop()


async def test_a_new_server_has_what_every_cluster_has(api: Served) -> None:
    """The namespaces and the range of cluster IPs are there from the first moment."""
    found = await api.get("/api/v1/namespaces")
    assert {one["metadata"]["name"] for one in found["items"]} == set(NAMESPACES)
    assert {one["status"]["phase"] for one in found["items"]} == {"Active"}
    ranges = await api.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
    assert ranges["spec"]["cidrs"] == ["10.96.0.0/16"]


async def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    """Objects, versions, tokens and certificates are those from before."""
    async with serving(tmp_path) as api:
        created = await api.create(CONFIGMAPS, {"metadata": {"name": "one"}})
        await api.create("/api/v1/namespaces", {"metadata": {"name": "mine"}})
        before = await api.get("/api/v1/namespaces")
        token, ca = api.token, api.ca.read_bytes()
    async with serving(tmp_path) as api:
        assert await api.get(f"{CONFIGMAPS}/one") == created
        assert await api.get("/api/v1/namespaces") == before
        assert (api.token, api.ca.read_bytes()) == (token, ca)
        later = await api.create(CONFIGMAPS, {"metadata": {"name": "two"}})
        assert int(later["metadata"]["resourceVersion"]) > int(
            before["metadata"]["resourceVersion"]
        )


async def test_allocations_outlive_a_restart(tmp_path: Path) -> None:
    """Addresses and ports of stored Services are not given out again by a new server."""
    small = AllocationSettings(("10.96.0.0/29",), 30000, 30001)
    async with serving(tmp_path, allocation=small) as api:
        one = await api.create(SERVICES, _service("one", type="NodePort"))
    async with serving(tmp_path, allocation=small) as api:
        two = await api.create(SERVICES, _service("two", type="NodePort"))
        ports = {port["nodePort"] for svc in (one, two) for port in svc["spec"]["ports"]}
        assert ports == {30000, 30001}
        assert one["spec"]["clusterIP"] != two["spec"]["clusterIP"]
        taken = await api.call("POST", SERVICES, _service("x", clusterIP=one["spec"]["clusterIP"]))
        assert taken.status == 422
        assert "provided IP is already allocated" in taken.message


async def test_unfinished_deletions_go_on_after_a_restart(tmp_path: Path) -> None:
    """What the garbage collector had left to do when the server ended is done by the next one."""
    async with serving(tmp_path) as api:
        owner = await api.create(CONFIGMAPS, {"metadata": {"name": "owner"}})
        await api.server._controllers.stop()
        reference = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": owner["metadata"]["uid"],
        }
        await api.create(
            CONFIGMAPS, {"metadata": {"name": "child", "ownerReferences": [reference]}}
        )
        await api.call("DELETE", f"{CONFIGMAPS}/owner")
        assert (await api.call("GET", f"{CONFIGMAPS}/child")).status == 200
    async with serving(tmp_path) as api:
        await api.until_gone(f"{CONFIGMAPS}/child")


async def test_the_files_are_private(tmp_path: Path) -> None:
    """Everything in the directory is for its owner alone, and so is the directory."""
    async with serving(tmp_path / "data", nodes=("n1",)) as api:
        await api.create(CONFIGMAPS, {"metadata": {"name": "one"}})
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
        files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
        assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
        assert {"kubeconfig", "viewer.kubeconfig", "node-n1.kubeconfig", "ca.key"} <= set(modes)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_hosts(tmp_path: Path, host: str) -> None:
    """The server listens where it is told to, with a certificate for that."""
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with serving(tmp_path, host=host) as api:
        shown = "[::1]" if host == "::1" else host
        assert api.url.startswith(f"https://{shown}:")
        assert (await api.call("GET", "/healthz")).status == 200
        config = yaml.safe_load(api.server.kubeconfig.read_text())
        assert config["clusters"][0]["cluster"]["server"] == api.url


async def test_a_port_in_use(tmp_path: Path) -> None:
    """A port that another one has is told, and the files are free again after that."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            StartError, match=f"^cannot listen at 127.0.0.1 port {port}: .*; choose"
        ):
            await _start(tmp_path, port=port)
    await _start(tmp_path)


async def test_a_second_server_on_the_same_files(tmp_path: Path) -> None:
    """Only one server may have a directory; the second touches nothing and says who has it."""
    async with serving(tmp_path) as api:
        before = {path: path.read_bytes() for path in (tmp_path / "pki").iterdir()}
        with pytest.raises(StartError) as refused:
            ApiServer(ServerSettings(data_dir=tmp_path, port=0, host="other.example.com"))
        assert str(refused.value) == (
            f"{tmp_path}/store.db: is in use by another server, process {os.getpid()}; stop that "
            "one first, or choose another directory"
        )
        assert {path: path.read_bytes() for path in (tmp_path / "pki").iterdir()} == before
        assert (await api.call("GET", "/readyz")).status == 200


def _file_in_the_way(directory: Path) -> None:
    directory.write_text("")


def _another_database(directory: Path) -> None:
    directory.mkdir()
    connection = sqlite3.connect(directory / "store.db")
    connection.execute("CREATE TABLE t (x)")
    connection.close()


def _damaged_store(directory: Path) -> None:
    directory.mkdir()
    (directory / "store.db").write_bytes(b"SQLite format 3\x00" + b"\x01" * 200)


def _odd_key(directory: Path) -> None:
    (directory / "pki").mkdir(parents=True)
    (directory / "pki" / "ca.crt").write_text("no certificate")
    (directory / "pki" / "ca.key").write_text("no key")


def _odd_token(directory: Path) -> None:
    (directory / "tokens").mkdir(parents=True)
    (directory / "tokens" / "admin").write_text("short\n")


def _kubeconfig_is_a_directory(directory: Path) -> None:
    (directory / "kubeconfig").mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "want"),
    [
        pytest.param(_file_in_the_way, "File exists; choose another", id="a file in its place"),
        pytest.param(_another_database, "is a database of another program", id="another database"),
        pytest.param(_damaged_store, "store.db: is", id="a damaged store"),
        pytest.param(_odd_key, "ca.crt: holds no certificate; put the", id="no certificate"),
        pytest.param(_odd_token, "admin: is not a token of 16 or more", id="no token"),
        pytest.param(_kubeconfig_is_a_directory, "kubeconfig: cannot be read", id="no file"),
    ],
)
async def test_files_that_cannot_be_used(
    tmp_path: Path, spoil: Callable[[Path], None], want: str
) -> None:
    """What is wrong with the files is said in one line, and the server does not start."""
    directory = tmp_path / "data"
    spoil(directory)
    with pytest.raises(StartError) as refused:
        await _start(directory)
    assert want in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param({"host": "a b"}, "'a b' is neither a host name nor an address", id="host"),
        pytest.param({"nodes": ("A_b",)}, "'A_b' is not a valid node name", id="node"),
        pytest.param(
            {"allocation": AllocationSettings(("nope",))}, "nope is no range", id="no range"
        ),
        pytest.param(
            {"allocation": AllocationSettings(("10.0.0.0/24", "10.1.0.0/24"))},
            "there must be one range of cluster IPs, or one of each family",
            id="two ranges of a family",
        ),
        pytest.param(
            {"allocation": AllocationSettings(first_node_port=5, last_node_port=4)},
            "5-4 is no range of ports",
            id="no ports",
        ),
        pytest.param({"host": "192.0.2.1"}, "cannot listen at 192.0.2.1", id="another machine"),
    ],
)
async def test_settings_that_cannot_be_followed(
    tmp_path: Path, settings: JsonObject, want: str
) -> None:
    """A bad setting is told in one line, and leaves the directory free for the next start."""
    with pytest.raises(StartError) as refused:
        await _start(tmp_path, **settings)
    assert want in str(refused.value)
    await _start(tmp_path)


async def test_a_full_disk_at_the_first_start(tmp_path: Path) -> None:
    """When not even the namespaces can be written, the server says so and does not start."""
    server = ApiServer(ServerSettings(data_dir=tmp_path, port=0))
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StartError, match=r"store\.db: "):
            await server.start()
    finally:
        connection.close()


async def test_dual_stack(tmp_path: Path) -> None:
    """With a range of each family Services get an address of each when they want."""
    both = AllocationSettings(("10.96.0.0/24", "fd00::/112"))
    async with serving(tmp_path, allocation=both) as api:
        created = await api.create(SERVICES, _service("one", ipFamilyPolicy="PreferDualStack"))
        assert created["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
        assert len(created["spec"]["clusterIPs"]) == 2


async def test_stopping_ends_everything(tmp_path: Path) -> None:
    """A stopped server has no task, no connection and no file left; stopping twice does no harm."""
    before = asyncio.all_tasks()
    async with serving(tmp_path) as api:
        await api.create(CONFIGMAPS, {"metadata": {"name": "one"}})
        async with api.watch(CONFIGMAPS) as events:
            assert await events.take(1) == [("ADDED", "one")]
    await api.server.stop()
    assert asyncio.all_tasks() <= before
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    await _start(tmp_path)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(tmp_path: Path, number: signal.Signals) -> None:
    """A server that runs says once where it is, and ends in good order on a signal."""
    said: list[str] = []
    urls: list[str] = []

    def on_ready(message: ReadyMessage) -> None:
        said.append(message.text)
        urls.append(message.url)
        os.kill(os.getpid(), number)

    run_apiserver(ServerSettings(data_dir=tmp_path, port=0), on_ready=on_ready)
    server = yaml.safe_load((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]
    assert urls == [server["server"]]
    assert said == [
        f"keepclose apiserver ready at {server['server']} (kubeconfig: {tmp_path}/kubeconfig)"
    ]
