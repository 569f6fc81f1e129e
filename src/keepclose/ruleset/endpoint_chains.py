"""The chains that route connections of one service port to its endpoints.

Without session affinity one rule draws an endpoint and translates to it. With session affinity an
endpoint's set remembers its clients: a client in the set goes to that endpoint again, and each
choice updates the set. The set belongs to the endpoint and outlives changes of other endpoints.
Endpoints with unequal weights get unequal shares of the numbers. No chain counts connections:
elements of sets do, once the destination is translated (see `connection_sets`).

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
    ServicePortKey,
    endpoint_base,
    plain_address,
    whole_name,
)
from keepclose.ruleset.settings import RulesetSettings
from keepclose.ruleset.statements import (
    Branch,
    Choose,
    Goto,
    InSet,
    Match,
    PacketField,
    Remember,
    RuleTarget,
    Statement,
    Translate,
)
from keepclose.ruleset.tables import Chain, Rule, Set, make_rule

MAX_NUMBERS: Final = 1_000_000
"""The most numbers to draw an endpoint from; weights with a greater sum are scaled down."""


class ChainBuilder(msgspec.Struct):
    """Builds the chains of one service port; a chain comes before those that refer to it."""

    settings: RulesetSettings
    key: ServicePortKey
    base: str
    transport: str
    affinity_s: int = 0
    """The timeout of session affinity; 0 for no affinity."""
    chains: dict[str, Chain] = {}
    sets: dict[str, Set] = {}

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
        return self.add_chain(prefix, [self._translation(usable)])

    def _rule(self, *statements: Statement) -> Rule:
        return make_rule(self.settings.ip, *statements)

    def _translation(self, endpoints: Sequence[PortEndpoint]) -> Rule:
        shares = split_by_weight([endpoint.weight for endpoint in endpoints])
        targets = [
            RuleTarget(share, endpoint.address, endpoint.port)
            for share, endpoint in zip(shares, endpoints, strict=True)
        ]
        is_protocol = Match(PacketField.PROTOCOL, (self.transport,))
        return self._rule(is_protocol, Translate(tuple(targets)))

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
        rules = [self._rule(Remember(clients)), self._translation((endpoint,))]
        return self.add_chain(ENDPOINT, rules, base=base), clients


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
