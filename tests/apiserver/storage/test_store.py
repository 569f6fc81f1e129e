"""The store: reads, writes, preconditions, batches, history and its bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.storage.entries import Entry, StoredChange
from keepclose.apiserver.storage.store import (
    Ahead,
    Exists,
    Malformed,
    Missing,
    RevisionCompacted,
    Stale,
    Store,
)


def make(name: str, namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    """Return an object with a name; a namespace of "" is left out."""
    where = {"namespace": namespace} if namespace else {}
    return {"kind": "Thing", "metadata": {"name": name, **where, **metadata}, "spec": {}}


def names(entries: list[Entry]) -> list[str]:
    """Return the objects as namespace/name@version."""
    return [f"{entry.namespace}/{entry.name}@{entry.version}" for entry in entries]


def shown(changes: list[StoredChange]) -> list[tuple[int, str, str]]:
    """Return version, type and name of changes."""
    return [(change.version, change.type, change.entry.name) for change in changes]


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return an empty store, in memory and on disk."""
    made = Store.open(None if request.param == "memory" else tmp_path)
    yield made
    made.close()


def test_an_empty_store_is_at_version_one(store: Store) -> None:
    """Nothing was written, so every answer is empty and the version is 1."""
    assert store.version == 1
    assert store.oldest == 1
    assert store.get("pods", "default", "a") is None
    assert store.entries("pods") == []
    assert store.entries_at("pods", 1) == []
    assert store.count("pods") == 0
    assert store.owned_by("u") == []


def test_a_create_keeps_the_object_under_the_next_version(store: Store) -> None:
    """The version is counted up, written into the object, and everything asked often is read."""
    obj = make("a", uid="u1", labels={"app": "web"}, ownerReferences=[{"uid": "o1"}, {"uid": "o2"}])
    entry = store.create("pods", obj)
    assert obj["metadata"]["resourceVersion"] == "2"
    want_data = msgspec.json.encode(obj)
    assert entry == Entry(2, "default", "a", "u1", want_data, {"app": "web"}, ("o1", "o2"))
    assert store.version == 2
    assert store.get("pods", "default", "a") is entry
    assert store.get("services", "default", "a") is None
    assert store.get("pods", "other", "a") is None


def test_what_the_caller_does_to_the_object_later_does_not_matter(store: Store) -> None:
    """The store keeps no part of the object that it was given."""
    obj = make("a", labels={"app": "web"})
    entry = store.create("pods", obj)
    obj["metadata"]["labels"]["app"] = "changed"
    obj["metadata"]["name"] = "b"
    assert entry.labels == {"app": "web"}
    assert names(store.entries("pods")) == ["default/a@2"]


def test_an_object_without_labels_and_owners_has_empty_ones(store: Store) -> None:
    """Null and absence are the same, and a null label is an empty one."""
    entry = store.create("nodes", make("n", "", labels=None, ownerReferences=None, uid=None))
    assert (entry.namespace, entry.uid, entry.labels, entry.owners) == ("", "", {}, ())
    assert store.create("nodes", make("m", "", labels={"a": None})).labels == {"a": ""}


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param({}, id="no metadata"),
        pytest.param({"metadata": []}, id="metadata is a list"),
        pytest.param({"metadata": {}}, id="no name"),
        pytest.param({"metadata": {"name": ""}}, id="empty name"),
        pytest.param({"metadata": {"name": 1}}, id="name is a number"),
        pytest.param({"metadata": {"name": "a", "namespace": 1}}, id="namespace is a number"),
        pytest.param({"metadata": {"name": "a", "labels": {"b": 1}}}, id="label is a number"),
        pytest.param({"metadata": {"name": "a"}, "spec": object()}, id="not JSON"),
        pytest.param({"metadata": {"name": "a"}, "spec": "\ud800"}, id="not UTF-8"),
    ],
)
def test_what_could_not_be_read_again_is_not_stored(store: Store, obj: dict[str, Any]) -> None:
    """A malformed object is refused and the version stays."""
    with pytest.raises(Malformed):
        store.create("pods", obj)
    assert store.version == 1
    assert store.count("pods") == 0


def test_a_taken_name_is_refused(store: Store) -> None:
    """The second create of a name fails, in the same store and namespace only."""
    store.create("pods", make("a"))
    with pytest.raises(Exists, match=r"^pods default/a exists already$"):
        store.create("pods", make("a"))
    store.create("pods", make("a", "other"))
    store.create("services", make("a"))
    assert store.version == 4


def test_an_update_replaces_the_object(store: Store) -> None:
    """The new state has the next version and the old one is what the change replaced."""
    created = store.create("pods", make("a", labels={"app": "old"}))
    updated = store.update("pods", make("a", labels={"app": "new"}), expected=2)
    assert store.get("pods", "default", "a") is updated
    assert (updated.version, updated.labels) == (3, {"app": "new"})
    (change,) = store.subscribe("pods", since=2).take()
    assert (change.type, change.entry, change.previous) == ("MODIFIED", updated, created)


def test_writes_from_an_old_version_are_refused(store: Store) -> None:
    """Update and delete fail with the current object when it is at another version."""
    store.create("pods", make("a"))
    current = store.update("pods", make("a"))
    with pytest.raises(Stale) as update:
        store.update("pods", make("a"), expected=2)
    with pytest.raises(Stale) as delete:
        store.delete("pods", "default", "a", expected=2)
    assert update.value.current is current
    assert delete.value.current is current
    assert str(delete.value) == "a is at version 3, not 2"
    assert store.version == 3


def test_what_is_not_there_cannot_be_changed(store: Store) -> None:
    """Update and delete of an unknown name fail."""
    with pytest.raises(Missing, match=r"^pods default/a does not exist$"):
        store.update("pods", make("a"))
    with pytest.raises(Missing, match=r"^nodes n does not exist$"):
        store.delete("nodes", "", "n")


def test_a_deletion_carries_the_last_state_with_its_own_version(store: Store) -> None:
    """The object is gone, and what is announced is its last state at the deletion's version."""
    created = store.create("pods", make("a", uid="u", labels={"app": "web"}))
    gone = store.delete("pods", "default", "a", expected=2)
    assert store.get("pods", "default", "a") is None
    assert (gone.version, gone.uid, gone.labels) == (3, "u", {"app": "web"})
    (change,) = store.subscribe("pods", since=2).take()
    assert (change.type, change.entry, change.previous) == ("DELETED", gone, created)
    want_object = make("a", uid="u", labels={"app": "web"}, resourceVersion="3")
    assert msgspec.json.decode(gone.data) == want_object


def test_a_deletion_may_carry_a_final_state(store: Store) -> None:
    """The final state is announced in place of the last one; it must be of the same object."""
    store.create("pods", make("a"))
    with pytest.raises(Malformed, match="another object"):
        store.delete("pods", "default", "a", final=make("b"))
    gone = store.delete("pods", "default", "a", final=make("a", deletionTimestamp="now"))
    assert msgspec.json.decode(gone.data)["metadata"]["deletionTimestamp"] == "now"


def test_a_change_is_one_line_of_a_watch(store: Store) -> None:
    """The line holds type and object, and is the same bytes for everybody."""
    entry = store.create("pods", make("a"))
    (first,) = store.subscribe("pods", since=1).take()
    (second,) = store.subscribe("pods", since=1).take()
    assert first.frame == b'{"type":"ADDED","object":' + entry.data + b"}\n"
    assert first.frame is second.frame


def test_lists_are_in_the_order_of_namespace_and_name(store: Store) -> None:
    """Whatever the order of creation, lists are sorted, also after deletions and re-creations."""
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "m"), ("b", "a"), ("a", "n")):
        store.create("pods", make(name, namespace))
    assert names(store.entries("pods")) == ["a/m@4", "a/n@6", "a/z@3", "b/a@5", "b/x@2"]
    assert names(store.entries("pods", "a")) == ["a/m@4", "a/n@6", "a/z@3"]
    assert store.entries("pods", "c") == []
    store.delete("pods", "a", "z")
    store.create("pods", make("o", "a"))
    store.create("pods", make("b", "a"))
    assert names(store.entries("pods", "a")) == ["a/b@9", "a/m@4", "a/n@6", "a/o@8"]
    assert [store.count("pods"), store.count("pods", "a"), store.count("pods", "c")] == [6, 4, 0]


def test_a_past_version_can_be_listed(store: Store) -> None:
    """What was created, changed and deleted since then is undone."""
    store.create("pods", make("a"))
    store.create("pods", make("b", "other"))
    store.update("pods", make("a"))
    store.delete("pods", "other", "b")
    store.create("pods", make("c"))
    store.create("services", make("s"))
    want = {
        1: [],
        2: ["default/a@2"],
        3: ["default/a@2", "other/b@3"],
        4: ["default/a@4", "other/b@3"],
        5: ["default/a@4"],
        6: ["default/a@4", "default/c@6"],
        7: ["default/a@4", "default/c@6"],
    }
    assert {version: names(store.entries_at("pods", version)) for version in want} == want
    assert names(store.entries_at("pods", 3, "default")) == ["default/a@2"]
    assert names(store.entries_at("pods", 3, "other")) == ["other/b@3"]
    with pytest.raises(Ahead) as ahead:
        store.entries_at("pods", 8)
    assert (ahead.value.asked, ahead.value.current) == (8, 7)


def test_owned_objects_are_found_by_the_uid_of_their_owner(store: Store) -> None:
    """Owners are followed through creation, change and deletion, over all stores."""
    store.create("replicasets.apps", make("r", ownerReferences=[{"uid": "d"}]))
    store.create("pods", make("p", ownerReferences=[{"uid": "r"}, {"uid": "d"}, {"uid": "r"}]))
    want_d = [("replicasets.apps", "default", "r"), ("pods", "default", "p")]
    assert store.owned_by("d") == want_d
    assert store.owned_by("r") == [("pods", "default", "p")]
    store.update("pods", make("p", ownerReferences=[{"uid": "d"}]))
    assert store.owned_by("r") == []
    store.delete("pods", "default", "p")
    assert store.owned_by("d") == [("replicasets.apps", "default", "r")]


def test_a_batch_becomes_visible_at_once(store: Store) -> None:
    """Within the block reads show the state before; after it everything is there in order."""
    store.create("pods", make("a"))
    watch = store.subscribe("pods", since=None)
    with store.batch():
        assert store.create("pods", make("b")).version == 3
        assert store.update("pods", make("b"), expected=3).version == 4
        assert store.delete("pods", "default", "a").version == 5
        assert store.create("pods", make("a")).version == 6
        assert store.create("services", make("s")).version == 7
        assert names(store.entries("pods")) == ["default/a@2"]
        assert (store.version, watch.pending) == (2, 0)
    assert store.version == 7
    assert names(store.entries("pods")) == ["default/a@6", "default/b@4"]
    want_changes = [(3, "ADDED", "b"), (4, "MODIFIED", "b"), (5, "DELETED", "a"), (6, "ADDED", "a")]
    assert shown(watch.take()) == want_changes


def test_a_batch_checks_each_write_against_those_before_it(store: Store) -> None:
    """Names taken and objects deleted within the block count."""
    store.create("pods", make("a"))
    with store.batch():
        store.delete("pods", "default", "a")
        with pytest.raises(Missing):
            store.update("pods", make("a"))
        store.create("pods", make("b"))
        with pytest.raises(Exists):
            store.create("pods", make("b"))
    assert names(store.entries("pods")) == ["default/b@4"]


def test_a_batch_that_fails_leaves_nothing(store: Store) -> None:
    """An error in the block undoes all of its writes, and the version goes on where it was."""
    watch = store.subscribe("pods", since=None)

    def fail() -> None:
        with store.batch():
            store.create("pods", make("a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (store.version, store.count("pods"), watch.pending) == (1, 0, 0)
    assert store.create("pods", make("a")).version == 2


def test_batches_do_not_nest_and_may_be_empty(store: Store) -> None:
    """A batch in a batch is a mistake of the caller; an empty one writes nothing."""
    with store.batch(), pytest.raises(RuntimeError, match="nested"), store.batch():
        pass
    assert store.version == 1


def test_history_is_bounded_in_each_store(tmp_path: Path) -> None:
    """Only so many changes of a store stay known; other stores do not suffer from it."""
    store = Store.open(tmp_path, history=3)
    store.create("services", make("s"))
    for number in range(5):
        store.create("pods", make(f"p{number}"))
    assert (store.oldest_of("pods"), store.oldest_of("services"), store.oldest) == (4, 1, 4)
    assert shown(store.subscribe("pods", since=4).take()) == [
        (5, "ADDED", "p2"),
        (6, "ADDED", "p3"),
        (7, "ADDED", "p4"),
    ]
    assert shown(store.subscribe("services", since=1).take()) == [(2, "ADDED", "s")]
    with pytest.raises(RevisionCompacted) as watch:
        store.subscribe("pods", since=3)
    with pytest.raises(RevisionCompacted) as listed:
        store.entries_at("pods", 3)
    assert (watch.value.asked, watch.value.oldest) == (3, 4)
    assert (listed.value.asked, listed.value.oldest) == (3, 4)
    store.close()


def test_history_is_bounded_by_age(tmp_path: Path) -> None:
    """Changes that are too old are let go with the next write, and when the store is opened."""
    now = [1000.0]
    store = Store.open(tmp_path, max_history_age=60, clock=lambda: now[0])
    store.create("pods", make("a"))
    now[0] += 30
    store.create("pods", make("b"))
    now[0] += 40
    store.create("pods", make("c"))
    assert store.oldest == 2
    store.close()
    now[0] += 30
    reopened = Store.open(tmp_path, max_history_age=60, clock=lambda: now[0])
    assert (reopened.oldest, reopened.version) == (3, 4)
    assert names(reopened.entries("pods")) == ["default/a@2", "default/b@3", "default/c@4"]
    reopened.close()


def test_history_can_be_compacted_at_will(store: Store) -> None:
    """Everything but the newest changes of each store is let go; objects stay."""
    for number in range(200):
        store.create("pods", make(f"p{number:03}"))
    store.update("pods", make("p000"))
    store.delete("pods", "default", "p001")
    store.compact(keep=2)
    assert (store.oldest, store.version, store.count("pods")) == (201, 203, 199)
    store.compact()
    assert store.oldest == 203
    assert store.subscribe("pods", since=203).take() == []
    with pytest.raises(RevisionCompacted):
        store.subscribe("pods", since=202)


def test_old_changes_lose_their_line_but_not_their_content(store: Store) -> None:
    """The line of a change far back is made again when it is asked for."""
    entry = store.create("pods", make("a"))
    (change,) = store.subscribe("pods", since=1).take()
    before = change.frame
    with store.batch():
        for number in range(1100):
            store.create("pods", make(f"p{number}"))
    assert change.frame is not before
    assert change.frame == before
    assert entry.data in before


def test_a_watch_from_a_version_before_the_first_fails(store: Store) -> None:
    """Version 0 never was, and what may come cannot be watched from."""
    with pytest.raises(RevisionCompacted):
        store.subscribe("pods", since=0)
    with pytest.raises(Ahead) as ahead:
        store.subscribe("pods", since=2)
    assert (ahead.value.asked, ahead.value.current) == (2, 1)


def test_closing_twice_does_no_harm(store: Store) -> None:
    """A second close does nothing."""
    store.close()
    store.close()
