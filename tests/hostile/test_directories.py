"""What another user leaves in the place of our directories and files is refused, never used."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keepclose.apiserver.assembly import ApiServer, ServerSettings, StartError
from keepclose.apiserver.auth.credentials import Tokens
from keepclose.lab.cluster.control import CallError, call_lab
from keepclose.lab.cluster.data_dir import (
    ClusterDirectory,
    ClusterDirectoryError,
    ClusterState,
    claim_data_dir,
    is_held,
)
from keepclose.system.private_files import (
    BrokenFileError,
    ForeignDirectoryError,
    PrivateDirectory,
    open_append,
    read_private,
    write_private,
)
from support.server_processes import NotStartedError, start_embedded

NOBODY = 65534
STATE = ClusterState(7, "https://127.0.0.1:6443", "/k", {"zone-a": ["n1"]}, packets=True)
_AS_NOBODY = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


def as_nobody(script: str, *arguments: str) -> None:
    """Run a shell script as the user nobody."""
    subprocess.run(
        [*_AS_NOBODY, "sh", "-euc", script, "sh", *arguments],
        check=True,
    )


@pytest.fixture
def common() -> Iterator[Path]:
    """Return a directory where every user can write, with the sticky bit, such as /tmp is."""
    directory = Path(tempfile.mkdtemp(prefix="keepclose-hostile-"))
    directory.chmod(0o1777)
    yield directory
    shutil.rmtree(directory)


@as_root
def test_a_planted_token_is_never_good(common: Path) -> None:
    """A server in a directory of another user does not start, so that its token opens nothing."""
    data = common / "data"
    as_nobody(
        'mkdir "$1" "$1/tokens"; echo 0123456789abcdef0123456789 > "$1/tokens/admin"', str(data)
    )
    with pytest.raises(StartError, match=r"belongs to another user \(65534\); choose a directory"):
        ApiServer(ServerSettings(data_dir=data, port=0))
    assert sorted(path.name for path in data.rglob("*")) == ["admin", "tokens"]


@as_root
@pytest.mark.parametrize("name", ["tokens", "pki"])
def test_a_planted_inner_directory_stops_the_start(tmp_path: Path, name: str) -> None:
    """Directories within ours are looked at as it is itself."""
    data = tmp_path / "data"
    (data / name).mkdir(parents=True)
    shutil.chown(data / name, NOBODY)
    with pytest.raises(StartError, match="belongs to another user"):
        ApiServer(ServerSettings(data_dir=data, port=0))


@as_root
def test_a_planted_file_in_our_directory_stops_the_start(tmp_path: Path) -> None:
    """A token of another user in a directory of ours counts for nothing."""
    data = tmp_path / "data"
    (data / "tokens").mkdir(parents=True)
    (data / "tokens" / "admin").write_text("0123456789abcdef0123456789")
    shutil.chown(data / "tokens" / "admin", NOBODY)
    with pytest.raises(StartError, match="tokens/admin: belongs to another user"):
        ApiServer(ServerSettings(data_dir=data, port=0))


@as_root
def test_a_cluster_refuses_the_directory_of_another_user(common: Path) -> None:
    """Neither is it used, nor is anything in it read, written, removed or signalled."""
    data, victim = common / "data", common / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        script = 'mkdir "$1"; ln -s "$2" "$1/lab.new"; ln -s "$2" "$1/lab.json"; '
        as_nobody(script + 'echo "$3 0" > "$1/lab.lock"', str(data), str(victim), str(sleeper.pid))
        home = ClusterDirectory(data, is_kept=True)
        for act in (claim_data_dir, is_held, ClusterDirectory.read_state, ClusterDirectory.clear):
            with pytest.raises(ClusterDirectoryError, match="belongs to another user"):
                act(home)
        with pytest.raises(ForeignDirectoryError):
            home.write_state(STATE)
        down = subprocess.run(
            [sys.executable, "-m", "keepclose", "down", "--data-dir", str(data)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert (down.returncode, sleeper.poll()) == (1, None)
        assert "belongs to another user" in down.stderr
        assert victim.read_text() == "precious"
    finally:
        sleeper.kill()
        sleeper.wait()


@as_root
def test_a_planted_control_socket_is_not_asked(common: Path) -> None:
    """A command sends nothing to a socket in a directory of another user, or one of its process."""
    foreign = common / "foreign"
    as_nobody('mkdir "$1"', str(foreign))
    ours = common / "ours"
    ours.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(foreign / "lab.sock"))
        listener.listen()
        with pytest.raises(CallError, match="belongs to another user") as caught:
            call_lab(foreign, "status", {})
        assert caught.value.code == 5
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    code = (
        "import os, socket, sys\n"
        "one = socket.socket(socket.AF_UNIX); one.bind(sys.argv[1])\n"
        "os.setuid(65534); one.listen(); print('ready', flush=True)\n"
        "print(one.accept()[0].recv(100), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(ours / "lab.sock")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(CallError, match="belongs to another user"):
            call_lab(ours, "status", {})
        assert process.stdout.readline() == b"b''\n"


@as_root
def test_a_parent_of_another_user_is_refused(common: Path) -> None:
    """Who has the directory above could exchange ours for another at any time."""
    as_nobody('mkdir "$1"; chmod 755 "$1"', str(common / "theirs"))
    with pytest.raises(ForeignDirectoryError, match="could be replaced by another user"):
        PrivateDirectory.open(common / "theirs" / "data", make=True)


@as_root
def test_the_home_of_who_called_sudo_is_good(common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sudo the home directory may be that of the caller, who is root by the same right."""
    as_nobody('mkdir "$1"; chmod 755 "$1"', str(common / "theirs"))
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    PrivateDirectory.open(common / "theirs" / "data", make=True).close()


@as_root
def test_a_link_of_another_user_is_not_followed(common: Path) -> None:
    """A symbolic link in the place of the directory counts when root or this user made it."""
    ours = common / "ours"
    ours.mkdir(mode=0o700)
    as_nobody('ln -s "$1" "$2"', str(ours), str(common / "theirs"))
    with pytest.raises((ForeignDirectoryError, PermissionError)):
        PrivateDirectory.open(common / "theirs")
    (common / "link").symlink_to(ours)
    PrivateDirectory.open(common / "link").close()


def test_a_parent_where_everyone_can_write_is_refused(tmp_path: Path) -> None:
    """Without the sticky bit others may rename what they do not own."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ForeignDirectoryError, match=r"open can be written by every user; choose"):
        PrivateDirectory.open(tmp_path / "open" / "data", make=True)
    (tmp_path / "open").chmod(0o1777)
    PrivateDirectory.open(tmp_path / "open" / "data").close()


def test_our_directory_is_closed_or_refused(tmp_path: Path) -> None:
    """What others can read is closed to them; what they could write to is refused with a fix."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    PrivateDirectory.open(data).close()
    assert data.stat().st_mode & 0o777 == 0o700
    data.chmod(0o777)
    with pytest.raises(ForeignDirectoryError, match=f"then: chmod 700 {data}"):
        PrivateDirectory.open(data)


def _link(path: Path) -> None:
    path.with_name("target").write_text("precious")
    path.symlink_to(path.with_name("target"))


def _hard_link(path: Path) -> None:
    path.with_name("target").write_text("precious")
    path.hardlink_to(path.with_name("target"))


def _pipe(path: Path) -> None:
    os.mkfifo(path)


PLANTED = [
    pytest.param(_link, id="symbolic link"),
    pytest.param(_pipe, id="named pipe"),
    pytest.param(Path.mkdir, id="directory"),
]
Plant = Callable[[Path], None]


@pytest.mark.parametrize("plant", PLANTED)
def test_files_of_other_kinds_are_refused(tmp_path: Path, plant: Plant) -> None:
    """What is no plain file is named at once, without following it or waiting for it."""
    plant(tmp_path / "token")
    with pytest.raises(BrokenFileError, match="token"):
        read_private(tmp_path / "token")


@pytest.mark.parametrize("plant", [_link, _hard_link, _pipe])
def test_writing_replaces_the_name_and_not_the_target(tmp_path: Path, plant: Plant) -> None:
    """A file is put in the place of what has its name; what that led to stays as it is."""
    plant(tmp_path / "state")
    write_private(tmp_path / "state", b"new")
    assert (tmp_path / "state").read_bytes() == b"new"
    assert not (tmp_path / "state").is_symlink()
    if (tmp_path / "target").exists():
        assert (tmp_path / "target").read_text() == "precious"


@pytest.mark.parametrize("plant", [*PLANTED, pytest.param(_hard_link, id="hard link")])
@pytest.mark.parametrize("name", ["lab.lock", "store.lock"])
def test_locks_of_other_kinds_are_refused(tmp_path: Path, plant: Plant, name: str) -> None:
    """A lock is written in its place, so it must be a plain file with one name."""
    plant(tmp_path / name)
    if name == "lab.lock":
        with pytest.raises(ClusterDirectoryError, match=r"lab\.lock"):
            claim_data_dir(ClusterDirectory(tmp_path, is_kept=True))
    else:
        with pytest.raises(StartError, match=r"store\.lock|cannot be written"):
            ApiServer(ServerSettings(data_dir=tmp_path, port=0))
    if (tmp_path / "target").exists():
        assert (tmp_path / "target").read_text() == "precious"


@pytest.mark.parametrize("plant", [*PLANTED, pytest.param(_hard_link, id="hard link")])
def test_logs_of_other_kinds_are_refused(tmp_path: Path, plant: Plant) -> None:
    """A log is added to in its place, so it must be a plain file with one name."""
    plant(tmp_path / "up.log")
    with pytest.raises((BrokenFileError, OSError)):
        open_append(tmp_path / "up.log")


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        pytest.param(plant, name, id=f"{name}, {plant.__name__}")
        for plant in (_link, _pipe, Path.mkdir)
        for name in ("tokens", "tokens/admin", "pki", "pki/ca.crt", "kubeconfig", "store.db")
        if plant is not Path.mkdir or name not in ("tokens", "pki")
    ],
)
def test_a_server_names_what_is_in_its_way(tmp_path: Path, plant: Plant, name: str) -> None:
    """Whatever stands in the place of a file or directory, the start ends at once and names it."""
    data = tmp_path / "data"
    (data / name).parent.mkdir(parents=True, exist_ok=True)
    plant(data / name)
    with pytest.raises(NotStartedError) as caught:
        start_embedded(data)
    assert name.rpartition("/")[2] in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_token_that_leads_nowhere_does_not_hold_up_the_server(tmp_path: Path) -> None:
    """A node's token cannot be made in the place of a link to nowhere, which is named."""
    (tmp_path / "node-n1").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BrokenFileError, match="node-n1: is a symbolic link; remove it"):
        Tokens(tmp_path).of_node("n1")
