"""The engine: published results, and results that do not depend on how they were computed."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest

from keepclose.simulate.algorithms import ALGORITHMS, PUBLISHED, find_algorithm
from keepclose.simulate.datasets import (
    KEP2004_LARGE,
    KEP2004_SMALL,
    DataSet,
    InMemoryRows,
    MissingExtraError,
    open_dataset,
)
from keepclose.simulate.engine import (
    RangeTally,
    RowResults,
    run_simulation,
    simulate_rows,
    tally_results,
)
from keepclose.simulate.summary import (
    BlockTally,
    FigureColumn,
    Summary,
    SummaryFigures,
    Weights,
    Worst,
)

SMALL_REGIONS = InMemoryRows(
    ("a", "b", "c"),
    [1, 2, 7, 1, 1, 1, 0, 0, 0, 3, 3, 3],
    [5, 20, 20, 4, 2, 2, 1, 1, 1, 0, 0, 0],
    labels=["one gives", "too few", "no clients", "no endpoints"],
)

# Mean, highest and lowest of total, in-zone, deviation and slice score; the largest and the mean
# of the largest deviations: the published results of the simulator of KEP-2004.
PUBLISHED_CELLS = {
    "original": "72.48/92.50/70.00 38.84/83.33/33.33 100.00/100.00/100.00 100.00/100.00/100.00 "
    "0.00 0.00",
    "local": "86.71/100.00/44.21 84.33/100.00/33.33 98.25/100.00/48.86 63.10/100.00/33.33 "
    "49.33 2.13",
    "local-shared": "86.89/100.00/49.72 84.13/100.00/33.33 98.94/100.00/50.00 63.06/100.00/33.33 "
    "48.15 1.27",
    "local-weighted": "84.34/100.00/58.00 83.90/100.00/33.33 100.00/100.00/95.97 "
    "43.88/100.00/20.00 7.14 0.00",
    "local-opt": "84.89/100.00/45.57 83.74/100.00/33.33 99.47/100.00/62.64 49.45/100.00/25.00 "
    "55.10 0.69",
    "shared-global": "77.37/100.00/57.08 70.91/100.00/33.33 88.11/100.00/60.79 68.09/100.00/40.00 "
    "49.85 14.43",
    "shared-multizone": "75.26/100.00/52.85 73.98/100.00/33.33 81.13/100.00/17.39 "
    "63.46/100.00/50.00 159.66 30.27",
}
MEANS = {
    "original": (72.47847, 38.841042, 100.0, 100.0, 0.0, 0.0, 0.0),
    "local": (86.712081, 84.330777, 98.246708, 63.097001, 2.129256, 1.37733, 0.021746),
    "local-shared": (86.891695, 84.126775, 98.940041, 63.05755, 1.266851, 0.853069, 0.013778),
    "local-weighted": (84.336771, 83.900599, 99.999988, 43.876705, 2.1e-05, 3e-06, 0.0),
    "local-opt": (84.89095, 83.742592, 99.474315, 49.44705, 0.694088, 0.357284, 0.005797),
    "shared-global": (77.365022, 70.905576, 88.110513, 68.088719, 14.426979, 9.351996, 0.146385),
    "shared-multizone": (75.263738, 73.984349, 81.130144, 63.458159, 30.272675, 7.467038, 0.140629),
}
WORST_ROWS = {
    "local": 16,
    "local-shared": 11,
    "local-weighted": 33,
    "local-opt": 40,
    "shared-global": 28,
    "shared-multizone": 1,
}


NONE = Worst(0.0, 0, ())


def figures_of(summary: Summary) -> SummaryFigures:
    """Return the figures, which must be there."""
    assert summary.figures is not None
    return summary.figures


def show(column: FigureColumn) -> str:
    """Return a column as published."""
    return f"{column.mean:.2f}/{column.highest:.2f}/{column.lowest:.2f}"


def show_all(summary: Summary) -> str:
    """Return the cells of the published table for an algorithm."""
    got = figures_of(summary)
    scores = (got.total, got.in_zone, got.deviation, got.slices)
    deviation = f"{got.max_deviation.highest:.2f} {got.max_deviation.mean:.2f}"
    return f"{' '.join(show(column) for column in scores)} {deviation}"


def list_means(summary: Summary) -> list[float]:
    """Return the means of the seven figures."""
    got = figures_of(summary)
    return [
        getattr(got, name).mean
        for name in SummaryFigures.__struct_fields__
        if name != "true_spread"
    ]


@pytest.mark.slow
def test_published_results_come_out() -> None:
    """All cells of the published table, finer means and lists of worst rows are reproduced."""
    pytest.importorskip("numba")
    dataset = open_dataset(KEP2004_LARGE)
    summaries = run_simulation(dataset, [find_algorithm(name) for name in PUBLISHED], threads=2)
    got = {summary.algorithm: summary for summary in summaries}

    assert {name: show_all(summary) for name, summary in got.items()} == PUBLISHED_CELLS
    for name, summary in got.items():
        assert (summary.valid, summary.invalid) == (39_273_145, 0)
        assert list_means(summary) == pytest.approx(MEANS[name], abs=2e-6)
    worst = {name: got[name].worst_deviation or NONE for name in WORST_ROWS}
    assert {name: one.count for name, one in worst.items()} == WORST_ROWS
    assert {name: len(one.rows) for name, one in worst.items()} == WORST_ROWS
    # Rounding loses one of 110 endpoints for nodes 3, 9 and 10.
    assert worst["local-weighted"].value == 7.1429
    lost = {dataset.label(row).split("-")[1] for row in worst["local-weighted"].rows}
    assert "(3, 9, 10)" in lost
    assert got["local"].undivided == 8800


@pytest.mark.parametrize(
    ("name", "start", "want", "published"),
    [
        pytest.param("original", None, 72.55631, 72.55, id="random"),
        pytest.param("local", 1.0, 80.04839, 80.05, id="from one endpoint a zone"),
        pytest.param("local", 2.0, 80.06651, 80.07, id="from two"),
        pytest.param("local", 3.0, 80.07382, 80.07, id="from three"),
        pytest.param("local", 4.0, 80.05219, 80.05, id="from four"),
        pytest.param("local", 5.0, 79.98206, 79.98, id="from five"),
    ],
)
def test_starting_thresholds_of_the_proposal_come_out(
    name: str, start: float | None, want: float, published: float
) -> None:
    """Over the small set the mean total agrees with the reference and with the proposal."""
    pytest.importorskip("numba")
    (got,) = run_simulation(
        open_dataset(KEP2004_SMALL), [find_algorithm(name, start=start)], threads=2
    )

    assert figures_of(got).total.mean == pytest.approx(want, abs=1e-5)
    assert figures_of(got).total.mean == pytest.approx(published, abs=0.01)


def flatten(blocks: list[RowResults]) -> tuple[list[int], list[int], list[str], list[str]]:
    """Return starts, validity, and figures with all their bits."""
    return (
        [block.start for block in blocks],
        [int(one) for block in blocks for one in block.valid],
        [float(one).hex() for block in blocks for one in block.figures],
        [float(one).hex() for block in blocks for one in block.spreads],
    )


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", ["random", "random-many-zones", "random-empty-zones"])
def test_compiled_rows_are_the_plain_ones_bit_for_bit(name: str, kind: str) -> None:
    """Compiled or not, every figure of every row is the same double."""
    pytest.importorskip("numba")
    dataset = open_dataset(kind, rows=150, seed=5)
    algorithm = find_algorithm(name)

    plain = list(simulate_rows(dataset, algorithm, compiled=False, block_rows=100))
    compiled = list(simulate_rows(dataset, algorithm, compiled=True, block_rows=100))

    assert flatten(plain) == flatten(compiled)
    assert tally_results(plain) == tally_results(compiled)
    assert sum(int(one) for block in plain for one in block.valid) > 0


@pytest.mark.parametrize(
    ("threads", "block_rows"),
    [
        pytest.param(1, 8192, id="one thread"),
        pytest.param(2, 100, id="two threads, small blocks"),
        pytest.param(3, 7, id="three threads, tiny blocks"),
        pytest.param(2, 100_000, id="one block for all"),
    ],
)
def test_summary_does_not_depend_on_threads_or_blocks(threads: int, block_rows: int) -> None:
    """Everything in a summary is the same, to the last bit, however the work was cut."""
    pytest.importorskip("numba")
    dataset = open_dataset("random-empty-zones", rows=10_000, seed=3)
    algorithms = [find_algorithm("local"), find_algorithm("original")]
    want = run_simulation(dataset, algorithms, threads=2, compiled=True)

    got = run_simulation(dataset, algorithms, threads=threads, block_rows=block_rows, compiled=True)

    assert got == want
    assert 0 < got[0].invalid < got[0].rows


@pytest.mark.parametrize("compiled", [False, True])
def test_ranges_join_to_the_summary(compiled: bool) -> None:
    """Ranges of any length, each tallied alone and then added in order, give the same summary."""
    pytest.importorskip("numba")
    dataset = open_dataset("random-empty-zones", rows=3000, seed=6)
    algorithms = [find_algorithm("local"), find_algorithm("balanced")]
    ranges = RangeTally(dataset, algorithms, compiled=compiled, block_rows=100)
    tallies = [BlockTally(algorithm.name) for algorithm in algorithms]
    for start, stop in pairwise((0, 1, 7, 1700, 1700, 2999, 3000)):
        for tally, part in zip(tallies, ranges.run(start, stop), strict=True):
            assert part.rows == stop - start
            tally.add(part)

    assert [tally.finish() for tally in tallies] == run_simulation(dataset, algorithms)


def test_plain_summary_is_the_compiled_one() -> None:
    """A summary made without the compiler is equal in all of its parts."""
    pytest.importorskip("numba")
    dataset = open_dataset("random", rows=600, seed=8)
    algorithms = [find_algorithm("local"), find_algorithm("local-weighted")]

    assert run_simulation(dataset, algorithms, compiled=False) == run_simulation(
        dataset, algorithms, compiled=True
    )


def test_rows_and_summary_agree() -> None:
    """Tallying rows that somebody went through gives the summary."""
    algorithm = find_algorithm("local")
    (want,) = run_simulation(SMALL_REGIONS, [algorithm])
    tally = BlockTally("local")
    tally.add(tally_results(simulate_rows(SMALL_REGIONS, algorithm, block_rows=3)))

    assert tally.finish() == want


def test_few_rows_are_summed_up() -> None:
    """Valid, invalid and undivided rows are told apart, and the worst ones named."""
    (got,) = run_simulation(SMALL_REGIONS, [find_algorithm("local")])
    figures = figures_of(got)

    assert (got.rows, got.valid, got.invalid, got.undivided) == (4, 3, 1, 3)
    assert figures.in_zone.mean == pytest.approx((75.1613 + 33.3333 + 0.0) / 3, abs=1e-12)
    assert figures.in_zone.highest == pytest.approx(75.16129032)
    assert figures.in_zone.lowest == 0.0
    assert got.worst_deviation == Worst(1.6129, 1, (0,))
    assert got.worst_total == Worst(35.0, 1, (2,))
    assert SMALL_REGIONS.label(2) == "no clients"


def test_weights_make_the_total() -> None:
    """With all weight on in-zone traffic the total is the in-zone score."""
    (got,) = run_simulation(
        SMALL_REGIONS, [find_algorithm("local")], weights=Weights(1.0, 0.0, 0.0, 0.0)
    )

    assert figures_of(got).total == figures_of(got).in_zone


def test_progress_is_told_in_order() -> None:
    """The number of rows done rises to all rows."""
    pytest.importorskip("numpy")
    seen: list[int] = []
    run_simulation(
        open_dataset("random", rows=700),
        [find_algorithm("original")],
        compiled=False,
        progress=seen.append,
    )

    assert seen == [256, 512, 700]


def test_no_rows_give_an_empty_summary() -> None:
    """A data set without rows has a summary without figures."""
    (got,) = run_simulation(InMemoryRows(("a",), [], []), [find_algorithm("local")])

    assert (got.rows, got.figures) == (0, None)
    assert list(simulate_rows(InMemoryRows(("a",), [], []), find_algorithm("local"))) == []
    assert tally_results([]).rows == 0


def run_without(monkeypatch: pytest.MonkeyPatch, dataset: DataSet) -> list[Summary]:
    """Return summaries made on a machine without numpy and numba."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "numpy", None)
        patch.setitem(sys.modules, "numba", None)
        return run_simulation(dataset, list(ALGORITHMS.values()))


def test_given_rows_need_neither_numpy_nor_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """All algorithms run over given rows with nothing installed, to the same results."""
    assert run_without(monkeypatch, SMALL_REGIONS) == run_simulation(
        SMALL_REGIONS, list(ALGORITHMS.values())
    )


def test_missing_compiler_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for compiled code in vain names the packages to install."""
    monkeypatch.setitem(sys.modules, "numba", None)

    with pytest.raises(
        MissingExtraError,
        match=r"needs numpy and numba; install the wheel of keepclose with its extra \[sim\]",
    ):
        run_simulation(SMALL_REGIONS, [find_algorithm("local")], compiled=True)


def test_error_in_a_thread_ends_the_run() -> None:
    """What goes wrong while reading reaches the caller, and nothing is left running."""
    pytest.importorskip("numba")

    class Broken(InMemoryRows):
        def label(self, row: int) -> str:
            raise AssertionError(row)

    rows = 30_000
    broken = Broken(("a",), [1] * (rows - 1) + ["x"], [1] * rows)  # type: ignore[list-item]

    with pytest.raises(ValueError, match="invalid literal"):
        run_simulation(broken, [find_algorithm("original")], threads=2, block_rows=100)
