"""How a command asks something of a running cluster."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from keepclose.lab.cluster.control import socket_address
from keepclose.model.json_values import JsonObject
from keepclose.system.private_files import BrokenFileError, PrivateDirectory


class CallError(Exception):
    """Why a request was not fulfilled; `code` is the command's exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def _ignore(_what: JsonObject) -> None:
    """Tell nobody."""


def call(
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
