"""What a write of a Service allocates from the ranges, and what it releases once it is stored.

Follows kube-apiserver: families first get their addresses, then ports their node ports, of which
one number serves all protocols of a port; last comes the port for health checks. Errors are those
of Kubernetes: a value that the user named is a cause at its field, an empty range is an internal
error.

A `Reservation` records what one write allocated until the write is stored or has failed. Values are
allocated only while a write is prepared, and nothing that the stored object holds is released
before the write is stored. A dry run shows values that no Service holds and allocates none.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.apiserver.registry.allocation_ranges import (
    FULL,
    PORT_TAKEN,
    AddressRange,
    NodePorts,
)
from keepclose.apiserver.status_errors import StatusError, internal_error, invalid_object
from keepclose.model.addresses import family_of
from keepclose.model.field_errors import FieldError
from keepclose.model.field_errors import invalid as invalid_value
from keepclose.model.service.network_validation import NO_CLUSTER_IP
from keepclose.model.service.types import Service, ServicePort

# The first node port that a dry run shows for an automatic one.
_FIRST_SHOWN_PORT: Final = 32769
_WITH_NODE_PORTS: Final = ("NodePort", "LoadBalancer")


class Ranges(msgspec.Struct, frozen=True):
    """The ranges from which Services are allocated, that of the primary family first."""

    addresses: tuple[AddressRange, ...]
    ports: NodePorts

    @property
    def families(self) -> tuple[str, ...]:
        """The IP families of the cluster, the primary one first."""
        return tuple(address_range.family for address_range in self.addresses)

    def of_family(self, family: str | None) -> AddressRange | None:
        """Return the range of the family, or None when the cluster has none."""
        return next(
            (address_range for address_range in self.addresses if address_range.family == family),
            None,
        )

    def release_address(self, address: str) -> None:
        """Release a cluster IP."""
        address_range = self.of_family(family_of(address))
        if address_range is not None:
            address_range.release(address)


class Reservation:
    """What one write has allocated, and what it releases once it is stored."""

    def __init__(self, ranges: Ranges, *, dry_run: bool = False) -> None:
        """Start with nothing allocated."""
        self._ranges = ranges
        self._dry_run = dry_run
        self._addresses: list[str] = []
        self._ports: list[int] = []
        self._released_addresses: list[str] = []
        self._released_ports: list[int] = []

    def allocate_address(self, family: str, requested: str) -> tuple[str, str]:
        """Return the address, or "" and the reason; `requested` is "" for any address."""
        address_range = self._ranges.of_family(family)
        if address_range is None:
            return "", FULL
        if self._dry_run:
            # NB: a dry run does not check whether a named address is free, as upstream.
            return (
                (requested, address_range.refusal(requested))
                if requested
                else (address_range.placeholder, "")
            )
        if requested:
            why = address_range.allocate(requested)
            if not why:
                self._addresses.append(requested)
            return requested, why
        drawn = address_range.allocate_next()
        if drawn is None:
            return "", FULL
        self._addresses.append(drawn)
        return drawn, ""

    def allocate_port(self, port: int) -> str:
        """Allocate a named port; return "", or the reason why it cannot be allocated."""
        if self._dry_run:
            why = PORT_TAKEN if self._ranges.ports.holds(port) or port in self._ports else ""
        else:
            why = self._ranges.ports.allocate(port)
        if not why:
            self._ports.append(port)
        return why

    def allocate_next_port(self) -> int | None:
        """Allocate and return any free port, or None when there is none."""
        drawn: int | None
        if self._dry_run:
            drawn = max(self._ports) + 1 if self._ports else _FIRST_SHOWN_PORT
        else:
            drawn = self._ranges.ports.allocate_next()
        if drawn is not None:
            self._ports.append(drawn)
        return drawn

    def release_address_when_stored(self, address: str) -> None:
        """Release an address once the write is stored."""
        self._released_addresses.append(address)

    def release_port_when_stored(self, port: int) -> None:
        """Release a port once the write is stored."""
        self._released_ports.append(port)

    def settle(self, *, stored: bool) -> None:
        """Release what the stored write no longer uses, or all that a failed write allocated."""
        if self._dry_run:
            return
        for address in self._released_addresses if stored else self._addresses:
            self._ranges.release_address(address)
        for port in self._released_ports if stored else self._ports:
            self._ranges.ports.release(port)


def allocate_for_create(service: Service, reservation: Reservation) -> Service:
    """Return the new Service with all it needs; a StatusError releases what was allocated."""
    try:
        service = _allocate_addresses(service, reservation)
        if service.spec.type in _WITH_NODE_PORTS:
            service = _first_node_ports(service, reservation)
        if service.needs_health_check:
            service = _allocate_health_check(service, reservation)
    except StatusError:
        reservation.settle(stored=False)
        raise
    return service


def allocate_for_update(service: Service, old: Service, reservation: Reservation) -> Service:
    """Return the changed Service with all that it needs beyond what the stored one holds."""
    try:
        service = _change_addresses(service, old, reservation)
        service = _change_node_ports(service, old, reservation)
        if service.needs_health_check and not old.needs_health_check:
            service = _allocate_health_check(service, reservation)
        elif old.needs_health_check and not service.needs_health_check:
            reservation.release_port_when_stored(old.spec.health_check_node_port)
    except StatusError:
        reservation.settle(stored=False)
        raise
    return service


def held_addresses(service: Service) -> tuple[str, ...]:
    """Return the cluster IPs that a stored Service holds."""
    if service.spec.type == "ExternalName" or service.is_headless:
        return ()
    return service.spec.cluster_ips or (
        (service.spec.cluster_ip,) if service.spec.cluster_ip else ()
    )


def held_ports(service: Service) -> set[int]:
    """Return the node ports that a stored Service holds, including that for health checks."""
    ports = set(_held_node_ports(service))
    if service.needs_health_check and service.spec.health_check_node_port:
        ports.add(service.spec.health_check_node_port)
    return ports


def _allocate_addresses(service: Service, reservation: Reservation, *, first: int = 0) -> Service:
    """Return the Service with an address of each of its families, from the index `first` on."""
    spec = service.spec
    # NB: a Service that turns headless and gets another family is allocated an address all the
    # same; validation rejects it then.
    is_headless = first == 0 and spec.cluster_ips[:1] == (NO_CLUSTER_IP,)
    if spec.type == "ExternalName" or is_headless:
        return service
    missing = len(spec.ip_families) - len(spec.cluster_ips)
    addresses = [*spec.cluster_ips, *[""] * missing]
    shown = list(addresses)
    for index, family in enumerate(spec.ip_families):
        if index < first:
            continue
        requested = addresses[index]
        addresses[index], why = reservation.allocate_address(family, requested)
        if why and requested:
            detail = f"failed to allocate IP {requested}: {why}"
            raise _refused(service, invalid_value("spec.clusterIPs", shown, detail))
        if why:
            name = service.metadata.name
            raise internal_error(f'failed to allocate a serviceIP for Service "{name}": {why}')
    if not addresses:
        return service
    changed = replace(spec, cluster_ip=addresses[0], cluster_ips=tuple(addresses))
    return replace(service, spec=changed)


def _change_addresses(service: Service, old: Service, reservation: Reservation) -> Service:
    spec, before = service.spec, old.spec
    if before.type == "ExternalName":
        if spec.type == "ExternalName":
            return service
        return _allocate_addresses(service, reservation)
    if old.is_headless:
        return service
    if spec.type == "ExternalName":
        for address in before.cluster_ips:
            reservation.release_address_when_stored(address)
        return service
    if len(before.ip_families) == 1 and len(spec.ip_families) == 2:
        return _allocate_addresses(service, reservation, first=1)
    if len(before.ip_families) == 2 and len(spec.ip_families) == 1:
        for address in before.cluster_ips[1:]:
            reservation.release_address_when_stored(address)
    return service


def _first_node_ports(service: Service, reservation: Reservation) -> Service:
    """Return the new Service with node ports; ports of one number share theirs over protocols."""
    ports = list(service.spec.ports)
    by_number: dict[int, int] = {}
    for index, port in enumerate(ports):
        if port.node_port == 0 and not _gets_node_ports(service):
            continue
        node_port = by_number.get(port.port, 0)
        if node_port == 0:
            asked = (
                candidate.node_port
                for candidate in ports
                if candidate.port == port.port and candidate.node_port
            )
            requested = next(asked, 0)
            if requested:
                _allocate_port(service, reservation, index, requested)
            node_port = requested or _allocate_next_port(reservation)
            ports[index] = replace(port, node_port=node_port)
            by_number[port.port] = node_port
        elif port.node_port == 0:
            ports[index] = replace(port, node_port=node_port)
        elif port.node_port != node_port:
            _allocate_port(service, reservation, index, port.node_port)
    return replace(service, spec=replace(service.spec, ports=tuple(ports)))


def _change_node_ports(service: Service, old: Service, reservation: Reservation) -> Service:
    held = _held_node_ports(old)
    ports = list(service.spec.ports)
    if service.spec.type in _WITH_NODE_PORTS:
        taken: set[int] = set(held)
        seen: set[tuple[str, int]] = set()
        for index, port in enumerate(ports):
            if port.node_port == 0 and not _gets_node_ports(service):
                continue
            if port.node_port == 0:
                ports[index] = replace(port, node_port=_allocate_next_port(reservation))
            elif port.node_port not in taken:
                _allocate_port(service, reservation, index, port.node_port)
                taken.add(port.node_port)
            _reject_duplicate(ports[index], seen)
        still_used = {port.node_port for port in ports}
        for number in held:
            if number not in still_used:
                reservation.release_port_when_stored(number)
    else:
        for number in held:
            reservation.release_port_when_stored(number)
    if tuple(ports) == service.spec.ports:
        return service
    return replace(service, spec=replace(service.spec, ports=tuple(ports)))


def _held_node_ports(service: Service) -> list[int]:
    # NB: an ExternalName Service may carry node ports, which were never allocated.
    if service.spec.type not in _WITH_NODE_PORTS:
        return []
    return [port.node_port for port in service.spec.ports if port.node_port]


def _reject_duplicate(port: ServicePort, seen: set[tuple[str, int]]) -> None:
    key = (port.protocol, port.node_port)
    if key in seen:
        # NB: upstream has no cause for this error; clients get the bare text.
        raise StatusError(500, "", f"duplicate nodePort: {{{port.protocol} {port.node_port}}}")
    seen.add(key)


def _allocate_health_check(service: Service, reservation: Reservation) -> Service:
    requested = service.spec.health_check_node_port
    if requested:
        if why := reservation.allocate_port(requested):
            raise internal_error(
                f"failed to allocate requested HealthCheck NodePort {requested}: {why}"
            )
        return service
    drawn = reservation.allocate_next_port()
    if drawn is None:
        raise internal_error(f"failed to allocate a HealthCheck NodePort 0: {FULL}")
    return replace(service, spec=replace(service.spec, health_check_node_port=drawn))


def _allocate_port(service: Service, reservation: Reservation, index: int, requested: int) -> None:
    if why := reservation.allocate_port(requested):
        raise _refused(service, invalid_value(f"spec.ports[{index}].nodePort", requested, why))


def _allocate_next_port(reservation: Reservation) -> int:
    drawn = reservation.allocate_next_port()
    if drawn is None:
        raise internal_error(f"failed to allocate a nodePort: {FULL}")
    return drawn


def _gets_node_ports(service: Service) -> bool:
    spec = service.spec
    return spec.type == "NodePort" or spec.allocate_load_balancer_node_ports is not False


def _refused(service: Service, cause: FieldError) -> StatusError:
    return invalid_object("Service", "", service.metadata.name, [cause])
