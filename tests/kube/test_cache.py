"""Objects found by name and index, and told on change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.kube.cache import Cache, Index, is_older
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Pod
from support.builders import pod

A = NamespacedName("default", "a")


def version_of(name: str, version: str, *, node: str = "n1", app: str = "web") -> Pod:
    """Return a pod at a resource version."""
    made = pod(name, node, labels={"app": app})
    return replace(made, metadata=replace(made.metadata, resource_version=version))


def by_node(one: Pod) -> list[str]:
    """Return the node of a pod as its only index key."""
    return [one.spec.node_name or ""]


def by_labels(one: Pod) -> list[tuple[str, str]]:
    """Return each label of a pod as an index key."""
    return list(one.metadata.labels.items())


class Told:
    """Keeps what handlers were told."""

    def __init__(self, cache: Cache[Pod]) -> None:
        self.calls: list[tuple[str, str]] = []
        self.stop = cache.subscribe(self.note)

    def note(self, old: Pod | None, new: Pod | None) -> None:
        """Keep the versions before and after."""
        before = old.metadata.resource_version if old else "-"
        self.calls.append((before, new.metadata.resource_version if new else "-"))


def test_changes_are_told_with_what_was_and_what_is() -> None:
    """A handler sees additions, updates and deletions, in order."""
    cache: Cache[Pod] = Cache()
    told = Told(cache)

    assert cache.put(version_of("a", "1"))
    assert cache.put(version_of("a", "2"))
    assert cache.delete(A, "3")

    assert told.calls == [("-", "1"), ("1", "2"), ("2", "-")]
    assert len(cache) == 0


def test_the_same_object_is_no_news() -> None:
    """The same version with the same content is told to nobody and keeps the first object."""
    cache: Cache[Pod] = Cache()
    first = version_of("a", "1")
    cache.put(first)
    told = Told(cache)
    told.calls.clear()

    assert not cache.put(version_of("a", "1"))
    assert cache.replace([version_of("a", "1")]) == 0

    assert told.calls == []
    assert cache.get(A) is first


def test_the_same_version_with_other_content_is_news() -> None:
    """A version alone does not make two objects the same."""
    cache: Cache[Pod] = Cache()
    cache.put(version_of("a", "1"))
    told = Told(cache)

    assert cache.put(version_of("a", "1", node="n2"))

    assert told.calls == [("-", "1"), ("1", "1")]


@pytest.mark.parametrize(
    ("held", "came", "want_taken"),
    [
        pytest.param("10", "9", False, id="an older number is refused"),
        pytest.param("9", "10", True, id="numbers are compared as numbers, not as text"),
        pytest.param("10", "b9", True, id="what is no number cannot be compared and is taken"),
        pytest.param("b10", "b9", True, id="two that are no numbers cannot be compared"),
        pytest.param("", "1", True, id="an absent version is older than none"),
        pytest.param("٣", "2", True, id="digits of other scripts are no numbers here"),
    ],
)
def test_an_object_never_goes_back_in_time(held: str, came: str, want_taken: bool) -> None:
    """What is certainly older than what is here is refused, by update and by deletion."""
    cache: Cache[Pod] = Cache()
    cache.put(version_of("a", held))

    assert cache.put(version_of("a", came, app="new")) is want_taken

    cache = Cache()
    cache.put(version_of("a", held))
    assert cache.delete(A, came) is want_taken
    assert (A in cache) is not want_taken


@pytest.mark.parametrize(
    ("came", "want_taken"),
    [
        pytest.param("4", False, id="an update from before the deletion is refused"),
        pytest.param("5", False, id="so is one of the deletion itself"),
        pytest.param("6", True, id="a new object of that name is taken"),
        pytest.param("x6", True, id="so is one that cannot be compared"),
    ],
)
def test_a_late_event_does_not_bring_a_deleted_object_back(came: str, want_taken: bool) -> None:
    """Repeats of what came before a deletion are refused after it."""
    cache: Cache[Pod] = Cache()
    cache.put(version_of("a", "3"))
    cache.delete(A, "5")

    assert cache.put(version_of("a", came)) is want_taken


def test_a_deletion_of_what_is_not_here_is_remembered_but_not_told() -> None:
    """The late repeat of an object is refused even if only its deletion was seen."""
    cache: Cache[Pod] = Cache()
    told = Told(cache)

    assert not cache.delete(A, "5")
    assert not cache.put(version_of("a", "4"))

    assert told.calls == []


def test_memory_of_deletions_is_bounded() -> None:
    """Of very many deletions the first are forgotten."""
    cache: Cache[Pod] = Cache()
    cache.delete(A, "5")
    for number in range(1024):
        cache.delete(NamespacedName("default", f"p{number}"), "6")

    assert cache.put(version_of("a", "4"))
    assert not cache.put(version_of("p1023", "4"))


def test_a_list_is_told_as_its_difference() -> None:
    """What vanished is deleted once, what is new or changed is told, the rest is not."""
    cache: Cache[Pod] = Cache()
    for name in ("a", "b", "c"):
        cache.put(version_of(name, "1"))
    told = Told(cache)
    told.calls.clear()

    changes = cache.replace([version_of("b", "1"), version_of("c", "5"), version_of("d", "6")])

    assert changes == 3
    assert told.calls == [("1", "-"), ("1", "5"), ("-", "6")]
    assert sorted(key.name for key in cache) == ["b", "c", "d"]


def test_a_list_overrules_everything() -> None:
    """A whole list is the present even where its versions are lower, as after a restored backup."""
    cache: Cache[Pod] = Cache()
    cache.put(version_of("a", "50"))
    cache.put(version_of("b", "51"))
    cache.delete(NamespacedName("default", "b"), "52")

    assert cache.replace([version_of("a", "7"), version_of("b", "8")]) == 2

    assert {one.metadata.resource_version for one in cache.all()} == {"7", "8"}


def test_keys_to_keep_outlive_a_list() -> None:
    """An object that the list could not show stays as it was; unknown keys add nothing."""
    cache: Cache[Pod] = Cache()
    cache.put(version_of("a", "1"))
    cache.put(version_of("b", "2"))

    cache.replace([], keep=[A, NamespacedName("default", "z")])

    assert list(cache) == [A]


def test_a_handler_that_joins_late_learns_what_is_here() -> None:
    """Joining tells all objects as additions; leaving ends the calls."""
    cache: Cache[Pod] = Cache()
    cache.put(version_of("a", "1"))

    told = Told(cache)
    told.stop()
    cache.put(version_of("a", "2"))

    assert told.calls == [("-", "1")]


def test_handlers_see_the_change_made() -> None:
    """When a handler is called, the cache and its indexes are up to date."""
    cache: Cache[Pod] = Cache([Index("node", by_node)])
    seen: list[tuple[int, int]] = []
    cache.subscribe(lambda _old, _new: seen.append((len(cache), len(cache.by_index("node", "n1")))))

    cache.put(version_of("a", "1"))
    cache.delete(A)

    assert seen == [(1, 1), (0, 0)]


def test_indexes_follow_changes() -> None:
    """An object is found under its present keys only, and empty keys disappear."""
    cache = Cache([Index("node", by_node), Index("label", by_labels)])
    cache.put(version_of("a", "1"))
    cache.put(version_of("b", "2", app="api"))
    moved = version_of("a", "3", node="n2")
    cache.put(moved)

    assert cache.by_index("node", "n2") == [moved]
    assert [one.metadata.name for one in cache.by_index("node", "n1")] == ["b"]
    assert cache.by_index("label", ("app", "web")) == [moved]
    assert cache.by_index("node", "n3") == []

    cache.delete(NamespacedName("default", "b"))

    assert cache.index_keys("node") == ["n2"]
    assert cache.index_keys("label") == [("app", "web")]
    with pytest.raises(KeyError):
        cache.by_index("zone", "a")


def test_a_snapshot_stays_as_it_was() -> None:
    """Later changes do not reach a snapshot, and it holds the very same objects."""
    cache: Cache[Pod] = Cache()
    first = version_of("a", "1")
    cache.put(first)

    snapshot = cache.snapshot()
    cache.put(version_of("a", "2"))

    assert snapshot == {A: first}
    assert snapshot[A] is first


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.sampled_from(["n1", "n2", "n3"])),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.just("")),
        st.tuples(st.just("replace"), st.sampled_from(["", "a", "bc", "abc"]), st.just("n1")),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=100)
@given(operations=OPERATIONS)
def test_indexes_equal_those_built_anew(operations: list[tuple[str, str, str]]) -> None:
    """After any changes an index finds what a look at every object would find."""
    cache = Cache([Index("node", by_node), Index("label", by_labels)])
    for version, (operation, names, node) in enumerate(operations):
        if operation == "put":
            cache.put(version_of(names, str(version), node=node, app=node))
        elif operation == "delete":
            cache.delete(NamespacedName("default", names), str(version))
        else:
            cache.replace([version_of(name, str(version), node=node) for name in names])

    for name, keys_of in (("node", by_node), ("label", by_labels)):
        want_keys = {key for one in cache.all() for key in keys_of(one)}
        assert set(cache.index_keys(name)) == want_keys
        for key in want_keys:
            found = {one.metadata.key: one for one in cache.by_index(name, key)}
            want = {one.metadata.key: one for one in cache.all() if key in keys_of(one)}
            assert found == want


def test_equal_versions_are_not_older() -> None:
    """A version is never older than itself, nor is anything that cannot be compared."""
    assert not is_older("5", "5")
    assert not is_older("", "5")
    assert not is_older("5", "")
    assert is_older("99999999999999999999", "100000000000000000000")
