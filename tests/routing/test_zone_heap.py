"""The heap of zones, also where keys change while zones are inside."""

from __future__ import annotations

import pytest

from keepclose.routing.allocation.local import order_heap, pop_heap, push_heap


@pytest.mark.parametrize(
    ("zones", "keys", "want_zones"),
    [
        pytest.param([], [], [], id="no zones"),
        pytest.param([0], [5.0], [0], id="one zone"),
        pytest.param([0, 1, 2], [3.0, 1.0, 2.0], [1, 0, 2], id="the least comes first"),
        pytest.param([0, 1, 2], [3.0, 1.0, 1.0], [1, 0, 2], id="the left one of equal children"),
        pytest.param([0, 1, 2], [1.0, 1.0, 1.0], [0, 1, 2], id="equal zones stay in order"),
        pytest.param(
            [0, 1, 2, 3, 4], [5.0, 4.0, 3.0, 2.0, 1.0], [4, 3, 2, 0, 1], id="two levels of children"
        ),
    ],
)
def test_order(zones: list[int], keys: list[float], want_zones: list[int]) -> None:
    """Ordering sifts from the last parent up to the first."""
    ints = [-7, *zones, -8]
    order_heap(ints, 1, len(zones), [9.0, *keys], 1)
    assert ints == [-7, *want_zones, -8]


@pytest.mark.parametrize(
    ("zones", "keys", "want_zones"),
    [
        pytest.param([2], [0.0, 0.0, 1.0], [2], id="the only zone"),
        pytest.param(
            [0, 1, 2], [1.0, 2.0, 3.0], [1, 2, 0], id="the last takes its place and sinks"
        ),
        pytest.param([0, 1, 2], [1.0, 2.0, 2.0], [2, 1, 0], id="the last stays above an equal one"),
        pytest.param(
            [0, 1, 2, 3], [9.0, 8.0, 7.0, 1.0], [3, 1, 2, 0], id="keys are those of now, not sorted"
        ),
    ],
)
def test_pop(zones: list[int], keys: list[float], want_zones: list[int]) -> None:
    """Popping moves the first zone behind the end and sifts the last down from the top."""
    ints = list(zones)
    assert pop_heap(ints, 0, len(zones), keys, 0) == len(zones) - 1
    assert ints == want_zones


@pytest.mark.parametrize(
    ("zones", "keys", "want_zones"),
    [
        pytest.param([0], [1.0], [0], id="into an empty heap"),
        pytest.param([0, 1, 2], [1.0, 2.0, 0.5], [2, 1, 0], id="a lesser zone rises to the top"),
        pytest.param([0, 1, 2], [1.0, 2.0, 1.0], [0, 1, 2], id="an equal zone stays below"),
        pytest.param(
            [0, 1, 2, 3], [1.0, 3.0, 4.0, 2.0], [0, 3, 2, 1], id="a zone rises past its parent only"
        ),
    ],
)
def test_push(zones: list[int], keys: list[float], want_zones: list[int]) -> None:
    """Pushing takes in the zone behind the end and moves it up while it is strictly before."""
    ints = list(zones)
    push_heap(ints, 0, len(zones) - 1, keys, 0)
    assert ints == want_zones
