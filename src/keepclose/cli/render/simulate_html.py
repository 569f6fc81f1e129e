"""Renders the answer of `keepclose simulate` as one self-contained HTML page, without scripts.

The page has tables and charts, a dark and a light style, and loads nothing from a network. All text
from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec

from keepclose import __version__
from keepclose.cli.render.charts import (
    Point,
    draw_bars,
    draw_parts,
    draw_plane,
    draw_planes,
    draw_ridges,
)
from keepclose.cli.render.churn import explain_churn, mark_mechanism
from keepclose.cli.render.page import html_page, html_section, html_table
from keepclose.cli.render.runs_with import explain_marks, explain_slices
from keepclose.cli.render.simulate import SCORES_LEGEND, name_size
from keepclose.cli.simulate_options import AlgorithmChoice
from keepclose.simulate.churn import Churn
from keepclose.simulate.comparison import Comparison, Example
from keepclose.simulate.datasets import DataSet
from keepclose.simulate.mechanisms import MECHANISMS, Scenario
from keepclose.simulate.summary import Summary, Worst

NAMED_INPUTS_HTML: Final = 10
COMPARED_ROWS: Final = 50_000
"""A sample of this size shows where algorithms differ."""


class SimulationReport(msgspec.Struct, frozen=True):
    """The content of a page; empty parts are omitted."""

    command: str
    choices: Sequence[AlgorithmChoice]
    summaries: Sequence[Summary]
    dataset: DataSet
    seconds: float
    comparisons: Sequence[Comparison] = ()
    """The best algorithm against each other one."""
    compared_rows: int = 0
    scenario: Scenario | None = None
    churns: Sequence[Churn] = ()


def render_report(report: SimulationReport) -> str:
    """Return the whole page."""
    data = report.dataset
    sections = [
        f"<h1>{data.rows:,} inputs of {escape(data.name)}</h1>",
        f'<p class="dim">keepclose {__version__} simulate, {report.seconds:.1f} s</p>',
        f"<p><code>{escape(report.command)}</code></p>",
        html_section(
            "Means",
            _means(report),
            f"{'; '.join(SCORES_LEGEND)}; {_legend(report)}",
        ),
        html_section("Distribution of the total score", _ridges(report), ""),
        html_section(
            "In-zone traffic against overload",
            _planes(report),
            "Means first, then where the inputs lie: the stronger the colour, the more of them.",
        ),
        html_section("Highest and lowest", _extremes(report), ""),
        html_section("Worst cases", _worst_cases(report), ""),
        html_section("Where algorithms differ", _differences(report), _about_differences(report)),
        html_section("Churn", _churn(report), _about_churn(report)),
    ]
    return html_page(f"keepclose simulate: {data.name}", "".join(sections))


def _means(report: SimulationReport) -> str:
    best = max((s.figures.total.mean for s in report.summaries if s.figures), default=0.0)
    rows, marks = [], []
    for choice, summary in zip(report.choices, report.summaries, strict=True):
        figures = summary.figures
        cells = [choice.marked, choice.algorithm.runs_with.value]
        if figures is None:
            cells += ["-"] * 6
        else:
            means = (figures.total, figures.in_zone, figures.deviation, figures.slices)
            cells += [f"{column.mean:.2f}" for column in means]
            cells += [f"{figures.max_deviation.mean:.2f} %"]
            cells += [f"{figures.max_deviation.highest:.2f} %"]
        rows.append([*cells, f"{summary.valid:,}", f"{summary.invalid:,}"])
        marks.append(figures is not None and figures.total.mean == best)
    names = ("total", "in zone", "deviation", "slices", "overload", "worst overload")
    head = ("algorithm", "runs with", *names, "valid", "invalid")
    return html_table(head, rows, marks, text=(1,))


def _legend(report: SimulationReport) -> str:
    algorithms = [choice.algorithm for choice in report.choices]
    marks = explain_marks([item.runs_with for item in algorithms])
    return " ".join((*explain_slices(algorithms), marks))


def _ridges(report: SimulationReport) -> str:
    rows = [(c.marked, s.histograms.total) for c, s in _with_figures(report)]
    return draw_ridges(rows, low=0, high=100) if rows else ""


def _planes(report: SimulationReport) -> str:
    pairs = _with_figures(report)
    points = [
        Point(choice.marked, summary.figures.in_zone.mean, summary.figures.max_deviation.mean)
        for choice, summary in pairs
        if summary.figures is not None
    ]
    if not points:
        return ""
    planes = [(choice.marked, _halved(summary.histograms.plane)) for choice, summary in pairs]
    return draw_plane(
        points,
        x_title="mean in-zone traffic",
        y_title="mean overload",
        x_unit=" %",
        y_unit=" %",
    ) + draw_planes(planes, x_title="in-zone traffic, 0 to 100 %", y_title="overload, 0 to 100 %")


def _halved(plane: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return a plane with half as many columns and rows."""
    return [
        [sum(plane[x + i][y + j] for i in (0, 1) for j in (0, 1)) for y in range(0, len(plane), 2)]
        for x in range(0, len(plane), 2)
    ]


def _extremes(report: SimulationReport) -> str:
    rows = []
    for choice, summary in _with_figures(report):
        if summary.figures is not None:
            f = summary.figures
            columns = (f.total, f.in_zone, f.deviation, f.slices, f.max_deviation)
            rows.append([choice.marked, *(f"{c.highest:.2f} / {c.lowest:.2f}" for c in columns)])
    return html_table(("algorithm", "total", "in zone", "deviation", "slices", "overload %"), rows)


def _worst_cases(report: SimulationReport) -> str:
    rows = []
    for choice, summary in zip(report.choices, report.summaries, strict=True):
        for what, worst in (
            ("overload %", summary.worst_deviation),
            ("total", summary.worst_total),
        ):
            if worst is not None and not (what != "total" and worst.value <= 0):
                value = f"{worst.value:.2f}"
                rows.append(
                    [choice.marked, what, value, f"{worst.count:,}", _names(worst, report.dataset)]
                )
    return html_table(("algorithm", "of", "worst", "inputs", "first of them"), rows, text=(1, 4))


def _names(worst: Worst, dataset: DataSet) -> str:
    labels = [dataset.label(row) for row in worst.rows[:NAMED_INPUTS_HTML]]
    return ", ".join(labels) + (", ..." if worst.count > len(labels) else "")


def _differences(report: SimulationReport) -> str:
    if not report.comparisons:
        return ""
    comparisons = report.comparisons
    bars = [(other.second, (other.better, other.equal, other.worse)) for other in comparisons]
    best = comparisons[0].first
    parts = (f"{best} is better", "equal", f"{best} is worse")
    sizes = [name_size(size) for size in comparisons[0].sizes if size.rows]
    rows = [
        [
            other.second,
            f"{other.differences[0]:+.2f}",
            *(f"{size.difference:+.2f}" for size in other.sizes if size.rows),
        ]
        for other in comparisons
    ]
    head = (f"{best} minus", "all", *(f"{size} per zone" for size in sizes))
    examples = [
        [other.second, _inputs_of(other.best), _inputs_of(other.worst)] for other in comparisons
    ]
    return (
        draw_parts(bars, parts)
        + html_table(head, rows)
        + html_table((f"{best} against", "better in", "worse in"), examples, text=(1, 2))
    )


def _inputs_of(examples: Sequence[Example]) -> str:
    return "; ".join(f"{example.label} ({example.difference:+.1f})" for example in examples[:3])


def _about_differences(report: SimulationReport) -> str:
    if not report.comparisons:
        return ""
    return f"The best mean against each other algorithm, on {report.compared_rows:,} inputs."


def _churn(report: SimulationReport) -> str:
    if not report.churns:
        return ""
    rows = [
        [
            mark_mechanism(churn.mechanism),
            MECHANISMS[churn.mechanism].runs_with.value,
            f"{churn.rehinted:,}",
            f"{churn.written:,}",
            f"{churn.random_share:.0%}",
            f"{churn.in_zone:.1%}",
            f"{churn.mean_overload:.1%}",
            f"{churn.worst_overload:.1%}",
        ]
        for churn in report.churns
    ]
    costs = ("re-hinted", "slices written", "Random", "in zone", "overload", "worst")
    head = ("mechanism", "runs with", *costs)
    rehinted = [(mark_mechanism(churn.mechanism), float(churn.rehinted)) for churn in report.churns]
    written = [(mark_mechanism(churn.mechanism), float(churn.written)) for churn in report.churns]
    return (
        html_table(head, rows, text=(1,))
        + "<p>Endpoints that came to serve another zone</p>"
        + draw_bars(rehinted, title="Endpoints re-hinted by mechanism")
        + "<p>Slices written</p>"
        + draw_bars(written, title="Slices written by mechanism")
    )


def _about_churn(report: SimulationReport) -> str:
    if report.scenario is None:
        return ""
    steps = len(report.churns[0].changes) if report.churns else 0
    legend = "; ".join(explain_churn(report.churns))
    return f"Scenario {report.scenario.name}, {steps} steps: {report.scenario.about}. {legend}."


def _with_figures(report: SimulationReport) -> list[tuple[AlgorithmChoice, Summary]]:
    pairs = zip(report.choices, report.summaries, strict=True)
    return [(choice, summary) for choice, summary in pairs if summary.figures is not None]
