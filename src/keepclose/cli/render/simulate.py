"""Renders the answers of `keepclose simulate`: tables for people, plain data for JSON.

Tables show the means first, then extremes and worst cases, in the columns of KEP-2004. The best
total is marked, and never by colour alone; so are algorithms that not every cluster can run. Scores
go up to 100, and that of the deviation is 100 without any; an overload is in percent, the load of
the busiest endpoint above the mean. In JSON a figure that does not exist is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keepclose.cli.render.progress import format_rate
from keepclose.cli.render.runs_with import explain_marks, explain_slices
from keepclose.cli.render.screen import Grid, Line, Screen
from keepclose.cli.simulate_options import AlgorithmChoice
from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.comparison import Comparison, Example, SizeClass
from keepclose.simulate.datasets import DataSet
from keepclose.simulate.summary import FigureColumn, Summary, Worst

NAMED_INPUTS_JSON: Final = 20
SCORES_LEGEND: Final = (
    "scores, 100 at best: total, in zone, deviation, slices",
    "overload: load of the busiest endpoint above the mean, on average and at worst",
)
SHOWN_FIGURES: Final = (
    "total",
    "in_zone",
    "deviation",
    "slice",
    "max_deviation_percent",
    "mean_deviation_percent",
    "sd_of_deviation",
)
NAMED_INPUTS_TEXT: Final = 3
METRICS: Final = (
    "total",
    "in zone",
    "deviation",
    "slices",
    "worst %",
    "mean %",
    "SD",
)


def simulated_document(
    choices: Sequence[AlgorithmChoice],
    summaries: Sequence[Summary],
    dataset: DataSet,
    seconds: float,
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


def compared_document(comparison: Comparison, algorithms: Sequence[Algorithm]) -> dict[str, Any]:
    """Return the answer for two algorithms; differences are first minus second."""
    first, second = algorithms
    return {
        "first": comparison.first,
        "first_runs_with": first.runs_with,
        "second": comparison.second,
        "second_runs_with": second.runs_with,
        "inputs": comparison.rows,
        "better": comparison.better,
        "equal": comparison.equal,
        "worse": comparison.worse,
        "only_first_valid": comparison.only_first,
        "only_second_valid": comparison.only_second,
        "neither_valid": comparison.neither,
        "mean_difference": dict(zip(SHOWN_FIGURES, comparison.differences, strict=True)),
        "by_endpoints_per_zone": [
            {
                "from": size.above,
                "below": size.below,
                "inputs": size.rows,
                "better": size.better,
                "equal": size.equal,
                "worse": size.worse,
                "mean_difference": size.difference,
            }
            for size in comparison.sizes
        ],
        "best": [_example(example, comparison.zones) for example in comparison.best],
        "worst": [_example(example, comparison.zones) for example in comparison.worst],
    }


def print_summaries(
    console: Screen,
    choices: Sequence[AlgorithmChoice],
    summaries: Sequence[Summary],
    *,
    dataset: DataSet,
    seconds: float,
) -> None:
    """Print the means, the extremes and the worst inputs by name."""
    rate = format_rate(dataset.rows * len(summaries) / seconds) if seconds > 0 else "at once"
    inputs = "1 input" if dataset.rows == 1 else f"{dataset.rows:,} inputs"
    console.print(f"{inputs} of {dataset.name} in {seconds:.1f} s, {rate}")
    console.print()
    console.print(_means(choices, summaries))
    console.print()
    console.print(_extremes(choices, summaries))
    console.print()
    console.print(_worst_cases(choices, summaries, dataset))
    console.print()
    algorithms = [choice.algorithm for choice in choices]
    marks = explain_marks([item.runs_with for item in algorithms], best=len(summaries) > 1)
    for line in (*SCORES_LEGEND, *explain_slices(algorithms), marks):
        console.print(Line(line, style="dim"))


def print_comparison(
    console: Screen, comparison: Comparison, algorithms: Sequence[Algorithm]
) -> None:
    """Print how often the first algorithm is better, by how much, and the clearest examples."""
    first, second = (algorithm.runs_with.mark_name(algorithm.name) for algorithm in algorithms)
    console.print(Line(f"{first} against {second}", style="bold"))
    rows = comparison.rows
    console.print(
        f"{rows:,} inputs: better {_part(comparison.better, rows)}, "
        f"equal {_part(comparison.equal, rows)}, worse {_part(comparison.worse, rows)}"
    )
    for count, text in (
        (comparison.only_first, f"only {first} has a valid result"),
        (comparison.only_second, f"only {second} has a valid result"),
        (comparison.neither, "neither has a valid result"),
    ):
        if count:
            console.print(f"{_part(count, rows)}: {text}")
    console.print()
    table = figure_table("mean difference", *METRICS)
    table.add_row(
        f"{comparison.first} - {comparison.second}",
        *(f"{value:+.2f}" for value in comparison.differences),
    )
    console.print(table)
    console.print()
    table = figure_table(
        "endpoints per zone", "inputs", "better", "equal", "worse", "mean difference"
    )
    for size in comparison.sizes:
        if size.rows:
            table.add_row(
                name_size(size),
                f"{size.rows:,}",
                *(f"{count / size.rows:.1%}" for count in (size.better, size.equal, size.worse)),
                f"{size.difference:+.2f}",
            )
    console.print(table)
    for title, examples in (
        (f"best for {first}", comparison.best),
        (f"best for {second}", comparison.worst),
    ):
        console.print()
        if examples:
            console.print(_examples(title, examples, names=(first, second)))
        else:
            console.print(Line(f"{title}: no input", style="dim"))
    console.print()
    legend = explain_marks([algorithm.runs_with for algorithm in algorithms])
    for line in (*SCORES_LEGEND[:1], *explain_slices(algorithms), legend):
        console.print(Line(line, style="dim"))


def name_size(size: SizeClass) -> str:
    """Return the range of a size class in words."""
    if size.below is None:
        return f"{size.above} and more"
    return f"less than {size.below}" if size.above == 0 else f"{size.above} to {size.below - 1}"


def explain_comparison(example: Example) -> str:
    """Return the metrics that cause most of the difference between two totals, in words."""
    first, second = example.first, example.second
    parts = [
        (f"{first[1] - second[1]:+.1f} in zone", abs(first[1] - second[1])),
        (f"{first[4] - second[4]:+.1f} % overload", abs(first[4] - second[4]) / 2),
        (f"{first[3] - second[3]:+.1f} slices", abs(first[3] - second[3]) / 3),
    ]
    largest_first = sorted((part for part in parts if part[1] > 0.05), key=lambda part: -part[1])
    return ", ".join(text for text, _ in largest_first)


def _algorithm(choice: AlgorithmChoice, summary: Summary, dataset: DataSet) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": choice.name,
        "variant": choice.variant,
        "runs_with": choice.algorithm.runs_with,
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


def _example(example: Example, zones: Sequence[str]) -> dict[str, Any]:
    return {
        "input": example.label,
        "row": example.row,
        "zones": [
            {"name": zone, "nodes": nodes, "endpoints": endpoints}
            for zone, nodes, endpoints in zip(zones, example.nodes, example.endpoints, strict=True)
        ],
        "difference": example.difference,
        "first": dict(zip(SHOWN_FIGURES, example.first, strict=True)),
        "second": dict(zip(SHOWN_FIGURES, example.second, strict=True)),
    }


def _means(choices: Sequence[AlgorithmChoice], summaries: Sequence[Summary]) -> Grid:
    invalid = any(summary.invalid for summary in summaries)
    # Where inputs are invalid, their number replaces the mean of the overload.
    last = ["worst", "invalid"] if invalid else ["overload", "worst"]
    columns = ["total", "in zone", "deviation", "slices", *last]
    table = figure_table("algorithm", *columns)
    best = max((s.figures.total.mean for s in summaries if s.figures), default=0.0)
    for choice, summary in zip(choices, summaries, strict=True):
        figures = summary.figures
        cells = ["-"] * (5 if invalid else 6)
        if figures is not None:
            means = (figures.total, figures.in_zone, figures.deviation, figures.slices)
            cells = [f"{column.mean:.2f}" for column in means]
            if not invalid:
                cells.append(f"{figures.max_deviation.mean:.2f} %")
            cells.append(f"{figures.max_deviation.highest:.2f} %")
        is_best = figures is not None and figures.total.mean == best and len(summaries) > 1
        name = f"{choice.marked} *" if is_best else choice.marked
        more = [f"{summary.invalid:,}"] if invalid else []
        table.add_row(name, *cells, *more, style="bold" if is_best else "")
    return table


def _extremes(choices: Sequence[AlgorithmChoice], summaries: Sequence[Summary]) -> Grid:
    table = figure_table("highest/lowest", "total", "in zone", "deviation", "slices")
    for choice, summary in zip(choices, summaries, strict=True):
        figures = summary.figures
        if figures is None:
            table.add_row(choice.marked, *["-"] * 4)
        else:
            columns = (figures.total, figures.in_zone, figures.deviation, figures.slices)
            table.add_row(choice.marked, *map(_range, columns))
    return table


def _worst_cases(
    choices: Sequence[AlgorithmChoice], summaries: Sequence[Summary], dataset: DataSet
) -> Grid:
    table = Grid(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    table.add_column("worst cases", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("inputs", justify="right")
    table.add_column("", overflow="fold")
    for choice, summary in zip(choices, summaries, strict=True):
        for what, worst, unit in (
            ("overload", summary.worst_deviation, " %"),
            ("total", summary.worst_total, ""),
        ):
            if worst is not None and not (what == "overload" and worst.value <= 0):
                value = f"{what} {worst.value:.2f}{unit}"
                table.add_row(choice.marked, value, f"{worst.count:,}", _names(worst, dataset))
    return table


def _examples(title: str, examples: Sequence[Example], *, names: Sequence[str]) -> Grid:
    table = Grid(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    table.add_column(title, overflow="fold")
    table.add_column("nodes")
    table.add_column("endpoints")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("by", overflow="fold")
    for example in examples:
        table.add_row(
            example.label,
            "/".join(map(str, example.nodes)),
            "/".join(map(str, example.endpoints)),
            f"{example.first[0]:.2f}",
            f"{example.second[0]:.2f}",
            explain_comparison(example),
        )
    return table


def figure_table(first: str, *columns: str) -> Grid:
    """Return a table whose first column holds names and the others numbers."""
    table = Grid(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _names(worst: Worst, dataset: DataSet) -> Line:
    labels = [dataset.label(row) for row in worst.rows[:NAMED_INPUTS_TEXT]]
    more = ", ..." if worst.count > len(labels) else ""
    return Line(", ".join(labels) + more, style="dim")


def _range(column: FigureColumn) -> str:
    return f"{column.highest:.2f}/{column.lowest:.2f}"


def _part(count: int, rows: int) -> str:
    return f"{count:,} ({count / max(1, rows):.1%})"
