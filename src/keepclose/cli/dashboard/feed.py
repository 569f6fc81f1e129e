"""What browsers are sent: the present values by topic and name, and to each only what changed.

A stream remembers which values its browser does not have yet, and not the changes themselves. So a
slow browser costs no memory beyond the values, gets the latest one of each, and skips those before.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

MAX_STREAMS: Final = 24
"""How many browser windows may follow at once."""
_Name = tuple[str, str]


class TooManyStreamsError(Exception):
    """As many browsers follow already as may."""


class Stream:
    """The values that one browser does not have yet; close it in the end."""

    is_ended = False
    """Whether the feed has ended, so that nothing more will come."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._missing: dict[_Name, None] = {}
        self._wake = asyncio.Event()

    def add(self, name: _Name) -> None:
        """Note that a value has changed."""
        self._missing[name] = None
        self._wake.set()

    async def until_changed(self, within_s: float) -> bool:
        """Return whether something has changed within that time."""
        try:
            async with asyncio.timeout(within_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> bytes:
        """Return all that is missing as JSON, by topic and name; null is a value that is gone."""
        message: dict[str, dict[str, msgspec.Raw | None]] = {}
        for topic, name in self._missing:
            message.setdefault(topic, {})[name] = self._feed.find(topic, name)
        self._missing.clear()
        self._wake.clear()
        return msgspec.json.encode(message)

    def end(self) -> None:
        """Note that nothing more will come."""
        self.is_ended = True
        self._wake.set()

    def close(self) -> None:
        """Follow no longer. Idempotent."""
        self._feed.close_stream(self)


class Feed:
    """The present values, and the streams that follow them."""

    def __init__(self) -> None:
        self._values: dict[_Name, msgspec.Raw] = {}
        self._streams: set[Stream] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def find(self, topic: str, name: str) -> msgspec.Raw | None:
        """Return the encoded value; None if there is none."""
        return self._values.get((topic, name))

    def names(self, topic: str) -> set[str]:
        """Return the names of the values of a topic."""
        return {name for own, name in self._values if own == topic}

    def publish(self, topic: str, name: str, value: object) -> bool:
        """Set a value, or remove it by None; return whether that changed anything."""
        key = topic, name
        if value is None:
            if self._values.pop(key, None) is None:
                return False
        else:
            encoded = msgspec.Raw(msgspec.json.encode(value))
            if self._values.get(key) == encoded:
                return False
            self._values[key] = encoded
        for stream in self._streams:
            stream.add(key)
        return True

    def open_stream(self) -> Stream:
        """Return a stream that lacks everything; raise TooManyStreamsError."""
        if len(self._streams) >= MAX_STREAMS:
            raise TooManyStreamsError
        stream = Stream(self)
        for key in self._values:
            stream.add(key)
        self._streams.add(stream)
        return stream

    def end(self) -> None:
        """End all streams, so that a server which stops need not wait for them."""
        for stream in self._streams:
            stream.end()

    def close_stream(self, stream: Stream) -> None:
        """Remove a stream. Idempotent."""
        self._streams.discard(stream)
