"""The framing of netlink: messages, attributes, listings, errors."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.system.netlink import (
    ACK,
    NESTED,
    NETFILTER,
    NetlinkSocket,
    attribute_bounds,
    attributes_of,
    encode_attribute,
    encode_message,
    encode_nested,
    encode_string,
    error_code,
    messages_of,
    netfilter_head,
)
from support.netns import namespaces_or_skip

ERROR, DONE, DATA = 2, 3, 0x100
INTERRUPTED = 0x10


def reply(kind: int, sequence: int, body: bytes = b"", *, flags: int = 0) -> bytes:
    """Return a message as the kernel sends it."""
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def refusal(code: int) -> bytes:
    """Return the body of an error message."""
    return struct.pack("=i", -code) + bytes(16)


@contextmanager
def kernel(*answers: list[bytes]) -> Iterator[tuple[NetlinkSocket, list[bytes]]]:
    """Yield a socket whose requests get these datagrams, and the requests that were sent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    requests: list[bytes] = []

    def answer() -> None:
        for datagrams in answers:
            requests.append(theirs.recv(1 << 16))
            for datagram in datagrams:
                theirs.send(datagram)

    thread = threading.Thread(target=answer)
    thread.start()
    with closing(NetlinkSocket(NETFILTER, seconds=20, opened=ours)) as netlink:
        yield netlink, requests
    thread.join()
    theirs.close()


def listed(netlink: NetlinkSocket) -> tuple[list[tuple[int, bytes]], bool]:
    """Return the messages of a listing, and whether it is complete."""
    messages: list[tuple[int, bytes]] = []
    is_complete = netlink.dump(7, b"body", lambda *message: messages.append(message), what="things")
    return messages, is_complete


def test_bytes_of_a_request() -> None:
    """Length, kind, flags with the request flag, sequence number, port 0, body."""
    body = netfilter_head(socket.AF_INET, resource=10) + encode_string(1, "table")
    want = struct.pack("=IHHII", 32, 7, 0x5, 9, 0) + b"\x02\0\0\x0a"
    want += struct.pack("=HH", 10, 1) + b"table\0\0\0"
    assert encode_message(7, ACK, body, sequence=9) == want


def test_nested_attributes() -> None:
    """The flag of nested attributes is set when written and removed when read."""
    data = encode_nested(3, encode_attribute(1, b"abcde") + encode_attribute(2, b""))
    assert struct.unpack_from("=HH", data) == (4 + 12 + 4, 3 | NESTED)
    [(kind, value)] = attributes_of(data).items()
    assert (kind, attributes_of(value)) == (3, {1: b"abcde", 2: b""})


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=9)), max_size=6))
def test_attributes_read_as_they_were_written(pairs: list[tuple[int, bytes]]) -> None:
    """Whatever their lengths; each begins at a multiple of four bytes."""
    data = b"head" + b"".join(encode_attribute(kind, value) for kind, value in pairs)
    bounds = list(attribute_bounds(data, 4, len(data)))
    assert [(kind, data[start:end]) for kind, start, end in bounds] == pairs
    assert attributes_of(data, 4) == dict(pairs)
    assert all(start % 4 == 0 for _, start, _ in bounds)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"\x08\0\x02", id="half a head"),
        pytest.param(struct.pack("=HH", 3, 2) + bytes(4), id="shorter than its head"),
        pytest.param(struct.pack("=HH", 9, 2) + bytes(4), id="longer than the data"),
        pytest.param(struct.pack("=HH", 0xFFFF, 2), id="much longer"),
    ],
)
def test_attributes_end_before_one_that_is_broken(rest: bytes) -> None:
    """The attributes before it are read."""
    data = encode_attribute(1, b"good") + rest
    assert attributes_of(data) == {1: b"good"}


def test_attributes_end_with_their_own_message() -> None:
    """An inner attribute cannot reach into bytes behind the outer one."""
    data = struct.pack("=HH", 12, 1) + struct.pack("=HH", 12, 2) + b"mineyours"
    [(_, start, end)] = attribute_bounds(data, 0, 12)
    assert list(attribute_bounds(data, start, end)) == []


def test_messages_of_a_datagram() -> None:
    """Each begins at a multiple of four bytes; the last may be cut off."""
    data = reply(DATA, 1, b"abcde", flags=2) + bytes(3) + reply(DONE, 2, bytes(8))[:-4]
    assert list(messages_of(data)) == [(DATA, 2, 1, b"abcde"), (DONE, 0, 2, bytes(4))]


@pytest.mark.parametrize("data", [b"", bytes(15), struct.pack("=IHHII", 15, 3, 0, 1, 0)])
def test_datagrams_without_a_message(data: bytes) -> None:
    """They are errors: a reader would wait for ever otherwise."""
    with pytest.raises(OSError, match="cut short") as caught:
        list(messages_of(data))
    assert caught.value.errno == errno.EBADMSG


@pytest.mark.parametrize(
    ("code", "want"), [(0, 0), (-errno.ENOENT, errno.ENOENT), (-(1 << 31), (1 << 31) - 1)]
)
def test_codes_of_errors(code: int, want: int) -> None:
    """They are positive, and every one of them can be raised."""
    assert error_code(struct.pack("=i", code)) == want


def test_listing_in_several_parts() -> None:
    """All messages up to the end are read; replies to other requests are not."""
    parts = [
        reply(DATA, 1, b"a") + bytes(3) + reply(DATA, 1, b"b"),
        reply(DATA, 7, b"late"),
        reply(DATA + 1, 1, b"c") + bytes(3) + reply(DONE, 1, bytes(4)),
    ]
    with kernel(parts) as (netlink, requests):
        assert listed(netlink) == ([(DATA, b"a"), (DATA, b"b"), (DATA + 1, b"c")], True)
    assert requests == [struct.pack("=IHHII", 20, 7, 0x301, 1, 0) + b"body"]


@pytest.mark.parametrize("at", [0, 1], ids=["a message", "the end"])
def test_listing_of_a_table_that_changes(at: int) -> None:
    """It is read to its end and counts as incomplete; the next has its own number."""
    flags = [INTERRUPTED if number == at else 0 for number in range(2)]
    first = [reply(DATA, 1, b"aaaa", flags=flags[0]) + reply(DONE, 1, flags=flags[1])]
    with kernel(first, [reply(DONE, 2)]) as (netlink, _):
        assert listed(netlink) == ([(DATA, b"aaaa")], False)
        assert listed(netlink) == ([], True)


def test_refused_listing() -> None:
    """The error has the kernel's code and says what was listed; a code of 0 is an end."""
    answers = [[reply(ERROR, 1, refusal(errno.EPERM))], [reply(ERROR, 2, refusal(0))]]
    with kernel(*answers) as (netlink, _):
        with pytest.raises(PermissionError, match="cannot list things: Operation not permitted"):
            listed(netlink)
        assert listed(netlink) == ([], True)


def test_several_requests_at_once() -> None:
    """Each has one reply: data, an acknowledgement or an error."""
    replies = [
        reply(ERROR, 2, refusal(errno.ENOENT)),
        reply(ERROR, 9, refusal(errno.EPERM)),
        reply(DATA, 1, b"data") + reply(ERROR, 3, refusal(0)),
    ]
    with kernel(replies) as (netlink, requests):
        got = netlink.request_each(5, [b"a", b"b", b"c"], flags=ACK)
    assert got == [(errno.ENOENT, b""), (0, b"data"), (0, b"")]
    want = [struct.pack("=IHHII", 17, 5, 0x5, number, 0) for number in (1, 2, 3)]
    assert [requests[0][at : at + 16] for at in (0, 17, 34)] == want


def test_kernel_that_does_not_reply() -> None:
    """The wait has a limit."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(theirs), closing(NetlinkSocket(NETFILTER, seconds=0.05, opened=ours)) as netlink:
        with pytest.raises(TimeoutError):
            listed(netlink)
        with pytest.raises(TimeoutError):
            netlink.request_each(5, [b""])


def test_batches_of_the_kernel() -> None:
    """One that the kernel rejects is told from one that it applies, however large."""
    with (
        namespaces_or_skip("netlink") as [inside],
        closing(inside.do(lambda: NetlinkSocket(NETFILTER))) as netlink,
    ):
        head = netfilter_head(socket.AF_UNSPEC, resource=10)
        begin, end = encode_message(0x10, 0, head), encode_message(0x11, 0, head)
        table = encode_message(0xA00, 0x400, netfilter_head(2) + encode_string(1, "t"))
        unknown = encode_message(0xA02, 0, netfilter_head(2) + encode_string(1, "unknown"))
        assert not netlink.send_batch(begin + table + unknown + end)
        assert inside.run("nft", "list", "tables") == ""
        assert netlink.send_batch(begin + table * 20_000 + end)
        assert inside.run("nft", "list", "tables") == "table ip t\n"
