"""Rules for a Service as a whole, in the order in which the API server checks them.

The causes of a create and of an update are found by the same function; the stored Service is handed
in on update so that rules which grew stricter do not lock what was accepted once. The Service must
be defaulted before. Nothing is changed and nothing raises; all causes are listed, not only the
first.
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
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
SESSION_AFFINITIES: Final = ("ClientIP", "None")
AFFINITY_TIMEOUT_MAX: Final = 86400

_NOT_FOR_EXTERNAL_NAME = "may not be set for ExternalName services"
_MAY_NOT_CHANGE = "may not change once set"


def validate_service(
    service: Service, *, gates: FeatureGates, old: Service | None = None
) -> list[FieldError]:
    """Return what is wrong with a Service, given the stored one when this is an update.

    The empty list means that the Service is acceptable. What may not *change* on an update is
    judged by `validate_service_update`, which calls this too.
    """
    spec = service.spec
    strict = gates.on(Gate.STRICT_IP_CIDR_VALIDATION)
    causes = validate_metadata(
        service.metadata, namespaced=True, name_check=_choose_name_check(gates, old=old)
    )
    causes += validate_traffic_annotations(service, gates=gates, old=old)
    if not spec.ports and not has_no_address(service) and spec.type != "ExternalName":
        causes.append(required("spec.ports"))
    causes += _type_causes(service)
    causes += _port_causes(spec.ports)
    if spec.selector is not None:
        causes += validate_labels(spec.selector, "spec.selector")
    causes += _affinity_causes(spec)
    causes += validate_cluster_addresses(service, strict=strict, old=old)
    causes += validate_external_ips(service, strict=strict, old=old)
    if not spec.type:
        causes.append(required("spec.type"))
    elif spec.type not in SERVICE_TYPES:
        causes.append(not_supported("spec.type", spec.type, SERVICE_TYPES))
    causes += _port_clash_causes(spec)
    causes += validate_source_ranges(service, strict=strict, old=old)
    causes += _load_balancer_causes(spec)
    causes += validate_external_policy(service, gates=gates, old=old)
    causes += validate_internal_policy(service, gates=gates, old=old)
    causes += validate_traffic_distribution(
        spec.traffic_distribution,
        gates=gates,
        old_value=old.spec.traffic_distribution if old else None,
    )
    causes += validate_topology_keys(spec)
    return causes


def load_balancer_class_causes(spec: ServiceSpec) -> list[FieldError]:
    """Return what is wrong with the class of load balancers; none is fine."""
    field, wanted = "spec.loadBalancerClass", spec.load_balancer_class
    if wanted is None:
        return []
    if spec.type != "LoadBalancer":
        return [forbidden_field(field, ONLY_FOR_LOAD_BALANCER)]
    return [invalid(field, wanted, message) for message in qualified_name(wanted)]


def _choose_name_check(gates: FeatureGates, *, old: Service | None) -> NameCheck:
    if old is not None:
        return _accept_stored_name
    return dns1123_label if gates.on(Gate.RELAXED_SERVICE_NAME_VALIDATION) else dns1035_label


def _accept_stored_name(_name: str) -> list[str]:
    """Return no messages: a name cannot change, so it is judged only once, on create."""
    return []


def _type_causes(service: Service) -> list[FieldError]:
    spec = service.spec
    if spec.type in ("LoadBalancer", "NodePort") and has_no_address(service):
        detail = f"may not be set to 'None' for {spec.type} services"
        return [invalid("spec.clusterIPs[0]", NO_CLUSTER_IP, detail)]
    if spec.type != "ExternalName":
        return []
    causes: list[FieldError] = []
    if spec.cluster_ips:
        causes.append(forbidden_field("spec.clusterIPs", _NOT_FOR_EXTERNAL_NAME))
    if spec.ip_families:
        causes.append(forbidden_field("spec.ipFamilies", _NOT_FOR_EXTERNAL_NAME))
    if spec.ip_family_policy is not None:
        causes.append(forbidden_field("spec.ipFamilyPolicy", _NOT_FOR_EXTERNAL_NAME))
    name = spec.external_name.removesuffix(".")
    if not name:
        causes.append(required("spec.externalName"))
    else:
        causes += [
            invalid("spec.externalName", name, message) for message in dns1123_subdomain(name)
        ]
    return causes


def _port_causes(ports: tuple[ServicePort, ...]) -> list[FieldError]:
    causes: list[FieldError] = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        field = f"spec.ports[{index}]"
        if port.name:
            causes += [
                invalid(f"{field}.name", port.name, message) for message in dns1123_label(port.name)
            ]
            if port.name in seen:
                causes.append(duplicate(f"{field}.name", port.name))
            seen.add(port.name)
        elif len(ports) > 1:
            causes.append(required(f"{field}.name"))
        causes += [
            invalid(f"{field}.port", port.port, message) for message in port_number(port.port)
        ]
        if not port.protocol:
            causes.append(required(f"{field}.protocol"))
        elif port.protocol not in _PROTOCOLS:
            causes.append(not_supported(f"{field}.protocol", port.protocol, _PROTOCOLS))
        causes += _target_port_causes(f"{field}.targetPort", port.target_port)
        if port.app_protocol is not None:
            causes += [
                invalid(f"{field}.appProtocol", port.app_protocol, message)
                for message in qualified_name(port.app_protocol)
            ]
    return causes


def _target_port_causes(field: str, target: int | str | None) -> list[FieldError]:
    # An absent target port reads as the number 0, which no port has.
    value = 0 if target is None else target
    messages = port_name(value) if isinstance(value, str) else port_number(value)
    return [invalid(field, value, message) for message in messages]


def _affinity_causes(spec: ServiceSpec) -> list[FieldError]:
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
    # NB: the text says "less than", yet the limit itself passes; clients know the text as it is.
    detail = f"must be greater than 0 and less than {AFFINITY_TIMEOUT_MAX}"
    return [invalid(f"{field}.clientIP.timeoutSeconds", timeout, detail)]


def _port_clash_causes(spec: ServiceSpec) -> list[FieldError]:
    causes: list[FieldError] = []
    if spec.type == "ClusterIP":
        causes += [
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
            causes.append(duplicate(f"spec.ports[{index}].nodePort", port.node_port))
        node_ports.add((port.protocol, port.node_port))
    ports: set[tuple[str, int]] = set()
    for index, port in enumerate(spec.ports):
        if (port.protocol, port.port) in ports:
            # NB: only what was compared is filled in, and with the names of Go's fields.
            shown = {
                "Name": "",
                "Protocol": port.protocol,
                "AppProtocol": None,
                "Port": port.port,
                "TargetPort": 0,
                "NodePort": 0,
            }
            causes.append(duplicate(f"spec.ports[{index}]", shown))
        ports.add((port.protocol, port.port))
    return causes


def _load_balancer_causes(spec: ServiceSpec) -> list[FieldError]:
    causes: list[FieldError] = []
    if spec.type != "LoadBalancer" and spec.allocate_load_balancer_node_ports is not None:
        causes.append(forbidden_field("spec.allocateLoadBalancerNodePorts", ONLY_FOR_LOAD_BALANCER))
    return causes + load_balancer_class_causes(spec)


def validate_service_update(new: Service, old: Service, *, gates: FeatureGates) -> list[FieldError]:
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
) -> list[FieldError]:
    """Return what is wrong with an update of the status; conditions are nobody's business here."""
    return validate_metadata_update(new.metadata, old.metadata) + validate_load_balancer_status(
        new.status.load_balancer,
        service_type=new.spec.type,
        strict=gates.on(Gate.STRICT_IP_CIDR_VALIDATION),
        old=old.status.load_balancer,
    )


def _cluster_ip_causes(new: Service, old: Service) -> list[FieldError]:
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
    causes: list[FieldError] = []
    if not values:
        causes.append(invalid(f"{field}[0]", None, "primary clusterIP can not be unset"))
    elif before and values[0] != before[0]:
        causes.append(invalid(f"{field}[0]", values, _MAY_NOT_CHANGE))
    if len(before) > len(values) == 1:
        causes += _release_causes(new.spec.ip_family_policy, "clusterIP")
    return causes


def _family_causes(new: Service, old: Service) -> list[FieldError]:
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
    causes: list[FieldError] = []
    if len(values) < len(before) and not new.spec.cluster_ips:
        # NB: a list that is not there is null in Kubernetes' words, not empty.
        causes.append(invalid(field, values or None, "primary ipFamily can not be unset"))
    if values and before and values[0] != before[0]:
        # NB: here the addresses are shown, not the families.
        causes.append(invalid(field, new.spec.cluster_ips, _MAY_NOT_CHANGE))
    if len(before) > len(values) == 1:
        causes += _release_causes(new.spec.ip_family_policy, "ipFamily")
    return causes


def _release_causes(policy: str | None, noun: str) -> list[FieldError]:
    if policy == SINGLE_STACK:
        return []
    detail = f"must be set to 'SingleStack' when releasing the secondary {noun}"
    return [invalid("spec.ipFamilyPolicy", policy, detail)]


def _load_balancer_class_causes(new: Service, old: Service) -> list[FieldError]:
    wanted = new.spec.load_balancer_class
    causes: list[FieldError] = []
    is_same = wanted == old.spec.load_balancer_class
    if new.spec.type == old.spec.type == "LoadBalancer" and not is_same:
        causes.append(invalid("spec.loadBalancerClass", wanted, _MAY_NOT_CHANGE))
    # NB: the class itself is judged here and once more with the rest.
    return causes + load_balancer_class_causes(new.spec)


def _health_check_causes(new: Service, old: Service) -> list[FieldError]:
    if not (new.needs_health_check and old.needs_health_check):
        return []
    if new.spec.health_check_node_port == old.spec.health_check_node_port:
        return []
    return [forbidden_field("spec.healthCheckNodePort", IMMUTABLE)]
