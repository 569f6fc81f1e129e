"""Subscriptions: what is delivered, how waiting ends, and what becomes of slow readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepclose.apiserver.storage import history
from keepclose.apiserver.storage.entries import StoredChange
from keepclose.apiserver.storage.history import WOKEN_AT_ONCE, Closed, Overflow
from keepclose.apiserver.storage.store import Store


def make(name: str, namespace: str = "default") -> dict[str, Any]:
    """Return an object with a name."""
    return {"metadata": {"name": name, "namespace": namespace}}


def versions(changes: list[StoredChange]) -> list[int]:
    """Return the versions of changes."""
    return [change.version for change in changes]


@pytest.fixture
def store() -> Store:
    """Return a store with two pods."""
    made = Store.open(None)
    made.create("pods", make("a"))
    made.create("pods", make("b", "other"))
    return made


@pytest.mark.parametrize(
    ("since", "want"),
    [
        pytest.param(None, [4, 5], id="from now on"),
        pytest.param(3, [4, 5], id="from the current version"),
        pytest.param(2, [3, 4, 5], id="from a version in the history"),
        pytest.param(1, [2, 3, 4, 5], id="from the beginning"),
    ],
)
async def test_changes_follow_the_history_without_gap(
    store: Store, since: int | None, want: list[int]
) -> None:
    """What happened already comes first and what happens later follows, each once."""
    watch = store.subscribe("pods", since=since)
    store.create("pods", make("c"))
    store.delete("pods", "default", "a")
    store_other = store.create("services", make("s"))
    assert versions(await watch.next()) == want
    assert (watch.pending, store_other.version) == (0, 6)


async def test_a_namespace_can_be_watched_alone(store: Store) -> None:
    """Only changes of the namespace come, from the history as from writes, single or not."""
    watch = store.subscribe("pods", since=1, namespace="other")
    store.create("pods", make("c"))
    store.create("pods", make("d", "other"))
    with store.batch():
        store.create("pods", make("e", "other"))
        store.create("pods", make("f"))
    assert versions(await watch.next()) == [3, 5, 6]


async def test_objects_without_a_namespace_come_once(store: Store) -> None:
    """A watcher of everything gets each change of a kind without namespaces once."""
    watch = store.subscribe("nodes", since=1)
    store.create("nodes", {"metadata": {"name": "n"}})
    assert versions(await watch.next()) == [4]


async def test_a_waiting_reader_is_woken(store: Store) -> None:
    """A reader that finds nothing waits for the next change, and gets all there are by then."""
    watch = store.subscribe("pods", since=None)
    reader = asyncio.create_task(watch.next())
    await asyncio.sleep(0)
    assert not reader.done()
    store.create("pods", make("c"))
    store.create("pods", make("d"))
    assert versions(await reader) == [4, 5]


async def test_all_watchers_get_the_same_changes(store: Store) -> None:
    """A change is handed over, not copied."""
    watches = [store.subscribe("pods", since=None) for _ in range(3)]
    store.create("pods", make("c"))
    changes = [(await watch.next())[0] for watch in watches]
    assert changes[0] is changes[1]
    assert changes[1] is changes[2]


async def test_a_cancelled_wait_loses_nothing(store: Store) -> None:
    """A reader may give up waiting and come again."""
    watch = store.subscribe("pods", since=None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await watch.next()
    store.create("pods", make("c"))
    assert versions(await watch.next()) == [4]


async def test_a_change_and_a_cancellation_at_one_moment_lose_nothing(store: Store) -> None:
    """A reader that is cancelled when its change is there already finds it the next time."""
    watch = store.subscribe("pods", since=None)
    reader = asyncio.create_task(watch.next())
    await asyncio.sleep(0)
    store.create("pods", make("c"))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert versions(await watch.next()) == [4]


async def test_a_slow_reader_is_given_up_once(store: Store) -> None:
    """At the limit all is well; one more drops what is pending, and the reader hears of it once."""
    watch = store.subscribe("pods", since=None, limit=3)
    for number in range(3):
        store.create("pods", make(f"c{number}"))
    assert watch.pending == 3
    store.create("pods", make("c3"))
    assert watch.pending == 0
    store.create("pods", make("c4"))
    assert watch.pending == 0
    with pytest.raises(Overflow, match="more than 3 changes"):
        await watch.next()
    with pytest.raises(Closed):
        await watch.next()


async def test_a_reader_that_keeps_up_is_never_given_up(store: Store) -> None:
    """The limit is on what waits, not on what was delivered."""
    watch = store.subscribe("pods", since=None, limit=2)
    for number in range(10):
        store.create("pods", make(f"c{number}"))
        if number % 2:
            assert versions(await watch.next()) == [number + 3, number + 4]


async def test_a_reader_of_large_objects_is_given_up_sooner(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few changes are too many where they hold too much memory; one alone never is."""
    monkeypatch.setattr(history, "PENDING_BYTES", 10)
    watch = store.subscribe("pods", since=None, limit=100)
    store.create("pods", make("one"))
    assert watch.pending == 1
    store.create("pods", make("two"))
    assert watch.pending == 0
    with pytest.raises(Overflow, match="more than 10 bytes"):
        await watch.next()


async def test_what_comes_at_once_is_not_held_against_the_reader(store: Store) -> None:
    """The backlog does not count towards the limit and a batch counts as one change."""
    watch = store.subscribe("pods", since=1, limit=2)
    with store.batch():
        for number in range(5):
            store.create("pods", make(f"c{number}"))
    store.create("pods", make("d"))
    assert versions(await watch.next()) == [2, 3, 4, 5, 6, 7, 8, 9]
    store.create("pods", make("e"))
    store.create("pods", make("f"))
    store.create("pods", make("g"))
    with pytest.raises(Overflow):
        await watch.next()


async def test_closing_ends_a_wait(store: Store) -> None:
    """A reader that waits is told, whoever closes; nothing is delivered any more."""
    watch = store.subscribe("pods", since=1)
    watch.close()
    watch.close()
    store.create("pods", make("c"))
    with pytest.raises(Closed):
        await watch.next()
    other = store.subscribe("pods", since=None)
    reader = asyncio.create_task(other.next())
    await asyncio.sleep(0)
    store.close()
    with pytest.raises(Closed):
        await reader


async def test_two_readers_of_one_subscription_are_a_mistake(store: Store) -> None:
    """The second one is refused, the first one goes on."""
    watch = store.subscribe("pods", since=None)
    reader = asyncio.create_task(watch.next())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one reader"):
        await watch.next()
    store.create("pods", make("c"))
    assert versions(await reader) == [4]


async def test_a_closed_subscription_is_forgotten(store: Store) -> None:
    """Nothing of an ended watcher stays with the store."""
    subscribers = store._state.part("pods").subscribers
    first = store.subscribe("pods", since=None)
    second = store.subscribe("pods", since=None, namespace="other")
    third = store.subscribe("pods", since=None)
    assert len(subscribers) == 3
    first.close()
    second.close()
    assert len(subscribers) == 1
    third.close()
    assert len(subscribers) == 0


async def test_many_readers_are_woken_a_few_at_a_time(store: Store) -> None:
    """In each turn of the loop a few readers go on, in their order, and all of them in the end."""
    turns: list[int] = []
    turn = 0

    async def read(number: int) -> int:
        await store.subscribe("pods", since=None).next()
        turns.append(turn)
        return number

    count = 10 * WOKEN_AT_ONCE
    readers = [asyncio.create_task(read(number)) for number in range(count)]
    await asyncio.sleep(0)
    store.create("pods", make("c"))
    store.create("pods", make("d"))
    while not all(reader.done() for reader in readers):
        turn += 1
        await asyncio.sleep(0)
    assert len(turns) == count
    assert max(turns.count(number) for number in set(turns)) <= WOKEN_AT_ONCE
    assert len(set(turns)) >= 10
