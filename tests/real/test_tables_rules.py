"""The unit tables of names, defaults, validation and warnings, asked of our rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from keepclose.apiserver.registry.endpointslices import EndpointsStrategy
from keepclose.apiserver.registry.strategy import ObjectWrite
from keepclose.apiserver.resources import RESOURCES
from keepclose.model.addresses import (
    cidr_errors,
    endpoint_ip_errors,
    fqdn_errors,
    legacy_ip_errors,
    strict_ip_errors,
)
from keepclose.model.endpointslice import strategy as endpointslice_strategy
from keepclose.model.endpointslice.types import EndpointPort, EndpointSlice
from keepclose.model.endpointslice.validation import (
    default_endpoint_slice,
    validate_endpoint_slice,
    validate_endpoint_slice_update,
)
from keepclose.model.field_errors import FieldError
from keepclose.model.gates import DEFAULT_GATES, FeatureGates, Gate, parse_gates
from keepclose.model.meta import ObjectMeta
from keepclose.model.metadata_validation import (
    dns1035_label,
    dns1123_label,
    dns1123_subdomain,
    port_name,
    port_number,
    validate_metadata,
    validate_metadata_update,
)
from keepclose.model.service import strategy as service_strategy
from keepclose.model.service.defaults import default_service
from keepclose.model.service.network_validation import (
    validate_cluster_addresses,
    validate_load_balancer_status,
)
from keepclose.model.service.policy_validation import validate_external_policy
from keepclose.model.service.strategy import service_warnings
from keepclose.model.service.types import Service
from keepclose.model.service.validation import validate_service, validate_service_update
from support.real.unit_tables import (
    Answers,
    Case,
    Judge,
    check_all_judged,
    compare,
    pairs,
    read,
)

pytestmark = pytest.mark.real

_ENDPOINTS = EndpointsStrategy(next(each for each in RESOURCES if each.kind == "Endpoints"))
_STRICT = Gate.STRICT_IP_CIDR_VALIDATION


def _gates(case: Case) -> FeatureGates:
    """Return the gates of a test; Kubernetes has many that we do not know."""
    known = {gate.value for gate in Gate}
    parts = [part for part in case.given["gates"].split(",") if part.split("=")[0] in known]
    return parse_gates(",".join(parts))


def _judged(ours: Iterable[FieldError], case: Case) -> Answers:
    """Compare causes as the API tells them; their order means nothing."""
    theirs = sorted(error["text"] for error in case.answered.get("result0", ()))
    return Answers(sorted(str(cause) for cause in ours), theirs)


def _texts(check: Callable[[str], list[str]], name: str) -> Judge:
    def judge(case: Case) -> Answers:
        return Answers(check(case.given[name]), case.answered.get("result0", []))

    return judge


def _port_number(case: Case) -> Answers:
    return Answers(port_number(case.given["port"]), case.answered.get("result0", []))


def _field(case: Case) -> str:
    # Go shows a field without a name as [].
    return str(case.given["fldPath"])


def _legacy_ip(case: Case) -> Answers:
    given = case.given
    ours = legacy_ip_errors(
        _field(case),
        given["value"],
        strict=given["strictValidation"],
        old_values=frozenset(given.get("validOldIPs", ())),
    )
    return _judged(ours, case)


def _legacy_cidr(case: Case) -> Answers:
    given = case.given
    ours = cidr_errors(
        _field(case),
        given["value"],
        strict=given["strictValidation"],
        old_values=frozenset(given.get("validOldCIDRs", ())),
    )
    return _judged(ours, case)


def _ip(case: Case) -> Answers:
    return _judged(strict_ip_errors(_field(case), case.given["value"]), case)


def _ip_warnings(case: Case) -> Answers:
    value = case.given["value"]
    spec = {"clusterIP": "10.0.0.1", "clusterIPs": [value]}
    if case.given["fldPath"] == "spec.loadBalancerIP":
        spec = {"loadBalancerIP": value}
    service = read(Service, {"spec": spec})
    return Answers(service_warnings(service), case.answered.get("result0", []))


def _cidr_warnings(case: Case) -> Answers:
    service = read(Service, {"spec": {"loadBalancerSourceRanges": [case.given["value"]]}})
    return Answers(service_warnings(service), case.answered.get("result0", []))


def _fqdn(case: Case) -> Answers:
    return _judged(fqdn_errors(_field(case), case.given["name"]), case)


def _slice(case: Case) -> Answers:
    old = read(EndpointSlice, case.given["old"]) if "old" in case.given else None
    new = read(EndpointSlice, case.given["new"])
    return _judged(validate_endpoint_slice(new, gates=_gates(case), old=old), case)


def _slice_update(case: Case) -> Answers:
    ours = validate_endpoint_slice_update(
        read(EndpointSlice, case.given["new"]),
        read(EndpointSlice, case.given["old"]),
        gates=_gates(case),
    )
    return _judged(ours, case)


def _service(case: Case) -> Answers:
    return _judged(validate_service(read(Service, case.given["new"]), gates=_gates(case)), case)


def _service_update(case: Case) -> Answers:
    ours = validate_service_update(
        read(Service, case.given["new"]), read(Service, case.given["old"]), gates=_gates(case)
    )
    return _judged(ours, case)


def _cluster_addresses(case: Case) -> Answers:
    old = read(Service, case.given["old"]) if "old" in case.given else None
    ours = validate_cluster_addresses(
        read(Service, case.given["new"]), strict=_gates(case).on(_STRICT), old=old
    )
    return _judged(ours, case)


def _external_policy(case: Case) -> Answers:
    service = read(Service, case.given["new"])
    return _judged(validate_external_policy(service, gates=_gates(case)), case)


def _endpoint_ip(case: Case) -> Answers:
    return _judged(endpoint_ip_errors(_field(case), case.given["ipAddress"]), case)


def _load_balancer(case: Case) -> Answers:
    service = read(Service, case.given["status"])
    ours = validate_load_balancer_status(
        service.status.load_balancer,
        service_type=service.spec.type,
        strict=_gates(case).on(_STRICT),
        old=read(Service, case.given["old"]).status.load_balancer,
    )
    theirs = [error["text"] for error in case.answered.get("result0", ())]
    # The field is named by the caller, in the tests otherwise than in the API.
    return Answers(
        sorted(str(cause).replace("status.loadBalancer.", "status.") for cause in ours),
        sorted(theirs),
    )


def _endpoints(case: Case) -> Answers:
    new, old = case.given["new"], case.given.get("old")
    meta = read(ObjectMeta, new["metadata"])
    ours = validate_metadata(meta, namespaced=True, name_check=dns1123_subdomain)
    if old is not None:
        ours = validate_metadata_update(meta, read(ObjectMeta, old["metadata"]))
    return _judged([*ours, *_ENDPOINTS.causes(ObjectWrite(new, old, gates=_gates(case)))], case)


def _warnings(case: Case) -> Answers:
    ours = service_warnings(read(Service, case.given["service"]))
    return Answers(sorted(ours), sorted(case.answered.get("result0", [])))


def _default_service(case: Case) -> Answers:
    ours = default_service(read(Service, case.given["object"]))
    return Answers(ours, read(Service, case.answered["object"]))


def _default_endpoints(case: Case) -> Answers:
    _ENDPOINTS.set_defaults(ObjectWrite(case.given["object"]))
    return Answers(case.given["object"], case.answered["object"])


def _default_port(case: Case) -> Answers:
    port = read(EndpointPort, case.given["object"])
    ours = default_endpoint_slice(EndpointSlice(ports=(port,))).ports[0]
    return Answers(ours, read(EndpointPort, case.answered["object"]))


def _status_update(case: Case) -> Answers:
    ours = service_strategy.prepare_status_update(
        read(Service, case.given["obj"]), read(Service, case.given["old"])
    )
    return Answers(ours, read(Service, case.answered["obj"]))


def _type_dependent(case: Case) -> Answers:
    old = read(Service, case.given["oldsvc"]) if "oldsvc" in case.given else None
    ours = service_strategy.drop_type_dependent_fields(read(Service, case.given["newsvc"]), old)
    return Answers(ours, read(Service, case.answered["newsvc"]))


def _strategy_slice(case: Case) -> Answers:
    ours = validate_endpoint_slice(read(EndpointSlice, case.given["obj"]), gates=DEFAULT_GATES)
    return _judged(ours, case)


def _strategy_slice_update(case: Case) -> Answers:
    ours = validate_endpoint_slice_update(
        read(EndpointSlice, case.given["new"]),
        read(EndpointSlice, case.given["old"]),
        gates=DEFAULT_GATES,
    )
    return _judged(ours, case)


def _slice_fields(case: Case) -> Answers:
    is_create = "endpointslice" in case.given
    new = read(EndpointSlice, case.given["endpointslice" if is_create else "neweps"])
    old = None if is_create else read(EndpointSlice, case.given["oldeps"])
    ours = endpointslice_strategy.drop_disabled_slice_fields(new, old, gates=_gates(case))
    theirs = case.answered["endpointslice" if is_create else "neweps"]
    return Answers(ours, read(EndpointSlice, theirs))


def _slice_topology(case: Case) -> Answers:
    old = read(EndpointSlice, case.given["oldeps"]) if "oldeps" in case.given else None
    ours = endpointslice_strategy.drop_deprecated_topology(
        read(EndpointSlice, case.given["neweps"]), old
    )
    return Answers(ours, read(EndpointSlice, case.answered["neweps"]))


def _slice_prepared(case: Case) -> Answers:
    ours = endpointslice_strategy.prepare_slice_for_update(
        read(EndpointSlice, case.given["obj"]),
        read(EndpointSlice, case.given["old"]),
        gates=DEFAULT_GATES,
    )
    return Answers(ours, read(EndpointSlice, case.answered["obj"]))


def _slice_type_warnings(case: Case) -> Answers:
    endpoint_slice = EndpointSlice(address_type=case.given["addressType"])
    ours = endpointslice_strategy.slice_warnings_on_create(endpoint_slice)
    return Answers(ours, case.answered.get("result0", []))


def _slice_ip_warnings(case: Case) -> Answers:
    ours = endpointslice_strategy.slice_warnings_on_update(read(EndpointSlice, case.given["eps"]))
    return Answers(ours, case.answered.get("result0", []))


JUDGES: dict[str, dict[str, Judge]] = {
    "strings": {
        "IsDNS1123Label": _texts(dns1123_label, "value"),
        "IsDNS1123Subdomain": _texts(dns1123_subdomain, "value"),
        "IsDNS1035Label": _texts(dns1035_label, "value"),
        "IsValidPortName": _texts(port_name, "port"),
        "IsValidPortNum": _port_number,
        "IsValidIP": _ip,
        "IsValidIPForLegacyField": _legacy_ip,
        "IsValidCIDRForLegacyField": _legacy_cidr,
        "GetWarningsForIP": _ip_warnings,
        "GetWarningsForCIDR": _cidr_warnings,
        "IsFullyQualifiedDomainName": _fqdn,
    },
    "discoveryvalidation": {
        "ValidateEndpointSlice": _slice,
        "ValidateEndpointSliceCreate": _slice,
        "ValidateEndpointSliceUpdate": _slice_update,
    },
    "corevalidation": {
        "ValidateServiceCreate": _service,
        "ValidateServiceUpdate": _service_update,
        "ValidateServiceClusterIPsRelatedFields": _cluster_addresses,
        "validateServiceExternalTrafficPolicy": _external_policy,
        "ValidateEndpointIP": _endpoint_ip,
        "ValidateLoadBalancerStatus": _load_balancer,
        "ValidateEndpointsCreate": _endpoints,
        "ValidateEndpointsUpdate": _endpoints,
    },
    "defaults": {
        "SetDefaults_Service": _default_service,
        "SetDefaults_Endpoints": _default_endpoints,
        "SetDefaults_EndpointPort": _default_port,
    },
    "warnings": {"GetWarningsForService": _warnings},
    "servicestrategy": {
        "serviceStatusStrategy.PrepareForUpdate": _status_update,
        "dropTypeDependentFields": _type_dependent,
        "endpointSliceStrategy.Validate": _strategy_slice,
        "endpointSliceStrategy.ValidateUpdate": _strategy_slice_update,
        "dropDisabledFieldsOnCreate": _slice_fields,
        "dropDisabledFieldsOnUpdate": _slice_fields,
        "dropTopologyOnV1": _slice_topology,
        "endpointSliceStrategy.PrepareForUpdate": _slice_prepared,
        "warnOnDeprecatedAddressType": _slice_type_warnings,
        "warnOnBadIPs": _slice_ip_warnings,
    },
}


@pytest.mark.parametrize(("group", "function"), pairs(JUDGES))
def test_rules_are_those_of_kubernetes(group: str, function: str) -> None:
    """Defaults, what is refused with which words, and warnings are those of the API server."""
    compare(group, function, JUDGES[group][function])


def test_every_recorded_function_is_compared() -> None:
    """Nothing that is recorded is left out without a reason."""
    check_all_judged(JUDGES)
