"""Rules for what may change when a Service, or its status, is updated.

A Service keeps its primary address and family for life, because clients remember them; a second
one may come and, said explicitly, go. Traffic policies, traffic distribution, affinity, selector,
ports and annotations may change at any time. Causes are listed; nothing is changed.
"""

from __future__ import annotations

from keepclose.model.field_errors import Cause, forbidden, invalid
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.metadata import IMMUTABLE, validate_metadata_update
from keepclose.model.service.network_validation import (
    SINGLE_STACK,
    has_no_address,
    validate_load_balancer_status,
)
from keepclose.model.service.types import Service
from keepclose.model.service.validation import load_balancer_class_causes, validate_service

_MAY_NOT_CHANGE = "may not change once set"


def validate_service_update(new: Service, old: Service, *, gates: FeatureGates) -> list[Cause]:
    """Return what is wrong with an update: what it changes, then what the new Service says."""
    causes = validate_metadata_update(new.metadata, old.metadata)
    if "ExternalName" not in (new.spec.type, old.spec.type):
        causes += _cluster_ip_causes(new, old)
        causes += _family_causes(new, old)
    causes += _load_balancer_class_causes(new, old)
    causes += _health_check_causes(new, old)
    causes += validate_service(new, gates=gates, old=old)
    return causes


def validate_service_status_update(
    new: Service, old: Service, *, gates: FeatureGates
) -> list[Cause]:
    """Return what is wrong with an update of the status; conditions are nobody's business here."""
    return validate_metadata_update(new.metadata, old.metadata) + validate_load_balancer_status(
        new.status.load_balancer,
        service_type=new.spec.type,
        strict=gates.on(Gate.STRICT_IP_CIDR_VALIDATION),
        old=old.status.load_balancer,
    )


def _cluster_ip_causes(new: Service, old: Service) -> list[Cause]:
    if has_no_address(new) and has_no_address(old):
        return []
    values, before = new.spec.cluster_ips, old.spec.cluster_ips
    field = "spec.clusterIPs"
    if len(values) == len(before):
        return [
            invalid(f"{field}[{place}]", values, _MAY_NOT_CHANGE)
            for place, (value, was) in enumerate(zip(values, before, strict=True))
            if value != was
        ]
    causes: list[Cause] = []
    if not values:
        causes.append(invalid(f"{field}[0]", None, "primary clusterIP can not be unset"))
    elif before and values[0] != before[0]:
        causes.append(invalid(f"{field}[0]", values, _MAY_NOT_CHANGE))
    if len(before) > len(values) == 1:
        causes += _release_causes(new.spec.ip_family_policy, "clusterIP")
    return causes


def _family_causes(new: Service, old: Service) -> list[Cause]:
    # Headless Services have no address that a family could belong to, so theirs are free.
    if has_no_address(new) or has_no_address(old):
        return []
    values, before = new.spec.ip_families, old.spec.ip_families
    field = "spec.ipFamilies[0]"
    if len(values) == len(before):
        # NB: the first place is named whichever of the two has changed, and clients know it so.
        return [
            invalid(field, values, _MAY_NOT_CHANGE)
            for value, was in zip(values, before, strict=True)
            if value != was
        ]
    causes: list[Cause] = []
    if len(values) < len(before) and not new.spec.cluster_ips:
        # NB: a list that is not there is null in Kubernetes' words, not empty.
        causes.append(invalid(field, values or None, "primary ipFamily can not be unset"))
    if values and before and values[0] != before[0]:
        # NB: here the addresses are shown, not the families.
        causes.append(invalid(field, new.spec.cluster_ips, _MAY_NOT_CHANGE))
    if len(before) > len(values) == 1:
        causes += _release_causes(new.spec.ip_family_policy, "ipFamily")
    return causes


def _release_causes(policy: str | None, noun: str) -> list[Cause]:
    if policy == SINGLE_STACK:
        return []
    detail = f"must be set to 'SingleStack' when releasing the secondary {noun}"
    return [invalid("spec.ipFamilyPolicy", policy, detail)]


def _load_balancer_class_causes(new: Service, old: Service) -> list[Cause]:
    wanted = new.spec.load_balancer_class
    causes: list[Cause] = []
    is_same = wanted == old.spec.load_balancer_class
    if new.spec.type == old.spec.type == "LoadBalancer" and not is_same:
        causes.append(invalid("spec.loadBalancerClass", wanted, _MAY_NOT_CHANGE))
    # NB: the class itself is judged here and once more with the rest.
    return causes + load_balancer_class_causes(new.spec)


def _health_check_causes(new: Service, old: Service) -> list[Cause]:
    if not (new.needs_health_check and old.needs_health_check):
        return []
    if new.spec.health_check_node_port == old.spec.health_check_node_port:
        return []
    return [forbidden("spec.healthCheckNodePort", IMMUTABLE)]
