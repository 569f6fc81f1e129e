"""Loops over rows: allocate, evaluate and write the figures in one pass.

Each loop is a plain function with a seam: the name `allocate_row` is a placeholder for the
allocator, which `compiling` binds before a loop runs, compiled or not. A loop writes seven figures
a row, as the reference simulator of KEP-2004 prints them, and the true spread beside them. Rows are
independent, so that a result never depends on how rows are cut into blocks.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.hint_choice import BALANCED_SCRATCH
from keepclose.routing.allocation.weighted import evaluate_weighted
from keepclose.simulate.evaluation import evaluate_groups, evaluate_matrix, score

COLUMNS: Final = 7
"""Score, in-zone, deviation and slice score, largest and mean deviation in %, spread."""
TOTAL: Final = 0
IN_ZONE_COLUMN: Final = 1
DEVIATION: Final = 2
_SLICES: Final = 3
MAX_DEVIATION_COLUMN: Final = 4
_MEAN_DEVIATION: Final = 5
_SPREAD: Final = 6
SCRATCH: Final = BALANCED_SCRATCH
"""Allocators get this many scratch numbers for each zone, and as many again."""


def allocate_row(*arguments: object) -> int:
    """Raise until `compiling` binds an allocator to this name."""
    raise NotImplementedError(arguments)


def run_random(  # noqa: PLR0917 - all loops share their parameters, and compiled code their order
    rows: int,
    zones: int,
    nodes: Sequence[int],
    endpoints: Sequence[int],
    threshold: float,  # noqa: ARG001
    start: float,  # noqa: ARG001
    hints: int,  # noqa: ARG001
    weights: Sequence[float],
    cells: MutableSequence[int],
    parts: MutableSequence[float],
    ints: MutableSequence[int],  # noqa: ARG001
    floats: MutableSequence[float],  # noqa: ARG001
    shares: MutableSequence[float],
    counts: MutableSequence[int],
    out: MutableSequence[float],
    figures: MutableSequence[float],
    spreads: MutableSequence[float],
    valid: MutableSequence[int],
) -> int:
    """Let all clients use all endpoints; return the number of undivided rows: all."""
    for row in range(rows):
        read_row(row, zones, nodes, endpoints, shares, counts)
        valid[row] = evaluate_groups(zones, shares, counts, 0, cells, parts, out)
        write_row(row, valid[row], out, weights, figures, spreads)
    return rows


def run_groups(  # noqa: PLR0917 - all loops share their parameters, and compiled code their order
    rows: int,
    zones: int,
    nodes: Sequence[int],
    endpoints: Sequence[int],
    threshold: float,
    start: float,
    hints: int,
    weights: Sequence[float],
    cells: MutableSequence[int],
    parts: MutableSequence[float],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
    shares: MutableSequence[float],
    counts: MutableSequence[int],
    out: MutableSequence[float],
    figures: MutableSequence[float],
    spreads: MutableSequence[float],
    valid: MutableSequence[int],
) -> int:
    """Run an allocator that forms groups with weights; return the number of undivided rows.

    With `hints` 1 a group is the endpoints with the same hints, and needs no slices of its own.
    """
    undivided = 0
    for row in range(rows):
        read_row(row, zones, nodes, endpoints, shares, counts)
        groups = allocate_row(zones, shares, counts, threshold, start, cells, parts, ints, floats)
        if groups == 0:
            undivided += 1
        valid[row] = evaluate_groups(zones, shares, counts, groups, cells, parts, out)
        if hints != 0:
            out[5] = out[6]
        write_row(row, valid[row], out, weights, figures, spreads)
    return undivided


def run_matrix(  # noqa: PLR0917 - all loops share their parameters, and compiled code their order
    rows: int,
    zones: int,
    nodes: Sequence[int],
    endpoints: Sequence[int],
    threshold: float,
    start: float,
    hints: int,
    weights: Sequence[float],
    cells: MutableSequence[int],
    parts: MutableSequence[float],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
    shares: MutableSequence[float],
    counts: MutableSequence[int],
    out: MutableSequence[float],
    figures: MutableSequence[float],
    spreads: MutableSequence[float],
    valid: MutableSequence[int],
) -> int:
    """Run an allocator whose endpoints serve one zone each; return the number of undivided rows."""
    undivided = 0
    for row in range(rows):
        read_row(row, zones, nodes, endpoints, shares, counts)
        code = allocate_row(zones, shares, counts, threshold, start, cells, ints, floats)
        if code > 0:
            valid[row] = evaluate_matrix(zones, shares, counts, cells, hints, out)
        else:
            undivided += 1
            valid[row] = evaluate_groups(zones, shares, counts, 0, cells, parts, out)
        write_row(row, valid[row], out, weights, figures, spreads)
    return undivided


def run_flows(  # noqa: PLR0917 - all loops share their parameters, and compiled code their order
    rows: int,
    zones: int,
    nodes: Sequence[int],
    endpoints: Sequence[int],
    threshold: float,  # noqa: ARG001
    start: float,  # noqa: ARG001
    hints: int,  # noqa: ARG001
    weights: Sequence[float],
    cells: MutableSequence[int],  # noqa: ARG001
    parts: MutableSequence[float],
    ints: MutableSequence[int],  # noqa: ARG001
    floats: MutableSequence[float],  # noqa: ARG001
    shares: MutableSequence[float],
    counts: MutableSequence[int],
    out: MutableSequence[float],
    figures: MutableSequence[float],
    spreads: MutableSequence[float],
    valid: MutableSequence[int],
) -> int:
    """Run an allocator that splits endpoints; return the number of undivided rows."""
    undivided = 0
    for row in range(rows):
        read_row(row, zones, nodes, endpoints, shares, counts)
        if allocate_row(zones, shares, counts, parts) == 0:
            undivided += 1
        valid[row] = evaluate_weighted(zones, shares, counts, parts, out)
        write_row(row, valid[row], out, weights, figures, spreads)
    return undivided


def read_row(  # noqa: PLR0917 - compiled code takes positions only
    row: int,
    zones: int,
    nodes: Sequence[int],
    endpoints: Sequence[int],
    shares: MutableSequence[float],
    counts: MutableSequence[int],
) -> None:
    """Copy a row's endpoints and compute each zone's share of the nodes; 0 without nodes."""
    first = row * zones
    total = 0
    for zone in range(zones):
        total += nodes[first + zone]
        counts[zone] = endpoints[first + zone]
    for zone in range(zones):
        shares[zone] = nodes[first + zone] / total if total > 0 else 0.0


def write_row(  # noqa: PLR0917 - compiled code takes positions only
    row: int,
    valid: int,
    out: Sequence[float],
    weights: Sequence[float],
    figures: MutableSequence[float],
    spreads: MutableSequence[float],
) -> None:
    """Write the figures of a row as they are printed; zeros for a row that is not valid."""
    first = row * COLUMNS
    spreads[row] = 0.0
    for column in range(COLUMNS):
        figures[first + column] = 0.0
    if valid > 0:
        figures[first + TOTAL] = score(
            out[0], out[1], out[2], out[5], out[6], weights[0], weights[1], weights[2], weights[3]
        )
        figures[first + IN_ZONE_COLUMN] = 100.0 * out[0]
        figures[first + DEVIATION] = 0.5 * (100.0 - 100.0 * out[1]) + 0.5 * (100.0 - 100.0 * out[2])
        figures[first + _SLICES] = 100.0 * out[6] / out[5] if out[5] > 0.0 else 0.0
        figures[first + MAX_DEVIATION_COLUMN] = 100.0 * out[1]
        figures[first + _MEAN_DEVIATION] = 100.0 * out[2]
        figures[first + _SPREAD] = out[3]
        spreads[row] = out[4]
