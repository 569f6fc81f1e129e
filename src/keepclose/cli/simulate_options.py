"""Parses the options of `keepclose simulate`: algorithms, inputs and weights.

An invalid option or input file ends the command here, with an error that says what is wrong, where,
and how to fix it. Numbers and names are checked before the engine is loaded.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
import typer
from msgspec.structs import replace

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.manifests.problems import InputPlace, InputProblem, render
from keepclose.cli.options import read_duration
from keepclose.cli.render.output import say, show_passing
from keepclose.cli.render.progress import shown_progress
from keepclose.system.files import InputError, open_source, read_standard_input

if TYPE_CHECKING:
    from keepclose.simulate.algorithms import Algorithm
    from keepclose.simulate.csv.inputs import CsvInputs
    from keepclose.simulate.csv.rows import RowError
    from keepclose.simulate.datasets import DataSet
    from keepclose.simulate.summary import Weights

STDIN: Final = "-"
DEFAULT_DATASET: Final = "kep2004-small"
MANY_INPUTS: Final = 1_000_000_000
GROUPS: Final = ("all", "published")

_ALIASES: Final = {"random": "original", "balanced-hints": "balanced"}
_VARIANTS: Final[dict[str, tuple[str, str | None]]] = {
    "balanced": ("balanced", "hints"),
    "balanced-weights": ("balanced", "weights"),
}
_WEIGHTS: Final = ("in-zone", "max overload", "mean overload", "slices")
# The score is the sum of a hundred times each weight, and must not overflow.
_MAX_WEIGHT: Final = 1_000_000


class AlgorithmChoice(msgspec.Struct, frozen=True):
    """An algorithm as the user names it; balanced has two variants."""

    name: str
    variant: str | None
    algorithm: Algorithm

    @property
    def title(self) -> str:
        """The name alone."""
        return f"{self.name} {self.variant}" if self.variant else self.name

    @property
    def marked(self) -> str:
        """The name in tables and charts, with the mark of the proxy that it needs."""
        return self.algorithm.runs_with.mark_name(self.title)

    @property
    def slug(self) -> str:
        """The name as a part of a file name."""
        return self.title.replace(" ", "-")


class SchedulerChoice(msgspec.Struct, frozen=True):
    """The Dask scheduler to run on, and how long to wait for it and for workers."""

    address: str
    timeout_s: float


def choose_scheduler(
    address: str | None, timeout: str, *, input_file: str | None, output_file: str | None
) -> SchedulerChoice | None:
    """Return the scheduler that the user names; None runs everything in this process."""
    timeout_s = read_duration("--scheduler-timeout", timeout)
    if address is None:
        return None
    if timeout_s <= 0:
        fail("--scheduler-timeout: must be more than 0, such as 60s")
    if input_file is not None:
        fail("--scheduler: the rows of a file are not sent to a cluster", "use --dataset")
    if output_file is not None:
        fail(
            "--scheduler: the results of every input do not leave the cluster",
            "leave out --output, or run a --sample without --scheduler",
        )
    return SchedulerChoice(address, timeout_s)


def choose_algorithms(
    names: Sequence[str],
    *,
    start: float | None = None,
    threshold: float | None = None,
    slice_model: str | None = None,
) -> list[AlgorithmChoice]:
    """Return the algorithms that the names select, each once, in their order.

    A name may be that of a group, or one of the reference simulator, such as LocalShared. Commas
    may separate names.
    """
    from keepclose.simulate.algorithms import ALGORITHMS, PUBLISHED, RunsWith, find_algorithm
    from keepclose.simulate.row_loops import run_matrix

    if start is not None and not 0 <= start < math.inf:
        fail(f"--starting-threshold: {start:g} is no number of endpoints for each zone")
    if threshold is not None and not 0 < threshold < math.inf:
        fail(
            f"--overload-threshold: {threshold:g} is no positive number", "0.5 means 50 % overload"
        )
    selected: list[str] = []
    for name in (part.strip() for text in names for part in text.split(",")):
        if name == "all":
            selected += ALGORITHMS
        elif name == "published":
            selected += PUBLISHED
        else:
            selected.append(_find_name(name, (*ALGORITHMS, *GROUPS)))
            if name == "balanced":
                selected.append("balanced-weights")
    choices = []
    for name in dict.fromkeys(selected):
        algorithm = find_algorithm(name, start=start, threshold=threshold)
        if slice_model is not None and algorithm.loop is run_matrix:
            hints = slice_model == "hints"
            # A cluster writes each of them in one way only.
            runs_with = algorithm.runs_with if hints == algorithm.hints else RunsWith.SIMULATOR
            algorithm = replace(algorithm, hints=hints, runs_with=runs_with)
        plain, variant = _VARIANTS.get(name, (name, None))
        choices.append(AlgorithmChoice(plain, variant, algorithm))
    _warn_of_unused_options(choices, start=start, threshold=threshold, slice_model=slice_model)
    return choices


def parse_weights(text: str | None) -> Weights:
    """Return the weights of the score; the default is that of KEP-2004."""
    from keepclose.simulate.summary import Weights

    if text is None:
        return Weights()
    fix = "four numbers, such as 0.45,0.20,0.20,0.15 for " + ", ".join(_WEIGHTS)
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        fail(f'--weights: "{text}" is not a list of numbers', fix)
    if len(weights) != len(_WEIGHTS):
        fail(f"--weights: {len(weights)} numbers instead of {len(_WEIGHTS)}", fix)
    if not all(weight >= 0 for weight in weights) or sum(weights) <= 0:
        fail("--weights: no weight may be negative, and one must be positive", fix)
    if max(weights) > _MAX_WEIGHT:
        fail(f"--weights: {max(weights):g} is more than {_MAX_WEIGHT:,}", fix)
    return Weights(*weights)


def open_data(
    dataset: str | None,
    file: str | None,
    *,
    sample: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
) -> DataSet:
    """Return the inputs: a data set by name, or the rows of a CSV file, or a sample of either."""
    from keepclose.simulate.datasets import (
        DATASET_NAMES,
        MissingExtraError,
        Sample,
        open_dataset,
    )

    if dataset is not None and file is not None:
        fail("--dataset and --input exclude each other")
    if sample is not None and sample < 1:
        fail(f"--sample: {sample} is no number of inputs")
    note_compiling()
    if file is not None:
        inputs = _open_file(file, skip_bad=skip_bad)
        if inputs.rows == 0:
            fail(f"no inputs in {InputPlace(file)}", code=ExitCode.NOTHING)
        if sample is not None and sample < inputs.rows:
            return Sample(inputs, rows=sample, seed=seed)
        return inputs
    name = DEFAULT_DATASET if dataset is None else dataset
    if name not in DATASET_NAMES:
        fail_unknown("data set", name, DATASET_NAMES)
    try:
        return open_dataset(name, rows=sample, seed=seed)
    except MissingExtraError as error:
        fail(str(error).partition(";")[0], error.fix)


def pick_names(what: str, names: Sequence[str] | None, valid_names: Sequence[str]) -> list[str]:
    """Return the names that the user gave, each once; no names, or all, give every valid name."""
    parts = [part.strip() for text in names or ["all"] for part in text.split(",")]
    picked: list[str] = []
    for name in parts:
        if name != "all" and name not in valid_names:
            fail_unknown(what, name, valid_names)
        picked += valid_names if name == "all" else [name]
    return list(dict.fromkeys(picked))


def note_compiling() -> None:
    """Note on a terminal, when it begins, that machine code is generated; files are loaded fast."""
    from keepclose.simulate.compiling import report_compiling

    def note() -> None:
        # NB: in place of the progress bar, which begins again below.
        show_passing("note: compiling the algorithms; later runs on this machine load them")
        say("", err=True)

    if sys.stderr is not None and sys.stderr.isatty():
        report_compiling(note)


def warn_of_slowness(data: DataSet) -> None:
    """Warn the user when many inputs are about to run without the compiler."""
    from keepclose.simulate.compiling import is_available
    from keepclose.simulate.datasets import MissingExtraError
    from keepclose.simulate.engine import FEW_ROWS

    if data.rows >= MANY_INPUTS:
        say(
            f"warning: {data.rows:,} inputs take this machine hours or days",
            "         --sample N runs a part of them, --scheduler ADDRESS many machines",
            err=True,
        )
    if data.rows >= FEW_ROWS and not is_available():
        say(
            f"warning: {data.rows:,} inputs without numba take hundreds of times as long",
            f"         {MissingExtraError.fix}",
            err=True,
        )


def _find_name(name: str, valid_names: Sequence[str]) -> str:
    # LocalShared of the reference simulator is local-shared here.
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
    plain = _ALIASES.get(plain, plain)
    if plain.replace("-", "") == "sharedmultizone":
        plain = "shared-multizone"
    if plain not in valid_names:
        fail_unknown("algorithm", name, valid_names)
    return plain


def fail_unknown(what: str, name: str, valid_names: Sequence[str]) -> NoReturn:
    """End the command because a name is unknown; the fix is the nearest name, or all of them."""
    close = get_close_matches(name.lower(), valid_names, n=1, cutoff=0.5)
    fix = f"did you mean {close[0]}?" if close else f"there are {', '.join(valid_names)}"
    fail(f'unknown {what} "{name}"', fix)


def _warn_of_unused_options(
    choices: Sequence[AlgorithmChoice],
    *,
    start: float | None,
    threshold: float | None,
    slice_model: str | None,
) -> None:
    from keepclose.simulate.row_loops import run_matrix

    unaffected = {
        "--starting-threshold": start is not None
        and [choice for choice in choices if "start" not in choice.algorithm.parameters],
        "--overload-threshold": threshold is not None
        and [choice for choice in choices if "threshold" not in choice.algorithm.parameters],
        "--slice-model": slice_model is not None
        and [choice for choice in choices if choice.algorithm.loop is not run_matrix],
    }
    for option, same in unaffected.items():
        if same and (len(same) == len(choices) or option == "--slice-model"):
            titles = ", ".join(choice.title for choice in same)
            say(f"warning: {option} has no effect on {titles}", err=True)


def fail_unreadable(file: str, error: OSError) -> NoReturn:
    """End the command because an input cannot be read."""
    fix = error.fix if isinstance(error, InputError) else ""
    problem = InputProblem(InputPlace(file), f"cannot be read: {error.strerror or error}", fix=fix)
    say(*render(problem).splitlines(), err=True)
    raise typer.Exit(ExitCode.BAD_INPUT) from None


def _open_file(file: str, *, skip_bad: bool) -> CsvInputs:
    from keepclose.simulate.csv.inputs import open_inputs
    from keepclose.simulate.csv.rows import RowError

    try:
        source = read_standard_input() if file == STDIN else open_source(file)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        with shown_progress(size, "bytes") as advance:
            inputs = open_inputs(
                source,
                name=str(InputPlace(file)) if file == STDIN else "",
                progress=lambda done, _: advance(done),
            )
    except OSError as error:
        fail_unreadable(file, error)
    if isinstance(inputs, RowError):
        say(*render_row_error(inputs, file), err=True)
        raise typer.Exit(ExitCode.BAD_INPUT)
    bad, row_errors = inputs.condition.bad, inputs.condition.flaws
    if bad and skip_bad:
        first = f"the first in line {row_errors[0].line}: {row_errors[0].text}"
        rows = "1 bad row" if bad == 1 else f"{bad:,} bad rows"
        say(f"warning: {rows} of {InputPlace(file)} skipped, {first}", err=True)
    elif bad:
        for row_error in row_errors:
            say(*render_row_error(row_error, file), err=True)
        if bad > len(row_errors):
            say(f"error: and {bad - len(row_errors):,} more bad rows", err=True)
        say("       --skip-bad skips them", err=True)
        raise typer.Exit(ExitCode.BAD_INPUT)
    return inputs


def render_row_error(row_error: RowError, file: str) -> list[str]:
    """Return the lines that say what is wrong in a file, where, and how to fix it."""
    place = InputPlace(file, line=row_error.line, column=row_error.column)
    subject = f"row {row_error.subject}" if row_error.subject else ""
    return render(InputProblem(place, row_error.text, subject, row_error.fix)).splitlines()
