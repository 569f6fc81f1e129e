"""The seam to nftables: a transaction's text goes in, JSON listings come out.

A transaction is applied whole or not at all. Whoever writes it names its tables; no writer ever
lists or changes anything else. Failures are typed as kube-proxy's library types them, by the first
message: something is absent, something is there already, or another reason.
"""

from __future__ import annotations

import enum
import re
from typing import Final, Literal, Protocol, runtime_checkable

from keepclose.ruleset.commands import Transaction

NftFamily = Literal["ip", "ip6"]
ElementsOf = Literal["set", "map"]
DEFAULT_LIMIT: Final = 30.0

_PLACED: Final = re.compile(r"^(?P<where>[^\n]*?):(?P<line>\d+):\d+-\d+: Error: (?P<message>.*)$")
_PLAIN: Final = re.compile(r"^Error: (?P<message>.*)$")
_NAMES: Final = re.compile(r"[A-Za-z0-9_./-]{1,255}")


class NftFailure(enum.Enum):
    """Why the kernel or nft refused."""

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
    """nftables refused a transaction or a listing.

    `message` is the kernel's or nft's own, `line` the offending command and `number` its place in
    the text, counted from 1; 0 and "" where there is none. `output` is everything that was said.
    After TIMEOUT it is unknown whether the transaction was applied: read before writing again.
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
        """Apply a transaction, one command a line; nothing to do for an empty one.

        Raises NftError, and then nothing of it is applied, unless the failure is TIMEOUT.
        """
        ...

    async def check(self, text: str) -> None:
        """Let the kernel judge a transaction without applying it; raises NftError."""
        ...

    async def list_table(self, family: NftFamily, table: str, *, terse: bool = False) -> bytes:
        """Return a table as JSON, without elements if terse; raises NftError (NOT_FOUND)."""
        ...

    async def list_elements(
        self, kind: ElementsOf, family: NftFamily, table: str, *, name: str
    ) -> bytes:
        """Return one set or map with its elements as JSON; raises NftError (NOT_FOUND)."""
        ...

    async def close(self) -> None:
        """Let go of everything; a call that hangs is left behind."""
        ...


@runtime_checkable
class ElementWriter(Protocol):
    """A writer that has a shorter way for elements than the text of a transaction."""

    async def write_elements(self, transaction: Transaction) -> bool:
        """Apply a transaction; False where nothing of it was applied and it is to go as text.

        Raises NftError when it is unknown whether it was applied.
        """
        ...


def encode_transaction(text: str) -> bytes:
    """Return the bytes of a transaction; raises NftError for what nft would misread.

    NB: C code takes a NUL for the end of the text, and would apply half a transaction.
    """
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        line = text.split("\n", number)[number - 1]
        raise NftError(
            "the transaction holds a NUL character",
            failure=NftFailure.UNUSABLE,
            line=line,
            number=number,
        )
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise NftError(
            f"the transaction is no valid UTF-8: {error.reason}", failure=NftFailure.UNUSABLE
        ) from None


def list_table_command(family: NftFamily, table: str) -> str:
    """Return the command that lists a table; raises NftError for a name that is none."""
    return f"list table {family} {_name(table)}"


def list_elements_command(kind: ElementsOf, family: NftFamily, table: str, *, name: str) -> str:
    """Return the command that lists a set or map; raises NftError for a name that is none."""
    return f"list {kind} {family} {_name(table)} {_name(name)}"


def nft_error(output: str, text: str, *, fallback: str) -> NftError:
    """Return what nft said about a text as an error; the first complaint gives its kind."""
    lines = text.split("\n")
    for said in output.splitlines():
        placed = _PLACED.match(said)
        found = placed or _PLAIN.match(said)
        if found is None:
            continue
        number = int(placed["line"]) if placed else 1
        line = lines[number - 1].strip() if number <= len(lines) else ""
        message = found["message"]
        return NftError(
            message, failure=_failure_of(message), line=line, number=number, output=output
        )
    return NftError(fallback, failure=_failure_of(output), output=output)


def _failure_of(message: str) -> NftFailure:
    """Return the kind of failure that a message speaks of."""
    return next((kind for part, kind in _FAILURES if part in message), NftFailure.OTHER)


def _name(name: str) -> str:
    if _NAMES.fullmatch(name) is None:
        raise NftError(f"{name!r} names no table, set or map", failure=NftFailure.UNUSABLE)
    return name
