"""Small requests of one identity give way to those of others.

A small request is answered at once, in the moment it is complete. An identity whose requests have
taken more than their share of the last moments must queue instead: queued requests are answered a
few milliseconds at a time, one of each identity in turn, and in between the loop looks after all
connections. So a client with a hundred connections slows down itself alone. Nothing is held back
while no other identity has work, and administrators never queue.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from keepclose.apiserver.status_errors import too_many_requests

T = TypeVar("T")

WINDOW_SECONDS: Final = 0.05
SHARE_SECONDS: Final = 0.02
"""An identity may hold the loop for so long in each window before its requests queue."""
TURN_SECONDS: Final = 0.005
"""Queued requests are answered for so long before the loop looks after connections again."""
MOST_WAITING: Final = 512
"""Small requests of one identity that may queue; a connection has one at a time."""
_MOST_REMEMBERED: Final = 1024


class Turns(Generic[T]):
    """Who has used the loop lately, and whose requests wait for their turn."""

    def __init__(self, *, most_queued: int = MOST_WAITING) -> None:
        """Begin with nothing spent."""
        self._most_queued = most_queued
        # By identity: when its window began, and what was spent since.
        self._spent: dict[str, tuple[float, float]] = {}
        self._queues: dict[str, collections.deque[tuple[Callable[[], T], asyncio.Future[T]]]] = {}

    def spend(self, identity: str, now: float, seconds: float) -> None:
        """Take note of time for which a request of the identity held the loop."""
        start, spent = self._spent.get(identity, (now, 0.0))
        if now - start > WINDOW_SECONDS:
            start, spent = now, 0.0
            if len(self._spent) > _MOST_REMEMBERED:
                self._spent.clear()
        self._spent[identity] = (start, spent + seconds)

    def must_wait(self, identity: str, now: float) -> bool:
        """Return whether a request of the identity must queue now."""
        if identity in self._queues:
            return True
        start, spent = self._spent.get(identity, (now, 0.0))
        return spent > SHARE_SECONDS and now - start < WINDOW_SECONDS

    async def run(self, identity: str, work: Callable[[], T], *, begun: bool = False) -> T:
        """Return what the work returns when its turn has come; raises Failure 429 if many wait.

        `begun` work, such as the next piece of a list, is never refused.
        """
        waiting = self._queues.get(identity)
        loop = asyncio.get_running_loop()
        if waiting is None:
            if not self._queues:
                loop.call_soon(self._take_turn)
            waiting = self._queues[identity] = collections.deque()
        elif len(waiting) >= self._most_queued and not begun:
            raise too_many_requests()
        outcome: asyncio.Future[T] = loop.create_future()
        waiting.append((work, outcome))
        return await outcome

    def _take_turn(self) -> None:
        end = time.perf_counter() + TURN_SECONDS
        while self._queues:
            identity = next(iter(self._queues))
            waiting = self._queues.pop(identity)
            work, outcome = waiting.popleft()
            if waiting:
                # Behind all others.
                self._queues[identity] = waiting
            if not outcome.done():
                try:
                    outcome.set_result(work())
                except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
                    outcome.set_exception(error)
            if time.perf_counter() > end:
                break
        if self._queues:
            asyncio.get_running_loop().call_soon(self._take_turn)
