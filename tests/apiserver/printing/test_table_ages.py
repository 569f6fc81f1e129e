"""Ages as kubectl shows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.printing.cells import age_of, human_duration, parse_creation_time

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 365 * 86_400


@pytest.mark.parametrize(
    ("seconds", "want_text"),
    [
        (-3600, "<invalid>"),
        (-2, "<invalid>"),
        (-1.999999, "0s"),
        (-0.5, "0s"),
        (0, "0s"),
        (0.999999, "0s"),
        (1, "1s"),
        (119.9, "119s"),
        (2 * MINUTE, "2m"),
        (2 * MINUTE + 1, "2m1s"),
        (5 * MINUTE + 10, "5m10s"),
        (10 * MINUTE - 1, "9m59s"),
        (10 * MINUTE, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 5 * MINUTE + 59, "3h5m"),
        (8 * HOUR - 1, "7h59m"),
        (8 * HOUR, "8h"),
        (2 * DAY - 1, "47h"),
        (2 * DAY, "2d"),
        (3 * DAY + 4 * HOUR, "3d4h"),
        (8 * DAY - 1, "7d23h"),
        (8 * DAY, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR, "2y"),
        (2 * YEAR + 5 * DAY, "2y5d"),
        (8 * YEAR - 1, "7y364d"),
        (8 * YEAR, "8y"),
        (100 * YEAR, "100y"),
    ],
)
def test_durations_have_two_or_three_figures(seconds: float, want_text: str) -> None:
    """Each step keeps what people want to know and drops the rest."""
    assert human_duration(round(seconds * 1_000_000)) == want_text


@pytest.mark.parametrize(
    ("stamp", "want_age"),
    [
        pytest.param("2027-01-15T07:58:00Z", "2m", id="to the second"),
        pytest.param("2027-01-15T07:58:00.000001Z", "119s", id="to the microsecond"),
        pytest.param("2027-01-15T09:58:00+02:00", "2m", id="in another time zone"),
        pytest.param("2027-01-15T08:00:05Z", "<invalid>", id="in the future"),
        pytest.param("1500-01-01T00:00:00Z", "292y", id="before Go can count"),
        pytest.param("0001-01-01T00:00:00Z", "<unknown>", id="the zero time"),
        pytest.param("2027-01-15T07:58:00", "<unknown>", id="without a time zone"),
        pytest.param("0001-01-01T00:00:00+05:00", "<unknown>", id="before the first year"),
        pytest.param("yesterday", "<unknown>", id="no time"),
        pytest.param("", "<unknown>", id="empty"),
        pytest.param(None, "<unknown>", id="missing"),
        pytest.param(1_800_000_000, "<unknown>", id="a number"),
    ],
)
def test_ages_count_from_the_stamp_to_now(stamp: object, want_age: str) -> None:
    """Ages are told against the given time; what is no time has no age."""
    assert age_of(stamp, 1_800_000_000.0) == want_age


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 119_999_999), st.integers(0, 2_000_000_000))
def test_seconds_are_never_lost_to_rounding(passed: int, start: int) -> None:
    """A stamp in microseconds and a time in doubles give the whole seconds between them."""
    moment = datetime.fromtimestamp(start, UTC)
    later = moment + timedelta(microseconds=passed)
    assert age_of(moment.isoformat(), later.timestamp()) == f"{passed // 1_000_000}s"
    assert parse_creation_time(moment.isoformat()) == moment
