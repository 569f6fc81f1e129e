"""Givers of endpoints: many moves at once must leave what single moves leave."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.local_shared import move_one, serve_zone, skip_ahead

SHARES = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1 / 3, math.nextafter(0.1, 1), 0.9])


class State:
    """The scratch space of an allocation, with the given zones in the heap as they come."""

    def __init__(
        self,
        shares: Sequence[float],
        *,
        sizes: Sequence[int],
        enough: Sequence[int],
        heap: Sequence[int],
    ) -> None:
        zones = len(shares)
        self.zones = zones
        self.shares = list(shares)
        self.ints = [*sizes, 0, *enough, *([0] * zones), *heap, *([-1] * (zones - len(heap)))]
        self.floats = [
            share / (size - 1) if size > 1 else math.inf
            for share, size in zip(shares, sizes, strict=True)
        ]
        self.comp = [0] * (zones * (zones + 1))
        for zone, size in enumerate(sizes):
            self.comp[zone * zones + zone] = size
        self.givers = len(heap)

    def serve(self, taker: int, need: int) -> None:
        """Serve a zone as the allocator does."""
        self.givers = serve_zone(
            self.zones, self.shares, taker, need, self.givers, self.comp, self.ints, self.floats
        )

    def step(self, taker: int, need: int) -> None:
        """Serve a zone by single moves only."""
        for _ in range(need):
            if self.givers == 0:
                self.givers = -1
                return
            self.givers = move_one(
                self.zones, self.shares, taker, self.givers, self.comp, self.ints, self.floats
            )

    def skip(self, taker: int, need: int) -> int:
        """Return how many moves were done at once."""
        return skip_ahead(
            self.zones, self.shares, taker, need, self.givers, self.comp, self.ints, self.floats
        )

    def show(self) -> tuple[int, list[int], list[int], list[int], list[float]]:
        """Return all that decides what comes next."""
        heap = self.ints[3 * self.zones + 1 :][: max(self.givers, 0)]
        sizes = self.ints[: self.zones + 1]
        return self.givers, sizes, heap, self.comp, [self.floats[zone] for zone in heap]


def test_the_first_giver_gives_and_goes_back() -> None:
    """The zone with the least load after giving gives one and takes its new place."""
    state = State([0.5, 0.3, 0.2], sizes=[6, 4, 1], enough=[3, 2, 1], heap=[0, 1])
    state.step(2, 1)
    assert state.show() == (
        2,
        [5, 4, 2, 0],
        [1, 0],
        [5, 0, 0, 0, 4, 0, 1, 0, 1, 0, 0, 0],
        [0.3 / 3, 0.5 / 4],
    )


def test_a_giver_leaves_when_it_has_just_enough() -> None:
    """A zone that has no more than enough endpoints leaves the givers."""
    state = State([0.5, 0.5], sizes=[4, 1], enough=[3, 1], heap=[0])
    state.step(1, 1)
    assert state.show()[:3] == (0, [3, 2, 0], [])


@pytest.mark.parametrize(
    ("sizes", "need", "want_givers"),
    [
        pytest.param([9, 1], 6, 0, id="exactly what the giver has"),
        pytest.param([9, 1], 7, -1, id="one too many"),
        pytest.param([9, 1], 5, 1, id="one less"),
        pytest.param([9, 1], 0, 1, id="nothing"),
    ],
)
def test_too_few_givers_are_told(sizes: list[int], need: int, want_givers: int) -> None:
    """Serving a zone tells the givers left, and that there were too few."""
    state = State([0.5, 0.5], sizes=sizes, enough=[3, 1], heap=[0])
    state.serve(1, need)
    assert state.givers == want_givers


@pytest.mark.parametrize(
    ("shares", "sizes", "enough", "heap", "taker", "need", "want_moved"),
    [
        pytest.param((0.5, 0.5), (9, 1), (3, 1), (0,), 1, 9, 5, id="one giver stays a giver"),
        pytest.param((0.0, 0.1), (6, 1), (3, 1), (0,), 1, 4, 0, id="a giver without clients"),
        pytest.param(
            (0.4, 0.5, 0.5), (1, 5, 6), (1, 1, 1), (2, 1), 0, 4, 3, id="two equal givers meet"
        ),
        pytest.param(
            (0.1, 0.4, 0.1), (3, 1, 3), (1, 1, 1), (0, 2), 1, 5, 2, id="equal givers in turns"
        ),
        pytest.param(
            (0.0, 0.3, 0.4), (1, 4, 2), (1, 2, 1), (1, 2), 0, 5, 1, id="a giver has to stop"
        ),
        pytest.param(
            (0.1, 0.5, 0.1), (6, 3, 1), (2, 1, 1), (0, 1), 2, 5, 3, id="a rival that gives nothing"
        ),
        pytest.param(
            (0.2, 0.1, 0.5),
            (5, 4, 4),
            (1, 2, 1),
            (1, 0, 2),
            2,
            17,
            1,
            id="the taker is the last giver and stays behind",
        ),
        pytest.param(
            (0.2, 0.1, 0.3),
            (7, 7, 2),
            (2, 1, 1),
            (1, 0, 2),
            2,
            4,
            3,
            id="the taker is the last giver, and the rival gives nothing",
        ),
        pytest.param(
            (0.25, 0.5, 0.1),
            (11, 3, 7),
            (1, 1, 1),
            (2, 1, 0),
            1,
            4,
            4,
            id="the taker is the second giver of three",
        ),
        pytest.param(
            (0.1, 0.4, 0.1), (5, 3, 5), (1, 1, 2), (0, 1, 2), 1, 6, 0, id="the taker is close"
        ),
        pytest.param(
            (0.1, 0.1, 1 / 3),
            (12, 12, 3),
            (6, 1, 2),
            (1, 2, 0),
            2,
            5,
            4,
            id="the taker is the second giver and stays behind",
        ),
        pytest.param(
            (0.3, 0.1, 0.4), (4, 7, 8), (2, 3, 7), (1, 2, 0), 0, 4, 0, id="the taker is too close"
        ),
        pytest.param(
            (0.2, 0.2, 0.2), (3, 11, 2), (1, 1, 1), (1, 0, 2), 2, 6, 0, id="the taker would meet"
        ),
        pytest.param(
            (0.2, 0.1, 0.10000000000000002),
            (2**52 + 21, 2**52 + 7, 2**52 + 8),
            (2**52 + 1, 2**52 + 1, 2**52 + 1),
            (1, 2),
            0,
            6,
            0,
            id="doubles cannot tell the rival's last key from the giver's next",
        ),
        pytest.param(
            (0.09999999999999999, 0.1, 0.4),
            (2**52 + 23, 2**52 + 31, 2**52 + 22),
            (2**52 + 1, 2**52 + 1, 2**52 + 1),
            (1, 0),
            2,
            22,
            0,
            id="doubles cannot tell the giver's last key from the rival's next",
        ),
    ],
)
def test_certain_moves_are_done_at_once(
    *,
    shares: tuple[float, ...],
    sizes: tuple[int, ...],
    enough: tuple[int, ...],
    heap: tuple[int, ...],
    taker: int,
    need: int,
    want_moved: int,
) -> None:
    """As many moves as are certain are done at once, and leave what single moves leave."""
    at_once = State(shares, sizes=sizes, enough=enough, heap=heap)
    one_by_one = State(shares, sizes=sizes, enough=enough, heap=heap)

    assert at_once.skip(taker, need) == want_moved

    one_by_one.step(taker, want_moved)
    assert at_once.show() == one_by_one.show()


@settings(deadline=None, max_examples=200)
@given(data=st.data(), zones=st.integers(2, 4), need=st.integers(1, 90))
def test_many_moves_at_once_are_single_moves(data: st.DataObject, zones: int, need: int) -> None:
    """Sizes, locations and the heap are those of single moves, in whatever order it was."""
    shares = data.draw(st.lists(SHARES, min_size=zones, max_size=zones))
    sizes = data.draw(st.lists(st.integers(1, 80), min_size=zones, max_size=zones))
    enough = [data.draw(st.integers(1, max(1, size // 2))) for size in sizes]
    able = [zone for zone in range(zones) if sizes[zone] > enough[zone]]
    heap = data.draw(st.permutations(able))
    taker = data.draw(st.integers(0, zones - 1))
    compare(shares, sizes, enough, heap, taker=taker, need=need)


def test_close_keys_are_single_moves() -> None:
    """Equal shares, multiples and neighbours among doubles are settled as by single moves."""
    rng = random.Random(5)
    for _ in range(3000):
        zones = rng.choice([2, 3, 3])
        unit = rng.choice([0.1, 1 / 7])
        near = [unit, unit, 2 * unit, 3 * unit, math.nextafter(unit, 1), math.nextafter(unit, 0)]
        shares = [rng.choice(near) for _ in range(zones)]
        # Sizes this large bring the limits of doubles into play.
        base = rng.choice([0, 0, 2**49])
        sizes = [base + rng.randint(20, 60) for _ in range(zones)]
        enough = [base + rng.choice([1, 1, 5, 19]) for _ in range(zones)]
        heap = rng.sample(range(zones), rng.randint(1, zones))
        compare(shares, sizes, enough, heap, taker=rng.randrange(zones), need=rng.randint(3, 50))


def compare(
    shares: Sequence[float],
    sizes: Sequence[int],
    enough: Sequence[int],
    heap: Sequence[int],
    *,
    taker: int,
    need: int,
) -> None:
    """Assert that serving a zone and single moves come to the same."""
    at_once = State(shares, sizes=sizes, enough=enough, heap=heap)
    one_by_one = State(shares, sizes=sizes, enough=enough, heap=heap)
    at_once.serve(taker, need)
    one_by_one.step(taker, need)
    assert at_once.show() == one_by_one.show()
