"""The controller's functions and the simulator's compiled ones are the same."""

from __future__ import annotations

import pytest

from keepclose.routing.allocation.hint_choice import BALANCED_SCRATCH, allocate_balanced
from keepclose.routing.allocation.kube_auto import allocate_kube_auto
from keepclose.routing.allocation.local import allocate_local
from keepclose.simulate.algorithms import allocate_same_zone
from keepclose.simulate.compiling import compile_function

np = pytest.importorskip("numpy")
pytest.importorskip("numba")

ROWS = 100_000
LIMITS = {
    "local": (allocate_local, 0.5, 3.0),
    "kube-auto": (allocate_kube_auto, 0.2, 0.0),
    "same-zone": (allocate_same_zone, 0.0, 0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_controller_and_simulator_give_identical_matrices(name: str) -> None:
    """On a hundred thousand random inputs of two to six zones, every cell agrees."""
    plain, limit, start = LIMITS[name]
    compiled = compile_function(plain)
    rng = np.random.Generator(np.random.Philox(7))
    for _ in range(ROWS):
        zones = int(rng.integers(2, 7))
        nodes = rng.integers(0, 12, zones)
        nodes[0] += nodes.sum() == 0
        endpoints = rng.integers(0, int(rng.choice([3, 12, 60])), zones)
        shares = nodes / nodes.sum()
        matrix = np.zeros(zones * zones, dtype=np.int64)
        ints = np.zeros(16 * zones + 16, dtype=np.int64)
        floats = np.zeros(16 * zones + 16)
        code = compiled(zones, shares, endpoints, limit, start, matrix, ints, floats)
        own = [0] * (zones * zones)
        scratch = [0] * (16 * zones + 16)
        room = [0.0] * (16 * zones + 16)
        want = plain(zones, shares.tolist(), endpoints.tolist(), limit, start, own, scratch, room)
        assert (code, matrix.tolist()) == (want, own)


@pytest.mark.slow
def test_controller_and_simulator_give_identical_groups() -> None:
    """On ten thousand random inputs of one to six zones, all members and weights agree."""
    compiled = compile_function(allocate_balanced)
    rng = np.random.Generator(np.random.Philox(7))
    for _ in range(ROWS // 10):
        zones = int(rng.integers(1, 7))
        nodes = rng.integers(0, 12, zones)
        nodes[0] += nodes.sum() == 0
        endpoints = rng.integers(0, int(rng.choice([3, 5, 12, 60])), zones)
        shares = nodes / nodes.sum()
        room = BALANCED_SCRATCH * (zones + 1)
        members, weights = np.zeros(99, dtype=np.int64), np.zeros(99)
        ints, floats = np.zeros(room, dtype=np.int64), np.zeros(room)
        groups = compiled(zones, shares, endpoints, 0.2, 0.0, members, weights, ints, floats)
        own, parts = [0] * 99, [0.0] * 99
        want = allocate_balanced(
            zones,
            shares.tolist(),
            endpoints.tolist(),
            0.2,
            0.0,
            own,
            parts,
            [0] * room,
            [0.0] * room,
        )
        assert (groups, members.tolist(), weights.tolist()) == (want, own, parts)
