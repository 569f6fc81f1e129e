"""The transport over aiohttp: connections, TLS, and the proof of the client on every request.

A body that is read in chunks has no limit; one that is read whole must arrive within the timeout,
and has no more bytes, decompressed, than the largest list of a cluster. After a 401 the credentials
drop what they cache, and the request is sent once more. Redirects are not followed: they would send
the credentials to another server.

TLS contexts are built from PEM in memory. The ssl module loads a private key only from a file, so
the key is written to a file that no other user may read, and that is removed before the context is
used.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import tempfile
import weakref
from collections.abc import AsyncIterator, Mapping
from io import BytesIO
from typing import Final
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from keepclose.kube.auth.credentials import ClientCertificate, Credentials, Proof
from keepclose.kube.clock import Clock
from keepclose.kube.errors import CHECK_SERVER, BrokenStream, ConfigError, ConnectionLost
from keepclose.kube.transport.transport import FAULTS, ApiRequest, explain_fault

CONNECT_S: Final = 10.0
KEEPALIVE_S: Final = 30.0
# A watch of a busy cluster is read in chunks of this size rather than line by line.
BUFFER_BYTES: Final = 1 << 18
MAX_ANSWER_BYTES: Final = 1 << 30
"""The largest answer: the list of all pods of 5,000 nodes has half of it."""
MAX_FAILURE_BYTES: Final = 8 << 20
"""The largest answer of an error status."""
_CONNECTIONS: Final = 100
# How often, and for how many seconds each, closing waits for the last sockets.
_CLOSE_POLLS: Final = 50
_CLOSE_POLL_S: Final = 0.01
# Over this size aiohttp warns about a body of bytes, because it sends it in one write.
_MAX_WHOLE_BODY: Final = 1 << 20


def make_context(
    *,
    authority: bytes = b"",
    insecure: bool = False,
    certificate: ClientCertificate | None = None,
    source: str = "",
) -> ssl.SSLContext:
    """Return a client context; without an authority it trusts the CAs of the machine.

    Errors name `source` as the file that the settings came from.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authority:
        _load_authority(context, authority, source=source)
    else:
        context.load_default_certs()
    if certificate is not None:
        _load_certificate(context, certificate, source=source)
    return context


def _load_authority(context: ssl.SSLContext, authority: bytes, *, source: str) -> None:
    try:
        context.load_verify_locations(cadata=authority.decode("ascii", errors="ignore"))
        loaded = bool(context.get_ca_certs()) or context.cert_store_stats()["x509"] > 0
    except (ssl.SSLError, ValueError):
        loaded = False
    if not loaded:
        raise ConfigError(
            "holds no certificate",
            file=source,
            field="certificate-authority",
            fix="it must be PEM, beginning with -----BEGIN CERTIFICATE-----",
        )


def _load_certificate(
    context: ssl.SSLContext, certificate: ClientCertificate, *, source: str
) -> None:
    descriptor, path = tempfile.mkstemp(prefix="keepclose-", suffix=".pem")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.chain.rstrip() + b"\n" + certificate.key)
        context.load_cert_chain(path, password=_refuse_password)
    except _EncryptedKeyError:
        raise ConfigError(
            "the key is encrypted",
            file=source,
            field="client-key",
            fix="decrypt it with openssl pkey",
        ) from None
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"the client certificate and key cannot be used ({_reason(error)})",
            file=source,
            field="client-certificate, client-key",
            fix="both must be PEM and belong together",
        ) from error
    finally:
        os.unlink(path)  # noqa: PTH108


class _EncryptedKeyError(Exception):
    pass


def _refuse_password() -> str:
    # NB: without this the ssl module prompts at the terminal, and the program hangs.
    raise _EncryptedKeyError


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return reason.lower().replace("_", " ")


class ServerAddress(msgspec.Struct, frozen=True):
    """The URL of a server and how to verify it; without an authority by the machine's CAs.

    Errors name `source` as the file that the settings came from.
    """

    url: str
    authority: bytes = b""
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""
    source: str = ""

    def __repr__(self) -> str:
        return f"Server({self.url!r})"


class AioResponse:
    """An answer of aiohttp that raises errors of `kube.errors`."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        *,
        host: str,
        clock: Clock,
        deadline: float | None,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._response = response
        self._transport = response.connection.transport if response.connection else None
        self._host = host
        self._clock = clock
        self._deadline = deadline
        self._max_bytes = max_bytes

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are case-insensitive."""
        return self._response.headers

    async def read(self) -> bytes:
        """Return the whole body and release the connection."""
        left = None if self._deadline is None else self._deadline - self._clock.monotonic()
        try:
            return await self._clock.wait_for(self._read_whole(), left)
        except FAULTS as error:
            raise explain_fault(error, self._host) from error

    async def _read_whole(self) -> bytes:
        most = self._max_bytes if self.status < 300 else MAX_FAILURE_BYTES
        chunks: list[bytes] = []
        left = most
        while chunk := await self._response.content.readany():
            left -= len(chunk)
            if left < 0:
                reason = f"the answer has more than {most >> 20} MiB"
                raise BrokenStream(self._host, reason, fix=CHECK_SERVER)
            chunks.append(chunk)
        return b"".join(chunks)

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives."""
        return _Chunks(self._response.content, self._host)

    async def close(self) -> None:
        """Release the connection."""
        self._response.close()
        if self._transport is not None and self._transport.is_closing():
            # NB: a TLS shutdown needs time and the peer, which may be gone.
            self._transport.abort()


class _Chunks:
    """The chunks of a body as they arrive.

    NB: not a generator, which would need finalizing after a reader that stops midway.
    """

    def __init__(self, content: aiohttp.StreamReader, host: str) -> None:
        self._content = content
        self._host = host

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._content.readany()
        except FAULTS as error:
            raise explain_fault(error, self._host) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


class AioTransport:
    """The transport to one server; its first request opens the first connection."""

    def __init__(self, server: ServerAddress, *, credentials: Credentials, clock: Clock) -> None:
        self._server = server
        self._base = server.url.rstrip("/")
        url = URL(self._base)
        self._host = f"{url.host}:{url.port}"
        self._is_tls = url.scheme == "https"
        # Messages must not show the password of a proxy.
        self._proxy_shown = str(URL(server.proxy).with_user(None)) if server.proxy else ""
        self._credentials = credentials
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._context: ssl.SSLContext | None = None
        self._loaded_certificate: ClientCertificate | None = None
        self._is_closed = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    async def send(self, request: ApiRequest) -> AioResponse:
        """Return the answer as soon as its headers have arrived.

        Raise ConfigError when the credentials are not available, else only TransportErrors.
        """
        response = await self._send_once(request, await self._credentials.proof())
        if response.status == 401 and self._credentials.forget():
            await response.close()
            response = await self._send_once(request, await self._credentials.proof())
        return response

    async def close(self) -> None:
        """Close all connections; idempotent."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await self._wait_for_sockets()

    async def _wait_for_sockets(self) -> None:
        """Wait until every socket of this transport is closed, for half a second at most.

        NB: aiohttp drops connections that broke during their TLS shutdown, and the event loop
        closes their sockets later; a program that ends meanwhile would leave them open.
        """
        for _ in range(_CLOSE_POLLS):
            if all(opened.fileno() < 0 for opened in self._sockets):
                return
            await self._clock.sleep(_CLOSE_POLL_S)
        for opened in tuple(self._sockets):
            # The peer did not answer the TLS shutdown, and will not any more.
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        await self._clock.sleep(_CLOSE_POLL_S)

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    async def _send_once(self, request: ApiRequest, proof: Proof) -> AioResponse:
        headers = dict(request.headers)
        if proof.authorization:
            headers["Authorization"] = proof.authorization
        query = f"?{urlencode(request.query)}" if request.query else ""
        url = URL(f"{self._base}{request.path}{query}", encoded=True)
        deadline = None if request.timeout is None else self._clock.monotonic() + request.timeout
        context = self._tls_context(proof.certificate)
        try:
            response = await self._clock.wait_for(
                self._open_session().request(
                    request.method,
                    url,
                    headers=headers,
                    data=_streamable(request.body),
                    allow_redirects=False,
                    ssl=context if context is not None else True,
                    server_hostname=self._server.server_name or None,
                    proxy=self._server.proxy or None,
                ),
                request.timeout,
            )
        except FAULTS as error:
            raise explain_fault(error, self._host, proxy=self._proxy_shown) from error
        return AioResponse(
            response,
            host=self._host,
            clock=self._clock,
            deadline=deadline,
            max_bytes=request.max_bytes or MAX_ANSWER_BYTES,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise ConnectionLost(self._host, "the client is closed", sent=False)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=_CONNECTIONS,
                    keepalive_timeout=KEEPALIVE_S,
                    socket_factory=self._open_socket,
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=BUFFER_BYTES,
            )
            # NB: aiohttp repeats GET, PUT and DELETE by itself when a connection breaks. A DELETE
            # that was served could then hit the next object of that name; only the callers know
            # what may be repeated. aiohttp has no public option for this.
            self._session._retry_connection = False  # noqa: SLF001
        return self._session

    def _tls_context(self, certificate: ClientCertificate | None) -> ssl.SSLContext | None:
        """Return the context with the certificate; a changed certificate gets a new context.

        NB: aiohttp pools connections by context, so that no request uses an old certificate.
        """
        if not self._is_tls:
            return None
        if self._context is None or certificate != self._loaded_certificate:
            self._context = make_context(
                authority=self._server.authority,
                insecure=self._server.insecure,
                certificate=certificate,
                source=self._server.source,
            )
            self._loaded_certificate = certificate
        return self._context


def _streamable(body: bytes | None) -> bytes | BytesIO | None:
    """Return a body in a form that aiohttp sends without blocking the event loop."""
    return BytesIO(body) if body is not None and len(body) > _MAX_WHOLE_BODY else body
