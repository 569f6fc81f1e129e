"""What commands are given to read, and where they print to, when it is anything but a good file."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from keepclose.system.files import InputError, read_input

KEEPCLOSE = [sys.executable, "-m", "keepclose"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "three-zones.yaml"
SECONDS = 120
READING: dict[str, Callable[[str], list[str]]] = {
    "resolve": lambda path: ["resolve", "-f", path],
    "simulate": lambda path: ["simulate", "--input", path],
    "compare": lambda path: ["simulate", "compare", "local", "original", "--input", path],
    "up": lambda path: ["up", "--manifest", path, "--port", "0"],
    "controller": lambda path: ["controller", "--kubeconfig", path],
    "proxy": lambda path: ["proxy", "--dry-run", "--node-name", "n1", "--kubeconfig", path],
}


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; one that waits for ever fails the test."""
    given = {"stdin": subprocess.DEVNULL, "capture_output": True, **options}
    if "stdout" in given:
        given.pop("capture_output")
        given.setdefault("stderr", subprocess.PIPE)
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*KEEPCLOSE, *arguments], timeout=SECONDS, check=False, **given
    )


def make_fifo(path: Path) -> None:
    """Make a pipe that nothing writes to."""
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    """Leave a socket behind."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def make_loop(path: Path) -> None:
    """Make a link to itself."""
    path.symlink_to(path.name)


def make_sparse(path: Path) -> None:
    """Make a file of a terabyte that takes no room."""
    path.touch()
    os.truncate(path, 1 << 40)


def link_zero(path: Path) -> None:
    """Make a link to a device without an end."""
    path.symlink_to("/dev/zero")


# What is made, and what a message says of it; simulate reads large files, so only their header.
MADE: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (make_fifo, "pipe"),
    "socket": (make_socket, "No such device or address"),
    "directory": (Path.mkdir, "directory"),
    "loop": (make_loop, "Too many levels of symbolic links"),
    "device": (link_zero, "it is a device"),
    "terabyte": (make_sparse, "more than"),
}


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("thing", MADE)
def test_what_is_no_file_is_named_at_once(command: str, thing: str, tmp_path: Path) -> None:
    """Every command that reads a file says what was named instead of one, and ends with 2."""
    make, words = MADE[thing]
    path = tmp_path / "x.yaml"
    make(path)
    if command == "resolve" and thing == "directory":
        words = "the directory has no manifests"
    done = run(*READING[command](str(path)))
    text = done.stderr.decode()
    assert done.returncode == 2, text
    assert words.lower() in text.lower()
    assert str(path) in text
    assert "Traceback" not in text


@pytest.mark.parametrize("thing", [name for name in MADE if name != "directory"])
def test_a_directory_with_something_else_than_files(thing: str, tmp_path: Path) -> None:
    """What lies beside manifests is named, and the manifests are still read."""
    make, words = MADE[thing]
    make(tmp_path / "x.yaml")
    (tmp_path / "y.yaml").write_text("kind: [")
    done = run("resolve", "-f", str(tmp_path))
    text = done.stderr.decode()
    assert done.returncode == 2
    assert words in text
    assert f"in {tmp_path}/x.yaml" in text
    assert f"in {tmp_path}/y.yaml" in text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (EXAMPLE.read_text().encode("utf-16"), "not UTF-8 text"),
        (b"kind: \xe9\n", "not UTF-8 text"),
        (b"\x7fELF\x02\x01\x01\x00", "control character"),
        (b"kind: a\x00b\n", "control character"),
        (os.urandom(1 << 16) + b"\xff", ""),
    ],
    ids=["utf-16", "latin-1", "binary", "nul", "random"],
)
@pytest.mark.parametrize("command", ["resolve", "up"])
def test_bytes_that_are_no_text_are_named(
    command: str, data: bytes, words: str, tmp_path: Path
) -> None:
    """A file in another encoding, or none at all, is named with what is wrong."""
    file = tmp_path / "x.yaml"
    file.write_bytes(data)
    done = run(*READING[command](str(file)))
    text = done.stderr.decode()
    assert done.returncode == 2
    assert words in text
    assert str(file) in text


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    """Editors put it before UTF-8; resolve reads behind it."""
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + EXAMPLE.read_bytes())
    done = run("resolve", "-f", str(file))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["resolve", "simulate", "up"])
def test_standard_input_that_is_closed_is_named(command: str) -> None:
    """A command that is to read what its caller closed says so."""
    line = subprocess.list2cmdline([*KEEPCLOSE, *READING[command]("-")])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{line} <&-"], capture_output=True, timeout=SECONDS, check=False
    )
    text = done.stderr.decode()
    assert done.returncode == 2
    assert "standard input" in text
    assert "it is closed" in text


@pytest.mark.parametrize("command", ["resolve", "simulate", "up"])
def test_standard_input_that_is_a_terminal_is_not_waited_for(command: str) -> None:
    """A command that is to read a terminal says how to give it a file instead."""
    ours, theirs = pty.openpty()
    try:
        done = run(*READING[command]("-"), stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert "it is a terminal" in done.stderr.decode()


def test_the_output_of_a_program_is_read_to_its_end() -> None:
    """A pipe that is named is read, as -f <(kubectl get ...) needs."""
    reader, writer = os.pipe()
    text = EXAMPLE.read_bytes()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            for start in range(0, len(text), 100):
                file.write(text[start : start + 100])
                file.flush()

    process = subprocess.Popen(
        [*KEEPCLOSE, "resolve", "-f", f"/dev/fd/{reader}"],
        pass_fds=[reader],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    os.close(reader)
    thread = threading.Thread(target=write)
    thread.start()
    output, _ = process.communicate(timeout=SECONDS)
    thread.join()
    assert process.returncode == 0
    assert output == run("resolve", "-f", str(EXAMPLE)).stdout


def test_a_pipe_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """A program that never stops writing is left when the limit is reached."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    with subprocess.Popen(["/bin/sh", "-c", f"exec cat /dev/zero > '{fifo}'"]) as process:
        with pytest.raises(InputError, match="more than 1,000,000 bytes"):
            read_input(fifo, most=1_000_000)
        process.kill()


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_a_full_disk_is_named_and_has_its_own_code(form: str) -> None:
    """Output that finds no room ends with an error, and not as if it had been written."""
    with Path("/dev/full").open("wb") as full:
        done = run("resolve", "-f", str(EXAMPLE), "-o", form, stdout=full)
    assert done.returncode == 74
    text = done.stderr.decode()
    assert text.startswith("error: standard output cannot be written: No space left on device")
    assert "Traceback" not in text


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_a_reader_that_went_away_ends_the_command_without_a_word(form: str) -> None:
    """As with | head: no error, and the code of tools that SIGPIPE ends."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("resolve", "-f", str(EXAMPLE), "-o", form, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_an_output_that_is_closed_harms_no_file(form: str) -> None:
    """Nothing is printed, and what is opened later does not get what would have been."""
    line = subprocess.list2cmdline([*KEEPCLOSE, "resolve", "-f", str(EXAMPLE), "-o", form])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{line} >&-"], capture_output=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_manifest_that_no_lab_needs_is_refused_at_once(tmp_path: Path) -> None:
    """A file of 100 MB, or as much from standard input, is not parsed for minutes."""
    file = tmp_path / "large.yaml"
    with file.open("wb") as opened:
        opened.truncate(100 << 20)
    done = run("up", "--manifest", str(file), "--port", "0", "--data-dir", str(tmp_path / "lab"))
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: --manifest ")
    assert b"more than 16,777,216" in done.stderr
    assert b"divide it" in done.stderr
    with file.open("rb") as opened:
        done = run("up", "--manifest", "-", "--data-dir", str(tmp_path / "lab"), stdin=opened)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: --manifest standard input: ")
