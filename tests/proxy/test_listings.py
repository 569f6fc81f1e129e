"""Reading back what the kernel holds."""

from __future__ import annotations

import pytest

from keepclose.proxy.nft.libnftables import LibnftablesWriter
from keepclose.proxy.nft.rules import read_table
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.ruleset.listing import TableListing, parse_listing
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
    """Names, elements with verdicts, and numbers of rules come back as written."""
    with namespaces_or_skip("nft") as [inside]:
        writer = LibnftablesWriter(namespace=inside.path)
        await writer.apply(TEXT)
        listing = await read_table(writer, "ip6", "t")
        assert await read_table(writer, "ip6", "none") == TableListing()
        await writer.close()
    assert listing == TableListing(
        chains=frozenset({"reject-chain", SERVICE}),
        sets=frozenset({"cluster-ips", "affinity-X", "ranges"}),
        counters=frozenset({"seen"}),
        elements={
            "cluster-ips": {("fd00::10",): "", ("fd00::11",): ""},
            "affinity-X": {},
            # No table of ours has ranges.
            "ranges": {},
            "service-ips": {
                ("fd00::10", "sctp", "81"): "drop",
                ("fd00::10", "tcp", "80"): f"goto {SERVICE}",
            },
            "ports": {("udp", "30000"): "jump reject-chain"},
            "ends": {("0",): "fd00::1 . 80"},
        },
        rules={"reject-chain": 2, SERVICE: 1},
    )


async def test_a_table_that_is_not_there() -> None:
    """It is empty."""
    assert await read_table(RecordingWriter(), "ip", "t") == TableListing()


async def test_other_failures_are_raised() -> None:
    """Only absence is taken for emptiness."""

    class Failing(RecordingWriter):
        async def list_table(self, *_args: object, **_kwargs: object) -> bytes:
            raise NftError("late", failure=NftFailure.TIMEOUT)

    with pytest.raises(NftError, match="late"):
        await read_table(Failing(), "ip", "t")


async def test_what_a_recording_writer_holds() -> None:
    """Listings given by hand are read as the kernel's are."""
    writer = RecordingWriter()
    writer.hold("ip", "t")
    assert await read_table(writer, "ip", "t") == TableListing()
    raw = b'{"nftables": [{"set": {"name": "s", "type": "ipv4_addr", "elem": ["10.0.0.1"]}}]}'
    writer.hold("ip", "t", raw)
    want = TableListing(sets=frozenset({"s"}), elements={"s": {("10.0.0.1",): ""}})
    assert await read_table(writer, "ip", "t") == want == parse_listing(raw)


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


@pytest.mark.parametrize(
    "raw", [b"", b"table ip t {", b"[]", b"{}", b'{"nftables": 3}', b"[" * 100_000, b'"\xff"']
)
async def test_what_is_no_listing(raw: bytes) -> None:
    """Plain text, as a build without JSON prints it, is refused."""
    writer = RecordingWriter()
    writer.hold("ip", "t", raw)
    with pytest.raises(NftError, match="not JSON of nftables") as caught:
        await read_table(writer, "ip", "t")
    assert caught.value.failure is NftFailure.UNUSABLE
    with pytest.raises(ValueError, match="not JSON of nftables"):
        parse_listing(raw)


def test_kinds_that_are_not_known_are_left_out() -> None:
    """A newer nft may list more."""
    raw = (
        b'{"nftables": [3, {"metainfo": {}}, {"flowtable": {"name": "f"}}, {"set": {"name": "s"}}]}'
    )
    assert parse_listing(raw) == TableListing(sets=frozenset({"s"}), elements={"s": {}})
