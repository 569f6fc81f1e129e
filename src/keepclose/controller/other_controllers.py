"""Finds out, before any work, whether another controller keeps the same slices.

A lease says only that a kube-controller-manager runs: one whose EndpointSlice controller is off
renews the same lease. So where there is such a lease, a slice is created that its owner would
remove: one without endpoints and with a port that the Service does not have, under the label of the
controllers that keep slices. It is of no consequence for traffic, and any of these controllers, the
built-in one or ours, deletes it or makes another of it within seconds. If none does, it is deleted
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
from keepclose.slices.slice_metadata import address_types
from keepclose.slices.trackers import instant

_LEASE_NAMESPACE: Final = "kube-system"
_LEASE_NAME: Final = "kube-controller-manager"
PROBE_PORT: Final = "keepclose-probe"
FIX: Final = (
    "start kube-controller-manager with "
    "--controllers=*,-endpointslice-controller,-endpointslice-mirroring-controller, "
    "or run keepclose beside it with --mode=webhook; --force starts all the same"
)
# The built-in controller looks at changed slices after a second; the rest is for a busy one.
_PATIENCE_S: Final = 6.0
_ASK_EVERY_S: Final = 0.25
_LONG_DEAD_S: Final = 3600.0
_log = structlog.get_logger(__name__)


class RivalError(ConfigError):
    """Another controller keeps the slices of this cluster."""


async def refuse_rival(
    client: Client,
    caches: Caches,
    *,
    managed_by: str,
    clock: Clock,
    patience_s: float = _PATIENCE_S,
) -> None:
    """Raise RivalError when another controller keeps the slices; the caches must be complete.

    What cannot be found out is no reason to refuse: a fight is noticed later too.
    """
    try:
        lease = await client.get(LEASES, _LEASE_NAME, namespace=_LEASE_NAMESPACE)
        if _is_dead(lease, now=clock.now()):
            return
        service = _choose_service(caches)
        if service is None:
            return
        is_kept = await _is_kept(
            client, service, managed_by=managed_by, clock=clock, patience_s=patience_s
        )
    except NotFound:
        return
    except KubeError as error:
        _log.info("cannot find out whether another controller keeps slices", error=str(error))
        return
    if is_kept:
        raise RivalError(
            "another controller keeps the EndpointSlices of this cluster, probably that of "
            f"kube-controller-manager {lease.spec.holder_identity}: it took away a slice that was "
            f"made for Service {service.key} to find out",
            fix=FIX,
        )


async def _is_kept(
    client: Client, service: Service, *, managed_by: str, clock: Clock, patience_s: float
) -> bool:
    """Return whether a slice that no controller wants is taken away or changed."""
    made = await client.create(ENDPOINT_SLICES, make_probe(service, managed_by=managed_by))
    meta = made.metadata
    end = clock.monotonic() + patience_s
    try:
        while clock.monotonic() < end:
            await clock.sleep(_ASK_EVERY_S)
            found = await client.get(ENDPOINT_SLICES, meta.name, namespace=meta.namespace)
            if found.metadata.generation != meta.generation:
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
        # The first sync of the Service finds it, as any slice that is not wanted.
        _log.info("the slice that was made to find out stays", error=str(error))
    return False


def make_probe(service: Service, *, managed_by: str) -> EndpointSlice:
    """Return a slice of the Service that has no effect, and that no controller would leave."""
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
    """Return a Service whose slices a controller would keep; the same every time."""
    candidates = [
        one
        for one in caches.services.all()
        if one.spec.selector is not None
        and one.spec.type != "ExternalName"
        and one.metadata.deletion_timestamp is None
    ]
    return min(candidates, key=lambda one: one.key, default=None)


def _is_dead(lease: Lease, *, now: float) -> bool:
    """Return whether no process can hold the lease, even where clocks differ."""
    renewed = instant(lease.spec.renew_time)
    if not lease.spec.holder_identity or renewed is None:
        return True
    return now - renewed / 1e9 > _LONG_DEAD_S
