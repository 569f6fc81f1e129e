"""The engine: runs algorithms over data sets of any size, on all cores, in little memory.

Rows are read, allocated, evaluated and tallied in blocks that fit into a core's cache; threads take
runs of blocks and never wait for each other, since compiled code holds no lock. Nothing in a result
depends on the number of threads, the size of blocks or whether the code was compiled: the very same
functions run uncompiled when there is no compiler, or when there are too few rows to wait for one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.compiling import is_available
from keepclose.simulate.datasets import DataSet, MissingExtraError
from keepclose.simulate.summary import PartTally, Summary, Tally, Weights
from keepclose.simulate.workshop import PartTallier, Room, RowResults, Run, Workshop

__all__ = ["BLOCK_ROWS", "FEW_ROWS", "RowResults", "simulate", "simulate_rows", "tally_results"]

BLOCK_ROWS: Final = 8192
BLOCKS_AT_ONCE: Final = 16
"""A thread takes this many blocks at a time."""
SLOW_ROWS: Final = 256
"""Uncompiled, a block is cut down to this many rows, so that progress is seen."""
FEW_ROWS: Final = 20_000
"""Below this, waiting for compiled code takes longer than doing without it."""


Result = TypeVar("Result")


def simulate(
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
    runs = [Run(workshop, algorithm, weights or Weights()) for algorithm in algorithms]
    tallies = [Tally(algorithm.name) for algorithm in algorithms]
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
    run = Run(workshop, algorithm, weights or Weights())

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
    work: Callable[[int], Result], starts: range, workshop: Workshop, threads: int | None
) -> Iterator[tuple[int, Result]]:
    """Return each start with its result, in order, while threads work a little ahead."""
    count = threads or len(os.sched_getaffinity(0))
    if count == 1 or not workshop.compiled or len(starts) < 2:
        for start in starts:
            yield start, work(start)
        return
    waiting: deque[tuple[int, Future[Result]]] = deque()
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
