"""What a write of a Service takes from the ranges, and what it lets go once it is stored.

Follows kube-apiserver: families first get their addresses, then ports their node ports, of which
one number serves all protocols of a port; last comes the port for health checks. Refusals are
those of Kubernetes: a value that the user named is a cause at its field, an empty range is an
internal error. A `Reservation` remembers what was taken until the write is stored or has failed.
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

# What a dry run shows for the first node port that would be drawn.
_FIRST_SHOWN_PORT: Final = 32769
_WITH_NODE_PORTS: Final = ("NodePort", "LoadBalancer")


class Ranges(msgspec.Struct, frozen=True):
    """All that Services are given from, the range of the primary family first."""

    addresses: tuple[AddressRange, ...]
    ports: NodePorts

    @property
    def families(self) -> tuple[str, ...]:
        """The families that the cluster hands out, the primary one first."""
        return tuple(one.family for one in self.addresses)

    def of_family(self, family: str | None) -> AddressRange | None:
        """Return the range of the family, or None when the cluster has none."""
        return next((one for one in self.addresses if one.family == family), None)

    def give_address(self, address: str) -> None:
        """Let a cluster IP go."""
        found = self.of_family(family_of(address))
        if found is not None:
            found.give(address)


class Reservation:
    """What one write has taken, and what it will let go, until it is stored or has failed."""

    def __init__(self, ranges: Ranges, *, dry_run: bool = False) -> None:
        """Start with nothing taken."""
        self._ranges = ranges
        self._dry_run = dry_run
        self._addresses: list[str] = []
        self._ports: list[int] = []
        self._leaving_addresses: list[str] = []
        self._leaving_ports: list[int] = []

    def take_address(self, family: str, wanted: str) -> tuple[str, str]:
        """Return the address, or "" and why there is none; "" wants any."""
        found = self._ranges.of_family(family)
        if found is None:
            return "", FULL
        if self._dry_run:
            # NB: whether a named address is free is not looked at in a dry run, as upstream.
            return (wanted, found.refusal(wanted)) if wanted else (found.placeholder, "")
        if wanted:
            why = found.take(wanted)
            if not why:
                self._addresses.append(wanted)
            return wanted, why
        drawn = found.draw()
        if drawn is None:
            return "", FULL
        self._addresses.append(drawn)
        return drawn, ""

    def take_port(self, port: int) -> str:
        """Hold a named port; return why not, or ""."""
        if self._dry_run:
            why = PORT_TAKEN if self._ranges.ports.holds(port) or port in self._ports else ""
        else:
            why = self._ranges.ports.take(port)
        if not why:
            self._ports.append(port)
        return why

    def draw_port(self) -> int | None:
        """Return any free port, held now, or None when there is none."""
        drawn: int | None
        if self._dry_run:
            drawn = max(self._ports) + 1 if self._ports else _FIRST_SHOWN_PORT
        else:
            drawn = self._ranges.ports.draw()
        if drawn is not None:
            self._ports.append(drawn)
        return drawn

    def leave_address(self, address: str) -> None:
        """Let an address go once the write is stored."""
        self._leaving_addresses.append(address)

    def leave_port(self, port: int) -> None:
        """Let a port go once the write is stored."""
        self._leaving_ports.append(port)

    def settle(self, *, stored: bool) -> None:
        """Let go what the write left behind, or all that it took when it was not stored."""
        if self._dry_run:
            return
        for address in self._leaving_addresses if stored else self._addresses:
            self._ranges.give_address(address)
        for port in self._leaving_ports if stored else self._ports:
            self._ranges.ports.give(port)


def allocate_for_create(service: Service, reservation: Reservation) -> Service:
    """Return the new Service with all that it needs; raises a Failure, and takes nothing, else."""
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
    """Return the changed Service with all that it needs beyond what the stored one has."""
    try:
        service = _change_addresses(service, old, reservation)
        service = _change_node_ports(service, old, reservation)
        if service.needs_health_check and not old.needs_health_check:
            service = _allocate_health_check(service, reservation)
        elif old.needs_health_check and not service.needs_health_check:
            reservation.leave_port(old.spec.health_check_node_port)
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
    """Return the node ports that a stored Service holds, that for health checks among them."""
    ports = set(_held_node_ports(service))
    if service.needs_health_check and service.spec.health_check_node_port:
        ports.add(service.spec.health_check_node_port)
    return ports


def _allocate_addresses(service: Service, reservation: Reservation, *, first: int = 0) -> Service:
    """Return the Service with an address of each of its families, from the given place on."""
    spec = service.spec
    # NB: one that turns headless and gets a family more is given an address all the same; the rules
    # refuse it then.
    is_headless = first == 0 and spec.cluster_ips[:1] == (NO_CLUSTER_IP,)
    if spec.type == "ExternalName" or is_headless:
        return service
    missing = len(spec.ip_families) - len(spec.cluster_ips)
    addresses = [*spec.cluster_ips, *[""] * missing]
    shown = list(addresses)
    for place, family in enumerate(spec.ip_families):
        if place < first:
            continue
        wanted = addresses[place]
        addresses[place], why = reservation.take_address(family, wanted)
        if why and wanted:
            detail = f"failed to allocate IP {wanted}: {why}"
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
            reservation.leave_address(address)
        return service
    if len(before.ip_families) == 1 and len(spec.ip_families) == 2:
        return _allocate_addresses(service, reservation, first=1)
    if len(before.ip_families) == 2 and len(spec.ip_families) == 1:
        for address in before.cluster_ips[1:]:
            reservation.leave_address(address)
    return service


def _first_node_ports(service: Service, reservation: Reservation) -> Service:
    """Return the new Service with node ports; ports of one number share theirs over protocols."""
    ports = list(service.spec.ports)
    by_number: dict[int, int] = {}
    for place, port in enumerate(ports):
        if port.node_port == 0 and not _is_given_node_ports(service):
            continue
        given = by_number.get(port.port, 0)
        if given == 0:
            asked = (one.node_port for one in ports if one.port == port.port and one.node_port)
            wanted = next(asked, 0)
            if wanted:
                _take_port(service, reservation, place, wanted)
            given = wanted or _draw_port(reservation)
            ports[place] = replace(port, node_port=given)
            by_number[port.port] = given
        elif port.node_port == 0:
            ports[place] = replace(port, node_port=given)
        elif port.node_port != given:
            _take_port(service, reservation, place, port.node_port)
    return replace(service, spec=replace(service.spec, ports=tuple(ports)))


def _change_node_ports(service: Service, old: Service, reservation: Reservation) -> Service:
    held = _held_node_ports(old)
    ports = list(service.spec.ports)
    if service.spec.type in _WITH_NODE_PORTS:
        taken: set[int] = set(held)
        seen: set[tuple[str, int]] = set()
        for place, port in enumerate(ports):
            if port.node_port == 0 and not _is_given_node_ports(service):
                continue
            if port.node_port == 0:
                ports[place] = replace(port, node_port=_draw_port(reservation))
            elif port.node_port not in taken:
                _take_port(service, reservation, place, port.node_port)
                taken.add(port.node_port)
            _refuse_twice(ports[place], seen)
        wanted = {port.node_port for port in ports}
        for number in held:
            if number not in wanted:
                reservation.leave_port(number)
    else:
        for number in held:
            reservation.leave_port(number)
    if tuple(ports) == service.spec.ports:
        return service
    return replace(service, spec=replace(service.spec, ports=tuple(ports)))


def _held_node_ports(service: Service) -> list[int]:
    # NB: an ExternalName Service may carry node ports, which it was never given.
    if service.spec.type not in _WITH_NODE_PORTS:
        return []
    return [port.node_port for port in service.spec.ports if port.node_port]


def _refuse_twice(port: ServicePort, seen: set[tuple[str, int]]) -> None:
    one = (port.protocol, port.node_port)
    if one in seen:
        # NB: this one never became a cause upstream; clients get the bare text.
        raise StatusError(500, "", f"duplicate nodePort: {{{port.protocol} {port.node_port}}}")
    seen.add(one)


def _allocate_health_check(service: Service, reservation: Reservation) -> Service:
    wanted = service.spec.health_check_node_port
    if wanted:
        if why := reservation.take_port(wanted):
            raise internal_error(
                f"failed to allocate requested HealthCheck NodePort {wanted}: {why}"
            )
        return service
    drawn = reservation.draw_port()
    if drawn is None:
        raise internal_error(f"failed to allocate a HealthCheck NodePort 0: {FULL}")
    return replace(service, spec=replace(service.spec, health_check_node_port=drawn))


def _take_port(service: Service, reservation: Reservation, place: int, wanted: int) -> None:
    if why := reservation.take_port(wanted):
        raise _refused(service, invalid_value(f"spec.ports[{place}].nodePort", wanted, why))


def _draw_port(reservation: Reservation) -> int:
    drawn = reservation.draw_port()
    if drawn is None:
        raise internal_error(f"failed to allocate a nodePort: {FULL}")
    return drawn


def _is_given_node_ports(service: Service) -> bool:
    spec = service.spec
    return spec.type == "NodePort" or spec.allocate_load_balancer_node_ports is not False


def _refused(service: Service, cause: FieldError) -> StatusError:
    return invalid_object("Service", "", service.metadata.name, [cause])
