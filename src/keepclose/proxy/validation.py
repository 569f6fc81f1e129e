"""What a proxy cannot make use of in an object, said once in words.

A server checks what it stores, so all this is rare; but one name or address that nftables cannot
read would make it refuse the rules of all other Services too. So what is flawed is left out, with
one line in the log, and the rest goes on.
"""

from __future__ import annotations

import re
from socket import AF_INET, AF_INET6, inet_pton
from typing import Final

import structlog

from keepclose.model.addresses import IPV4, IPV6, cidr_causes, family_of
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset.port_objects import LONGEST_AFFINITY_S

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_FAMILIES: Final = {IPV4: AF_INET, IPV6: AF_INET6}
_PROTOCOLS: Final = frozenset({"TCP", "UDP", "SCTP"})
_LAST_PORT: Final = 65535
_MOST_REMEMBERED: Final = 1000
_log = structlog.get_logger(__name__)


class Flaws:
    """The flaws that were told already."""

    def __init__(self) -> None:
        self._told: set[tuple[str, NamespacedName, str]] = set()

    def note(self, kind: str, key: NamespacedName, flaw: str) -> None:
        """Log a flaw of an object unless that was said before; "" is none."""
        if not flaw:
            return
        # NB: an object may have several flaws, and each family looks for its own.
        if (kind, key, flaw) not in self._told:
            if len(self._told) >= _MOST_REMEMBERED:
                self._told.clear()
            self._told.add((kind, key, flaw))
            _log.warning("left out", kind=kind, object=str(key), flaw=flaw)


def port_flaw(port: RoutedPort, family: str) -> str:
    """Return why rules for a service port cannot be written, or ""."""
    namespace, name = port.service
    if not (_is_name(namespace) and _is_name(name) and (not port.name or _is_name(port.name))):
        return f"port {port.name!r} of {port.service}: not a name that Kubernetes allows"
    if family_of(port.cluster_ip) != family:
        return f"cluster IP {port.cluster_ip!r}: not an {family} address"
    if port.protocol not in _PROTOCOLS:
        return f"port {port.name!r}: unknown protocol {port.protocol!r}"
    if not 0 < port.port <= _LAST_PORT or not 0 <= port.node_port <= _LAST_PORT:
        return f"port {port.name!r}: a number beyond {_LAST_PORT} or not above 0"
    return ""


def service_flaw(service: Service) -> str:
    """Return what of a Service can only be followed in part, or ""."""
    spec = service.spec
    for address in spec.external_ips:
        if address.strip() and family_of(address) is None:
            return f"external IP {address!r}: not an IP address"
    for text in spec.load_balancer_source_ranges:
        if cidr_causes("", text.strip(), strict=False):
            return f"source range {text!r}: not a range of addresses"
    affinity = spec.session_affinity_config
    if affinity is not None and affinity.client_ip is not None:
        seconds = affinity.client_ip.timeout_seconds
        if seconds is not None and not 0 < seconds <= LONGEST_AFFINITY_S:
            return f"session affinity for {seconds} s: not from 1 to {LONGEST_AFFINITY_S}"
    if service.needs_health_check and not spec.health_check_node_port:
        return "externalTrafficPolicy is Local, but there is no healthCheckNodePort"
    return ""


def slice_flaw(one: EndpointSlice, family: str) -> str:
    """Return the first thing in a slice that must be left out, or ""."""
    for port in one.ports:
        if port.name is None:
            return "a port without a name"
        if not port.port or not 0 < port.port <= _LAST_PORT:
            return f"port {port.name!r} without a usable number"
    for endpoint in one.endpoints:
        if not endpoint.addresses:
            return "an endpoint without an address"
        if not _is_of_family(endpoint.addresses[0], family):
            return f"endpoint {endpoint.addresses[0]!r}: not an {family} address"
    return ""


def usable_endpoints(endpoints: tuple[PortEndpoint, ...], family: str) -> tuple[PortEndpoint, ...]:
    """Return the endpoints to which rules of the family can lead; the same object when all."""
    # NB: these addresses are canonical already, so a colon tells the family.
    is_six = family == IPV6
    kept = [e for e in endpoints if (":" in e.address) is is_six and 0 < e.port <= _LAST_PORT]
    return endpoints if len(kept) == len(endpoints) else tuple(kept)


def _is_of_family(text: str, family: str) -> bool:
    # NB: the C library is quick and strict; only what it refuses is read leniently.
    try:
        inet_pton(_FAMILIES[family], text)
    except (OSError, ValueError):
        return family_of(text) == family
    return True


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None
