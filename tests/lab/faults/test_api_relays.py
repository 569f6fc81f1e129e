"""Waiting for nodes to come back to the API server."""

from __future__ import annotations

from keepclose.kube.clock import SystemClock
from keepclose.lab.faults.injector import wait_for_reconnect


class FakeApiLink:
    """A way with a number of connections that can be scripted."""

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)

    @property
    def connections(self) -> int:
        """The next of the numbers; the last one stays."""
        return self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]

    async def open(self) -> None:
        """Do nothing."""

    async def hold(self) -> None:
        """Do nothing."""


async def test_nodes_that_come_back() -> None:
    """It is told for whom is waited, and again when that changes."""
    told: list[list[str]] = []
    api_links = {"n1": FakeApiLink(0, 4), "n2": FakeApiLink(0, 0, 4), "n3": FakeApiLink(0)}
    before = {"n1": 4, "n2": 4, "n4": 4}
    away = await wait_for_reconnect(api_links, before, clock=SystemClock(), on_wait=told.append)
    assert away == []
    assert told == [["n1", "n2"], ["n2"]]


async def test_nodes_that_stay_away() -> None:
    """After the patience those are returned who are not back."""
    api_links = {"n1": FakeApiLink(4), "n2": FakeApiLink(3)}
    away = await wait_for_reconnect(
        api_links, {"n1": 4, "n2": 4}, clock=SystemClock(), on_wait=lambda _: None, timeout_s=0.1
    )
    assert away == ["n2"]


async def test_only_watches_are_waited_for() -> None:
    """A fifth connection, for single requests, need not come back."""
    api_links = {"n1": FakeApiLink(4)}
    clock = SystemClock()
    assert await wait_for_reconnect(api_links, {"n1": 5}, clock=clock, on_wait=lambda _: None) == []


async def test_nobody_was_cut_off() -> None:
    """Without anybody to wait for it says nothing."""
    told: list[list[str]] = []
    assert await wait_for_reconnect({}, {}, clock=SystemClock(), on_wait=told.append) == []
    assert told == []
