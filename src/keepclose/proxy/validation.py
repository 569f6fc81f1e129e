"""Validation of Services and EndpointSlices before the proxy writes rules for them.

The API server validates what it stores, so errors are rare; but one name or address that nftables
cannot parse would make it reject the rules of all other Services too. So the proxy ignores the
invalid part of an object, logs it once, and routes the rest.
"""

from __future__ import annotations

import re
from socket import AF_INET, AF_INET6, inet_pton
from typing import Final

import structlog

from keepclose.model.addresses import IPV4, IPV6, cidr_errors, family_of
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset.port_objects import MAX_AFFINITY_S

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_FAMILIES: Final = {IPV4: AF_INET, IPV6: AF_INET6}
_PROTOCOLS: Final = frozenset({"TCP", "UDP", "SCTP"})
_LAST_PORT: Final = 65535
_MAX_LOGGED: Final = 1000
_log = structlog.get_logger(__name__)


class ValidationLog:
    """Logs each validation error of an object once."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, NamespacedName, str]] = set()

    def report(self, kind: str, key: NamespacedName, error: str) -> None:
        """Log a validation error of an object unless it is logged already; "" is no error."""
        if not error:
            return
        # NB: an object may have several errors, and each family validates it.
        if (kind, key, error) not in self._logged:
            if len(self._logged) >= _MAX_LOGGED:
                self._logged.clear()
            self._logged.add((kind, key, error))
            _log.warning(
                "invalid part of an object ignored", kind=kind, object=str(key), error=error
            )


def port_error(port: RoutedPort, family: str) -> str:
    """Return why the proxy cannot write rules for a service port, or ""."""
    namespace, name = port.service
    if not (_is_name(namespace) and _is_name(name) and (not port.name or _is_name(port.name))):
        return f"port {port.name!r} of {port.service}: not a name that Kubernetes allows"
    if family_of(port.cluster_ip) != family:
        return f"cluster IP {port.cluster_ip!r}: not an {family} address"
    if port.protocol not in _PROTOCOLS:
        return f"port {port.name!r}: unknown protocol {port.protocol!r}"
    if not 0 < port.port <= _LAST_PORT or not 0 <= port.node_port <= _LAST_PORT:
        return f"port {port.name!r}: a number that is not from 1 to {_LAST_PORT}"
    return ""


def service_error(service: Service) -> str:
    """Return the first part of a Service that the proxy must ignore, or ""."""
    spec = service.spec
    for address in spec.external_ips:
        if address.strip() and family_of(address) is None:
            return f"external IP {address!r}: not an IP address"
    for text in spec.load_balancer_source_ranges:
        if cidr_errors("", text.strip(), strict=False):
            return f"source range {text!r}: not a range of addresses"
    affinity = spec.session_affinity_config
    if affinity is not None and affinity.client_ip is not None:
        seconds = affinity.client_ip.timeout_seconds
        if seconds is not None and not 0 < seconds <= MAX_AFFINITY_S:
            return f"session affinity for {seconds} s: not from 1 to {MAX_AFFINITY_S}"
    if service.needs_health_check and not spec.health_check_node_port:
        return "externalTrafficPolicy is Local, but there is no healthCheckNodePort"
    return ""


def slice_error(endpoint_slice: EndpointSlice, family: str) -> str:
    """Return the first part of a slice that the proxy must ignore, or ""."""
    for port in endpoint_slice.ports:
        if port.name is None:
            return "a port without a name"
        if not port.port or not 0 < port.port <= _LAST_PORT:
            return f"port {port.name!r} without a usable number"
    for endpoint in endpoint_slice.endpoints:
        if not endpoint.addresses:
            return "an endpoint without an address"
        if not _is_of_family(endpoint.addresses[0], family):
            return f"endpoint {endpoint.addresses[0]!r}: not an {family} address"
    return ""


def usable_endpoints(endpoints: tuple[PortEndpoint, ...], family: str) -> tuple[PortEndpoint, ...]:
    """Return the endpoints to which rules of the family can route; the same object if all can."""
    # NB: these addresses are canonical, so a colon identifies the family.
    is_six = family == IPV6
    kept = [e for e in endpoints if (":" in e.address) is is_six and 0 < e.port <= _LAST_PORT]
    return endpoints if len(kept) == len(endpoints) else tuple(kept)


def _is_of_family(text: str, family: str) -> bool:
    # NB: the C library is fast and strict; only what it rejects is parsed leniently.
    try:
        inet_pton(_FAMILIES[family], text)
    except (OSError, ValueError):
        return family_of(text) == family
    return True


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None
