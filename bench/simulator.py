"""Speed of the simulator against the Go tool of KEP-2004, each figure beside its limit.

Rates are rows a second from arrays in memory to tallied figures, on two threads, the best of
several runs; the sample is every 39th row of the large data set. Beside the rate by the clock
stands the rate by the time the processors spent. Where other work took more than a fifth of the two
processors away, that one is held against the limit, and the word `busy` says so. At the end the
whole large set is run for the seven published algorithms. `--quick` leaves that out.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from keepclose.simulate.algorithms import ALGORITHMS, PUBLISHED, Algorithm, find_algorithm
from keepclose.simulate.datasets import DataSet, InMemoryRows, open_dataset
from keepclose.simulate.engine import run_simulation

THREADS = 2
SAMPLE = 1_000_000
RUNS = 7

# Measured for the Go tool, pure compute, rows/s: region, algorithm, simulation and slice count in a
# loop over 100,000 of these rows with logs discarded, best of all runs. It uses one goroutine.
GO_RATES = {
    "original": 87_664,
    "local": 33_348,
    "local-shared": 23_160,
    "local-weighted": 36_091,
    "local-opt": 40_933,
    "shared-global": 47_636,
    "shared-multizone": 45_676,
}
RATIOS = {"original": 250, "local": 250}
MIN_RATIO = 100
MIN_RATES = {"balanced": 1e6}

WALL_LIMIT = 90.0
MEMORY_LIMIT = 1024.0
ONLY_SIMULATE = "--only-simulate"


def verdict(*, kept: bool) -> str:
    """Return the word for a limit that was kept or not."""
    return "ok" if kept else "MISSED"


def bench_rate(algorithm: Algorithm, dataset: DataSet) -> bool:
    """Measure the rate of one algorithm; return whether its limit was kept."""
    wall = spent = float("inf")
    for _ in range(RUNS):
        clock, processor = time.perf_counter(), time.process_time()
        run_simulation(dataset, [algorithm], threads=THREADS)
        wall = min(wall, time.perf_counter() - clock)
        spent = min(spent, time.process_time() - processor)
    rate = dataset.rows / wall
    name = algorithm.name
    limit = MIN_RATES.get(name, 0.0)
    against = ""
    if name in GO_RATES:
        limit = GO_RATES[name] * RATIOS.get(name, MIN_RATIO)
        against = f"{rate / GO_RATES[name]:6.0f}x Go"
    by_processor = THREADS * dataset.rows / spent
    busy = rate < 0.8 * by_processor
    kept = (by_processor if busy else rate) >= limit
    print(
        f"{name:<18}{rate / 1e6:8.2f} M rows/s {against:<10} limit {limit / 1e6:6.2f} M "
        f"{verdict(kept=kept):<7} by processor time {by_processor / 1e6:8.2f} M "
        f"{'busy' if busy else ''}"
    )
    return kept


def bench_whole_set() -> bool:
    """Measure all published algorithms over the large data set; return whether limits were kept."""
    algorithms = [find_algorithm(name) for name in PUBLISHED]
    start = time.perf_counter()
    dataset = open_dataset("kep2004-large")
    run_simulation(dataset, algorithms, threads=THREADS)
    wall = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"kep2004-large, {dataset.rows:,} rows, all seven: {wall:.1f} s (limit {WALL_LIMIT:.0f} s) "
        f"{verdict(kept=wall <= WALL_LIMIT)}, peak memory {peak:.0f} MiB (limit "
        f"{MEMORY_LIMIT:.0f} MiB) {verdict(kept=peak <= MEMORY_LIMIT)}"
    )
    return wall <= WALL_LIMIT and peak <= MEMORY_LIMIT


def bench_start(rows: int, limit: float) -> bool:
    """Measure a whole process for a few rows, compiled code ready; return whether it was quick."""
    start = time.perf_counter()
    subprocess.run([sys.executable, __file__, ONLY_SIMULATE, str(rows)], check=True)
    wall = time.perf_counter() - start
    print(f"process, {rows:,} rows, all seven: {wall:.2f} s (limit {limit:.0f} s)", end=" ")
    print(verdict(kept=wall <= limit))
    return wall <= limit


def simulate_once(rows: int) -> None:
    """Run the published algorithms, in a process of its own."""
    run_simulation(open_dataset("random", rows=rows), [find_algorithm(name) for name in PUBLISHED])


def main() -> int:
    """Print all figures; return 1 when a limit was missed."""
    if sys.argv[1:2] == [ONLY_SIMULATE]:
        simulate_once(int(sys.argv[2]))
        return 0
    large = open_dataset("kep2004-large")
    step = large.rows / SAMPLE
    block = large.pick([int(row * step) for row in range(SAMPLE)])
    sample = InMemoryRows(large.zones, block.nodes, block.endpoints)
    start = time.perf_counter()
    run_simulation(open_dataset("random", rows=100), list(ALGORITHMS.values()), compiled=True)
    print(f"code made ready or loaded in {time.perf_counter() - start:.1f} s")
    results = [bench_rate(algorithm, sample) for algorithm in ALGORITHMS.values()]
    results += [bench_start(1000, 3.0), bench_start(50_000, 6.0)]
    if "--quick" not in sys.argv:
        results.append(bench_whole_set())
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
