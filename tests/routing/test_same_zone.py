"""The allocator "same-zone"."""

from __future__ import annotations

import pytest

from keepclose.simulate.algorithms import ALLOCATED, RANDOM, allocate_same_zone


@pytest.mark.parametrize(
    ("endpoints", "want_code", "want_matrix"),
    [
        pytest.param([3, 0, 5], ALLOCATED, [3, 0, 0, 0, 0, 0, 0, 0, 5], id="each serves its zone"),
        pytest.param([0, 1], ALLOCATED, [0, 0, 0, 1], id="one endpoint is enough"),
        pytest.param([0, 0], RANDOM, [0, 0, 0, 0], id="no endpoints"),
        pytest.param([], RANDOM, [], id="no zones"),
    ],
)
def test_endpoints_serve_their_own_zone(
    endpoints: list[int], want_code: int, want_matrix: list[int]
) -> None:
    """Endpoints serve clients of the zone they are in, whatever the shares."""
    zones = len(endpoints)
    matrix = [-1] * (zones * zones)
    code = allocate_same_zone(zones, [0.0] * zones, endpoints, 0.5, 3.0, matrix, [], [])
    assert code == want_code
    assert matrix == want_matrix
