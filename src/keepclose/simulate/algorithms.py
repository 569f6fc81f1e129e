"""The algorithms that can be simulated, by their public names.

Seven are those of the simulator of KEP-2004, with its parameters. The others are what Kubernetes
does with a Service that prefers its own zone (KEP-4444) or asks for automatic hints, and the
balanced allocation, once with hints and once for a proxy that honours weights. This module also
says which loop runs which allocator, and whether a cluster can run it and with which proxy; the
allocators themselves are those of the controller.

"same-zone" is defined here: every endpoint serves the clients of its own zone only. It weighs
nothing, so a zone may be overloaded without limit. No endpoint serves a zone without endpoints;
what its clients do is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from keepclose.routing.allocation.balanced import OVERLOAD_BOUND
from keepclose.routing.allocation.hint_choice import allocate_balanced
from keepclose.routing.allocation.kube_auto import allocate_kube_auto
from keepclose.routing.allocation.local import allocate_local
from keepclose.routing.allocation.local_opt import allocate_local_opt
from keepclose.routing.allocation.local_shared import allocate_local_shared
from keepclose.routing.allocation.local_weighted import allocate_local_weighted
from keepclose.routing.allocation.weighted import weighted_matrix
from keepclose.routing.auto import OVERLOAD_THRESHOLD
from keepclose.simulate import row_loops
from keepclose.simulate.allocators.global_group import (
    allocate_shared_global,
    allocate_shared_multizone,
)

ALLOCATED: Final = 1
RANDOM: Final = 0
Kernel = Callable[..., int]


def allocate_same_zone(  # noqa: PLR0917 - the signature all allocators of this kind share
    zones: int,
    shares: Sequence[float],  # noqa: ARG001
    endpoints: Sequence[int],
    threshold: float,  # noqa: ARG001
    start: float,  # noqa: ARG001
    matrix: MutableSequence[int],
    ints: MutableSequence[int],  # noqa: ARG001
    floats: MutableSequence[float],  # noqa: ARG001
) -> int:
    """Fill the flat matrix (location times zones plus served zone); return ALLOCATED.

    Without any endpoints the matrix is all zeros and RANDOM is returned.
    """
    code = RANDOM
    for cell in range(zones * zones):
        matrix[cell] = 0
    for zone in range(zones):
        matrix[zone * zones + zone] = endpoints[zone]
        if endpoints[zone] > 0:
            code = ALLOCATED
    return code


class UnknownAlgorithmError(ValueError):
    """The name of an algorithm that does not exist."""


class RunsWith(StrEnum):
    """Whether a cluster can run an algorithm today, and with which proxy on its nodes."""

    ANY_PROXY = "any proxy"
    KEEPCLOSE_PROXY = "keepclose proxy"
    SIMULATOR = "simulator only"

    @property
    def mark(self) -> str:
        """The mark behind names in tables and charts; "" where any proxy will do."""
        return {RunsWith.KEEPCLOSE_PROXY: "+", RunsWith.SIMULATOR: "~"}.get(self, "")

    def mark_name(self, name: str) -> str:
        """Return a name with the mark behind it."""
        return f"{name} {self.mark}" if self.mark else name


_RUNS_WITH: Final = {
    RunsWith.ANY_PROXY: ("original", "same-zone", "kube-auto", "balanced"),
    RunsWith.KEEPCLOSE_PROXY: (
        "local",
        "local-shared",
        "local-weighted",
        "local-opt",
        "balanced-weights",
    ),
}
"""Which algorithms a cluster can run; all others are simulated only."""
_BY_WEIGHTS: Final = frozenset({"local-shared", "local-weighted", "local-opt"})


class Algorithm(msgspec.Struct, frozen=True):
    """An algorithm with its parameters; those it does not have are ignored."""

    name: str
    about: str
    loop: Kernel
    bindings: dict[str, Callable[..., Any]] = {}
    threshold: float = 0.5
    """The overload that must not be reached; for "balanced", not exceeded."""
    start: float = 0.0
    """The least number of endpoints per zone for an allocation."""
    hints: bool = False
    """Hints on ordinary slices instead of slices for each zone."""
    parameters: tuple[str, ...] = ()
    """Which of `threshold` and `start` have an effect."""
    runs_with: RunsWith = RunsWith.SIMULATOR
    """Whether a cluster can run it today, and with which proxy."""

    @property
    def has_other_slices(self) -> bool:
        """Whether the score of slices is that of the proposal, and a cluster needs fewer.

        There weights on ordinary slices take the place of slices for each group of zones.
        """
        return self.name in _BY_WEIGHTS and not self.hints


def _groups(name: str, kernel: Kernel, about: str, *parameters: str) -> Algorithm:
    loop = row_loops.run_groups
    return Algorithm(name, about, loop, {"allocate_row": kernel}, parameters=parameters)


def _hints(
    name: str, kernel: Kernel, about: str, *parameters: str, threshold: float = 0.0
) -> Algorithm:
    return Algorithm(
        name,
        about,
        row_loops.run_matrix,
        {"allocate_row": kernel},
        threshold=threshold,
        hints=True,
        parameters=parameters,
    )


_ALGORITHMS = (
    Algorithm("original", "all clients use all endpoints", row_loops.run_random),
    Algorithm(
        "local",
        "each endpoint serves one zone, whole endpoints move until no zone is overloaded",
        row_loops.run_matrix,
        {"allocate_row": allocate_local},
        start=3.0,
        parameters=("threshold", "start"),
    ),
    _groups(
        "local-shared",
        allocate_local_shared,
        "like local, but overloaded zones may share a group",
        "threshold",
    ),
    _groups("local-weighted", allocate_local_weighted, "fractions of endpoints by weights"),
    _groups("local-opt", allocate_local_opt, "whole endpoints, the rest serves all zones"),
    _groups(
        "shared-global", allocate_shared_global, "surplus goes to a global group of low weight"
    ),
    _groups("shared-multizone", allocate_shared_multizone, "surplus serves zones without surplus"),
    _hints("same-zone", allocate_same_zone, "trafficDistribution: PreferSameZone"),
    _hints(
        "kube-auto",
        allocate_kube_auto,
        "the annotation topology-mode: Auto",
        "threshold",
        threshold=OVERLOAD_THRESHOLD,
    ),
    Algorithm(
        "balanced",
        "the best hints under a bound on overload",
        row_loops.run_groups,
        {"allocate_row": allocate_balanced},
        threshold=OVERLOAD_BOUND,
        hints=True,
        parameters=("threshold",),
    ),
    Algorithm(
        "balanced-weights",
        "no overload at all, for proxies that honour weights",
        row_loops.run_flows,
        {"allocate_row": weighted_matrix},
        hints=True,
    ),
)

ALGORITHMS: Final = {algorithm.name: algorithm for algorithm in _ALGORITHMS} | {
    name: msgspec.structs.replace(algorithm, runs_with=runs_with)
    for runs_with, names in _RUNS_WITH.items()
    for algorithm in _ALGORITHMS
    for name in names
    if name == algorithm.name
}
PUBLISHED: Final = tuple(ALGORITHMS)[:7]
"""The seven of the simulator of KEP-2004."""


def find_algorithm(
    name: str, *, threshold: float | None = None, start: float | None = None
) -> Algorithm:
    """Return an algorithm by name, with the parameters that are not None.

    Raises UnknownAlgorithmError when there is none. Parameters it does not have are ignored.
    """
    if name not in ALGORITHMS:
        raise UnknownAlgorithmError(f"no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    algorithm = ALGORITHMS[name]
    return msgspec.structs.replace(
        algorithm,
        threshold=algorithm.threshold if threshold is None else threshold,
        start=algorithm.start if start is None else start,
    )
