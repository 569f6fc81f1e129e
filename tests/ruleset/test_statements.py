"""The text of every kind of statement."""

from __future__ import annotations

from typing import get_args

import pytest

from keepclose.ruleset.statements import (
    Branch,
    Choose,
    ClearMark,
    Draw,
    Drop,
    Goto,
    HasMark,
    InSet,
    IsLocal,
    IsNew,
    IsTranslated,
    Jump,
    Lookup,
    Masquerade,
    Match,
    PacketField,
    Reject,
    Remember,
    Return,
    RuleTarget,
    SetMark,
    Statement,
    Translate,
)

BOTH = (PacketField.SOURCE, PacketField.DESTINATION, PacketField.PROTOCOL, PacketField.PORT)
ROWS: list[tuple[Statement, str, str]] = [
    (Match(PacketField.SOURCE, ("10.0.0.0/8",)), "ip", "ip saddr 10.0.0.0/8"),
    (Match(PacketField.SOURCE, ("fd00::/8",), negated=True), "ip6", "ip6 saddr != fd00::/8"),
    (
        Match(PacketField.SOURCE, ("1.2.3.4", "10.0.0.0/8")),
        "ip",
        "ip saddr { 1.2.3.4, 10.0.0.0/8 }",
    ),
    (Match(PacketField.PROTOCOL, ("tcp",)), "ip", "meta l4proto tcp"),
    (Match(PacketField.INTERFACE, ('"veth*"',), negated=True), "ip", 'iifname != "veth*"'),
    (InSet((PacketField.DESTINATION,), "cluster-ips"), "ip6", "ip6 daddr @cluster-ips"),
    (
        InSet(BOTH, "hairpin-connections"),
        "ip",
        "ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections",
    ),
    (IsLocal(PacketField.SOURCE), "ip", "fib saddr type local"),
    (IsNew(), "ip", "ct state new"),
    (IsTranslated(), "ip", "ct status dnat"),
    (HasMark(0x4000), "ip", "mark and 0x4000 != 0"),
    (SetMark(0x4000), "ip", "mark set mark or 0x4000"),
    (ClearMark(0x4000), "ip", "mark set mark xor 0x4000"),
    (Masquerade(), "ip", "masquerade fully-random"),
    (Jump("services"), "ip", "jump services"),
    (Goto("reject-chain"), "ip", "goto reject-chain"),
    (Return(), "ip", "return"),
    (Drop(), "ip", "drop"),
    (Reject(), "ip", "reject"),
    (
        Lookup((PacketField.PROTOCOL, PacketField.PORT), "service-nodeports"),
        "ip",
        "meta l4proto . th dport vmap @service-nodeports",
    ),
    (
        Choose((Branch(1, "a"), Branch(1, "b"))),
        "ip",
        "numgen random mod 2 vmap { 0 : goto a , 1 : goto b }",
    ),
    (
        Choose((Branch(3, "a"), Branch(1, "b"), Branch(2, "c"))),
        "ip",
        "numgen random mod 6 vmap { 0-2 : goto a , 3 : goto b , 4-5 : goto c }",
    ),
    (Translate((RuleTarget(1, "10.0.0.1", 80),)), "ip", "dnat to 10.0.0.1:80"),
    (Translate((RuleTarget(1, "fd00::1", 80),)), "ip6", "dnat to [fd00::1]:80"),
    (
        Translate((RuleTarget(1, "fd00::1", 80), RuleTarget(1, "fd00::2", 81))),
        "ip6",
        "dnat ip6 addr . port to numgen random mod 2 map { 0 : fd00::1 . 80 , 1 : fd00::2 . 81 }",
    ),
    (
        Translate((RuleTarget(2, "10.0.0.1", 80), RuleTarget(1, "10.0.0.2", 81))),
        "ip",
        (
            "dnat ip addr . port to numgen random mod 3 map "
            "{ 0-1 : 10.0.0.1 . 80 , 2 : 10.0.0.2 . 81 }"
        ),
    ),
    (
        Draw((PacketField.DESTINATION, PacketField.PROTOCOL, PacketField.PORT), 3, "endpoints"),
        "ip",
        (
            "dnat ip addr . port to ip daddr . meta l4proto . th dport . numgen random mod 3 "
            "map @endpoints"
        ),
    ),
    (Remember("affinity-x"), "ip6", "update @affinity-x { ip6 saddr }"),
    (
        InSet((PacketField.ORIGINAL_DESTINATION, PacketField.ORIGINAL_PORT), "s"),
        "ip6",
        "ct original ip6 daddr . ct original proto-dst @s",
    ),
    (IsLocal(PacketField.SOURCE, negated=True), "ip", "fib saddr type != local"),
]


@pytest.mark.parametrize(("statement", "ip", "want"), ROWS)
def test_statement_has_its_text(statement: Statement, ip: str, want: str) -> None:
    """A statement renders to what nft reads."""
    assert statement.text(ip) == want


def test_every_kind_of_statement_is_tested() -> None:
    """The table above leaves none out."""
    assert {type(row[0]) for row in ROWS} == set(get_args(Statement))
