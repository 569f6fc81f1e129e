"""Tests of patience."""

from __future__ import annotations

from random import Random

import pytest

from keepclose.kube import errors
from keepclose.kube.errors import ApiError, KubeError
from keepclose.kube.transport.retries import Retries, may_pass

PATIENT = Retries(random=Random(1), max_elapsed=100.0)


@pytest.mark.parametrize(
    ("error", "want_repeatable", "want_other"),
    [
        pytest.param(errors.ConnectionRefused("h", "r"), True, True, id="refused"),
        pytest.param(errors.ConnectionLost("h", "r"), True, False, id="lost"),
        pytest.param(errors.TimedOut("h", "r"), True, False, id="timed out"),
        pytest.param(errors.TimedOut("h", "r", sent=False), True, True, id="never connected"),
        pytest.param(errors.TlsError("h", "r"), False, False, id="no trust"),
        pytest.param(errors.BrokenStream("h", "r"), False, False, id="not the API"),
        pytest.param(errors.TooManyRequests(429), True, True, id="429"),
        pytest.param(errors.ServerError(500), True, False, id="500"),
        pytest.param(errors.ServerError(501), False, False, id="501"),
        pytest.param(errors.ServerError(503), True, False, id="503"),
        pytest.param(errors.Timeout(504), True, False, id="504"),
        pytest.param(errors.NotFound(404), False, False, id="404"),
        pytest.param(errors.Conflict(409), False, False, id="409"),
        pytest.param(errors.Expired(410), False, False, id="410"),
        pytest.param(errors.ConfigError("bad"), False, False, id="bad settings"),
    ],
)
def test_what_may_pass(error: KubeError, want_repeatable: bool, want_other: bool) -> None:
    """Only failures that may pass are repeated, and writes only when nothing was done."""
    assert may_pass(error, repeatable=True) is want_repeatable
    assert may_pass(error, repeatable=False) is want_other
    wait = PATIENT.delay(error, failures=1, elapsed=0, repeatable=True)
    assert (wait is not None) is want_repeatable


def test_waits_double_up_to_the_cap_with_full_jitter() -> None:
    """The n-th wait is anywhere between nothing and 0.1 s doubled n times, 5 s at most."""
    error = errors.ConnectionLost("h", "r")
    retries = Retries(random=Random(7), max_elapsed=1e9)
    for failures, want_limit in [(1, 0.1), (2, 0.2), (4, 0.8), (6, 3.2), (7, 5.0), (5000, 5.0)]:
        waits = [
            retries.delay(error, failures=failures, elapsed=0, repeatable=True) or 0.0
            for _ in range(400)
        ]
        assert 0 <= min(waits) < want_limit * 0.05
        assert want_limit * 0.95 < max(waits) <= want_limit


def test_the_same_seed_gives_the_same_waits() -> None:
    """Waits can be repeated in a test."""
    error = errors.ConnectionLost("h", "r")

    def waits(seed: int) -> list[float | None]:
        retries = Retries(random=Random(seed))
        return [retries.delay(error, failures=n, elapsed=0, repeatable=True) for n in range(1, 6)]

    assert waits(3) == waits(3) != waits(4)


def test_the_server_s_time_is_obeyed() -> None:
    """A time that the server names is waited for exactly, beyond the cap too."""
    error: ApiError = errors.TooManyRequests(429, retry_after=12.0)
    assert PATIENT.delay(error, failures=1, elapsed=0, repeatable=False) == 12.0


@pytest.mark.parametrize(
    ("elapsed", "retry_after", "want"),
    [
        pytest.param(29.0, 0.5, 0.5, id="still time"),
        pytest.param(29.0, 1.0, None, id="the wait would end too late"),
        pytest.param(0.0, 31.0, None, id="the server asks for more patience than there is"),
        pytest.param(31.0, None, None, id="time is over"),
    ],
)
def test_patience_ends(elapsed: float, retry_after: float | None, want: float | None) -> None:
    """No wait goes beyond the limit on all attempts together."""
    error = errors.ServerError(503, retry_after=retry_after)
    assert Retries().delay(error, failures=1, elapsed=elapsed, repeatable=True) == want


def test_no_patience_at_all() -> None:
    """A limit of 0 never repeats anything."""
    error = errors.ConnectionRefused("h", "r")
    assert Retries(max_elapsed=0).delay(error, failures=1, elapsed=0, repeatable=True) is None
