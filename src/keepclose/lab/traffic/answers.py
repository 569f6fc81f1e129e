"""Who answered a connection, read from what came back, or why nobody did.

Pods of the lab say over HTTP and over UDP who and where they are. Whoever answers otherwise is no
pod of the lab, and that counts as no answer.
"""

from __future__ import annotations

import errno
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple


class Answer(NamedTuple):
    """The pod that answered, with the place that it names."""

    pod: str
    node: str = ""
    zone: str = ""


class Failure(StrEnum):
    """Why there is no answer."""

    REFUSED = "refused"
    """An error came back: nobody listens, or a rule rejects."""
    TIMED_OUT = "timed out"
    UNREACHABLE = "unreachable"
    """There is no way there."""
    BROKEN = "broken off"
    """The connection ended before the answer, or what came is not an answer of a pod."""
    NO_PORT = "no local port"
    """The client has used up its ports."""


Result = Answer | Failure

_FAILURES: Final = {
    errno.ECONNREFUSED: Failure.REFUSED,
    errno.ETIMEDOUT: Failure.TIMED_OUT,
    errno.ENETUNREACH: Failure.UNREACHABLE,
    errno.EHOSTUNREACH: Failure.UNREACHABLE,
    errno.ENETDOWN: Failure.UNREACHABLE,
    errno.EACCES: Failure.UNREACHABLE,
    errno.EPERM: Failure.UNREACHABLE,
    errno.EADDRNOTAVAIL: Failure.NO_PORT,
}


def failure_of(number: int | None) -> Failure:
    """Return what an error number of a socket means for a connection."""
    return _FAILURES.get(number or 0, Failure.BROKEN)


def read_http(data: bytes) -> Result | None:
    """Return who answered over HTTP; None when more must come."""
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        return None
    result, length = _read_head(head)
    return result if len(body) >= length else None


def read_datagram(data: bytes) -> Result:
    """Return who answered over UDP."""
    # NB: a node without a zone leaves an empty word, so blanks are not to be taken together.
    words = data.decode(errors="replace").rstrip("\n").split(" ")
    if len(words) < 3 or not words[0]:
        return Failure.BROKEN
    return Answer(*words[:3])


@lru_cache(maxsize=4096)
def _read_head(head: bytes) -> tuple[Result, int]:
    """Return who answered, and how long the body is; one pod's heads hardly differ."""
    status, *lines = head.decode("latin-1").split("\r\n")
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    length = fields.get("content-length", "0")
    pod = fields.get("x-pod", "")
    if status.split(" ")[1:2] != ["200"] or not pod or not length.isdecimal():
        return Failure.BROKEN, 0
    return Answer(pod, fields.get("x-node", ""), fields.get("x-zone", "")), int(length)
