"""Running what `keepclose simulate` was asked for, and the page that it may leave behind."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from keepclose.cli.exit import fail
from keepclose.cli.render.output import echo_document, say
from keepclose.cli.render.progress import shown_progress
from keepclose.cli.render.simulate_html import COMPARED_ROWS, Report, render_report
from keepclose.cli.simulation import Choice, warn_of_slowness
from keepclose.simulate.churn import compare_churn
from keepclose.simulate.comparison import compare
from keepclose.simulate.csv.outputs import write_results
from keepclose.simulate.datasets import DataSet, Sample
from keepclose.simulate.engine import simulate
from keepclose.simulate.mechanisms import MECHANISMS
from keepclose.simulate.scenarios import SCENARIOS
from keepclose.simulate.summary import Summary, Weights
from keepclose.system.files import open_output

REPORTED_SCENARIO = SCENARIOS["mixed"]


def name_outputs(output: str | None, choices: Sequence[Choice]) -> list[Path]:
    """Return the file of each algorithm's results; none where no file is named."""
    if output is None:
        return []
    path = Path(output)
    if len(choices) == 1:
        return [path]
    # NB: a name such as / or .. has no stem to write behind.
    if not path.name:
        fail(f"--output: {output} names no file")
    return [path.with_name(f"{path.stem}-{choice.slug}{path.suffix}") for choice in choices]


def refuse_overwriting(source: str | None, outputs: Sequence[Path], report: str | None) -> None:
    """End the command before it writes over its own input, or the page over the results."""
    if report is not None and any(_is_same_file(Path(report), one) for one in outputs):
        fail("--report would overwrite the file of --output")
    if source is None:
        return
    if any(_is_same_file(Path(source), one) for one in outputs):
        fail("--output would overwrite the file of --input")
    if report is not None and _is_same_file(Path(source), Path(report)):
        fail("--report would overwrite the file of --input")


def run_algorithms(
    data: DataSet, choices: Sequence[Choice], weights: Weights, *, outputs: Sequence[Path] = ()
) -> list[Summary]:
    """Return the summaries, and write the results of every input where files are named."""
    warn_of_slowness(data)
    algorithms = [choice.algorithm for choice in choices]
    with shown_progress(data.rows, "inputs") as advance:
        if not outputs:
            return simulate(data, algorithms, weights=weights, progress=advance)
        try:
            with ExitStack() as stack:
                files = [stack.enter_context(open_output(one)) for one in outputs]
                written = list(zip(algorithms, files, strict=True))
                return write_results(data, written, weights=weights, progress=advance)
        except BrokenPipeError:
            raise
        except OSError as error:
            fail(f"{error.filename or outputs[0]} cannot be written: {error.strerror}")


def make_report(
    data: DataSet,
    choices: Sequence[Choice],
    summaries: Sequence[Summary],
    weights: Weights,
    *,
    seconds: float,
    seed: int,
) -> Report:
    """Return what the page shows: the answer, the best against the others, and churn."""
    some = data
    if data.rows > COMPARED_ROWS:
        some = Sample(data, rows=COMPARED_ROWS, seed=seed)
    means = {
        place: one.figures.total.mean
        for place, one in enumerate(summaries)
        if one.figures is not None
    }
    best = max(means, key=means.__getitem__, default=0)
    named = [replace(choice.algorithm, name=choice.title) for choice in choices]
    return Report(
        command=shlex.join(["keepclose", *sys.argv[1:]]),
        choices=choices,
        summaries=summaries,
        dataset=data,
        seconds=seconds,
        comparisons=[
            compare(some, named[best], named[place], weights=weights)
            for place in means
            if place != best
        ],
        compared_rows=some.rows,
        scenario=REPORTED_SCENARIO,
        churns=compare_churn(MECHANISMS.values(), REPORTED_SCENARIO, seed),
    )


def write_report(report: Report, file: str | None, *, to_stdout: bool) -> None:
    """Write the page into a file, to standard output, or both."""
    page = render_report(report)
    if file is not None:
        try:
            with open_output(Path(file)) as opened:
                opened.write(page.encode())
        except BrokenPipeError:
            raise
        except OSError as error:
            fail(f"{file} cannot be written: {error.strerror}")
        say(f"report written to {file}", err=True)
    if to_stdout:
        echo_document(page)


def _is_same_file(one: Path, other: Path) -> bool:
    """Return whether two names lead to one file; a device or a pipe keeps nothing to overwrite."""
    if one == other:
        return not one.exists() or one.is_file()
    try:
        return one.is_file() and one.samefile(other)
    except (OSError, ValueError):
        return False
