"""The counts of an agent in a file, so that the next process continues where this one ended.

Written under a temporary name, flushed and renamed, so that a crash leaves the old content or the
new. One agent uses it at a time, by a lock that the kernel releases when the agent dies. It begins
with a format and a checksum: a file that does not match, or whose content no agent writes, is kept
under another name and reported. Connections are those of one boot and one network namespace; a file
of another one is not used, because the kernel began again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import re
import secrets
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog

from keepclose.accounting.attribution import Connection
from keepclose.accounting.flow_table import LATEST_S, Count, FlowCounts, FlowKey
from keepclose.flows.flow_rows import WAITING
from keepclose.model.json_values import INT64_MAX
from keepclose.system.files import InputError, read_input
from keepclose.system.threads import finish_in_thread

MAX_CHECKPOINT_BYTES: Final = 256 << 20
UNCOUNTED: Final = 1
"""The flag of a connection from before the first start, of which only later bytes count."""
_MAGIC: Final = b"keepclose flows 2\n"
_DIGEST_BYTES: Final = 32
_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors that pass without a change of the settings."""
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_PID_DIGITS: Final = 10
_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


_FLAGS: Final = frozenset((0, UNCOUNTED))
_ADDRESS_BYTES: Final = (4, 16)
_MAX_PROTOCOL: Final = 255
_MAX_PORT: Final = 65_535
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_log = structlog.get_logger(__name__)


class WaitingState(msgspec.Struct, frozen=True, array_like=True):
    """A waiting connection in a checkpoint; its row is an index into the open connections."""

    connection: Connection
    counts: FlowCounts
    row: Annotated[int, msgspec.Meta(ge=-1)]
    """-1 if it has ended."""


class LedgerState(msgspec.Struct, frozen=True):
    """All that a ledger knows, for a checkpoint; columns are arrays in the machine's order."""

    flows: list[FlowKey]
    counts: list[FlowCounts]
    keys: list[bytes]
    requests: bytes
    responses: bytes
    places: bytes
    """Indexes of flows, counted from 2: 0 and 1 are IGNORED and WAITING."""
    flags: bytes
    waiting: list[WaitingState]
    unobserved: Count = 0

    def columns(self) -> tuple[array[int], array[int], array[int]]:
        """Return requests, responses and places; raises ValueError if the state is no ledger's."""
        requests, responses, places = array("Q"), array("Q"), array("I")
        requests.frombytes(self.requests)
        responses.frombytes(self.responses)
        places.frombytes(self.places)
        columns = (self.keys, self.flags, requests, responses, places)
        if len({len(column) for column in columns}) != 1 or len(self.flows) != len(self.counts):
            raise ValueError("its columns have different lengths")
        if len(set(self.keys)) != len(self.keys) or len(set(self.flows)) != len(self.flows):
            raise ValueError("a connection or a flow is in it twice")
        if not _FLAGS.issuperset(self.flags):
            raise ValueError("a connection has an unknown flag")
        if max(places, default=0) >= len(self.flows) + 2:
            raise ValueError("a connection has a flow that is missing")
        rows = [entry.row for entry in self.waiting if entry.row >= 0]
        if sorted(rows) != [row for row, place in enumerate(places) if place == WAITING]:
            raise ValueError("its waiting connections are not those that are open")
        for entry in self.waiting:
            _check_connection(entry.connection)
        _check_sums([*self.counts, *(entry.counts for entry in self.waiting)])
        return requests, responses, places


class Checkpoint(msgspec.Struct, frozen=True):
    """The content of a file."""

    boot_id: str
    namespace: int
    """The inode of the network namespace."""
    boot_s: _Seconds
    """When it was written, in seconds since the boot."""
    start: _Seconds
    """When counting began, in seconds of the Unix epoch."""
    end: _Seconds
    """When it was written, by a clock that was right at the start and never jumped since."""
    ledger: LedgerState
    shown: list[tuple[FlowKey, FlowCounts]] = []
    """What the metrics showed under the names of Services, if some were summed up."""
    lost: Count = 0
    walks: Count = 0
    table_full: Count = 0
    gap_s: _Seconds = 0.0


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message says why."""


class CheckpointUnavailableError(Exception):
    """A file that cannot hold checkpoints of this agent; the message says why, and the fix."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


class CheckpointFile:
    """The file of one agent, from its start to its end."""

    def __init__(self, path: Path) -> None:
        """Take the path; open it before use."""
        self.path = path
        self.failures = 0
        """How often it could not be written."""
        self.problem = ""
        """Why it could not be written the last time; "" if it could."""
        self._logged: set[int | None] = set()
        """The errors that were logged since it could be written."""
        self._lock: int | None = None

    def open(self) -> None:
        """Lock the file, remove what a killed writer left, and test that it can be written.

        Raises CheckpointUnavailableError. A full disk raises nothing: it may have room again.
        """
        path, fix = self.path, "name a file in a directory that the agent may write"
        try:
            if path.exists() and not path.is_file():
                kind = "a directory" if path.is_dir() else "no regular file"
                raise CheckpointUnavailableError(f"{path} is {kind}", fix)
            self._lock = _lock(path)
            _remove_leftovers(path)
            _test_write(path)
        except OSError as error:
            if self._lock is not None and error.errno in _FULL_ERRNOS:
                self._record_failure(error)
                return
            self.close()
            raise CheckpointUnavailableError(
                f"{path} cannot be written: {error.strerror}", fix
            ) from None

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def save(self, data: bytes) -> bool:
        """Write the content in a thread; return whether it was written, and log why not."""
        try:
            await finish_in_thread(lambda: write_checkpoint(self.path, data))
        except OSError as error:
            self._record_failure(error)
            return False
        if self.problem:
            _log.info("the checkpoint is written again", file=str(self.path))
        self.problem = ""
        self._logged.clear()
        return True

    def _record_failure(self, error: OSError) -> None:
        self.failures += 1
        self.problem = f"the checkpoint {self.path} cannot be written: {error.strerror}"
        # NB: by its number, because its text has the name of a temporary file.
        if error.errno not in self._logged:
            self._logged.add(error.errno)
            _log.warning(
                "the checkpoint cannot be written; counts stay as they are until it can",
                file=str(self.path),
                error=error.strerror,
            )


def boot_id() -> str:
    """Return the identity of this boot; "" if the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def own_namespace() -> int:
    """Return the inode of the network namespace of the calling thread; raises OSError."""
    return Path("/proc/thread-self/ns/net").stat().st_ino


def seconds_since_boot() -> float:
    """Return the seconds since the boot, in which the machine may have slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the content of a file."""
    content = msgspec.msgpack.encode(checkpoint)
    return _MAGIC + hashlib.sha256(content).digest() + content


def write_checkpoint(path: Path, data: bytes) -> None:
    """Write the content of a file; raises OSError and leaves the old content then."""
    temporary = _temporary(path)
    descriptor = os.open(temporary, _FILE_FLAGS, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of a writer that was killed."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}")
    with suppress(OSError):
        for entry in list(path.parent.iterdir()):
            if pattern.fullmatch(entry.name):
                entry.unlink()


def _test_write(path: Path) -> None:
    """Write a temporary file beside the checkpoint, and remove it; raises OSError."""
    temporary = _temporary(path)
    descriptor = os.open(temporary, _FILE_FLAGS, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC)
            file.flush()
            os.fsync(file.fileno())
    finally:
        temporary.unlink()


def _lock(path: Path) -> int:
    """Lock the file of a checkpoint; raises OSError, CheckpointUnavailableError if it is used."""
    # NB: beside it, because each checkpoint is another file; it stays, because a lock on a file
    # that was removed excludes nothing.
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, _LOCK_FLAGS, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, _MAX_PID_DIGITS, 0)
        os.close(descriptor)
        process = f", process {int(holder)}" if holder.isdigit() else ""
        raise CheckpointUnavailableError(
            f"{path} is used by another agent{process}, which has locked {lock}",
            "stop that agent, or name another file",
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def read_checkpoint(path: Path, *, boot: str, namespace: int) -> Checkpoint | None:
    """Return a checkpoint of this boot and namespace; None if there is no file.

    Raises CheckpointError. A broken file is renamed, so that the next one does not replace it.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    try:
        data = read_input(path, most=MAX_CHECKPOINT_BYTES, takes_pipes=False)
    except InputError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; {_put_aside(path)}") from None
    head = len(_MAGIC) + _DIGEST_BYTES
    content = data[head:]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : head] != hashlib.sha256(content).digest():
        raise CheckpointError(f"{path} is broken or no checkpoint; {_put_aside(path)}")
    try:
        checkpoint = msgspec.msgpack.decode(content, type=Checkpoint)
        _check(checkpoint)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be used: {error}; {_put_aside(path)}") from None
    if checkpoint.boot_id != boot:
        raise CheckpointError(f"{path} is of another boot")
    if checkpoint.namespace != namespace:
        raise CheckpointError(f"{path} is of another network namespace")
    return checkpoint


def _check(checkpoint: Checkpoint) -> None:
    """Raise ValueError for a content that no agent has written: a checksum does not prove that."""
    times = (checkpoint.boot_s, checkpoint.start, checkpoint.end, checkpoint.gap_s)
    if not all(map(math.isfinite, times)):
        raise ValueError("a time in it is not finite")
    if checkpoint.end > LATEST_S:
        raise ValueError("it ends after the year 9999")
    if checkpoint.start > checkpoint.end:
        raise ValueError("it ends before it begins")
    ledger = checkpoint.ledger
    ledger.columns()
    counted = dict(zip(ledger.flows, ledger.counts, strict=True))
    shown = dict(checkpoint.shown)
    if len(shown) != len(checkpoint.shown):
        raise ValueError("a flow that was shown is in it twice")
    for key, counts in shown.items():
        if key not in counted or counted[key].has_fallen_since(counts):
            raise ValueError("it has shown more than it has counted")


def _check_connection(connection: Connection) -> None:
    addresses = (connection.source, connection.destination, connection.reply_source)
    if any(len(address) not in _ADDRESS_BYTES for address in addresses):
        raise ValueError("a connection has an address that is none")
    ports = (connection.source_port, connection.destination_port, connection.reply_source_port)
    if not 0 <= connection.protocol <= _MAX_PROTOCOL or any(
        not 0 <= port <= _MAX_PORT for port in ports
    ):
        raise ValueError("a connection has a port or a protocol that is none")
    if not math.isfinite(connection.at):
        raise ValueError("a time in it is not finite")


def _check_sums(all_counts: Iterable[FlowCounts]) -> None:
    total = FlowCounts()
    for counts in all_counts:
        total.add(counts)
    if max(msgspec.structs.astuple(total)) > INT64_MAX:
        raise ValueError("its counts are too large")


def _put_aside(path: Path) -> str:
    aside = path.with_name(f"{path.name}.broken")
    try:
        path.rename(aside)
    except OSError as error:
        return f"it could not be renamed: {error.strerror}"
    return f"it is kept as {aside.name}"
