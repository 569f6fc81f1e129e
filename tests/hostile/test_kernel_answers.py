"""Answers of the kernel and of nft that are cut short or have another shape."""

from __future__ import annotations

import struct

import pytest

from keepclose.proxy.conntrack import ConntrackTable
from keepclose.proxy.counters.kernel_counters import read_counts
from keepclose.ruleset.listing import parse_listing

_ERROR, _DONE = 2, 3


class _Kernel:
    """The other end of a socket, with its answers."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)

    def settimeout(self, _seconds: float) -> None:
        """Never wait."""

    def close(self) -> None:
        """Be closed."""

    def send(self, data: bytes) -> int:
        """Take a request."""
        return len(data)

    def recv(self, _size: int) -> bytes:
        """Return the next answer."""
        return self._answers.pop(0)


def _message(kind: int, body: bytes, *, size: int | None = None) -> bytes:
    length = 16 + len(body) if size is None else size
    return struct.pack("=IHHII", length, kind, 0, 1, 0) + body


@pytest.mark.parametrize("body", [b"", b"\xff", b"\xff\xff\xff"])
def test_an_error_without_its_code_is_an_error(body: bytes) -> None:
    """An error message that ends before its code is told as OSError by every reader."""
    answer = _message(_ERROR, body, size=36)
    with pytest.raises(OSError, match="cut short"):
        read_counts("ip", "t", "m", opened=_Kernel(answer))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="cut short"):
        ConntrackTable(2, opened=_Kernel(answer)).list_flows(17)  # type: ignore[arg-type]


def test_the_least_code_is_an_error() -> None:
    """A code that has no opposite in 32 bits is told as OSError all the same."""
    answer = _message(_ERROR, struct.pack("=i", -(2**31)))
    with pytest.raises(OSError, match="cannot list flows"):
        ConntrackTable(2, opened=_Kernel(answer)).list_flows(17)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [24, 64, 2**31])
def test_a_message_that_says_more_than_came_ends_where_the_bytes_end(size: int) -> None:
    """Attributes are read up to the bytes that were received."""
    end = _message(_DONE, bytes(4))
    element = _message(10 << 8 | 12, bytes(4) + b"\x40\0\3", size=size)
    assert read_counts("ip", "t", "m", opened=_Kernel(element, end)) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "entry",
    [
        '{"chain": {}}',
        '{"chain": {"name": []}}',
        '{"chain": 1}',
        '{"set": {"name": "s", "elem": 5}}',
        '{"set": {"name": "s", "timeout": "x"}}',
        '{"set": {"name": "s", "flags": 1}}',
        '{"counter": {"name": "c", "packets": "x", "bytes": 1}}',
        '{"rule": {"expr": [{"counter": {}}]}}',
        '{"rule": {"expr": 5}}',
    ],
)
def test_an_entry_of_another_shape_is_left_out(entry: str) -> None:
    """What cannot be read of a listing hides nothing else of it."""
    listing = parse_listing(f'{{"nftables": [{entry}, {{"chain": {{"name": "good"}}}}]}}'.encode())
    assert listing.chains == {"good"}
    assert not any(listing.elements.values())


@pytest.mark.parametrize(
    "element", ['{"elem": 1}', '{"prefix": 1}', '{"range": [1]}', '{"concat": 1}']
)
def test_an_element_of_another_shape_is_left_out(element: str) -> None:
    """The other elements of the set stay."""
    text = f'{{"nftables": [{{"set": {{"name": "s", "elem": [{element}, "10.0.0.1"]}}}}]}}'
    elements = parse_listing(text.encode()).elements["s"]
    assert list(elements)[-1] == ("10.0.0.1",)
    assert len(elements) <= 2
