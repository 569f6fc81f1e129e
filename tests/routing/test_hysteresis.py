"""Going from written hints to good enough ones: who stays, who moves, and when it is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsIndex

import pytest

from keepclose.routing.allocation.hysteresis import HYSTERESIS, find_mover, settle, weigh
from keepclose.routing.allocation.zone_sizes import LOCALITY_OBJECTIVE, SCORE_OBJECTIVE

Rows = tuple[tuple[int, ...], ...]

HALVES = (0.5, 0.5)
THIRDS = (1 / 3, 1 / 3, 1 / 3)
NO_BOUND = 1000.0
ANYTHING = -math.inf


def improve(
    shares: Sequence[float],
    endpoints: Sequence[int],
    previous: Rows,
    *,
    best: float,
    objective: int = SCORE_OBJECTIVE,
) -> tuple[int, Rows]:
    """Return the number of re-hints and the allocation, given the best objective there is."""
    zones = len(shares)
    matrix = [0] * (zones * zones)
    written = [number for row in previous for number in row]
    ints, floats = [9] * (16 * zones), [NO_BOUND, best]
    changes = settle(zones, shares, endpoints, objective, written, matrix, ints, floats)
    return changes, tuple(tuple(matrix[row * zones : (row + 1) * zones]) for row in range(zones))


@pytest.mark.parametrize(
    ("previous", "want_changes"),
    [
        pytest.param(((1, 0), (0, 1)), 0, id="half of the endpoints are new"),
        pytest.param(((1, 0), (0, 0)), -1, id="most endpoints are new"),
    ],
)
def test_most_endpoints_must_be_hinted_already(previous: Rows, want_changes: int) -> None:
    """Where most endpoints are new, there is little to keep and the best sizes are taken."""
    changes, matrix = improve(HALVES, (2, 2), previous, best=45.0)

    assert changes == want_changes
    assert changes < 0 or matrix == ((2, 0), (0, 2))


def test_a_new_endpoint_never_serves_a_zone_without_traffic() -> None:
    """A new endpoint in a zone without traffic serves another, however little that one needs it."""
    previous = ((0, 0), (0, 6))

    got = improve((0.0, 1.0), (1, 6), previous, best=ANYTHING, objective=LOCALITY_OBJECTIVE)

    assert got == (0, ((0, 1), (0, 6)))


def test_hints_to_a_zone_without_traffic_are_none() -> None:
    """An endpoint hinted to a zone that sends nothing is hinted anew."""
    got = improve((0.0, 1.0), (2, 2), ((2, 0), (0, 2)), best=ANYTHING)

    assert got == (2, ((0, 2), (0, 2)))


def test_no_endpoint_moves_to_a_zone_without_traffic() -> None:
    """Taking strangers away from a zone is no gain where they would serve nobody."""
    previous = ((0, 2), (0, 2))

    changes, _ = improve((0.0, 1.0), (2, 2), previous, best=100.0, objective=LOCALITY_OBJECTIVE)

    assert changes == -1


@pytest.mark.parametrize(
    ("share", "want_matrix"),
    [
        pytest.param(
            0.3679012345619753, ((3, 0), (0, 3)), id="better by just the allowance for rounding"
        ),
        pytest.param(0.367, ((2, 1), (0, 3)), id="better by more"),
    ],
)
def test_a_new_endpoint_stays_at_home_unless_that_is_worse(share: float, want_matrix: Rows) -> None:
    """Another zone gets a new endpoint only where that is better by more than rounding."""
    got = improve((share, 1 - share), (3, 3), ((2, 0), (0, 3)), best=ANYTHING)

    assert got == (0, want_matrix)


@pytest.mark.parametrize(
    ("best", "want"),
    [
        pytest.param(3.75 + HYSTERESIS, (0, ((2, 3), (0, 3))), id="exactly what may be lost"),
        pytest.param(3.8 + HYSTERESIS, (1, ((3, 2), (0, 3))), id="a little more"),
    ],
)
def test_good_enough_is_enough(best: float, want: tuple[int, Rows]) -> None:
    """Hints stay while they are worth no less than the best by what may be lost for them.

    Serving half of the traffic with 2 of 8 endpoints and the other half with 6, of which 3 are its
    own, is worth 45 * 0.75 - 20 * 1 - 20 * 0.5 = 3.75.
    """
    assert improve(HALVES, (5, 3), ((2, 3), (0, 3)), best=best) == want


def test_endpoints_of_the_first_zone_move_too() -> None:
    """Endpoints of the first zone that serve another come home when that is needed."""
    got = improve(HALVES, (4, 4), ((2, 2), (0, 4)), best=45.0)

    assert got == (2, ((4, 0), (0, 4)))


def test_of_equal_moves_the_first_is_made() -> None:
    """Two zones could give to the one without endpoints; the first in order does."""
    got = improve(THIRDS, (2, 0, 2), ((2, 0, 0), (0, 0, 0), (0, 0, 2)), best=16.0)

    assert got == (1, ((1, 1, 0), (0, 0, 0), (0, 0, 2)))


class CountedCells(list[int]):
    """A matrix that counts how often a cell is written."""

    writes = 0

    def __setitem__(self, key: SupportsIndex | slice, value: Any) -> None:
        self.writes += 1
        super().__setitem__(key, value)


@pytest.mark.parametrize(
    "previous",
    [
        pytest.param(((1000, 0, 0), (0, 1000, 0), (0, 0, 3000)), id="own zones"),
        pytest.param(((1000, 0, 0), (0, 1000, 0), (0, 500, 2500)), id="other shares"),
        pytest.param(((600, 0, 0), (0, 500, 0), (0, 0, 1500)), id="many are new"),
    ],
)
def test_of_many_endpoints_several_move_at_once(previous: Rows) -> None:
    """Steps do not grow with the endpoints; a few more than single steps would are re-hinted."""
    shares, endpoints = (0.5, 0.3, 0.2), (1000, 1000, 3000)
    sizes = [2500, 1500, 1000]
    best = 45 * sum(
        share * min(own, size) / size
        for share, own, size in zip(shares, endpoints, sizes, strict=True)
    )
    matrix = CountedCells([0] * 9)
    written = [number for row in previous for number in row]
    ints, floats = [9] * 48, [0.2, best]
    changes = settle(3, shares, endpoints, SCORE_OBJECTIVE, written, matrix, ints, floats)
    assert changes >= 0
    assert [sum(matrix[row : row + 3]) for row in (0, 3, 6)] == list(endpoints)
    assert weigh(3, shares, 5000, SCORE_OBJECTIVE, matrix, ints, floats) >= best - HYSTERESIS
    assert matrix.writes < 10_000


@pytest.mark.parametrize(
    ("serving", "before", "want_location"),
    [
        pytest.param((0, 0, 0, 0), (1, 1, 1, 1), -1, id="nobody serves the zone"),
        pytest.param((1, 0, 0, 0), (1, 0, 0, 0), 0, id="only its own"),
        pytest.param((1, 1, 1, 0), (1, 1, 1, 0), 1, id="one located where it goes"),
        pytest.param((1, 1, 2, 0), (1, 1, 1, 0), 1, id="even if others are not hinted yet"),
        pytest.param((1, 0, 1, 0), (1, 0, 1, 0), 2, id="one from elsewhere rather than its own"),
        pytest.param((0, 0, 1, 1), (0, 0, 1, 1), 2, id="the first of equals"),
        pytest.param((0, 0, 1, 1), (0, 0, 1, 0), 3, id="one that was not hinted there"),
        pytest.param((0, 0, 1, 2), (0, 0, 1, 1), 3, id="one of which more are hinted than before"),
    ],
)
def test_the_best_mover_is_found(
    serving: tuple[int, ...], before: tuple[int, ...], want_location: int
) -> None:
    """Who goes from the first zone to the second is at home there, or at least not at home here."""
    matrix, previous = [0] * 16, [0] * 16
    matrix[::4], previous[::4] = serving, before

    assert find_mover(4, 0, 1, previous, matrix) == want_location


@pytest.mark.parametrize(
    ("shares", "sizes", "want_value"),
    [
        pytest.param((0.5, 0.5, 0.0), (2, 2, 0), 45.0, id="a zone without traffic costs nothing"),
        pytest.param((0.5, 0.25, 0.25), (2, 1, 1), 45.0, id="all have what they expect"),
        pytest.param(
            (0.5, 0.5, 0.0), (4, 0, 0), 22.5 - 20 * 8 - 20 * 1.0, id="an unserved zone costs most"
        ),
    ],
)
def test_an_allocation_is_weighed(
    shares: tuple[float, ...], sizes: tuple[int, ...], want_value: float
) -> None:
    """In-zone traffic counts for an allocation, the largest and the mean deviation against it."""
    matrix = [sizes[0], 0, 0, 0, sizes[1], 0, 0, 0, sizes[2]]
    ints = [9] * 9 + list(sizes)

    assert weigh(3, shares, 4, SCORE_OBJECTIVE, matrix, ints, [NO_BOUND]) == want_value
