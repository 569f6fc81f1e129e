"""Checkpoints: whole or refused, never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.flows.checkpoint import (
    Checkpoint,
    CheckpointError,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from keepclose.flows.ledger import LedgerState

STATE = LedgerState([], [], [], b"", b"", b"", b"", [])
CONTENT = Checkpoint("boot-1", 7, 1.0, 2.0, STATE, lost=3)


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
