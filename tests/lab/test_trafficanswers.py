"""Who answered, read from bytes."""

from __future__ import annotations

import errno

import pytest

from keepclose.lab.traffic.answers import (
    Answer,
    Failure,
    Result,
    failure_of,
    read_datagram,
    read_http,
)

HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nx-pod: web-1\r\nX-Node: n1\r\nX-Zone: zone-a\r\n\r\n"
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(HEAD + "web-1 n1 z", Answer("web-1", "n1", "zone-a"), id="a whole answer"),
        pytest.param(HEAD + "web-1", None, id="half a body must wait for the rest"),
        pytest.param(HEAD[:-2], None, id="half a head must wait for the rest"),
        pytest.param("", None, id="nothing yet"),
        pytest.param(
            "HTTP/1.1 200 OK\r\nX-Pod: web-1\r\n\r\n", Answer("web-1"), id="a pod of no known place"
        ),
        pytest.param("HTTP/1.1 200 OK\r\n\r\n", Failure.BROKEN, id="somebody who is no pod"),
        pytest.param(
            "HTTP/1.1 503 Busy\r\nX-Pod: web-1\r\n\r\n", Failure.BROKEN, id="an error of a pod"
        ),
        pytest.param("\r\n\r\n", Failure.BROKEN, id="no status line"),
        pytest.param(
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\nX-Pod: p\r\n\r\n",
            Failure.BROKEN,
            id="a length that is no number",
        ),
    ],
)
def test_answers_over_http(text: str, want: Result | None) -> None:
    """The headers name pod, node and zone, in whatever case."""
    assert read_http(text.encode()) == want


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(
            b"web-1 n1 zone-a 10.0.0.1\n", Answer("web-1", "n1", "zone-a"), id="a whole answer"
        ),
        pytest.param(b"web-1 n1  10.0.0.1\n", Answer("web-1", "n1", ""), id="a node without zone"),
        pytest.param(b"?", Failure.BROKEN, id="somebody who is no pod"),
        pytest.param(b"\xff\xfe", Failure.BROKEN, id="no text"),
    ],
)
def test_answers_over_udp(data: bytes, want: Result) -> None:
    """One datagram has pod, node, zone and client, with one blank between two."""
    assert read_datagram(data) == want


@pytest.mark.parametrize(
    ("number", "want"),
    [
        (errno.ECONNREFUSED, Failure.REFUSED),
        (errno.ETIMEDOUT, Failure.TIMED_OUT),
        (errno.EHOSTUNREACH, Failure.UNREACHABLE),
        (errno.ENETUNREACH, Failure.UNREACHABLE),
        (errno.EADDRNOTAVAIL, Failure.NO_PORT),
        (errno.ECONNRESET, Failure.BROKEN),
        (None, Failure.BROKEN),
    ],
)
def test_failures_by_error_number(number: int | None, want: Failure) -> None:
    """Each error of a socket counts as one kind of failure."""
    assert failure_of(number) is want
