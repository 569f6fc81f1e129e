"""Renders runs over demand traces: a table for people within 80 columns, plain data for JSON.

Overload is in percent, the load of the busiest endpoint above the mean. Rates are those of an hour
of simulated time. What the limit does not have, re-hints, writes and oscillation, is "-" or null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from keepclose.cli.render.output import count_things
from keepclose.cli.render.runs_with import explain_marks
from keepclose.cli.render.screen import Line, Screen
from keepclose.cli.render.simulate import figure_table
from keepclose.routing.allocation.balanced import OVERLOAD_BOUND
from keepclose.simulate.demand_runs import DemandRun, RunOptions, SharesFrom
from keepclose.simulate.traces import DemandTrace

RUN_COLUMNS = (
    f"over {OVERLOAD_BOUND:.0%}",
    "in zone",
    "overload",
    "worst",
    "re-hints",
    "writes",
    "returns",
)
_WIDEST = 1000


class TraceResult(msgspec.Struct, frozen=True):
    """The runs of all mechanisms over one trace."""

    trace: DemandTrace
    runs: tuple[DemandRun, ...]


def trace_document(
    results: Sequence[TraceResult], options: RunOptions, seed: int
) -> dict[str, Any]:
    """Return the runs over all traces, with the settings of the controller."""
    demand = options.demand
    return {
        "seed": seed,
        "endpoints": options.endpoints,
        "bound_percent": 100 * OVERLOAD_BOUND,
        "oscillation_window_seconds": options.window_s,
        "demand": {
            "half_life_seconds": demand.half_life_s,
            "dead_band_percent": 100 * demand.dead_band,
            "interval_seconds": demand.interval_s,
        },
        "traces": [
            {
                "name": result.trace.name,
                "about": result.trace.about,
                "zones": result.trace.zones,
                "step_seconds": result.trace.step_s,
                "duration_seconds": result.trace.duration_s,
                "mechanisms": [_run(run) for run in result.runs],
            }
            for result in results
        ],
    }


def print_trace(console: Screen, result: TraceResult, options: RunOptions) -> None:
    """Print what each mechanism did over a trace."""
    trace = result.trace
    console.print(Line(trace.name, style="bold") + Line(f"  {trace.about}"))
    console.print(describe_run(trace, options))
    table = figure_table("mechanism", *RUN_COLUMNS)
    for run in result.runs:
        table.add_row(*run_cells(run))
    # NB: rich would cut the figures of a table that is wider than the terminal.
    table.width = console.measure(table, options=console.options.update_width(_WIDEST)).maximum
    console.print(table, crop=False)


def describe_run(trace: DemandTrace, options: RunOptions) -> str:
    """Return length and size of a run in words."""
    return (
        f"{format_span(trace.duration_s)} in steps of {format_span(trace.step_s)}, "
        f"{count_things(options.endpoints, 'endpoint')} in {count_things(len(trace.zones), 'zone')}"
    )


def run_cells(run: DemandRun) -> list[str]:
    """Return the row of a run: its marked name and the columns of `RUN_COLUMNS`."""
    has_hints = run.mechanism.planned is not None
    return [
        run.mechanism.runs_with.mark_name(run.mechanism.name),
        _format_minutes(run.overload_minutes),
        f"{run.in_zone:.1%}",
        f"{run.mean_overload:.1%}",
        f"{run.worst_overload:.1%}",
        f"{run.per_hour(run.rehinted):.1f}" if has_hints else "-",
        f"{run.per_hour(run.written):.1f}" if has_hints else "-",
        f"{run.per_hour(run.oscillating):.1f}" if has_hints else "-",
    ]


def explain_runs(runs: Sequence[DemandRun], options: RunOptions) -> tuple[str, ...]:
    """Return the legend of the tables, line by line."""
    window = format_span(options.window_s)
    return (
        *_explain_shares(runs),
        "overload: load of the busiest endpoint above the mean, by traffic; worst: peak",
        f"over {OVERLOAD_BOUND:.0%}: time with an overload above the bound of Balanced",
        "re-hints, writes of slices, returns: in an hour",
        f"returns: endpoints that serve zones again which they left at most {window} before",
        explain_marks([run.mechanism.runs_with for run in runs]),
    )


def _explain_shares(runs: Sequence[DemandRun]) -> list[str]:
    by_source: dict[SharesFrom, list[str]] = {}
    for run in runs:
        names = by_source.setdefault(run.mechanism.shares_from, [])
        if run.mechanism.name not in names:
            names.append(run.mechanism.name)
    by_source.pop(SharesFrom.NOTHING, None)
    limits = by_source.pop(SharesFrom.TRAFFIC, [])
    listed = [f"by {source.value} {', '.join(names)}" for source, names in by_source.items()]
    lines = [f"shares: {'; '.join(listed)}"] if listed else []
    return lines + [f"{name}: by the traffic of the moment, as if it were known" for name in limits]


def format_span(seconds: float) -> str:
    """Return a duration in the largest units that it fills, such as 1 h 30 min."""
    parts = []
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        count = int(seconds // size)
        if count:
            parts.append(f"{count} {unit}")
            seconds -= count * size
    if seconds > 0.0 or not parts:
        parts.append(f"{seconds:g} s")
    return " ".join(parts)


def _format_minutes(minutes: float) -> str:
    return f"{minutes:.1f} min" if minutes < 100.0 else f"{minutes:.0f} min"


def _run(run: DemandRun) -> dict[str, Any]:
    has_hints = run.mechanism.planned is not None
    return {
        "name": run.mechanism.name,
        "about": run.mechanism.about,
        "runs_with": run.mechanism.runs_with,
        "shares_by": None
        if run.mechanism.shares_from is SharesFrom.NOTHING
        else run.mechanism.shares_from,
        "overload_minutes": run.overload_minutes,
        "mean_in_zone": 100 * run.in_zone,
        "mean_overload_percent": 100 * run.mean_overload,
        "max_overload_percent": 100 * run.worst_overload,
        "rehinted": run.rehinted if has_hints else None,
        "rehints_per_hour": run.per_hour(run.rehinted) if has_hints else None,
        "slices_written": run.written if has_hints else None,
        "slice_writes_per_hour": run.per_hour(run.written) if has_hints else None,
        "oscillating": run.oscillating if has_hints else None,
        "oscillating_per_hour": run.per_hour(run.oscillating) if has_hints else None,
    }
