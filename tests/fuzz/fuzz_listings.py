"""Listings of nftables as both readers take them: neither raises anything but what it says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
from fuzzbounds import require

from keepclose.proxy.nft.listings import parse_listing
from keepclose.proxy.nft.writer import NftError
from keepclose.ruleset.listing import listing_of

MUTATES_JSON = True


def seeds() -> Iterator[bytes]:
    """Yield a listing with one of everything."""
    entries = [
        {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
        {"table": {"family": "ip", "name": "kube-proxy", "handle": 1}},
        {"chain": {"family": "ip", "table": "t", "name": "services", "handle": 2, "prio": 0}},
        {"counter": {"name": "c", "table": "t", "packets": 3, "bytes": 4}},
        {"set": {"name": "s", "type": "ipv4_addr", "flags": ["interval"], "elem": ["10.0.0.1"]}},
        {
            "set": {
                "name": "r",
                "type": ["ipv4_addr", "inet_service"],
                "flags": "timeout",
                "timeout": 60,
                "elem": [
                    {"prefix": {"addr": "10.0.0.0", "len": 8}},
                    {"range": ["10.0.0.1", "10.0.0.9"]},
                    {"elem": {"val": {"concat": ["10.0.0.1", 80]}, "comment": "x", "expires": 3}},
                ],
            }
        },
        {
            "map": {
                "name": "m",
                "type": ["ipv4_addr", "inet_proto", "inet_service"],
                "map": "verdict",
                "elem": [
                    [{"concat": ["10.0.0.1", "tcp", 80]}, {"goto": {"target": "service-x"}}],
                    [{"concat": ["10.0.0.2", 6, 80]}, {"drop": None}],
                    [{"elem": {"val": 1, "counter": {}}}, {"concat": ["10.1.0.5", 8080]}],
                ],
            }
        },
        {
            "rule": {
                "chain": "services",
                "handle": 5,
                "comment": "c",
                "expr": [{"counter": {"packets": 1, "bytes": 2}}, {"counter": "named"}],
            }
        },
    ]
    yield b"\n" + msgspec.json.encode({"nftables": entries})
    yield b'\n{"nftables": []}'


def check(data: bytes) -> None:
    """Read the listing with both, and compare what they agree to read."""
    raw = data.partition(b"\n")[2]
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        with contextlib.suppress(NftError):
            parse_listing(raw)
        return
    held = listing_of([document])
    hash(held.chains)
    try:
        listing = parse_listing(raw)
    except NftError:
        return
    require(set(listing.chains) == held.chains, "the two readers see other chains")
    # The proxy's reader leaves a set out whose flags or type have another shape.
    require(set(listing.sets) <= held.sets, "the two readers see other sets")
