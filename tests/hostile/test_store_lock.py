"""One server has a data directory, whatever becomes of its lock file or of the directory's name."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.storage.store import Store
from support.server_processes import NotStartedError, embedded_server, start_embedded


def make(name: str) -> dict[str, Any]:
    """Return an object with a name."""
    return {"metadata": {"name": name, "namespace": "default"}}


def test_removing_the_lock_lets_no_second_server_start(tmp_path: Path) -> None:
    """Without its lock file, or with another in its place, the directory is still in use."""
    with embedded_server(tmp_path / "data") as server:
        lock = server.directory / "store.lock"
        lock.unlink()
        with pytest.raises(NotStartedError, match="is in use by another server"):
            start_embedded(server.directory)
        lock.write_text("1\n")
        with pytest.raises(NotStartedError, match="is in use by another server, process 1"):
            start_embedded(server.directory)
        lock.unlink()
        lock.mkdir()
        with pytest.raises(NotStartedError, match="is in use by another server"):
            start_embedded(server.directory)
        lock.rmdir()
        assert server.process.poll() is None


def test_a_moved_directory_stays_locked(tmp_path: Path) -> None:
    """Under its new name the directory is still in use; the old name is free for another store."""
    store = Store.open(tmp_path / "old")
    store.create("pods", make("a"))
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "new" / "store.lock").unlink()
    with pytest.raises(StorageError, match="is in use by another server"):
        Store.open(tmp_path / "new")
    # NB: what is written now could be looked for under the old name, so it is refused.
    assert store.find_problem() == "store.db was moved, removed or replaced while in use"
    with pytest.raises(StorageError, match="moved, removed or replaced"):
        store.create("pods", make("b"))
    (tmp_path / "new").rename(tmp_path / "old")
    assert store.find_problem() == ""
    store.create("pods", make("b"))
    store.close()
    store = Store.open(tmp_path / "old")
    assert store.count("pods") == 2
    store.close()


@pytest.mark.parametrize("name", ["store.db", "store.db-wal"])
def test_files_that_are_removed_in_use_take_no_more_writes(tmp_path: Path, name: str) -> None:
    """A write into a file without a name would be lost with the process, so it is refused."""
    store = Store.open(tmp_path)
    store.create("pods", make("a"))
    assert store.find_problem() == ""
    (tmp_path / name).rename(tmp_path / "aside")
    shutil.copy(tmp_path / "aside", tmp_path / name)
    assert store.find_problem() == f"{name} was moved, removed or replaced while in use"
    with pytest.raises(StorageError, match="moved, removed or replaced"):
        store.create("pods", make("b"))
    assert store.count("pods") == 1
    (tmp_path / "aside").replace(tmp_path / name)
    store.create("pods", make("b"))
    store.close()


def test_hard_links_to_the_files_stay_locked(tmp_path: Path) -> None:
    """A directory that shares the files by hard links cannot be used beside the first one."""
    store = Store.open(tmp_path / "data")
    store.create("pods", make("a"))
    for name in ("store.db", "store.db-mark"):
        copies = tmp_path / f"linked-{name}"
        copies.mkdir()
        for other in ("store.db", "store.db-mark", "store.db-wal"):
            source = tmp_path / "data" / other
            if other == name:
                (copies / other).hardlink_to(source)
            else:
                shutil.copy(source, copies / other)
        with pytest.raises(StorageError, match="is in use by another server"):
            Store.open(copies)
    store.create("pods", make("b"))
    store.close()


def test_a_lock_that_is_a_link_to_another_file_does_it_no_harm(tmp_path: Path) -> None:
    """A hard or symbolic link in the place of the lock is refused, and its target stays."""
    (tmp_path / "data").mkdir()
    (tmp_path / "precious").write_text("content")
    lock = tmp_path / "data" / "store.lock"
    lock.hardlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match=r"store\.lock: is a hard link to another file; remove"):
        Store.open(tmp_path / "data")
    lock.unlink()
    lock.symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match=r"store\.lock: cannot be written: "):
        Store.open(tmp_path / "data")
    assert (tmp_path / "precious").read_text() == "content"
    lock.unlink()
    Store.open(tmp_path / "data").close()


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel cannot lock, as on some network file systems, nothing is started."""

    def refuse(handle: int, operation: int) -> None:
        del handle, operation
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError) as error:
        Store.open(tmp_path / "data")
    assert str(error.value) == (
        f"{tmp_path}/data: cannot be locked: No locks available; "
        "choose a directory on a file system of this machine"
    )


def test_the_lock_does_not_end_that_of_sqlite(tmp_path: Path) -> None:
    """Descriptors of our own leave SQLite's locks on the file in place, which others respect."""
    store = Store.open(tmp_path)
    store.create("pods", make("a"))
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        # NB: needs the whole file, which the store shares as long as it is open.
        other.execute("PRAGMA journal_mode = DELETE").fetchone()
    other.close()
    store.close()
