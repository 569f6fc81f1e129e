"""How many endpoints a single change re-hints."""

from __future__ import annotations

from keepclose.simulate.churn import REHINT_STEPS, count_rehints


def test_a_change_re_hints_few_others() -> None:
    """One pod more or less re-hints fewer other endpoints than with the two other allocators."""
    balanced, auto, local = (
        count_rehints(REHINT_STEPS[name], 2000, seed=1)
        for name in ("balanced", "kube-auto", "local")
    )
    assert 0.3 < balanced <= 0.42
    assert balanced < auto < local


def test_the_same_seed_gives_the_same_figure() -> None:
    """The sequence of changes is the same for every allocator and every run."""
    assert count_rehints(REHINT_STEPS["balanced"], 200, seed=5) == count_rehints(
        REHINT_STEPS["balanced"], 200, seed=5
    )
