"""Whether observed connections agree with what was expected of them.

They do if none went where none should go, none failed that should not, and the shares are no
further from the expected ones than chance explains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from keepclose.lab.traffic.answers import Answer, Result
from keepclose.lab.traffic.expected_shares import Expectation

FALSE_ALARMS: Final = 1e-6
"""How likely it is that a run in which all is well is called wrong, at most.

Each count of a run is judged by the exact binomial tails, because endpoints with few connections
are too far from a normal distribution for a number of sigmas; and as one run has many counts, each
gets an equal part of this chance.
"""


def find_fault(
    results: Mapping[Result, int],
    expected: Sequence[Expectation],
    *,
    compares_shares: bool = True,
    judged: int = 0,
) -> str:
    """Return what is not as expected in one line, or "" when all is.

    Several expectations are those before and after a change: then only failures are judged, since
    nobody knows which pods came and went in between. `judged` is the number of counts that are
    compared in the whole run.
    """
    shares = {pod: share for one in expected for pod, share in one.shares.items()}
    failures = [one.failure for one in expected if one.failure is not None]
    instead = f", expected {' or '.join(failures)}" if failures and not shares else ""
    pods: Counter[str] = Counter()
    for result, count in results.items():
        if isinstance(result, Answer):
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


def is_unlikely(count: int, whole: int, share: float, *, limit: float) -> bool:
    """Return whether a count is so far from its share that chance explains it less than `limit`.

    Both tails count: the chance is twice that of the nearer one.
    """
    if share >= 1.0:
        return count != whole
    middle = whole * share
    # Within three sigmas nothing can be unlikely, and most counts are there.
    if abs(count - middle) <= 3 * math.sqrt(middle * (1 - share)):
        return False
    return 2 * _tail(count, whole, share) < limit


def _tail(count: int, whole: int, share: float) -> float:
    """Return the chance of this many or a number further out on the same side."""
    term = math.exp(
        math.lgamma(whole + 1)
        - math.lgamma(count + 1)
        - math.lgamma(whole - count + 1)
        + count * math.log(share)
        + (whole - count) * math.log1p(-share)
    )
    odds = share / (1 - share)
    total = 0.0
    step = 1 if count > whole * share else -1
    while 0 <= count <= whole and term > total * 1e-9:
        total += term
        if step > 0:
            term *= (whole - count) / (count + 1) * odds
        else:
            term *= count / (whole - count + 1) / odds
        count += step
    return total
