"""Reading back what the kernel holds."""

from __future__ import annotations

import pytest

from keepclose.proxy.nft.libnftables import LibnftablesWriter
from keepclose.proxy.nft.listings import (
    ListedCounter,
    ListedElement,
    ListedSet,
    Listing,
    parse_listing,
    read_elements,
    read_table,
)
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.testing.recording_writer import RecordingWriter
from support.netns import namespaces_or_skip

TEXT = """add table ip6 t
add chain ip6 t reject-chain
add chain ip6 t service-ULMVA6XW-ns1/svc1/tcp/p80
add rule ip6 t reject-chain counter reject comment "no endpoints"
add rule ip6 t service-ULMVA6XW-ns1/svc1/tcp/p80 meta l4proto tcp dnat to [fd00::1]:80
add counter ip6 t seen
add rule ip6 t reject-chain counter name seen
add set ip6 t cluster-ips { type ipv6_addr ; comment "all" ; }
add element ip6 t cluster-ips { fd00::10, fd00::11 comment "x" }
add set ip6 t affinity-X { type ipv6_addr ; flags dynamic,timeout ; timeout 3h ; }
add set ip6 t ranges { type ipv6_addr ; flags interval ; }
add element ip6 t ranges { fd00::/64, fd01::1-fd01::9 }
add map ip6 t service-ips { type ipv6_addr . inet_proto . inet_service : verdict ; }
add element ip6 t service-ips { fd00::10 . tcp . 80 : goto service-ULMVA6XW-ns1/svc1/tcp/p80 }
add element ip6 t service-ips { fd00::10 . sctp . 81 comment "ns/a:b" : drop }
add map ip6 t ports { type inet_proto . inet_service : verdict ; }
add element ip6 t ports { udp . 30000 : jump reject-chain }
add map ip6 t ends { typeof numgen random mod 2 : ip6 daddr . tcp dport ; }
add element ip6 t ends { 0 : fd00::1 . 80 }
"""
SERVICE = "service-ULMVA6XW-ns1/svc1/tcp/p80"


async def test_everything_in_a_table() -> None:
    """Names, elements with verdicts and comments, and counters come back as written."""
    with namespaces_or_skip("nft") as [inside]:
        writer = LibnftablesWriter(namespace=inside.path)
        await writer.apply(TEXT)
        listing = await read_table(writer, "ip6", "t")
        terse = await read_table(writer, "ip6", "t", terse=True)
        ports = await read_elements(writer, "map", "ip6", "t", name="ports")
        addresses = await read_elements(writer, "set", "ip6", "t", name="cluster-ips")
        assert await read_elements(writer, "set", "ip6", "t", name="none") == ()
        await writer.close()
    assert listing.exists
    assert listing.chains == ("reject-chain", SERVICE)
    assert set(listing.sets) == {"cluster-ips", "affinity-X", "ranges"}
    assert sorted(listing.sets["cluster-ips"].elements) == [
        ListedElement(("fd00::10",)),
        ListedElement(("fd00::11",), "", "x"),
    ]
    assert sorted(addresses) == sorted(listing.sets["cluster-ips"].elements)
    assert listing.sets["affinity-X"].timeout == 10800
    assert "timeout" in listing.sets["affinity-X"].flags
    assert [one.key for one in listing.sets["ranges"].elements] == [
        ("fd00::/64",),
        ("fd01::1-fd01::9",),
    ]
    assert listing.maps["service-ips"].types == ("ipv6_addr", "inet_proto", "inet_service")
    assert sorted(listing.maps["service-ips"].elements) == [
        ListedElement(("fd00::10", "sctp", "81"), "drop", "ns/a:b"),
        ListedElement(("fd00::10", "tcp", "80"), f"goto {SERVICE}"),
    ]
    assert ports == (ListedElement(("udp", "30000"), "jump reject-chain"),)
    assert listing.maps["ends"].elements == (ListedElement(("0",), "fd00::1 . 80"),)
    assert listing.counters == {"seen": ListedCounter(0, 0)}
    assert [(one.chain, one.comment, one.counter) for one in listing.rule_counters] == [
        ("reject-chain", "no endpoints", ListedCounter(0, 0))
    ]
    assert terse.chains == listing.chains
    assert set(terse.maps) == set(listing.maps)
    assert terse.maps["service-ips"].elements == ()


async def test_a_table_that_is_not_there() -> None:
    """It is empty, and so is every set in it."""
    writer = RecordingWriter()
    assert await read_table(writer, "ip", "t") == Listing()
    assert await read_elements(writer, "map", "ip", "t", name="m") == ()


async def test_other_failures_are_raised() -> None:
    """Only absence is taken for emptiness."""

    class Failing(RecordingWriter):
        async def list_table(self, *_args: object, **_kwargs: object) -> bytes:
            raise NftError("late", failure=NftFailure.TIMEOUT)

        async def list_elements(self, *_args: object, **_kwargs: object) -> bytes:
            raise NftError("late", failure=NftFailure.TIMEOUT)

    with pytest.raises(NftError, match="late"):
        await read_table(Failing(), "ip", "t")
    with pytest.raises(NftError, match="late"):
        await read_elements(Failing(), "set", "ip", "t", name="s")


async def test_what_a_recording_writer_holds() -> None:
    """Listings given by hand are read as the kernel's are."""
    writer = RecordingWriter()
    writer.hold("ip", "t")
    assert await read_table(writer, "ip", "t") == Listing()
    raw = b'{"nftables": [{"set": {"name": "s", "type": "ipv4_addr", "elem": ["10.0.0.1"]}}]}'
    writer.hold_elements("set", "ip", "t", name="s", listing=raw)
    found = await read_elements(writer, "set", "ip", "t", name="s")
    assert found == (ListedElement(("10.0.0.1",)),)
    assert parse_listing(raw).exists


async def test_what_a_recording_writer_keeps() -> None:
    """Transactions in order, but those that failed as told and empty ones."""
    writer = RecordingWriter()
    writer.fail_next(None, NftError("no"))
    await writer.apply("one")
    with pytest.raises(NftError, match="no"):
        await writer.apply("two")
    await writer.apply("")
    await writer.apply("three")
    with pytest.raises(NftError, match="NUL"):
        await writer.apply("\0")
    await writer.close()
    assert (writer.applied, writer.closed) == (["one", "three"], True)


@pytest.mark.parametrize("raw", [b"", b"table ip t {", b"[]", b"{}", b'{"nftables": 3}'])
def test_what_is_no_listing(raw: bytes) -> None:
    """Plain text, as a build without JSON prints it, is refused."""
    with pytest.raises(NftError, match="not JSON of nftables") as caught:
        parse_listing(raw)
    assert caught.value.failure is NftFailure.UNUSABLE


def test_kinds_that_are_not_known_are_left_out() -> None:
    """A newer nft may list more."""
    raw = (
        b'{"nftables": [3, {"metainfo": {}}, {"flowtable": {"name": "f"}}, {"set": {"name": "s"}}]}'
    )
    assert parse_listing(raw).sets == {"s": ListedSet("s", ("",))}
