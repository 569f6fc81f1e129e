"""The objects that the slices of one Service are planned from, and the names of planned slices.

Pods come from the input, or from the slices where the input was dumped without Pods. Slices of
other controllers stay as they are: nodes use their endpoints, and no plan touches them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from keepclose.advise.inventory import Inventory, adopt, pods_in_slices
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.well_known import MANAGED_BY_LABEL
from keepclose.model.workload import Pod
from keepclose.routing.reasons import Reason, ReasonCode

DUMP_COMMAND = "kubectl get nodes,pods,services,endpointslices -A -o yaml > cluster.yaml"
"""The command that dumps all objects that a resolution needs."""
_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class ServiceObjects(msgspec.Struct, frozen=True):
    """The pods that a Service selects, and its slices."""

    pods: tuple[Pod, ...]
    ours: tuple[EndpointSlice, ...]
    """The slices that the controller manages."""
    foreign: tuple[EndpointSlice, ...]
    """The slices that others manage."""
    missing: tuple[Reason, ...] = ()
    """Why endpoints have no Pods."""

    def name_planned(self, slices: Iterable[EndpointSlice]) -> tuple[EndpointSlice, ...]:
        """Return the planned slices, with names for new ones, and those of others."""
        present = (*self.ours, *self.foreign)
        taken = [endpoint_slice.metadata.name for endpoint_slice in present]
        return name_slices(slices, taken=taken) + self.foreign


class PodIndex:
    """The pods of an inventory by label, so that those of a Service are found without a scan."""

    def __init__(self, inventory: Inventory) -> None:
        """Index all pods."""
        self._inventory = inventory
        self._by_label: dict[tuple[str, str, str], list[Pod]] = {}
        for namespace, pods in inventory.pods.items():
            for pod in pods:
                for key, value in pod.metadata.labels.items():
                    self._by_label.setdefault((namespace, key, value), []).append(pod)

    def pods_of(self, service: Service) -> list[Pod]:
        """Return the pods that the Service selects, in the order of the input."""
        selector = service.spec.selector
        if not selector:
            return self._inventory.pods_of(service)
        namespace = service.metadata.namespace
        fewest = min(
            (self._by_label.get((namespace, *pair), []) for pair in selector.items()), key=len
        )
        return [pod for pod in fewest if matches(selector, pod.metadata.labels)]


def gather_objects(
    service: Service,
    inventory: Inventory,
    managed_by: str,
    pods: Sequence[Pod] | None = None,
) -> ServiceObjects:
    """Return the objects of a Service with a selector; `pods` are those that it selects, if known.

    An input without any Pod was dumped without Pods. Among other Pods, those of this Service may be
    deleted, so its slices count as stale; the reason says so.
    """
    present = inventory.slices.get(service.key, ())
    ours = tuple(adopt(each, service) for each in present if _manager(each) == managed_by)
    foreign = tuple(each for each in present if _manager(each) != managed_by)
    found = inventory.pods_of(service) if pods is None else pods
    missing: tuple[Reason, ...] = ()
    if not found and (slice_pods := pods_in_slices(service, ours)):
        in_namespace = bool(inventory.pods.get(service.metadata.namespace))
        missing = (_pods_missing(service, inventory, len(slice_pods)),)
        if not in_namespace:
            found = slice_pods
    return ServiceObjects(tuple(found), ours, foreign, missing)


def name_slices(
    slices: Iterable[EndpointSlice], *, taken: Iterable[str]
) -> tuple[EndpointSlice, ...]:
    """Return the slices with names for new ones, as an API server would generate them.

    The names depend on the position of a slice alone, so that the same input gives the same output.
    """
    used = set(taken)
    named: list[EndpointSlice] = []
    for endpoint_slice in slices:
        meta = endpoint_slice.metadata
        if not meta.name:
            number = 0
            while True:
                name = meta.generate_name + _suffix(f"{meta.generate_name}{len(named)}/{number}")
                if name not in used:
                    break
                number += 1
            used.add(name)
            meta = replace(meta, name=name)
        if any(not owner.uid for owner in meta.owner_references):
            # The Service has no uid, and an owner reference without a uid would be invalid.
            meta = replace(meta, owner_references=())
        if meta is not endpoint_slice.metadata:
            endpoint_slice = replace(endpoint_slice, metadata=meta)  # noqa: PLW2901 (the same slice, named)
        named.append(endpoint_slice)
    return tuple(named)


def _manager(endpoint_slice: EndpointSlice) -> str:
    return endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL, "")


def _pods_missing(service: Service, inventory: Inventory, count: int) -> Reason:
    counted = f"{count} endpoint" + ("" if count == 1 else "s")
    namespace = service.metadata.namespace
    if not inventory.pods.get(namespace):
        where = f" of namespace {namespace}" if inventory.pods else ""
        were = "was" if count == 1 else "were"
        message = f"the input has no Pods{where}, so {counted} {were} taken from the EndpointSlices"
    else:
        message = (
            f"the EndpointSlices have {counted} and the input has none of their Pods, "
            "so they count as deleted"
        )
    return Reason(
        ReasonCode.PODS_MISSING, message, subject=f"Service {service.key}", fix=DUMP_COMMAND
    )


def _suffix(seed: str) -> str:
    digest = hashlib.sha256(seed.encode()).digest()
    return "".join(_NAME_ALPHABET[byte % len(_NAME_ALPHABET)] for byte in digest[:5])
