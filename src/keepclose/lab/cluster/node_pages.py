"""Pages of programs that listen in the network namespaces of nodes, read from outside of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from functools import partial
from typing import Final

from keepclose.demand.sources import ReadErrors, ReadPages, TakePage
from keepclose.runtime.pages import ListenAddress
from keepclose.system.namespaces import NetworkError, NetworkNamespace
from keepclose.system.threads import ask_in_thread, open_in_thread

FLOW_PAGES: Final = ListenAddress("127.0.0.1", 10247)
"""Where the flow agent of a node serves its pages, in the node's namespace."""
_PAGE_S: Final = 10.0
_MAX_PAGE_BYTES: Final = 64 << 20


def pages_of_nodes(namespaces: Mapping[str, str]) -> ReadPages:
    """Return what reads the flow agents of nodes, by the file of each node's namespace."""

    async def read(take: TakePage) -> ReadErrors:
        errors: dict[str, str] = {}
        for node, path in namespaces.items():
            try:
                namespace = NetworkNamespace(node, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                try:
                    page = await read_page(namespace, FLOW_PAGES, "/flows?walk=true")
                finally:
                    namespace.close()
            except (OSError, NetworkError) as error:
                errors[node] = str(error) or type(error).__name__
                continue
            why = await ask_in_thread(partial(take, node, page.encode()))
            if why:
                errors[node] = why
        return ReadErrors(errors)

    return read


async def read_page(namespace: NetworkNamespace, address: ListenAddress, path: str) -> str:
    """Return a page of a program in a namespace; raises OSError and NetworkError."""
    loop = asyncio.get_running_loop()
    connection = await open_in_thread(namespace.open_socket, lambda opened: opened.close())
    try:
        connection.setblocking(False)
        async with asyncio.timeout(_PAGE_S):
            await loop.sock_connect(connection, address)
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                # NB: to HTTP/1.0 a server answers without chunks, and closes.
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                data = b""
                while part := await reader.read(1 << 20):
                    data += part
                    if len(data) > _MAX_PAGE_BYTES:
                        raise OSError(f"{path} has more than {_MAX_PAGE_BYTES >> 20} MiB")
            finally:
                writer.transport.abort()
    finally:
        connection.close()
    head, _, body = data.partition(b"\r\n\r\n")
    if head.split()[1:2] != [b"200"]:
        status = head.partition(b"\r\n")[0].decode(errors="replace")
        raise OSError(f"{path} answers {status!r}")
    return body.decode()
