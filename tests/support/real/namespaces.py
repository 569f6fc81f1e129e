"""Network namespaces: a node with pods on it, none of which anything outside can see.

All links have both ends in namespaces, so that the machine's own network is never touched. Sockets
belong to the namespace in which they are made, whoever uses them; so this process can serve and
call in any of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

_CLONE_NEWNET = 0x40000000


class Namespace(NamedTuple):
    """A network namespace."""

    name: str
    address: str = ""

    def run(self, *command: str) -> str:
        """Run a command inside and return what it printed."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def open_socket(self) -> socket.socket:
        """Return a new TCP socket that lives inside."""
        made: list[socket.socket] = []

        def make() -> None:
            # NB: this concerns the calling thread alone, which ends right after.
            libc = ctypes.CDLL(None, use_errno=True)
            with Path("/run/netns", self.name).open() as file:
                if libc.setns(file.fileno(), _CLONE_NEWNET) == 0:
                    made.append(socket.socket())

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        assert made, f"cannot enter the namespace {self.name}"
        return made[0]

    def listen(self, address: str, port: int) -> socket.socket:
        """Return a socket that listens inside."""
        listener = self.open_socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        return listener

    def ask(self, address: str, port: int) -> str:
        """Connect from inside and return what the other side says."""
        with self.open_socket() as one:
            one.settimeout(20)
            one.connect((address, port))
            return one.recv(100).decode()

    @contextlib.contextmanager
    def answering(self, port: int, text: str) -> Iterator[None]:
        """Say the text to everybody who connects to the namespace's address, for the block."""
        listener = self.listen(self.address, port)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(text.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(10)


class NodeNetwork(NamedTuple):
    """The namespace of a node, and those of its pods."""

    node: Namespace
    pods: tuple[Namespace, ...]


@contextlib.contextmanager
def node_network(pods: int, name: str = "") -> Iterator[NodeNetwork]:
    """Make a node that forwards between so many pods; skip the test where that is not allowed.

    A test with several nodes names them.
    """
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    with contextlib.ExitStack() as stack:
        node = _add(stack, f"{name}node")
        node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        made: list[Namespace] = []
        for number in range(1, pods + 1):
            inside, outside = f"10.244.{number}.2", f"10.244.{number}.1"
            pod = _add(stack, f"{name}pod{number}", inside)
            link = f"pod{number}"
            _ip(
                *("link", "add", "eth0", "netns", pod.name, "type", "veth"),
                *("peer", "name", link, "netns", node.name),
            )
            pod.run("ip", "address", "add", f"{inside}/24", "dev", "eth0")
            pod.run("ip", "link", "set", "eth0", "up")
            node.run("ip", "address", "add", f"{outside}/24", "dev", link)
            node.run("ip", "link", "set", link, "up")
            pod.run("ip", "route", "add", "default", "via", outside)
            made.append(pod)
        yield NodeNetwork(node, tuple(made))


def _add(stack: contextlib.ExitStack, role: str, address: str = "") -> Namespace:
    namespace = Namespace(f"kc-{os.getpid()}-{role}", address)
    try:
        _ip("netns", "add", namespace.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr}")
    stack.callback(_ip, "netns", "delete", namespace.name)
    namespace.run("ip", "link", "set", "lo", "up")
    return namespace


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)
