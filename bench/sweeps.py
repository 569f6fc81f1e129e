"""A sweep over two Dask workers on loopback, one of them killed, beside one process.

Runs the seven published algorithms over a sample of kep2004-large (`--inputs N`, default
4,000,000), or with `--dataset NAME` of another set: in one process with one thread and with two,
over two workers with one thread each, and again while one of the workers is killed after half of
the inputs. Prints the wall time of each, and whether all figures are the same. Fails if any digit
differs; times have no limit, because the workers share the cores of this machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from keepclose.simulate.algorithms import PUBLISHED, find_algorithm
from keepclose.simulate.datasets import DATASET_NAMES, open_dataset
from keepclose.simulate.engine import run_simulation
from keepclose.simulate.summary import Summary
from keepclose.simulate.sweep import run_sweep

SCHEDULER = """
import asyncio
from distributed import Scheduler

async def main():
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()

asyncio.run(main())
"""
WORKER = """
import asyncio, sys
from distributed import Worker

async def main():
    async with Worker(
        sys.argv[1], nthreads=1, host="127.0.0.1", dashboard=False, local_directory=sys.argv[2]
    ) as worker:
        print(worker.address, flush=True)
        await worker.finished()

asyncio.run(main())
"""


def start(stack: ExitStack, program: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process that prints its address when it is ready; the stack kills it."""
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def measure(title: str, run: Callable[[], list[Summary]]) -> list[Summary]:
    """Print the wall time of a run, and return its summaries."""
    began = time.perf_counter()
    summaries = run()
    seconds = time.perf_counter() - began
    rows = summaries[0].rows
    print(f"{title:<44}{seconds:8.2f} s  {rows / seconds / 1e6:6.2f} M inputs/s", flush=True)
    return summaries


def main() -> int:
    """Print all wall times; return 1 when any figure differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", choices=DATASET_NAMES, default="kep2004-large")
    parser.add_argument("--inputs", type=int, default=4_000_000)
    chosen = parser.parse_args()
    dataset = open_dataset(chosen.dataset, rows=chosen.inputs)
    algorithms = [find_algorithm(name) for name in PUBLISHED]
    print(f"{dataset.rows:,} inputs of {dataset.name}, {len(algorithms)} algorithms")
    run_simulation(open_dataset("random", rows=100), algorithms, compiled=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, address = start(stack, SCHEDULER)
        workers = [start(stack, WORKER, address, str(folder / name))[0] for name in "ab"]
        run_sweep(open_dataset("random", rows=100_000), algorithms, scheduler=address)

        def kill_after_half(rows: int) -> None:
            if rows >= dataset.rows // 2:
                workers[0].kill()

        results = [
            measure(
                f"one process, {threads} thread{'s' if threads > 1 else ''}",
                lambda threads=threads: run_simulation(dataset, algorithms, threads=threads),  # type: ignore[misc]
            )
            for threads in (1, 2)
        ]
        results += [
            measure(
                "two workers, one thread each",
                lambda: run_sweep(dataset, algorithms, scheduler=address),
            ),
            measure(
                "the same, one killed after half",
                lambda: run_sweep(dataset, algorithms, scheduler=address, progress=kill_after_half),
            ),
        ]
        killed = workers[0].wait()
    same = all(result == results[0] for result in results)
    print(f"a worker was killed: {killed == -9}; all figures the same: {same}")
    return 0 if same and killed == -9 else 1


if __name__ == "__main__":
    sys.exit(main())
