"""Damage to the files of a store after a kill: noticed with the file named, or without effect.

A store is left as a killed server leaves it, with a write-ahead log, after creates, updates,
deletes and compactions. Each test damages a copy and opens it: everything that was acknowledged is
there and the store takes writes, or it is refused by the name of a file. `KEEPCLOSE_FLIPS` sets how
many bits are flipped in each large file, 200 otherwise.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from structlog.testing import capture_logs

from keepclose.apiserver.storage.errors import DamagedError, StorageError
from keepclose.apiserver.storage.recovery import VERSION_GAP
from keepclose.apiserver.storage.store import Ahead, RevisionCompacted, Store

FLIPS: Final = int(os.environ.get("KEEPCLOSE_FLIPS", "200"))
DB, WAL, SHM, MARK = "store.db", "store.db-wal", "store.db-shm", "store.db-mark"
STORES: Final = ("configmaps", "pods")
HISTORY: Final = 40


def make(name: str, text: str) -> dict[str, Any]:
    """Return an object with a name and content."""
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"text": text}}


class Crashed(NamedTuple):
    """The files of a killed server and what it had acknowledged."""

    directory: Path
    state: tuple[object, ...]
    version: int
    # Copies of the files from before the last checkpoint.
    earlier: Path


def state_of(store: Store) -> tuple[object, ...]:
    """Return everything that clients can get to know of a store."""
    return (
        store.version,
        [[(entry.version, entry.data) for entry in store.entries(name)] for name in STORES],
        [
            [
                (change.version, change.frame)
                for change in store.subscribe(name, since=max(store.oldest_of(name), 1)).take()
            ]
            for name in STORES
        ],
    )


def copy_files(source: Path, target: Path) -> Path:
    """Copy the files of a store; return the directory of the copies."""
    target.mkdir()
    for name in (DB, WAL, SHM, MARK):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    return target


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashed]:
    """Provide a store that was written to in every way and then killed."""
    directory = tmp_path_factory.mktemp("crashed")
    rng = random.Random(7)
    store = Store.open(directory / "alive", history=HISTORY)
    log = store._log
    assert log is not None
    earlier = directory / "earlier"
    for number in range(150):
        store.create("configmaps", make(f"kept-{number:03}", f"{number:04}-" * 300))
    for number in range(400):
        kind = rng.choice(STORES)
        name = f"object-{rng.randrange(60):02}"
        text = f"{number:04}-" * rng.randrange(20, 400)
        if store.get(kind, "default", name) is None:
            store.create(kind, make(name, text))
        elif rng.random() < 0.25:
            store.delete(kind, "default", name)
        else:
            store.update(kind, make(name, text))
        if number == 150:
            copy_files(directory / "alive", earlier)
            log.shrink()
        if number == 300:
            log.shrink()
    left = copy_files(directory / "alive", directory / "left")
    assert (left / WAL).stat().st_size > 100_000
    # NB: history that is let go of in memory a little before it is on disk comes back, as it may.
    reopened = Store.open(copy_files(left, directory / "again"), history=HISTORY)
    assert reopened.version == store.version
    assert state_of(reopened) == state_of(store)
    reopened.close()
    yield Crashed(left, state_of(store), store.version, earlier)
    store.close()


def outcome(directory: Path, crashed: Crashed) -> str:
    """Return "whole" or the refusal, having checked that it is one of both."""
    refusal: StorageError | None = None
    try:
        store = Store.open(directory, history=HISTORY)
    except StorageError as error:
        refusal = error
    if refusal is not None:
        assert refusal.path.parent == directory
        assert refusal.path.name.startswith("store.")
        assert refusal.advice
        return f"{refusal.path.name}: {refusal.what}"
    try:
        assert state_of(store) == crashed.state
        written = store.create("pods", make("afterwards", "text"))
        assert written.version == crashed.version + 1
        store.compact()
        store.delete("pods", "default", "afterwards")
    finally:
        store.close()
    store = Store.open(directory, history=HISTORY)
    assert store.version == crashed.version + 2
    store.close()
    return "whole"


def flip(path: Path, rng: random.Random) -> str:
    """Invert one bit of a file; return which."""
    content = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {path.name}"


@pytest.mark.parametrize(
    ("name", "flips", "least_refused"),
    [
        pytest.param(DB, FLIPS, FLIPS // 4, id="the database"),
        pytest.param(WAL, FLIPS, FLIPS * 9 // 10, id="the write-ahead log"),
        pytest.param(MARK, FLIPS // 4, FLIPS // 4, id="the mark"),
        pytest.param(SHM, FLIPS // 8, 0, id="the index of the write-ahead log"),
    ],
)
def test_no_flipped_bit_goes_unnoticed(
    crashed: Crashed, tmp_path: Path, name: str, flips: int, least_refused: int
) -> None:
    """Every flip is refused by the name of a file, or every acknowledged write is there."""
    rng = random.Random(f"{name} {flips}")
    refused = 0
    for number in range(flips):
        directory = copy_files(crashed.directory, tmp_path / str(number))
        what = flip(directory / name, rng)
        try:
            refused += outcome(directory, crashed) != "whole"
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error
        shutil.rmtree(directory)
    assert refused >= least_refused


def test_a_flipped_bit_in_the_log_is_named_with_what_is_lost(
    crashed: Crashed, tmp_path: Path
) -> None:
    """The refusal names the write-ahead log, the frame, and the versions that are missing."""
    directory = copy_files(crashed.directory, tmp_path / "data")
    content = bytearray((directory / WAL).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / WAL).write_bytes(content)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(DamagedError) as refusal:
        Store.open(directory)
    assert refusal.value.path == directory / WAL
    assert "does not match its checksum; versions " in refusal.value.what
    assert f" to {crashed.version} were acknowledged and are missing" in refusal.value.what
    assert "--recover-store" in refusal.value.advice
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    del after["store.lock"]
    before.pop(SHM, None)
    after.pop(SHM, None)
    assert after == before


def test_recovery_keeps_the_damaged_files_and_never_repeats_a_version(
    crashed: Crashed, tmp_path: Path
) -> None:
    """What is intact is served, versions begin beyond all lost ones, and older watches end."""
    directory = copy_files(crashed.directory, tmp_path / "data")
    content = bytearray((directory / WAL).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / WAL).write_bytes(content)
    with capture_logs() as logs:
        store = Store.open(directory, recovers=True)
    (line,) = logs
    assert line["event"] == "store recovered from damaged files"
    newest = line["newest_intact_version"]
    assert line["lost_versions"] == f"{newest + 1} to {crashed.version}"
    kept = [directory / name for name in line["kept"]]
    assert [path.name.partition(".damaged-")[0] for path in kept] == [DB, WAL, MARK]
    assert kept[1].read_bytes() == bytes(content)
    assert store.count("pods") > 10
    for name in (*STORES, "services"):
        for version in (newest, crashed.version):
            with pytest.raises(RevisionCompacted):
                store.subscribe(name, since=version)
            with pytest.raises(RevisionCompacted):
                store.entries_at(name, version)
    assert store.version == crashed.version + VERSION_GAP
    assert store.create("pods", make("new", "text")).version == crashed.version + VERSION_GAP + 1
    store.close()
    store = Store.open(directory)
    assert store.get("pods", "default", "new") is not None
    with pytest.raises(RevisionCompacted):
        store.subscribe("services", since=crashed.version)
    with pytest.raises(Ahead):
        store.subscribe("services", since=store.version + 1)
    store.close()


@pytest.mark.parametrize("compacts", [False, True])
def test_recovery_names_what_is_lost_in_the_middle(tmp_path: Path, *, compacts: bool) -> None:
    """Rows on a damaged page are missing among others; the log line says which or how many."""
    directory = tmp_path / "data"
    store = Store.open(directory)
    created = [store.create("pods", make(f"p{n}", "x" * 500)).version for n in range(100)]
    if compacts:
        store.compact()
    store.close()
    content = bytearray((directory / DB).read_bytes())
    middle = content.index(b"p50", len(content) // 4) // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    (directory / DB).write_bytes(content)
    with capture_logs() as logs:
        store = Store.open(directory, recovers=True)
    left = {entry.version for entry in store.entries("pods")}
    store.close()
    (line,) = logs
    lost = [version for version in created if version not in left]
    assert 3 < len(lost) < 20
    if compacts:
        want = f"{len(lost)} of the {len(created)} kept up to {created[-1]}"
    else:
        want = f"{lost[0]} to {lost[-1]}"
    assert line["lost_versions"] == want


def test_recovery_without_the_mark_leaves_a_gap_too(crashed: Crashed, tmp_path: Path) -> None:
    """When the mark is lost, all objects are served, beyond anything acknowledged."""
    directory = copy_files(crashed.directory, tmp_path / "data")
    (directory / MARK).unlink()
    with pytest.raises(DamagedError, match=r"store\.db-mark: is damaged: it is missing"):
        Store.open(directory)
    store = Store.open(directory, recovers=True)
    listed = [[(entry.version, entry.data) for entry in store.entries(name)] for name in STORES]
    assert listed == crashed.state[1]
    assert store.version == crashed.version + VERSION_GAP
    store.close()


def test_a_torn_commit_that_was_never_answered_goes_silently(tmp_path: Path) -> None:
    """Frames beyond the mark that do not make a whole commit are no damage."""
    store = Store.open(tmp_path / "alive", history=HISTORY)
    for number in range(50):
        store.create("pods", make(f"p{number}", "text" * 500))
    before = copy_files(tmp_path / "alive", tmp_path / "before")
    whole = (tmp_path / "alive" / WAL).stat().st_size
    state = state_of(store)
    store.create("pods", make("unanswered", "text" * 3000))
    torn = (tmp_path / "alive" / WAL).read_bytes()
    store.close()
    assert len(torn) > whole + 8192
    for kept in (whole, whole + 1, whole + 24, whole + 4120, whole + 4121, len(torn) - 1):
        (before / WAL).write_bytes(torn[:kept])
        directory = copy_files(before, tmp_path / f"torn-{kept}")
        assert outcome(directory, Crashed(before, state, 51, before)) == "whole"
    # The commit is whole, the answer was not given: it may be there.
    (before / WAL).write_bytes(torn)
    store = Store.open(before)
    assert (store.version, store.count("pods")) == (52, 51)
    store.close()


def _cut_points(size: int) -> list[int]:
    """Return where a write-ahead log is cut: in header, frame header, page, and between them."""
    frames = (size - 32) // 4120
    last = 32 + (frames - 1) * 4120
    return [0, 1, 31, 32, 33, 56, 57, 32 + 4120, last, last + 23, last + 24, size - 1]


def test_a_cut_log_is_refused(crashed: Crashed, tmp_path: Path) -> None:
    """Wherever the write-ahead log is cut, the acknowledged writes beyond are missed."""
    for number, kept in enumerate(_cut_points((crashed.directory / WAL).stat().st_size)):
        directory = copy_files(crashed.directory, tmp_path / str(number))
        os.truncate(directory / WAL, kept)
        assert outcome(directory, crashed) != "whole"
    directory = copy_files(crashed.directory, tmp_path / "removed")
    (directory / WAL).unlink()
    assert outcome(directory, crashed) != "whole"


@pytest.mark.parametrize("name", [DB, WAL])
def test_no_zeroed_page_goes_unnoticed(crashed: Crashed, tmp_path: Path, name: str) -> None:
    """Any page of zeros is refused, or holds nothing that is of use."""
    size = (crashed.directory / name).stat().st_size
    rng = random.Random(name)
    for number, page in enumerate(rng.sample(range(size // 4096), min(25, size // 4096))):
        directory = copy_files(crashed.directory, tmp_path / str(number))
        with (directory / name).open("r+b") as file:
            file.seek(page * 4096)
            file.write(bytes(4096))
        outcome(directory, crashed)
        shutil.rmtree(directory)


def _db_of_another(directory: Path, other: Path, earlier: Path) -> None:
    del earlier
    shutil.copy(other / DB, directory / DB)


def _wal_of_another(directory: Path, other: Path, earlier: Path) -> None:
    del earlier
    shutil.copy(other / WAL, directory / WAL)


def _mark_of_another(directory: Path, other: Path, earlier: Path) -> None:
    del earlier
    shutil.copy(other / MARK, directory / MARK)


def _db_and_wal_of_another(directory: Path, other: Path, earlier: Path) -> None:
    _db_of_another(directory, other, earlier)
    _wal_of_another(directory, other, earlier)


def _stale_wal(directory: Path, other: Path, earlier: Path) -> None:
    del other
    shutil.copy(earlier / WAL, directory / WAL)


def _stale_db(directory: Path, other: Path, earlier: Path) -> None:
    del other
    shutil.copy(earlier / DB, directory / DB)


def _all_stale_but_the_mark(directory: Path, other: Path, earlier: Path) -> None:
    _stale_db(directory, other, earlier)
    _stale_wal(directory, other, earlier)


def _wal_for_database(directory: Path, other: Path, earlier: Path) -> None:
    del other, earlier
    (directory / DB).rename(directory / "x")
    (directory / WAL).rename(directory / DB)
    (directory / "x").rename(directory / WAL)


def _foreign_journal(directory: Path, other: Path, earlier: Path) -> None:
    del earlier
    shutil.copy(other / DB, directory / "store.db-journal")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_db_of_another, id="the database of another directory"),
        pytest.param(_wal_of_another, id="the log of another directory"),
        pytest.param(_mark_of_another, id="the mark of another directory"),
        pytest.param(_db_and_wal_of_another, id="database and log of another directory"),
        pytest.param(_stale_wal, id="a stale log beside a newer database"),
        pytest.param(_stale_db, id="a stale database beside a newer log"),
        pytest.param(_all_stale_but_the_mark, id="a stale database with its log"),
        pytest.param(_wal_for_database, id="database and log swapped"),
        pytest.param(_foreign_journal, id="a journal that SQLite would roll back"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(
    crashed: Crashed, tmp_path: Path, damage: Callable[[Path, Path, Path], None]
) -> None:
    """Files of another store, or of another time, are refused by name."""
    other = Store.open(tmp_path / "other")
    for number in range(30):
        other.create("pods", make(f"other-{number}", "text" * 300))
    copy_files(tmp_path / "other", tmp_path / "others")
    other.close()
    directory = copy_files(crashed.directory, tmp_path / "data")
    damage(directory, tmp_path / "others", crashed.earlier)
    assert outcome(directory, crashed) != "whole"


def test_a_store_of_the_first_format_is_taken_over(tmp_path: Path) -> None:
    """A file without summary and mark gets both, and from then on its end is known."""
    store = Store.open(tmp_path, history=5)
    for number in range(200):
        store.create("pods", make(f"p{number}", "text"))
    for number in range(0, 200, 3):
        store.delete("pods", "default", f"p{number}")
    store.close()
    (tmp_path / MARK).unlink()
    connection = sqlite3.connect(tmp_path / DB, isolation_level=None)
    connection.execute("DROP TABLE summary")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    store = Store.open(tmp_path, history=5)
    version = store.create("pods", make("new", "text")).version
    copy_files(tmp_path, tmp_path / "left")
    store.close()
    os.truncate(tmp_path / "left" / WAL, 0)
    with pytest.raises(DamagedError, match=f"{version} were acknowledged"):
        Store.open(tmp_path / "left")
    store = Store.open(tmp_path)
    assert store.version == version
    store.close()
