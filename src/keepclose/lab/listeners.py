"""The sockets of a pod: made inside its network namespace, served by the event loop outside.

A pod in a namespace of its own listens on all its addresses; one that uses its node's network
listens on the node's addresses alone, beside whatever else is there. Answering starts when all
ports are open, and ends for all of them at once.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from typing import Final

from keepclose.lab.kubelet.container_modes import PodPorts, Port
from keepclose.lab.kubelet.pod_networks import PodPlace
from keepclose.lab.kubelet.pod_servers import Answers, DatagramAnswerer, HttpAnswerer
from keepclose.system.threads import open_in_thread

BACKLOG: Final = 256
_KINDS: Final = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}


class Listener:
    """All that listens for one pod. Close it."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._datagrams: list[asyncio.DatagramTransport] = []
        self._connections: set[asyncio.Transport] = set()
        self.ports: list[Port] = []
        """What is listened to."""

    async def _serve(self, sockets: list[tuple[Port, socket.socket]], answers: Answers) -> None:
        loop = asyncio.get_running_loop()
        while sockets:
            port, one = sockets.pop(0)
            try:
                await self._serve_one(loop, one, answers)
            except BaseException:
                one.close()
                raise
            if port not in self.ports:
                self.ports.append(port)

    async def _serve_one(
        self, loop: asyncio.AbstractEventLoop, one: socket.socket, answers: Answers
    ) -> None:
        if one.type == socket.SOCK_STREAM:
            # NB: a server that serves at once is out of reach while its maker is cancelled.
            server = await loop.create_server(
                lambda: HttpAnswerer(answers, self._connections),
                sock=one,
                backlog=BACKLOG,
                start_serving=False,
            )
            self._servers.append(server)
            await server.start_serving()
        else:
            transport, _ = await loop.create_datagram_endpoint(
                lambda: DatagramAnswerer(answers), sock=one
            )
            self._datagrams.append(transport)

    def close(self) -> None:
        """Stop listening and end all connections; once more is fine."""
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
    place: PodPlace, wanted: PodPorts, answers: Answers, *, on_host: bool = False
) -> Listener | None:
    """Return what listens for a pod at its place; None where no packets can be sent.

    Ports that nobody asked for by number are left out where others have them. Raises OSError and
    NetworkError.
    """
    namespace = place.namespace
    if namespace is None:
        return None
    hosts = place.addresses if on_host else _any_addresses(place)

    def open_all() -> list[tuple[Port, socket.socket]]:
        return _open_sockets(hosts, wanted)

    sockets = await open_in_thread(lambda: namespace.do(open_all), _close_all)
    listener = Listener()
    try:
        await listener._serve(sockets, answers)  # noqa: SLF001 - its maker
    except BaseException:
        listener.close()
        raise
    finally:
        _close_all(sockets)
    return listener


def _any_addresses(place: PodPlace) -> tuple[str, ...]:
    """Return the one address that stands for all of the place's families.

    NB: one socket for both families halves the open files of a large lab.
    """
    return ("::",) if any(":" in one for one in place.addresses) else ("0.0.0.0",)  # noqa: S104


def _open_sockets(hosts: tuple[str, ...], wanted: PodPorts) -> list[tuple[Port, socket.socket]]:
    found: list[tuple[Port, socket.socket]] = []
    try:
        for port in wanted.ports:
            if port.protocol not in _KINDS:
                continue
            for host in hosts:
                try:
                    found.append((port, _open_socket(host, port)))
                except OSError as error:
                    if not wanted.are_guessed or error.errno != errno.EADDRINUSE:
                        where = f"{port.protocol} port {port.number}"
                        why = f"cannot listen on {where}: {error.strerror}"
                        raise OSError(error.errno, why) from None
    except BaseException:
        _close_all(found)
        raise
    return found


def _open_socket(host: str, port: Port) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, _KINDS[port.protocol])
    try:
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        if one.type == socket.SOCK_STREAM:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setblocking(False)
        one.bind((host, port.number))
        if one.type == socket.SOCK_STREAM:
            one.listen(BACKLOG)
    except BaseException:
        one.close()
        raise
    return one


def _close_all(sockets: list[tuple[Port, socket.socket]]) -> None:
    for _, one in sockets:
        with suppress(OSError):
            one.close()
