"""The control socket of a running cluster, and the client of its commands: one request each.

A request is a line of JSON with the name of a handler and its parameters. Lines of progress come
back, then the result or the error. Only the owner of the directory can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from keepclose.kube.errors import KubeError, ServerError, TransportError
from keepclose.lab.access import LabRefusal
from keepclose.model.json_values import JsonObject
from keepclose.system.private_files import BrokenFileError, PrivateDirectory

ReportProgress = Callable[[JsonObject], None]
ControlHandler = Callable[[JsonObject, ReportProgress], Awaitable[JsonObject]]
_MAX_REQUEST_BYTES: Final = 1 << 20
_log = structlog.get_logger(__name__)


def socket_address(path: Path, directory: int) -> str:
    """Return a short address of a socket in an open directory; the limit is 107 characters."""
    return f"/proc/self/fd/{directory}/{path.name}"


class ControlServer:
    """Answers requests with their handlers."""

    def __init__(self, path: Path, handlers: Mapping[str, ControlHandler]) -> None:
        self._path, self._handlers = path, handlers
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; raises OSError."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            with PrivateDirectory.open(self._path.parent) as directory:
                # NB: the file gets the mode that the socket has before it is bound.
                os.fchmod(listener.fileno(), 0o600)
                listener.bind(socket_address(self._path, directory.descriptor))
        except BaseException:
            listener.close()
            raise
        # NB: if this task is cancelled while the server starts, a server that serves at once could
        # not be closed any more.
        self._server = await asyncio.start_unix_server(
            self._accept, sock=listener, limit=_MAX_REQUEST_BYTES, start_serving=False
        )
        await self._server.start_serving()

    async def stop(self) -> None:
        """Accept no more requests and cancel the running ones; return when they have cleaned up."""
        if self._server is not None:
            self._server.close()
        requests = tuple(self._requests)
        for task in requests:
            task.cancel()
        if requests:
            await asyncio.wait(requests)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # NB: our own task, because asyncio logs an error for a cancelled task of its streams.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def send(what: JsonObject) -> None:
            writer.write(msgspec.json.encode(what) + b"\n")

        tasks: list[asyncio.Task[Any]] = []
        try:
            answer = asyncio.create_task(self._answer(await reader.readline(), send))
            # A client that disconnects cancels its request.
            gone = asyncio.create_task(reader.read(1))
            tasks = [answer, gone]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                send(answer.result())
                await writer.drain()
        except (ValueError, OSError) as error:
            _log.info("control request aborted", error=str(error))
        finally:
            await _finish(tasks)
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, line: bytes, send: ReportProgress) -> JsonObject:
        try:
            request = msgspec.json.decode(line, type=dict[str, Any])
            handler = self._handlers.get(str(request.pop("do", "")))
            if handler is None:
                return {"error": "unknown request", "code": 2}
            return {"done": await handler(request, lambda what: send({"tell": what}))}
        except LabRefusal as refusal:
            return {"error": str(refusal), "code": refusal.code}
        except (TransportError, ServerError) as error:
            return {"error": f"the API server does not answer: {error}", "code": 4}
        except (KubeError, msgspec.DecodeError, msgspec.ValidationError) as error:
            return {"error": str(error), "code": 2}
        except Exception as error:  # noqa: BLE001 - one bad request must not end the cluster
            _log.exception("control request failed")
            return {"error": f"the lab failed: {error}", "code": 1}


async def _finish(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return when they have ended, even if this task is cancelled too."""
    for task in tasks:
        task.cancel()
    while not all(task.done() for task in tasks):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)


class CallError(Exception):
    """Why a request failed; `code` is the command's exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def _ignore(_what: JsonObject) -> None:
    """Drop the progress."""


def call_lab(
    data_dir: Path,
    do: str,
    params: JsonObject,
    *,
    on_tell: Callable[[JsonObject], None] = _ignore,
) -> JsonObject:
    """Send a request to the cluster in a directory and return the result; raises CallError.

    `on_tell` gets the progress of a long request.
    """
    path = data_dir.expanduser() / "lab.sock"
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with PrivateDirectory.open(path.parent) as directory:
                connection.connect(socket_address(path, directory.descriptor))
            _check_peer(connection)
        except PermissionError:
            raise CallError(f"the cluster in {path.parent} belongs to another user", 5) from None
        except BrokenFileError as error:
            raise CallError(str(error), 5) from None
        except OSError:
            text = f"no cluster runs in {path.parent}; start one with keepclose up"
            raise CallError(text, 4) from None
        try:
            connection.sendall(msgspec.json.encode({"do": do, **params}) + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer = msgspec.json.decode(line, type=dict[str, Any])
                    if "tell" in answer:
                        on_tell(answer["tell"])
                    elif "error" in answer:
                        raise CallError(answer["error"], int(answer.get("code", 2)))
                    else:
                        done: JsonObject = answer["done"]
                        return done
        except (OSError, msgspec.DecodeError):
            # A cluster that is killed leaves half a line, or none.
            pass
    raise CallError("the cluster ended before it answered", 4)


def _check_peer(connection: socket.socket) -> None:
    """Raise PermissionError if a process of another user listens at the socket."""
    form = "3i"
    sent = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    _pid, user, _group = struct.unpack(form, sent)
    if user != os.geteuid():
        raise PermissionError
