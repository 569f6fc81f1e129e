"""Rules for what may change when a Service, or its status, is updated.

A Service keeps its primary address and family for life, because clients remember them; a second
one may come and, said explicitly, go. Traffic policies, traffic distribution, affinity, selector,
ports and annotations may change at any time. Causes are listed; nothing is changed.
"""

from __future__ import annotations

from keepclose.model.causes import Cause, forbidden, invalid
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.metadata import IMMUTABLE, validate_metadata_update
from keepclose.model.service import Service
from keepclose.model.service_network_rules import SINGLE_STACK, validate_load_balancer_status
from keepclose.model.service_rules import validate_service

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
    if new.is_headless and old.is_headless:
        return []
    return _change_causes(
        new.spec.cluster_ips,
        old.spec.cluster_ips,
        field="spec.clusterIPs",
        noun="clusterIP",
        policy=new.spec.ip_family_policy,
    )


def _family_causes(new: Service, old: Service) -> list[Cause]:
    # Headless Services have no address that a family could belong to, so theirs are free.
    if new.is_headless or old.is_headless:
        return []
    return _change_causes(
        new.spec.ip_families,
        old.spec.ip_families,
        field="spec.ipFamilies",
        noun="ipFamily",
        policy=new.spec.ip_family_policy,
    )


def _change_causes(
    new: tuple[str, ...], old: tuple[str, ...], *, field: str, noun: str, policy: str | None
) -> list[Cause]:
    """Return the causes when a list of at most two, the first of them fixed, was changed."""
    if len(new) == len(old):
        return [
            invalid(f"{field}[{index}]", new, _MAY_NOT_CHANGE)
            for index, (value, before) in enumerate(zip(new, old, strict=True))
            if value != before
        ]
    causes: list[Cause] = []
    if not new:
        causes.append(invalid(f"{field}[0]", new, f"primary {noun} can not be unset"))
    elif old and new[0] != old[0]:
        causes.append(invalid(f"{field}[0]", new, _MAY_NOT_CHANGE))
    if len(old) > len(new) == 1 and policy != SINGLE_STACK:
        detail = f"must be set to 'SingleStack' when releasing the secondary {noun}"
        causes.append(invalid("spec.ipFamilyPolicy", policy, detail))
    return causes


def _load_balancer_class_causes(new: Service, old: Service) -> list[Cause]:
    if not new.spec.type == old.spec.type == "LoadBalancer":
        return []
    wanted = new.spec.load_balancer_class
    if wanted == old.spec.load_balancer_class:
        return []
    return [invalid("spec.loadBalancerClass", wanted, _MAY_NOT_CHANGE)]


def _health_check_causes(new: Service, old: Service) -> list[Cause]:
    if not (new.needs_health_check and old.needs_health_check):
        return []
    if new.spec.health_check_node_port == old.spec.health_check_node_port:
        return []
    return [forbidden("spec.healthCheckNodePort", IMMUTABLE)]
