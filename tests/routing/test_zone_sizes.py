"""How many endpoints serve each zone: the starts, the exchanges and what settles ties."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from keepclose.routing.allocation.zone_sizes import (
    ALLOCATED,
    AT_HOME,
    BY_LOAD,
    LOCALITY_OBJECTIVE,
    ROUNDING,
    SCORE_OBJECTIVE,
    SHARED,
    choose_sizes,
    exchange,
    place_endpoints,
    set_least_sizes,
)

BY_LACK = 1


def divide(nodes: Sequence[int]) -> list[float]:
    """Return each zone's part of the nodes."""
    return [count / sum(nodes) for count in nodes]


def place(
    shares: Sequence[float], endpoints: Sequence[int], *, least: Sequence[int], start: int
) -> list[int] | None:
    """Return the sizes that a start gives to each zone, None where it gives none."""
    ints = [*([0] * len(shares)), *least]
    if not place_endpoints(len(shares), shares, endpoints, sum(endpoints), start, ints):
        return None
    return ints[: len(shares)]


def choose(
    shares: Sequence[float], endpoints: Sequence[int], bound: float, objective: int
) -> list[int] | None:
    """Return the chosen sizes, None where all clients use all endpoints."""
    zones = len(shares)
    ints, floats = [9] * (16 * zones), [9.0] * (16 * zones)
    code = choose_sizes(zones, shares, endpoints, bound, objective, ints, floats)
    assert code in (ALLOCATED, SHARED)
    return ints[:zones] if code == ALLOCATED else None


@pytest.mark.parametrize(
    ("nodes", "total", "bound", "want_least", "want_kept"),
    [
        pytest.param((1, 1, 2), 12, 0.2, [3, 3, 5], 0.2, id="less than expected is enough"),
        pytest.param((1, 1, 2), 11, 0.2, [3, 3, 5], 0.2, id="all there are is just enough"),
        pytest.param((0, 1, 3), 4, 0.2, [0, 1, 3], 0.2, id="none without traffic"),
        pytest.param((1, 1, 2), 10, 0.2, [2, 2, 4], 1 / 4, id="equal zones have alike"),
        pytest.param((1, 1, 4), 4, 0.2, [1, 1, 2], 1 / 3, id="taken where the load stays lowest"),
        pytest.param((2, 5, 5), 5, 0.0, [1, 2, 2], 1 / 24, id="a bound of nothing"),
    ],
)
def test_least_sizes_keep_a_bound(
    nodes: tuple[int, ...], total: int, bound: float, want_least: list[int], want_kept: float
) -> None:
    """The least sizes keep the bound asked for, or else the least bound that can be kept."""
    zones = len(nodes)
    ints = [0] * (2 * zones)

    kept = set_least_sizes(zones, divide(nodes), total, bound, ints)

    assert ints[zones:] == want_least
    assert kept == pytest.approx(want_kept, abs=1e-12)


@pytest.mark.parametrize(
    ("nodes", "endpoints", "least", "want_sizes"),
    [
        pytest.param((2, 2), (2, 3), (2, 2), [3, 2], id="the first of equals gets the odd one"),
        pytest.param((4, 1, 1), (6, 1, 2), (1, 1, 1), [5, 2, 2], id="the first zone may give"),
        pytest.param(
            (1, 1, 5, 5),
            (1, 0, 3, 13),
            (1, 1, 5, 5),
            [2, 2, 6, 7],
            id="of zones that may give alike the first gives",
        ),
        pytest.param(
            (1, 6, 1, 1),
            (2, 3, 6, 1),
            (1, 7, 1, 1),
            [2, 7, 2, 1],
            id="of zones with the highest load the first gets",
        ),
    ],
)
def test_start_by_load(
    nodes: tuple[int, ...],
    endpoints: tuple[int, ...],
    least: tuple[int, ...],
    want_sizes: list[int],
) -> None:
    """Wherever endpoints are, zones get so many that the highest load is least."""
    assert place(divide(nodes), endpoints, least=least, start=BY_LOAD) == want_sizes


@pytest.mark.parametrize(
    ("gap", "want_sizes"),
    [
        pytest.param(ROUNDING, [3, 1, 1], id="no lower than rounding may make it"),
        pytest.param(2 * ROUNDING, [2, 2, 1], id="lower"),
    ],
)
def test_a_load_must_get_lower_to_give(gap: float, want_sizes: list[int]) -> None:
    """A zone gives to the most loaded one only if it stays below that by more than rounding."""
    share = 1 / 3

    got = place([2 * (share - gap), share, 1e-9], [5, 0, 0], least=[1, 1, 1], start=BY_LOAD)

    assert got == want_sizes


@pytest.mark.parametrize(
    ("nodes", "endpoints", "least", "want_sizes"),
    [
        pytest.param((4, 3), (4, 2), (3, 2), [4, 2], id="an own endpoint goes before"),
        pytest.param((4, 3), (3, 3), (3, 2), [3, 3], id="an own endpoint of the last zone"),
        pytest.param((2, 3), (3, 3), (2, 3), [3, 3], id="no more than its own"),
    ],
)
def test_start_by_what_is_missing(
    nodes: tuple[int, ...],
    endpoints: tuple[int, ...],
    least: tuple[int, ...],
    want_sizes: list[int],
) -> None:
    """Odd endpoints go to zones that lack most, first to those that have endpoints to use."""
    assert place(divide(nodes), endpoints, least=least, start=BY_LACK) == want_sizes


@pytest.mark.parametrize(
    ("nodes", "endpoints", "least", "want_sizes"),
    [
        pytest.param((1, 1), (3, 5), (3, 3), [3, 5], id="everybody stays at home"),
        pytest.param((1, 3), (3, 0), (1, 2), [1, 2], id="as many too many as zones are taken"),
        pytest.param((3, 1), (4, 6), (7, 3), None, id="too many too many"),
        pytest.param((0, 1), (2, 5), (0, 5), [0, 7], id="as many missing as zones are given"),
        pytest.param((0, 1), (3, 5), (0, 5), None, id="too many missing"),
        pytest.param((1, 4, 1), (5, 1, 2), (1, 4, 1), [2, 4, 2], id="the first zone gives"),
        pytest.param(
            (1, 2, 2), (0, 2, 2), (1, 1, 1), [1, 1, 2], id="of equal zones the first gives"
        ),
    ],
)
def test_start_at_home(
    nodes: tuple[int, ...],
    endpoints: tuple[int, ...],
    least: tuple[int, ...],
    want_sizes: list[int] | None,
) -> None:
    """Zones start with their own endpoints where no more than one a zone has to move."""
    assert place(divide(nodes), endpoints, least=least, start=AT_HOME) == want_sizes


def test_of_equal_exchanges_the_first_is_made() -> None:
    """Two zones could give the endpoint that a third needs; the first in order does."""
    ints = [2, 1, 2, 1, 1, 1]

    reached = exchange(
        3, divide((1, 2, 1)), (0, 2, 3), 5, LOCALITY_OBJECTIVE, least=-math.inf, ints=ints
    )

    assert ints[:3] == [1, 2, 2]
    assert reached == pytest.approx(75.0, abs=1e-4)


def test_a_start_that_is_just_good_enough_is_followed_up() -> None:
    """Exchanges are tried from a start with the least value asked for, and not from a worse one."""
    shares, endpoints = divide((1, 1)), (4, 4)
    ints = [6, 2, 1, 1]

    value = exchange(2, shares, endpoints, 8, SCORE_OBJECTIVE, least=math.inf, ints=ints)
    assert ints[:2] == [6, 2]
    above = math.nextafter(value, math.inf)
    assert exchange(2, shares, endpoints, 8, SCORE_OBJECTIVE, least=above, ints=ints) == value
    assert ints[:2] == [6, 2]

    exchange(2, shares, endpoints, 8, SCORE_OBJECTIVE, least=value, ints=ints)
    assert ints[:2] == [4, 4]


def test_the_start_by_what_is_missing_is_followed_up_from_far_behind() -> None:
    """Only the start at home is left when it is far behind; others may still become best."""
    sizes = choose(divide((8, 1, 0, 1)), (1, 1, 32, 42), 3.0, LOCALITY_OBJECTIVE)

    assert sizes == [32, 2, 0, 42]


@pytest.mark.parametrize(
    ("shares", "want_sizes"),
    [
        pytest.param(
            [0.3160746538297411, 0.17098133654256473, 0.5129440096276942],
            [4, 3, 7],
            id="better by just the allowance for rounding",
        ),
        pytest.param([0.32, 0.17, 0.51], [6, 2, 6], id="better by more"),
    ],
)
def test_a_later_start_must_be_better(shares: list[float], want_sizes: list[int]) -> None:
    """What the first start leads to stays, unless another is better by more than rounding."""
    assert choose(shares, (7, 1, 6), 3.0, SCORE_OBJECTIVE) == want_sizes


@pytest.mark.parametrize(
    ("share", "want_sizes"),
    [
        pytest.param(0.25000000000833333, [1, 3], id="worse by just the allowance for rounding"),
        pytest.param(math.nextafter(0.25000000000833333, 1), None, id="worse by more"),
    ],
)
def test_dividing_must_not_be_worse(share: float, want_sizes: list[int] | None) -> None:
    """Endpoints are divided unless sharing all of them is better by more than rounding."""
    assert choose([share, 1 - share], (4, 0), 0.2, SCORE_OBJECTIVE) == want_sizes
