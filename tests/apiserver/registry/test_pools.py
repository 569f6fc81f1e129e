"""Pools of numbers of which each is held once."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.registry.allocation_ranges import Band, Pool, reserved_for_names

_steps = st.lists(
    st.tuples(st.sampled_from(["draw", "take", "give"]), st.integers(0, 19)), max_size=60
)


@settings(deadline=None, max_examples=200)
@given(steps=_steps, reserved=st.integers(0, 20), seed=st.integers(0, 99))
def test_no_number_is_held_twice(steps: list[tuple[str, int]], reserved: int, seed: int) -> None:
    """Whatever is drawn, taken and given back, the pool agrees with a plain set."""
    pool = Pool(20, reserved=reserved, random=Random(seed))
    held: set[int] = set()
    for verb, number in steps:
        if verb == "draw":
            drawn = pool.allocate_next()
            assert (drawn is None) == (len(held) == 20)
            assert drawn not in held
            if drawn is not None:
                upper_free = set(range(reserved, 20)) - held
                assert drawn in upper_free or not upper_free
                held.add(drawn)
        elif verb == "take":
            assert pool.allocate(number) == (number not in held)
            held.add(number)
        else:
            pool.release(number)
            held.discard(number)
        assert {number for number in range(20) if pool.holds(number)} == held
        assert pool.free == 20 - len(held)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([0, 1, 2, 3], id="in the order of taking"),
        pytest.param([3, 2, 1, 0], id="the other way round"),
        pytest.param([2, 0, 3, 1], id="in any order"),
    ],
)
def test_a_band_writes_down_only_what_is_out_of_place(order: list[int]) -> None:
    """A band from which everything was given back remembers nothing of it."""
    band = Band(1 << 64)
    taken = [3, 1 << 40, 7, (1 << 64) - 1]
    for number in taken:
        assert band.allocate(number)
    for place in order:
        band.release(taken[place])
    assert (band.free, band._number_at, band._index_of) == (1 << 64, {}, {})


def test_drawing_reaches_every_number() -> None:
    """Every number of a pool is drawn before the pool says that it is empty."""
    pool = Pool(300, reserved=16, random=Random(1))
    drawn = [pool.allocate_next() for _ in range(300)]
    assert sorted(number for number in drawn if number is not None) == list(range(300))
    assert set(drawn[-16:]) == set(range(16))
    assert pool.allocate_next() is None


@pytest.mark.parametrize(
    ("size", "share", "most", "want_reserved"),
    [
        pytest.param(16, 16, 256, 0, id="nothing of a small range"),
        pytest.param(32, 16, 256, 16, id="at least sixteen"),
        pytest.param(1024, 16, 256, 64, id="one in so many"),
        pytest.param(1 << 20, 16, 256, 256, id="at most so many addresses"),
        pytest.param(2768, 32, 128, 86, id="of the usual node ports"),
        pytest.param(60000, 32, 128, 128, id="at most so many ports"),
    ],
)
def test_the_lower_band_grows_with_the_range(
    size: int, share: int, most: int, want_reserved: int
) -> None:
    """The band for named numbers is a share of the range between two limits."""
    assert reserved_for_names(size, share=share, most=most) == want_reserved
