"""A sweep: a data set in ranges, over the workers of a Dask cluster, with the sums of one process.

The client submits a few ranges ahead and adds the results up in the order of rows; sums are exact,
so the summary is equal to that of one process in every digit. A range whose worker was killed runs
again on another one, and so does a range whose result was lost with its worker. The cluster must
run the code of the client. Dask is imported when a sweep begins, and never without one.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final

from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.datasets import DataSet
from keepclose.simulate.engine import BLOCK_ROWS, BLOCKS_AT_ONCE
from keepclose.simulate.summary import BlockTally, PartTally, Summary, Weights
from keepclose.simulate.sweep_cluster import (
    WORKER_WAIT_S,
    SweepCluster,
    SweepError,
    SweepFault,
    check_address,
    connected_cluster,
    in_words,
    load_distributed,
    refuse_versions,
)
from keepclose.simulate.sweep_task import (
    OtherVersions,
    SweepWork,
    encode_work,
    find_versions,
    tally_task,
)

MOST_LOSSES: Final = 5
"""A range that fails so many times, or whose workers die so often, ends the sweep."""
TASKS: Final = 10_000
"""A data set is cut into about so many tasks, if that gives none of the sizes below."""
SMALLEST_TASK: Final = BLOCK_ROWS * BLOCKS_AT_ONCE
LARGEST_TASK: Final = 64 * SMALLEST_TASK
_TASKS_PER_THREAD: Final = 4
_TICK_S: Final = 1.0


def run_sweep(
    dataset: DataSet,
    algorithms: Sequence[Algorithm],
    *,
    scheduler: str,
    weights: Weights | None = None,
    compiled: bool | None = None,
    worker_wait_s: float = WORKER_WAIT_S,
    task_rows: int | None = None,
    tasks_per_thread: int = _TASKS_PER_THREAD,
    progress: Callable[[int], object] | None = None,
) -> list[Summary]:
    """Return what `run_simulation` returns, computed by the workers of a Dask scheduler.

    `progress` is called with the number of rows done. Raises SweepError, and MissingExtraError
    without Dask. Whatever ends the sweep, also Ctrl-C, cancels the tasks that are left.
    """
    check_address(scheduler)
    distributed = load_distributed()
    if not dataset.is_generated:
        raise SweepError(
            SweepFault.BAD_REQUEST,
            f"the rows of {dataset.name} are not sent over the network",
            "use a data set by name",
        )
    if task_rows is None:
        steps = -(-dataset.rows // (TASKS * SMALLEST_TASK))
        task_rows = min(max(1, steps) * SMALLEST_TASK, LARGEST_TASK)
    work = encode_work(SweepWork(dataset, tuple(algorithms), weights or Weights(), compiled))
    with connected_cluster(distributed, scheduler, answer_s=worker_wait_s) as cluster:
        sweep = _Sweep(
            cluster,
            work,
            rows=dataset.rows,
            task_rows=task_rows,
            worker_wait_s=worker_wait_s,
            tasks_per_thread=tasks_per_thread,
            algorithms=len(algorithms),
        )
        tallies = [BlockTally(algorithm.name) for algorithm in algorithms]
        try:
            sweep.await_workers()
            cluster.check_versions()
            for parts, done in sweep.results():
                for tally, part in zip(tallies, parts, strict=True):
                    tally.add(part)
                if progress is not None:
                    progress(done)
        except (ConnectionError, distributed.comm.CommClosedError, CancelledError) as error:
            raise SweepError(
                SweepFault.UNREACHABLE,
                f"the scheduler at {scheduler} has gone: {in_words(error)}",
                "start it again, and run the sweep again",
            ) from error
        finally:
            sweep.cancel()
    return [tally.finish() for tally in tallies]


def find_answer_error(result: object, algorithms: int) -> TypeError | None:
    """Return what is wrong with the answer of a worker; None for one tally for each algorithm."""
    if isinstance(result, OtherVersions):
        return None
    if not isinstance(result, list) or not all(isinstance(part, PartTally) for part in result):
        return TypeError(f"a worker answered with {type(result).__name__}, not with tallies")
    if len(result) != algorithms:
        return TypeError(f"a worker answered with {len(result)} tallies for {algorithms}")
    return None


class _Sweep:
    """Tasks that are submitted, and results that wait for those of earlier rows."""

    def __init__(
        self,
        cluster: SweepCluster,
        work: bytes,
        *,
        rows: int,
        task_rows: int,
        worker_wait_s: float,
        tasks_per_thread: int,
        algorithms: int,
    ) -> None:
        self._cluster = cluster
        self._algorithms = algorithms
        self._work = work
        self._rows = rows
        self._task_rows = task_rows
        self._worker_wait_s = worker_wait_s
        self._tasks_per_thread = tasks_per_thread
        self._versions = find_versions()
        # NB: filled by a thread of Dask.
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending: dict[Any, int] = {}
        self._results: dict[int, list[PartTally]] = {}
        self._losses: dict[int, int] = {}
        self._threads = 0
        self._worker_seen = time.monotonic()

    def await_workers(self) -> None:
        """Return when there is a worker; raises SweepError when none comes in time."""
        while not self._count_threads():
            time.sleep(min(0.1, self._worker_wait_s))

    def results(self) -> Iterator[tuple[list[PartTally], int]]:
        """Yield the results in the order of rows, each with the number of rows done so far."""
        starts = iter(range(0, self._rows, self._task_rows))
        wanted = 0
        while wanted < self._rows:
            ahead = max(2, self._tasks_per_thread * self._threads)
            while len(self._pending) + len(self._results) < ahead:
                start = next(starts, None)
                if start is None:
                    break
                self._submit(start)
            self._receive()
            while wanted in self._results:
                parts = self._results.pop(wanted)
                wanted += self._task_rows
                yield parts, min(wanted, self._rows)

    def cancel(self) -> None:
        """Cancel the tasks that are left; a scheduler that has gone has none."""
        self._cluster.cancel(list(self._pending))

    def _submit(self, start: int) -> None:
        stop = min(start + self._task_rows, self._rows)
        future = self._cluster.client.submit(
            tally_task,
            self._work,
            self._versions,
            start,
            stop,
            # NB: otherwise Dask would answer an equal task of another client with its result.
            pure=False,
            # Rows that others wait for come first.
            priority=-start // self._task_rows,
        )
        self._pending[future] = start
        future.add_done_callback(self._ended.put)

    def _receive(self) -> None:
        """Wait for a task to end, and keep its result or submit it again."""
        try:
            future = self._ended.get(timeout=_TICK_S)
        except queue.Empty:
            self._count_threads()
            return
        start = self._pending.pop(future, None)
        if start is None:
            return
        result = self._fetch(future)
        if isinstance(result, OtherVersions):
            raise refuse_versions(f"a worker has {result.differences}")
        if not isinstance(result, BaseException):
            self._results[start] = result
            return
        self._losses[start] = self._losses.get(start, 0) + 1
        if self._losses[start] >= MOST_LOSSES:
            raise SweepError(
                SweepFault.FAILED,
                f"inputs {start:,} to {start + self._task_rows - 1:,} failed {MOST_LOSSES} times: "
                f"{in_words(result)}",
                "look into the logs of the workers",
            )
        self._submit(start)

    def _fetch(self, future: Any) -> list[PartTally] | OtherVersions | BaseException:
        """Return the result or the exception of a task that has ended.

        NB: a result that is lost with its worker is pending again; this waits for it.
        """
        while True:
            if future.status == "cancelled":
                raise ConnectionError("it has dropped the tasks")
            if future.status == "error":
                try:
                    failure: BaseException = future.exception()
                except Exception as error:  # noqa: BLE001 - an error that cannot be decoded is one
                    failure = error
                return failure
            try:
                result: list[PartTally] | OtherVersions = future.result(timeout=_TICK_S)
            except TimeoutError:
                self._count_threads()
            except (OSError, CancelledError):
                if future.status != "error":
                    raise
            except Exception as error:  # noqa: BLE001 - a result that cannot be decoded raises anything
                if future.status != "error":
                    return error
            else:
                return find_answer_error(result, self._algorithms) or result

    def _count_threads(self) -> int:
        """Return the threads of all workers; raises SweepError when there were none for long."""
        self._threads = self._cluster.count_threads()
        now = time.monotonic()
        if self._threads:
            self._worker_seen = now
        elif now - self._worker_seen >= self._worker_wait_s:
            raise SweepError(
                SweepFault.NO_WORKERS,
                f"the scheduler has had no worker for {self._worker_wait_s:g} s",
                "start workers: dask worker ADDRESS, where the wheel of keepclose is installed",
            )
        return self._threads
