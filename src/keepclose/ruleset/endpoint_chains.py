"""The chains that send connections of one service port to its endpoints.

Without session affinity one rule draws an endpoint and translates to it. With it, a client that an
endpoint's set remembers goes to that endpoint again, and every choice is remembered; the set
belongs to the endpoint and outlives changes of the others. Endpoints with unequal weights take
unequal shares of the numbers drawn. Where connections are counted, endpoints in different places
have chains of their own, which count; all in one place share a counter and the one rule.

Which endpoints there are, and in which order, is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

import msgspec

from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.ruleset.names import (
    AFFINITY,
    ENDPOINT,
    TRAFFIC,
    ServicePortKey,
    counter_base,
    endpoint_base,
    plain_address,
    whole_name,
)
from keepclose.ruleset.settings import CountBy, RulesetSettings
from keepclose.ruleset.statements import (
    Branch,
    Choose,
    Count,
    Goto,
    InSet,
    Match,
    PacketField,
    Remember,
    RuleTarget,
    Statement,
    Translate,
)
from keepclose.ruleset.tables import Chain, Counted, Counter, Rule, Set, make_rule

MOST_NUMBERS: Final = 1_000_000
"""From how many numbers an endpoint is drawn at most; greater weights are scaled down."""


class Scribe(msgspec.Struct):
    """Collects the chains of one service port as they are written, those referred to first."""

    settings: RulesetSettings
    key: ServicePortKey
    base: str
    transport: str
    mode: str
    affinity_s: int = 0
    """For how long a client comes back to its endpoint; 0 for no affinity."""
    chains: dict[str, Chain] = {}
    sets: dict[str, Set] = {}
    counters: dict[tuple[str, str], Counter] = {}
    """By the zone and node of what they count."""

    def write_chain(self, prefix: str, rules: Sequence[Rule], *, base: str = "") -> str:
        """Add a chain of these rules and return its name, which follows from them."""
        printed = "\n".join([rule.whole_text for rule in rules])
        name = whole_name(prefix, base or self.base, print_of=printed)
        self.chains[name] = Chain(name, tuple(rules))
        return name

    def write_endpoints(self, prefix: str, endpoints: Sequence[PortEndpoint]) -> str:
        """Add a chain that leads to these endpoints and return its name; "" for no endpoints."""
        usable = distinct_endpoints(endpoints, self.settings.family)
        if not usable:
            return ""
        if self.affinity_s:
            return self.write_chain(prefix, self._sticky_rules(usable))
        if self.settings.count_by is CountBy.NOTHING:
            return self.write_chain(prefix, [self._translation(usable)])
        places = dict.fromkeys([self._place(one) for one in usable])
        if len(places) == 1:
            return self.write_chain(prefix, [self._translation(usable, self._count(*places))])
        # NB: a chain for each endpoint, not a map for each place: what the kernel needs to take in
        # a map grows with the number of maps that there are, and soon is the most of all.
        shares = split_by_weight([one.weight for one in usable])
        branches = [
            Branch(
                share,
                self.write_chain(
                    ENDPOINT,
                    [self._translation((one,), self._count(self._place(one)))],
                    base=endpoint_base(self.key, one.address, one.port),
                ),
            )
            for share, one in zip(shares, usable, strict=True)
        ]
        return self.write_chain(prefix, [self._rule(Choose(tuple(branches)))])

    def _rule(self, *statements: Statement) -> Rule:
        return make_rule(self.settings.ip, *statements)

    def _translation(self, endpoints: Sequence[PortEndpoint], *counting: Statement) -> Rule:
        shares = split_by_weight([one.weight for one in endpoints])
        targets = [
            RuleTarget(share, one.address, one.port)
            for share, one in zip(shares, endpoints, strict=True)
        ]
        is_protocol = Match(PacketField.PROTOCOL, (self.transport,))
        return self._rule(is_protocol, *counting, Translate(tuple(targets)))

    def _sticky_rules(self, endpoints: Sequence[PortEndpoint]) -> list[Rule]:
        shares = split_by_weight([one.weight for one in endpoints])
        rules: list[Rule] = []
        branches: list[Branch] = []
        for share, one in zip(shares, endpoints, strict=True):
            chain, memory = self._sticky_endpoint(one)
            rules.append(self._rule(InSet((PacketField.SOURCE,), memory), Goto(chain)))
            branches.append(Branch(share, chain))
        rules.append(self._rule(Choose(tuple(branches))))
        return rules

    def _sticky_endpoint(self, endpoint: PortEndpoint) -> tuple[str, str]:
        base = endpoint_base(self.key, endpoint.address, endpoint.port)
        memory = whole_name(AFFINITY, base)
        self.sets[memory] = Set(memory, (self.settings.address_type,), timeout_s=self.affinity_s)
        counting: tuple[Statement, ...] = ()
        if self.settings.count_by is not CountBy.NOTHING:
            counting = (self._count(self._place(endpoint)),)
        rules = [self._rule(Remember(memory)), self._translation((endpoint,), *counting)]
        return self.write_chain(ENDPOINT, rules, base=base), memory

    def _place(self, endpoint: PortEndpoint) -> tuple[str, str]:
        return endpoint_place(endpoint, self.settings)

    def _count(self, place: tuple[str, str]) -> Count:
        known = self.counters.get(place)
        if known is None:
            name = whole_name(TRAFFIC, counter_base(self.key, *place, self.mode))
            known = Counter(name, Counted(self.key, *place, self.mode))
            self.counters[place] = known
        return Count(known.name)


def endpoint_place(endpoint: PortEndpoint, settings: RulesetSettings) -> tuple[str, str]:
    """Return the zone and node under which connections to an endpoint are counted."""
    node = endpoint.node_name
    if settings.count_by is CountBy.ZONE and node != settings.node_name:
        node = ""
    return endpoint.zone, node


def distinct_endpoints(endpoints: Sequence[PortEndpoint], family: str) -> list[PortEndpoint]:
    """Return the endpoints that can be translated to: a plain address of the family and a port."""
    return [
        one
        for one in endpoints
        if plain_address(one.address, family) == one.address and 0 < one.port < 1 << 16
    ]


def split_by_weight(weights: Sequence[int]) -> list[int]:
    """Return how many of the numbers drawn each weight gets: at least one, and as few as can be.

    All ones for equal weights; great ones are scaled so that no more than `MOST_NUMBERS`, and one
    for each, are drawn from.
    """
    divisor = gcd(*weights)
    if divisor <= 0:
        return [1] * len(weights)
    total = sum(weights) // divisor
    if total == len(weights):
        return [1] * len(weights)
    if total > MOST_NUMBERS:
        return [max(1, one // divisor * MOST_NUMBERS // total) for one in weights]
    return [max(1, one // divisor) for one in weights]
