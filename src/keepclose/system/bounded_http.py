"""Reads a page over HTTP within limits of size and time, and names addresses without passwords.

The other end is not trusted: it may answer without end, slowly, or with something else. A call
blocks its thread, so a program with an event loop makes it in a thread of its own.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import SHUT_RDWR, socket
from ssl import SSLContext
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from keepclose.system.threads import call_within

EXCHANGE_S: Final = 120.0
"""For a whole exchange, from the connection to the end of the answer."""
_TIMEOUT_S: Final = 30.0
"""For each step of an answer."""
_CHUNK: Final = 1 << 20
_OK: Final = 200
_SHOWN_CHARACTERS: Final = 300
_SCHEMES: Final = ("http", "https")


class HttpPageError(Exception):
    """A page that cannot be read: why, and what to do.

    `is_unreachable` means that nothing answered, or something else than was asked for.
    """

    def __init__(self, message: str, fix: str = "", *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.fix = fix
        self.is_unreachable = is_unreachable


def split_url(text: str) -> SplitResult:
    """Return the parts of an address; raise HttpPageError if it is none of HTTP with a host.

    No message has a user or a password.
    """
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        # NB: with a password that is not encoded, the error may quote a part of it.
        why = "encode the password" if "@" in text else str(error)
        message = f"{_without_user(text)} is no address: {why}"
        raise HttpPageError(message) from None
    if not url.hostname or url.scheme not in _SCHEMES:
        message = f"{_without_user(text)} names no host"
        raise HttpPageError(message, "name it as http://HOST:PORT")
    if "@" in url.path:
        # What looks like a host and a port may be a user and a password with a slash in it.
        message = f"{_without_user(text)} is no address: encode the password"
        raise HttpPageError(message, "write / as %2F and @ as %40 in it")
    return url


def _without_user(text: str) -> str:
    """Return a text, which need be no address, without all that stands before its last @."""
    before, at, after = text.rpartition("@")
    if not at:
        return text
    scheme, slashes, _ = before.partition("://")
    return f"{scheme}{slashes}{after}" if slashes else after


def show_url(url: SplitResult, path: str) -> str:
    """Return an address without user and password."""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{host}{f':{url.port}' if url.port else ''}{path.rstrip('/')}"


def get_page(
    url: SplitResult,
    target: str,
    *,
    what: str,
    most: int,
    within_s: float | None = None,
    token: str = "",
    tls: SSLContext | None = None,
) -> bytes:
    """Return the body of an answer of status 200; the user and password of a URL are sent.

    `what` names the program that should answer. A `token` is sent as that of a bearer; `tls` says
    who is trusted at an https address. Raises HttpPageError.
    """
    headers = {"Accept": "application/json, application/x-ndjson"}
    if url.username is not None:
        secret = f"{unquote(url.username)}:{unquote(url.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(secret.encode()).decode()}"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    host, timeout_s = url.hostname or "", min(_TIMEOUT_S, within_s or _TIMEOUT_S)
    try:
        connection = (
            HTTPSConnection(host, url.port, timeout=timeout_s, context=tls)
            if url.scheme == "https"
            else HTTPConnection(host, url.port, timeout=timeout_s)
        )
        path = quote(target, safe="/?&=%+:,~")
        status, body = get_bounded(connection, path, headers, most=most, within_s=within_s)
    except (OSError, ValueError, HTTPException) as error:
        raise HttpPageError(
            f"no {what} answers at {show_url(url, '')}: {_escape(str(error))}",
            "check the address, and that the port can be reached from here",
            is_unreachable=True,
        ) from error
    if len(body) > most:
        message = f"{show_url(url, '')} answers more than {most:,} bytes"
        raise HttpPageError(message)
    # NB: Prometheus describes a bad query in the body of an answer 400 or 422.
    if status != _OK and not (what == "Prometheus" and body.startswith(b"{")):
        shown = show_url(url, target.partition("?")[0])
        message = f"{shown} answers status {status}, so it is no {what}"
        raise HttpPageError(message, is_unreachable=True)
    return body


def _escape(text: str) -> str:
    """Return a text of the other end in short, with escapes for what is not visible ASCII."""
    shown = "".join(
        [
            char if char.isascii() and char.isprintable() else ascii(char)[1:-1]
            for char in text.strip()[:_SHOWN_CHARACTERS]
        ]
    )
    return shown[:_SHOWN_CHARACTERS]


def get_bounded(
    connection: HTTPConnection,
    target: str,
    headers: Mapping[str, str],
    *,
    most: int,
    within_s: float | None = None,
) -> tuple[int, bytes]:
    """Return status and body of an answer; a body of more than `most` bytes is cut behind them.

    Raises OSError, ValueError and HTTPException; TimeoutError if the whole exchange takes too long.
    """
    # NB: http.client lets go of the socket when the server announces that it will close it.
    sockets: list[socket] = []

    def exchange() -> tuple[int, bytes]:
        try:
            connection.connect()
            sockets.append(connection.sock)
            connection.request("GET", target, headers=dict(headers))
            body = bytearray()
            with connection.getresponse() as answer:
                while len(body) <= most and (chunk := answer.read1(_CHUNK)):
                    body += chunk
            return answer.status, bytes(body)
        finally:
            connection.close()

    def stop() -> None:
        for opened in sockets:
            opened.shutdown(SHUT_RDWR)

    return call_within(within_s or EXCHANGE_S, exchange, stop)
