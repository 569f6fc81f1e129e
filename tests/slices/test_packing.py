"""How many endpoints go into which slice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.slices.packing import SlicePlan, SliceShare, pack
from support.builders import endpoint_slice


@pytest.mark.parametrize(
    ("count", "updating", "unchanged", "limit", "want"),
    [
        pytest.param(0, {"a": 1}, {"b": 1}, 100, (), id="nothing is left over"),
        pytest.param(250, {}, {}, 100, (("", 100), ("", 100), ("", 50)), id="250 into new slices"),
        pytest.param(250, {}, {}, 50, (("", 50),) * 5, id="250 by 50"),
        pytest.param(250, {}, {}, 80, (("", 80),) * 3 + (("", 10),), id="250 by 80"),
        pytest.param(250, {}, {}, 150, (("", 150), ("", 100)), id="250 by 150"),
        pytest.param(250, {}, {}, 250, (("", 250),), id="250 by 250"),
        pytest.param(250, {}, {}, 500, (("", 250),), id="250 by 500"),
        pytest.param(
            127, {}, {"a": 62, "b": 61}, 100, (("", 100), ("a", 27)), id="the fuller one fits best"
        ),
        pytest.param(15, {"a": 80, "b": 20}, {}, 100, (("a", 15),), id="the fullest update first"),
        pytest.param(
            25, {"a": 80, "b": 20}, {}, 100, (("a", 20), ("b", 5)), id="then the next fullest"
        ),
        pytest.param(
            100, {"a": 80, "b": 20}, {}, 100, (("a", 20), ("b", 80)), id="updates take it all"
        ),
        pytest.param(
            101, {"a": 80, "b": 20}, {}, 100, (("a", 20), ("b", 80), ("", 1)), id="one too many"
        ),
        pytest.param(
            30, {"a": 90}, {"b": 10, "c": 80}, 100, (("a", 10), ("c", 20)), id="then the best fit"
        ),
        pytest.param(
            30, {}, {"a": 80, "b": 75}, 100, (("", 30),), id="one new slice rather than two updates"
        ),
        pytest.param(100, {}, {"a": 0}, 100, (("", 100),), id="a full load is never fitted"),
        pytest.param(99, {}, {"a": 0}, 100, (("a", 99),), id="one less goes into an empty slice"),
        pytest.param(5, {}, {"a": 95, "b": 90}, 100, (("a", 5),), id="filled to the brim"),
        pytest.param(5, {}, {"b": 40, "a": 40}, 100, (("a", 5),), id="ties go by name"),
        pytest.param(3, {"b": 40, "a": 40}, {}, 42, (("a", 2), ("b", 1)), id="in updates too"),
        pytest.param(3, {"a": 120}, {"b": 120}, 100, (("", 3),), id="slices beyond the limit"),
        pytest.param(2, {}, {"a": 0}, 1, (("", 1), ("", 1)), id="one endpoint per slice"),
        pytest.param(2, {}, {}, 0, (("", 1), ("", 1)), id="a limit of none counts as one"),
    ],
)
def test_pack(
    count: int,
    updating: dict[str, int],
    unchanged: dict[str, int],
    limit: int,
    want: tuple[tuple[str, int], ...],
) -> None:
    """Slices that are written anyway first, then one that takes the rest, else new ones."""
    shares = pack(count, updating=updating, unchanged=unchanged, max_endpoints=limit)
    assert shares == tuple(SliceShare(*each) for each in want)


SIZES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 120), max_size=4)


@settings(deadline=None, max_examples=200)
@given(count=st.integers(0, 400), updating=SIZES, unchanged=SIZES, limit=st.integers(1, 110))
def test_packing_loses_nothing_and_overfills_nothing(
    count: int, updating: dict[str, int], unchanged: dict[str, int], limit: int
) -> None:
    """All endpoints are shared out, no share exceeds the limit, one unchanged slice at most."""
    rest = {f"u-{name}": size for name, size in unchanged.items()}
    shares = pack(count, updating=updating, unchanged=rest, max_endpoints=limit)
    assert sum(share.number for share in shares) == count
    assert all(share.number > 0 for share in shares)
    sizes = {**updating, **rest, "": 0}
    assert all(sizes[share.slice_name] + share.number <= limit for share in shares)
    assert sum(share.slice_name in rest for share in shares) <= 1


def test_a_plan_without_writes_is_empty() -> None:
    """Unchanged slices are no writes."""
    piece = endpoint_slice()
    assert SlicePlan(unchanged=(piece,)).is_empty
    assert not SlicePlan(create=(piece,)).is_empty
    assert not SlicePlan(update=(piece,)).is_empty
    assert not SlicePlan(delete=(piece,)).is_empty
