"""Malformed and hostile requests get the statuses of a real kube-apiserver, or stricter ones."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
import yaml

from support.real.apis import Api

HOST: Final = b"Host: h\r\n"
CLOSE: Final = b"Connection: close\r\n"
TOKEN: Final = b"Authorization: Bearer TOKEN\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
BODY: Final = b'{"metadata":{"generateName":"x-"}}'


def _get(path: bytes = b"/healthz", extra: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + extra + CLOSE + b"\r\n"


def _post(extra: bytes, body: bytes, *, token: bytes = TOKEN) -> bytes:
    return (
        b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\n"
        + HOST
        + token
        + b"Content-Type: application/json\r\n"
        + extra
        + CLOSE
        + b"\r\n"
        + body
    )


def _chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


END: Final = b"0\r\n\r\n"
LENGTH: Final = b"Content-Length: %d\r\n" % len(BODY)
NAMESPACES: Final = b"/api/v1/namespaces"
WRONG: Final = b"Authorization: Bearer wrong\r\n"
# What both servers answer.
SAME: Final = {
    "no host": (b"GET /healthz HTTP/1.1\r\n" + CLOSE + b"\r\n", 400),
    "two hosts": (_get(extra=HOST), 400),
    "a host with a blank": (_get().replace(HOST, b"Host: a b\r\n"), 400),
    "an empty host": (_get().replace(HOST, b"Host:\r\n"), 200),
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
    "HTTP/2.0": (_get().replace(b"HTTP/1.1", b"HTTP/2.0"), 505),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", 400),
    "absolute form": (_get(b"http://other/healthz"), 200),
    "a broken escape": (_get(b"/%zz"), 400),
    "a blank before the colon": (_get(extra=b"X : y\r\n"), 400),
    "NUL in a value": (_get(extra=b"X: y\0\r\n"), 400),
    "CR in a value": (_get(extra=b"X: y\rz\r\n"), 400),
    "a line without a colon": (_get(extra=b"xyz\r\n"), 400),
    "headers of 60 kB": (_get(extra=b"X: " + b"y" * 60_000 + b"\r\n"), 200),
    "900 header lines": (_get(extra=b"X: y\r\n" * 900), 200),
    "headers of 2 MB": (_get(extra=b"X: " + b"y" * 2_000_000 + b"\r\n"), 431),
    "a target of 2 MB": (_get(b"/healthz?" + b"y" * 2_000_000), 431),
    "front proxy": (
        _get(NAMESPACES, b"X-Remote-User: a\r\nX-Remote-Group: system:masters\r\n"),
        403,
    ),
    "good credentials first": (_get(NAMESPACES, TOKEN + WRONG), 200),
    "good credentials last": (_get(NAMESPACES, WRONG + TOKEN), 401),
    "credentials behind the body": (
        _post(CHUNKED, _chunk(BODY) + b"0\r\n" + TOKEN + b"\r\n", token=b""),
        403,
    ),
    "another trailer": (_post(CHUNKED, _chunk(BODY) + b"0\r\nX: y\r\n\r\n"), 201),
    "a long trailer": (
        _post(CHUNKED, _chunk(BODY) + b"0\r\nX: " + b"y" * 70_000 + b"\r\n\r\n"),
        500,
    ),
    "an extension": (_post(CHUNKED, _chunk(BODY, b";a=b") + END), 201),
    "a long extension": (_post(CHUNKED, _chunk(BODY, b";a=" + b"b" * 70_000) + END), 500),
    "long extensions": (
        _post(CHUNKED, b"".join(_chunk(b" ", b";" + b"b" * 3000) for _ in range(40)) + END),
        500,
    ),
    "chunks of one byte": (
        _post(CHUNKED, b"".join(_chunk(b"%c" % byte) for byte in BODY) + END),
        201,
    ),
    "gzip": (_post(b"Transfer-Encoding: gzip, chunked\r\n", _chunk(BODY) + END), 501),
    "no encoding": (_post(b"Transfer-Encoding: xchunked\r\n", _chunk(BODY) + END), 501),
    "chunks in HTTP/1.0": (
        _post(CHUNKED, _chunk(BODY) + END).replace(b"HTTP/1.1", b"HTTP/1.0"),
        400,
    ),
    "two lengths": (_post(LENGTH + b"Content-Length: 5\r\n", BODY), 400),
    "a length with a sign": (_post(b"Content-Length: +34\r\n", BODY), 400),
    "a negative length": (_post(b"Content-Length: -1\r\n", BODY), 400),
    "a length over all bounds": (_post(b"Content-Length: " + b"9" * 25 + b"\r\n", BODY), 400),
    "a body of 4 MiB": (_post(b"Content-Length: 4194304\r\n", b"x" * 4_194_304), 413),
    "a body of a stranger": (
        _post(b"Content-Length: 4194304\r\n", b"x" * 4_194_304, token=b""),
        403,
    ),
    "a body with a wrong token": (
        _post(b"Content-Length: 4194304\r\n", b"x" * 4_194_304, token=WRONG),
        401,
    ),
    "an expectation": (_post(LENGTH + b"Expect: 100-continue\r\n", BODY), 100),
    "an expectation of a stranger": (
        _post(LENGTH + b"Expect: 100-continue\r\n", BODY, token=b""),
        403,
    ),
    "another expectation": (_post(LENGTH + b"Expect: fries\r\n", BODY), 417),
}
# What kube-apiserver takes, or calls a fault of its own, and we refuse with 400: RFC 9112 wants it
# refused, or leaves two readings.
STRICTER: Final = {
    "both lengths": (_post(LENGTH + CHUNKED, _chunk(BODY) + END), 201),
    "the same length twice": (_post(LENGTH * 2, BODY), 201),
    "a folded line": (_get(extra=b"X: y\r\n z\r\n"), 200),
    "lines that end in LF": (_get().replace(b"\r\n", b"\n"), 200),
    "an unknown method": (_get(extra=TOKEN).replace(b"GET", b"FOO"), 200),
    "no size of a chunk": (_post(CHUNKED, b"zz\r\n" + BODY + b"\r\n" + END), 500),
    "a chunk without its end": (_post(CHUNKED, b"%x\r\n%b" % (len(BODY), BODY) + END), 500),
}


def _status(api: Api, data: bytes) -> int:
    """Return the first status that a server answers to these bytes."""
    user = yaml.safe_load(Path(api.kubeconfig).read_text())["users"][0]["user"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    url = urlsplit(api.url)
    received = b""
    with (
        socket.create_connection((url.hostname or "", url.port or 0), 60.0) as plain,
        context.wrap_socket(plain) as connection,
    ):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            connection.sendall(data.replace(b"TOKEN", user["token"].encode()))
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while b"\r\n" not in received and (more := connection.recv(1 << 16)):
                received += more
    match = re.match(rb"HTTP/1\.[01] (\d{3})", received)
    return int(match.group(1)) if match else 0


@pytest.mark.parametrize("case", SAME)
def test_hostile_requests_get_the_same_status(api: Api, case: str) -> None:
    """Both servers answer a request that is made to fool or to exhaust them in the same way."""
    data, want = SAME[case]
    assert _status(api, data) == want


@pytest.mark.parametrize("case", STRICTER)
def test_doubtful_requests_are_refused(api: Api, case: str) -> None:
    """What kube-apiserver takes although it could be read in two ways is refused by ours."""
    data, want = STRICTER[case]
    assert _status(api, data) == (want if api.make == "real" else 400)
