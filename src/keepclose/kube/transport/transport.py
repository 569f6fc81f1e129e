"""The interface through which all bytes to and from an API server pass.

A transport knows the server, how to verify it and how to authenticate; it knows nothing of kinds,
retries or watches. It raises TransportErrors, ConfigErrors for credentials that are not available,
and nothing else; an answer of any status is an answer. A fake of two methods can script every
fault of a network.

Every exception that a request can raise becomes one TransportError that names the server, what
happened and what to check. None passes through unmapped.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

import aiohttp
import msgspec

from keepclose.kube.errors import (
    CHECK_SERVER,
    BrokenStream,
    ConnectionLost,
    ConnectionRefused,
    TimedOut,
    TlsError,
    TransportError,
)

# What aiohttp may raise from a request or from reading its answer; ValueError comes from URLs and
# headers that it rejects.
FAULTS: Final = (aiohttp.ClientError, OSError, TimeoutError, EOFError, ValueError)
_CHECK_ROUTE: Final = "check the server's address and the firewalls on the way"
_CHECK_PROXY: Final = "check proxy-url or HTTPS_PROXY"
# X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH.
_EXPIRED: Final = 10
_WRONG_NAME: Final = (62, 64)
# TLS alerts as OpenSSL spells them, each with its meaning and fix for the user of a kubeconfig.
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": ("the server asks for a client certificate", "name one for the user"),
    "UNKNOWN_CA": (
        "the server does not trust our client certificate",
        "check client-certificate: another authority must have signed it",
    ),
    "BAD_CERTIFICATE": ("the server refuses our client certificate", "check client-certificate"),
    "CERTIFICATE_EXPIRED": (
        "our client certificate has expired",
        "renew it and its entry in the kubeconfig",
    ),
    "CERTIFICATE_REVOKED": ("our client certificate was revoked", "ask for a new one"),
    "CERTIFICATE_UNKNOWN": (
        "the server refuses our client certificate",
        "check client-certificate",
    ),
    "HANDSHAKE_FAILURE": (
        "the two sides do not agree on a TLS version or cipher",
        "the server may ask for a client certificate",
    ),
    "WRONG_VERSION_NUMBER": (
        "the server does not speak TLS",
        "use http:// or check the port",
    ),
    "RECORD_LAYER_FAILURE": (
        "the server does not speak TLS",
        "use http:// or check the port",
    ),
}


class ApiRequest(msgspec.Struct, frozen=True):
    """One request, without the server it goes to.

    The path begins with "/" and is percent-encoded; the query is not. The timeout covers reading
    the whole answer, or only its headers if it is streaming; None means no limit. `max_bytes` is
    the largest answer; 0 means that of the transport.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: dict[str, str] = {}
    body: bytes | None = None
    timeout: float | None = None
    streaming: bool = False
    max_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Response(Protocol):
    """An answer whose body may still be arriving."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are case-insensitive."""
        ...

    async def read(self) -> bytes:
        """Return the whole body and release the connection."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives, cut at any byte, until the server ends it."""
        ...

    async def close(self) -> None:
        """Release the connection and drop what was not read; idempotent."""
        ...


class Transport(Protocol):
    """Sends requests to one API server."""

    async def send(self, request: ApiRequest) -> Response:
        """Return the answer as soon as its headers have arrived."""
        ...

    async def close(self) -> None:
        """Close all connections; idempotent."""
        ...


def explain_fault(error: BaseException, host: str, *, proxy: str = "") -> TransportError:
    """Return the TransportError for an exception of aiohttp."""
    tls = _tls_error(error)
    if tls is not None:
        return _explain_tls(tls, host)
    match error:
        case aiohttp.ConnectionTimeoutError():
            return TimedOut(host, "connection timed out", fix=_CHECK_ROUTE, sent=False)
        case TimeoutError():
            return TimedOut(host, "no answer in time", fix="try again, or ask for less at once")
        case aiohttp.ClientSSLError():
            return TlsError(host, "the two sides cannot agree on TLS", fix=CHECK_SERVER)
        case aiohttp.ClientProxyConnectionError():
            reason = f"the proxy {proxy} cannot be reached: {_os_message(error.os_error)}"
            return ConnectionRefused(host, reason, fix=_CHECK_PROXY)
        case aiohttp.ClientHttpProxyError():
            reason = f"the proxy {proxy} answered {error.status} {error.message}".rstrip()
            return ConnectionRefused(host, reason, fix=_CHECK_PROXY)
        case aiohttp.ClientConnectorDNSError():
            fix = "check the server's name in the settings, and the name server"
            return ConnectionRefused(host, "no such host", fix=fix)
        case aiohttp.ClientConnectorError():
            return _explain_connecting(error.os_error, host)
        case aiohttp.ServerFingerprintMismatch():
            return TlsError(host, "the server's certificate is not the expected one")
        case aiohttp.ServerDisconnectedError():
            return ConnectionLost(host, "the server closed the connection")
        case aiohttp.ClientPayloadError() | EOFError():
            return ConnectionLost(host, "the answer was cut off")
        case aiohttp.ClientResponseError():
            reason = f"the answer is not HTTP: {error.message or error.status}"
            return BrokenStream(host, reason, fix=CHECK_SERVER)
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return BrokenStream(host, "the server's URL cannot be used", fix=CHECK_SERVER)
        case ValueError():
            # NB: the message of the error may contain the token.
            fix = "check the token for line breaks and odd characters"
            return BrokenStream(host, "the request is not valid HTTP", fix=fix, sent=False)
        case OSError():
            return ConnectionLost(host, f"the connection broke: {_os_message(error)}")
        case _:
            return ConnectionLost(
                host, f"the connection broke: {str(error) or type(error).__name__}"
            )


def _explain_connecting(error: OSError, host: str) -> TransportError:
    match error.errno:
        case errno.ECONNREFUSED:
            return ConnectionRefused(
                host, "connection refused", fix="check that the server runs and the port is right"
            )
        case errno.ETIMEDOUT:
            return TimedOut(host, "connection timed out", fix=_CHECK_ROUTE, sent=False)
        case errno.ECONNRESET | errno.EPIPE:
            return ConnectionRefused(host, "the connection was reset", fix=_CHECK_ROUTE)
        case _:
            return ConnectionRefused(host, _os_message(error), fix=_CHECK_ROUTE)


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """Return the OpenSSL error inside an exception, however deep aiohttp has wrapped it."""
    # NB: some classes of aiohttp are SSLErrors too, but without a reason.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, aiohttp.ClientError):
            return cause
        inner = getattr(cause, "_certificate_error", None) or getattr(cause, "_os_error", None)
        cause = inner or cause.__cause__
    return None


def _explain_tls(error: ssl.SSLError, host: str) -> TransportError:
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or "the server's certificate is not trusted"
        fix = "check certificate-authority: it must have signed the server's certificate"
        if error.verify_code == _EXPIRED:
            fix = "renew the server's certificate, or set the clock right"
        elif error.verify_code in _WRONG_NAME:
            fix = "use a name that the certificate has, or set tls-server-name"
        return TlsError(host, f"the server's certificate: {reason}", fix=fix)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ConnectionLost(host, "the server closed the connection in the middle of TLS")
    reason = error.reason or str(error)
    for ending, (why, fix) in _ALERTS.items():
        if reason.endswith(ending):
            return TlsError(host, why, fix=fix)
    return TlsError(host, reason.lower().replace("_", " "), fix="check the port and the proxy")


def _os_message(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
