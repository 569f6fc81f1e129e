"""The counts of an agent in a file, so that the next process continues where this one ended.

Written under a temporary name, flushed and renamed, so that a crash leaves the old content or the
new. It begins with a format and a checksum: a file that does not match is kept under another name
and reported. Connections are those of one boot and one network namespace; a file of another one is
not used, because the kernel began again.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from keepclose.accounting.attribution import Connection
from keepclose.accounting.flow_table import LATEST_S, Count, FlowCounts, FlowKey
from keepclose.flows.flow_rows import WAITING
from keepclose.model.json_values import INT64_MAX
from keepclose.system.files import InputError, read_input

MAX_CHECKPOINT_BYTES: Final = 256 << 20
UNCOUNTED: Final = 1
"""The flag of a connection from before the first start, of which only later bytes count."""
_MAGIC: Final = b"keepclose flows 1\n"
_DIGEST_BYTES: Final = 32
_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


_FLAGS: Final = frozenset((0, UNCOUNTED))
_ADDRESS_BYTES: Final = (4, 16)
_MAX_PROTOCOL: Final = 255
_MAX_PORT: Final = 65_535
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


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
    ledger: LedgerState
    shown: list[tuple[FlowKey, FlowCounts]] = []
    """What the metrics showed under the names of Services, if some were summed up."""
    lost: Count = 0
    walks: Count = 0
    table_full: Count = 0
    gap_s: _Seconds = 0.0


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message says why."""


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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
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
    if not all(map(math.isfinite, (checkpoint.boot_s, checkpoint.start, checkpoint.gap_s))):
        raise ValueError("a time in it is not finite")
    if checkpoint.start > LATEST_S:
        raise ValueError("it begins after the year 9999")
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
