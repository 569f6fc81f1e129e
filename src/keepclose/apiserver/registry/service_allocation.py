"""What a write of a Service takes from the ranges, and what it lets go once it is stored.

Follows kube-apiserver: families first get their addresses, then ports their node ports, of which
one number serves all protocols of a port; last comes the port for health checks. Refusals are
those of Kubernetes: a value that the user named is a cause at its field, an empty range is an
internal error. A `Reservation` remembers what was taken until the write is stored or has failed.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from keepclose.apiserver.registry.allocation_ranges import FULL
from keepclose.apiserver.status_errors import Failure, internal_error, invalid_object
from keepclose.apiserver.strategies.allocation.reservations import Reservation
from keepclose.model.field_errors import Cause
from keepclose.model.field_errors import invalid as invalid_value
from keepclose.model.service.network_validation import NO_CLUSTER_IP
from keepclose.model.service.types import Service, ServicePort

_WITH_NODE_PORTS: Final = ("NodePort", "LoadBalancer")


def allocate_for_create(service: Service, reservation: Reservation) -> Service:
    """Return the new Service with all that it needs; raises a Failure, and takes nothing, else."""
    try:
        service = _allocate_addresses(service, reservation)
        if service.spec.type in _WITH_NODE_PORTS:
            service = _first_node_ports(service, reservation)
        if service.needs_health_check:
            service = _allocate_health_check(service, reservation)
    except Failure:
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
    except Failure:
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
        raise Failure(500, "", f"duplicate nodePort: {{{port.protocol} {port.node_port}}}")
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


def _refused(service: Service, cause: Cause) -> Failure:
    return invalid_object("Service", "", service.metadata.name, [cause])
