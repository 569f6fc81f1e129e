"""Events that were not written for an hour are removed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from keepclose.apiserver.controllers.event_expiry import EVENT_STORE, EventExpiry
from keepclose.apiserver.storage.store import Store
from keepclose.testing.api_server import PATIENCE, serving
from support.kinds import raw


class Stored:
    """Events in a store in memory, a clock that stands until it is set, and a time of 60 s."""

    def __init__(self) -> None:
        self.store = Store.open(None)
        self.now = 1000.0
        self.expiry = EventExpiry(self.store, seconds=60.0, clock=lambda: self.now)

    def put(self, name: str, message: str = "") -> None:
        """Store an Event; the expiry learns of it by `resume` or `run`."""
        event = raw("Event", name, metadata={"finalizers": ["example.com/held"]}, message=message)
        exists = self.store.get(EVENT_STORE, "default", name) is not None
        (self.store.update if exists else self.store.create)(EVENT_STORE, event)

    def resume(self) -> None:
        """Have the expiry look at everything."""
        for _ in self.expiry.resume():
            pass

    def names(self) -> list[str]:
        """Return the names of what is stored."""
        return [entry.name for entry in self.store.entries(EVENT_STORE)]


@pytest.fixture
def stored() -> Stored:
    """Nothing stored."""
    return Stored()


def test_an_event_expires_after_its_time(stored: Stored) -> None:
    """It is there until then, although a finalizer would hold any other object."""
    stored.put("a")
    stored.resume()
    assert stored.expiry.delete_due() == 60.0
    stored.now += 59.0
    assert (stored.expiry.delete_due(), stored.names()) == (1.0, ["a"])
    stored.now += 1.0
    assert (stored.expiry.delete_due(), stored.names()) == (None, [])


def test_a_write_renews_the_time(stored: Stored) -> None:
    """What another look at everything finds unchanged keeps its time; a write starts it again."""
    stored.put("a")
    stored.put("b")
    stored.resume()
    stored.now += 50.0
    stored.put("a", "again")
    stored.put("c")
    stored.resume()
    stored.now += 10.0
    assert (stored.expiry.delete_due(), stored.names()) == (50.0, ["a", "c"])
    stored.now += 50.0
    assert (stored.expiry.delete_due(), stored.names()) == (None, [])


def test_a_write_that_is_not_yet_known_counts(stored: Stored) -> None:
    """An Event that changed since the last look is not removed for its old time."""
    stored.put("a")
    stored.resume()
    stored.now += 60.0
    stored.put("a", "again")
    assert (stored.expiry.delete_due(), stored.names()) == (None, ["a"])
    stored.resume()
    assert stored.expiry.delete_due() == 60.0


def test_what_cannot_be_removed_is_tried_again_soon(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Event that a full disk keeps is removed once there is room, not an hour later."""
    stored.put("a")
    stored.resume()
    stored.now += 60.0
    with monkeypatch.context() as patched:
        patched.setattr(stored.store, "delete", _fail)
        with pytest.raises(OSError, match="no room"):
            stored.expiry.delete_due()
    stored.resume()
    assert (stored.expiry.delete_due(), stored.names()) == (None, [])


def _fail(*_key: str, **_options: int) -> None:
    raise OSError("no room")


def test_events_that_are_gone_are_forgotten(stored: Stored) -> None:
    """Another look at everything drops what was deleted meanwhile."""
    stored.put("a")
    stored.put("b")
    stored.resume()
    stored.store.delete(EVENT_STORE, "default", "a")
    stored.resume()
    stored.now += 59.0
    assert stored.expiry.delete_due() == 1.0
    stored.store.delete(EVENT_STORE, "default", "b")
    stored.resume()
    assert stored.expiry.delete_due() is None


def test_many_expire_a_few_at_a_time(stored: Stored) -> None:
    """Thousands that expire at once take many calls, of which each is short."""
    for number in range(5_000):
        stored.put(f"e{number}")
    stored.resume()
    stored.now += 60.0
    left = stored.expiry.delete_due()
    assert left is not None
    assert left <= 0
    assert 0 < len(stored.names()) < 5_000
    while stored.expiry.delete_due() is not None:
        pass
    assert stored.names() == []


async def test_it_follows_the_store(stored: Stored) -> None:
    """A run learns of writes and deletes by others, and ends with the store."""
    task = asyncio.create_task(stored.expiry.run())
    await asyncio.sleep(0)
    stored.put("a")
    stored.put("b")
    stored.store.delete(EVENT_STORE, "default", "b")
    async with asyncio.timeout(PATIENCE):
        while stored.expiry.delete_due() is None:  # noqa: ASYNC110 - until the run has its turn
            await asyncio.sleep(0)
        stored.now += 60.0
        stored.put("c")
        while stored.names() != ["c"]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    stored.store.close()
    await task


async def test_the_server_removes_events(tmp_path: Path) -> None:
    """An Event goes by itself, also from the group events.k8s.io, and watchers are told."""
    path = "/api/v1/namespaces/default/events"
    event = {
        "metadata": {"name": "a"},
        "involvedObject": {"kind": "Service", "namespace": "default", "name": "web"},
    }
    async with serving(tmp_path, event_seconds=1.0) as api, api.watch(path) as changes:
        await api.create(path, event)
        assert await changes.take(2) == [("ADDED", "a"), ("DELETED", "a")]
        newer = "/apis/events.k8s.io/v1/namespaces/default/events/a"
        assert (await api.call("GET", newer)).status == 404
