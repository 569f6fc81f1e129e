"""Damage to the files of a data directory beside the store: certificates, keys, tokens and so on.

Each start either serves clients as before, by the tokens and the CA that they hold, or names the
damaged file. `KEEPCLOSE_FLIPS` sets how many bits are flipped, a tenth of it in each file.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

from keepclose.apiserver.assembly import ApiServer, ServerSettings, StartError
from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.storage.store import Store
from support.server_processes import NotStartedError, embedded_server, start_embedded

FLIPS: Final = int(os.environ.get("KEEPCLOSE_FLIPS", "200")) // 10 or 1


def flip(path: Path, rng: random.Random) -> str:
    """Invert one bit of a file; return which."""
    content = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {path.name}"


class DataDirectory(NamedTuple):
    """The data directory of a server that has run, and what its clients hold of it."""

    path: Path
    files: dict[str, bytes]
    tokens: dict[str, str]


def settings_of(directory: Path) -> ServerSettings:
    """Return how the server of a data directory is started."""
    return ServerSettings(data_dir=directory, port=0, nodes=("n1",))


async def started(directory: Path) -> ApiServer:
    """Start a server on a data directory; raises StartError."""
    server = ApiServer(settings_of(directory))
    await server.start()
    return server


@pytest.fixture(scope="module")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> DataDirectory:
    """Provide the data directory of a server that was stopped."""
    path = tmp_path_factory.mktemp("data-directory") / "data"

    async def run() -> None:
        await (await started(path)).stop()

    asyncio.run(run())
    files = {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }
    tokens = {file.name: file.read_text().strip() for file in (path / "tokens").iterdir()}
    return DataDirectory(path, files, tokens)


async def _start_outcome(directory: Path, known: DataDirectory) -> str:
    """Return "works" or the refusal, having checked that clients are served as before."""
    try:
        server = await started(directory)
    except StartError as error:
        message = str(error)
        assert str(directory) in message
        return message
    try:
        for name, token in known.tokens.items():
            assert server._tokens.find(token) is not None, f"{name} is locked out"
            assert (directory / "tokens" / name).read_text().strip() == token
        context = ssl.create_default_context(cadata=known.files["pki/ca.crt"].decode())
        port = int(server.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.close()
        for name in ("kubeconfig", "viewer.kubeconfig", "node-n1.kubeconfig"):
            held = yaml.safe_load((directory / name).read_text())
            assert held["users"][0]["user"]["token"] in known.tokens.values()
    finally:
        await server.stop()
    return "works"


@pytest.mark.parametrize(
    ("name", "least_refused"),
    [
        ("pki/ca.crt", 0.9),
        ("pki/ca.key", 0.9),
        ("pki/server.crt", 0.3),
        ("pki/server.key", 0.9),
        ("tokens/admin", 0.9),
        ("tokens/node-n1", 0.9),
        ("kubeconfig", 0),
        ("node-n1.kubeconfig", 0),
        ("store.lock", 0),
        ("store.db-reserve", 0),
    ],
)
async def test_no_flipped_bit_in_another_file_goes_unnoticed(
    data_directory: DataDirectory, tmp_path: Path, name: str, least_refused: float
) -> None:
    """Clients that hold tokens and the CA are served as before, or the start names the file."""
    rng = random.Random(name)
    refused = 0
    for number in range(FLIPS):
        directory = tmp_path / str(number)
        shutil.copytree(data_directory.path, directory)
        what = flip(directory / name, rng)
        try:
            answer = await _start_outcome(directory, data_directory)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error
        if answer != "works":
            assert str(directory / name) in answer, what
            refused += 1
        shutil.rmtree(directory)
    assert refused >= least_refused * FLIPS


@pytest.mark.parametrize("name", ["ca", "server"])
@pytest.mark.parametrize(
    ("intact", "flipped"),
    [
        pytest.param("a003020102", "a003020122", id="a version that there never was"),
        pytest.param("0603551d0e", "0603551d0f", id="the same extension twice"),
    ],
)
async def test_a_certificate_that_cannot_be_read_is_named(
    data_directory: DataDirectory, tmp_path: Path, name: str, intact: str, flipped: str
) -> None:
    """A flipped bit that leaves the form of a certificate whole is refused by the file's name."""
    directory = tmp_path / "data"
    shutil.copytree(data_directory.path, directory)
    path = directory / f"pki/{name}.crt"
    content = ssl.PEM_cert_to_DER_cert(path.read_text())
    assert content.count(bytes.fromhex(intact)) == 1
    content = content.replace(bytes.fromhex(intact), bytes.fromhex(flipped))
    path.write_text(ssl.DER_cert_to_PEM_cert(content))
    assert str(path) in await _start_outcome(directory, data_directory)


async def test_a_key_that_only_openssl_refuses_is_named(
    data_directory: DataDirectory, tmp_path: Path
) -> None:
    """It is the key that is named, and not the certificate beside it."""
    directory = tmp_path / "data"
    shutil.copytree(data_directory.path, directory)
    path = directory / "pki/server.key"
    path.write_bytes(path.read_bytes().removesuffix(b"\n") + b"*")
    assert str(path) in await _start_outcome(directory, data_directory)


def _link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _link_to_file(path: Path) -> None:
    path.symlink_to(path.with_name("store.lock"))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, _link_to_nowhere, _link_to_file])
@pytest.mark.parametrize(
    "name", ["store.db", "store.db-wal", "store.db-shm", "store.db-mark", "store.db-reserve"]
)
def test_a_file_of_the_store_that_is_none_is_named(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """A pipe is not waited for, and no link is followed to a file elsewhere."""
    directory = tmp_path / "data"
    Store.open(directory).close()
    (directory / name).unlink(missing_ok=True)
    make(directory / name)
    with pytest.raises(StorageError, match=rf"{name}: is (a symbolic link|not a regular file)"):
        Store.open(directory)


async def test_cut_and_swapped_files_are_named(
    data_directory: DataDirectory, tmp_path: Path
) -> None:
    """Empty and half files are refused by name, and so are those of another data directory."""
    other = tmp_path / "other"
    await (await started(other)).stop()
    number = 0
    for name in ("pki/ca.crt", "pki/ca.key", "pki/server.key", "tokens/admin"):
        content = data_directory.files[name]
        damages = [b"", content[: len(content) // 2], bytes(len(content))]
        if name.startswith("pki/ca"):
            damages.append((other / name).read_bytes())
        for damage in damages:
            number += 1
            directory = tmp_path / str(number)
            shutil.copytree(data_directory.path, directory)
            (directory / name).write_bytes(damage)
            answer = await _start_outcome(directory, data_directory)
            assert str(directory / Path(name).parent) in answer


def test_a_server_process_refuses_a_flipped_log_and_recovers_when_asked(tmp_path: Path) -> None:
    """A killed `keepclose apiserver` with one bit flipped in its log says so and does not start."""
    server = start_embedded(tmp_path / "data", "--no-controllers")
    server.kill()
    wal = server.directory / "store.db-wal"
    content = bytearray(wal.read_bytes())
    content[len(content) * 3 // 4] ^= 4
    wal.write_bytes(content)
    for _ in range(2):
        with pytest.raises(NotStartedError) as refusal:
            start_embedded(server.directory, "--no-controllers")
        last = str(refusal.value).splitlines()[-1]
        assert last.startswith(f"error: {wal}: is damaged: frame ")
        assert "--recover-store" in last
    with embedded_server(server.directory, "--no-controllers", "--recover-store") as recovered:
        assert "store recovered from damaged files" in recovered.log.read_text()
    with embedded_server(server.directory, "--no-controllers"):
        assert (server.directory / "store.db-mark").exists()
    assert [path.read_bytes() for path in server.directory.glob("store.db-wal.damaged-*")] == [
        bytes(content)
    ]
