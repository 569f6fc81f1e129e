"""The interface to nftables: transactions go in as text, JSON listings come out.

A transaction is applied all or nothing. It names its tables; a writer never lists or changes
anything else. Errors are classified as in kube-proxy's library (knftables), by the first message:
an object does not exist, an object exists already, or another reason.
"""

from __future__ import annotations

import enum
import re
from typing import Final, Literal, Protocol, runtime_checkable

from keepclose.ruleset.commands import Transaction

NftFamily = Literal["ip", "ip6"]
DEFAULT_LIMIT: Final = 30.0

_PLACED: Final = re.compile(r"^(?P<where>[^\n]*?):(?P<line>\d+):\d+-\d+: Error: (?P<message>.*)$")
_PLAIN: Final = re.compile(r"^Error: (?P<message>.*)$")
_NAMES: Final = re.compile(r"[A-Za-z0-9_./-]{1,255}")


class NftFailure(enum.Enum):
    """Why the kernel or nft rejected a transaction or a listing."""

    NOT_FOUND = "not found"
    EXISTS = "exists"
    BUSY = "busy"
    FORBIDDEN = "forbidden"
    TIMEOUT = "timeout"
    UNUSABLE = "unusable"
    OTHER = "other"


_FAILURES: Final = (
    ("No such file or directory", NftFailure.NOT_FOUND),
    ("File exists", NftFailure.EXISTS),
    ("Device or resource busy", NftFailure.BUSY),
    ("Operation not permitted", NftFailure.FORBIDDEN),
)


class NftError(Exception):
    """nftables rejected a transaction or a listing.

    `message` is that of the kernel or nft, `line` the command that failed and `number` its line in
    the text, counted from 1; 0 and "" if unknown. `output` is the whole output. After TIMEOUT it is
    unknown whether the transaction was applied: list the table before writing again.
    """

    def __init__(
        self,
        message: str,
        *,
        failure: NftFailure = NftFailure.OTHER,
        line: str = "",
        number: int = 0,
        output: str = "",
    ) -> None:
        place = f" (line {number}: {line[:200]})" if line else ""
        super().__init__(f"{message}{place}")
        self.message = message
        self.failure = failure
        self.line = line
        self.number = number
        self.output = output


class NftWriter(Protocol):
    """Changes and lists the tables of one network namespace."""

    async def apply(self, text: str) -> None:
        """Apply a transaction, one command a line; an empty one does nothing.

        Raises NftError; then nothing of it is applied, unless the failure is TIMEOUT.
        """
        ...

    async def check(self, text: str) -> None:
        """Have the kernel check a transaction without applying it; raises NftError."""
        ...

    async def list_table(self, family: NftFamily, table: str) -> bytes:
        """Return a table as JSON; raises NftError (NOT_FOUND)."""
        ...

    async def close(self) -> None:
        """Release all resources; a call that hangs does not delay this."""
        ...


@runtime_checkable
class ElementWriter(Protocol):
    """A writer with a faster path for elements than the text of a transaction."""

    async def write_elements(self, transaction: Transaction) -> bool:
        """Apply a transaction; False if nothing was applied and it must be written as text.

        Raises NftError if it is unknown whether it was applied.
        """
        ...


def encode_transaction(text: str) -> bytes:
    """Return the bytes of a transaction; raises NftError for text that nft would misread.

    NB: C code ends the text at a NUL character, and would apply half a transaction.
    """
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        line = text.split("\n", number)[number - 1]
        raise NftError(
            "the transaction contains a NUL character",
            failure=NftFailure.UNUSABLE,
            line=line,
            number=number,
        )
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise NftError(
            f"the transaction is not valid UTF-8: {error.reason}", failure=NftFailure.UNUSABLE
        ) from None


def list_table_command(family: NftFamily, table: str) -> str:
    """Return the command that lists a table; raises NftError for an invalid name."""
    if _NAMES.fullmatch(table) is None:
        raise NftError(f"{table!r} is not a valid name of a table", failure=NftFailure.UNUSABLE)
    return f"list table {family} {table}"


def nft_error(output: str, text: str, *, fallback: str) -> NftError:
    """Return the output of nft for a text as an error; the first message decides its kind."""
    lines = text.split("\n")
    for output_line in output.splitlines():
        placed = _PLACED.match(output_line)
        match = placed or _PLAIN.match(output_line)
        if match is None:
            continue
        number = int(placed["line"]) if placed else 1
        line = lines[number - 1].strip() if number <= len(lines) else ""
        message = match["message"]
        return NftError(
            message, failure=_failure_of(message), line=line, number=number, output=output
        )
    return NftError(fallback, failure=_failure_of(output), output=output)


def _failure_of(message: str) -> NftFailure:
    """Return the kind of failure that a message describes."""
    return next((kind for part, kind in _FAILURES if part in message), NftFailure.OTHER)
