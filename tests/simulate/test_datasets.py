"""Data sets: the published enumerations, random rows that never change, samples, given rows."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.simulate.datasets import (
    CHUNK_ROWS,
    DATASET_NAMES,
    KEP2004_4_ZONES,
    KEP2004_5_ZONES,
    KEP2004_LARGE,
    KEP2004_SMALL,
    RANDOM_KINDS,
    Block,
    DataSet,
    InMemoryRows,
    MissingExtraError,
    Sample,
    UnknownDataSetError,
    load_numpy,
    open_dataset,
)

pytest.importorskip("numpy")

LARGE = open_dataset(KEP2004_LARGE)
SMALL = open_dataset(KEP2004_SMALL)

Region = tuple[tuple[int, ...], tuple[int, ...]]

WANT_RANDOM: list[Region] = [((23, 16, 37), (44, 26, 26)), ((43, 24, 8), (1, 0, 2))]
WANT_SAMPLE = ["66050-(1, 3, 7)", "151819-(2, 5, 7)", "110400-(3, 8, 8)", "69911-(8, 9, 10)"]


def rows_of(block: Block, zones: int) -> list[Region]:
    """Return nodes and endpoints of each row."""
    nodes, endpoints = [int(one) for one in block.nodes], [int(one) for one in block.endpoints]
    cuts = range(0, block.rows * zones, zones)
    return [(tuple(nodes[cut : cut + zones]), tuple(endpoints[cut : cut + zones])) for cut in cuts]


def read_rows(dataset: DataSet, start: int, stop: int) -> list[Region]:
    """Return rows of a data set."""
    return rows_of(dataset.read(start, stop), len(dataset.zones))


@pytest.mark.parametrize(
    ("dataset", "row", "want", "want_label"),
    [
        pytest.param(LARGE, 0, ((1, 1, 1), (0, 0, 1)), "0-(1, 1, 1)", id="the first of all"),
        pytest.param(
            LARGE, 176_849, ((1, 1, 1), (100, 100, 100)), "176849-(1, 1, 1)", id="end of a section"
        ),
        pytest.param(LARGE, 176_850, ((1, 1, 2), (0, 0, 1)), "0-(1, 1, 2)", id="the next section"),
        pytest.param(
            LARGE,
            219 * 176_850 + 101,
            ((10, 10, 10), (0, 1, 2)),
            "101-(10, 10, 10)",
            id="in the last section of small counts",
        ),
        pytest.param(
            LARGE, 220 * 176_850, ((30, 30, 30), (100, 100, 100)), "0-high", id="the high section"
        ),
        pytest.param(
            LARGE,
            39_273_144,
            ((30, 30, 30), (996, 996, 996)),
            "366144-high",
            id="the last of all",
        ),
        pytest.param(SMALL, 1769, ((1, 1, 1), (20, 20, 20)), "1769-(1, 1, 1)", id="small: the end"),
        pytest.param(SMALL, 1770, ((1, 1, 2), (0, 0, 1)), "0-(1, 1, 2)", id="small: the next"),
    ],
)
def test_published_rows_stand_where_they_stood(
    dataset: DataSet, row: int, want: Region, want_label: str
) -> None:
    """Rows and labels of the sets of the proposal come in the published order."""
    assert read_rows(dataset, row, row + 1) == [want]
    assert rows_of(dataset.pick([row]), 3) == [want]
    assert dataset.label(row) == want_label


def test_published_sets_have_their_sizes() -> None:
    """There are as many rows as published, in three zones."""
    assert (LARGE.rows, SMALL.rows) == (39_273_145, 389_400)
    assert LARGE.zones == SMALL.zones == ("zone1", "zone2", "zone3")


@pytest.mark.parametrize(
    ("name", "rows", "zones", "sections", "high"),
    [
        pytest.param(KEP2004_4_ZONES, 3_299_742_160, 4, 715, 12_082_785, id="four zones"),
        pytest.param(KEP2004_5_ZONES, 193_635_813_371, 5, 2002, 321_402_081, id="five zones"),
    ],
)
def test_more_zones_are_enumerated_like_three(
    name: str, rows: int, zones: int, sections: int, high: int
) -> None:
    """Sections of ascending nodes, each with all ascending endpoints but none, then equal zones."""
    dataset = open_dataset(name)
    section = (rows - high) // sections
    ones, tens = (1,) * zones, (10,) * zones
    nothing = (0,) * (zones - 1)

    assert (dataset.rows, len(dataset.zones)) == (rows, zones)
    assert read_rows(dataset, 0, 2) == [(ones, (*nothing, 1)), (ones, (*nothing, 2))]
    assert read_rows(dataset, section - 1, section + 1) == [
        (ones, (100,) * zones),
        ((*ones[1:], 2), (*nothing, 1)),
    ]
    assert read_rows(dataset, rows - high - 1, rows - high + 1) == [
        (tens, (100,) * zones),
        ((30,) * zones, (100,) * zones),
    ]
    assert read_rows(dataset, rows - 1, rows) == [((30,) * zones, (996,) * zones)]
    assert dataset.label(section) == f"0-{(*ones[1:], 2)}"
    assert dataset.label(rows - 1) == f"{high - 1}-high"


@pytest.mark.parametrize("name", DATASET_NAMES)
def test_a_pickled_set_is_its_generator(name: str) -> None:
    """A copy has the same rows, and takes a few bytes; so does one of a sample."""
    for dataset in (open_dataset(name), open_dataset(name, rows=500, seed=3)):
        pickled = pickle.dumps(dataset)
        copy = pickle.loads(pickled)  # noqa: S301 - pickled above

        assert dataset.is_generated
        assert copy.is_generated
        assert len(pickled) < 500
        assert (copy.name, copy.rows, copy.zones) == (dataset.name, dataset.rows, dataset.zones)
        assert read_rows(copy, 400, 410) == read_rows(dataset, 400, 410)
        assert copy.label(450) == dataset.label(450)


def test_given_rows_are_no_generator() -> None:
    """Rows at hand, and samples of them, are not defined by a few numbers."""
    rows = InMemoryRows(("a",), [1, 2], [3, 4])

    assert not rows.is_generated
    assert not Sample(rows, rows=1).is_generated


@pytest.mark.parametrize("name", DATASET_NAMES)
def test_blocks_are_the_rows_in_order(name: str) -> None:
    """Blocks of any size follow each other without a gap, the last one shorter."""
    dataset = open_dataset(name, rows=1000, seed=4)
    blocks = list(dataset.blocks(300))

    assert [(block.start, block.rows) for block in blocks] == [
        (0, 300),
        (300, 300),
        (600, 300),
        (900, 100),
    ]
    zones = len(dataset.zones)
    joined = [row for block in blocks for row in rows_of(block, zones)]
    assert joined == read_rows(dataset, 0, 5000)
    assert rows_of(dataset.pick([7, 950, 7]), zones) == [joined[7], joined[950], joined[7]]


@pytest.mark.parametrize("kind", RANDOM_KINDS)
def test_random_rows_do_not_depend_on_what_was_read_before(kind: str) -> None:
    """A row is the same whether read alone, late, early, or in a larger set."""
    whole = read_rows(open_dataset(kind, rows=3 * CHUNK_ROWS, seed=9), 0, 3 * CHUNK_ROWS)
    other = open_dataset(kind, rows=10 * CHUNK_ROWS, seed=9)

    assert (
        read_rows(other, 2 * CHUNK_ROWS + 5, 2 * CHUNK_ROWS + 9)
        == whole[2 * CHUNK_ROWS + 5 : 2 * CHUNK_ROWS + 9]
    )
    assert (
        read_rows(other, CHUNK_ROWS - 2, CHUNK_ROWS + 2) == whole[CHUNK_ROWS - 2 : CHUNK_ROWS + 2]
    )
    assert read_rows(open_dataset(kind, rows=5, seed=10), 0, 5) != whole[:5]


def test_random_rows_are_these() -> None:
    """The numbers drawn for a seed are part of what is promised."""
    assert read_rows(open_dataset("random", rows=2, seed=1), 0, 2) == WANT_RANDOM
    assert open_dataset("random", rows=2, seed=1).label(1) == "random-1-1"


@pytest.mark.parametrize("kind", RANDOM_KINDS)
def test_random_rows_have_clients_and_endpoints(kind: str) -> None:
    """Every region has a node and an endpoint somewhere."""
    rows = read_rows(open_dataset(kind, rows=2000, seed=2), 0, 2000)

    assert all(sum(nodes) > 0 and sum(endpoints) > 0 for nodes, endpoints in rows)


def test_kinds_of_random_rows_differ_as_named() -> None:
    """Skewed rows have one large zone, there may be many zones, or empty ones."""
    skewed = read_rows(open_dataset("random-skewed", rows=2000), 0, 2000)
    plain = read_rows(open_dataset("random", rows=2000), 0, 2000)
    empty = read_rows(open_dataset("random-empty-zones", rows=2000), 0, 2000)
    many = open_dataset("random-many-zones", rows=10)

    def count_large(rows: Sequence[Region]) -> int:
        return sum(max(nodes) > 0.7 * sum(nodes) for nodes, _ in rows)

    assert count_large(skewed) > 1200
    assert count_large(plain) < 300
    assert sum(0 in nodes for nodes, _ in empty) > 1000
    assert not any(0 in nodes for nodes, _ in plain)
    assert len(many.zones) == 12
    assert sorted(many.zones) == list(many.zones)


@settings(deadline=None, max_examples=100)
@given(total=st.integers(1, 5000), wanted=st.integers(0, 6000), seed=st.integers(0, 2**70))
def test_sample_takes_one_row_of_each_part(total: int, wanted: int, seed: int) -> None:
    """A sample has distinct rows in order, spread evenly, and all rows when it is large enough."""
    source = InMemoryRows(("a",), list(range(total)), [1] * total)
    sample = Sample(source, rows=wanted, seed=seed)
    got = [nodes[0] for nodes, _ in read_rows(sample, 0, wanted)]

    assert len(got) == sample.rows == min(total, wanted)
    assert all(
        place * total // len(got) <= row < (place + 1) * total // len(got)
        for place, row in enumerate(got)
    )
    assert [sample.label(place) for place in range(len(got))] == [str(row) for row in got]
    assert rows_of(sample.pick(range(len(got))), 1) == read_rows(sample, 0, wanted)


def test_sample_is_the_same_for_the_same_seed() -> None:
    """The rows of a sample follow from its seed, and are these."""
    one = open_dataset(KEP2004_LARGE, rows=4, seed=1)
    two = open_dataset(KEP2004_LARGE, rows=4, seed=2)

    assert [one.label(row) for row in range(4)] == WANT_SAMPLE
    assert [two.label(row) for row in range(4)] != WANT_SAMPLE
    assert read_rows(one, 2, 4) == read_rows(open_dataset(KEP2004_LARGE, rows=4, seed=1), 2, 4)


def test_no_sample_is_drawn_when_all_rows_are_wanted() -> None:
    """Asking for as many rows as there are, or more, gives the set itself."""
    assert open_dataset(KEP2004_SMALL, rows=400_000).rows == 389_400
    assert not isinstance(open_dataset(KEP2004_SMALL, rows=389_400), Sample)


def test_given_rows_are_labelled() -> None:
    """Given rows have the labels they came with, or their numbers."""
    labelled = InMemoryRows(("a", "b"), [1, 2, 3, 4], [5, 6, 7, 8], labels=["x", "y"])
    plain = InMemoryRows(("a", "b"), [1, 2, 3, 4], [5, 6, 7, 8])

    assert [labelled.label(row) for row in range(labelled.rows)] == ["x", "y"]
    assert [plain.label(row) for row in range(plain.rows)] == ["0", "1"]
    assert read_rows(labelled, 1, 9) == [((3, 4), (7, 8))]


def test_no_zones_are_no_rows() -> None:
    """Without zones there is nothing."""
    assert InMemoryRows((), [], []).rows == 0


def test_unknown_name_lists_the_known_ones() -> None:
    """Another name is refused with all that there are."""
    with pytest.raises(UnknownDataSetError, match="kep2004-large, kep2004-small, kep2004-4zones"):
        open_dataset("kep2005")


@pytest.mark.parametrize("name", DATASET_NAMES)
def test_missing_numpy_is_said_with_its_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated sets need numpy, and say how to get it."""
    monkeypatch.setitem(sys.modules, "numpy", None)

    with pytest.raises(
        MissingExtraError,
        match=r"needs numpy and numba; install the wheel of keepclose with its extra \[sim\]",
    ) as caught:
        open_dataset(name)

    assert name in str(caught.value)


def test_given_rows_need_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at hand can be read, sampled and labelled without numpy."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    source = InMemoryRows(("a", "b"), [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12])

    assert read_rows(Sample(source, rows=1, seed=3), 0, 1)[0] in read_rows(source, 0, 3)
    with pytest.raises(MissingExtraError):
        load_numpy("something")
