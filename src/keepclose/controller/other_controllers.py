"""Detects, before the first sync, whether another controller manages the same EndpointSlices.

The lease of kube-controller-manager proves only that the process runs: it renews the lease also
when its EndpointSlice controller is disabled. So where that lease is held, keepclose creates a
probe: a slice without endpoints, with a port that the Service does not have, under the label of the
controller that manages slices. The probe has no effect on traffic. Any such controller, the
built-in one or another keepclose, deletes or changes it within seconds. If none does, it is deleted
here.
"""

from __future__ import annotations

from typing import Final

import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ConfigError, KubeError, NotFound
from keepclose.kube.requests import ENDPOINT_SLICES, LEASES
from keepclose.model.core_kinds import Lease
from keepclose.model.endpointslice.types import EndpointPort, EndpointSlice
from keepclose.model.meta import ObjectMeta, controller_reference
from keepclose.model.service.types import Service
from keepclose.model.well_known import MANAGED_BY_LABEL, SERVICE_NAME_LABEL
from keepclose.reconcile.caches import Caches
from keepclose.slices.changes import parse_timestamp
from keepclose.slices.slice_metadata import address_types

_LEASE_NAMESPACE: Final = "kube-system"
_LEASE_NAME: Final = "kube-controller-manager"
PROBE_PORT: Final = "keepclose-probe"
OTHER_CONTROLLER_FIX: Final = (
    "start kube-controller-manager with "
    "--controllers=*,-endpointslice-controller,-endpointslice-mirroring-controller, "
    "or run keepclose beside it with --mode=webhook; --force starts all the same"
)
# The built-in controller syncs changed slices after a second; the rest is for a busy one.
_PROBE_S: Final = 6.0
_POLL_S: Final = 0.25
_ABANDONED_S: Final = 3600.0
_log = structlog.get_logger(__name__)


class OtherControllerError(ConfigError):
    """Another controller manages the EndpointSlices of this cluster."""


async def refuse_other_controller(
    client: Client,
    caches: Caches,
    *,
    managed_by: str,
    clock: Clock,
    patience_s: float = _PROBE_S,
) -> None:
    """Raise OtherControllerError when another controller manages slices; caches must be complete.

    A failed check does not raise: syncs detect contention too.
    """
    try:
        lease = await client.get(LEASES, _LEASE_NAME, namespace=_LEASE_NAMESPACE)
        if _is_abandoned(lease, now=clock.now()):
            return
        service = _choose_service(caches)
        if service is None:
            return
        is_managed = await _is_managed(
            client, service, managed_by=managed_by, clock=clock, patience_s=patience_s
        )
    except NotFound:
        return
    except KubeError as error:
        _log.info("check for other controllers failed", error=str(error))
        return
    if is_managed:
        raise OtherControllerError(
            "another controller manages the EndpointSlices of this cluster, probably that of "
            f"kube-controller-manager {lease.spec.holder_identity}: it removed a slice that was "
            f"created for Service {service.key} as a probe",
            fix=OTHER_CONTROLLER_FIX,
        )


async def _is_managed(
    client: Client, service: Service, *, managed_by: str, clock: Clock, patience_s: float
) -> bool:
    """Return whether another controller deletes or changes a probe."""
    probe = await client.create(ENDPOINT_SLICES, make_probe(service, managed_by=managed_by))
    meta = probe.metadata
    end = clock.monotonic() + patience_s
    try:
        while clock.monotonic() < end:
            await clock.sleep(_POLL_S)
            current = await client.get(ENDPOINT_SLICES, meta.name, namespace=meta.namespace)
            if current.metadata.generation != meta.generation:
                return True
    except NotFound:
        return True
    try:
        await client.delete(
            ENDPOINT_SLICES,
            meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
    except KubeError as error:
        # The first sync of the Service deletes it, as any slice that is not desired.
        _log.info("probe not deleted", slice=str(meta.key), error=str(error))
    return False


def make_probe(service: Service, *, managed_by: str) -> EndpointSlice:
    """Return a slice of the Service without effect on traffic, which a controller would remove."""
    meta = service.metadata
    return EndpointSlice(
        metadata=ObjectMeta(
            generate_name=f"{meta.name[:40]}-probe-",
            namespace=meta.namespace,
            labels={SERVICE_NAME_LABEL: meta.name, MANAGED_BY_LABEL: managed_by},
            owner_references=(controller_reference("Service", meta),),
        ),
        address_type=address_types(service)[0],
        ports=(EndpointPort(name=PROBE_PORT, protocol="TCP", port=9),),
    )


def _choose_service(caches: Caches) -> Service | None:
    """Return a Service whose slices a controller manages; the same one every time."""
    candidates = [
        service
        for service in caches.services.all()
        if service.spec.selector is not None
        and service.spec.type != "ExternalName"
        and service.metadata.deletion_timestamp is None
    ]
    return min(candidates, key=lambda service: service.key, default=None)


def _is_abandoned(lease: Lease, *, now: float) -> bool:
    """Return whether no process can hold the lease, even with clock skew."""
    renewed = parse_timestamp(lease.spec.renew_time)
    if not lease.spec.holder_identity or renewed is None:
        return True
    return now - renewed / 1e9 > _ABANDONED_S
