"""Who answered, read from bytes."""

from __future__ import annotations

import errno

import pytest

from keepclose.lab.traffic.answers import (
    ConnectionFailure,
    ConnectionResult,
    PodAnswer,
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
        pytest.param(HEAD + "web-1 n1 z", PodAnswer("web-1", "n1", "zone-a"), id="a whole answer"),
        pytest.param(HEAD + "web-1", None, id="half a body must wait for the rest"),
        pytest.param(HEAD[:-2], None, id="half a head must wait for the rest"),
        pytest.param("", None, id="nothing yet"),
        pytest.param(
            "HTTP/1.1 200 OK\r\nX-Pod: web-1\r\n\r\n",
            PodAnswer("web-1"),
            id="a pod of no known place",
        ),
        pytest.param(
            "HTTP/1.1 200 OK\r\n\r\n", ConnectionFailure.BROKEN, id="somebody who is no pod"
        ),
        pytest.param(
            "HTTP/1.1 503 Busy\r\nX-Pod: web-1\r\n\r\n",
            ConnectionFailure.BROKEN,
            id="an error of a pod",
        ),
        pytest.param("\r\n\r\n", ConnectionFailure.BROKEN, id="no status line"),
        pytest.param(
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\nX-Pod: p\r\n\r\n",
            ConnectionFailure.BROKEN,
            id="a length that is no number",
        ),
    ],
)
def test_answers_over_http(text: str, want: ConnectionResult | None) -> None:
    """The headers name pod, node and zone, in whatever case."""
    assert read_http(text.encode()) == want


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(
            b"web-1 n1 zone-a 10.0.0.1\n", PodAnswer("web-1", "n1", "zone-a"), id="a whole answer"
        ),
        pytest.param(
            b"web-1 n1  10.0.0.1\n", PodAnswer("web-1", "n1", ""), id="a node without zone"
        ),
        pytest.param(b"?", ConnectionFailure.BROKEN, id="somebody who is no pod"),
        pytest.param(b"\xff\xfe", ConnectionFailure.BROKEN, id="no text"),
    ],
)
def test_answers_over_udp(data: bytes, want: ConnectionResult) -> None:
    """One datagram has pod, node, zone and client, with one blank between two."""
    assert read_datagram(data) == want


@pytest.mark.parametrize(
    ("number", "want"),
    [
        (errno.ECONNREFUSED, ConnectionFailure.REFUSED),
        (errno.ETIMEDOUT, ConnectionFailure.TIMED_OUT),
        (errno.EHOSTUNREACH, ConnectionFailure.UNREACHABLE),
        (errno.ENETUNREACH, ConnectionFailure.UNREACHABLE),
        (errno.EADDRNOTAVAIL, ConnectionFailure.NO_PORT),
        (errno.ECONNRESET, ConnectionFailure.BROKEN),
        (None, ConnectionFailure.BROKEN),
    ],
)
def test_failures_by_error_number(number: int | None, want: ConnectionFailure) -> None:
    """Each error of a socket counts as one kind of failure."""
    assert failure_of(number) is want
