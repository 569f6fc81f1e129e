"""Writes of Services, the one kind that is allocated something, and of ServiceCIDRs.

The order is that of kube-apiserver: defaults; on update the values allocated before; both cluster
IP fields made to agree; families; allocation; fields dropped that no longer apply or have no gate;
validation; warnings; and last the reservation is kept or released. Every step is a rule of the
model, applied to structs and carried over to the raw object.

The ranges of a ServiceCIDR are immutable but for one addition: a second family. The first
ServiceCIDR, `kubernetes`, names the ranges from which this server allocates cluster IPs.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.registry.metadata import beyond_metadata
from keepclose.apiserver.registry.service_allocation import (
    Ranges,
    Reservation,
    allocate_for_create,
    allocate_for_update,
    held_addresses,
    held_ports,
)
from keepclose.apiserver.registry.strategy import ObjectWrite, PlainStrategy, read_as
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.status_errors import invalid_object
from keepclose.model.addresses import cidr_errors, family_of
from keepclose.model.field_errors import FieldError, invalid, required
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import IMMUTABLE
from keepclose.model.service.defaults import default_families, default_service, hide_on_read
from keepclose.model.service.strategy import (
    normalize_cluster_ips,
    patch_allocated_values,
    prepare_service_for_create,
    prepare_service_for_update,
    service_status_warnings,
    service_warnings,
)
from keepclose.model.service.types import Service
from keepclose.model.service.validation import (
    validate_service,
    validate_service_status_update,
    validate_service_update,
)

DEFAULT_NAME: Final = "kubernetes"
_CIDRS: Final = "spec.cidrs"


class ServiceStrategy(PlainStrategy):
    """Strategy of Services; owns the ranges that all Services share."""

    allows_create_on_update = True
    has_status = True
    restores = True
    returns_deleted = True

    def __init__(self, resource: Resource, ranges: Ranges) -> None:
        """Allocate from the given ranges."""
        super().__init__(resource)
        self.ranges = ranges

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set what a client may leave out."""
        write.change(default_service(write.read_new(Service)))

    def prepare_create(self, write: ObjectWrite) -> None:
        """Allocate; raises a StatusError when a range refuses."""
        service = normalize_cluster_ips(write.read_new(Service))
        service = self._with_families(service, None, write.gates)
        reservation = Reservation(self.ranges, dry_run=write.dry_run)
        service = allocate_for_create(service, reservation)
        write.reservation = reservation
        write.change(prepare_service_for_create(service, gates=write.gates))
        write.new["status"] = {"loadBalancer": {}}

    def prepare_update(self, write: ObjectWrite) -> None:
        """Keep what was allocated, allocate what is new; or change the status."""
        if write.subresource == "status":
            # NB: defaults followed the type that the client sent, although it is not kept.
            write.keep_all_but_status()
        else:
            write.keep_status()
            stored = _read_stored(write)
            service = patch_allocated_values(write.read_new(Service), stored)
            service = normalize_cluster_ips(service, stored)
            service = self._with_families(service, stored, write.gates)
            reservation = Reservation(self.ranges, dry_run=write.dry_run)
            service = allocate_for_update(service, stored, reservation)
            write.reservation = reservation
            write.change(prepare_service_for_update(service, stored, gates=write.gates))
        write.new.setdefault("status", {}).setdefault("loadBalancer", {})

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the Service."""
        service, gates = write.read_new(Service), write.gates
        if write.is_create:
            return beyond_metadata(validate_service(service, gates=gates))
        return beyond_metadata(validate_service_update(service, _read_stored(write), gates=gates))

    def status_causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of a load balancer's addresses."""
        service, stored = write.read_new(Service), write.read_old(Service)
        return beyond_metadata(validate_service_status_update(service, stored, gates=write.gates))

    def on_read(self, write: ObjectWrite) -> None:
        """Hide the internal traffic policy of an ExternalName Service: it has no such traffic.

        Its clusterIP is shown in the list too, where a change of type has left one behind.
        """
        write.change(hide_on_read(normalize_cluster_ips(write.read_new(Service))))

    def warnings(self, write: ObjectWrite) -> list[str]:
        """Return the warnings for the client of an accepted write."""
        return service_warnings(write.read_new(Service))

    def status_warnings(self, write: ObjectWrite) -> list[str]:
        """Return the warnings for the client that reports a load balancer."""
        return service_status_warnings(write.read_new(Service))

    def settle(self, write: ObjectWrite, *, stored: bool) -> None:
        """Keep what was allocated for this write, or release it."""
        reservation, write.reservation = write.reservation, None
        if reservation is not None:
            reservation.settle(stored=stored)

    def restore(self, stored: JsonObject) -> None:
        """Allocate what a stored Service holds; values outside the ranges are ignored."""
        service = read_as(Service, stored)
        reservation = Reservation(self.ranges)
        for address in held_addresses(service):
            for address_range in self.ranges.addresses:
                address_range.allocate(address)
        for port in held_ports(service):
            reservation.allocate_port(port)

    def remove(self, old: JsonObject) -> None:
        """Release what a deleted Service held."""
        service = read_as(Service, old)
        for address in held_addresses(service):
            self.ranges.release_address(address)
        for port in held_ports(service):
            self.ranges.ports.release(port)

    def _with_families(self, service: Service, old: Service | None, gates: FeatureGates) -> Service:
        with_families = default_families(
            service,
            cluster_families=self.ranges.families,
            strict=gates.on(Gate.STRICT_IP_CIDR_VALIDATION),
            old=old,
        )
        if isinstance(with_families, list):
            raise invalid_object("Service", "", service.metadata.name, with_families)
        return with_families


class ServiceCIDRStrategy(PlainStrategy):
    """Strategy of ServiceCIDRs."""

    has_status = True
    kept_by_status_updates = ("labels", "annotations", "finalizers", "ownerReferences")

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the ranges, or of their update."""
        cidrs: list[str] = (write.new.get("spec") or {}).get("cidrs") or []
        if write.is_create:
            return _range_causes(cidrs)
        before: list[str] = (write.old.get("spec") or {}).get("cidrs") or []
        if len(cidrs) == len(before):
            return [
                invalid(f"{_CIDRS}[{index}]", cidr, IMMUTABLE)
                for index, (cidr, stored) in enumerate(zip(cidrs, before, strict=True))
                if cidr != stored
            ]
        if len(before) == 1 and len(cidrs) == 2:
            causes = _range_causes(cidrs)
            if cidrs[0] != before[0]:
                causes.insert(0, invalid(f"{_CIDRS}[0]", cidrs[0], IMMUTABLE))
            return causes
        return [invalid(_CIDRS, cidrs, IMMUTABLE)]


def default_service_cidr(cidrs: tuple[str, ...], *, now: str) -> JsonObject:
    """Return the ServiceCIDR that names the ranges of the cluster; it is ready from the start."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": DEFAULT_NAME},
        "spec": {"cidrs": list(cidrs)},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "lastTransitionTime": now,
                    "reason": "",
                    "message": "Kubernetes default Service CIDR is ready",
                }
            ]
        },
    }


def _read_stored(write: ObjectWrite) -> Service:
    """Return the stored Service as readers see it."""
    return hide_on_read(normalize_cluster_ips(write.read_old(Service)))


def _range_causes(cidrs: list[str]) -> list[FieldError]:
    if not cidrs:
        return [required(_CIDRS, "at least one CIDR required")]
    if len(cidrs) > 2:
        return [invalid(_CIDRS, {"CIDRs": cidrs}, "may only hold up to 2 values")]
    causes: list[FieldError] = []
    for index, cidr in enumerate(cidrs):
        causes += cidr_errors(f"{_CIDRS}[{index}]", cidr, strict=True)
    families = [] if causes else [family_of(cidr.partition("/")[0]) for cidr in cidrs]
    if len(families) == 2 and families[0] == families[1] is not None:
        detail = (
            "may specify no more than one IP for each IP family, "
            "i.e 192.168.0.0/24 and 2001:db8::/64"
        )
        causes.append(invalid(_CIDRS, cidrs, detail))
    return causes
