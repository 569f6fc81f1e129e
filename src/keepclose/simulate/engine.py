"""The engine: runs algorithms over data sets of any size, on all cores, in little memory.

Rows are read, allocated, evaluated and tallied in blocks that fit into a core's cache. Threads take
runs of blocks and never wait for each other, because compiled code holds no lock. A `Backend`
creates compiled functions and arrays, or plain functions and lists; both give the same results, bit
for bit. A thread writes only to its own scratch space; functions and parameters are shared. No
result depends on the number of threads, the size of blocks or whether the code was compiled: the
same functions run uncompiled without a compiler, and for rows too few to wait for one.
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

__all__ = [
    "BLOCK_ROWS",
    "FEW_ROWS",
    "RangeTally",
    "RowResults",
    "run_simulation",
    "simulate_rows",
    "tally_results",
]

BLOCK_ROWS: Final = 8192
BLOCKS_AT_ONCE: Final = 16
"""A thread takes this many blocks at a time."""
SLOW_ROWS: Final = 256
"""Without a compiler a block has at most this many rows, so that progress is visible."""
FEW_ROWS: Final = 20_000
"""Below this number of rows, waiting for compiled code takes longer than running without it."""
# Padding of the scratch space: two threads that write to one cache line would wait for each other.
_MARGIN: Final = 32
_Result = TypeVar("_Result")


class RowResults(NamedTuple):
    """Figures of consecutive rows: `figures[row*7+column]`, `spreads[row]` and `valid[row]`."""

    start: int
    rows: int
    figures: Sequence[float]
    spreads: Sequence[float]
    """The true spread; the seventh figure is the spread of the reference."""
    valid: Sequence[int]
    undivided: int


def list_plainly(numbers: Any) -> list[Any]:
    """Return the numbers of a list or an array as Python's own."""
    return list(numbers.tolist() if hasattr(numbers, "tolist") else numbers)


class Backend:
    """Creates functions and sequences of one kind: compiled functions and arrays, or plain ones."""

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

    def convert(self, block: Block) -> Block:
        """Return the block with sequences of this backend's kind."""
        nodes, endpoints = self._convert(block.nodes), self._convert(block.endpoints)
        return block._replace(nodes=nodes, endpoints=endpoints)

    def _convert(self, numbers: Any) -> Sequence[int]:
        converted: Sequence[int]
        if self.compiled:
            # NB: a read-only array has another type, for which numba would compile again.
            converted = self._numpy.require(numbers, dtype=self._numpy.int64, requirements="CW")
        else:
            converted = list_plainly(numbers)
        return converted


class Scratch:
    """Space for the results of a block and intermediate values; one thread uses it at a time."""

    def __init__(self, backend: Backend, rows: int) -> None:
        zones = backend.zones
        cells = (3 * zones + 2) * zones
        scratch_length = SCRATCH * zones + SCRATCH
        self.figures = backend.floats(rows * COLUMNS)
        self.spreads = backend.floats(rows)
        self.valid = backend.ints(rows)
        self.work = (
            backend.ints(cells),
            backend.floats(cells),
            backend.ints(scratch_length),
            backend.floats(scratch_length),
            backend.floats(zones),
            backend.ints(zones),
            backend.floats(COLUMNS),
        )


class _PreparedAlgorithm:
    """One algorithm, ready to run over blocks; threads may share it."""

    def __init__(self, backend: Backend, algorithm: Algorithm, weights: Weights) -> None:
        self._zones = backend.zones
        self._algorithm = algorithm
        self._loop = backend.prepare(algorithm)
        self._weights = backend.floats(4)
        for index, weight in enumerate(
            (weights.in_zone, weights.max_deviation, weights.mean_deviation, weights.slices)
        ):
            self._weights[index] = weight

    def run(self, block: Block, scratch: Scratch) -> RowResults:
        """Return the figures of all rows of a block; they refer to the scratch space."""
        undivided = self._loop(
            block.rows,
            self._zones,
            block.nodes,
            block.endpoints,
            float(self._algorithm.threshold),
            float(self._algorithm.start),
            int(self._algorithm.hints),
            self._weights,
            *scratch.work,
            scratch.figures,
            scratch.spreads,
            scratch.valid,
        )
        return RowResults(
            block.start, block.rows, scratch.figures, scratch.spreads, scratch.valid, undivided
        )


class PartTallier:
    """Tallies consecutive blocks of one algorithm within one thread."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rows = 0
        self._valid = 0
        self._undivided = 0
        self._sums = backend.ints(TALLIED)
        self._extremes = backend.floats(2 * TALLIED)
        for column in range(TALLIED):
            self._extremes[2 * column] = -math.inf
            self._extremes[2 * column + 1] = math.inf
        self._histograms = backend.ints(3 * BINS + SIDE * SIDE)
        self._worst_rows = backend.ints(WORST_KEPT)
        self._deviation: Worst | None = None
        self._total: Worst | None = None

    def add(self, results: RowResults) -> None:
        """Add the next block, and its worst rows if they are worse than all before."""
        valid = self._backend.tally(
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
            worst = self._find(results, MAX_DEVIATION_COLUMN, highest, self._deviation)
            self._deviation = join_worst(self._deviation, worst, sign=1)
            worst = self._find(results, TOTAL, lowest, self._total)
            self._total = join_worst(self._total, worst, sign=-1)

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
        count = self._backend.collect(
            results.rows, results.figures, results.valid, column, low, high, self._worst_rows
        )
        if count == 0:
            return None
        missing = WORST_KEPT
        if before is not None and before.value == value:
            missing -= len(before.rows)
        rows = [results.start + int(row) for row in self._worst_rows[: min(count, missing)]]
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

    `threads` None means all cores; `compiled` None compiles if that pays. `progress` is called with
    the number of rows done. Raises MissingExtraError if `compiled` is True without a compiler.
    """
    tally = RangeTally(
        dataset, algorithms, weights=weights, block_rows=block_rows, compiled=compiled
    )
    step = tally.step

    def work(start: int) -> list[PartTally]:
        return tally.run_step(start, min(start + step, dataset.rows))

    tallies = [BlockTally(algorithm.name) for algorithm in algorithms]
    starts = range(0, dataset.rows, step)
    for start, done in _work_in_order(work, starts, tally.backend, threads):
        for total, part in zip(tallies, done, strict=True):
            total.add(part)
        if progress is not None:
            progress(min(start + step, dataset.rows))
    return [total.finish() for total in tallies]


class RangeTally:
    """Tallies ranges of the rows of a data set for some algorithms; threads may share it.

    The parameters are those of `run_simulation`.
    """

    def __init__(
        self,
        dataset: DataSet,
        algorithms: Sequence[Algorithm],
        *,
        weights: Weights | None = None,
        block_rows: int = BLOCK_ROWS,
        compiled: bool | None = None,
    ) -> None:
        self.backend = _choose_backend(dataset, compiled=compiled)
        self._dataset = dataset
        self._algorithms = algorithms
        self._runs = [
            _PreparedAlgorithm(self.backend, algorithm, weights or Weights())
            for algorithm in algorithms
        ]
        is_compiled = self.backend.compiled
        self._block_rows = block_rows if is_compiled else min(block_rows, SLOW_ROWS)
        self.step = self._block_rows * (BLOCKS_AT_ONCE if is_compiled else 1)
        """The most rows of one step: machine integers hold the sums of no more."""

    def run(self, start: int, stop: int) -> list[PartTally]:
        """Return the tally of any range of rows for each algorithm."""
        tallies = [BlockTally(algorithm.name) for algorithm in self._algorithms]
        for first in range(start, stop, self.step):
            parts = self.run_step(first, min(first + self.step, stop))
            for tally, part in zip(tallies, parts, strict=True):
                tally.add(part)
        return [tally.join() for tally in tallies]

    def run_step(self, start: int, stop: int) -> list[PartTally]:
        """Return the tally of at most `step` rows for each algorithm."""
        scratch = Scratch(self.backend, self._block_rows)
        parts = [PartTallier(self.backend) for _ in self._runs]
        for first in range(start, stop, self._block_rows):
            block = self._dataset.read(first, min(first + self._block_rows, stop))
            block = self.backend.convert(block)
            for run, part in zip(self._runs, parts, strict=True):
                part.add(run.run(block, scratch))
        return [part.finish() for part in parts]


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

    The parameters are those of `run_simulation`. No more than a few blocks are ever held.
    """
    backend = _choose_backend(dataset, compiled=compiled)
    run = _PreparedAlgorithm(backend, algorithm, weights or Weights())

    def work(start: int) -> RowResults:
        block = backend.convert(dataset.read(start, start + block_rows))
        return run.run(block, Scratch(backend, block.rows))

    starts = range(0, dataset.rows, block_rows)
    for _, results in _work_in_order(work, starts, backend, threads):
        yield results


def tally_results(results: Iterable[RowResults]) -> PartTally:
    """Return the tally of consecutive blocks, for callers that need results and summary."""
    part: PartTallier | None = None
    for block in results:
        if part is None:
            part = PartTallier(Backend(0, compiled=hasattr(block.figures, "dtype")))
        part.add(block)
    return (part or PartTallier(Backend(0, compiled=False))).finish()


def _choose_backend(dataset: DataSet, *, compiled: bool | None) -> Backend:
    if compiled and not is_available():
        raise MissingExtraError("compiled simulation")
    if compiled is None:
        compiled = is_available() and dataset.rows >= FEW_ROWS
    return Backend(len(dataset.zones), compiled=compiled)


def _work_in_order(
    work: Callable[[int], _Result], starts: range, backend: Backend, threads: int | None
) -> Iterator[tuple[int, _Result]]:
    """Yield each start with its result, in order, while threads work a few steps ahead."""
    count = threads or len(os.sched_getaffinity(0))
    if count == 1 or not backend.compiled or len(starts) < 2:
        for start in starts:
            yield start, work(start)
        return
    pending: deque[tuple[int, Future[_Result]]] = deque()
    pool = ThreadPoolExecutor(count)
    try:
        for start in starts:
            pending.append((start, pool.submit(work, start)))
            if len(pending) > 2 * count:
                first, future = pending.popleft()
                yield first, future.result()
        for first, future in pending:
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
