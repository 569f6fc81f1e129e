"""Shares of the numbers that are drawn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.ruleset.endpoint_chains import MAX_NUMBERS, distinct_endpoints, split_by_weight


@pytest.mark.parametrize(
    ("weights", "want"),
    [
        pytest.param([1, 1, 1], [1, 1, 1], id="equal"),
        pytest.param([7, 7], [1, 1], id="equal and great"),
        pytest.param([6, 4, 2], [3, 2, 1], id="a common divisor"),
        pytest.param([5], [1], id="alone"),
        pytest.param([0, 0], [1, 1], id="no weights at all"),
        pytest.param([0, 2], [1, 1], id="one without weight is not left out"),
        pytest.param([10**30, 1], [999_999, 1], id="more than can be drawn from"),
        pytest.param([], [], id="nobody"),
    ],
)
def test_weights_become_shares(weights: list[int], want: list[int]) -> None:
    """As few numbers as can be, at least one for each."""
    assert split_by_weight(weights) == want


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=20))
def test_shares_are_nearly_the_weights(weights: list[int]) -> None:
    """Within what a millionth of the total can make."""
    shares = split_by_weight(weights)
    assert min(shares) >= 1
    assert sum(shares) <= MAX_NUMBERS + len(weights)
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share / sum(shares) - weight / sum(weights)) < 1e-4


def test_only_plain_endpoints_are_usable() -> None:
    """Of the family, canonical, with a port."""
    good = PortEndpoint("10.0.0.1", 80)
    others = [
        PortEndpoint("10.0.0.01", 80),
        PortEndpoint("fd00::1", 80),
        PortEndpoint("10.0.0.1", 0),
        PortEndpoint("10.0.0.1", 65536),
    ]
    assert distinct_endpoints([*others, good], "IPv4") == [good]
