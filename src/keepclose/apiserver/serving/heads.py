"""What a request must say before its body is read: its version, host, target and framing.

The answers to what is wrong are those of kube-apiserver. Where its HTTP server takes what RFC 9112
wants refused, such as header lines that are folded, the parser has refused it before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

# Go's table of bytes that a Host header may have.
_HOST: Final = re.compile(rb"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
_BAD_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_SCHEMES: Final = ("http://", "https://")
_CONTINUE: Final = b"100-continue"
_CHUNKED: Final = b"chunked"


class Refusal(NamedTuple):
    """The status and the text of an answer to a request that is not read any further."""

    status: int
    text: bytes


class BadTargetError(ValueError):
    """The target of a request is none."""


_MISSING_HOST: Final = Refusal(400, b"400 Bad Request: missing required Host header")
_BAD_HOST: Final = Refusal(400, b"400 Bad Request: malformed Host header")
_BAD_ENCODING: Final = Refusal(501, b"Unsupported transfer encoding")
_OLD_ENCODING: Final = Refusal(400, b"400 Bad Request: HTTP/1.0 has no transfer encoding")
_BAD_EXPECTATION: Final = Refusal(417, b"417 Expectation Failed")
_NO_VERSION: Final = Refusal(400, b"400 Bad Request")
_BAD_VERSION: Final = Refusal(505, b"505 HTTP Version Not Supported: unsupported protocol version")


def check_head(version: str, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Return why a request cannot be served, or None; header names are lower case."""
    host = headers.get(b"host")
    if version != "1.1":
        if version == "0.9":
            return _NO_VERSION
        if version != "1.0":
            return _BAD_VERSION
    elif host is None:
        return _MISSING_HOST
    if host is not None and _HOST.fullmatch(host) is None:
        return _BAD_HOST
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None:
        # NB: who disagrees with a proxy about where a body ends reads another client's request.
        if encoding.lower() != _CHUNKED:
            return _BAD_ENCODING
        if version == "1.0":
            return _OLD_ENCODING
    expectation = headers.get(b"expect")
    if expectation is not None and expectation.lower() != _CONTINUE:
        return _BAD_EXPECTATION
    return None


def announces_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a body follows the head."""
    if b"transfer-encoding" in headers:
        return True
    return headers.get(b"content-length", b"0").strip(b"0") != b""


def read_target(url: bytes) -> tuple[str, str]:
    """Return path and query of a target, also of one that begins with a scheme and a host.

    Raises BadTargetError for escapes that are none.
    """
    path, _, query = url.decode("ascii").partition("?")
    if not path.startswith("/"):
        path = _without_authority(path)
    if "%" in path:
        if _BAD_ESCAPE.search(path):
            raise BadTargetError(path)
        path = unquote(path)
    return path, query


def _without_authority(path: str) -> str:
    for scheme in _SCHEMES:
        if path[: len(scheme)].lower() == scheme:
            _, slash, rest = path[len(scheme) :].partition("/")
            return slash + rest or "/"
    return path
