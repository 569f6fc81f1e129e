"""What survives: any sequence of writes, a restart at any moment, a process that is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.storage.entries import Entry, StoredChange
from keepclose.apiserver.storage.recovery import LogRow, checksum, recover
from keepclose.apiserver.storage.store import RevisionCompacted, StorageError, Store

STORES = ("pods", "services")
Model = dict[tuple[str, str], int]


def make(name: str, namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    """Return an object with a name."""
    return {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": {"x": "y"}}


def listed(entries: list[Entry]) -> list[tuple[tuple[str, str], int]]:
    """Return keys and versions of entries, whose data must say the same."""
    for entry in entries:
        metadata = msgspec.json.decode(entry.data)["metadata"]
        assert metadata["resourceVersion"] == str(entry.version)
        assert (metadata["namespace"], metadata["name"]) == (entry.namespace, entry.name)
    return [((entry.namespace, entry.name), entry.version) for entry in entries]


def comparable(change: StoredChange) -> tuple[object, ...]:
    """Return all of a change that must survive a restart."""
    return (
        change.version,
        change.type,
        change.store,
        change.time,
        change.frame,
        change.entry,
        change.previous,
    )


def history_of(store: Store) -> list[list[tuple[object, ...]]]:
    """Return all changes that the store knows, by store."""
    return [
        [comparable(change) for change in store.subscribe(name, since=store.oldest_of(name)).take()]
        for name in STORES
    ]


keys = st.tuples(
    st.sampled_from(STORES), st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", "z"])
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), keys),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("batch"), st.lists(keys, max_size=4)),
        st.tuples(st.just("abort"), st.lists(keys, max_size=3)),
        st.tuples(st.just("compact"), st.integers(0, 4)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=30,
)


class Machine:
    """A store beside a plain model of it that remembers every past state."""

    def __init__(self, directory: Path, *, history: int) -> None:
        self.directory = directory
        self.history = history
        self.store = self.open()
        self.now: dict[str, Model] = {name: {} for name in STORES}
        self.past: dict[int, dict[str, Model]] = {1: {name: {} for name in STORES}}
        self.log: list[tuple[int, str, str, tuple[str, str]]] = []
        self.watches = {name: self.store.subscribe(name, since=1) for name in STORES}

    def open(self) -> Store:
        """Return the store of the directory."""
        return Store.open(self.directory, history=self.history, clock=lambda: 1e9)

    def write(self, key: tuple[str, str, str], *, delete: bool = False) -> None:
        """Create, update or delete in store and model."""
        name, *where = key
        place = (where[0], where[1])
        held = place in self.now[name]
        if delete and not held:
            return
        version = max(self.past) + 1
        if delete:
            self.store.delete(name, *place)
            del self.now[name][place]
        else:
            obj = make(place[1], place[0], labels={"v": str(version)})
            (self.store.update if held else self.store.create)(name, obj)
            self.now[name][place] = version
        kind = "DELETED" if delete else "MODIFIED" if held else "ADDED"
        self.log.append((version, kind, name, place))
        self.past[version] = {one: dict(model) for one, model in self.now.items()}

    def step(self, what: str, given_with: Any) -> None:
        """Carry out one step."""
        match what:
            case "write" | "delete":
                self.write(given_with, delete=what == "delete")
            case "batch":
                with self.store.batch():
                    for key in given_with:
                        self.write(key)
            case "abort":
                with pytest.raises(ZeroDivisionError):
                    self.abort(given_with)
            case "compact":
                self.store.compact(given_with)
            case _:
                self.reopen()

    def abort(self, given_with: list[tuple[str, str, str]]) -> None:
        """Write in a batch that fails at its end; the model is not told."""
        with self.store.batch():
            for name, namespace, one in given_with:
                held = (namespace, one) in self.now[name]
                if held:
                    self.store.delete(name, namespace, one)
                self.store.create(name, make(one, namespace))
                if not held:
                    self.store.delete(name, namespace, one)
            raise ZeroDivisionError

    def reopen(self) -> None:
        """Open the store again: nothing of what it knew may be missing."""
        self.deliver()
        version, before = self.store.version, history_of(self.store)
        self.store.close()
        self.store = self.open()
        assert self.store.version == version
        assert history_of(self.store) == before
        self.watches = {name: self.store.subscribe(name, since=version) for name in STORES}

    def deliver(self) -> None:
        """Check that watchers got exactly the writes since the last time."""
        for name, watch in self.watches.items():
            got = [
                (one.version, one.type, name, (one.entry.namespace, one.entry.name))
                for one in watch.take()
            ]
            assert got == [write for write in self.log if write[2] == name]
        self.log = []

    def check(self) -> None:
        """Compare everything that can be asked with the model."""
        assert self.store.version == max(self.past)
        for name in STORES:
            assert listed(self.store.entries(name)) == sorted(self.now[name].items())
            assert self.store.count(name) == len(self.now[name])
            for version, then in self.past.items():
                want = sorted(then[name].items())
                if version < self.store.oldest_of(name):
                    with pytest.raises(RevisionCompacted):
                        self.store.entries_at(name, version)
                    continue
                assert listed(self.store.entries_at(name, version)) == want
                want_b = [item for item in want if item[0][0] == "b"]
                assert listed(self.store.entries_at(name, version, "b")) == want_b


@settings(max_examples=60, deadline=None)
@given(steps, st.sampled_from([2, 5, 1000]))
def test_any_sequence_of_writes_gives_what_a_plain_map_gives(
    script: list[tuple[str, Any]], history: int
) -> None:
    """State, every known past state, and what watchers get, over any restarts and compactions."""
    with tempfile.TemporaryDirectory() as directory:
        machine = Machine(Path(directory), history=history)
        for what, given_with in script:
            machine.step(what, given_with)
        machine.deliver()
        machine.check()
        machine.reopen()
        machine.check()
        machine.store.close()


def test_a_watch_goes_on_over_a_restart(tmp_path: Path) -> None:
    """A version from before the restart is followed by everything since, old and new."""
    store = Store.open(tmp_path)
    for number in range(10):
        store.create("pods", make(f"p{number}"))
    store.delete("pods", "default", "p0")
    store.close()
    store = Store.open(tmp_path)
    watch = store.subscribe("pods", since=9)
    store.create("pods", make("p0"))
    assert [(one.version, one.type) for one in watch.take()] == [
        (10, "ADDED"),
        (11, "ADDED"),
        (12, "DELETED"),
        (13, "ADDED"),
    ]
    assert store.owned_by("") == []
    store.close()


def test_owners_are_known_after_a_restart(tmp_path: Path) -> None:
    """The index of owners is made anew."""
    store = Store.open(tmp_path)
    store.create("pods", make("p", ownerReferences=[{"uid": "r"}]))
    store.close()
    store = Store.open(tmp_path)
    assert store.owned_by("r") == [("pods", "default", "p")]
    store.close()


def test_the_version_never_goes_back(tmp_path: Path) -> None:
    """Even when the last row was that of a deletion and was removed, its version stays used."""
    store = Store.open(tmp_path)
    store.create("pods", make("a"))
    store.delete("pods", "default", "a")
    store.compact()
    store.close()
    store = Store.open(tmp_path)
    assert (store.version, store.oldest, store.count("pods")) == (3, 3, 0)
    assert store.create("pods", make("a")).version == 4
    store.close()


def test_old_versions_leave_the_disk_in_the_course_of_writing(tmp_path: Path) -> None:
    """The file holds the objects and about as much history as memory does."""
    store = Store.open(tmp_path, history=10)
    store.create("pods", make("a"))
    for _ in range(1000):
        store.update("pods", make("a"))
    (rows,) = store._log._connection.execute("SELECT count(*) FROM log").fetchone()  # type: ignore[union-attr]
    assert 10 < rows < 100
    store.close()


def row_of(version: int, name: str, kind: str, previous: int = 0, **changed: Any) -> LogRow:
    """Return a row of a log whose checksum fits, with some columns other than they should be."""
    data = msgspec.json.encode(make(name, resourceVersion=str(version)))
    head = (version, changed.get("store", "pods"), "default", changed.get("filed", name), kind)
    whole = (*head, previous, 1_000_000)
    stored = changed.get("data", data)
    return (*whole, checksum(whole, stored), stored)


ROWS = [row_of(2, "a", "ADDED"), row_of(3, "a", "MODIFIED", 2), row_of(4, "a", "DELETED", 3)]


def test_rows_become_objects_and_changes() -> None:
    """Every row above the floor is a change; what is deleted is no object any more."""
    found = recover([*ROWS, row_of(5, "b", "ADDED")], {}, path=Path("f"))
    assert found.version == 5
    assert {key: entry.version for key, entry in found.objects["pods"].items()} == {
        ("default", "b"): 5
    }
    got = [(one.version, one.type, one.previous and one.previous.version) for one in found.changes]
    want = [(2, "ADDED", None), (3, "MODIFIED", 2), (4, "DELETED", 3), (5, "ADDED", None)]
    assert got == want


def test_versions_may_be_missing_below_the_highest_floor() -> None:
    """What was compacted is rightly gone; the version is that of the floor at least."""
    rows = [row_of(3, "a", "MODIFIED", 2), row_of(6, "b", "ADDED"), row_of(9, "a", "MODIFIED", 3)]
    found = recover(rows, {"pods": 7, "services": 8}, path=Path("f"))
    assert (found.version, [one.version for one in found.changes]) == (9, [9])
    assert recover([], {"pods": 7}, path=Path("f")).version == 7


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        pytest.param([row_of(3, "a", "ADDED")], "row 3 .* version 2 is missing", id="a gap"),
        pytest.param(
            [row_of(2, "a", "ADDED", filed="b")],
            "row 2 .* its key is default/b",
            id="another name",
        ),
        pytest.param(
            [row_of(2, "a", "ADDED", data=b'{"metadata":')], "row 2 .* cannot be read", id="no JSON"
        ),
        pytest.param(
            [row_of(2, "a", "ADDED", data=b'{"metadata":{"name":"a","resourceVersion":"3"}}')],
            "row 2 .* has resourceVersion 3, not 2",
            id="another version",
        ),
        pytest.param(
            [row_of(2, "a", "MODIFIED", 1)], "row 2 .* version 1, which it replaced", id="no past"
        ),
        pytest.param(
            [ROWS[0], row_of(3, "a", "MODIFIED", 1)], "row 3 .* version 1, which", id="other past"
        ),
        pytest.param([row_of(2, "a", "DELETED")], "row 2 .* version 0, which", id="never there"),
        pytest.param([ROWS[0], row_of(3, "a", "ADDED", 2)], "row 3 .* version 2,", id="twice"),
        pytest.param([(2, "pods", "d", "a", "ADDED", 0, 0, 0, None)], "row 2 ", id="no data"),
        pytest.param([(2, "pods", "d", "a", "ADDED", 0, 0, 0, "x")], "row 2 ", id="text as data"),
    ],
)
def test_a_log_that_does_not_hold_together_is_refused(rows: list[Any], want: str) -> None:
    """The first row that cannot be right is named."""
    with pytest.raises(StorageError, match=want):
        recover(rows, {}, path=Path("f"))


WRITER = """
import json, sys
from pathlib import Path
from keepclose.apiserver.storage.store import Store

store = Store.open(Path(sys.argv[1]), history=int(sys.argv[3]))
start = int(sys.argv[2])
pad = "x" * 1200
for number in range(start, start + 100_000):
    made = {"metadata": {"name": f"p{number:06}", "namespace": "default"}, "spec": {"pad": pad}}
    entry = store.create("pods", made)
    print(entry.name, entry.version, flush=True)
    if number % 3 == 0:
        gone = store.delete("pods", "default", entry.name)
        print("-" + entry.name, gone.version, flush=True)
"""


@pytest.mark.parametrize("history", [20_000, 50], ids=["long history", "constant compaction"])
def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path: Path, history: int) -> None:
    """Killed at any moment, every write that was answered is there, whole and in its order."""
    rng = random.Random(history)
    want: dict[str, int] = {}
    last = 1
    for start in range(0, 600_000, 100_000):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(start), str(history)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        # The writer goes on while this reads, so the kill comes in the middle of something.
        answered = [child.stdout.readline() for _ in range(rng.randrange(1, 1000))]
        child.send_signal(signal.SIGKILL)
        answered += child.stdout.readlines()
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        # NB: the last line may be cut off; what is cut off was not answered.
        for name, version in [line.split() for line in answered if line.endswith("\n")]:
            last = int(version)
            if name.startswith("-"):
                del want[name[1:]]
            else:
                want[name] = last
        store = Store.open(tmp_path, history=history)
        got = {entry.name: entry.version for entry in store.entries("pods")}
        # At most one write was made without having been answered.
        assert store.version - last in (0, 1)
        unanswered = {name for name in {*got, *want} if got.get(name) != want.get(name)}
        assert len(unanswered) == store.version - last
        pads = {json.loads(entry.data)["spec"]["pad"] for entry in store.entries("pods")}
        assert pads <= {"x" * 1200}
        known = store.subscribe("pods", since=store.oldest).take()
        want_versions = [*range(store.oldest + 1, store.version + 1)]
        assert [change.version for change in known] == want_versions
        want, last = got, store.version
        store.close()
    assert len(want) > 100
