"""The socket by which commands speak to a running cluster: one request a connection.

A request is a line of JSON that says what to do. Lines of progress come back, then the result or
why there is none. Only the owner of the directory can reach it.
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

Tell = Callable[[JsonObject], None]
ControlHandler = Callable[[JsonObject, Tell], Awaitable[JsonObject]]
_LONGEST: Final = 1 << 20
_log = structlog.get_logger(__name__)


def socket_address(path: Path, directory: int) -> str:
    """Return a short name for a socket in an open directory; addresses end at 107 characters."""
    return f"/proc/self/fd/{directory}/{path.name}"


class ControlServer:
    """Answers requests by their handlers."""

    def __init__(self, path: Path, handlers: Mapping[str, ControlHandler]) -> None:
        self._path, self._handlers = path, handlers
        self._server: asyncio.Server | None = None
        self._working: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; raises OSError."""
        one = socket.socket(socket.AF_UNIX)
        try:
            with PrivateDirectory.open(self._path.parent) as directory:
                # NB: the mode of the socket before it is bound is the one that it gets.
                os.fchmod(one.fileno(), 0o600)
                one.bind(socket_address(self._path, directory.descriptor))
        except BaseException:
            one.close()
            raise
        # NB: a server that serves at once is out of reach while its maker is cancelled.
        self._server = await asyncio.start_unix_server(
            self._take, sock=one, limit=_LONGEST, start_serving=False
        )
        await self._server.start_serving()

    async def stop(self) -> None:
        """Take no more requests and end those under way; return when they have cleaned up."""
        if self._server is not None:
            self._server.close()
        working = tuple(self._working)
        for task in working:
            task.cancel()
        if working:
            await asyncio.wait(working)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # NB: a task of our own, since streams complain about tasks of theirs that are cancelled.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(what: JsonObject) -> None:
            writer.write(msgspec.json.encode(what) + b"\n")

        tasks: list[asyncio.Task[Any]] = []
        try:
            answer = asyncio.create_task(self._answer(await reader.readline(), say))
            # Whoever asked may go away, and then wants nothing more.
            gone = asyncio.create_task(reader.read(1))
            tasks = [answer, gone]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                say(answer.result())
                await writer.drain()
        except (ValueError, OSError) as error:
            _log.info("a request broke off", error=str(error))
        finally:
            await _finish(tasks)
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, line: bytes, say: Tell) -> JsonObject:
        try:
            request = msgspec.json.decode(line, type=dict[str, Any])
            handler = self._handlers.get(str(request.pop("do", "")))
            if handler is None:
                return {"error": "this cluster does not know how to do that", "code": 2}
            return {"done": await handler(request, lambda what: say({"tell": what}))}
        except LabRefusal as refusal:
            return {"error": str(refusal), "code": refusal.code}
        except (TransportError, ServerError) as error:
            return {"error": f"the API server does not answer: {error}", "code": 4}
        except (KubeError, msgspec.DecodeError, msgspec.ValidationError) as error:
            return {"error": str(error), "code": 2}
        except Exception as error:  # noqa: BLE001 - one bad request must not end the cluster
            _log.exception("a request failed")
            return {"error": f"the lab failed: {error}", "code": 1}


async def _finish(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return when they have ended, however often we are told to end ourselves."""
    for task in tasks:
        task.cancel()
    while not all(task.done() for task in tasks):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)


class CallError(Exception):
    """Why a request was not fulfilled; `code` is the command's exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def _ignore(_what: JsonObject) -> None:
    """Tell nobody."""


def call_lab(
    data_dir: Path,
    do: str,
    params: JsonObject,
    *,
    on_tell: Callable[[JsonObject], None] = _ignore,
) -> JsonObject:
    """Return what the cluster in a directory answers; raises CallError.

    `on_tell` gets news of what takes long.
    """
    path = data_dir.expanduser() / "lab.sock"
    with socket.socket(socket.AF_UNIX) as one:
        try:
            with PrivateDirectory.open(path.parent) as directory:
                one.connect(socket_address(path, directory.descriptor))
            _check_peer(one)
        except PermissionError:
            raise CallError(f"the cluster in {path.parent} belongs to another user", 5) from None
        except BrokenFileError as error:
            raise CallError(str(error), 5) from None
        except OSError:
            text = f"no cluster runs in {path.parent}; start one with keepclose up"
            raise CallError(text, 4) from None
        try:
            one.sendall(msgspec.json.encode({"do": do, **params}) + b"\n")
            with one.makefile("rb") as lines:
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
            # Half a line, or none, is all that is left of a cluster that was killed.
            pass
    raise CallError("the cluster ended before it answered", 4)


def _check_peer(one: socket.socket) -> None:
    """Raise PermissionError where a process of another user listens at the socket."""
    form = "3i"
    sent = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    _pid, user, _group = struct.unpack(form, sent)
    if user != os.geteuid():
        raise PermissionError
