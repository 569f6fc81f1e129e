"""Renders runs over demand traces as one self-contained HTML page.

For each trace: the demand of the zones, the share of the traffic that stays in its zone and the
load of the busiest endpoint over time, by mechanism, and the table of the terminal. Long runs are
drawn with fewer points: means of demand and shares, and the highest overload, so that no peak gets
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from statistics import fmean
from typing import Final

from keepclose import __version__
from keepclose.cli.render.charts import draw_lines
from keepclose.cli.render.demand_runs import (
    RUN_COLUMNS,
    TraceResult,
    describe_run,
    explain_runs,
    format_span,
    run_cells,
)
from keepclose.cli.render.page import html_page, html_section, html_table
from keepclose.routing.allocation.balanced import OVERLOAD_BOUND
from keepclose.simulate.demand_runs import DemandRun, RunOptions, RunStep

_MOST_POINTS: Final = 240


def render_trace_report(
    results: Sequence[TraceResult], options: RunOptions, *, command: str
) -> str:
    """Return the whole page."""
    demand = options.demand
    settings = (
        f"half-life {format_span(demand.half_life_s)}, dead band {demand.dead_band:.1%}, "
        f"least interval {format_span(demand.interval_s)}"
    )
    sections = [
        "<h1>Mechanisms under changing demand</h1>",
        f'<p class="dim">keepclose {__version__} simulate churn; measured demand: {settings}</p>',
        f"<p><code>{escape(command)}</code></p>",
        *(_trace_section(result, options) for result in results),
    ]
    return html_page("keepclose simulate churn", "".join(sections))


def _trace_section(result: TraceResult, options: RunOptions) -> str:
    trace, runs = result.trace, result.runs
    hours = trace.duration_s > 4 * 3600
    span = trace.duration_s / (3600 if hours else 60)
    unit = " h" if hours else " min"

    def draw(
        title: str, series: Sequence[tuple[str, Sequence[float]]], mark: float | None = None
    ) -> str:
        return f"<p>{escape(title)}</p>" + draw_lines(
            series, title=title, span=span, x_unit=unit, y_unit=" %", mark=mark
        )

    demand = [
        (zone, _thin([100 * step.shares.get(zone, 0.0) for step in trace.steps], fmean))
        for zone in trace.zones
    ]
    bound = f"the line is the bound of {OVERLOAD_BOUND:.0%}"
    table = html_table(
        ("mechanism", "runs with", "shares by", *RUN_COLUMNS),
        [_cells(run) for run in runs],
        text=(1, 2),
    )
    content = (
        table
        + draw("Share of all requests, by zone of the clients", demand)
        + draw("Requests that stay in their zone", _series(runs, lambda step: step.in_zone, fmean))
        + draw(
            f"Load of the busiest endpoint above the mean; {bound}",
            _series(runs, lambda step: step.overload, max),
            100 * OVERLOAD_BOUND,
        )
    )
    about = (
        f"{trace.about}; {describe_run(trace, options)}. {'; '.join(explain_runs(runs, options))}"
    )
    return html_section(trace.name, content, about)


def _cells(run: DemandRun) -> list[str]:
    name, *cells = run_cells(run)
    return [name, run.mechanism.runs_with.value, run.mechanism.shares_from.value, *cells]


def _series(
    runs: Sequence[DemandRun],
    value: Callable[[RunStep], float],
    join: Callable[[Sequence[float]], float],
) -> list[tuple[str, list[float]]]:
    return [
        (
            run.mechanism.runs_with.mark_name(run.mechanism.name),
            _thin([100 * value(step) for step in run.steps], join),
        )
        for run in runs
    ]


def _thin(values: Sequence[float], join: Callable[[Sequence[float]], float]) -> list[float]:
    """Return the values, several of them joined into one where there are too many."""
    size = -(-len(values) // _MOST_POINTS) or 1
    return [join(values[start : start + size]) for start in range(0, len(values), size)]
