"""Messages of the kernel about connections: the usual form, every other, and broken ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.system.conntrack import SEEN_REPLY, decode_connection
from keepclose.system.netlink import encode_attribute, encode_nested

# As a kernel sent them: a beginning, an end that the endpoint caused, and an entry of a listing.
NEW = bytes.fromhex(
    "020000003400018014000180080001007f000001080002007f0000011c000280050001000600000006000200"
    "aab60000060003001f9000003400028014000180080001007f000001080002007f0000011c00028005000100"
    "06000000060002001f90000006000300aab6000008000c00ad2184db08000300000000080800070000000078"
)
END = bytes.fromhex(
    "020000003400018014000180080001007f000001080002007f0000011c000280050001000600000006000200"
    "bbe4000006000300005100003400028014000180080001007f000001080002007f0000011c00028005000100"
    "06000000060002000051000006000300bbe4000008000c005816372f08000300000002080800070000000078"
    "1c0009800c00010000000000000000010c000200000000000000003c1c000a800c0001000000000000000001"
    "0c0002000000000000000028100004800c0001800500010008000000"
)
LISTED = bytes.fromhex(
    "0a0000004c0001802c000180140003000000000000000000000000000000000114000400000000000000000000"
    "000000000000011c000280050001001100000006000200def3000006000300006300004c0002802c0001801400"
    "03000000000000000000000000000000000114000400000000000000000000000000000000011c000280050001"
    "0011000000060002000063000006000300def300000800030000000008080008000000000008000c0063bf6851"
    "08000b0000000001080007000000001d1c0009800c00010000000000000000010c0002000000000000000031"
    "1c000a800c00010000000000000000000c0002000000000000000000"
)
LOOPBACK = bytes((127, 0, 0, 1))


def test_a_connection_that_began() -> None:
    """Its tuples are read, and it has no counters yet."""
    connection = decode_connection(NEW, is_new=True)
    assert connection is not None
    assert connection[1:8] == (6, LOOPBACK, 43702, LOOPBACK, 8080, LOOPBACK, 8080)
    assert not connection.has_counters


def test_a_connection_that_ended() -> None:
    """Its counters tell that the endpoint sent a packet, its status that none was accepted."""
    connection = decode_connection(END)
    assert connection is not None
    assert connection.has_counters
    assert connection[9:13] == (1, 60, 1, 40)
    assert not connection.status & SEEN_REPLY


def test_all_readers_give_a_connection_the_same_key() -> None:
    """The key of an event is that of a listing, whatever attributes follow the tuples."""
    plain = decode_connection(END)
    with_timestamp = decode_connection(
        END + encode_nested(20, encode_attribute(1, (7).to_bytes(8, "big")))
    )
    slow = decode_connection(END[:4] + encode_attribute(99, b"") + END[4:])
    new = decode_connection(END, is_new=True)
    assert plain is not None
    assert {connection and connection.key for connection in (with_timestamp, slow, new)} == {
        plain.key
    }
    assert slow is not None
    assert slow == plain


def test_a_connection_of_ipv6_in_a_listing() -> None:
    """Addresses have sixteen bytes, and counters stand after other attributes."""
    connection = decode_connection(LISTED)
    assert connection is not None
    assert connection[1:6:2] == (17, 57075, 99)
    assert connection.request_bytes == 49


def test_a_zone_makes_another_key() -> None:
    """The same tuple in two zones is two connections."""
    zoned = decode_connection(LISTED + encode_attribute(18, b"\0\1"))
    plain = decode_connection(LISTED)
    assert zoned is not None
    assert plain is not None
    assert zoned.key != plain.key


def test_a_protocol_without_ports() -> None:
    """ICMP has ports 0."""
    addresses = encode_attribute(1, LOOPBACK) + encode_attribute(2, LOOPBACK)
    echo = encode_attribute(1, b"\x01") + encode_attribute(4, b"\0\1")
    one = encode_nested(1, addresses) + encode_nested(2, echo)
    body = bytes((2, 0, 0, 0)) + encode_nested(1, one) + encode_nested(2, one)
    connection = decode_connection(body)
    assert connection is not None
    assert connection[1:6] == (1, LOOPBACK, 0, LOOPBACK, 0)


@pytest.mark.parametrize(
    "message",
    [pytest.param(NEW, id="new"), pytest.param(END, id="end"), pytest.param(LISTED, id="v6")],
)
def test_a_message_that_is_cut_never_fails(message: bytes) -> None:
    """Every beginning of a message is a connection with less detail, or none."""
    whole = decode_connection(message)
    assert whole is not None
    for length in range(len(message)):
        connection = decode_connection(message[:length])
        assert connection is None or connection[1:8] == whole[1:8]


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read(data: bytes, is_new: bool) -> None:
    """Bytes that are no message are no connection, and raise nothing."""
    decode_connection(data, is_new=is_new)
    decode_connection(END[:112] + data, is_new=is_new)
