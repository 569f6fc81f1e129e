"""The figures of published algorithms over a sample of the 39,273,145 inputs of KEP-2004."""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest

from keepclose.simulate.algorithms import find_algorithm
from keepclose.simulate.datasets import KEP2004_LARGE, open_dataset
from keepclose.simulate.engine import run_simulation
from keepclose.simulate.summary import SummaryFigures

SAMPLE_ROWS: Final = 5_000


@cache
def figures(algorithm: str) -> SummaryFigures:
    """Return the figures of an algorithm over the sample."""
    pytest.importorskip("numpy")
    dataset = open_dataset(KEP2004_LARGE, rows=SAMPLE_ROWS)
    (summary,) = run_simulation(dataset, [find_algorithm(algorithm)], compiled=False)
    assert summary.figures is not None
    return summary.figures
