"""Validation of the traffic policies, trafficDistribution and topologyKeys of a Service.

Also of the annotations that replace these fields. A gate over a *value* acts here: with the gate
off the value must not be newly used, but an update that keeps a stored value is accepted, so that
a rollback never locks a Service (KEP-3015 requires a graceful fallback). A gate over a whole
*field* acts earlier, by dropping the field.
"""

from __future__ import annotations

from typing import Final

from keepclose.model.field_errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
    too_many,
)
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.metadata_validation import port_number, qualified_name
from keepclose.model.service.types import Service, ServiceSpec
from keepclose.model.well_known import (
    EXTERNAL_POLICY_ANNOTATION,
    INTERNAL_POLICY_ANNOTATION,
    PREFER_CLOSE,
    PREFER_SAME_NODE,
    PREFER_SAME_ZONE,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)

CLUSTER_POLICY: Final = "Cluster"
LOCAL_POLICY: Final = "Local"
PREFER_LOCAL_POLICY: Final = "PreferLocal"
ANY_TOPOLOGY_KEY: Final = "*"
TOPOLOGY_KEYS_MAX: Final = 16
CLUSTER_IP_TYPES: Final = frozenset({"ClusterIP", "NodePort", "LoadBalancer"})

_POLICIES = (CLUSTER_POLICY, LOCAL_POLICY)
_POLICIES_WITH_PREFERENCE = (CLUSTER_POLICY, LOCAL_POLICY, PREFER_LOCAL_POLICY)


def validate_traffic_annotations(
    service: Service, *, gates: FeatureGates, old: Service | None = None
) -> list[FieldError]:
    """Return the errors of the annotations about traffic.

    The two topology annotations accept any value, but must agree if both are set. The policy
    annotations accept PreferLocal without a gate: they exist for clusters whose API server rejects
    it in the field.
    """
    annotations = service.metadata.annotations
    errors: list[FieldError] = []
    mode = annotations.get(TOPOLOGY_MODE_ANNOTATION)
    hints = annotations.get(TOPOLOGY_HINTS_ANNOTATION)
    if mode is not None and hints is not None and mode != hints:
        errors.append(
            invalid(
                _annotation_field(TOPOLOGY_MODE_ANNOTATION),
                mode,
                f"must match annotations[{TOPOLOGY_HINTS_ANNOTATION}] when both are specified",
            )
        )
    errors += validate_traffic_distribution(
        annotations.get(TRAFFIC_DISTRIBUTION_ANNOTATION),
        field=_annotation_field(TRAFFIC_DISTRIBUTION_ANNOTATION),
        gates=gates,
        old_value=old.metadata.annotations.get(TRAFFIC_DISTRIBUTION_ANNOTATION) if old else None,
    )
    for key in (INTERNAL_POLICY_ANNOTATION, EXTERNAL_POLICY_ANNOTATION):
        policy = annotations.get(key)
        if policy is not None and policy not in _POLICIES_WITH_PREFERENCE:
            errors.append(not_supported(_annotation_field(key), policy, _POLICIES_WITH_PREFERENCE))
    return errors


def validate_traffic_distribution(
    value: str | None,
    *,
    field: str = "spec.trafficDistribution",
    gates: FeatureGates,
    old_value: str | None = None,
) -> list[FieldError]:
    """Return the errors of a traffic distribution; it may be absent, but not "".

    A value `<domain>/<name>` is valid if custom heuristics are on; names without a domain are
    reserved. The type of the Service does not matter.
    """
    if value is None or value == old_value:
        return []
    supported: tuple[str, ...] = (PREFER_CLOSE,)
    if gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION):
        supported = (PREFER_CLOSE, PREFER_SAME_ZONE, PREFER_SAME_NODE)
    if value in supported:
        return []
    if "/" in value and gates.on(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS):
        return [invalid(field, value, message) for message in qualified_name(value)]
    return [not_supported(field, value, supported)]


def validate_external_policy(
    service: Service, *, gates: FeatureGates, old: Service | None = None
) -> list[FieldError]:
    """Return the errors of externalTrafficPolicy and of the health-check port that it requires.

    Only Local requires the port: under PreferLocal every node can serve the traffic.
    """
    spec = service.spec
    field = "spec.externalTrafficPolicy"
    policy = spec.external_traffic_policy
    errors: list[FieldError] = []
    if not service.is_externally_accessible:
        if policy:
            errors.append(
                invalid(field, policy, "may only be set for externally-accessible services")
            )
    elif not policy:
        errors.append(required(field))
    else:
        errors += _policy_errors(
            field, policy, gates=gates, old_value=old.spec.external_traffic_policy if old else None
        )
    return errors + _health_check_errors(service)


def validate_internal_policy(
    service: Service, *, gates: FeatureGates, old: Service | None = None
) -> list[FieldError]:
    """Return the errors of internalTrafficPolicy.

    It may be absent for ExternalName, and for every type if its gate is off.
    """
    spec = service.spec
    field = "spec.internalTrafficPolicy"
    if spec.internal_traffic_policy is None:
        gate_on = gates.on(Gate.SERVICE_INTERNAL_TRAFFIC_POLICY)
        return [required(field)] if gate_on and spec.type in CLUSTER_IP_TYPES else []
    return _policy_errors(
        field,
        spec.internal_traffic_policy,
        gates=gates,
        old_value=old.spec.internal_traffic_policy if old else None,
    )


def validate_topology_keys(spec: ServiceSpec) -> list[FieldError]:
    """Return the errors of the ordered topology keys of a Service; there may be none.

    PreferLocal may be combined with them: without a local endpoint the keys still select.
    """
    keys = spec.topology_keys
    if not keys:
        return []
    field = "spec.topologyKeys"
    errors: list[FieldError] = []
    if spec.external_traffic_policy == LOCAL_POLICY:
        errors.append(
            forbidden_field(field, "may not be specified when `externalTrafficPolicy=Local`")
        )
    if len(keys) > TOPOLOGY_KEYS_MAX:
        errors.append(too_many(field, len(keys), TOPOLOGY_KEYS_MAX))
    seen: set[str] = set()
    for index, key in enumerate(keys):
        key_field = f"{field}[{index}]"
        if key in seen:
            errors.append(duplicate(key_field, key))
        seen.add(key)
        if key != ANY_TOPOLOGY_KEY:
            errors += [invalid(key_field, key, message) for message in qualified_name(key)]
        elif index != len(keys) - 1:
            errors.append(invalid(key_field, key, '"*" must be the last value specified'))
    return errors


def _policy_errors(
    field: str, policy: str, *, gates: FeatureGates, old_value: str | None
) -> list[FieldError]:
    supported = (
        _POLICIES_WITH_PREFERENCE if gates.on(Gate.PREFER_LOCAL_TRAFFIC_POLICY) else _POLICIES
    )
    unchanged_preference = policy == old_value == PREFER_LOCAL_POLICY
    if policy in supported or unchanged_preference:
        return []
    return [not_supported(field, policy, supported)]


def _health_check_errors(service: Service) -> list[FieldError]:
    field = "spec.healthCheckNodePort"
    port = service.spec.health_check_node_port
    if not service.needs_health_check:
        if port == 0:
            return []
        return [
            invalid(
                field,
                port,
                "may only be set when `type` is 'LoadBalancer' and "
                "`externalTrafficPolicy` is 'Local'",
            )
        ]
    if port == 0:
        return [required(field)]
    return [invalid(field, port, message) for message in port_number(port)]


def _annotation_field(key: str) -> str:
    return f"metadata.annotations[{key}]"
