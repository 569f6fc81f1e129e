"""Service ports whose endpoints stand in one map a protocol, beside those of all other such ports.

A plain port (a cluster IP and nothing else, no affinity, equal weights) needs no
chain of its own: its dispatch leads to the chain for so many endpoints, which draws a number and
looks the endpoint up by cluster IP, protocol, port and number. So a changed endpoint is one changed
element. That matters, because what the kernel does for a new chain, rule or map of a chain grows
with the number of those that there are, and nft reads all of them before it adds one.

While the number of endpoints changes, the chain for the old number may still draw the last one; so
elements come before the dispatch is switched and go a while after it.

Where connections are counted, each element of the map counts those that were led to its endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.selection import Selection
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset.endpoint_chains import usable_endpoints
from keepclose.ruleset.layout import DESTINATION, SERVICE_IPS, endpoints_map
from keepclose.ruleset.names import POOL, whole_name
from keepclose.ruleset.settings import RulesetSettings
from keepclose.ruleset.statements import Draw, Field, Goto, Match, To
from keepclose.ruleset.tables import Chain, Element, make_rule


def pooled_endpoints(
    port: RoutedPort, selection: Selection, settings: RulesetSettings
) -> list[PortEndpoint]:
    """Return the endpoints of a port that needs no chain of its own; empty for all others."""
    if (
        not settings.pooled
        or port.node_port
        or port.session_affinity == "ClientIP"
        or port.external_ips
        or port.load_balancer_ips
    ):
        return []
    endpoints = usable_endpoints(selection.internal.endpoints, settings.family)
    return endpoints if len({one.weight for one in endpoints}) == 1 else []


def pool_elements(
    at: tuple[str, str, str], endpoints: Sequence[PortEndpoint], settings: RulesetSettings
) -> list[Element]:
    """Return what leads from an address, protocol and port to the endpoints, of which some are."""
    transport = at[1]
    container = endpoints_map(settings, transport)
    pool = pool_chain(settings.ip, transport, len(endpoints), container)
    elements = [
        Element(container, (*at, _number(index)), To(one.address, one.port))
        for index, one in enumerate(endpoints)
    ]
    return [*elements, Element(SERVICE_IPS, at, Goto(pool.name))]


@lru_cache(maxsize=4096)
def pool_chain(ip: str, transport: str, count: int, container: str) -> Chain:
    """Return the chain that draws one of so many endpoints of whatever port it is entered for."""
    is_protocol = Match(Field.PROTOCOL, (transport,))
    rule = make_rule(ip, is_protocol, Draw(DESTINATION, count, container))
    return Chain(whole_name(POOL, f"{transport}/{count}", print_of=rule.text), (rule,))


@lru_cache(maxsize=4096)
def _number(index: int) -> str:
    return str(index)
