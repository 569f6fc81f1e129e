"""Workshop: what a block of rows is worked on with, and the work on one block.

There are two kinds of everything: compiled functions over arrays, and the same functions as they
are over lists. Both give the same results, bit for bit. What one thread writes to belongs to that
thread alone; functions and parameters are shared.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, Final, NamedTuple

from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.compiling import bind_function, compile_function
from keepclose.simulate.datasets import Block
from keepclose.simulate.row_loops import COLUMNS, MAX_DEVIATION, SCRATCH, TOTAL
from keepclose.simulate.summary import (
    WORST_KEPT,
    PartTally,
    Weights,
    Worst,
    find_printed_range,
    join_worst,
)
from keepclose.simulate.tallies import BINS, SIDE, TALLIED, collect_rows, tally_rows

# Threads write into their scratch space all the time; were two of them to share a cache line, each
# would wait for the other.
_MARGIN: Final = 32


class RowResults(NamedTuple):
    """Figures of consecutive rows: `figures[row*7+column]`, `spreads[row]` and `valid[row]`."""

    start: int
    rows: int
    figures: Sequence[float]
    spreads: Sequence[float]
    """The true spread, beside the seventh figure, which is that of the reference."""
    valid: Sequence[int]
    undivided: int


def list_plainly(numbers: Any) -> list[Any]:
    """Return Python's own numbers, whatever kind of sequence they come in."""
    return list(numbers.tolist() if hasattr(numbers, "tolist") else numbers)


class Workshop:
    """Makes functions and sequences of one kind: compiled ones and arrays, or plain ones."""

    def __init__(self, zones: int, *, compiled: bool) -> None:
        self.zones = zones
        self.compiled = compiled
        self._numpy: Any = importlib.import_module("numpy") if compiled else None
        self.tally = compile_function(tally_rows) if compiled else tally_rows
        self.collect = compile_function(collect_rows) if compiled else collect_rows

    def prepare(self, algorithm: Algorithm) -> Callable[..., int]:
        """Return the loop of an algorithm, with its allocator bound."""
        prepare = compile_function if self.compiled else bind_function
        return prepare(algorithm.loop, algorithm.bindings)

    def ints(self, length: int) -> MutableSequence[int]:
        """Return so many zeros."""
        if not self.compiled:
            return [0] * length
        array = self._numpy.zeros(length + 2 * _MARGIN, dtype=self._numpy.int64)
        view: MutableSequence[int] = array[_MARGIN:-_MARGIN]
        return view

    def floats(self, length: int) -> MutableSequence[float]:
        """Return so many zeros."""
        if not self.compiled:
            return [0.0] * length
        array = self._numpy.zeros(length + 2 * _MARGIN, dtype=self._numpy.float64)
        view: MutableSequence[float] = array[_MARGIN:-_MARGIN]
        return view

    def adopt(self, block: Block) -> Block:
        """Return a block whose numbers are of the kind made here."""
        nodes, endpoints = self._convert(block.nodes), self._convert(block.endpoints)
        return block._replace(nodes=nodes, endpoints=endpoints)

    def _convert(self, numbers: Any) -> Sequence[int]:
        converted: Sequence[int]
        if self.compiled:
            # NB: an array that cannot be written has a type of its own, and would be compiled anew.
            converted = self._numpy.require(numbers, dtype=self._numpy.int64, requirements="CW")
        else:
            converted = list_plainly(numbers)
        return converted


class Room:
    """Space for the results of a block and for the work on it; used by one thread at a time."""

    def __init__(self, workshop: Workshop, rows: int) -> None:
        zones = workshop.zones
        cells = (3 * zones + 2) * zones
        scratch = SCRATCH * zones + SCRATCH
        self.figures = workshop.floats(rows * COLUMNS)
        self.spreads = workshop.floats(rows)
        self.valid = workshop.ints(rows)
        self.work = (
            workshop.ints(cells),
            workshop.floats(cells),
            workshop.ints(scratch),
            workshop.floats(scratch),
            workshop.floats(zones),
            workshop.ints(zones),
            workshop.floats(COLUMNS),
        )


class Run:
    """One algorithm, ready to run over blocks; threads may share it."""

    def __init__(self, workshop: Workshop, algorithm: Algorithm, weights: Weights) -> None:
        self._zones = workshop.zones
        self._algorithm = algorithm
        self._loop = workshop.prepare(algorithm)
        self._weights = workshop.floats(4)
        for place, weight in enumerate(
            (weights.in_zone, weights.max_deviation, weights.mean_deviation, weights.slices)
        ):
            self._weights[place] = weight

    def run(self, block: Block, room: Room) -> RowResults:
        """Return the figures of all rows of a block; they stay in the room."""
        undivided = self._loop(
            block.rows,
            self._zones,
            block.nodes,
            block.endpoints,
            float(self._algorithm.threshold),
            float(self._algorithm.start),
            int(self._algorithm.hints),
            self._weights,
            *room.work,
            room.figures,
            room.spreads,
            room.valid,
        )
        return RowResults(
            block.start, block.rows, room.figures, room.spreads, room.valid, undivided
        )


class PartTallier:
    """The tally of consecutive blocks of one algorithm, kept by one thread."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._rows = 0
        self._valid = 0
        self._undivided = 0
        self._sums = workshop.ints(TALLIED)
        self._extremes = workshop.floats(2 * TALLIED)
        for column in range(TALLIED):
            self._extremes[2 * column] = -math.inf
            self._extremes[2 * column + 1] = math.inf
        self._histograms = workshop.ints(3 * BINS + SIDE * SIDE)
        self._found = workshop.ints(WORST_KEPT)
        self._deviation: Worst | None = None
        self._total: Worst | None = None

    def add(self, results: RowResults) -> None:
        """Add the next block; the worst rows are looked for only if it has worse ones."""
        valid = self._workshop.tally(
            results.rows,
            results.figures,
            results.spreads,
            results.valid,
            self._sums,
            self._extremes,
            self._histograms,
        )
        self._rows += results.rows
        self._undivided += results.undivided
        self._valid += valid
        if valid > 0:
            highest = float(self._extremes[2 * MAX_DEVIATION])
            lowest = float(self._extremes[2 * TOTAL + 1])
            found = self._find(results, MAX_DEVIATION, highest, self._deviation)
            self._deviation = join_worst(self._deviation, found, sign=1)
            found = self._find(results, TOTAL, lowest, self._total)
            self._total = join_worst(self._total, found, sign=-1)

    def finish(self) -> PartTally:
        """Return the tally as plain numbers."""
        return PartTally(
            rows=self._rows,
            valid=self._valid,
            undivided=self._undivided,
            sums=list_plainly(self._sums),
            extremes=list_plainly(self._extremes),
            histograms=list_plainly(self._histograms),
            worst_deviation=self._deviation,
            worst_total=self._total,
        )

    def _find(
        self, results: RowResults, column: int, worst: float, before: Worst | None
    ) -> Worst | None:
        low, high = find_printed_range(worst)
        value = float(f"{worst:.4f}")
        count = self._workshop.collect(
            results.rows, results.figures, results.valid, column, low, high, self._found
        )
        if count == 0:
            return None
        missing = WORST_KEPT
        if before is not None and before.value == value:
            missing -= len(before.rows)
        rows = [results.start + int(row) for row in self._found[: min(count, missing)]]
        return Worst(value, count, tuple(rows))
