"""Files that simulate is told to write: its own input, a pipe that nobody reads, a full device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app

ROWS = "name,a,b\nrow,1 2,3 4\n"


@pytest.fixture(name="source")
def make_source(tmp_path: Path) -> Path:
    """Write a small input."""
    file = tmp_path / "input-local.csv"
    file.write_text(ROWS)
    return file


def simulate(source: Path, *options: str | Path) -> tuple[int, str]:
    """Run the command; return its exit code and what it says of errors."""
    words = ["simulate", "--input", source, "--algorithm", "local", *options]
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stderr


@pytest.mark.parametrize("option", ["--output", "--report"])
@pytest.mark.parametrize("way", ["name", "dots", "link", "hard-link"])
def test_the_input_is_never_overwritten(source: Path, option: str, way: str) -> None:
    """Whatever name the input is given as an output, it stays what it was."""
    other = source.with_name("other.csv")
    if way == "link":
        other.symlink_to(source.name)
    elif way == "hard-link":
        other.hardlink_to(source)
    name = {"name": str(source), "dots": f"{source.parent}/../{source.parent.name}/{source.name}"}
    code, errors = simulate(source, option, name.get(way, str(other)))
    assert (code, source.read_text()) == (2, ROWS)
    assert f"{option} would overwrite the file of --input" in errors


def test_the_file_of_one_algorithm_among_several_is_not_the_input(source: Path) -> None:
    """FILE-<algorithm>.csv may be the name of the input too."""
    output = source.with_name("input.csv")
    code, errors = simulate(source, "--algorithm", "original", "--output", output)
    assert (code, source.read_text()) == (2, ROWS)
    assert "--output would overwrite the file of --input" in errors


def test_the_page_does_not_overwrite_the_results(source: Path) -> None:
    """Both in one file would leave only the page, which comes last."""
    file = source.with_name("both")
    code, errors = simulate(source, "--output", file, "--report", file)
    assert (code, file.exists()) == (2, False)
    assert "--report would overwrite the file of --output" in errors


@pytest.mark.parametrize("option", ["--output", "--report"])
def test_a_pipe_that_nothing_reads_is_refused(source: Path, option: str) -> None:
    """The command does not wait for a reader for ever."""
    pipe = source.with_name("pipe")
    os.mkfifo(pipe)
    code, errors = simulate(source, option, pipe)
    assert code == 2
    assert f"{pipe} cannot be written: it is a pipe from which nothing reads" in errors


def test_a_pipe_with_a_reader_gets_the_results(source: Path) -> None:
    """A program that reads the pipe gets every row."""
    pipe = source.with_name("pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert simulate(source, "--output", pipe)[0] == 0
        assert b"\nrow," in os.read(reader, 1 << 16)
    finally:
        os.close(reader)


@pytest.mark.parametrize("weights", ["1e308,1e308,1e308,1e308", "1e307,0,0,0", "inf,0,0,0"])
def test_weights_beyond_numbers_are_refused(source: Path, weights: str) -> None:
    """Weights whose sum or score is no number any more are named."""
    code, errors = simulate(source, "--weights", weights)
    assert code == 2
    assert errors.startswith("error: --weights: ")
    assert "is more than 1,000,000" in errors
