"""`keepclose simulate churn --trace`: reads options and traces, runs mechanisms, writes the page.

An invalid option or file ends the command before anything runs, with an error that says what is
wrong and how to fix it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.options import parse_duration, read_duration
from keepclose.cli.render.demand_html import render_trace_report
from keepclose.cli.render.demand_runs import (
    TraceResult,
    explain_runs,
    print_trace,
    trace_document,
)
from keepclose.cli.render.output import TableOrJson, echo_json, say
from keepclose.cli.render.progress import shown_progress
from keepclose.cli.render.screen import Screen
from keepclose.cli.simulate_options import (
    STDIN,
    fail_unknown,
    fail_unreadable,
    pick_names,
    render_row_error,
)
from keepclose.cli.simulate_runs import is_same_file
from keepclose.routing.balanced import parse_part
from keepclose.simulate.csv.demand import MAX_TRACE_BYTES, read_demand_rows, resample
from keepclose.simulate.demand_runs import (
    DEMAND_MECHANISMS,
    MAX_RUN_ENDPOINTS,
    OSCILLATION_WINDOW_S,
    RunOptions,
    compare_demand_runs,
)
from keepclose.simulate.traces import (
    MAX_TRACE_ZONES,
    TRACES,
    DemandTrace,
    TraceOptions,
    check_steps,
    make_trace,
)
from keepclose.system.files import open_output, read_input, read_standard_input

ALL_TRACES: Final = "all"
_MOST_S: Final = 366 * 86_400.0
_FILE_STEP_S: Final = 15.0
_FILE_STEPS: Final = 1440
"""A longer file is divided into this many steps, unless --step says otherwise."""


class TraceChoices(msgspec.Struct, frozen=True):
    """The options of a run over traces, as the user wrote them; None where not given."""

    traces: Sequence[str]
    mechanisms: Sequence[str] | None = None
    duration: str | None = None
    step: str | None = None
    zones: int | None = None
    endpoints: int | None = None
    half_life: str | None = None
    dead_band: str | None = None
    interval: str | None = None
    window: str | None = None
    report: str | None = None
    seed: int = 0


def run_traces(choices: TraceChoices, output: TableOrJson) -> None:
    """Run the mechanisms over the traces, and print or write the results."""
    options = _read_options(choices)
    mechanisms = [
        DEMAND_MECHANISMS[name]
        for name in pick_names("mechanism", choices.mechanisms, tuple(DEMAND_MECHANISMS))
    ]
    traces = [_open_trace(name, choices) for name in _list_traces(choices)]
    results: list[TraceResult] = []
    done = 0
    total = sum(len(trace.steps) for trace in traces) * len(mechanisms)
    with shown_progress(total, "steps") as advance:

        def report_progress(steps: int) -> None:
            advance(done + steps)

        for trace in traces:
            runs = compare_demand_runs(trace, mechanisms, options, progress=report_progress)
            done += len(trace.steps) * len(mechanisms)
            results.append(TraceResult(trace, runs))
    if choices.report is not None:
        _write_report(choices.report, results, options)
    if output is TableOrJson.JSON:
        echo_json(trace_document(results, options, choices.seed))
        return
    console = Screen()
    for number, result in enumerate(results):
        if number:
            console.print()
        print_trace(console, result, options)
    say("", *explain_runs(results[0].runs, options))


def _read_options(choices: TraceChoices) -> RunOptions:
    defaults = RunOptions().demand
    endpoints = RunOptions().endpoints if choices.endpoints is None else choices.endpoints
    if not 1 <= endpoints <= MAX_RUN_ENDPOINTS:
        fail(f"--endpoints: {endpoints} is not between 1 and {MAX_RUN_ENDPOINTS:,}")
    dead_band = defaults.dead_band
    if choices.dead_band is not None:
        dead_band = parse_part(choices.dead_band)
        if not 0.0 <= dead_band <= 1.0:
            fail(f'--dead-band: "{choices.dead_band}" is no part of a whole such as 0.05 or 5%')
    return RunOptions(
        endpoints=endpoints,
        demand=msgspec.structs.replace(
            defaults,
            half_life_s=_seconds("--half-life", choices.half_life, defaults.half_life_s),
            dead_band=dead_band,
            interval_s=_seconds("--interval", choices.interval, defaults.interval_s),
        ),
        window_s=_seconds("--window", choices.window, OSCILLATION_WINDOW_S),
    )


def _seconds(option: str, text: str | None, default: float) -> float:
    return default if text is None else read_duration(option, text, most_s=_MOST_S)


def _list_traces(choices: TraceChoices) -> list[str]:
    names: list[str] = []
    for name in choices.traces:
        if name == ALL_TRACES:
            names += TRACES
        elif name in TRACES or name == STDIN or "/" in name or name.lower().endswith(".csv"):
            names.append(name)
        else:
            fail_unknown("trace", name, (*TRACES, ALL_TRACES, "FILE.csv"))
    return list(dict.fromkeys(names))


def _open_trace(name: str, choices: TraceChoices) -> DemandTrace:
    duration = step = None
    if choices.duration is not None:
        duration = read_duration("--duration", choices.duration, most_s=_MOST_S)
    if choices.step is not None:
        step = read_duration("--step", choices.step, most_s=_MOST_S)
    if name not in TRACES:
        return _read_file(name, choices, duration_s=duration, step_s=step)
    zones = TraceOptions().zones if choices.zones is None else choices.zones
    if not 2 <= zones <= MAX_TRACE_ZONES:
        fail(f"--zones: {zones} is not between 2 and {MAX_TRACE_ZONES}")
    kind = TRACES[name]
    _check_steps(
        kind.duration_s if duration is None else duration, kind.step_s if step is None else step
    )
    options = TraceOptions(zones=zones, duration_s=duration, step_s=step, seed=choices.seed)
    return make_trace(kind, options)


def _read_file(
    file: str, choices: TraceChoices, *, duration_s: float | None, step_s: float | None
) -> DemandTrace:
    if choices.zones is not None:
        fail(f"--zones: {file} names its zones", "leave the option out")
    if choices.report is not None and is_same_file(Path(file), Path(choices.report)):
        fail("--report would overwrite the file of --trace")
    try:
        if file == STDIN:
            data = read_standard_input(most=MAX_TRACE_BYTES)
        else:
            data = read_input(file, most=MAX_TRACE_BYTES)
    except OSError as error:
        fail_unreadable(file, error)
    rows = read_demand_rows(data, parse_duration=parse_duration)
    if rows.errors:
        for row_error in rows.errors:
            say(*render_row_error(row_error, file), err=True)
        if rows.bad > len(rows.errors):
            say(f"error: and {rows.bad - len(rows.errors):,} more bad rows", err=True)
        raise typer.Exit(ExitCode.BAD_INPUT)
    lasting = rows.duration_s if duration_s is None else duration_s
    step = max(_FILE_STEP_S, lasting / _FILE_STEPS) if step_s is None else step_s
    _check_steps(lasting, step)
    name = "standard input" if file == STDIN else file
    return resample(rows, name=name, step_s=step, duration_s=lasting)


def _check_steps(duration_s: float, step_s: float) -> None:
    try:
        check_steps(duration_s, step_s)
    except ValueError as error:
        fail(f"--duration and --step: {error}")


def _write_report(file: str, results: Sequence[TraceResult], options: RunOptions) -> None:
    page = render_trace_report(results, options, command=shlex.join(["keepclose", *sys.argv[1:]]))
    try:
        with open_output(Path(file)) as stream:
            stream.write(page.encode())
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}")
    say(f"report written to {file}", err=True)
