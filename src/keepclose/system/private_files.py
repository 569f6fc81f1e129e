"""Private directories and files: for secrets, and safe from other users of the machine.

A directory is used only if it belongs to this user and no other user can write to it; one that
others can read is closed to them. A user who can write to a directory above it could replace it, so
those are checked too. Files are opened relative to the open directory, never through a symbolic
link, and never block: a named pipe in the place of a file is rejected, as a directory is.

New content is written under a temporary name with mode 0600 and renamed, so that a reader sees the
old content or the new. A file that exists but cannot be used stops the start: a new secret in its
place would lock out every client that has the old one.
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

_FILE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SUDO_USER: Final = "SUDO_UID"
_ROOT: Final = 0


def create_private_directory(path: Path) -> None:
    """Create the directory and its parents; only the owner can read it."""
    PrivateDirectory.open(path, make=True).close()


def write_private(path: Path, content: bytes) -> None:
    """Write the content to the path, readable by the owner alone."""
    with PrivateDirectory.open(path.parent) as directory:
        directory.write(path.name, content)


def create_private(path: Path, content: bytes) -> bool:
    """Write the content to the path unless a file exists; return whether it was written.

    Of several concurrent creates exactly one succeeds.
    """
    with PrivateDirectory.open(path.parent) as directory:
        return directory.create(path.name, content)


def read_private(path: Path) -> bytes | None:
    """Return the content of a file, and make it private; None without a file."""
    try:
        directory = PrivateDirectory.open(path.parent)
    except FileNotFoundError:
        return None
    with directory:
        return directory.read(path.name)


def remove_private(path: Path) -> None:
    """Remove a file; a missing one is ignored."""
    with PrivateDirectory.open(path.parent) as directory:
        directory.remove(path.name)


class BrokenFileError(Exception):
    """A file or directory that cannot be used, with the fix."""

    def __init__(self, path: Path, problem: str, fix: str) -> None:
        """Take the path, the problem and the fix."""
        super().__init__(f"{path}: {problem}; {fix}")
        self.path = path


class ForeignDirectoryError(BrokenFileError):
    """A directory that another user owns or could replace."""


class PrivateDirectory:
    """An open directory of this user; use it as a context, or close it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take the descriptor of a checked directory; use `open` instead."""
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, make: bool = False) -> Self:
        """Open the directory; `make` creates it and its parents where they are missing.

        Raise ForeignDirectoryError when another user owns or could replace it, and OSError.
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
        """Return whether an entry of any type exists."""
        try:
            os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open_file(self, name: str, flags: int) -> int:
        """Return a descriptor of a regular file of this user; O_CREAT creates it with mode 0600.

        Raise FileNotFoundError without a file, and BrokenFileError for an entry that is not a
        regular file or belongs to another user.
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
        """Return the content of a file, and make it private; None without a file."""
        try:
            descriptor = self.open_file(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_mode & 0o077:
                os.fchmod(descriptor, 0o600)
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Write the content under the name, readable by the owner alone."""
        with self._written_to_temporary(name, content) as temporary:
            os.rename(temporary, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def create(self, name: str, content: bytes) -> bool:
        """Write the content under the name unless it exists; return whether it was written.

        Of several concurrent creates exactly one succeeds.
        """
        with self._written_to_temporary(name, content) as temporary:
            try:
                os.link(temporary, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            except FileExistsError:
                return False
            return True

    def remove(self, name: str) -> None:
        """Remove an entry, recursively; a missing one is ignored."""
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(name, dir_fd=self.descriptor)
            else:
                os.unlink(name, dir_fd=self.descriptor)

    def make_directory(self, name: str) -> None:
        """Create a directory in this one, or check the existing one."""
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self.path / name
        try:
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
        except OSError as error:
            raise BrokenFileError(path, "is not a directory", "move it away") from error
        try:
            _check_owner(path, descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _written_to_temporary(self, name: str, content: bytes) -> Iterator[str]:
        temporary = f".{name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
        descriptor = os.open(temporary, flags, 0o600, dir_fd=self.descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self.descriptor)


def open_append(path: Path) -> int:
    """Return a descriptor for appending to a file of this user, which is created if missing.

    For logs: the program must have checked the directory at its start.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _FILE_FLAGS
    descriptor = os.open(path, flags, 0o600)
    try:
        if str(path) != os.devnull:
            _check_file(path, os.fstat(descriptor), is_written=True)
        # NB: writers of a log expect blocking writes.
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
    # NB: a second link may be a file elsewhere, which must not be written.
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
            f"check its content, then: chmod 700 {path}",
        )
    if status.st_mode & 0o077:
        os.fchmod(descriptor, 0o700)


def _check_link(path: Path) -> None:
    """Reject a symbolic link of another user in the place of the directory."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in _trusted_owners():
        raise ForeignDirectoryError(
            path,
            f"is a symbolic link of another user ({status.st_uid})",
            "choose a directory of your own, best one that does not exist yet",
        )


def _check_parents(path: Path) -> None:
    """Reject a directory that another user could replace."""
    trusted = _trusted_owners()
    for parent in path.resolve().parents:
        status = parent.stat()
        is_open = status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX
        if status.st_uid in trusted and not is_open:
            continue
        why = "can be written by every user" if is_open else f"belongs to user {status.st_uid}"
        raise ForeignDirectoryError(
            path,
            f"could be replaced by another user: {parent} {why}",
            "choose a directory in your home, such as ~/cluster",
        )


def _trusted_owners() -> frozenset[int]:
    """Return the users who may own parent directories: root, this user, the caller of sudo."""
    trusted = {_ROOT, os.geteuid()}
    caller = os.environ.get(_SUDO_USER, "")
    if os.geteuid() == _ROOT and caller.isdecimal():
        trusted.add(int(caller))
    if _is_mapped():
        # In a user namespace all unmapped users, root among them, have the overflow id.
        trusted.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    return frozenset(trusted)


def _is_mapped() -> bool:
    """Return whether this process is in a user namespace that does not map all users."""
    ranges = Path("/proc/self/uid_map").read_text().split()
    return ranges != ["0", "0", "4294967295"]
