"""Sweeps over Dask workers on loopback: the digits of one process, whatever happens to workers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.simulate.algorithms import find_algorithm
from keepclose.simulate.datasets import InMemoryRows, open_dataset
from keepclose.simulate.engine import run_simulation
from keepclose.simulate.sweep import MOST_LOSSES, run_sweep
from keepclose.simulate.sweep_cluster import SweepError, SweepFault, check_address
from support.certificates import Authority
from support.dask_clusters import DaskProcess, started_scheduler, started_worker
from support.hostile.rawclients import wait_until

distributed = pytest.importorskip("distributed")

ALGORITHMS = [find_algorithm("local"), find_algorithm("balanced")]
INPUTS = open_dataset("random-empty-zones", rows=6000, seed=4)
TASK_ROWS = 500
COMMAND = "import sys; from keepclose.cli.main import run; sys.argv[0] = 'keepclose'; run()"
# NB: a shell that starts pytest in the background lets it ignore interrupts.
INTERRUPTIBLE = (
    f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {COMMAND}"
)
# A command that hangs fails its test.
HANGS_S = 240
WITHOUT_DASK = f"import sys; sys.modules['distributed'] = None; {COMMAND}"


@pytest.fixture(scope="module")
def scheduler() -> Iterator[DaskProcess]:
    """Start a scheduler for the tests of this module."""
    with started_scheduler() as process:
        yield process


def sweep(address: str, **options: Any) -> Any:
    """Return the summaries of a sweep over the inputs."""
    return run_sweep(INPUTS, ALGORITHMS, scheduler=address, task_rows=TASK_ROWS, **options)


def call(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `keepclose simulate` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, "simulate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )


def count_tasks(client: Any) -> int:
    """Return the tasks that the scheduler of a client knows."""
    # NB: a lambda is sent whole; the scheduler cannot import this module.
    count: int = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    return count


@contextmanager
def begun_sweep(client: Any) -> Iterator[subprocess.Popen[str]]:
    """Start `keepclose simulate`, which gets interrupts, and wait until it has submitted tasks."""
    arguments = ["--dataset", "kep2004-5zones", "--algorithm", "local"]
    arguments += ["--scheduler", client.scheduler.address]
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "simulate", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            wait_until(lambda: command.poll() is not None or count_tasks(client) > 0, "tasks")
            assert command.poll() is None
            yield command
        finally:
            command.kill()


def test_a_worker_killed_in_the_middle_changes_no_digit(
    scheduler: DaskProcess, tmp_path: Path
) -> None:
    """Two workers, one killed after the first result, give all figures of one process."""
    done: list[int] = []
    with (
        started_worker(scheduler, tmp_path / "one") as first,
        started_worker(scheduler, tmp_path / "two") as second,
    ):

        def kill_first(rows: int) -> None:
            if not done:
                first.kill()
            done.append(rows)

        got = sweep(scheduler.address, tasks_per_thread=2, progress=kill_first)
        with distributed.Client(scheduler.address, set_as_default=False) as client:
            left = list(client.nthreads())

    assert got == run_simulation(INPUTS, ALGORITHMS)
    assert done == list(range(TASK_ROWS, INPUTS.rows + 1, TASK_ROWS))
    assert left == [second.address]


def test_the_command_prints_what_it_prints_without_a_cluster(
    scheduler: DaskProcess, tmp_path: Path
) -> None:
    """All figures in JSON, of a sample of five zones, are those of one process."""
    arguments = ("--dataset", "kep2004-5zones", "--sample", "300", "--algorithm", "local")
    with started_worker(scheduler, tmp_path):
        swept = call(COMMAND, *arguments, "-o", "json", "--scheduler", scheduler.address)
    alone = call(COMMAND, *arguments, "-o", "json")

    assert (swept.returncode, swept.stderr) == (0, "")
    got, want = json.loads(swept.stdout), json.loads(alone.stdout)
    assert got["inputs"] == 300
    assert got["algorithms"] == want["algorithms"]


def test_a_worker_with_other_code_computes_nothing(scheduler: DaskProcess, tmp_path: Path) -> None:
    """Digits of other code are not mixed in; the error says what differs."""
    with (
        started_worker(scheduler, tmp_path, has_other_code=True),
        pytest.raises(SweepError, match=r"a worker has keepclose .*0123456789ab.* instead") as got,
    ):
        sweep(scheduler.address)

    assert got.value.fault is SweepFault.OTHER_VERSIONS
    assert "same wheel" in got.value.fix


def test_a_range_that_always_fails_ends_the_sweep(scheduler: DaskProcess, tmp_path: Path) -> None:
    """It is tried again a few times; the error has the inputs and the cause."""
    bad = replace(find_algorithm("local"), threshold="much")
    with (
        started_worker(scheduler, tmp_path),
        pytest.raises(SweepError, match=f"failed {MOST_LOSSES} times: could not convert") as got,
    ):
        run_sweep(INPUTS, [bad], scheduler=scheduler.address, task_rows=TASK_ROWS)

    assert got.value.fault is SweepFault.FAILED


def test_other_versions_of_dask_are_refused(tmp_path: Path) -> None:
    """A scheduler with another version of distributed gets no task."""
    with (
        started_scheduler(other_version_of="distributed") as other,
        started_worker(other, tmp_path),
        pytest.raises(SweepError, match=r"the scheduler at .* distributed 2020\.1 instead") as got,
    ):
        sweep(other.address)

    assert got.value.fault is SweepFault.OTHER_VERSIONS


def test_workers_that_never_come_end_the_sweep(scheduler: DaskProcess) -> None:
    """Without workers the command ends after its time limit, and says how to start some."""
    # The time limit is that of the connection too, which may take seconds on a busy machine.
    arguments = ("--scheduler", scheduler.address, "--scheduler-timeout", "10s")
    done = call(COMMAND, "--algorithm", "local", *arguments)

    assert done.returncode == 4
    assert done.stderr == (
        "error: --scheduler: the scheduler has had no worker for 10 s\n"
        "       start workers: dask worker ADDRESS, where the wheel of keepclose is installed\n"
    )


def test_a_scheduler_that_goes_away_ends_the_sweep(tmp_path: Path) -> None:
    """Without its scheduler a sweep ends with an error, although workers are there."""
    with (
        started_scheduler() as mortal,
        started_worker(mortal, tmp_path),
        pytest.raises(SweepError, match="has gone") as got,
    ):
        sweep(mortal.address, tasks_per_thread=2, progress=lambda _: mortal.kill())

    assert got.value.fault is SweepFault.UNREACHABLE


def test_a_scheduler_that_stands_still_ends_the_sweep(tmp_path: Path) -> None:
    """A scheduler that keeps its connections and answers nothing counts as gone."""
    with (
        started_scheduler() as mortal,
        started_worker(mortal, tmp_path),
        pytest.raises(SweepError, match="has gone: it has not answered for 10 s") as got,
    ):
        sweep(
            mortal.address, tasks_per_thread=2, worker_wait_s=10, progress=lambda _: mortal.pause()
        )

    assert got.value.fault is SweepFault.UNREACHABLE


def test_a_port_that_says_nothing_is_no_scheduler() -> None:
    """A port that accepts connections and never answers ends the command after its time limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        arguments = ("--scheduler", address, "--scheduler-timeout", "1s")
        done = call(COMMAND, "--algorithm", "local", *arguments)

    problem, *fix = done.stderr.splitlines()
    assert done.returncode == 4
    assert problem.startswith(f"error: --scheduler: no Dask scheduler answers at {address}: ")
    assert fix == ["       start one with dask scheduler, and pass the address that it prints"]


@pytest.mark.parametrize(
    ("address", "want"),
    [
        pytest.param("tcp://127.0.0.1:1", "no Dask scheduler answers at tcp://", id="no listener"),
        pytest.param("tls://127.0.0.1:1", "tls://127.0.0.1:1 cannot be used", id="no certificate"),
    ],
)
def test_an_address_without_a_scheduler_is_reported(address: str, want: str) -> None:
    """The error names the address and the cause; nothing else is printed."""
    arguments = ("--scheduler", address, "--scheduler-timeout", "1s")
    done = call(COMMAND, "--algorithm", "local", *arguments)

    assert done.returncode == 4
    assert done.stderr.startswith(f"error: --scheduler: {want}")
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert address.startswith("tcp") or "name the certificates" in done.stderr


def test_another_program_is_no_scheduler() -> None:
    """What a web server answers is not shown as a size of memory."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            # NB: the client ends the connection in the middle of the answer.
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 65536)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        done = call(COMMAND, "--algorithm", "local", "--scheduler", address)

    assert done.returncode == 4
    problem = f"error: --scheduler: no Dask scheduler answers at {address}: another program"
    assert done.stderr.startswith(problem)


def test_a_cluster_may_use_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of docs/howto/sweeps.md name certificates to all three; else it says so."""
    authority = Authority()
    pair = authority.issue("sweeps")
    files = {
        "CA_FILE": authority.certificate,
        "SCHEDULER__CERT": pair.certificate,
        "SCHEDULER__KEY": pair.key,
        "WORKER__CERT": pair.certificate,
        "WORKER__KEY": pair.key,
        "CLIENT__CERT": pair.certificate,
        "CLIENT__KEY": pair.key,
    }
    with monkeypatch.context() as variables:
        variables.setenv("DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME", "tls")
        variables.setenv("DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION", "true")
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
            variables.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{name}", str(tmp_path / name))
        with started_scheduler() as encrypted, started_worker(encrypted, tmp_path / "worker"):
            address = encrypted.address
            sample = ("--dataset", "kep2004-4zones", "--sample", "100", "--algorithm", "local")
            done = call(COMMAND, *sample, "--scheduler", address)
            assert (done.returncode, done.stderr) == (0, "")
            assert address.startswith("tls://127.0.0.1:")
            # Another authority is not trusted.
            (tmp_path / "CA_FILE").write_bytes(Authority().certificate)
            done = call(COMMAND, *sample, "--scheduler", address)
    assert done.returncode == 4
    assert done.stderr.startswith(f"error: --scheduler: no Dask scheduler answers at {address}")
    assert "docs/howto/sweeps.md" in done.stderr


@pytest.mark.parametrize(
    ("address", "want"),
    [
        pytest.param("nonsense", "nonsense cannot be used as a scheduler: missing port", id="port"),
        pytest.param("tcp://:1", "tcp://:1 cannot be used as a scheduler: missing host", id="host"),
        pytest.param("http://h:1", "http://h:1 cannot be used as a scheduler: unkn", id="scheme"),
        pytest.param("tcp://h:0", "tcp://h:0 cannot be used as a scheduler: no port 0", id="zero"),
        pytest.param("tcp://h:99999", "tcp://h:99999 cannot be used", id="large port"),
        pytest.param("tcp://h:1/x", "tcp://h:1/x cannot be used", id="path"),
        pytest.param("tcp://::1:8786", "tcp://::1:8786 cannot be used", id="no brackets"),
        pytest.param("tcp://me:s3c/r@t@h:1", "tcp://***@h:1 cannot be used", id="password"),
        pytest.param("me:s3c/r@t@h:1", "***@h:1 cannot be used", id="password only"),
    ],
)
def test_what_is_no_address_is_refused_without_dask(address: str, want: str) -> None:
    """The error names the address, without a password, and the cause; nothing is connected."""
    done = call(WITHOUT_DASK, "--algorithm", "local", "--scheduler", address)

    assert done.returncode == 4
    assert done.stderr.startswith(f"error: --scheduler: {want}")
    assert "s3c" not in done.stderr


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:8786", "tls://dask.example:1", "tcp://[::1]:65535", "10.0.0.5:8786"],
)
def test_addresses_that_dask_prints_are_taken(address: str) -> None:
    """Names, both families, TLS, and no scheme for tcp."""
    check_address(address)


def test_rows_of_files_stay_here(scheduler: DaskProcess) -> None:
    """Only a data set by name can be swept, because its tasks hold no rows."""
    with pytest.raises(SweepError, match="the rows of mine are not sent") as got:
        run_sweep(
            InMemoryRows(("a",), [1], [1], name="mine"), ALGORITHMS, scheduler=scheduler.address
        )

    assert got.value.fault is SweepFault.BAD_REQUEST


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["--input", "-"], "the rows of a file are not sent", id="file"),
        pytest.param(["--output", "x.csv"], "the results of every input do not leave", id="output"),
        pytest.param(["--scheduler-timeout", "0"], "must be more than 0", id="no time"),
        pytest.param(["--scheduler-timeout", "soon"], "must be a duration", id="no duration"),
    ],
)
def test_options_that_exclude_a_scheduler(arguments: list[str], want: str) -> None:
    """They end the command before anything is connected."""
    done = call(WITHOUT_DASK, "--scheduler", "tcp://127.0.0.1:1", *arguments)

    assert (done.returncode, want in done.stderr) == (2, True), done.stderr


def test_without_dask_the_extra_is_named() -> None:
    """The error names the packages, the extra and the wheel."""
    done = call(WITHOUT_DASK, "--scheduler", "tcp://127.0.0.1:1", "--sample", "10")

    assert done.returncode == 2
    assert done.stderr == (
        "error: --scheduler needs dask and distributed\n"
        "       install the wheel of keepclose with its extra [dask]: docs/howto/install.md\n"
    )


def test_without_a_scheduler_dask_is_not_imported() -> None:
    """A simulation in this process loads no module of Dask."""
    program = (
        "import atexit, sys; atexit.register(lambda: print('dask' in sys.modules, 'distributed' in"
        f" sys.modules, 'keepclose.simulate.engine' in sys.modules, file=sys.stderr)); {COMMAND}"
    )
    done = call(program, "--sample", "10", "--algorithm", "local")

    assert (done.returncode, done.stderr) == (0, "False False True\n")


def test_ctrl_c_cancels_the_tasks(scheduler: DaskProcess, tmp_path: Path) -> None:
    """After an interrupt the command ends, and the scheduler has nothing left to do."""
    with (
        started_worker(scheduler, tmp_path),
        distributed.Client(scheduler.address, set_as_default=False) as client,
        begun_sweep(client) as command,
    ):
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=HANGS_S)
        wait_until(lambda: count_tasks(client) == 0, "a scheduler without tasks")

    assert command.returncode == 130
    assert "Traceback" not in errors


def test_ctrl_c_ends_a_sweep_whose_scheduler_stands_still(tmp_path: Path) -> None:
    """An interrupt does not wait for the answer of the scheduler."""
    with (
        started_scheduler() as mortal,
        started_worker(mortal, tmp_path),
        distributed.Client(mortal.address, set_as_default=False) as client,
        begun_sweep(client) as command,
    ):
        mortal.pause()
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=HANGS_S)
        # The client of this test waits for the scheduler when it closes.
        mortal.resume()

    assert command.returncode == 130
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
