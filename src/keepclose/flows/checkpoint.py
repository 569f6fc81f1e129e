"""The counts of an agent in a file, so that the next process continues where this one ended.

Written under a temporary name, flushed and renamed, so that a crash leaves the old content or the
new. It begins with a format and a checksum: a file that does not match is kept under another name
and reported. Connections are those of one boot and one network namespace; a file of another one is
not used, because the kernel began again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from keepclose.accounting.flow_table import FlowCounts, FlowKey
from keepclose.flows.ledger import LedgerState
from keepclose.system.files import InputError, read_input

MAX_CHECKPOINT_BYTES: Final = 256 << 20
_MAGIC: Final = b"keepclose flows 1\n"
_DIGEST_BYTES: Final = 32
_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Checkpoint(msgspec.Struct, frozen=True):
    """The content of a file."""

    boot_id: str
    namespace: int
    """The inode of the network namespace."""
    boot_s: float
    """When it was written, in seconds since the boot."""
    start: float
    """When counting began, in seconds of the Unix epoch."""
    ledger: LedgerState
    shown: list[tuple[FlowKey, FlowCounts]] = []
    """What the metrics showed under the names of Services, if some were summed up."""
    lost: int = 0
    walks: int = 0
    table_full: int = 0
    gap_s: float = 0.0


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
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    head = len(_MAGIC) + _DIGEST_BYTES
    content = data[head:]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : head] != hashlib.sha256(content).digest():
        raise CheckpointError(f"{path} is broken or no checkpoint; {_put_aside(path)}")
    try:
        checkpoint = msgspec.msgpack.decode(content, type=Checkpoint)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{path} cannot be used: {error}; {_put_aside(path)}") from None
    if checkpoint.boot_id != boot:
        raise CheckpointError(f"{path} is of another boot")
    if checkpoint.namespace != namespace:
        raise CheckpointError(f"{path} is of another network namespace")
    return checkpoint


def _put_aside(path: Path) -> str:
    aside = path.with_name(f"{path.name}.broken")
    try:
        path.rename(aside)
    except OSError as error:
        return f"it could not be renamed: {error.strerror}"
    return f"it is kept as {aside.name}"
