"""Tests that every complaint of the network becomes one of our errors."""

from __future__ import annotations

import errno
import inspect
import ssl
from types import SimpleNamespace
from typing import Any

import aiohttp
import aiohttp.client_exceptions
import pytest
from yarl import URL

from keepclose.kube.errors import (
    BrokenStream,
    ConnectionLost,
    ConnectionRefused,
    TimedOut,
    TlsError,
    TransportError,
)
from keepclose.kube.transport.transport import FAULTS, explain_fault

KEY: Any = SimpleNamespace(host="h", port=1, ssl=True)
INFO: Any = SimpleNamespace(real_url=URL("http://h"))


def os_error(code: int, text: str = "Some Text") -> OSError:
    """Return an error of the operating system."""
    return OSError(code, text)


def tls_error(reason: str) -> ssl.SSLError:
    """Return an error as OpenSSL makes it."""
    error = ssl.SSLError(1, f"[SSL: {reason}] something")
    error.reason = reason
    return error


def untrusted(code: int, message: str) -> ssl.SSLCertVerificationError:
    """Return an error about a server's certificate."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


def caused(error: BaseException, by: BaseException) -> BaseException:
    """Return the error with a cause."""
    error.__cause__ = by
    return error


CHECK = "check the server's address and the firewalls on the way"
PROXY = "check proxy-url or HTTPS_PROXY"
API = "check that the server is a Kubernetes API server"


@pytest.mark.parametrize(
    ("error", "want_class", "want_text", "want_sent"),
    [
        pytest.param(
            aiohttp.ClientConnectorError(KEY, os_error(errno.ECONNREFUSED)),
            ConnectionRefused,
            "connection refused; check that the server runs and the port is right",
            False,
            id="refused",
        ),
        pytest.param(
            aiohttp.ClientConnectorError(KEY, os_error(errno.EHOSTUNREACH, "No route to host")),
            ConnectionRefused,
            f"no route to host; {CHECK}",
            False,
            id="no route",
        ),
        pytest.param(
            aiohttp.ClientConnectorError(KEY, os_error(errno.ECONNRESET)),
            ConnectionRefused,
            f"the connection was reset; {CHECK}",
            False,
            id="reset while connecting",
        ),
        pytest.param(
            aiohttp.ClientConnectorError(KEY, os_error(errno.ETIMEDOUT)),
            TimedOut,
            f"connection timed out; {CHECK}",
            False,
            id="the system gave up connecting",
        ),
        pytest.param(
            aiohttp.ConnectionTimeoutError("x"),
            TimedOut,
            f"connection timed out; {CHECK}",
            False,
            id="we gave up connecting",
        ),
        pytest.param(
            aiohttp.ClientConnectorDNSError(KEY, os_error(-2, "Name or service not known")),
            ConnectionRefused,
            "no such host; check the server's name in the settings, and the name server",
            False,
            id="no such name",
        ),
        pytest.param(
            aiohttp.ClientProxyConnectionError(KEY, os_error(111, "Connection refused")),
            ConnectionRefused,
            f"the proxy http://p cannot be reached: connection refused; {PROXY}",
            False,
            id="no proxy",
        ),
        pytest.param(
            aiohttp.ClientHttpProxyError(INFO, (), status=407, message="Auth Required"),
            ConnectionRefused,
            f"the proxy http://p answered 407 Auth Required; {PROXY}",
            False,
            id="the proxy says no",
        ),
        pytest.param(
            TimeoutError(),
            TimedOut,
            "no answer in time; try again, or ask for less at once",
            True,
            id="no answer",
        ),
        pytest.param(
            aiohttp.ServerDisconnectedError(),
            ConnectionLost,
            "the server closed the connection",
            True,
            id="closed",
        ),
        pytest.param(
            aiohttp.ClientPayloadError("x"),
            ConnectionLost,
            "the answer was cut off",
            True,
            id="half an answer",
        ),
        pytest.param(
            aiohttp.ClientOSError(errno.ECONNRESET, "Connection reset by peer"),
            ConnectionLost,
            "the connection broke: connection reset by peer",
            True,
            id="reset",
        ),
        pytest.param(
            aiohttp.ClientConnectionError("Odd"),
            ConnectionLost,
            "the connection broke: Odd",
            True,
            id="something else",
        ),
        pytest.param(
            aiohttp.ClientConnectionError(),
            ConnectionLost,
            "the connection broke: ClientConnectionError",
            True,
            id="something without words",
        ),
        pytest.param(
            aiohttp.ClientResponseError(INFO, (), status=400, message="Bad status line"),
            BrokenStream,
            f"the answer is not HTTP: Bad status line; {API}",
            True,
            id="no HTTP",
        ),
        pytest.param(
            aiohttp.InvalidURL("x"),
            BrokenStream,
            f"the server's URL cannot be used; {API}",
            True,
            id="no URL",
        ),
        pytest.param(
            ValueError("Bearer secret"),
            BrokenStream,
            "the request is not valid HTTP; check the token for line breaks and odd characters",
            False,
            id="what cannot be sent",
        ),
        pytest.param(
            aiohttp.ServerFingerprintMismatch(b"a", b"b", "h", 1),
            TlsError,
            "the server's certificate is not the expected one",
            False,
            id="another fingerprint",
        ),
        pytest.param(
            aiohttp.ClientConnectorCertificateError(
                KEY, untrusted(19, "self-signed certificate in certificate chain")
            ),
            TlsError,
            "the server's certificate: self-signed certificate in certificate chain; "
            "check certificate-authority: it must have signed the server's certificate",
            False,
            id="an unknown authority",
        ),
        pytest.param(
            aiohttp.ClientConnectorCertificateError(KEY, untrusted(10, "certificate has expired")),
            TlsError,
            "the server's certificate: certificate has expired; "
            "renew the server's certificate, or set the clock right",
            False,
            id="an expired server",
        ),
        pytest.param(
            aiohttp.ClientConnectorCertificateError(KEY, untrusted(62, "Hostname mismatch")),
            TlsError,
            "the server's certificate: Hostname mismatch; "
            "use a name that the certificate has, or set tls-server-name",
            False,
            id="another name",
        ),
        pytest.param(
            aiohttp.ClientConnectorSSLError(KEY, tls_error("WRONG_VERSION_NUMBER")),
            TlsError,
            "the server does not speak TLS; use http:// or check the port",
            False,
            id="no TLS",
        ),
        pytest.param(
            caused(aiohttp.ClientOSError(1, "x"), tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED")),
            TlsError,
            "the server asks for a client certificate; name one for the user",
            False,
            id="a certificate is asked for",
        ),
        pytest.param(
            tls_error("TLSV1_ALERT_UNKNOWN_CA"),
            TlsError,
            "the server does not trust our client certificate; "
            "check client-certificate: another authority must have signed it",
            False,
            id="our authority is unknown",
        ),
        pytest.param(
            tls_error("SSLV3_ALERT_CERTIFICATE_EXPIRED"),
            TlsError,
            "our client certificate has expired; renew it and its entry in the kubeconfig",
            False,
            id="we have expired",
        ),
        pytest.param(
            tls_error("NO_SUITABLE_THING"),
            TlsError,
            "no suitable thing; check the port and the proxy",
            False,
            id="another disagreement",
        ),
        pytest.param(
            aiohttp.ClientConnectorSSLError(KEY, os_error(1)),
            TlsError,
            f"the two sides cannot agree on TLS; {API}",
            False,
            id="TLS fails without a reason",
        ),
        pytest.param(
            ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
            ConnectionLost,
            "the server closed the connection in the middle of TLS",
            True,
            id="TLS cut off",
        ),
    ],
)
def test_what_happened_is_said_with_the_fix(
    error: BaseException, want_class: type[TransportError], want_text: str, want_sent: bool
) -> None:
    """Server, reason and fix stand in the message; whether it was sent is known."""
    found = explain_fault(error, "h:1", proxy="http://p")
    assert type(found) is want_class
    assert str(found) == f"h:1: {want_text}"
    assert found.sent is want_sent


# The API is watched over plain HTTP; these cannot come up.
WEBSOCKETS = {aiohttp.WSMessageTypeError}


def test_every_exception_of_aiohttp_is_mapped() -> None:
    """All classes that aiohttp may raise are caught and become one of ours."""
    classes = [
        value
        for value in vars(aiohttp.client_exceptions).values()
        if inspect.isclass(value) and issubclass(value, Exception) and value not in WEBSOCKETS
    ]
    assert len(classes) > 25
    for one in classes:
        assert issubclass(one, FAULTS), one
        error: Any = one.__new__(one)
        error._os_error, error._certificate_error = os_error(5), None
        error.status, error.message = 400, "x"
        assert isinstance(explain_fault(error, "h"), TransportError)
