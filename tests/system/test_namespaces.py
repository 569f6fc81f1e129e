"""Namespaces as open files: work inside, and nothing left when they are closed."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepclose.lab.network.privilege import why_no_packets
from keepclose.system.namespaces import (
    NetworkError,
    NetworkNamespace,
    create_network_namespace,
    enter_network,
    search_path,
    unshare,
)


@pytest.fixture
def inside() -> Iterator[NetworkNamespace]:
    """Make a namespace, or skip the test with the reason."""
    reason = why_no_packets()
    if reason:
        pytest.skip(reason)
    namespace = create_network_namespace("here")
    yield namespace
    namespace.close()


def _number() -> int:
    return Path("/proc/thread-self/ns/net").stat().st_ino


def test_work_is_done_inside_and_nowhere_else(inside: NetworkNamespace) -> None:
    """The caller stays where it is."""
    own = _number()
    assert inside.do(_number) == os.fstat(inside.fd).st_ino
    assert _number() == own
    assert os.fstat(inside.fd).st_ino != own


def test_what_the_work_raises_is_raised(inside: NetworkNamespace) -> None:
    """Errors come out of the thread."""

    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        inside.do(fail)


def test_loopback_is_up(inside: NetworkNamespace) -> None:
    """Both families can be used inside at once."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with inside.open_socket(family) as listener, inside.open_socket(family) as caller:
            listener.bind((address, 0))
            listener.listen()
            caller.settimeout(20)
            caller.connect(listener.getsockname())
            assert caller.getpeername() == listener.getsockname()


def test_sockets_are_of_the_wanted_kind(inside: NetworkNamespace) -> None:
    """Datagrams as well as streams."""
    with inside.open_socket(socket.AF_INET6, socket.SOCK_DGRAM) as one:
        assert (one.family, one.type) == (socket.AF_INET6, socket.SOCK_DGRAM)


def test_settings_are_those_of_the_namespace(inside: NetworkNamespace) -> None:
    """A setting is written there only."""
    setting = Path("/proc/sys/net/ipv4/ip_default_ttl")
    own = setting.read_text()
    inside.set_values({"ipv4/ip_default_ttl": 33})
    assert inside.do(setting.read_text) == "33\n"
    assert setting.read_text() == own


def test_settings_at_birth() -> None:
    """A namespace can be made with settings."""
    if reason := why_no_packets():
        pytest.skip(reason)
    namespace = create_network_namespace("here", {"ipv4/ip_default_ttl": 34})
    try:
        assert namespace.do(Path("/proc/sys/net/ipv4/ip_default_ttl").read_text) == "34\n"
    finally:
        namespace.close()


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        pytest.param("ipv4/none", 1, r"No such file or directory", id="unknown"),
        pytest.param("ipv4/ip_forward", "x", r"Invalid argument", id="wrong"),
    ],
)
def test_settings_that_cannot_be_written(
    inside: NetworkNamespace, name: str, value: int | str, want: str
) -> None:
    """The setting and the kernel's word are told."""
    dotted = name.replace("/", r"\.")
    with pytest.raises(NetworkError, match=rf"^net\.{dotted} cannot be set: {want}$"):
        inside.set_values({name: value})


def test_commands_run_inside(inside: NetworkNamespace) -> None:
    """What a command prints is returned, and it is given the text."""
    want = str(os.fstat(inside.fd).st_ino)
    script = "import os; print(os.stat('/proc/self/ns/net').st_ino, input())"
    assert inside.run(sys.executable, "-c", script, text="heard\n") == f"{want} heard\n"


@pytest.mark.parametrize(
    ("command", "want"),
    [
        pytest.param(("sh", "-c", "echo one >&2; echo two >&2; exit 3"), "sh: one two", id="says"),
        pytest.param(("sh", "-c", "exit 3"), "sh: ended with 3", id="says nothing"),
        pytest.param(
            ("no-such-tool",),
            "no-such-tool: [Errno 2] No such file or directory: 'no-such-tool'",
            id="is missing",
        ),
    ],
)
def test_commands_that_fail(inside: NetworkNamespace, command: tuple[str, ...], want: str) -> None:
    """What a command complains about is told in one line."""
    with pytest.raises(NetworkError) as caught:
        inside.run(*command)
    assert str(caught.value) == want


def test_closed_namespaces_say_so(inside: NetworkNamespace) -> None:
    """Nothing can be done in a closed one, and closing twice is fine."""
    inside.close()
    inside.close()
    with pytest.raises(NetworkError, match=r"^the network namespace of here is gone$"):
        inside.do(_number)


def test_threads_enter_by_path(inside: NetworkNamespace) -> None:
    """A thread can enter by the file that stands for a namespace."""

    def enter() -> int:
        enter_network(inside.path)
        return _number()

    other = create_network_namespace("there")
    try:
        assert other.do(enter) == os.fstat(inside.fd).st_ino
    finally:
        other.close()


def test_what_is_no_namespace_is_not_entered(tmp_path: Path) -> None:
    """The kernel's refusal is an OSError."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match=r"Invalid argument|Bad file"):
        enter_network(file)


def test_unknown_kinds_of_namespaces_are_refused() -> None:
    """The kernel's refusal is an OSError."""
    with pytest.raises(OSError, match="Invalid argument"):
        unshare(1)


def test_tools_of_administrators_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who has not their folders on the path finds them, after the own ones."""
    monkeypatch.setenv("PATH", "/own:/usr/sbin")
    assert search_path() == "/own:/usr/sbin:/usr/local/sbin:/sbin"
