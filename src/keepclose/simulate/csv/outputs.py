"""Results of algorithms row by row, written as the reference simulator of KEP-2004 writes them.

Each thread reads a range of rows, runs the algorithms over them, formats their text and tallies
them, all while the numbers are still in its cache; the texts are written in the order of the rows.
Neither the text nor the summary depends on the number of threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Final, NamedTuple

from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.compiling import is_available
from keepclose.simulate.csv.files import (
    RESULT_HEADER,
    Labels,
    Text,
    format_results,
    make_labels,
)
from keepclose.simulate.csv.inputs import CsvInputs
from keepclose.simulate.datasets import DataSet, InMemoryRows
from keepclose.simulate.engine import FEW_ROWS, RowResults, simulate_rows, tally_results
from keepclose.simulate.summary import BlockTally, PartTally, Summary, Weights

ROWS_AT_ONCE: Final = 1 << 16


class _RangeResult(NamedTuple):
    """The text and the tally of a range of rows for one algorithm."""

    texts: list[Text]
    tally: PartTally


def write_results(
    dataset: DataSet,
    outputs: Sequence[tuple[Algorithm, BinaryIO]],
    *,
    weights: Weights | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[Summary]:
    """Write each algorithm's results into its file and return its summary.

    A file gets a header and a line for each row. `progress` is called with the number of rows done.
    """
    for _, file in outputs:
        file.write(RESULT_HEADER)
    tallies = [BlockTally(algorithm.name) for algorithm, _ in outputs]
    algorithms = [algorithm for algorithm, _ in outputs]
    for done, results in _run_ranges(dataset, algorithms, weights):
        for (_, file), tally, result in zip(outputs, tallies, results, strict=True):
            for text in result.texts:
                file.write(text)
            tally.add(result.tally)
        if progress is not None:
            progress(done)
    return [tally.finish() for tally in tallies]


def _run_ranges(
    dataset: DataSet, algorithms: Sequence[Algorithm], weights: Weights | None
) -> Iterator[tuple[int, list[_RangeResult]]]:
    """Yield the number of rows done and the results of the last range, in order."""
    compiled = is_available() and dataset.rows >= FEW_ROWS

    def work(number: int, start: int, stop: int) -> list[_RangeResult]:
        rows, labels = _read(dataset, number, start, stop)
        range_results = []
        for algorithm in algorithms:
            texts: list[Text] = []
            results = simulate_rows(rows, algorithm, weights=weights, threads=1, compiled=compiled)
            formatted = _format_each(results, start, labels, texts, compiled=compiled)
            range_results.append(_RangeResult(texts, tally_results(formatted)))
        return range_results

    ranges = _cut(dataset)
    if not compiled:
        for number, (start, stop) in enumerate(ranges):
            yield stop, work(number, start, stop)
        return
    pending: deque[tuple[int, Future[list[_RangeResult]]]] = deque()
    count = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count) as pool:
        for number, (start, stop) in enumerate(ranges):
            pending.append((stop, pool.submit(work, number, start, stop)))
            if len(pending) > 2 * count:
                done, future = pending.popleft()
                yield done, future.result()
        for done, future in pending:
            yield done, future.result()


def _format_each(
    blocks: Iterator[RowResults], start: int, labels: Labels, texts: list[Text], *, compiled: bool
) -> Iterator[RowResults]:
    """Yield the results, numbered as in the whole data set, and append the text of each block."""
    for block in blocks:
        texts.append(
            format_results(
                block.rows,
                labels=labels.part(block.start, block.rows),
                figures=block.figures,
                valid=block.valid,
                compiled=compiled,
            )
        )
        yield block._replace(start=start + block.start)


def _read(dataset: DataSet, number: int, start: int, stop: int) -> tuple[InMemoryRows, Labels]:
    if isinstance(dataset, CsvInputs):
        rows = dataset.scan(number)
        return InMemoryRows(dataset.zones, rows.nodes, rows.endpoints), rows.labels
    block = dataset.read(start, stop)
    labels = make_labels([dataset.label(row) for row in range(start, stop)])
    return InMemoryRows(dataset.zones, block.nodes, block.endpoints), labels


def _cut(dataset: DataSet) -> list[tuple[int, int]]:
    if isinstance(dataset, CsvInputs):
        return [(part.first, part.first + part.rows) for part in dataset.parts]
    starts = range(0, dataset.rows, ROWS_AT_ONCE)
    return [(start, min(start + ROWS_AT_ONCE, dataset.rows)) for start in starts]
