"""The task of a sweep: a range of rows, tallied on a machine of a Dask cluster.

A task carries the generator of a data set and two row numbers, never rows. Its result is exact and
depends on nothing but the task, so any worker may run it, again if need be. A worker whose code or
libraries differ from those of the client could compute other digits; it computes nothing and says
what differs.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.datasets import DataSet
from keepclose.simulate.engine import RangeTally
from keepclose.simulate.summary import PartTally, Weights

_LIBRARIES: Final = ("numpy", "numba")


class SweepWork(msgspec.Struct, frozen=True):
    """What all tasks of a sweep share."""

    dataset: DataSet
    algorithms: tuple[Algorithm, ...]
    weights: Weights
    compiled: bool | None = None


class OtherVersions(msgspec.Struct, frozen=True):
    """The answer of a worker that is not equal to the client."""

    differences: str


def encode_work(work: SweepWork) -> bytes:
    """Return the work as bytes, which the scheduler passes on without decoding."""
    return pickle.dumps(work)


def tally_task(
    work: bytes, versions: dict[str, str], start: int, stop: int
) -> list[PartTally] | OtherVersions:
    """Return the tally of the rows from `start` up to `stop` for each algorithm.

    `versions` are those of the client. NB: only equal code is sure to decode the work.
    """
    differences = describe_differences(versions, find_versions())
    if differences:
        return OtherVersions(differences)
    return _prepare(work).run(start, stop)


@lru_cache(maxsize=1)
def find_versions() -> dict[str, str]:
    """Return what the digits of a result depend on: the code of keepclose, Python and libraries."""
    versions = {
        "python": ".".join(map(str, sys.version_info[:2])),
        "keepclose": f"{_find_version('keepclose')} ({_digest_code()})",
    }
    return versions | {name: _find_version(name) for name in _LIBRARIES}


def describe_differences(want: dict[str, str], got: dict[str, str]) -> str:
    """Return the versions that differ, "" if none does."""
    return ", ".join(
        f"{name} {got.get(name) or 'missing'} instead of {version_ or 'none'}"
        for name, version_ in want.items()
        if got.get(name) != version_
    )


@lru_cache(maxsize=2)
def _prepare(encoded: bytes) -> RangeTally:
    """Return the work, ready to run; tasks of one process share it."""
    work: SweepWork = pickle.loads(encoded)  # noqa: S301 - a Dask worker runs what its client sends
    return RangeTally(work.dataset, work.algorithms, weights=work.weights, compiled=work.compiled)


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _digest_code() -> str:
    """Return a digest of all source files of keepclose."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
