"""History is bounded by bytes, in memory and on disk: large objects written again and again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from keepclose.apiserver.storage import history, store
from keepclose.apiserver.storage.history import Overflow
from keepclose.apiserver.storage.store import RevisionCompacted, Store

MIB: Final = 1 << 20


def make(name: str, size: int) -> dict[str, Any]:
    """Return an object of about so many bytes."""
    return {"metadata": {"name": name, "namespace": "default"}, "data": {"text": "x" * size}}


def bytes_on_disk(directory: Path) -> int:
    """Return what the files of a store take, without the reserve."""
    return sum(
        path.stat().st_blocks * 512
        for path in directory.iterdir()
        if not path.name.endswith("-reserve")
    )


def test_repeated_large_updates_stay_within_the_bytes(tmp_path: Path) -> None:
    """One object of 1 MB that is written 60 times keeps 8 MiB of history, in memory and on disk."""
    opened = Store.open(tmp_path, history_bytes=8 * MIB)
    opened.create("pods", make("p", 1000))
    first = opened.version
    largest = 0
    for _ in range(60):
        opened.update("pods", make("p", MIB))
        assert opened.history_bytes <= 8 * MIB
        largest = max(largest, bytes_on_disk(tmp_path))
    # History, a step of compaction, the object itself, and the write-ahead log.
    assert largest < (8 + 4 + 1 + 16) * MIB
    with pytest.raises(RevisionCompacted):
        opened.subscribe("pods", since=first)
    assert len(opened.subscribe("pods", since=opened.oldest_of("pods")).take()) == 7
    opened.close()
    reopened = Store.open(tmp_path, history_bytes=8 * MIB)
    assert reopened.history_bytes <= 8 * MIB
    reopened.close()
    assert bytes_on_disk(tmp_path) < (8 + 4 + 1 + 16) * MIB


def test_small_histories_outlive_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound over all stores takes from the largest history, not from the others."""
    monkeypatch.setattr(store, "TOTAL_HISTORY_BYTES", 4 * MIB)
    opened = Store.open(None)
    opened.create("services", make("s", 1000))
    opened.create("pods", make("p", 1000))
    for _ in range(20):
        opened.update("pods", make("p", MIB))
        assert opened.history_bytes <= 6 * MIB
    assert len(opened.subscribe("services", since=1).take()) == 1
    with pytest.raises(RevisionCompacted):
        opened.subscribe("pods", since=2)


def test_lines_for_watchers_are_not_kept_beyond_their_bytes() -> None:
    """The second copy that a watched change has goes early when objects are large."""
    opened = Store.open(None)
    opened.create("pods", make("p", 1000))
    changes = opened.subscribe("pods", since=opened.version)
    for _ in range(30):
        opened.update("pods", make("p", MIB))
    taken = changes.take()
    for _ in range(2):
        assert all(change.frame.startswith(b'{"type":"MODIFIED"') for change in taken)
        kept = sum(len(change._frame or b"") for change in taken)
        assert 0 < kept <= history.FRAME_BYTES_KEPT + MIB


async def test_a_slow_watcher_is_given_up_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that does not read holds no more old versions than the bytes allow."""
    monkeypatch.setattr(history, "PENDING_BYTES", 4 * MIB)
    opened = Store.open(None)
    opened.create("pods", make("p", 1000))
    slow = opened.subscribe("pods", since=None)
    for _ in range(20):
        opened.update("pods", make("p", MIB))
        assert slow.pending <= 5
    with pytest.raises(Overflow, match="bytes were left waiting"):
        await slow.next()


def test_pages_of_dropped_history_are_used_again(tmp_path: Path) -> None:
    """The file stops growing: what history gives up serves for what comes."""
    opened = Store.open(tmp_path, history_bytes=4 * MIB)
    opened.create("pods", make("p", MIB))
    sizes: list[int] = []
    for number in range(80):
        opened.update("pods", make("p", MIB))
        if number % 20 == 19:
            sizes.append(os.stat(tmp_path / "store.db").st_size)  # noqa: PTH116
    opened.close()
    assert sizes[-1] <= sizes[1] + 2 * MIB
