"""A process is signalled only when it is the one that was meant, not one that has its number."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepclose.lab.cluster.data_dir import (
    ClusterDirectory,
    Holder,
    NotRunningError,
    claim_data_dir,
    holder_of,
    identify_self,
    parse_holder,
    send_signal,
)
from keepclose.lab.cluster.launch import StillRunningError, end_cluster


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that has nothing to do with a cluster."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{pid}", id="a number alone"),
        pytest.param("{pid} 1", id="another start"),
        pytest.param("{pid} x", id="no number"),
        pytest.param("-{pid} 1", id="a process group"),
        pytest.param("1 1", id="the first process"),
        pytest.param("0 0", id="zero"),
        pytest.param("-1 0", id="every process"),
    ],
)
def test_a_planted_number_is_not_signalled(
    tmp_path: Path, innocent: subprocess.Popen[bytes], content: str
) -> None:
    """While a third process holds the lock, the file names an innocent one, which lives on."""
    lock = tmp_path / "lab.lock"
    lock.write_text(content.format(pid=innocent.pid))
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StillRunningError):
            end_cluster(ClusterDirectory(tmp_path, is_kept=True))
    assert innocent.poll() is None


def test_the_holder_itself_is_signalled(tmp_path: Path) -> None:
    """The process that claimed the directory is ended, and its files are cleared."""
    home = ClusterDirectory(tmp_path / "home")
    code = (
        "import signal, sys; from pathlib import Path\n"
        "from keepclose.lab.cluster.data_dir import ClusterDirectory, claim_data_dir\n"
        "claim = claim_data_dir(ClusterDirectory(Path(sys.argv[1])))\n"
        "print('ready', flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home.directory)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        holder = holder_of(home)
        assert holder is not None
        assert holder.pid == process.pid
        assert end_cluster(home)
        assert process.wait(30) == -signal.SIGTERM
    assert not home.directory.exists()


def test_a_number_that_was_given_again(innocent: subprocess.Popen[bytes]) -> None:
    """Of two processes of one number the later one gets no signal meant for the earlier."""
    with pytest.raises(NotRunningError):
        send_signal(Holder(innocent.pid, 1), signal.SIGKILL)
    assert innocent.poll() is None


def test_a_process_that_has_ended() -> None:
    """The signal for a process that is gone reaches none."""
    with subprocess.Popen(["true"]) as process:
        pass
    with pytest.raises(NotRunningError):
        send_signal(Holder(process.pid, 1), signal.SIGTERM)


def test_a_name_with_parentheses(tmp_path: Path) -> None:
    """The time of start is found whatever a process calls itself."""
    link = tmp_path / "a) R 1 (b"
    link.symlink_to("/bin/sleep")
    with subprocess.Popen([str(link), "600"]) as process:
        try:
            with pytest.raises(NotRunningError):
                send_signal(Holder(process.pid, 1), signal.SIGKILL)
            assert process.poll() is None
        finally:
            process.kill()


def test_identity_of_this_process(tmp_path: Path) -> None:
    """What a claim writes is read as this very process."""
    claim = claim_data_dir(ClusterDirectory(tmp_path / "home"))
    try:
        holder = holder_of(claim.data_dir)
        assert holder == parse_holder(identify_self())
        assert holder is not None
        assert holder.pid == os.getpid()
    finally:
        claim.release()
