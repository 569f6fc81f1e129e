"""Renders the answers of `keepclose simulate churn` and `few`: tables for people, data for JSON.

Overload is in percent, the load of the busiest endpoint above the mean. A mechanism that not every
cluster can run is marked, and the legend says what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from keepclose.cli.render.runs_with import explain_marks
from keepclose.cli.render.screen import Line, Screen
from keepclose.cli.render.simulate import figure_table
from keepclose.simulate.algorithms import ALGORITHMS
from keepclose.simulate.churn import Churn
from keepclose.simulate.few_endpoints import NODE_PATTERNS, FewEndpoints
from keepclose.simulate.mechanisms import MECHANISMS, Scenario


def churn_document(
    results: Sequence[tuple[Scenario, Sequence[Churn]]], seed: int
) -> dict[str, Any]:
    """Return the cost of the mechanisms in each scenario; the initial plan is no step."""
    return {
        "seed": seed,
        "scenarios": [
            {
                "name": scenario.name,
                "about": scenario.about,
                "nodes": scenario.zones,
                "endpoints": scenario.endpoints,
                "steps": len(churns[0].changes) if churns else 0,
                "mechanisms": [_churn(churn) for churn in churns],
            }
            for scenario, churns in results
        ],
    }


def print_churn(console: Screen, scenario: Scenario, churns: Sequence[Churn]) -> None:
    """Print the cost of each mechanism in a scenario."""
    zones = ", ".join(f"{zone} {count}" for zone, count in scenario.zones.items())
    console.print(Line(scenario.name, style="bold") + Line(f"  {scenario.about}"))
    steps = len(churns[0].changes) if churns else 0
    console.print(f"{scenario.endpoints} endpoints at the start, nodes: {zones}, {steps} steps")
    table = figure_table(
        "mechanism", "re-hinted", "written", "Random", "in zone", "overload", "worst"
    )
    for churn in churns:
        table.add_row(
            mark_mechanism(churn.mechanism),
            f"{churn.rehinted:,}",
            f"{churn.written:,}",
            f"{churn.random_share:.0%}",
            f"{churn.in_zone:.1%}",
            f"{churn.mean_overload:.1%}",
            f"{churn.worst_overload:.1%}",
        )
    console.print(table)


def explain_churn(churns: Iterable[Churn]) -> tuple[str, ...]:
    """Return the legend of the tables, line by line."""
    kinds = [MECHANISMS[churn.mechanism].runs_with for churn in churns]
    return (
        "overload: load of the busiest endpoint above the mean, on average and at worst",
        explain_marks(kinds),
    )


def mark_mechanism(name: str) -> str:
    """Return the name of a mechanism with the mark of the proxy that it needs."""
    return MECHANISMS[name].runs_with.mark_name(name)


def print_few(console: Screen, rows: Sequence[FewEndpoints]) -> None:
    """Print the mean scores for each number of endpoints."""
    console.print(f"three zones, {len(NODE_PATTERNS)} divisions of traffic, every placement")
    table = figure_table(
        "endpoints",
        "inputs",
        "none",
        "PreferSameZone",
        "Auto",
        "Balanced",
        "best",
        "limit",
        "below",
    )
    for row in rows:
        scores = (row.no_hints, row.same_zone, row.auto, row.balanced, row.best, row.limit)
        table.add_row(
            str(row.endpoints), f"{row.inputs:,}", *map("{:.2f}".format, scores), f"{row.below:,}"
        )
    console.print(table)
    console.print(
        "best: of all hints, without a bound on overload; limit: by weights, not exceeded"
    )
    console.print("below: inputs where Balanced scores less than none, PreferSameZone or Auto")
    limit = ALGORITHMS["balanced-weights"].runs_with
    hints = ALGORITHMS["balanced"].runs_with
    console.print(f"in a cluster: limit: {limit}; Balanced and all others: {hints}")


def _churn(churn: Churn) -> dict[str, Any]:
    kinds = dict.fromkeys(step.event for step in churn.changes)
    return {
        "name": churn.mechanism,
        "runs_with": MECHANISMS[churn.mechanism].runs_with,
        "rehinted": churn.rehinted,
        "slices_written": churn.written,
        "random_share": churn.random_share,
        "mean_in_zone": 100 * churn.in_zone,
        "mean_overload_percent": 100 * churn.mean_overload,
        "max_overload_percent": 100 * churn.worst_overload,
        "events": [
            {
                "event": kind.value,
                "steps": len(steps),
                "rehinted": sum(step.rehinted for step in steps),
                "slices_written": sum(step.written for step in steps),
                "random_steps": sum(step.is_random for step in steps),
            }
            for kind in kinds
            for steps in [[step for step in churn.changes if step.event is kind]]
        ],
    }
