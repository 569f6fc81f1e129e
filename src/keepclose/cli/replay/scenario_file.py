"""Reads a scenario from a file or standard input, and reports problems with their lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import typer
from msgspec.structs import replace

from keepclose.advise.replaying.scenario import ReplayScenario
from keepclose.advise.replaying.scenario_reading import ScenarioProblem, read_scenario
from keepclose.cli.exit import ExitCode
from keepclose.cli.manifests.documents import DocumentError, RawObject, line_of, read_documents
from keepclose.cli.manifests.problems import InputPlace, InputProblem, render
from keepclose.cli.options import parse_duration
from keepclose.cli.render.output import say
from keepclose.system.files import InputError, read_input, read_standard_input

STANDARD_INPUT = "-"
MAX_SCENARIO_BYTES = 1 << 20
"""The size of a scenario."""
MAX_SHOWN_PROBLEMS = 20


class WrittenScenario(NamedTuple):
    """A scenario, and where it was written."""

    scenario: ReplayScenario
    file: str
    raw: RawObject


def read_scenario_file(file: str) -> WrittenScenario:
    """Return the scenario in a file; problems end the command."""
    try:
        if file == STANDARD_INPUT:
            data = read_standard_input(most=MAX_SCENARIO_BYTES)
        else:
            data = read_input(file, most=MAX_SCENARIO_BYTES)
        text = data.decode("utf-8-sig")
    except InputError as error:
        _fail([InputProblem(InputPlace(file), f"cannot be read: {error}", fix=error.fix)])
    except UnicodeDecodeError:
        _fail([InputProblem(InputPlace(file), "not UTF-8 text", fix="save the file as UTF-8")])
    entries = read_documents(text, is_json=file.endswith(".json"))
    for entry in entries:
        if isinstance(entry, DocumentError):
            place = InputPlace(file, line=entry.line, column=entry.column)
            _fail([InputProblem(place, entry.message, fix=entry.fix)])
    found = [entry for entry in entries if isinstance(entry, RawObject)]
    if len(found) != 1:
        text = f"expected one scenario, got {len(found)}"
        _fail([InputProblem(InputPlace(file), text, fix="write one map with service and events")])
    scenario = read_scenario(found[0].value, parse_duration=parse_duration)
    if isinstance(scenario, list):
        _fail_at(scenario, file, found[0])
    return WrittenScenario(scenario, file, found[0])


def show_problems(problems: Sequence[ScenarioProblem], written: WrittenScenario) -> NoReturn:
    """Report what is wrong with a scenario, and end the command."""
    _fail_at(problems, written.file, written.raw)


def _fail_at(problems: Sequence[ScenarioProblem], file: str, raw: RawObject) -> NoReturn:
    # NB: to find a line, the text is parsed again.
    shown = [_located(problem, file, raw) for problem in problems[:MAX_SHOWN_PROBLEMS]]
    _fail(shown, more=len(problems) - len(shown))


def _located(problem: ScenarioProblem, file: str, raw: RawObject) -> InputProblem:
    place = InputPlace(file, line=raw.line)
    if raw.source is not None:
        place = replace(place, line=line_of(raw.source, problem.field, problem.value))
    text = f"{problem.field}: {problem.message}" if problem.field else problem.message
    return InputProblem(place, text, fix=problem.fix)


def _fail(problems: Sequence[InputProblem], *, more: int = 0) -> NoReturn:
    for problem in problems:
        say(*render(problem).splitlines(), err=True)
    if more:
        say(f"error: and {more:,} more problems", err=True)
    raise typer.Exit(ExitCode.BAD_INPUT)
