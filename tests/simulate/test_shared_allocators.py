"""The allocators "shared-global" and "shared-multizone" against hand-worked regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.simulate.allocators.global_group import (
    allocate_shared_global,
    allocate_shared_multizone,
)


def allocate(
    kernel: Callable[..., int], nodes: Sequence[int], endpoints: Sequence[int]
) -> tuple[list[int], list[int], list[float]] | None:
    """Return own endpoints, lent endpoints and the weights of the global group, all by zone."""
    zones = len(nodes)
    shares = [count / sum(nodes) if sum(nodes) else 0.0 for count in nodes]
    comp = [-1] * (zones * (3 * zones + 2))
    weight = [math.nan] * (zones * (3 * zones + 2))
    count = kernel(zones, shares, endpoints, 0.5, 3.0, comp, weight, [], [])
    if count == 0:
        return None
    assert count == zones + 1
    own = comp[: zones * zones : zones + 1]
    for zone in range(zones):
        alone = [int(other == zone) for other in range(zones)]
        row = slice(zone * zones, (zone + 1) * zones)
        assert comp[row] == [own[zone] * here for here in alone]
        assert weight[row] == alone
    pool = slice(zones * zones, count * zones)
    return own, comp[pool], weight[pool]


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want_groups"),
    [
        pytest.param([1, 1], [50, 50], None, id="100 endpoints stay together"),
        pytest.param(
            [1, 1], [51, 50], ([50, 50], [1, 0], [0.4, 0.4]), id="half an endpoint is worth one"
        ),
        pytest.param(
            [1, 1], [110, 90], ([85, 90], [25, 0], [0.4, 0.4]), id="ten endpoints are worth 25"
        ),
        pytest.param(
            [1, 1], [190, 10], ([0, 10], [190, 0], [0.4, 0.4]), id="no more than there are"
        ),
        pytest.param([0, 0], [60, 60], ([0, 0], [60, 60], [0.4, 0.4]), id="without clients"),
        pytest.param(
            [1, 1], [101, 101], ([101, 101], [0, 0], [0.4, 0.4]), id="even zones lend nothing"
        ),
    ],
)
def test_shared_global(
    nodes: list[int],
    endpoints: list[int],
    want_groups: tuple[list[int], list[int], list[float]] | None,
) -> None:
    """Zones lend their surplus times two and a half to a group that all clients use."""
    assert allocate(allocate_shared_global, nodes, endpoints) == want_groups


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want_groups"),
    [
        pytest.param([1, 1], [50, 50], None, id="100 endpoints stay together"),
        pytest.param(
            [1, 1], [51, 50], ([51, 50], [0, 0], [1, 1]), id="half an endpoint is not lent"
        ),
        pytest.param(
            [1, 1], [110, 90], ([100, 90], [10, 0], [0, 1]), id="a zone that lends stays at home"
        ),
        pytest.param(
            [0, 1], [10, 100], ([0, 100], [10, 0], [1, 1]), id="unless it has lent all it has"
        ),
    ],
)
def test_shared_multizone(
    nodes: list[int],
    endpoints: list[int],
    want_groups: tuple[list[int], list[int], list[float]] | None,
) -> None:
    """Zones lend their surplus to a group that only the others use."""
    assert allocate(allocate_shared_multizone, nodes, endpoints) == want_groups


@settings(deadline=None, max_examples=200)
@given(
    region=st.integers(1, 8).flatmap(
        lambda zones: st.tuples(
            st.lists(st.integers(0, 12), min_size=zones, max_size=zones),
            st.lists(st.integers(0, 300), min_size=zones, max_size=zones),
        )
    ),
    kernel=st.sampled_from([allocate_shared_global, allocate_shared_multizone]),
)
def test_zones_lend_what_they_have(
    region: tuple[list[int], list[int]], kernel: Callable[..., int]
) -> None:
    """Own and lent endpoints are all endpoints, and a zone short of endpoints lends none."""
    nodes, endpoints = region
    groups = allocate(kernel, nodes, endpoints)
    assert (groups is None) == (sum(endpoints) <= 100)
    if groups is not None:
        for zone, count in enumerate(endpoints):
            own, lent = groups[0][zone], groups[1][zone]
            assert own + lent == count
            assert min(own, lent) >= 0
            if count * sum(nodes) < sum(endpoints) * nodes[zone]:
                assert lent == 0
