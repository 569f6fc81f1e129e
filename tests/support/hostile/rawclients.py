"""Clients that speak to a server byte by byte, as no library would."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from support.server_processes import Embedded

PATIENCE: Final = 60.0
HOST: Final = b"Host: h\r\n"
CLOSE: Final = b"Connection: close\r\n"


def trusting() -> ssl.SSLContext:
    """Return a context that takes any certificate, as an attacker does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_CONTEXT: Final = trusting()


def dial(server: Embedded, *, source: str = "", receive_buffer: int = 0) -> ssl.SSLSocket:
    """Return a connection after its handshake."""
    plain = connect(server, source=source, receive_buffer=receive_buffer)
    try:
        return _CONTEXT.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def connect(server: Embedded, *, source: str = "", receive_buffer: int = 0) -> socket.socket:
    """Return a connection that has said nothing yet."""
    plain = socket.socket()
    try:
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            plain.bind((source, 0))
        plain.settimeout(PATIENCE)
        plain.connect(("127.0.0.1", server.port))
    except BaseException:
        plain.close()
        raise
    return plain


def request(method: str, path: str, *, token: str = "", extra: bytes = b"") -> bytes:
    """Return the head of a request."""
    credentials = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\n{credentials}".encode() + extra + b"\r\n"


def read_all(connection: socket.socket) -> bytes:
    """Return what comes until the server closes, in whatever way it does."""
    received = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := connection.recv(1 << 16):
            received += data
    return received


def exchange(server: Embedded, data: bytes) -> bytes:
    """Send bytes and return everything that comes until the server closes."""
    with dial(server) as connection:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            connection.sendall(data)
        return read_all(connection)


def status_of(answer: bytes) -> int:
    """Return the status of the first answer; 0 where there is none."""
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(match.group(1)) if match else 0


def ask(server: Embedded, path: str, *, token: str = "") -> tuple[int, float]:
    """Return the status of a GET on a connection of its own, and the seconds that it took."""
    started = time.monotonic()
    answer = exchange(server, request("GET", path, token=token, extra=CLOSE))
    return status_of(answer), time.monotonic() - started


def resident_bytes(server: Embedded) -> int:
    """Return how much memory the process of a server has now; its peak counts from here on."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return _memory(server, "VmRSS")


def peak_bytes(server: Embedded) -> int:
    """Return how much memory the process of a server had at most."""
    return _memory(server, "VmHWM")


def cpu_seconds(server: Embedded) -> float:
    """Return how long the process of a server has worked."""
    fields = Path(f"/proc/{server.process.pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


def descriptors(server: Embedded) -> int:
    """Return how many descriptors the process of a server has open."""
    return sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return when something has happened in the process of a server; fail where it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.02)


def _memory(server: Embedded, field: str) -> int:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    match = re.search(rf"{field}:\s+(\d+) kB", text)
    assert match is not None
    return int(match.group(1)) * 1024
