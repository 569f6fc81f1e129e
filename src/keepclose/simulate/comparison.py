"""Two algorithms over the same rows: which is better, how often, by what, and where.

A row counts as equal when both totals are printed alike. Differences are those of the first against
the second, so that a positive one speaks for the first. Rows for which only one of them has a valid
result are counted, but add nothing to the means.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, Final

import msgspec

from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.compiling import compile_function
from keepclose.simulate.datasets import Block, DataSet, GivenRows, load_numpy
from keepclose.simulate.engine import BLOCK_ROWS, RowResults, simulate_rows
from keepclose.simulate.row_loops import COLUMNS, TOTAL
from keepclose.simulate.summary import Weights

EQUAL: Final = 0.00005
"""Totals that differ by less are alike in four decimals."""
SIZES: Final = (3, 10, 33)
"""Rows are classed by their endpoints for each zone, below and from these numbers on."""

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
    """Rows of like size; `below` None means that there is no upper limit."""

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
        """What the first algorithm has more in total."""
        return self.first[TOTAL] - self.second[TOTAL]


class Comparison(msgspec.Struct, frozen=True):
    """How the first algorithm does against the second."""

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
    """Rows where the first is better by most."""
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
    """Return how two algorithms do on the same rows; no rows give zeros and no examples.

    `progress` is called with the number of rows done.
    """
    tally: _Tally | None = None
    for one, two, block in zip(
        simulate_rows(dataset, first, weights=weights),
        simulate_rows(dataset, second, weights=weights),
        dataset.blocks(BLOCK_ROWS),
        strict=True,
    ):
        if tally is None:
            tally = _Tally(len(dataset.zones), examples, compiled=hasattr(one.figures, "dtype"))
        tally.add(one, two, block)
        if progress is not None:
            progress(block.start + block.rows)
    if tally is None:
        tally = _Tally(len(dataset.zones), examples, compiled=False)
    sizes = tally.size_classes()
    valid = sum(one.rows for one in sizes)

    both = (first, second)
    return Comparison(
        first=first.name,
        second=second.name,
        zones=dataset.zones,
        rows=dataset.rows,
        better=sum(one.better for one in sizes),
        equal=sum(one.equal for one in sizes),
        worse=sum(one.worse for one in sizes),
        only_first=sum(tally.counts[ONLY_FIRST::COUNTS]),
        only_second=sum(tally.counts[ONLY_SECOND::COUNTS]),
        neither=tally.neither,
        differences=tuple(float(one) / max(1, valid) for one in tally.sums),
        sizes=sizes,
        best=_show_examples(dataset, both, weights, tally.best.rows()),
        worst=_show_examples(dataset, both, weights, tally.worst.rows()),
    )


class _Tally:
    """Counts and sums over all blocks so far, and the rows that stand out."""

    def __init__(self, zones: int, examples: int, *, compiled: bool) -> None:
        self._zones = zones
        self._numpy = load_numpy("compiled comparison") if compiled else None
        self._compare = compile_function(compare_rows) if compiled else compare_rows
        self._counts = self._make((len(SIZES) + 1) * COUNTS, 0)
        self._totals = self._make(len(SIZES) + 1, 0.0)
        self.sums = self._make(COLUMNS, 0.0)
        self.neither = 0
        self.best = _Extremes(examples)
        self.worst = _Extremes(examples)

    @property
    def counts(self) -> list[int]:
        """Five numbers for each class of sizes."""
        return [int(count) for count in self._counts]

    def add(self, one: RowResults, two: RowResults, block: Block) -> None:
        """Take the next block, as both algorithms have it."""
        differences = self._make(block.rows, 0.0)
        endpoints = block.endpoints
        if self._numpy is not None:
            endpoints = self._numpy.asarray(endpoints, dtype="int64")
        self.neither += self._compare(
            block.rows,
            self._zones,
            endpoints,
            one.figures,
            one.valid,
            two.figures,
            two.valid,
            self._counts,
            self.sums,
            self._totals,
            differences,
        )
        self.best.look(differences, 1, block.start)
        self.worst.look(differences, -1, block.start)

    def size_classes(self) -> tuple[SizeClass, ...]:
        """Return the classes, from small rows to large ones."""
        counts = self.counts
        made = []
        for place, (above, below) in enumerate(zip((0, *SIZES), (*SIZES, None), strict=True)):
            rows, better, worse = counts[place * COUNTS : place * COUNTS + 3]
            difference = float(self._totals[place]) / max(1, rows)
            equal = rows - better - worse
            made.append(SizeClass(above, below, rows, better, equal, worse, difference))
        return tuple(made)

    def _make(self, length: int, zero: float) -> Any:
        if self._numpy is None:
            return [zero] * length
        return self._numpy.full(length, zero)


class _Extremes:
    """The rows with the largest differences; of equal ones those that come first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: list[tuple[float, int]] = []

    def look(self, differences: Any, sign: int, start: int) -> None:
        """Look through the differences of a block; `sign` -1 looks for the most negative ones."""
        if hasattr(differences, "argsort"):
            full = len(self._found) == self._most
            if float((sign * differences).max()) <= (self._found[-1][0] if full else 0.0):
                return
            order = (-sign * differences).argsort(kind="stable")[: self._most]
        else:
            order = heapq.nsmallest(
                self._most, range(len(differences)), key=lambda row: -sign * differences[row]
            )
        here = [(sign * float(differences[row]), start + int(row)) for row in order]
        large = [one for one in here if one[0] >= EQUAL]
        merged = sorted([*self._found, *large], key=lambda one: (-one[0], one[1]))
        self._found = merged[: self._most]

    def rows(self) -> list[int]:
        """Return the numbers of the rows, the largest difference first."""
        return [row for _, row in self._found]


def _show_examples(
    dataset: DataSet,
    algorithms: tuple[Algorithm, Algorithm],
    weights: Weights | None,
    rows: Sequence[int],
) -> tuple[Example, ...]:
    block = dataset.pick(rows)
    zones = len(dataset.zones)
    some = GivenRows(dataset.zones, block.nodes, block.endpoints)
    figures: list[list[tuple[float, ...]]] = []
    for algorithm in algorithms:
        results = [
            [float(one) + 0.0 for one in part.figures]  # no minus before a zero
            for part in simulate_rows(some, algorithm, weights=weights, compiled=False)
        ]
        flat = results[0] if results else []
        cuts = range(0, len(rows) * COLUMNS, COLUMNS)
        figures.append([tuple(flat[start : start + COLUMNS]) for start in cuts])
    return tuple(
        Example(
            row=row,
            label=dataset.label(row),
            nodes=tuple(int(one) for one in block.nodes[place * zones : (place + 1) * zones]),
            endpoints=tuple(
                int(one) for one in block.endpoints[place * zones : (place + 1) * zones]
            ),
            first=figures[0][place],
            second=figures[1][place],
        )
        for place, row in enumerate(rows)
    )
