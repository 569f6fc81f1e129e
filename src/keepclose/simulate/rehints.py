"""How many endpoints a single change re-hints: one pod more or less, on three zones.

Counts alone are compared, so every allocator is assumed to make the fewest changes that its
allocations allow. Hints that come or go altogether, because an allocator gives up for a while, are
not counted against it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from keepclose.routing.allocation.balanced import OVERLOAD_BOUND, allocate_balanced_from
from keepclose.routing.allocation.hysteresis import count_changes
from keepclose.routing.allocation.kube_auto import allocate_kube_auto
from keepclose.routing.allocation.local import allocate_local
from keepclose.routing.allocation.zone_sizes import ALLOCATED

AllocationStep = Callable[[Sequence[float], Sequence[int], Sequence[int]], list[int] | None]


def step_balanced(
    shares: Sequence[float], endpoints: Sequence[int], written: Sequence[int]
) -> list[int] | None:
    """Return what balanced makes of what is written."""
    matrix, ints, floats = [0] * 9, [0] * 64, [0.0] * 64
    code = allocate_balanced_from(
        3, shares, endpoints, OVERLOAD_BOUND, 0, written, matrix, ints, floats
    )
    return matrix if code == ALLOCATED else None


def step_auto(
    shares: Sequence[float], endpoints: Sequence[int], _: Sequence[int]
) -> list[int] | None:
    """Return what the topology mode Auto allocates."""
    matrix = [0] * 9
    code = allocate_kube_auto(3, shares, endpoints, 0.2, 0, matrix, [0] * 64, [0.0] * 64)
    return matrix if code == 1 else None


def step_local(
    shares: Sequence[float], endpoints: Sequence[int], _: Sequence[int]
) -> list[int] | None:
    """Return what the allocator local of KEP-2004 allocates."""
    matrix = [0] * 9
    code = allocate_local(3, shares, endpoints, 0.5, 3, matrix, [0] * 64, [0.0] * 64)
    return matrix if code == 1 else None


STEPS: Final[dict[str, AllocationStep]] = {
    "balanced": step_balanced,
    "kube-auto": step_auto,
    "local": step_local,
}


def count_rehints(step: AllocationStep, changes: int, seed: int) -> float:
    """Return how many existing endpoints are re-hinted per added or removed endpoint.

    Each run of 20 changes starts with other zones and 6 to 60 endpoints in them.
    """
    rng = random.Random(seed)  # noqa: S311 (repeatable, not secret)
    rehints = 0
    for _ in range(changes // 20):
        shares = _divide([rng.randint(1, 10) for _ in range(3)])
        endpoints = [0, 0, 0]
        for _ in range(rng.randint(6, 60)):
            endpoints[rng.randrange(3)] += 1
        written = step(shares, endpoints, [0] * 9)
        for _ in range(20):
            total = sum(endpoints)
            adding = total == 6 or (total < 60 and rng.random() < 0.5)
            zone = rng.randrange(3) if adding else rng.choices(range(3), endpoints)[0]
            pick = rng.random()
            if written is not None and not adding:
                number = int(pick * endpoints[zone])
                served = 0
                while number >= written[zone * 3 + served]:
                    number -= written[zone * 3 + served]
                    served += 1
                written[zone * 3 + served] -= 1
            endpoints[zone] += 1 if adding else -1
            after = step(shares, endpoints, written or [0] * 9)
            if written is not None and after is not None:
                rehints += count_changes(3, written, after)
            written = after
    return rehints / changes


def _divide(nodes: Sequence[int]) -> list[float]:
    return [count / sum(nodes) for count in nodes]
