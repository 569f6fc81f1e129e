"""The engine: runs algorithms over data sets of any size, on all cores, in little memory.

Rows are read, allocated, evaluated and tallied in blocks that fit into a core's cache; threads take
runs of blocks and never wait for each other, since compiled code holds no lock. Nothing in a result
depends on the number of threads, the size of blocks or whether the code was compiled: the very same
functions run uncompiled when there is no compiler, or when there are too few rows to wait for one.
"""

from __future__ import annotations

import importlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.compiling import bind_function, compile_function, is_available
from keepclose.simulate.datasets import Block, DataSet, MissingExtraError
from keepclose.simulate.row_loops import COLUMNS, MAX_DEVIATION_COLUMN, SCRATCH, TOTAL
from keepclose.simulate.summary import (
    BINS,
    SIDE,
    TALLIED,
    WORST_KEPT,
    BlockTally,
    PartTally,
    Summary,
    Weights,
    Worst,
    collect_rows,
    find_printed_range,
    join_worst,
    tally_rows,
)

# Threads write into their scratch space all the time; were two of them to share a cache line, each
# would wait for the other.
_MARGIN: Final = 32
__all__ = [
    "BLOCK_ROWS",
    "FEW_ROWS",
    "RowResults",
    "run_simulation",
    "simulate_rows",
    "tally_results",
]

BLOCK_ROWS: Final = 8192
BLOCKS_AT_ONCE: Final = 16
"""A thread takes this many blocks at a time."""
SLOW_ROWS: Final = 256
"""Uncompiled, a block is cut down to this many rows, so that progress is seen."""
FEW_ROWS: Final = 20_000
"""Below this, waiting for compiled code takes longer than doing without it."""


_Result = TypeVar("_Result")


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


class _Run:
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
            highest = float(self._extremes[2 * MAX_DEVIATION_COLUMN])
            lowest = float(self._extremes[2 * TOTAL + 1])
            found = self._find(results, MAX_DEVIATION_COLUMN, highest, self._deviation)
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


def run_simulation(
    dataset: DataSet,
    algorithms: Sequence[Algorithm],
    *,
    weights: Weights | None = None,
    threads: int | None = None,
    block_rows: int = BLOCK_ROWS,
    compiled: bool | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[Summary]:
    """Return a summary for each algorithm over all rows of a data set, in the given order.

    `threads` are all cores unless told; `compiled` None compiles if that pays. `progress` is called
    with the number of rows done. Raise MissingExtraError if compiled code is asked for in vain.
    """
    workshop = _open_workshop(dataset, compiled=compiled)
    runs = [_Run(workshop, algorithm, weights or Weights()) for algorithm in algorithms]
    tallies = [BlockTally(algorithm.name) for algorithm in algorithms]
    block_rows = block_rows if workshop.compiled else min(block_rows, SLOW_ROWS)
    step = block_rows * BLOCKS_AT_ONCE if workshop.compiled else block_rows

    def work(start: int) -> list[PartTally]:
        room = Room(workshop, block_rows)
        parts = [PartTallier(workshop) for _ in runs]
        stop = min(start + step, dataset.rows)
        for first in range(start, stop, block_rows):
            block = workshop.adopt(dataset.read(first, min(first + block_rows, stop)))
            for run, part in zip(runs, parts, strict=True):
                part.add(run.run(block, room))
        return [part.finish() for part in parts]

    for start, done in _work_in_order(work, range(0, dataset.rows, step), workshop, threads):
        for tally, part in zip(tallies, done, strict=True):
            tally.add(part)
        if progress is not None:
            progress(min(start + step, dataset.rows))
    return [tally.finish() for tally in tallies]


def simulate_rows(
    dataset: DataSet,
    algorithm: Algorithm,
    *,
    weights: Weights | None = None,
    threads: int | None = None,
    block_rows: int = BLOCK_ROWS,
    compiled: bool | None = None,
) -> Iterator[RowResults]:
    """Return the figures of every row, block by block in the order of rows.

    The parameters are those of `simulate`. No more than a few blocks are ever held.
    """
    workshop = _open_workshop(dataset, compiled=compiled)
    run = _Run(workshop, algorithm, weights or Weights())

    def work(start: int) -> RowResults:
        block = workshop.adopt(dataset.read(start, start + block_rows))
        return run.run(block, Room(workshop, block.rows))

    starts = range(0, dataset.rows, block_rows)
    for _, results in _work_in_order(work, starts, workshop, threads):
        yield results


def tally_results(results: Iterable[RowResults]) -> PartTally:
    """Return the tally of blocks of rows that follow each other, for callers who need both."""
    part: PartTallier | None = None
    for block in results:
        if part is None:
            part = PartTallier(Workshop(0, compiled=hasattr(block.figures, "dtype")))
        part.add(block)
    return (part or PartTallier(Workshop(0, compiled=False))).finish()


def _open_workshop(dataset: DataSet, *, compiled: bool | None) -> Workshop:
    if compiled and not is_available():
        raise MissingExtraError("compiled simulation")
    if compiled is None:
        compiled = is_available() and dataset.rows >= FEW_ROWS
    return Workshop(len(dataset.zones), compiled=compiled)


def _work_in_order(
    work: Callable[[int], _Result], starts: range, workshop: Workshop, threads: int | None
) -> Iterator[tuple[int, _Result]]:
    """Return each start with its result, in order, while threads work a little ahead."""
    count = threads or len(os.sched_getaffinity(0))
    if count == 1 or not workshop.compiled or len(starts) < 2:
        for start in starts:
            yield start, work(start)
        return
    waiting: deque[tuple[int, Future[_Result]]] = deque()
    pool = ThreadPoolExecutor(count)
    try:
        for start in starts:
            waiting.append((start, pool.submit(work, start)))
            if len(waiting) > 2 * count:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
