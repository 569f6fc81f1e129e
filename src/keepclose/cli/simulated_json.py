"""The answers of `keepclose simulate` as plain data, for programs.

Scores go up to 100, deviations are in percent, and what was left out is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keepclose.cli.simulation import Choice
from keepclose.simulate.churn import Churn
from keepclose.simulate.comparison import Comparison, Example
from keepclose.simulate.datasets import DataSet
from keepclose.simulate.scenarios import Scenario
from keepclose.simulate.summary import Summary, Worst

NAMED_INPUTS_JSON: Final = 20
FIGURES: Final = (
    "total",
    "in_zone",
    "deviation",
    "slice",
    "max_deviation_percent",
    "mean_deviation_percent",
    "sd_of_deviation",
)


def simulated_document(
    choices: Sequence[Choice], summaries: Sequence[Summary], dataset: DataSet, seconds: float
) -> dict[str, Any]:
    """Return the answer for one run; algorithms without valid inputs have no figures."""
    return {
        "inputs": dataset.rows,
        "seconds": round(seconds, 3),
        "algorithms": [
            _algorithm(choice, summary, dataset)
            for choice, summary in zip(choices, summaries, strict=True)
        ],
    }


def compared_document(comparison: Comparison) -> dict[str, Any]:
    """Return the answer for two algorithms; differences are first minus second."""
    return {
        "first": comparison.first,
        "second": comparison.second,
        "inputs": comparison.rows,
        "better": comparison.better,
        "equal": comparison.equal,
        "worse": comparison.worse,
        "only_first_valid": comparison.only_first,
        "only_second_valid": comparison.only_second,
        "neither_valid": comparison.neither,
        "mean_difference": dict(zip(FIGURES, comparison.differences, strict=True)),
        "by_endpoints_per_zone": [
            {
                "from": one.above,
                "below": one.below,
                "inputs": one.rows,
                "better": one.better,
                "equal": one.equal,
                "worse": one.worse,
                "mean_difference": one.difference,
            }
            for one in comparison.sizes
        ],
        "best": [_example(one, comparison.zones) for one in comparison.best],
        "worst": [_example(one, comparison.zones) for one in comparison.worst],
    }


def churn_document(
    results: Sequence[tuple[Scenario, Sequence[Churn]]], seed: int
) -> dict[str, Any]:
    """Return what the mechanisms cost in each scenario; the start is no step."""
    return {
        "seed": seed,
        "scenarios": [
            {
                "name": scenario.name,
                "about": scenario.about,
                "nodes": scenario.zones,
                "endpoints": scenario.endpoints,
                "steps": len(churns[0].changes) if churns else 0,
                "mechanisms": [_churn(one) for one in churns],
            }
            for scenario, churns in results
        ],
    }


def _algorithm(choice: Choice, summary: Summary, dataset: DataSet) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": choice.name,
        "variant": choice.variant,
        "slice_model": "hints" if choice.algorithm.hints else "kep",
        "overload_threshold": choice.algorithm.threshold
        if "threshold" in choice.algorithm.parameters
        else None,
        "starting_threshold": choice.algorithm.start
        if "start" in choice.algorithm.parameters
        else None,
        "valid": summary.valid,
        "invalid": summary.invalid,
        "undivided": summary.undivided,
    }
    figures = summary.figures
    for name, column in (
        ("total", figures and figures.total),
        ("in_zone", figures and figures.in_zone),
        ("deviation", figures and figures.deviation),
        ("slice", figures and figures.slices),
    ):
        document[f"mean_{name}"] = column and column.mean
        document[f"max_{name}"] = column and column.highest
        document[f"min_{name}"] = column and column.lowest
    document |= {
        "max_deviation_percent": figures and figures.max_deviation.highest,
        "mean_max_deviation_percent": figures and figures.max_deviation.mean,
        "mean_mean_deviation_percent": figures and figures.mean_deviation.mean,
        "mean_sd_of_deviation": figures and figures.spread.mean,
        "mean_true_sd_of_deviation": figures and figures.true_spread.mean,
        "worst_overload": _worst(summary.worst_deviation, dataset),
        "lowest_total": _worst(summary.worst_total, dataset),
    }
    return document


def _worst(worst: Worst | None, dataset: DataSet) -> dict[str, Any] | None:
    if worst is None:
        return None
    return {
        "value": worst.value,
        "count": worst.count,
        "inputs": [dataset.label(row) for row in worst.rows[:NAMED_INPUTS_JSON]],
    }


def _example(one: Example, zones: Sequence[str]) -> dict[str, Any]:
    return {
        "input": one.label,
        "row": one.row,
        "zones": [
            {"name": zone, "nodes": nodes, "endpoints": endpoints}
            for zone, nodes, endpoints in zip(zones, one.nodes, one.endpoints, strict=True)
        ],
        "difference": one.difference,
        "first": dict(zip(FIGURES, one.first, strict=True)),
        "second": dict(zip(FIGURES, one.second, strict=True)),
    }


def _churn(one: Churn) -> dict[str, Any]:
    kinds = dict.fromkeys(step.event for step in one.changes)
    return {
        "name": one.mechanism,
        "rehinted": one.rehinted,
        "slices_written": one.written,
        "random_share": one.random_share,
        "mean_in_zone": 100 * one.in_zone,
        "mean_overload_percent": 100 * one.mean_overload,
        "max_overload_percent": 100 * one.worst_overload,
        "events": [
            {
                "event": kind.value,
                "steps": len(steps),
                "rehinted": sum(step.rehinted for step in steps),
                "slices_written": sum(step.written for step in steps),
                "random_steps": sum(step.is_random for step in steps),
            }
            for kind in kinds
            for steps in [[step for step in one.changes if step.event is kind]]
        ],
    }
