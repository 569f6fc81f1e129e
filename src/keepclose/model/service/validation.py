"""Validation of a Service as a whole, and of its updates, in the order of kube-apiserver.

One function finds the errors of a create and of an update; on update the stored Service is passed,
so that rules which became stricter do not lock what was once accepted. The Service must be
defaulted before. Nothing is changed and nothing raises; all errors are listed, not only the first.

A Service keeps its primary address and family for life, because clients remember them; a secondary
one may be added and, if requested explicitly, released. Traffic policies, traffic distribution,
affinity, selector, ports and annotations may change at any time.
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
)
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.metadata_validation import (
    IMMUTABLE,
    NameCheck,
    dns1035_label,
    dns1123_label,
    dns1123_subdomain,
    port_name,
    port_number,
    qualified_name,
    validate_labels,
    validate_metadata,
    validate_metadata_update,
)
from keepclose.model.service.network_validation import (
    NO_CLUSTER_IP,
    ONLY_FOR_LOAD_BALANCER,
    SINGLE_STACK,
    has_no_address,
    validate_cluster_addresses,
    validate_external_ips,
    validate_load_balancer_status,
    validate_source_ranges,
)
from keepclose.model.service.policy_validation import (
    validate_external_policy,
    validate_internal_policy,
    validate_topology_keys,
    validate_traffic_annotations,
    validate_traffic_distribution,
)
from keepclose.model.service.types import Service, ServicePort, ServiceSpec

SERVICE_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
SESSION_AFFINITIES: Final = ("ClientIP", "None")
AFFINITY_TIMEOUT_MAX: Final = 86400

_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_NOT_FOR_EXTERNAL_NAME = "may not be set for ExternalName services"
_MAY_NOT_CHANGE = "may not change once set"


def validate_service(
    service: Service, *, gates: FeatureGates, old: Service | None = None
) -> list[FieldError]:
    """Return the errors of a Service; on update `old` is the stored one.

    The empty list means that the Service is valid. `validate_service_update` checks what must not
    *change* on an update, and calls this function too.
    """
    spec = service.spec
    strict = gates.on(Gate.STRICT_IP_CIDR_VALIDATION)
    errors = validate_metadata(
        service.metadata, namespaced=True, name_check=_choose_name_check(gates, old=old)
    )
    errors += validate_traffic_annotations(service, gates=gates, old=old)
    if not spec.ports and not has_no_address(service) and spec.type != "ExternalName":
        errors.append(required("spec.ports"))
    errors += _type_errors(service)
    errors += _port_errors(spec.ports)
    if spec.selector is not None:
        errors += validate_labels(spec.selector, "spec.selector")
    errors += _affinity_errors(spec)
    errors += validate_cluster_addresses(service, strict=strict, old=old)
    errors += validate_external_ips(service, strict=strict, old=old)
    if not spec.type:
        errors.append(required("spec.type"))
    elif spec.type not in SERVICE_TYPES:
        errors.append(not_supported("spec.type", spec.type, SERVICE_TYPES))
    errors += _port_conflict_errors(spec)
    errors += validate_source_ranges(service, strict=strict, old=old)
    errors += _load_balancer_errors(spec)
    errors += validate_external_policy(service, gates=gates, old=old)
    errors += validate_internal_policy(service, gates=gates, old=old)
    errors += validate_traffic_distribution(
        spec.traffic_distribution,
        gates=gates,
        old_value=old.spec.traffic_distribution if old else None,
    )
    errors += validate_topology_keys(spec)
    return errors


def load_balancer_class_errors(spec: ServiceSpec) -> list[FieldError]:
    """Return the errors of loadBalancerClass; it may be absent."""
    field, value = "spec.loadBalancerClass", spec.load_balancer_class
    if value is None:
        return []
    if spec.type != "LoadBalancer":
        return [forbidden_field(field, ONLY_FOR_LOAD_BALANCER)]
    return [invalid(field, value, message) for message in qualified_name(value)]


def _choose_name_check(gates: FeatureGates, *, old: Service | None) -> NameCheck:
    if old is not None:
        return _accept_stored_name
    return dns1123_label if gates.on(Gate.RELAXED_SERVICE_NAME_VALIDATION) else dns1035_label


def _accept_stored_name(_name: str) -> list[str]:
    """Return no messages: a name is immutable, so it is checked only on create."""
    return []


def _type_errors(service: Service) -> list[FieldError]:
    spec = service.spec
    if spec.type in ("LoadBalancer", "NodePort") and has_no_address(service):
        detail = f"may not be set to 'None' for {spec.type} services"
        return [invalid("spec.clusterIPs[0]", NO_CLUSTER_IP, detail)]
    if spec.type != "ExternalName":
        return []
    errors: list[FieldError] = []
    if spec.cluster_ips:
        errors.append(forbidden_field("spec.clusterIPs", _NOT_FOR_EXTERNAL_NAME))
    if spec.ip_families:
        errors.append(forbidden_field("spec.ipFamilies", _NOT_FOR_EXTERNAL_NAME))
    if spec.ip_family_policy is not None:
        errors.append(forbidden_field("spec.ipFamilyPolicy", _NOT_FOR_EXTERNAL_NAME))
    name = spec.external_name.removesuffix(".")
    if not name:
        errors.append(required("spec.externalName"))
    else:
        errors += [
            invalid("spec.externalName", name, message) for message in dns1123_subdomain(name)
        ]
    return errors


def _port_errors(ports: tuple[ServicePort, ...]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        field = f"spec.ports[{index}]"
        if port.name:
            errors += [
                invalid(f"{field}.name", port.name, message) for message in dns1123_label(port.name)
            ]
            if port.name in seen:
                errors.append(duplicate(f"{field}.name", port.name))
            seen.add(port.name)
        elif len(ports) > 1:
            errors.append(required(f"{field}.name"))
        errors += [
            invalid(f"{field}.port", port.port, message) for message in port_number(port.port)
        ]
        if not port.protocol:
            errors.append(required(f"{field}.protocol"))
        elif port.protocol not in _PROTOCOLS:
            errors.append(not_supported(f"{field}.protocol", port.protocol, _PROTOCOLS))
        errors += _target_port_errors(f"{field}.targetPort", port.target_port)
        if port.app_protocol is not None:
            errors += [
                invalid(f"{field}.appProtocol", port.app_protocol, message)
                for message in qualified_name(port.app_protocol)
            ]
    return errors


def _target_port_errors(field: str, target: int | str | None) -> list[FieldError]:
    # An absent target port counts as the number 0, which is no valid port.
    value = 0 if target is None else target
    messages = port_name(value) if isinstance(value, str) else port_number(value)
    return [invalid(field, value, message) for message in messages]


def _affinity_errors(spec: ServiceSpec) -> list[FieldError]:
    affinity = spec.session_affinity
    field = "spec.sessionAffinityConfig"
    if not affinity:
        return [required("spec.sessionAffinity")]
    if affinity not in SESSION_AFFINITIES:
        return [not_supported("spec.sessionAffinity", affinity, SESSION_AFFINITIES)]
    config = spec.session_affinity_config
    if affinity == "None":
        if config is None:
            return []
        return [forbidden_field(field, "must not be set when session affinity is None")]
    needed = "when session affinity type is ClientIP"
    if config is None:
        return [required(field, needed)]
    if config.client_ip is None:
        return [required(f"{field}.clientIP", needed)]
    timeout = config.client_ip.timeout_seconds
    if timeout is None:
        return [required(f"{field}.clientIP.timeoutSeconds", needed)]
    if 0 < timeout <= AFFINITY_TIMEOUT_MAX:
        return []
    # NB: the text of kube-apiserver says "less than", yet the limit itself is valid.
    detail = f"must be greater than 0 and less than {AFFINITY_TIMEOUT_MAX}"
    return [invalid(f"{field}.clientIP.timeoutSeconds", timeout, detail)]


def _port_conflict_errors(spec: ServiceSpec) -> list[FieldError]:
    errors: list[FieldError] = []
    if spec.type == "ClusterIP":
        errors += [
            forbidden_field(
                f"spec.ports[{index}].nodePort", "may not be used when `type` is 'ClusterIP'"
            )
            for index, port in enumerate(spec.ports)
            if port.node_port != 0
        ]
    node_ports: set[tuple[str, int]] = set()
    for index, port in enumerate(spec.ports):
        if port.node_port == 0:
            continue
        if (port.protocol, port.node_port) in node_ports:
            errors.append(duplicate(f"spec.ports[{index}].nodePort", port.node_port))
        node_ports.add((port.protocol, port.node_port))
    ports: set[tuple[str, int]] = set()
    for index, port in enumerate(spec.ports):
        if (port.protocol, port.port) in ports:
            # NB: as in kube-apiserver, only the compared fields are set, under their names in Go.
            shown = {
                "Name": "",
                "Protocol": port.protocol,
                "AppProtocol": None,
                "Port": port.port,
                "TargetPort": 0,
                "NodePort": 0,
            }
            errors.append(duplicate(f"spec.ports[{index}]", shown))
        ports.add((port.protocol, port.port))
    return errors


def _load_balancer_errors(spec: ServiceSpec) -> list[FieldError]:
    errors: list[FieldError] = []
    if spec.type != "LoadBalancer" and spec.allocate_load_balancer_node_ports is not None:
        errors.append(forbidden_field("spec.allocateLoadBalancerNodePorts", ONLY_FOR_LOAD_BALANCER))
    return errors + load_balancer_class_errors(spec)


def validate_service_update(new: Service, old: Service, *, gates: FeatureGates) -> list[FieldError]:
    """Return the errors of an update: forbidden changes, then errors of the new Service."""
    errors = validate_metadata_update(new.metadata, old.metadata)
    if "ExternalName" not in (new.spec.type, old.spec.type):
        errors += _cluster_ip_change_errors(new, old)
        errors += _family_change_errors(new, old)
    errors += _class_change_errors(new, old)
    errors += _health_check_change_errors(new, old)
    errors += validate_service(new, gates=gates, old=old)
    return errors


def validate_service_status_update(
    new: Service, old: Service, *, gates: FeatureGates
) -> list[FieldError]:
    """Return the errors of an update of the status; conditions are not validated."""
    return validate_metadata_update(new.metadata, old.metadata) + validate_load_balancer_status(
        new.status.load_balancer,
        service_type=new.spec.type,
        strict=gates.on(Gate.STRICT_IP_CIDR_VALIDATION),
        old=old.status.load_balancer,
    )


def _cluster_ip_change_errors(new: Service, old: Service) -> list[FieldError]:
    if has_no_address(new) and has_no_address(old):
        return []
    values, before = new.spec.cluster_ips, old.spec.cluster_ips
    field = "spec.clusterIPs"
    if len(values) == len(before):
        return [
            invalid(f"{field}[{index}]", values, _MAY_NOT_CHANGE)
            for index, (value, old_value) in enumerate(zip(values, before, strict=True))
            if value != old_value
        ]
    errors: list[FieldError] = []
    if not values:
        errors.append(invalid(f"{field}[0]", None, "primary clusterIP can not be unset"))
    elif before and values[0] != before[0]:
        errors.append(invalid(f"{field}[0]", values, _MAY_NOT_CHANGE))
    if len(before) > len(values) == 1:
        errors += _release_errors(new.spec.ip_family_policy, "clusterIP")
    return errors


def _family_change_errors(new: Service, old: Service) -> list[FieldError]:
    # The families of headless Services may change, because they have no addresses.
    if has_no_address(new) or has_no_address(old):
        return []
    values, before = new.spec.ip_families, old.spec.ip_families
    field = "spec.ipFamilies[0]"
    if len(values) == len(before):
        # NB: kube-apiserver names the first index, whichever of the two has changed.
        return [
            invalid(field, values, _MAY_NOT_CHANGE)
            for value, old_value in zip(values, before, strict=True)
            if value != old_value
        ]
    errors: list[FieldError] = []
    if len(values) < len(before) and not new.spec.cluster_ips:
        # NB: kube-apiserver shows an absent list as null, not as empty.
        errors.append(invalid(field, values or None, "primary ipFamily can not be unset"))
    if values and before and values[0] != before[0]:
        # NB: kube-apiserver shows the addresses here, not the families.
        errors.append(invalid(field, new.spec.cluster_ips, _MAY_NOT_CHANGE))
    if len(before) > len(values) == 1:
        errors += _release_errors(new.spec.ip_family_policy, "ipFamily")
    return errors


def _release_errors(policy: str | None, noun: str) -> list[FieldError]:
    if policy == SINGLE_STACK:
        return []
    detail = f"must be set to 'SingleStack' when releasing the secondary {noun}"
    return [invalid("spec.ipFamilyPolicy", policy, detail)]


def _class_change_errors(new: Service, old: Service) -> list[FieldError]:
    value = new.spec.load_balancer_class
    errors: list[FieldError] = []
    is_same = value == old.spec.load_balancer_class
    if new.spec.type == old.spec.type == "LoadBalancer" and not is_same:
        errors.append(invalid("spec.loadBalancerClass", value, _MAY_NOT_CHANGE))
    # NB: the class is validated here and again by `validate_service`.
    return errors + load_balancer_class_errors(new.spec)


def _health_check_change_errors(new: Service, old: Service) -> list[FieldError]:
    if not (new.needs_health_check and old.needs_health_check):
        return []
    if new.spec.health_check_node_port == old.spec.health_check_node_port:
        return []
    return [forbidden_field("spec.healthCheckNodePort", IMMUTABLE)]
