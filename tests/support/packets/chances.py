"""How likely counts are, if each connection falls to an endpoint by its weight alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

UNBELIEVABLE = 1e-11
"""A chance so small that all the tests of all days will not meet it."""


def chance_of(counts: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """Return how likely counts are that lie at least so far from the weights (chi-square).

    There must be an odd number of weights, since then the answer is a finite sum. Whoever is
    counted and has no weight makes it 0.
    """
    if set(counts) - set(weights):
        return 0.0
    freedom = len(weights) - 1
    assert freedom > 0
    assert freedom % 2 == 0
    total, whole = sum(counts.values()), sum(weights.values())
    distance = 0.0
    for name, weight in weights.items():
        expected = total * weight / whole
        distance += (counts.get(name, 0) - expected) ** 2 / expected
    half = distance / 2
    return math.exp(-half) * sum(half**i / math.factorial(i) for i in range(freedom // 2))
