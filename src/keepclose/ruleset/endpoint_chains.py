"""The chains that route connections of one service port to its endpoints.

Without session affinity one rule draws an endpoint and translates to it. With session affinity an
endpoint's set remembers its clients: a client in the set goes to that endpoint again, and each
choice updates the set. The set belongs to the endpoint and outlives changes of other endpoints.
Endpoints with unequal weights get unequal shares of the numbers. If connections are counted,
endpoints in different places (zone, node) have chains of their own, which count; if all endpoints
are in one place, they share a counter and one rule.

This module never decides which endpoints there are, nor their order: `routing` does.
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

MAX_NUMBERS: Final = 1_000_000
"""The most numbers to draw an endpoint from; weights with a greater sum are scaled down."""


class ChainBuilder(msgspec.Struct):
    """Builds the chains of one service port; a chain comes before those that refer to it."""

    settings: RulesetSettings
    key: ServicePortKey
    base: str
    transport: str
    mode: str
    affinity_s: int = 0
    """The timeout of session affinity; 0 for no affinity."""
    chains: dict[str, Chain] = {}
    sets: dict[str, Set] = {}
    counters: dict[tuple[str, str], Counter] = {}
    """By the zone and node of the endpoints that they count."""

    def add_chain(self, prefix: str, rules: Sequence[Rule], *, base: str = "") -> str:
        """Add a chain of these rules and return its name, which ends in their fingerprint."""
        text = "\n".join([rule.whole_text for rule in rules])
        name = whole_name(prefix, base or self.base, fingerprint_of=text)
        self.chains[name] = Chain(name, tuple(rules))
        return name

    def add_endpoints_chain(self, prefix: str, endpoints: Sequence[PortEndpoint]) -> str:
        """Add a chain that routes to these endpoints and return its name; "" for no endpoints."""
        usable = distinct_endpoints(endpoints, self.settings.family)
        if not usable:
            return ""
        if self.affinity_s:
            return self.add_chain(prefix, self._affinity_rules(usable))
        if self.settings.count_by is CountBy.NOTHING:
            return self.add_chain(prefix, [self._translation(usable)])
        places = dict.fromkeys([self._place(endpoint) for endpoint in usable])
        if len(places) == 1:
            return self.add_chain(prefix, [self._translation(usable, self._count(*places))])
        # NB: a chain for each endpoint, not a map for each place: the kernel's time to add a map
        # grows with the number of maps, and soon exceeds all other costs.
        shares = split_by_weight([endpoint.weight for endpoint in usable])
        branches = [
            Branch(
                share,
                self.add_chain(
                    ENDPOINT,
                    [self._translation((endpoint,), self._count(self._place(endpoint)))],
                    base=endpoint_base(self.key, endpoint.address, endpoint.port),
                ),
            )
            for share, endpoint in zip(shares, usable, strict=True)
        ]
        return self.add_chain(prefix, [self._rule(Choose(tuple(branches)))])

    def _rule(self, *statements: Statement) -> Rule:
        return make_rule(self.settings.ip, *statements)

    def _translation(self, endpoints: Sequence[PortEndpoint], *counting: Statement) -> Rule:
        shares = split_by_weight([endpoint.weight for endpoint in endpoints])
        targets = [
            RuleTarget(share, endpoint.address, endpoint.port)
            for share, endpoint in zip(shares, endpoints, strict=True)
        ]
        is_protocol = Match(PacketField.PROTOCOL, (self.transport,))
        return self._rule(is_protocol, *counting, Translate(tuple(targets)))

    def _affinity_rules(self, endpoints: Sequence[PortEndpoint]) -> list[Rule]:
        shares = split_by_weight([endpoint.weight for endpoint in endpoints])
        rules: list[Rule] = []
        branches: list[Branch] = []
        for share, endpoint in zip(shares, endpoints, strict=True):
            chain, clients = self._add_affinity_chain(endpoint)
            rules.append(self._rule(InSet((PacketField.SOURCE,), clients), Goto(chain)))
            branches.append(Branch(share, chain))
        rules.append(self._rule(Choose(tuple(branches))))
        return rules

    def _add_affinity_chain(self, endpoint: PortEndpoint) -> tuple[str, str]:
        """Add the chain of one endpoint; return its name and that of the set of its clients."""
        base = endpoint_base(self.key, endpoint.address, endpoint.port)
        clients = whole_name(AFFINITY, base)
        self.sets[clients] = Set(clients, (self.settings.address_type,), timeout_s=self.affinity_s)
        counting: tuple[Statement, ...] = ()
        if self.settings.count_by is not CountBy.NOTHING:
            counting = (self._count(self._place(endpoint)),)
        rules = [self._rule(Remember(clients)), self._translation((endpoint,), *counting)]
        return self.add_chain(ENDPOINT, rules, base=base), clients

    def _place(self, endpoint: PortEndpoint) -> tuple[str, str]:
        return endpoint_place(endpoint, self.settings)

    def _count(self, place: tuple[str, str]) -> Count:
        counter = self.counters.get(place)
        if counter is None:
            name = whole_name(TRAFFIC, counter_base(self.key, *place, self.mode))
            counter = Counter(name, Counted(self.key, *place, self.mode))
            self.counters[place] = counter
        return Count(counter.name)


def endpoint_place(endpoint: PortEndpoint, settings: RulesetSettings) -> tuple[str, str]:
    """Return the zone and node under which connections to an endpoint are counted."""
    node = endpoint.node_name
    if settings.count_by is CountBy.ZONE and node != settings.node_name:
        node = ""
    return endpoint.zone, node


def distinct_endpoints(endpoints: Sequence[PortEndpoint], family: str) -> list[PortEndpoint]:
    """Return the endpoints with a canonical address of the family and a valid port.

    nftables can translate only to these.
    """
    return [
        endpoint
        for endpoint in endpoints
        if plain_address(endpoint.address, family) == endpoint.address
        and 0 < endpoint.port < 1 << 16
    ]


def split_by_weight(weights: Sequence[int]) -> list[int]:
    """Return how many numbers each weight gets: at least one, and as few as possible.

    Equal weights get one number each. Large weights are scaled down to about `MAX_NUMBERS` numbers
    in all.
    """
    divisor = gcd(*weights)
    if divisor <= 0:
        return [1] * len(weights)
    total = sum(weights) // divisor
    if total == len(weights):
        return [1] * len(weights)
    if total > MAX_NUMBERS:
        return [max(1, weight // divisor * MAX_NUMBERS // total) for weight in weights]
    return [max(1, weight // divisor) for weight in weights]
