"""How long `keepclose up` and `keepclose down` take, and how much memory a cluster has.

Run with `make bench`, as root. Times are those of the commands as people run them, from the start
of the interpreter; `up` returns when every node has reached the demo by a routed connection. Memory
is the sum of what all processes of a cluster have; shared pages are divided among those who share.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
MANIFEST = Path(__file__).parent.parent / "src/keepclose/lab/cluster/demo.yaml"


def run(directory: Path, *arguments: str) -> float:
    """Run a command for a cluster in a directory and return how many seconds it took."""
    env = {**os.environ, "KEEPCLOSE_DATA_DIR": str(directory)}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "keepclose", *arguments], check=True, env=env, capture_output=True
    )
    return time.perf_counter() - began


def memory_mib(directory: Path) -> float:
    """Return what all processes of the cluster have together."""
    mark = f"KEEPCLOSE_DATA_DIR={directory}".encode()
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                lines = (process / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 1024


def show(what: str, value: float, unit: str, limit: float) -> bool:
    """Print a figure beside its limit and return whether that is kept."""
    kept = value <= limit
    ratio = f"{value / limit:.2f} of the limit of {limit:g} {unit}"
    print(f"{what:<46} {value:7.1f} {unit:<4} {ratio} {'ok' if kept else 'MISSED'}")
    return kept


def measure(title: str, options: list[str], *, rounds: int) -> tuple[float, float, float]:
    """Return the least seconds up, the most seconds down, and the most memory."""
    ups, downs, sizes = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            ups.append(run(directory, "up", "--detach", "--port", "0", *options))
            try:
                sizes.append(memory_mib(directory))
            finally:
                downs.append(run(directory, "down"))
    print(f"{title}: up {', '.join(f'{one:.1f}' for one in ups)} s")
    return min(ups), max(downs), max(sizes)


def main() -> int:
    """Measure a small and a large cluster; return how many limits were missed."""
    if os.geteuid() != 0:
        print("bench/cluster.py needs root")
        return 1
    up, down, _ = measure("3 zones x 2 nodes", [], rounds=ROUNDS)
    kept = [
        show("3 zones x 2 nodes, 5 pods: up", up, "s", 5),
        show("3 zones x 2 nodes, 5 pods: down", down, "s", 3),
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as many:
        many.write(MANIFEST.read_text().replace("replicas: 5", "replicas: 300"))
        many.flush()
        options = ["--zones", "3", "--nodes-per-zone", "10", "--manifest", many.name]
        up, down, size = measure("3 zones x 10 nodes, 300 pods", options, rounds=1)
    kept += [
        show("3 zones x 10 nodes, 300 pods: up", up, "s", 30),
        show("3 zones x 10 nodes, 300 pods: down", down, "s", 3),
        show("3 zones x 10 nodes, 300 pods: memory", size, "MiB", 2048),
    ]
    return kept.count(False)


if __name__ == "__main__":
    sys.exit(main())
