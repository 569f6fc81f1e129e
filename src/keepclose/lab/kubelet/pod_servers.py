"""The servers of a pod: they answer with pod, node, zone and client, over HTTP/1.x and UDP.

Small and quick rather than complete: every method and path is answered at once with 200, bodies are
read and dropped. The zone is that of the node's label at the moment of the answer.

Sockets are opened inside the pod's namespace and served by the event loop outside. A pod with its
own namespace listens on all its addresses. A pod with hostNetwork listens on the node's addresses
alone, beside other servers there. It answers once all ports are open, and closes all at once.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from keepclose.lab.kubelet.container_modes import PodPorts, Port
from keepclose.lab.kubelet.pod_networks import PodPlace
from keepclose.system.threads import open_in_thread

MAX_HEADER_BYTES: Final = 32_768
_END: Final = b"\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_MAPPED: Final = "::ffff:"
_BACKLOG: Final = 256
_KINDS: Final = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}


class PodReplies:
    """The replies of one pod."""

    def __init__(
        self, *, pod: str, node: str, zone: Callable[[], str], names_only: bool = False
    ) -> None:
        """Take the pod; with `names_only` an HTTP body is the pod's name, as agnhost's is."""
        self._pod, self._node, self._zone = pod, node, zone
        self._names_only = names_only

    def http(self, path: str, client: str, *, closes: bool, has_body: bool = True) -> bytes:
        """Return the whole response to a request."""
        zone = self._zone()
        if path.partition("?")[0] == "/json":
            kind = "application/json"
            facts = {"pod": self._pod, "node": self._node, "zone": zone, "client": client}
            body = msgspec.json.encode(facts) + b"\n"
        else:
            kind = "text/plain; charset=utf-8"
            text = self._pod if self._names_only else f"{self._pod} {self._node} {zone}\n"
            body = text.encode()
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"X-Pod: {self._pod}\r\nX-Node: {self._node}\r\nX-Zone: {zone}\r\n"
            f"X-Client: {client}\r\nConnection: {'close' if closes else 'keep-alive'}\r\n\r\n"
        ).encode()
        return head + body if has_body else head

    def datagram(self, client: str) -> bytes:
        """Return the reply to a datagram."""
        return f"{self._pod} {self._node} {self._zone()} {client}\n".encode()


class HttpServer(asyncio.Protocol):
    """One connection; it is among the connections of its listener while it is open."""

    def __init__(self, replies: PodReplies, connections: set[asyncio.Transport]) -> None:
        self._replies, self._connections = replies, connections
        self._transport: asyncio.Transport
        self._client = ""
        self._buffer = b""
        self._body_left = 0
        self._reads_chunks = False
        self._closes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the client."""
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self._transport)
        self._client = _client_of(transport.get_extra_info("peername"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        del exc
        self._connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._buffer += data
        while self._buffer and not self._transport.is_closing():
            if self._reads_chunks:
                # The connection ends with such a request, so nothing can follow its last chunk.
                self._buffer = self._buffer[-len(_LAST_CHUNK) :]
                if self._buffer == _LAST_CHUNK:
                    self._transport.close()
                return
            if self._body_left:
                dropped = min(self._body_left, len(self._buffer))
                self._buffer = self._buffer[dropped:]
                self._body_left -= dropped
                if self._closes and not self._body_left:
                    self._transport.close()
                continue
            end = self._buffer.find(_END)
            if end < 0:
                if len(self._buffer) > MAX_HEADER_BYTES:
                    self._refuse(b"431 Request Header Fields Too Large")
                return
            head, self._buffer = self._buffer[:end], self._buffer[end + len(_END) :]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        line, _, fields = head.partition(b"\r\n")
        words = line.split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._refuse(b"400 Bad Request")
            return
        headers = _read_headers(fields) if fields else {}
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            self._refuse(b"400 Bad Request")
            return
        connection = headers.get(b"connection", b"").lower()
        is_old = words[2] == b"HTTP/1.0"
        closes = b"close" in connection or (is_old and b"keep-alive" not in connection)
        self._reads_chunks = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        self._body_left = 0 if self._reads_chunks else int(length)
        self._closes = closes = closes or self._reads_chunks
        if headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(_CONTINUE)
        path = words[1].decode("latin-1")
        self._transport.write(
            self._replies.http(path, self._client, closes=closes, has_body=words[0] != b"HEAD")
        )
        # NB: a connection that is closed before its body was read ends with a reset.
        if closes and not self._reads_chunks and not self._body_left:
            self._transport.close()

    def _refuse(self, status: bytes) -> None:
        answer = b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status
        self._transport.write(answer)
        self._transport.close()


class DatagramServer(asyncio.DatagramProtocol):
    """One UDP socket: each datagram gets one in reply."""

    def __init__(self, replies: PodReplies) -> None:
        self._replies = replies
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """Reply with the pod's datagram."""
        del data
        self._transport.sendto(self._replies.datagram(_client_of(addr)), addr)


class PodListener:
    """All listening sockets of one pod. Close it."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._datagrams: list[asyncio.DatagramTransport] = []
        self._connections: set[asyncio.Transport] = set()
        self.ports: list[Port] = []
        """The open ports."""

    async def _serve(self, sockets: list[tuple[Port, socket.socket]], replies: PodReplies) -> None:
        loop = asyncio.get_running_loop()
        while sockets:
            port, listening = sockets.pop(0)
            try:
                await self._serve_one(loop, listening, replies)
            except BaseException:
                listening.close()
                raise
            if port not in self.ports:
                self.ports.append(port)

    async def _serve_one(
        self, loop: asyncio.AbstractEventLoop, listening: socket.socket, replies: PodReplies
    ) -> None:
        if listening.type == socket.SOCK_STREAM:
            # NB: if this task is cancelled while the server starts, a server that serves at once
            # could not be closed any more.
            server = await loop.create_server(
                lambda: HttpServer(replies, self._connections),
                sock=listening,
                backlog=_BACKLOG,
                start_serving=False,
            )
            self._servers.append(server)
            await server.start_serving()
        else:
            transport, _ = await loop.create_datagram_endpoint(
                lambda: DatagramServer(replies), sock=listening
            )
            self._datagrams.append(transport)

    def close(self) -> None:
        """Stop listening and close all connections; idempotent."""
        for server in self._servers:
            server.close()
        for transport in self._datagrams:
            transport.close()
        for connection in tuple(self._connections):
            connection.close()
        self._servers.clear()
        self._datagrams.clear()
        self.ports.clear()


async def open_listener(
    place: PodPlace, pod_ports: PodPorts, replies: PodReplies, *, on_host: bool = False
) -> PodListener | None:
    """Open the sockets of a pod; returns None on a machine that cannot have the network.

    Guessed ports are left out if another server has them. Raises OSError and NetworkError.
    """
    namespace = place.namespace
    if namespace is None:
        return None
    hosts = place.addresses if on_host else _any_addresses(place)

    def open_all() -> list[tuple[Port, socket.socket]]:
        return _open_sockets(hosts, pod_ports)

    sockets = await open_in_thread(lambda: namespace.do(open_all), _close_all)
    listener = PodListener()
    try:
        await listener._serve(sockets, replies)  # noqa: SLF001 - created here
    except BaseException:
        listener.close()
        raise
    finally:
        _close_all(sockets)
    return listener


def _read_headers(fields: bytes) -> dict[bytes, bytes]:
    headers = {}
    for line in fields.split(b"\r\n"):
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _client_of(peer: tuple[Any, ...] | None) -> str:
    """Return the address of the client; IPv4 unmapped although the socket is of both families."""
    return str(peer[0]).removeprefix(_MAPPED) if peer else ""


def _any_addresses(place: PodPlace) -> tuple[str, ...]:
    """Return the unspecified address for all families of the place.

    NB: one socket for both families halves the open files of a large lab.
    """
    return ("::",) if any(":" in address for address in place.addresses) else ("0.0.0.0",)  # noqa: S104


def _open_sockets(hosts: tuple[str, ...], pod_ports: PodPorts) -> list[tuple[Port, socket.socket]]:
    sockets: list[tuple[Port, socket.socket]] = []
    try:
        for port in pod_ports.ports:
            if port.protocol not in _KINDS:
                continue
            for host in hosts:
                try:
                    sockets.append((port, _open_socket(host, port)))
                except OSError as error:
                    if not pod_ports.are_guessed or error.errno != errno.EADDRINUSE:
                        where = f"{port.protocol} port {port.number}"
                        why = f"cannot listen on {where}: {error.strerror}"
                        raise OSError(error.errno, why) from None
    except BaseException:
        _close_all(sockets)
        raise
    return sockets


def _open_socket(host: str, port: Port) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, _KINDS[port.protocol])
    try:
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        if opened.type == socket.SOCK_STREAM:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setblocking(False)
        opened.bind((host, port.number))
        if opened.type == socket.SOCK_STREAM:
            opened.listen(_BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened


def _close_all(sockets: list[tuple[Port, socket.socket]]) -> None:
    for _, opened in sockets:
        with suppress(OSError):
            opened.close()
