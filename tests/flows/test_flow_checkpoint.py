"""Checkpoints: whole or refused, never half."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from keepclose.accounting.attribution import Connection
from keepclose.accounting.flow_table import FlowCounts, FlowKey
from keepclose.flows.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointFile,
    CheckpointUnavailableError,
    LedgerState,
    WaitingState,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)

STATE = LedgerState([], [], [], b"", b"", b"", b"", [])
CONTENT = Checkpoint("boot-1", 7, 1.0, 2.0, 3.0, STATE, lost=3)
IP = bytes((10, 0, 0, 1))
CONNECTION = Connection(6, IP, 1, IP, 2, IP, 2, 1.0)
FULL_STATE = LedgerState(
    [FlowKey()],
    [FlowCounts(1)],
    [b"k1", b"k2"],
    array("Q", [1, 2]).tobytes(),
    array("Q", [3, 4]).tobytes(),
    array("I", [2, 1]).tobytes(),
    bytes((0, 1)),
    [WaitingState(CONNECTION, FlowCounts(1), 1), WaitingState(CONNECTION, FlowCounts(1), -1)],
)
FULL = Checkpoint("boot-1", 7, 1.0, 2.0, 3.0, FULL_STATE, [(FlowKey(), FlowCounts(1))])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """A checkpoint of this boot and namespace is the same after a restart."""
    path = tmp_path / "flows"
    write_checkpoint(path, encode_checkpoint(CONTENT))
    assert read_checkpoint(path, boot="boot-1", namespace=7) == CONTENT
    assert [entry.name for entry in tmp_path.iterdir()] == ["flows"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_file_is_no_error(tmp_path: Path) -> None:
    """The first start finds nothing."""
    assert read_checkpoint(tmp_path / "flows", boot="boot-1", namespace=7) is None


@pytest.mark.parametrize(
    ("boot", "namespace", "want"),
    [
        pytest.param("boot-2", 7, "of another boot", id="another boot"),
        pytest.param("boot-1", 8, "of another network namespace", id="another namespace"),
    ],
)
def test_connections_of_another_kernel_are_refused(
    tmp_path: Path, boot: str, namespace: int, want: str
) -> None:
    """The kernel began again, so its connections are others."""
    path = tmp_path / "flows"
    write_checkpoint(path, encode_checkpoint(CONTENT))
    with pytest.raises(CheckpointError, match=want):
        read_checkpoint(path, boot=boot, namespace=namespace)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(encode_checkpoint(CONTENT)[:-1], id="cut"),
        pytest.param(b"something else", id="another file"),
    ],
)
def test_a_broken_file_is_kept_aside(tmp_path: Path, data: bytes) -> None:
    """A file that does not match its checksum is reported, renamed, and never replaced."""
    path = tmp_path / "flows"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"kept as flows\.broken"):
        read_checkpoint(path, boot="boot-1", namespace=7)
    assert (tmp_path / "flows.broken").read_bytes() == data
    assert not path.exists()


def test_a_full_content_is_read(tmp_path: Path) -> None:
    """Open and waiting connections, flows and what was shown of them are read as written."""
    path = tmp_path / "flows"
    write_checkpoint(path, encode_checkpoint(FULL))
    assert read_checkpoint(path, boot="boot-1", namespace=7) == FULL


def waiting(*entries: tuple[Connection, int]) -> dict[str, Any]:
    """Return waiting connections with their rows as a change of the ledger's state."""
    return {"waiting": [WaitingState(seen, FlowCounts(1), row) for seen, row in entries]}


@pytest.mark.parametrize(
    ("change", "ledger"),
    [
        pytest.param({"lost": -1}, {}, id="a negative number"),
        pytest.param({"gap_s": float("inf")}, {}, id="an infinite gap"),
        pytest.param({"start": float("nan")}, {}, id="a start that is no number"),
        pytest.param({"end": 1e300}, {}, id="an end in the far future"),
        pytest.param({"start": 4.0}, {}, id="an end before the start"),
        pytest.param({"boot_s": -1.0}, {}, id="a time before the boot"),
        pytest.param({"shown": [(FlowKey(), FlowCounts(2))]}, {}, id="more shown than counted"),
        pytest.param({"shown": [(FlowKey(port="x"), FlowCounts())]}, {}, id="shown, not counted"),
        pytest.param({"shown": [(FlowKey(), FlowCounts())] * 2}, {}, id="shown twice"),
        pytest.param({}, {"counts": [FlowCounts(-5)]}, id="a negative count"),
        pytest.param({}, {"counts": [FlowCounts(1 << 63)]}, id="a count that is too large"),
        pytest.param({}, {"counts": [FlowCounts((1 << 63) - 1)]}, id="a sum that is too large"),
        pytest.param({}, {"counts": []}, id="a flow without counts"),
        pytest.param(
            {},
            {"flows": [FlowKey()] * 2, "counts": [FlowCounts(), FlowCounts(1)]},
            id="a flow twice",
        ),
        pytest.param({}, {"unobserved": -1}, id="a negative number of the ledger"),
        pytest.param({}, {"keys": [b"k1", b"k1"]}, id="a connection twice"),
        pytest.param({}, {"flags": b"\0\2"}, id="an unknown flag"),
        pytest.param({}, {"requests": b"123"}, id="half a number"),
        pytest.param({}, {"responses": b""}, id="columns of different lengths"),
        pytest.param({}, {"places": array("I", [9, 1]).tobytes()}, id="a missing flow"),
        pytest.param({}, waiting((CONNECTION, 1), (CONNECTION, 1)), id="two waiting of one row"),
        pytest.param({}, waiting(), id="a waiting connection that is missing"),
        pytest.param({}, waiting((CONNECTION, 1), (CONNECTION, -2)), id="a row that is none"),
        pytest.param({}, waiting((CONNECTION._replace(source=b"zzz"), 1)), id="a short address"),
        pytest.param(
            {}, waiting((CONNECTION._replace(reply_source_port=1 << 16), 1)), id="a large port"
        ),
        pytest.param({}, waiting((CONNECTION._replace(protocol=-1), 1)), id="a protocol below 0"),
        pytest.param(
            {}, waiting((CONNECTION._replace(at=float("inf")), 1)), id="a connection of no time"
        ),
    ],
)
def test_a_content_that_no_agent_writes_is_kept_aside(
    tmp_path: Path, change: dict[str, Any], ledger: dict[str, Any]
) -> None:
    """A checkpoint whose checksum is right and whose content is wrong is reported and renamed."""
    path = tmp_path / "flows"
    state = msgspec.structs.replace(FULL_STATE, **ledger)
    data = encode_checkpoint(msgspec.structs.replace(FULL, **{"ledger": state, **change}))
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"kept as flows\.broken"):
        read_checkpoint(path, boot="boot-1", namespace=7)
    assert (tmp_path / "flows.broken").read_bytes() == data
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    """A directory, a pipe, a path below a file and a directory that is missing are refused."""
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for name, want in (
        ("", "is a directory"),
        ("pipe", "is no regular file"),
        ("file/flows", "cannot be written: Not a directory"),
        ("missing/flows", "cannot be written: No such file"),
        ("n" * 250, "cannot be written: File name too long"),
    ):
        with pytest.raises(CheckpointUnavailableError, match=want):
            CheckpointFile(tmp_path / name).open()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "pipe"]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    """Opening removes temporary files of this checkpoint, and nothing else."""
    kept = ["flows", ".flows.0123", ".other.01234567", ".flows.0123456z"]
    for name in (*kept, ".flows.01234567", ".flows.89abcdef"):
        (tmp_path / name).write_text("x")
    file = CheckpointFile(tmp_path / "flows")
    file.open()
    file.close()
    names = {entry.name for entry in tmp_path.iterdir()}
    assert names == {*kept, ".flows.lock"}


def test_two_agents_do_not_use_one_file(tmp_path: Path) -> None:
    """The second one is refused with the process of the first, until that has closed the file."""
    first, second = CheckpointFile(tmp_path / "flows"), CheckpointFile(tmp_path / "flows")
    first.open()
    with pytest.raises(CheckpointUnavailableError, match=f"another agent, process {os.getpid()}"):
        second.open()
    first.close()
    first.close()
    second.open()
    second.close()


def test_the_lock_of_a_killed_agent_is_gone(tmp_path: Path) -> None:
    """The kernel releases the lock of a process that was killed."""
    program = (
        "import sys, pathlib; from keepclose.flows.checkpoint import CheckpointFile; "
        "CheckpointFile(pathlib.Path(sys.argv[1])).open(); print('open', flush=True); "
        "sys.stdin.read()"
    )
    path = tmp_path / "flows"
    file = CheckpointFile(path)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(CheckpointUnavailableError, match=f"process {process.pid}"):
            file.open()
        process.kill()
    file.open()
    file.close()


def test_each_kind_of_failure_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures are counted and have a reason; the log has each kind, and the end, once."""
    file = CheckpointFile(tmp_path / "flows")
    causes = [errno.ENOSPC, errno.EIO, errno.ENOSPC, errno.EIO]

    def fail(path: Path, data: bytes) -> None:
        del path, data
        cause = causes.pop(0)
        raise OSError(cause, os.strerror(cause), f".flows.{len(causes):08x}")

    with capture_logs() as logs:
        with monkeypatch.context() as patch:
            patch.setattr("keepclose.flows.checkpoint.write_checkpoint", fail)
            while causes:
                assert not asyncio.run(file.save(b"x"))
        assert (file.failures, "Input/output error" in file.problem) == (4, True)
        assert asyncio.run(file.save(b"x"))
        assert asyncio.run(file.save(b"x"))
    assert (file.failures, file.problem) == (4, "")
    assert [log.get("error", log["event"]) for log in logs] == [
        "No space left on device",
        "Input/output error",
        "the checkpoint is written again",
    ]


def test_a_full_disk_at_the_start_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may have room again, so the agent starts and says that nothing is saved."""

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("keepclose.flows.checkpoint._test_write", fail)
    file = CheckpointFile(tmp_path / "flows")
    file.open()
    assert (file.failures, "No space left" in file.problem) == (1, True)
    file.close()
