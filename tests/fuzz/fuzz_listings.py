"""Listings of nftables: the reader raises nothing but what it says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
from fuzzbounds import require

from keepclose.ruleset.listing import listing_of, parse_listing

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
    """Read the listing whole and in two parts; only ValueError may come of it."""
    raw = data.partition(b"\n")[2]
    try:
        listing = parse_listing(raw)
    except ValueError:
        with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            listing_of([msgspec.json.decode(raw)])
        return
    hash(listing.chains)
    entries = msgspec.json.decode(raw)["nftables"]
    keys = [key for elements in listing.elements.values() for key in elements]
    require(all(key and all(isinstance(part, str) for part in key) for key in keys), "a bad key")
    middle = len(entries) // 2
    parts = [{"nftables": entries[:middle]}, {"nftables": entries[middle:]}]
    require(listing_of(parts) == listing, "a listing in two parts reads differently")
