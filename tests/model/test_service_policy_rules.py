"""What a Service says about where its traffic should go is judged by value and gate."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.policy_validation import (
    validate_external_policy,
    validate_internal_policy,
    validate_topology_keys,
    validate_traffic_annotations,
    validate_traffic_distribution,
)
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    EXTERNAL_POLICY_ANNOTATION,
    INTERNAL_POLICY_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from support.builders import service

GATES = FeatureGates()
NO_SAME = GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
CUSTOM = GATES.with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
PREFER_LOCAL = GATES.with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY)
NO_INTERNAL = GATES.without(Gate.SERVICE_INTERNAL_TRAFFIC_POLICY)
ALL_THREE = 'supported values: "PreferClose", "PreferSameZone", "PreferSameNode"'
ONLY_CLOSE = 'supported values: "PreferClose"'
TWO_POLICIES = 'supported values: "Cluster", "Local"'
THREE_POLICIES = 'supported values: "Cluster", "Local", "PreferLocal"'
FIELD = "spec.trafficDistribution"
NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.mark.parametrize(
    ("value", "gates", "want_causes"),
    [
        pytest.param(None, GATES, [], id="absent"),
        pytest.param("PreferClose", GATES, [], id="PreferClose"),
        pytest.param("PreferSameZone", GATES, [], id="PreferSameZone"),
        pytest.param("PreferSameNode", GATES, [], id="PreferSameNode"),
        pytest.param("", GATES, [f'{FIELD}: Unsupported value: "": {ALL_THREE}'], id="empty"),
        pytest.param(
            "Random", GATES, [f'{FIELD}: Unsupported value: "Random": {ALL_THREE}'], id="unknown"
        ),
        pytest.param(
            "preferclose",
            GATES,
            [f'{FIELD}: Unsupported value: "preferclose": {ALL_THREE}'],
            id="lower case",
        ),
        pytest.param("PreferClose", NO_SAME, [], id="PreferClose needs no gate"),
        pytest.param(
            "PreferSameZone",
            NO_SAME,
            [f'{FIELD}: Unsupported value: "PreferSameZone": {ONLY_CLOSE}'],
            id="PreferSameZone, gate off",
        ),
        pytest.param(
            "PreferSameNode",
            NO_SAME,
            [f'{FIELD}: Unsupported value: "PreferSameNode": {ONLY_CLOSE}'],
            id="PreferSameNode, gate off",
        ),
        pytest.param("example.com/Least_Cost", CUSTOM, [], id="custom, gate on"),
        pytest.param(
            "example.com/fast",
            GATES,
            [f'{FIELD}: Unsupported value: "example.com/fast": {ALL_THREE}'],
            id="custom, gate off",
        ),
        pytest.param(
            "fast", CUSTOM, [f'{FIELD}: Unsupported value: "fast": {ALL_THREE}'], id="no domain"
        ),
        pytest.param(
            "/fast",
            CUSTOM,
            [f'{FIELD}: Invalid value: "/fast": prefix part must be non-empty'],
            id="empty domain",
        ),
        pytest.param(
            "example.com/",
            CUSTOM,
            [
                f'{FIELD}: Invalid value: "example.com/": name part must be non-empty',
                f'{FIELD}: Invalid value: "example.com/": {NAME_PART}',
            ],
            id="empty name",
        ),
        pytest.param(
            f"example.com/{'n' * 64}",
            CUSTOM,
            [
                (
                    f'{FIELD}: Invalid value: "example.com/{"n" * 64}": '
                    "name part must be no more than 63 bytes"
                ),
            ],
            id="name too long",
        ),
        pytest.param(f"example.com/{'n' * 63}", CUSTOM, [], id="name just short enough"),
    ],
)
def test_traffic_distribution_values(
    value: str | None, gates: FeatureGates, want_causes: list[str]
) -> None:
    """Values are legal as far as the gates go; names without a domain are reserved."""
    causes = validate_traffic_distribution(value, gates=gates)
    assert [str(cause) for cause in causes] == want_causes


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("Example.com/fast", id="upper case in the domain"),
        pytest.param("a/b/c", id="two slashes"),
        pytest.param("-x/fast", id="dash before the domain"),
    ],
)
def test_custom_heuristics_need_a_domain_and_a_name(value: str) -> None:
    """With the gate on a malformed value is told why, once."""
    (cause,) = validate_traffic_distribution(value, gates=CUSTOM)
    assert str(cause).startswith(f'{FIELD}: Invalid value: "{value}": ')


@pytest.mark.parametrize(
    ("value", "old_value", "want_causes"),
    [
        pytest.param("PreferSameZone", "PreferSameZone", [], id="unchanged"),
        pytest.param("PreferSameNode", "PreferSameNode", [], id="unchanged node"),
        pytest.param("example.com/fast", "example.com/fast", [], id="unchanged custom"),
        pytest.param(
            "PreferSameZone",
            "PreferSameNode",
            [f'{FIELD}: Unsupported value: "PreferSameZone": {ONLY_CLOSE}'],
            id="changed to another gated value",
        ),
        pytest.param(
            "PreferSameZone",
            None,
            [f'{FIELD}: Unsupported value: "PreferSameZone": {ONLY_CLOSE}'],
            id="newly set",
        ),
        pytest.param("PreferClose", "PreferSameZone", [], id="changed to a legal value"),
        pytest.param(None, "PreferSameZone", [], id="removed"),
    ],
)
def test_a_stored_traffic_distribution_stays_legal(
    value: str | None, old_value: str | None, want_causes: list[str]
) -> None:
    """With the gate off an unchanged value is accepted, and only that."""
    causes = validate_traffic_distribution(value, gates=NO_SAME, old_value=old_value)
    assert [str(cause) for cause in causes] == want_causes


def field_of(key: str) -> str:
    """Return where a cause about the annotation stands."""
    return f"metadata.annotations[{key}]"


MISMATCH = (
    "metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: "
    '"{}": must match annotations[service.kubernetes.io/topology-aware-hints] '
    "when both are specified"
)


@pytest.mark.parametrize(
    ("annotations", "gates", "want_causes"),
    [
        pytest.param({}, GATES, [], id="none"),
        pytest.param({TOPOLOGY_MODE_ANNOTATION: "Auto"}, GATES, [], id="mode alone"),
        pytest.param({TOPOLOGY_HINTS_ANNOTATION: "anything"}, GATES, [], id="hints alone"),
        pytest.param(
            {TOPOLOGY_MODE_ANNOTATION: "Auto", TOPOLOGY_HINTS_ANNOTATION: "Auto"},
            GATES,
            [],
            id="both agree",
        ),
        pytest.param(
            {TOPOLOGY_MODE_ANNOTATION: "Auto", TOPOLOGY_HINTS_ANNOTATION: "auto"},
            GATES,
            [MISMATCH.format("Auto")],
            id="both differ by case",
        ),
        pytest.param(
            {TOPOLOGY_MODE_ANNOTATION: "", TOPOLOGY_HINTS_ANNOTATION: "Auto"},
            GATES,
            [MISMATCH.format("")],
            id="an empty value is there",
        ),
        pytest.param(
            {TRAFFIC_DISTRIBUTION_ANNOTATION: "PreferSameNode"}, GATES, [], id="distribution"
        ),
        pytest.param(
            {TRAFFIC_DISTRIBUTION_ANNOTATION: "PreferSameNode"},
            NO_SAME,
            [
                (
                    f"{field_of(TRAFFIC_DISTRIBUTION_ANNOTATION)}: Unsupported value: "
                    f'"PreferSameNode": {ONLY_CLOSE}'
                ),
            ],
            id="distribution, gate off",
        ),
        pytest.param(
            {TRAFFIC_DISTRIBUTION_ANNOTATION: ""},
            GATES,
            [f'{field_of(TRAFFIC_DISTRIBUTION_ANNOTATION)}: Unsupported value: "": {ALL_THREE}'],
            id="distribution, empty",
        ),
        pytest.param(
            {TRAFFIC_DISTRIBUTION_ANNOTATION: "example.com/fast"}, CUSTOM, [], id="custom, gate on"
        ),
        pytest.param(
            {TRAFFIC_DISTRIBUTION_ANNOTATION: "example.com/fast"},
            GATES,
            [
                (
                    f"{field_of(TRAFFIC_DISTRIBUTION_ANNOTATION)}: Unsupported value: "
                    f'"example.com/fast": {ALL_THREE}'
                ),
            ],
            id="custom, gate off",
        ),
        pytest.param({INTERNAL_POLICY_ANNOTATION: "PreferLocal"}, GATES, [], id="internal policy"),
        pytest.param({EXTERNAL_POLICY_ANNOTATION: "Local"}, GATES, [], id="external policy"),
        pytest.param({EXTERNAL_POLICY_ANNOTATION: "Cluster"}, GATES, [], id="Cluster policy"),
        pytest.param(
            {INTERNAL_POLICY_ANNOTATION: "Near", EXTERNAL_POLICY_ANNOTATION: ""},
            GATES,
            [
                (
                    f"{field_of(INTERNAL_POLICY_ANNOTATION)}: Unsupported value: "
                    f'"Near": {THREE_POLICIES}'
                ),
                f'{field_of(EXTERNAL_POLICY_ANNOTATION)}: Unsupported value: "": {THREE_POLICIES}',
            ],
            id="unknown policies",
        ),
    ],
)
def test_annotations_about_traffic(
    annotations: dict[str, str], gates: FeatureGates, want_causes: list[str]
) -> None:
    """Topology annotations must agree, the project's own ones must be legal."""
    causes = validate_traffic_annotations(service(annotations=annotations), gates=gates)
    assert [str(cause) for cause in causes] == want_causes


def test_a_stored_distribution_annotation_stays_legal() -> None:
    """With the gate off an unchanged annotation is accepted, as the field is."""
    stored = service(annotations={TRAFFIC_DISTRIBUTION_ANNOTATION: "PreferSameZone"})
    assert validate_traffic_annotations(stored, gates=NO_SAME, old=stored) == []
    assert len(validate_traffic_annotations(stored, gates=NO_SAME, old=service())) == 1


def accessible(policy: str, **spec: Any) -> Service:
    """Return a NodePort Service with the external policy."""
    return service(**{"type": "NodePort", "external_traffic_policy": policy, **spec})


def balancer(policy: str, health_port: int = 0) -> Service:
    """Return a LoadBalancer Service with the external policy."""
    return service(
        type="LoadBalancer", external_traffic_policy=policy, health_check_node_port=health_port
    )


ETP = "spec.externalTrafficPolicy"
NOT_NEEDED = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"


@pytest.mark.parametrize(
    ("judged", "gates", "want_causes"),
    [
        pytest.param(service(), GATES, [], id="ClusterIP without policy"),
        pytest.param(
            service(external_traffic_policy="Cluster"),
            GATES,
            [
                (
                    f'{ETP}: Invalid value: "Cluster": '
                    "may only be set for externally-accessible services"
                ),
            ],
            id="ClusterIP with policy",
        ),
        pytest.param(
            service(type="ExternalName", external_traffic_policy="Local"),
            GATES,
            [f'{ETP}: Invalid value: "Local": may only be set for externally-accessible services'],
            id="ExternalName with policy",
        ),
        pytest.param(accessible("Cluster"), GATES, [], id="NodePort Cluster"),
        pytest.param(accessible("Local"), GATES, [], id="NodePort Local"),
        pytest.param(accessible(""), GATES, [f"{ETP}: Required value"], id="NodePort without"),
        pytest.param(
            service(external_ips=("192.0.2.1",)),
            GATES,
            [f"{ETP}: Required value"],
            id="external IPs without",
        ),
        pytest.param(
            service(external_ips=("192.0.2.1",), external_traffic_policy="Local"),
            GATES,
            [],
            id="external IPs with Local",
        ),
        pytest.param(
            accessible("Near"),
            GATES,
            [f'{ETP}: Unsupported value: "Near": {TWO_POLICIES}'],
            id="unknown",
        ),
        pytest.param(
            accessible("Near"),
            PREFER_LOCAL,
            [f'{ETP}: Unsupported value: "Near": {THREE_POLICIES}'],
            id="unknown, PreferLocal on",
        ),
        pytest.param(
            accessible("PreferLocal"),
            GATES,
            [f'{ETP}: Unsupported value: "PreferLocal": {TWO_POLICIES}'],
            id="PreferLocal, gate off",
        ),
        pytest.param(accessible("PreferLocal"), PREFER_LOCAL, [], id="PreferLocal, gate on"),
        pytest.param(balancer("Local", 30100), GATES, [], id="health port with Local"),
        pytest.param(
            balancer("Local"),
            GATES,
            ["spec.healthCheckNodePort: Required value"],
            id="Local without health port",
        ),
        pytest.param(
            balancer("Local", 65536),
            GATES,
            [
                (
                    "spec.healthCheckNodePort: Invalid value: 65536: "
                    "must be between 1 and 65535, inclusive"
                ),
            ],
            id="health port out of range",
        ),
        pytest.param(
            balancer("Cluster", 30100),
            GATES,
            [f"spec.healthCheckNodePort: Invalid value: 30100: {NOT_NEEDED}"],
            id="health port with Cluster",
        ),
        pytest.param(
            balancer("PreferLocal", 30100),
            PREFER_LOCAL,
            [f"spec.healthCheckNodePort: Invalid value: 30100: {NOT_NEEDED}"],
            id="health port with PreferLocal",
        ),
        pytest.param(balancer("PreferLocal"), PREFER_LOCAL, [], id="PreferLocal needs no port"),
        pytest.param(
            accessible("Local", health_check_node_port=30100),
            GATES,
            [f"spec.healthCheckNodePort: Invalid value: 30100: {NOT_NEEDED}"],
            id="health port with NodePort",
        ),
    ],
)
def test_external_traffic_policy(
    judged: Service, gates: FeatureGates, want_causes: list[str]
) -> None:
    """The policy belongs to accessible Services, the health-check port to Local load balancers."""
    causes = validate_external_policy(judged, gates=gates)
    assert [str(cause) for cause in causes] == want_causes


ITP = "spec.internalTrafficPolicy"


@pytest.mark.parametrize(
    ("spec", "gates", "want_causes"),
    [
        pytest.param({"internal_traffic_policy": "Cluster"}, GATES, [], id="Cluster"),
        pytest.param({"internal_traffic_policy": "Local"}, GATES, [], id="Local"),
        pytest.param(
            {"internal_traffic_policy": None},
            GATES,
            [f"{ITP}: Required value"],
            id="ClusterIP without",
        ),
        pytest.param(
            {"type": "NodePort", "internal_traffic_policy": None},
            GATES,
            [f"{ITP}: Required value"],
            id="NodePort without",
        ),
        pytest.param(
            {"type": "LoadBalancer", "internal_traffic_policy": None},
            GATES,
            [f"{ITP}: Required value"],
            id="LoadBalancer without",
        ),
        pytest.param(
            {"internal_traffic_policy": None}, NO_INTERNAL, [], id="ClusterIP without, gate off"
        ),
        pytest.param(
            {"type": "ExternalName", "internal_traffic_policy": None},
            GATES,
            [],
            id="ExternalName without",
        ),
        pytest.param(
            {"type": "ExternalName", "internal_traffic_policy": "Local"},
            GATES,
            [],
            id="ExternalName with",
        ),
        pytest.param(
            {"type": "ExternalName", "internal_traffic_policy": "Near"},
            GATES,
            [f'{ITP}: Unsupported value: "Near": {TWO_POLICIES}'],
            id="ExternalName with an unknown one",
        ),
        pytest.param(
            {"internal_traffic_policy": ""},
            GATES,
            [f'{ITP}: Unsupported value: "": {TWO_POLICIES}'],
            id="empty",
        ),
        pytest.param(
            {"internal_traffic_policy": "PreferLocal"},
            GATES,
            [f'{ITP}: Unsupported value: "PreferLocal": {TWO_POLICIES}'],
            id="PreferLocal, gate off",
        ),
        pytest.param(
            {"internal_traffic_policy": "PreferLocal"}, PREFER_LOCAL, [], id="PreferLocal, gate on"
        ),
        pytest.param(
            {"internal_traffic_policy": "Near"},
            PREFER_LOCAL,
            [f'{ITP}: Unsupported value: "Near": {THREE_POLICIES}'],
            id="unknown, PreferLocal on",
        ),
    ],
)
def test_internal_traffic_policy(
    spec: dict[str, Any], gates: FeatureGates, want_causes: list[str]
) -> None:
    """Every Service with a cluster IP has an internal policy, and only a known one."""
    causes = validate_internal_policy(service(**spec), gates=gates)
    assert [str(cause) for cause in causes] == want_causes


@pytest.mark.parametrize(
    ("old_policy", "want_count"),
    [
        pytest.param("PreferLocal", 0, id="unchanged"),
        pytest.param("Local", 1, id="changed from Local"),
        pytest.param("Cluster", 1, id="changed from Cluster"),
    ],
)
def test_a_stored_prefer_local_stays_legal(old_policy: str, want_count: int) -> None:
    """With the gate off an unchanged PreferLocal is accepted for both policies."""
    new = accessible("PreferLocal", internal_traffic_policy="PreferLocal")
    old = accessible(old_policy, internal_traffic_policy=old_policy)
    assert len(validate_external_policy(new, gates=GATES, old=old)) == want_count
    assert len(validate_internal_policy(new, gates=GATES, old=old)) == want_count


def test_other_stored_policies_are_not_spared() -> None:
    """Only PreferLocal is tolerated unchanged; garbage is refused again."""
    odd = accessible("Near", internal_traffic_policy="Near")
    assert [str(cause) for cause in validate_external_policy(odd, gates=GATES, old=odd)] == [
        f'{ETP}: Unsupported value: "Near": {TWO_POLICIES}'
    ]
    assert [str(cause) for cause in validate_internal_policy(odd, gates=GATES, old=odd)] == [
        f'{ITP}: Unsupported value: "Near": {TWO_POLICIES}'
    ]


KEYS = "spec.topologyKeys"
MANY = tuple(f"example.com/k{number}" for number in range(17))


@pytest.mark.parametrize(
    ("keys", "policy", "want_causes"),
    [
        pytest.param((), "Local", [], id="none"),
        pytest.param(("kubernetes.io/hostname", "*"), "", [], id="host, then any"),
        pytest.param(("*",), "Cluster", [], id="any alone"),
        pytest.param(MANY[:16], "", [], id="sixteen"),
        pytest.param(
            MANY, "", [f"{KEYS}: Too many: 17: must have at most 16 items"], id="seventeen"
        ),
        pytest.param(
            ("*",),
            "Local",
            [f"{KEYS}: Forbidden: may not be specified when `externalTrafficPolicy=Local`"],
            id="beside Local",
        ),
        pytest.param(("*",), "PreferLocal", [], id="beside PreferLocal"),
        pytest.param(
            ("a", "b", "a"), "", [f'{KEYS}[2]: Duplicate value: "a"'], id="the same key twice"
        ),
        pytest.param(
            ("*", "a"),
            "",
            [f'{KEYS}[0]: Invalid value: "*": "*" must be the last value specified'],
            id="any not last",
        ),
        pytest.param(
            ("*", "*"),
            "",
            [
                f'{KEYS}[0]: Invalid value: "*": "*" must be the last value specified',
                f'{KEYS}[1]: Duplicate value: "*"',
            ],
            id="any twice",
        ),
        pytest.param(
            ("a b",), "", [f'{KEYS}[0]: Invalid value: "a b": {NAME_PART}'], id="no label key"
        ),
        pytest.param(
            ("",),
            "",
            [
                f'{KEYS}[0]: Invalid value: "": name part must be non-empty',
                f'{KEYS}[0]: Invalid value: "": {NAME_PART}',
            ],
            id="empty",
        ),
    ],
)
def test_topology_keys(keys: tuple[str, ...], policy: str, want_causes: list[str]) -> None:
    """Keys are distinct label keys, at most sixteen, with "*" only at the end."""
    spec = service(topology_keys=keys, external_traffic_policy=policy).spec
    assert [str(cause) for cause in validate_topology_keys(spec)] == want_causes
