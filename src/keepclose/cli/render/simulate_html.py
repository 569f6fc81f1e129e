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
from keepclose.cli.render.simulate import name_size
from keepclose.cli.simulate_options import AlgorithmChoice
from keepclose.simulate.churn import Churn
from keepclose.simulate.comparison import Comparison, Example
from keepclose.simulate.datasets import DataSet
from keepclose.simulate.mechanisms import Scenario
from keepclose.simulate.summary import Summary, Worst

NAMED_INPUTS_HTML: Final = 10
COMPARED_ROWS: Final = 50_000
"""A sample of this size shows where algorithms differ."""
_HUES: Final = ("#4477cc", "#cc6633", "#2f9e6e", "#aa4499", "#b08a00")
_MORE_HUES: Final = ("#33a0b8", "#cc4455", "#7766cc", "#6b8e23", "#888888")

_STYLE: Final = (
    ":root{color-scheme:light dark;--ink:#1c1e21;--paper:#fff;--dim:#667;--line:#d5d8de}"
    "@media(prefers-color-scheme:dark){"
    ":root{--ink:#e6e8eb;--paper:#16181c;--dim:#99a;--line:#3a3f47}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);"
    "max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}"
    "p{margin:.4rem 0}.dim{color:var(--dim)}"
    "code{font:13px ui-monospace,monospace;background:var(--line);padding:.1em .4em;"
    "border-radius:3px;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:.6rem 0;font-variant-numeric:tabular-nums}"
    "th,td{padding:.15rem .9rem .15rem 0;text-align:right;border-bottom:1px solid var(--line)}"
    "th:first-child,td:first-child,td.text{text-align:left}th{color:var(--dim);font-weight:500}"
    "tr.best td{font-weight:600}svg{max-width:100%;height:auto;display:block;margin:.6rem 0}"
    "svg text{font-size:11px;fill:var(--ink)}svg .line{stroke:var(--line);fill:none}"
    "svg text.on{fill:#fff}.p0{fill:#2f9e6e}.p1{fill:#8a919c}.p2{fill:#cc5544}"
    ".o0{fill-opacity:.25}.o1{fill-opacity:.45}.o2{fill-opacity:.7}.o3{fill-opacity:1}"
) + "".join(f".s{n}{{fill:{hue}}}" for n, hue in enumerate((*_HUES, *_MORE_HUES)))


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
        _section(
            "Means",
            _means(report),
            "Scores go up to 100; overload is what the busiest endpoint gets beyond an even share.",
        ),
        _section("Distribution of the total score", _ridges(report), ""),
        _section(
            "In-zone traffic against overload",
            _planes(report),
            "Means first, then where the inputs lie: the stronger the colour, the more of them.",
        ),
        _section("Highest and lowest", _extremes(report), ""),
        _section("Worst cases", _worst_cases(report), ""),
        _section("Where algorithms differ", _differences(report), _about_differences(report)),
        _section("Churn", _churn(report), _about_churn(report)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>keepclose simulate: {escape(data.name)}</title><style>{_STYLE}</style></head>"
        f"<body>\n{''.join(sections)}</body></html>\n"
    )


def _section(title: str, content: str, about: str) -> str:
    if not content:
        return ""
    intro = f'<p class="dim">{escape(about)}</p>' if about else ""
    return f"<h2>{escape(title)}</h2>\n{intro}{content}\n"


def _means(report: SimulationReport) -> str:
    best = max((s.figures.total.mean for s in report.summaries if s.figures), default=0.0)
    rows, marks = [], []
    for choice, summary in zip(report.choices, report.summaries, strict=True):
        figures = summary.figures
        cells = [choice.title]
        if figures is None:
            cells += ["-"] * 6
        else:
            means = (figures.total, figures.in_zone, figures.deviation, figures.slices)
            cells += [f"{column.mean:.2f}" for column in means]
            cells += [f"{figures.max_deviation.mean:.2f} %"]
            cells += [f"{figures.max_deviation.highest:.2f} %"]
        rows.append([*cells, f"{summary.valid:,}", f"{summary.invalid:,}"])
        marks.append(figures is not None and figures.total.mean == best)
    names = ("total", "in zone", "overload", "slices", "mean worst", "worst overload")
    return _table(("algorithm", *names, "valid", "invalid"), rows, marks)


def _ridges(report: SimulationReport) -> str:
    rows = [(c.title, s.histograms.total) for c, s in _with_figures(report)]
    return draw_ridges(rows, low=0, high=100) if rows else ""


def _planes(report: SimulationReport) -> str:
    pairs = _with_figures(report)
    points = [
        Point(choice.title, summary.figures.in_zone.mean, summary.figures.max_deviation.mean)
        for choice, summary in pairs
        if summary.figures is not None
    ]
    if not points:
        return ""
    planes = [(choice.title, _halved(summary.histograms.plane)) for choice, summary in pairs]
    return draw_plane(
        points,
        x_title="mean in-zone traffic",
        y_title="mean worst overload",
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
            rows.append([choice.title, *(f"{c.highest:.2f} / {c.lowest:.2f}" for c in columns)])
    return _table(("algorithm", "total", "in zone", "overload", "slices", "worst %"), rows)


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
                    [choice.title, what, value, f"{worst.count:,}", _names(worst, report.dataset)]
                )
    return _table(("algorithm", "of", "worst", "inputs", "first of them"), rows, text=(1, 4))


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
        + _table(head, rows)
        + _table((f"{best} against", "better in", "worse in"), examples, text=(1, 2))
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
            churn.mechanism,
            f"{churn.rehinted:,}",
            f"{churn.written:,}",
            f"{churn.random_share:.0%}",
            f"{churn.in_zone:.1%}",
            f"{churn.mean_overload:.1%}",
            f"{churn.worst_overload:.1%}",
        ]
        for churn in report.churns
    ]
    head = ("mechanism", "re-hinted", "slices written", "Random", "in zone", "overload", "worst")
    rehinted = [(churn.mechanism, float(churn.rehinted)) for churn in report.churns]
    written = [(churn.mechanism, float(churn.written)) for churn in report.churns]
    return (
        _table(head, rows)
        + "<p>Endpoints that came to serve another zone</p>"
        + draw_bars(rehinted, title="Endpoints re-hinted by mechanism")
        + "<p>Slices written</p>"
        + draw_bars(written, title="Slices written by mechanism")
    )


def _about_churn(report: SimulationReport) -> str:
    if report.scenario is None:
        return ""
    steps = len(report.churns[0].changes) if report.churns else 0
    return f"Scenario {report.scenario.name}, {steps} steps: {report.scenario.about}."


def _with_figures(report: SimulationReport) -> list[tuple[AlgorithmChoice, Summary]]:
    pairs = zip(report.choices, report.summaries, strict=True)
    return [(choice, summary) for choice, summary in pairs if summary.figures is not None]


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    marks: Sequence[bool] = (),
    *,
    text: Sequence[int] = (),
) -> str:
    """Return a table; marked rows are bold, and `text` are the columns that hold no numbers."""
    if not rows:
        return ""
    lines = ["<table><tr>", *(f"<th>{escape(name)}</th>" for name in head), "</tr>\n"]
    for number, row in enumerate(rows):
        best = number < len(marks) and marks[number]
        lines.append('<tr class="best">' if best else "<tr>")
        for column, cell in enumerate(row):
            kind = ' class="text"' if column in text else ""
            lines.append(f"<td{kind}>{escape(cell)}</td>")
        lines.append("</tr>\n")
    return "".join([*lines, "</table>"])
