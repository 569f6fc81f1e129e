"""Files that cannot be used: each is named with what is wrong and what to do, and left alone."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.storage.files import APPLICATION_ID, DATA_FILE, FORMAT, LOCK_FILE
from keepclose.apiserver.storage.store import Store

FILES = [DATA_FILE, f"{DATA_FILE}-mark", f"{DATA_FILE}-reserve", LOCK_FILE]


def make(name: str, text: str = "some text") -> dict[str, Any]:
    """Return an object with a name and some content."""
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"text": text}}


def fill(directory: Path, *, count: int = 200) -> Path:
    """Make a store of many objects; return its file."""
    store = Store.open(directory)
    for number in range(count):
        store.create("pods", make(f"p{number:04}", f"text-{number:04}" * 50))
    store.close()
    return directory / DATA_FILE


def fill_and_crash(directory: Path) -> Path:
    """Make a store and leave it as a killed process does, with its write-ahead log."""
    store = Store.open(directory / "alive")
    for number in range(200):
        store.create("pods", make(f"p{number:04}", f"text-{number:04}" * 50))
    for path in (directory / "alive").glob(f"{DATA_FILE}*"):
        if not path.name.endswith("-shm"):
            shutil.copy(path, directory / path.name)
    store.close()
    shutil.rmtree(directory / "alive")
    return directory / DATA_FILE


def write_two(store: Store) -> None:
    """Write two objects, too large for the little room that there is, in one batch."""
    with store.batch():
        store.create("pods", make("x", "x" * 10_000))
        store.create("pods", make("y", "y" * 10_000))


def digests(directory: Path) -> dict[str, str]:
    """Return what is in the directory, apart from the lock."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.name != LOCK_FILE
    }


def refusal(directory: Path) -> str:
    """Return why the store cannot be opened, having checked that nothing was touched."""
    before = digests(directory)
    with pytest.raises(StorageError) as error:
        Store.open(directory)
    assert digests(directory) == before
    assert error.value.path == directory / DATA_FILE
    assert str(error.value) == f"{error.value.path}: {error.value.what}; {error.value.advice}"
    assert "another directory" in error.value.advice or "move store.db* away" in error.value.advice
    return error.value.what


def overwrite(path: Path, data: bytes, *, at: int) -> None:
    """Write bytes into a file in place."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_new_directory_is_made(tmp_path: Path) -> None:
    """The store makes its directory and marks its file as its own."""
    store = Store.open(tmp_path / "a" / "b")
    store.close()
    connection = sqlite3.connect(tmp_path / "a" / "b" / DATA_FILE)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == FILES


def test_an_unfinished_file_does_no_harm(tmp_path: Path) -> None:
    """What a crash left behind while the file was being made is thrown away."""
    (tmp_path / f"{DATA_FILE}.new").write_bytes(b"half of a file")
    (tmp_path / f"{DATA_FILE}.new-journal").write_bytes(b"its journal")
    Store.open(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(b"", "is empty, which a store never is", id="empty"),
        pytest.param(b"apiVersion: v1\n", "is not a store of keepclose", id="short text"),
        pytest.param(b"x" * 5000, "is not a store of keepclose", id="long text"),
        pytest.param(b"SQLite form", "is damaged: it ends within its header", id="cut in magic"),
    ],
)
def test_a_file_of_another_sort_is_left_alone(tmp_path: Path, content: bytes, want: str) -> None:
    """Whatever is no SQLite file is refused."""
    (tmp_path / DATA_FILE).write_bytes(content)
    assert refusal(tmp_path) == want


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_another_program_is_left_alone(tmp_path: Path, mode: str) -> None:
    """A foreign SQLite file is refused before SQLite could touch it."""
    connection = sqlite3.connect(tmp_path / DATA_FILE)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("CREATE TABLE log (version INTEGER PRIMARY KEY)")
    connection.commit()
    connection.close()
    assert refusal(tmp_path) == "is a database of another program"


@pytest.mark.parametrize(
    ("number", "want"),
    [
        pytest.param(
            FORMAT + 1,
            "was written by a newer keepclose (format 3, known is 2)",
            id="one that is still to come",
        ),
        pytest.param(
            0, "is damaged: it has format 0, which does not exist", id="one that never was"
        ),
    ],
)
def test_a_file_of_another_format_is_left_alone(tmp_path: Path, number: int, want: str) -> None:
    """Only known formats are read."""
    path = fill(tmp_path)
    overwrite(path, number.to_bytes(4, "big"), at=60)
    assert refusal(tmp_path) == want


def test_a_truncated_file_is_noticed(tmp_path: Path) -> None:
    """A file that is shorter than it says is refused, wherever it was cut."""
    path = fill(tmp_path)
    size = path.stat().st_size
    for kept in (50, 100, 4096, size // 2, size - 1):
        os.truncate(path, kept)
        assert refusal(tmp_path).startswith("is damaged: it ")
        for leftover in tmp_path.glob(f"{DATA_FILE}*"):
            leftover.unlink()
        path = fill(tmp_path)


def _random_page(path: Path) -> None:
    overwrite(path, os.urandom(4096), at=path.stat().st_size // 8192 * 4096)


def _zero_page(path: Path) -> None:
    overwrite(path, bytes(4096), at=path.stat().st_size // 8192 * 4096)


def _one_letter(path: Path) -> None:
    place = path.read_bytes().rindex(b"text-0100")
    overwrite(path, b"T", at=place)


def _broken_json(path: Path) -> None:
    place = path.read_bytes().index(b'{"metadata":{"name":"p0100"')
    overwrite(path, b"[", at=place)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_random_page, id="a page of noise"),
        pytest.param(_zero_page, id="a page of zeros"),
        pytest.param(_one_letter, id="one other letter in an object"),
        pytest.param(_broken_json, id="an object that is no JSON"),
    ],
)
def test_damage_within_the_file_is_noticed(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """A file with a single wrong byte in an object is refused, and so is any broken page."""
    path = fill(tmp_path)
    damage(path)
    assert refusal(tmp_path).startswith("is damaged: ")


def test_damage_beside_a_write_ahead_log_is_noticed(tmp_path: Path) -> None:
    """After a crash, file and log are both read, and both stay when they are of no use."""
    path = fill_and_crash(tmp_path)
    wal = path.with_name(f"{DATA_FILE}-wal")
    assert wal.stat().st_size > 0
    connection = sqlite3.connect(path)
    connection.execute("UPDATE log SET data = CAST('{' AS BLOB) WHERE version = 9")
    connection.commit()
    shutil.copy(wal, tmp_path / "kept-wal")
    shutil.copy(path, tmp_path / "kept")
    connection.close()
    (tmp_path / "kept-wal").rename(wal)
    (tmp_path / "kept").rename(path)
    want = "is damaged: row 9 of its log cannot be used: the checksum does not match"
    assert refusal(tmp_path) == want


def test_a_log_without_its_file_is_not_taken_for_that_of_a_new_one(tmp_path: Path) -> None:
    """Whoever moves the file alone away is told about the rest of it."""
    fill_and_crash(tmp_path).unlink()
    want = f"is missing, while {DATA_FILE}-wal with its latest writes is there"
    assert refusal(tmp_path) == want


def test_a_crash_leaves_a_file_that_can_be_used(tmp_path: Path) -> None:
    """File and write-ahead log together give everything."""
    fill_and_crash(tmp_path)
    store = Store.open(tmp_path)
    assert (store.version, store.count("pods")) == (201, 200)
    store.close()


@pytest.mark.parametrize(
    ("statement", "want"),
    [
        pytest.param(
            "DELETE FROM log WHERE version = 50",
            "row 51 of its log cannot be used: version 50 is missing",
            id="a missing row",
        ),
        pytest.param(
            "UPDATE log SET name = 'q' WHERE version = 50",
            "row 50 of its log cannot be used: the checksum does not match",
            id="another name",
        ),
        pytest.param(
            "INSERT INTO floors VALUES ('pods', 'x')",
            "'pods' cannot have been compacted up to 'x'",
            id="a floor that is no version",
        ),
        pytest.param(
            "INSERT INTO floors VALUES ('pods', 202)",
            "row 202 of its log cannot be used: it should have been removed",
            id="a deletion below the floor",
        ),
        pytest.param("DROP TABLE floors", "no such table: floors", id="a missing table"),
    ],
)
def test_rows_that_do_not_fit_together_are_noticed(
    tmp_path: Path, statement: str, want: str
) -> None:
    """A log that cannot have come about by writing is refused."""
    path = fill(tmp_path)
    store = Store.open(tmp_path)
    store.delete("pods", "default", "p0000")
    store.close()
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    assert refusal(tmp_path) == f"is damaged: {want}"


def test_a_directory_that_cannot_be_written_is_named() -> None:
    """The error names the directory and says why."""
    with pytest.raises(StorageError) as error:
        Store.open(Path("/proc/keepclose"))
    assert str(error.value) == (
        "/proc/keepclose: cannot be written: No such file or directory;"
        " choose a directory that this user may write to"
    )


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    """A path that is a file already cannot be the directory."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match="cannot be written: File exists"):
        Store.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    """What cannot be read as a file is refused."""
    (tmp_path / DATA_FILE).mkdir()
    with pytest.raises(StorageError, match="is not a regular file"):
        Store.open(tmp_path)


def test_two_servers_cannot_share_a_store(tmp_path: Path) -> None:
    """The second one is told which process has it, also within one process."""
    store = Store.open(tmp_path)
    before = digests(tmp_path)
    program = (
        "import sys; from pathlib import Path; from keepclose.apiserver.storage.store import *\n"
        "try: Store.open(Path(sys.argv[1]))\n"
        "except StorageError as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    want = (
        f"{tmp_path / DATA_FILE}: is in use by another server, process {os.getpid()};"
        " stop that one first, or choose another directory"
    )
    assert run.stdout.strip() == want
    with pytest.raises(StorageError, match="in use"):
        Store.open(tmp_path)
    assert digests(tmp_path) == before
    store.close()
    Store.open(tmp_path).close()


def test_a_refused_store_is_not_kept_locked(tmp_path: Path) -> None:
    """Once the file is put right, the store opens in the same process."""
    path = fill(tmp_path)
    good = path.read_bytes()
    overwrite(path, b"x", at=0)
    refusal(tmp_path)
    path.write_bytes(good)
    store = Store.open(tmp_path)
    assert store.count("pods") == 200
    store.close()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond the size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("synchronous", ["normal", "full"])
def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path, synchronous: Any) -> None:
    """A write that cannot be stored changes nothing, and the next one works when the disk does."""
    store = Store.open(tmp_path, synchronous=synchronous)
    store.create("pods", make("a"))
    watch = store.subscribe("pods", since=None)
    wal = tmp_path / f"{DATA_FILE}-wal"
    with full_disk(wal.stat().st_size + 2000):
        with pytest.raises(StorageError) as error:
            store.create("pods", make("b"))
        with pytest.raises(StorageError):
            write_two(store)
        assert (store.version, store.count("pods"), watch.pending) == (2, 1, 0)
    assert error.value.path == tmp_path / DATA_FILE
    assert error.value.what.startswith("cannot be written: ")
    assert error.value.advice == "check the disk; the write was not stored and may be retried"
    assert store.create("pods", make("b")).version == 3
    assert watch.pending == 1
    store.close()
    store = Store.open(tmp_path)
    assert (store.version, store.count("pods")) == (3, 2)
    store.close()


def test_a_store_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Without room for a new file nothing is left in its place."""
    with full_disk(1000), pytest.raises(StorageError, match="cannot be created: "):
        Store.open(tmp_path)
    assert not (tmp_path / DATA_FILE).exists()
    Store.open(tmp_path).close()


def test_old_versions_that_cannot_be_removed_fail_no_write(tmp_path: Path) -> None:
    """When only tidying up fails, writes go on; it is tried again from time to time, not always."""
    store = Store.open(tmp_path, history=1)
    log = store._log
    assert log is not None
    log._connection.execute("ALTER TABLE floors RENAME TO hidden")
    store.create("pods", make("a"))
    with capture_logs() as logs:
        for _ in range(200):
            store.update("pods", make("a"))
    assert store.version == 202
    assert [line["event"] for line in logs] == ["compaction of the store failed"] * 3
    with pytest.raises(StorageError, match="no such table: floors"):
        store.compact()
    log._connection.execute("ALTER TABLE hidden RENAME TO floors")
    store.compact()
    assert log._connection.execute("SELECT version FROM log").fetchall() == [(202,)]
    store.close()


def test_a_closed_store_takes_no_writes(tmp_path: Path) -> None:
    """A write after the end is refused rather than kept in memory only."""
    store = Store.open(tmp_path)
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.create("pods", make("a"))
    assert store.count("pods") == 0


def test_a_file_that_another_program_writes_to_is_waited_for_and_then_named(
    tmp_path: Path,
) -> None:
    """A foreign lock on the file fails the write and nothing else."""
    store = Store.open(tmp_path)
    other = sqlite3.connect(tmp_path / DATA_FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="database is locked"):
        store.create("pods", make("a"))
    with pytest.raises(StorageError, match="database is locked"):
        write_two(store)
    other.execute("ROLLBACK")
    other.close()
    assert store.create("pods", make("a")).version == 2
    store.close()


def test_a_file_that_cannot_be_written_shows_itself_at_the_start(tmp_path: Path) -> None:
    """A store that could only be read is refused, not found out at the first write."""
    path = fill(tmp_path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="cannot be written: database is locked"):
        Store.open(tmp_path)
    other.execute("ROLLBACK")
    other.close()


@pytest.mark.parametrize(("synchronous", "want"), [("normal", 1), ("full", 2)])
def test_the_disk_is_waited_for_as_asked(tmp_path: Path, synchronous: Any, want: int) -> None:
    """SQLite is told how sure to be."""
    store = Store.open(tmp_path, synchronous=synchronous)
    assert store._log is not None
    assert store._log._connection.execute("PRAGMA synchronous").fetchone() == (want,)
    store.close()


def test_only_the_owner_can_read_what_is_stored(tmp_path: Path) -> None:
    """Config maps hold secrets now and then."""
    store = Store.open(tmp_path)
    store.create("configmaps", {"metadata": {"name": "a", "namespace": "b", "uid": "c"}})
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    store.close()
    assert modes.pop("store.db-wal") == 0o600
    assert set(modes.values()) == {0o600}
