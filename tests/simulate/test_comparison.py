"""Two algorithms over the same rows."""

from __future__ import annotations

import pytest

from keepclose.simulate.algorithms import find_algorithm
from keepclose.simulate.comparison import EXAMPLES, compare
from keepclose.simulate.datasets import InMemoryRows, open_dataset
from keepclose.simulate.engine import run_simulation
from keepclose.simulate.summary import Weights


def rows(*lines: str) -> InMemoryRows:
    """Return rows written as "1 2, 3 4": nodes and endpoints of each zone."""
    cells = [tuple(map(int, cell.split())) for line in lines for cell in line.split(",")]
    zones = [f"z{number}" for number in range(len(lines[0].split(",")))]
    return InMemoryRows(
        zones,
        [nodes for nodes, _ in cells],
        [endpoints for _, endpoints in cells],
        labels=[f"row {number}" for number in range(len(lines))],
    )


def test_counts_means_and_examples() -> None:
    """Each row is better, equal or worse, and the clearest are shown with both results."""
    data = rows("1 1, 1 1, 1 1", "1 0, 1 0, 10 3", "5 5, 5 5, 5 5", "1 40, 1 40, 1 40")
    answer = compare(data, find_algorithm("same-zone"), find_algorithm("local"))
    assert (answer.first, answer.second, answer.rows) == ("same-zone", "local", 4)
    assert (answer.better, answer.equal, answer.worse) == (3, 1, 0)
    assert (answer.only_first, answer.only_second, answer.neither) == (0, 0, 0)
    assert [example.label for example in answer.best] == ["row 0", "row 2", "row 3"]
    first = answer.best[0]
    assert (first.nodes, first.endpoints) == ((1, 1, 1), (1, 1, 1))
    assert first.difference == pytest.approx(30)
    assert first.first == pytest.approx((100, 100, 100, 100, 0, 0, 0))
    assert first.second == pytest.approx((70, 100 / 3, 100, 100, 0, 0, 0))
    assert answer.worst == ()


def test_signs_are_those_of_the_first_against_the_second() -> None:
    """Swapping the two swaps better and worse and turns the differences round."""
    data = open_dataset("kep2004-small", rows=300)
    one, two = find_algorithm("local"), find_algorithm("original")
    forth, back = compare(data, one, two), compare(data, two, one)
    assert (forth.better, forth.equal, forth.worse) == (back.worse, back.equal, back.better)
    assert forth.differences == pytest.approx([-value for value in back.differences])
    assert [example.row for example in forth.best] == [example.row for example in back.worst]
    assert forth.best[0].difference >= forth.best[-1].difference > 0 > forth.worst[0].difference


def test_mean_differences_are_those_of_the_summaries() -> None:
    """Over rows that are valid for both the difference of means is the mean of differences."""
    data = open_dataset("kep2004-small", rows=500)
    algorithms = [find_algorithm("local-shared"), find_algorithm("kube-auto")]
    weights = Weights(0.25, 0.25, 0.25, 0.25)
    answer = compare(data, *algorithms, weights=weights)
    one, two = (summary.figures for summary in run_simulation(data, algorithms, weights=weights))
    assert one is not None
    assert two is not None
    want = (one.total.mean - two.total.mean, one.max_deviation.mean - two.max_deviation.mean)
    assert (answer.differences[0], answer.differences[4]) == pytest.approx(want, abs=1e-4)


def test_rows_are_classed_by_their_size() -> None:
    """Endpoints for each zone decide: below 3, below 10, below 33, and the rest."""
    data = rows("1 2, 1 3", "1 3, 1 3", "1 9, 1 9", "1 10, 1 10", "1 33, 1 33", "1 65, 1 0")
    sizes = compare(data, find_algorithm("same-zone"), find_algorithm("original")).sizes
    assert [(one.above, one.below) for one in sizes] == [(0, 3), (3, 10), (10, 33), (33, None)]
    assert [one.rows for one in sizes] == [1, 2, 2, 1]
    assert [one.better for one in sizes] == [1, 2, 1, 1]
    assert sizes[1].difference == pytest.approx(22.5)


def test_rows_without_a_result_are_counted_apart() -> None:
    """Such rows add nothing to means and are no examples."""
    data = rows("1 2, 0 0", "1 0, 1 0", "1 4, 1 4")
    answer = compare(data, find_algorithm("local-weighted"), find_algorithm("original"))
    assert (answer.only_first, answer.only_second, answer.neither) == (0, 1, 1)
    assert (answer.better, answer.equal, answer.worse) == (1, 0, 0)
    back = compare(data, find_algorithm("original"), find_algorithm("local-weighted"))
    assert (back.only_first, back.only_second) == (1, 0)


def test_no_rows_are_no_reason_to_fail() -> None:
    """An empty set gives zeros."""
    answer = compare(
        InMemoryRows(("a",), [], []), find_algorithm("local"), find_algorithm("original")
    )
    assert (answer.rows, answer.better, answer.differences, answer.best) == (0, 0, (0.0,) * 7, ())


def test_machine_code_counts_alike() -> None:
    """Over many rows the compiled comparison finds what the plain one finds in parts."""
    pytest.importorskip("numba")
    data = open_dataset("kep2004-small", rows=24_000)
    pair = (find_algorithm("local"), find_algorithm("original"))
    done: list[int] = []
    whole = compare(data, *pair, progress=done.append)
    assert done[-1] == 24_000
    block = data.read(0, 24_000)
    nodes, endpoints = list(map(int, block.nodes)), list(map(int, block.endpoints))
    parts = [
        compare(InMemoryRows(data.zones, nodes[cut], endpoints[cut]), *pair)
        for cut in (slice(0, 36_000), slice(36_000, None))
    ]
    assert sum(part.better for part in parts) == whole.better
    assert sum(part.worse for part in parts) == whole.worse
    mean = sum(part.differences[0] * part.rows for part in parts) / 24_000
    assert whole.differences[0] == pytest.approx(mean)
    largest = max(example.difference for part in parts for example in part.best)
    assert whole.best[0].difference == pytest.approx(largest)
    assert len(whole.best) == EXAMPLES
