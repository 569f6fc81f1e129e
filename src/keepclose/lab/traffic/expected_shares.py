"""Whether connections of a run went where they should go.

What should happen is what `advise.expectations` says. Observed connections agree with it if none
reached an unexpected endpoint, none failed unexpectedly, and the shares differ from the expected
ones by no more than chance explains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from keepclose.advise.expectations import FALSE_ALARMS, Expectation, is_unlikely
from keepclose.lab.traffic.answers import ConnectionFailure, ConnectionResult, PodAnswer
from keepclose.routing.selection import PacketVerdict

_FAILURES: Final = {
    PacketVerdict.DROP: ConnectionFailure.TIMED_OUT,
    PacketVerdict.REJECT: ConnectionFailure.REFUSED,
    PacketVerdict.NONE: ConnectionFailure.UNREACHABLE,
}


def expected_failure(expectation: Expectation) -> ConnectionFailure | None:
    """Return how connections should fail; None if they should be answered."""
    return None if expectation.shares else _FAILURES[expectation.verdict]


def find_fault(
    results: Mapping[ConnectionResult, int],
    expected: Sequence[Expectation],
    *,
    compares_shares: bool = True,
    judged: int = 0,
) -> str:
    """Return in one line what is not as expected, or "" if all is.

    Several expectations are those before and after a change: then only failures are judged, because
    it is unknown which pods came and went in between. `judged` is the number of counts that are
    compared in the whole run.
    """
    shares = {pod: share for expectation in expected for pod, share in expectation.shares.items()}
    failures = [
        failure
        for expectation in expected
        if (failure := expected_failure(expectation)) is not None
    ]
    instead = f", expected {' or '.join(failures)}" if failures and not shares else ""
    pods: Counter[str] = Counter()
    for result, count in results.items():
        if isinstance(result, PodAnswer):
            pods[result.pod] += count
        elif result not in failures:
            return f"{count:,} {result}{instead}"
    if len(expected) > 1:
        return ""
    strangers = Counter({pod: count for pod, count in pods.items() if pod not in shares})
    if strangers:
        first, _ = max(strangers.items(), key=lambda item: (item[1], item[0]))
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        why = instead or ", which should get none"
        return f"{strangers.total():,} answered by {first}{more}{why}"
    if not compares_shares:
        return ""
    whole = pods.total()
    limit = FALSE_ALARMS / max(judged, len(shares), 1)
    for pod, share in shares.items():
        if is_unlikely(pods[pod], whole, share, limit=limit):
            part = f"{100 * pods[pod] / whole:.1f} %"
            return f"{pod} got {part}, expected {100 * share:.1f} %"
    return ""
