"""The figures of published algorithms over a sample of the 39,273,145 inputs of KEP-2004."""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest

from keepclose.simulate.algorithms import find_algorithm
from keepclose.simulate.datasets import KEP2004_LARGE, open_dataset
from keepclose.simulate.engine import simulate
from keepclose.simulate.summary import Figures

SAMPLE_ROWS: Final = 5_000


@cache
def figures(algorithm: str) -> Figures:
    """Return the figures of an algorithm over the sample."""
    pytest.importorskip("numpy")
    dataset = open_dataset(KEP2004_LARGE, rows=SAMPLE_ROWS)
    (summary,) = simulate(dataset, [find_algorithm(algorithm)], compiled=False)
    assert summary.figures is not None
    return summary.figures
