"""Times of the API as seconds since 1970, and back: RFC 3339 in UTC."""

from __future__ import annotations

import datetime as dt


def seconds_of(timestamp: str | None) -> float | None:
    """Return a time of the API in seconds since 1970, None if there is none or it is invalid."""
    if not timestamp:
        return None
    try:
        return dt.datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def format_event_time(seconds: float) -> str:
    """Return a time as the API's Time: RFC 3339 in UTC, whole seconds."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
