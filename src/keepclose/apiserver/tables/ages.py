"""How long ago something was, with the two or three figures that kubectl shows.

The steps are those of Kubernetes: seconds up to two minutes, then "5m10s", "42m", "3h5m", "26h",
"3d4h", "200d", "2y5d", "9y". A moment up to a second ahead counts as now, because clocks differ;
one further ahead is "<invalid>", and one that nobody noted is "<unknown>".
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

UNKNOWN: Final = "<unknown>"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO: Final = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000
# Go counts a duration in 64 bits of nanoseconds and stops there.
_LONGEST: Final = (2**63 - 1) // 1000


def read_time(stamp: object) -> datetime | None:
    """Return the moment of an RFC 3339 text in UTC; None for the zero time and for other texts."""
    if not isinstance(stamp, str):
        return None
    try:
        moment = datetime.fromisoformat(stamp)
        if moment.tzinfo is None:
            return None
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return None if moment == _ZERO else moment


def age_of(stamp: object, now: float) -> str:
    """Return how long before `now`, in seconds since 1970, the stamp lies."""
    moment = read_time(stamp)
    return UNKNOWN if moment is None else age_since(moment, now)


def age_since(moment: datetime, now: float) -> str:
    """Return how long before `now` the moment lies."""
    # NB: whole microseconds, because differences of such large doubles are a touch too short.
    passed = round(now * _SECOND) - (moment - _EPOCH) // _MICROSECOND
    return human_duration(min(passed, _LONGEST))


def human_duration(microseconds: int) -> str:
    """Return a duration as people read it."""
    if microseconds <= -2 * _SECOND:
        return "<invalid>"
    if microseconds < 0:
        return "0s"
    seconds = microseconds // _SECOND
    minutes, hours = seconds // 60, seconds // 3600
    days = hours // 24
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
