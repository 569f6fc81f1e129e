"""Directories that are ours alone, and their files, opened so that no other user can fool us.

A directory is used when it belongs to this user and no other user can write to it; one that others
can only read is closed to them. A user who can write to a directory above it could put another in
its place, so those are looked at too. Files are opened relative to the open directory, never by way
of a symbolic link, and never wait: a named pipe in the place of a file is refused as a directory
is. New content comes under a fresh name with mode 0600 and takes its place in one step.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

__all__ = [
    "BrokenFileError",
    "create_private",
    "make_private_directory",
    "read_private",
    "remove_private",
    "write_private",
]
_FILE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SUDO_USER: Final = "SUDO_UID"
_ROOT: Final = 0


def make_private_directory(path: Path) -> None:
    """Make the directory, with those above it; what it holds is for its owner alone."""
    PrivateDirectory.open(path, make=True).close()


def write_private(path: Path, content: bytes) -> None:
    """Put the content at the path, readable by the owner alone."""
    with PrivateDirectory.open(path.parent) as directory:
        directory.write(path.name, content)


def create_private(path: Path, content: bytes) -> bool:
    """Put the content at the path unless there is a file; return whether there was none.

    Of several that create at the same time one succeeds.
    """
    with PrivateDirectory.open(path.parent) as directory:
        return directory.create(path.name, content)


def read_private(path: Path) -> bytes | None:
    """Return what the file holds, and take it from everyone but its owner; None without a file."""
    try:
        directory = PrivateDirectory.open(path.parent)
    except FileNotFoundError:
        return None
    with directory:
        return directory.read(path.name)


def remove_private(path: Path) -> None:
    """Remove a file; a missing one is fine."""
    with PrivateDirectory.open(path.parent) as directory:
        directory.remove(path.name)


class BrokenFileError(Exception):
    """A file or directory that cannot be used, and what to do about it."""

    def __init__(self, path: Path, problem: str, fix: str) -> None:
        """Name the file, what is wrong with it and the way out."""
        super().__init__(f"{path}: {problem}; {fix}")
        self.path = path


class ForeignDirectoryError(BrokenFileError):
    """A directory that another user has, or could exchange for another."""


class PrivateDirectory:
    """An open directory of this user; use it as a context, or close it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Hold the descriptor of a directory that was looked at; `open` does that."""
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, make: bool = False) -> Self:
        """Open the directory, with `make` creating it and those above it where they are missing.

        Raises ForeignDirectoryError where another user has it or could exchange it, and OSError.
        """
        if make:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_link(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return cls._checked(path, descriptor)

    @classmethod
    def _checked(cls, path: Path, descriptor: int) -> Self:
        try:
            _check_owner(path, descriptor)
            _check_parents(path)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def __enter__(self) -> Self:
        """Return the directory."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the directory."""
        self.close()

    def close(self) -> None:
        """Close the directory; its files stay open."""
        os.close(self.descriptor)

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        return sorted(os.listdir(self.descriptor))  # noqa: PTH208 - the open directory

    def has(self, name: str) -> bool:
        """Return whether there is an entry of any kind."""
        try:
            os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open_file(self, name: str, flags: int) -> int:
        """Return a descriptor of a regular file of ours; O_CREAT creates it with mode 0600.

        Raises FileNotFoundError without a file, and BrokenFileError for one that is something else
        than a file, or that belongs to another user.
        """
        path = self.path / name
        try:
            descriptor = os.open(name, flags | _FILE_FLAGS, 0o600, dir_fd=self.descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unreadable(path, error.errno) from error
        try:
            _check_file(path, os.fstat(descriptor), is_written=bool(flags & os.O_ACCMODE))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, name: str) -> bytes | None:
        """Return what the file holds, and take it from everyone but its owner; None without one."""
        try:
            descriptor = self.open_file(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_mode & 0o077:
                os.fchmod(descriptor, 0o600)
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Put the content under the name, readable by the owner alone."""
        with self._written_beside(name, content) as beside:
            os.rename(beside, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def create(self, name: str, content: bytes) -> bool:
        """Put the content under the name unless there is an entry; return whether there was none.

        Of several that create at the same time one succeeds.
        """
        with self._written_beside(name, content) as beside:
            try:
                os.link(beside, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            except FileExistsError:
                return False
            return True

    def remove(self, name: str) -> None:
        """Remove an entry with all that is below it; a missing one is fine."""
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(name, dir_fd=self.descriptor)
            else:
                os.unlink(name, dir_fd=self.descriptor)

    def make_directory(self, name: str) -> None:
        """Create a directory in this one, or check the one that is there."""
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self.path / name
        try:
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
        except OSError as error:
            raise BrokenFileError(path, "is no directory", "move it away") from error
        try:
            _check_owner(path, descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _written_beside(self, name: str, content: bytes) -> Iterator[str]:
        beside = f".{name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
        descriptor = os.open(beside, flags, 0o600, dir_fd=self.descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield beside
        finally:
            with suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=self.descriptor)


def open_append(path: Path) -> int:
    """Return a descriptor by which lines are added to a file of ours, which is created if need be.

    For logs: the directory must have been checked when the program started.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _FILE_FLAGS
    descriptor = os.open(path, flags, 0o600)
    try:
        if str(path) != os.devnull:
            _check_file(path, os.fstat(descriptor), is_written=True)
        # NB: what writes to a log expects to wait for a slow disk.
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_file(path: Path, status: os.stat_result, *, is_written: bool) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _unreadable(path, errno.EISDIR)
    if not stat.S_ISREG(status.st_mode):
        raise BrokenFileError(path, "is no regular file", "remove it")
    if status.st_uid != os.geteuid():
        raise BrokenFileError(path, f"belongs to another user ({status.st_uid})", "remove it")
    # NB: a second name would be that of a file elsewhere, which must not be written.
    if is_written and status.st_nlink > 1:
        raise BrokenFileError(path, "is a hard link to another file", "remove it")


def _unreadable(path: Path, number: int | None) -> BrokenFileError:
    if number == errno.ELOOP:
        return BrokenFileError(path, "is a symbolic link", "remove it")
    if number == errno.ENXIO:
        return BrokenFileError(path, "is no regular file", "remove it")
    problem = f"cannot be read ({os.strerror(number or 0)})"
    return BrokenFileError(path, problem, "make it readable or remove it")


def _check_owner(path: Path, descriptor: int) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise ForeignDirectoryError(
            path,
            f"belongs to another user ({status.st_uid})",
            "choose a directory of your own, best one that does not exist yet",
        )
    if status.st_mode & 0o002:
        raise ForeignDirectoryError(
            path,
            "can be written by every user",
            f"look at what it holds, then: chmod 700 {path}",
        )
    if status.st_mode & 0o077:
        os.fchmod(descriptor, 0o700)


def _check_link(path: Path) -> None:
    """Refuse a symbolic link of another user in the place of the directory."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in _trusted_owners():
        raise ForeignDirectoryError(
            path,
            f"is a symbolic link of another user ({status.st_uid})",
            "choose a directory of your own, best one that does not exist yet",
        )


def _check_parents(path: Path) -> None:
    """Refuse a directory that another user could exchange for another."""
    trusted = _trusted_owners()
    for parent in path.resolve().parents:
        status = parent.stat()
        is_open = status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX
        if status.st_uid in trusted and not is_open:
            continue
        why = "can be written by every user" if is_open else f"belongs to user {status.st_uid}"
        raise ForeignDirectoryError(
            path,
            f"could be exchanged by another user: {parent} {why}",
            "choose a directory in your home, such as ~/cluster",
        )


def _trusted_owners() -> frozenset[int]:
    """Return who may have the directories above ours: root, this user, and who called sudo."""
    trusted = {_ROOT, os.geteuid()}
    caller = os.environ.get(_SUDO_USER, "")
    if os.geteuid() == _ROOT and caller.isdecimal():
        trusted.add(int(caller))
    if _is_mapped():
        # In a user namespace of ours all other users, root among them, have one number.
        trusted.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    return frozenset(trusted)


def _is_mapped() -> bool:
    """Return whether this process is in a user namespace that knows not all users."""
    ranges = Path("/proc/self/uid_map").read_text().split()
    return ranges != ["0", "0", "4294967295"]
