"""Run a command as on a kernel without netfilter: `python without_conntrack.py COMMAND...`.

A filter of system calls refuses netlink sockets of netfilter, with the error of such a kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

_NETFILTER = 12
_SOCKET_CALLS = {"x86_64": 41, "aarch64": 198}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER, _DOMAIN, _PROTOCOL = 0, 16, 32
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def main() -> None:
    """Install the filter, and become the command."""
    call = _SOCKET_CALLS[platform.machine()]
    steps = [
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 5, call),
        (_LOAD, 0, 0, _DOMAIN),
        (_EQUAL, 0, 3, socket.AF_NETLINK),
        (_LOAD, 0, 0, _PROTOCOL),
        (_EQUAL, 0, 1, _NETFILTER),
        (_RETURN, 0, 0, _FAIL | errno.EPROTONOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(steps), code)
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(
        _SET_SECCOMP, _FILTER, ctypes.byref(program)
    ):
        raise OSError(ctypes.get_errno(), "the filter was refused")
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the command that the test chose


if __name__ == "__main__":
    main()
