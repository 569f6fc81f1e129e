"""Listings as nft 1.0.6 writes them."""

from __future__ import annotations

import pytest

from keepclose.ruleset import TableListing, listing_of
from keepclose.ruleset.statements import Drop
from keepclose.ruleset.tables import Chain, make_rule

CHAIN = "service-ULMVA6XW-ns1/svc1/tcp/p80.ABCDEFGH"
TABLE = {
    "nftables": [
        {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
        {"table": {"family": "ip", "name": "kube-proxy", "handle": 1}},
        {"counter": {"family": "ip", "name": "traffic-x", "packets": 0, "bytes": 0}},
        {
            "map": {
                "name": "service-ips",
                "type": ["ipv4_addr", "inet_proto", "inet_service"],
                "map": "verdict",
                "elem": [
                    [{"concat": ["10.96.0.1", "tcp", 80]}, {"goto": {"target": CHAIN}}],
                    [
                        {
                            "elem": {
                                "val": {"concat": ["10.96.0.2", "tcp", 80]},
                                "comment": "ns/x",
                            }
                        },
                        {"drop": None},
                    ],
                    [{"concat": ["10.96.0.3", 17, 6]}, {"drop": None}],
                ],
            }
        },
        {"set": {"name": "cluster-ips", "type": "ipv4_addr", "elem": ["10.96.0.1"]}},
        {
            "set": {
                "name": "affinity-x",
                "elem": [{"elem": {"val": "10.0.0.1", "timeout": 60, "expires": 50}}],
            }
        },
        {"chain": {"name": CHAIN, "handle": 2}},
        {"rule": {"chain": CHAIN, "expr": [{"drop": None}]}},
    ]
}


def test_names_and_elements_are_read() -> None:
    """Keys as tuples of text, verdicts as nft writes them, protocols by name."""
    assert listing_of([TABLE]) == TableListing(
        chains=frozenset({CHAIN}),
        sets=frozenset({"cluster-ips", "affinity-x"}),
        counters=frozenset({"traffic-x"}),
        elements={
            "service-ips": {
                ("10.96.0.1", "tcp", "80"): f"goto {CHAIN}",
                ("10.96.0.2", "tcp", "80"): "drop",
                ("10.96.0.3", "udp", "6"): "drop",
            },
            "cluster-ips": {("10.96.0.1",): ""},
            "affinity-x": {("10.0.0.1",): ""},
        },
        rules={CHAIN: 1},
    )


def test_several_documents_add_up() -> None:
    """A terse listing first, elements of each set and map after it."""
    terse = {"nftables": [{"set": {"name": "s"}}, {"chain": {"name": "c"}}]}
    full = {"nftables": [{"set": {"name": "s", "elem": ["10.0.0.1"]}}]}
    assert listing_of([terse, full]) == TableListing(
        chains=frozenset({"c"}), sets=frozenset({"s"}), elements={"s": {("10.0.0.1",): ""}}
    )


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"nftables": None},
        {"nftables": [None, 1, {"chain": None}, {"chain": {}}, {"chain": {"name": 1}}]},
        {"nftables": [{"set": {"name": "s", "elem": 1}}]},
        {"nftables": [{"set": {"name": "s", "elem": [None, {}, {"elem": {}}, {"concat": [[]]}]}}]},
        {"nftables": [{"map": {"name": "s", "elem": [[{"range": [1, 2]}, {}]]}}]},
    ],
)
def test_other_shapes_are_skipped(document: object) -> None:
    """As if they were absent."""
    listing = listing_of([document])
    assert (listing.chains, any(listing.elements.values())) == (frozenset(), False)


def test_verdict_of_no_shape_is_none() -> None:
    """The element is there, and any wanted verdict will replace it."""
    document = {"nftables": [{"map": {"name": "m", "elem": [["a", {}], ["b", "x"]]}}]}
    assert listing_of([document]).elements == {"m": {("a",): "", ("b",): ""}}


def test_chain_holds_as_many_rules_as_it_should() -> None:
    """Where rules were listed; else its name is believed."""
    rule = make_rule("ip", Drop())
    listing = listing_of([TABLE])
    assert listing.holds(Chain(CHAIN, (rule,)))
    assert not listing.holds(Chain(CHAIN, ()))
    assert not listing.holds(Chain("other", (rule,)))
    names_only = listing_of([{"nftables": [{"chain": {"name": CHAIN}}]}])
    assert names_only.holds(Chain(CHAIN, (rule, rule)))
