"""Files that hold secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.system.private_files import (
    BrokenFileError,
    create_private,
    create_private_directory,
    read_private,
    write_private,
)


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return path.stat().st_mode & 0o777


def test_what_is_written_is_for_the_owner_alone(tmp_path: Path) -> None:
    """Directory and file are private, also where an open file was before, and nothing is left."""
    path = tmp_path / "deep" / "secrets" / "key"
    create_private_directory(path.parent)
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert (path.read_bytes(), mode(path), mode(path.parent)) == (b"new", 0o600, 0o700)
    assert list(path.parent.iterdir()) == [path]


def test_of_two_creators_the_first_one_wins(tmp_path: Path) -> None:
    """Creating never replaces, and says whether it created."""
    path = tmp_path / "token"
    assert [create_private(path, b"first"), create_private(path, b"second")] == [True, False]
    assert (path.read_bytes(), mode(path), list(tmp_path.iterdir())) == (b"first", 0o600, [path])


def test_a_failed_write_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    """A directory in the way stops the write without a trace."""
    path = tmp_path / "key"
    path.mkdir()
    with pytest.raises(OSError, match="key"):
        write_private(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_reading_closes_a_file_that_others_could_read(tmp_path: Path) -> None:
    """A file that was copied carelessly is made private; one that is missing reads as None."""
    path = tmp_path / "key"
    path.write_bytes(b"content")
    path.chmod(0o640)
    assert (read_private(path), mode(path)) == (b"content", 0o600)
    assert read_private(tmp_path / "absent") is None


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error names the file, the problem and the way out."""
    with pytest.raises(BrokenFileError) as caught:
        read_private(tmp_path)
    assert caught.value.path == tmp_path
    assert str(caught.value) == (
        f"{tmp_path}: cannot be read (Is a directory); make it readable or remove it"
    )
