"""Two algorithms over the same rows: which is better, how often, by how much, and where.

A row counts as equal when both totals are printed alike. Differences are those of the first against
the second, so that a positive one favours the first. Rows with a valid result of only one algorithm
are counted, but add nothing to the means. Rows are classed by size, because that is where
algorithms differ most. `compare_rows` is a plain function over flat sequences, in the subset of
Python that numba compiles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, Final

import msgspec

from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.compiling import compile_function
from keepclose.simulate.datasets import Block, DataSet, InMemoryRows, load_numpy
from keepclose.simulate.engine import BLOCK_ROWS, RowResults, simulate_rows
from keepclose.simulate.row_loops import COLUMNS, TOTAL
from keepclose.simulate.summary import Weights

EQUAL: Final = 0.00005
"""Totals that differ by less are alike in four decimals."""
SIZES: Final = (3, 10, 33)
"""The limits between classes of rows, in endpoints per zone."""
# Columns of the counts of one class of rows.
ROWS: Final = 0
BETTER: Final = 1
WORSE: Final = 2
ONLY_FIRST: Final = 3
ONLY_SECOND: Final = 4
COUNTS: Final = 5
EXAMPLES: Final = 5


def compare_rows(  # noqa: PLR0917 - compiled code takes positions only
    rows: int,
    zones: int,
    endpoints: Sequence[int],
    first: Sequence[float],
    first_valid: Sequence[int],
    second: Sequence[float],
    second_valid: Sequence[int],
    counts: MutableSequence[int],
    sums: MutableSequence[float],
    totals: MutableSequence[float],
    differences: MutableSequence[float],
) -> int:
    """Add the rows of a block to counts and sums; return how many are valid for neither.

    `counts` has five numbers for each class of sizes, `totals` a sum of differences of the totals
    for each, and `sums` one for each figure. `differences` becomes that of the totals of each row,
    0 where not both are valid.
    """
    neither = 0
    for row in range(rows):
        differences[row] = 0.0
        size = 0
        for zone in range(zones):
            size += endpoints[row * zones + zone]
        place = 0
        if size >= SIZES[2] * zones:
            place = 3
        elif size >= SIZES[1] * zones:
            place = 2
        elif size >= SIZES[0] * zones:
            place = 1
        count = place * COUNTS
        if first_valid[row] == 0 or second_valid[row] == 0:
            if first_valid[row] != 0:
                counts[count + ONLY_FIRST] += 1
            elif second_valid[row] != 0:
                counts[count + ONLY_SECOND] += 1
            else:
                neither += 1
            continue
        counts[count + ROWS] += 1
        for column in range(COLUMNS):
            sums[column] += first[row * COLUMNS + column] - second[row * COLUMNS + column]
        difference = first[row * COLUMNS + TOTAL] - second[row * COLUMNS + TOTAL]
        totals[place] += difference
        differences[row] = difference
        if difference >= EQUAL:
            counts[count + BETTER] += 1
        elif difference <= -EQUAL:
            counts[count + WORSE] += 1
    return neither


class SizeClass(msgspec.Struct, frozen=True):
    """Rows of similar size; `below` None means no upper limit."""

    above: int
    below: int | None
    rows: int
    better: int
    equal: int
    worse: int
    difference: float
    """The mean difference of the totals."""


class Example(msgspec.Struct, frozen=True):
    """A row, and the seven figures of both algorithms for it."""

    row: int
    label: str
    nodes: tuple[int, ...]
    endpoints: tuple[int, ...]
    first: tuple[float, ...]
    second: tuple[float, ...]

    @property
    def difference(self) -> float:
        """The total of the first algorithm minus that of the second."""
        return self.first[TOTAL] - self.second[TOTAL]


class Comparison(msgspec.Struct, frozen=True):
    """The first algorithm compared with the second."""

    first: str
    second: str
    zones: tuple[str, ...]
    rows: int
    better: int
    equal: int
    worse: int
    only_first: int
    """Rows with a valid result of the first algorithm alone."""
    only_second: int
    neither: int
    differences: tuple[float, ...]
    """The mean difference of each of the seven figures, over rows valid for both."""
    sizes: tuple[SizeClass, ...]
    best: tuple[Example, ...]
    """Rows where the first is better by the largest difference."""
    worst: tuple[Example, ...]


def compare(
    dataset: DataSet,
    first: Algorithm,
    second: Algorithm,
    *,
    weights: Weights | None = None,
    examples: int = EXAMPLES,
    progress: Callable[[int], object] | None = None,
) -> Comparison:
    """Return the comparison of two algorithms on the same rows; no rows give zeros, no examples.

    `progress` is called with the number of rows done.
    """
    tally: _Tally | None = None
    for first_results, second_results, block in zip(
        simulate_rows(dataset, first, weights=weights),
        simulate_rows(dataset, second, weights=weights),
        dataset.blocks(BLOCK_ROWS),
        strict=True,
    ):
        if tally is None:
            compiled = hasattr(first_results.figures, "dtype")
            tally = _Tally(len(dataset.zones), examples, compiled=compiled)
        tally.add(first_results, second_results, block)
        if progress is not None:
            progress(block.start + block.rows)
    if tally is None:
        tally = _Tally(len(dataset.zones), examples, compiled=False)
    sizes = tally.size_classes()
    valid = sum(size.rows for size in sizes)

    both = (first, second)
    return Comparison(
        first=first.name,
        second=second.name,
        zones=dataset.zones,
        rows=dataset.rows,
        better=sum(size.better for size in sizes),
        equal=sum(size.equal for size in sizes),
        worse=sum(size.worse for size in sizes),
        only_first=sum(tally.counts[ONLY_FIRST::COUNTS]),
        only_second=sum(tally.counts[ONLY_SECOND::COUNTS]),
        neither=tally.neither,
        differences=tuple(float(total) / max(1, valid) for total in tally.sums),
        sizes=sizes,
        best=_show_examples(dataset, both, weights, tally.best.rows()),
        worst=_show_examples(dataset, both, weights, tally.worst.rows()),
    )


class _Tally:
    """Counts and sums over all blocks so far, and the rows with the largest differences."""

    def __init__(self, zones: int, examples: int, *, compiled: bool) -> None:
        self._zones = zones
        self._numpy = load_numpy("compiled comparison") if compiled else None
        self._compare = compile_function(compare_rows) if compiled else compare_rows
        self._counts = self._zeros((len(SIZES) + 1) * COUNTS, 0)
        self._totals = self._zeros(len(SIZES) + 1, 0.0)
        self.sums = self._zeros(COLUMNS, 0.0)
        self.neither = 0
        self.best = _Extremes(examples)
        self.worst = _Extremes(examples)

    @property
    def counts(self) -> list[int]:
        """Five numbers for each class of sizes."""
        return [int(count) for count in self._counts]

    def add(self, first: RowResults, second: RowResults, block: Block) -> None:
        """Add the next block, with the results of both algorithms."""
        differences = self._zeros(block.rows, 0.0)
        endpoints = block.endpoints
        if self._numpy is not None:
            endpoints = self._numpy.asarray(endpoints, dtype="int64")
        self.neither += self._compare(
            block.rows,
            self._zones,
            endpoints,
            first.figures,
            first.valid,
            second.figures,
            second.valid,
            self._counts,
            self.sums,
            self._totals,
            differences,
        )
        self.best.add(differences, 1, block.start)
        self.worst.add(differences, -1, block.start)

    def size_classes(self) -> tuple[SizeClass, ...]:
        """Return the classes, from small rows to large ones."""
        counts = self.counts
        classes = []
        for index, (above, below) in enumerate(zip((0, *SIZES), (*SIZES, None), strict=True)):
            rows, better, worse = counts[index * COUNTS : index * COUNTS + 3]
            difference = float(self._totals[index]) / max(1, rows)
            equal = rows - better - worse
            classes.append(SizeClass(above, below, rows, better, equal, worse, difference))
        return tuple(classes)

    def _zeros(self, length: int, zero: float) -> Any:
        if self._numpy is None:
            return [zero] * length
        return self._numpy.full(length, zero)


class _Extremes:
    """The rows with the largest differences; of equal differences the first rows."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: list[tuple[float, int]] = []

    def add(self, differences: Any, sign: int, start: int) -> None:
        """Add the differences of a block; `sign` -1 keeps the most negative ones."""
        if hasattr(differences, "argsort"):
            full = len(self._kept) == self._limit
            if float((sign * differences).max()) <= (self._kept[-1][0] if full else 0.0):
                return
            order = (-sign * differences).argsort(kind="stable")[: self._limit]
        else:
            order = heapq.nsmallest(
                self._limit, range(len(differences)), key=lambda row: -sign * differences[row]
            )
        candidates = [(sign * float(differences[row]), start + int(row)) for row in order]
        large = [candidate for candidate in candidates if candidate[0] >= EQUAL]
        merged = sorted([*self._kept, *large], key=lambda candidate: (-candidate[0], candidate[1]))
        self._kept = merged[: self._limit]

    def rows(self) -> list[int]:
        """Return the numbers of the rows, the largest difference first."""
        return [row for _, row in self._kept]


def _show_examples(
    dataset: DataSet,
    algorithms: tuple[Algorithm, Algorithm],
    weights: Weights | None,
    rows: Sequence[int],
) -> tuple[Example, ...]:
    block = dataset.pick(rows)
    zones = len(dataset.zones)
    examples = InMemoryRows(dataset.zones, block.nodes, block.endpoints)
    figures: list[list[tuple[float, ...]]] = []
    for algorithm in algorithms:
        results = [
            [float(number) + 0.0 for number in part.figures]  # turns -0.0 into 0.0
            for part in simulate_rows(examples, algorithm, weights=weights, compiled=False)
        ]
        flat = results[0] if results else []
        cuts = range(0, len(rows) * COLUMNS, COLUMNS)
        figures.append([tuple(flat[start : start + COLUMNS]) for start in cuts])
    return tuple(
        Example(
            row=row,
            label=dataset.label(row),
            nodes=tuple(int(number) for number in block.nodes[index * zones : (index + 1) * zones]),
            endpoints=tuple(
                int(number) for number in block.endpoints[index * zones : (index + 1) * zones]
            ),
            first=figures[0][index],
            second=figures[1][index],
        )
        for index, row in enumerate(rows)
    )
