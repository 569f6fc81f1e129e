"""Writing Services: defaults, allocation, rules, and what is given back."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.registry.services import ServiceStrategy
from keepclose.apiserver.registry.strategy import ObjectWrite
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import LABEL_VALUE_SENTENCE
from support.kinds import Kinds, raw

ONE_PORT = [{"port": 80}]


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


@pytest.fixture
def dual_stack() -> Kinds:
    """Return strategies over a small cluster of both families."""
    return Kinds("10.96.0.0/24", "fd00:96::/112")


def _strategy(kinds: Kinds) -> ServiceStrategy:
    found = kinds.strategies["services"]
    assert isinstance(found, ServiceStrategy)
    return found


def _free(kinds: Kinds) -> tuple[list[int], int]:
    ranges = _strategy(kinds).ranges
    return [one.free for one in ranges.addresses], ranges.ports.free


def test_a_new_service_gets_defaults_and_an_address(kinds: Kinds) -> None:
    """A Service with one port is completed, and what nobody knows in it stays."""
    new = raw("Service", spec={"ports": ONE_PORT, "futureField": {"a": 1}}, status={"x": 1})
    got = kinds.write(new).object
    address = got["spec"]["clusterIP"]
    assert got["spec"] == {
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "futureField": {"a": 1},
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "internalTrafficPolicy": "Cluster",
        "clusterIP": address,
        "clusterIPs": [address],
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
    }
    assert got["status"] == {"loadBalancer": {}}
    assert _free(kinds) == ([253], 2768)


def test_both_families_are_given(dual_stack: Kinds) -> None:
    """A dual-stack Service gets an address of each family, the primary one first."""
    new = raw("Service", spec={"ports": ONE_PORT, "ipFamilyPolicy": "RequireDualStack"})
    got = dual_stack.write(new).object["spec"]
    assert got["ipFamilies"] == ["IPv4", "IPv6"]
    assert got["clusterIPs"][0] == got["clusterIP"]
    assert got["clusterIPs"][0].startswith("10.96.0.")
    assert got["clusterIPs"][1].startswith("fd00:96::")


@pytest.mark.parametrize(
    ("spec", "want_failure"),
    [
        pytest.param(
            {"clusterIP": "10.96.0.10", "ports": ONE_PORT},
            '422 Service "one" is invalid: spec.clusterIPs: Invalid value: ["10.96.0.10"]: failed '
            "to allocate IP 10.96.0.10: provided IP is already allocated",
            id="an address that somebody has",
        ),
        pytest.param(
            {"clusterIP": "1.2.3.4", "ports": ONE_PORT},
            '422 Service "one" is invalid: spec.clusterIPs: Invalid value: ["1.2.3.4"]: failed to '
            "allocate IP 1.2.3.4: the provided network does not match the current range",
            id="an address of another network",
        ),
        pytest.param(
            {"clusterIP": "nonsense", "ports": ONE_PORT},
            '422 Service "one" is invalid: spec.clusterIPs[0]: Invalid value: "nonsense": must be '
            "a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            id="no address at all",
        ),
        pytest.param(
            {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30010}]},
            '422 Service "one" is invalid: spec.ports[0].nodePort: Invalid value: 30010: provided '
            "port is already allocated",
            id="a node port that somebody has",
        ),
        pytest.param(
            {"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]},
            '422 Service "one" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided '
            "port is not in the valid range. The range of valid ports is 30000-32767",
            id="a node port outside the range",
        ),
        pytest.param(
            {
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 30010,
                "ports": ONE_PORT,
            },
            "500 Internal error occurred: failed to allocate requested HealthCheck NodePort 30010:"
            " provided port is already allocated",
            id="a health-check port that somebody has",
        ),
        pytest.param(
            {"ipFamilyPolicy": "RequireDualStack", "ports": ONE_PORT},
            '422 Service "one" is invalid: spec.ipFamilyPolicy: Invalid value: "RequireDualStack":'
            " this cluster is not configured for dual-stack services",
            id="a second family that the cluster has not",
        ),
    ],
)
def test_what_cannot_be_given_is_refused_without_a_trace(
    kinds: Kinds, spec: JsonObject, want_failure: str
) -> None:
    """A refusal names the field, and nothing stays taken."""
    other = raw(
        "Service",
        "other",
        spec={
            "type": "NodePort",
            "clusterIP": "10.96.0.10",
            "ports": [{"port": 80, "nodePort": 30010}],
        },
    )
    assert kinds.write(other).causes == []
    want_free = _free(kinds)
    assert kinds.write(raw("Service", spec=spec)).failure == want_failure
    assert _free(kinds) == want_free


def test_a_write_that_breaks_a_rule_gives_everything_back(kinds: Kinds) -> None:
    """What was reserved for a Service that the rules refuse is free again."""
    spec = {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "ports": [{"port": 80}, {"port": 81}],
    }
    want_free = _free(kinds)
    assert kinds.write(raw("Service", spec=spec)).causes == [
        "spec.ports[0].name: Required value",
        "spec.ports[1].name: Required value",
    ]
    assert _free(kinds) == want_free == ([254], 2768)


def test_one_node_port_serves_all_protocols_of_a_port(kinds: Kinds) -> None:
    """DNS over TCP and UDP is reached at one node port, drawn or named."""
    drawn = [
        {"name": "a", "port": 53, "protocol": "UDP"},
        {"name": "b", "port": 53, "protocol": "TCP"},
        {"name": "c", "port": 80},
    ]
    got = kinds.write(raw("Service", spec={"type": "NodePort", "ports": drawn})).object
    one, two, three = (port["nodePort"] for port in got["spec"]["ports"])
    assert one == two != three
    assert _free(kinds) == ([253], 2766)
    named = deepcopy(drawn)
    named[1]["nodePort"] = 30001
    got = kinds.write(raw("Service", "two", spec={"type": "NodePort", "ports": named})).object
    assert [port["nodePort"] for port in got["spec"]["ports"]][:2] == [30001, 30001]


def test_a_dry_run_shows_values_that_nobody_has_and_takes_none(kinds: Kinds) -> None:
    """A dry run answers with the network's own address and ports past the range."""
    spec = {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}],
    }
    got = kinds.write(raw("Service", spec=spec), dry_run=True).object["spec"]
    assert got["clusterIPs"] == ["10.96.0.0"]
    assert [port["nodePort"] for port in got["ports"]] == [32769, 32770]
    assert got["healthCheckNodePort"] == 32771
    assert _free(kinds) == ([254], 2768)


def test_a_full_range_is_an_internal_error() -> None:
    """When all addresses or ports are given out, the next one is refused."""
    small = Kinds("10.0.0.0/30", first_port=30000, last_port=30000)
    assert small.write(raw("Service", spec={"ports": ONE_PORT})).failure == ""
    assert small.write(raw("Service", spec={"type": "NodePort", "ports": ONE_PORT})).failure == ""
    assert small.write(raw("Service", spec={"ports": ONE_PORT})).failure == (
        '500 Internal error occurred: failed to allocate a serviceIP for Service "one": range is'
        " full"
    )
    headless = {"type": "NodePort", "clusterIP": "None", "ports": ONE_PORT}
    assert small.write(raw("Service", spec=headless)).failure == (
        "500 Internal error occurred: failed to allocate a nodePort: range is full"
    )


def test_an_update_keeps_what_it_does_not_mention(kinds: Kinds) -> None:
    """A client that sends the manifest again gets the same address and ports."""
    manifest = raw("Service", spec={"type": "NodePort", "ports": ONE_PORT})
    old = kinds.write(manifest).object
    new = kinds.write(manifest, old)
    assert new.causes == []
    assert new.object["spec"] == old["spec"]
    assert _free(kinds) == ([253], 2767)


@pytest.mark.parametrize(
    ("before", "change", "want_gone", "want_free"),
    [
        pytest.param(
            {"ports": ONE_PORT},
            {"type": "ExternalName", "externalName": "a.b"},
            {"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"},
            ([254], 2768),
            id="an ExternalName has no address",
        ),
        pytest.param(
            {"type": "NodePort", "ports": ONE_PORT},
            {"type": "ClusterIP"},
            {"externalTrafficPolicy"},
            ([253], 2768),
            id="a ClusterIP has no node port",
        ),
        pytest.param(
            {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": ONE_PORT},
            {"externalTrafficPolicy": "Cluster"},
            {"healthCheckNodePort"},
            ([253], 2767),
            id="without Local there is no health check",
        ),
        pytest.param(
            {"type": "NodePort", "ports": ONE_PORT},
            {"ports": [{"port": 80, "nodePort": 30005}]},
            set(),
            ([253], 2767),
            id="another node port takes the place of the old one",
        ),
    ],
)
def test_what_no_longer_applies_is_given_back(
    kinds: Kinds,
    before: JsonObject,
    change: JsonObject,
    want_gone: set[str],
    want_free: tuple[list[int], int],
) -> None:
    """A change of the Service frees what it makes needless."""
    old = kinds.write(raw("Service", spec=before)).object
    new = deepcopy(old)
    new["spec"].update(change)
    got = kinds.write(new, old)
    assert got.causes == []
    assert want_gone & got.object["spec"].keys() == set()
    assert _free(kinds) == want_free


def test_a_second_family_comes_and_goes(dual_stack: Kinds) -> None:
    """The policy alone adds a second address, and alone takes it away again."""
    old = dual_stack.write(raw("Service", spec={"ports": ONE_PORT})).object
    new = deepcopy(old)
    new["spec"]["ipFamilyPolicy"] = "PreferDualStack"
    wide = dual_stack.write(new, old).object
    assert wide["spec"]["clusterIPs"][0] == old["spec"]["clusterIP"]
    assert wide["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
    assert _free(dual_stack) == ([253, 65534], 2768)
    new = deepcopy(wide)
    new["spec"]["ipFamilyPolicy"] = "SingleStack"
    narrow = dual_stack.write(new, wide).object
    assert narrow["spec"] == old["spec"]
    assert _free(dual_stack) == ([253, 65535], 2768)


def test_an_external_name_that_becomes_a_service_gets_an_address(kinds: Kinds) -> None:
    """Going from ExternalName to ClusterIP allocates as a create does."""
    old = kinds.write(
        raw("Service", spec={"type": "ExternalName", "externalName": "a.b", "ports": ONE_PORT})
    ).object
    new = deepcopy(old)
    new["spec"] = {"type": "ClusterIP", "ports": ONE_PORT}
    got = kinds.write(new, old)
    assert (got.causes, got.failure) == ([], "")
    assert got.object["spec"]["clusterIP"].startswith("10.96.0.")
    same = kinds.write(old, old)
    assert (same.causes, same.object["spec"]) == ([], old["spec"])


def test_an_update_may_not_use_one_node_port_twice(kinds: Kinds) -> None:
    """The same protocol and node port on two ports is refused with upstream's bare text."""
    old = kinds.write(raw("Service", spec={"type": "NodePort", "ports": ONE_PORT})).object
    new = deepcopy(old)
    new["spec"]["ports"] = [
        {"name": "a", "port": 1, "nodePort": 30001},
        {"name": "b", "port": 2, "nodePort": 30001},
    ]
    want_free = _free(kinds)
    assert kinds.write(new, old).failure == "500 duplicate nodePort: {TCP 30001}"
    assert _free(kinds) == want_free


def test_node_ports_are_left_out_where_they_are_not_wanted(kinds: Kinds) -> None:
    """A load balancer that needs no node ports gets none, on create and on update."""
    spec = {
        "type": "LoadBalancer",
        "allocateLoadBalancerNodePorts": False,
        "ports": [{"name": "a", "port": 1}],
    }
    old = kinds.write(raw("Service", spec=spec)).object
    assert "nodePort" not in old["spec"]["ports"][0]
    new = deepcopy(old)
    new["spec"]["ports"].append({"name": "b", "port": 2})
    assert kinds.write(new, old).causes == []
    assert _free(kinds) == ([253], 2768)


def test_the_primary_address_may_not_change(kinds: Kinds) -> None:
    """An address that an update names anew is refused, and stays free for others."""
    old = kinds.write(raw("Service", spec={"ports": ONE_PORT})).object
    new = deepcopy(old)
    new["spec"] |= {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}
    assert kinds.write(new, old).causes == [
        'spec.clusterIPs[0]: Invalid value: ["10.96.0.9"]: may not change once set'
    ]
    assert not _strategy(kinds).ranges.addresses[0].holds("10.96.0.9")


def test_status_and_the_rest_are_written_apart(kinds: Kinds) -> None:
    """An update keeps the status; an update of the status keeps everything else."""
    old = kinds.write(raw("Service", spec={"type": "LoadBalancer", "ports": ONE_PORT})).object
    changed = deepcopy(old)
    changed["spec"]["selector"] = {"a": "b"}
    changed["status"] = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}, "extra": 1}
    assert kinds.write(changed, old).object["status"] == {"loadBalancer": {}}
    got = kinds.write(changed, old, subresource="status")
    assert got.causes == []
    assert got.object["spec"] == old["spec"]
    assert got.object["status"] == {
        "loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ipMode": "VIP"}]},
        "extra": 1,
    }


def test_a_status_with_a_load_balancer_needs_the_type(kinds: Kinds) -> None:
    """Only a LoadBalancer has addresses of one."""
    old = kinds.write(raw("Service", spec={"ports": ONE_PORT})).object
    new = deepcopy(old)
    new["status"] = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}
    assert kinds.write(new, old, subresource="status").causes == [
        (
            "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is "
            "'LoadBalancer'"
        )
    ]


def test_readers_do_not_see_internal_traffic_of_an_external_name(kinds: Kinds) -> None:
    """The internal traffic policy of an ExternalName Service is not shown."""
    spec = {"type": "ExternalName", "externalName": "a.b", "internalTrafficPolicy": "Local"}
    stored = kinds.write(raw("Service", spec=spec)).object
    assert stored["spec"]["internalTrafficPolicy"] == "Local"
    strategy = _strategy(kinds)
    strategy.on_read(ObjectWrite(stored))
    assert "internalTrafficPolicy" not in stored["spec"]


def test_readers_see_one_address_in_the_list_too(kinds: Kinds) -> None:
    """An address that a change of type has left behind is shown in both fields."""
    stored = raw("Service", spec={"type": "ExternalName", "clusterIP": "10.96.0.9"})
    _strategy(kinds).on_read(ObjectWrite(stored))
    assert stored["spec"]["clusterIPs"] == ["10.96.0.9"]


def test_a_service_cannot_turn_headless_with_a_second_family(dual_stack: Kinds) -> None:
    """The second family gets an address all the same, and the rules refuse both together."""
    old = dual_stack.write(raw("Service", spec={"ports": [{"port": 80}]})).object
    free = _free(dual_stack)
    spec = {
        "type": "LoadBalancer",
        "ports": [{"port": 80}],
        "clusterIP": "None",
        "clusterIPs": ["None"],
        "ipFamilyPolicy": "PreferDualStack",
    }
    got = dual_stack.write(raw("Service", spec=spec), old)
    assert [cause.partition(":")[0] for cause in got.causes] == [
        "spec.clusterIPs[0]",
        "spec.clusterIPs",
    ]
    assert _free(dual_stack) == free


def test_a_type_that_does_not_exist_is_all_that_is_wrong(kinds: Kinds) -> None:
    """An update to it keeps its addresses, so that only the type is refused."""
    old = kinds.write(raw("Service", spec={"ports": [{"port": 80}]})).object
    got = kinds.write(raw("Service", spec={"type": "Odd", "ports": [{"port": 80}]}), old)
    assert got.causes == [
        (
            'spec.type: Unsupported value: "Odd": supported values: "ClusterIP", "ExternalName", '
            '"LoadBalancer", "NodePort"'
        )
    ]


def test_stored_services_are_taken_note_of_at_start(kinds: Kinds) -> None:
    """What a stored Service has is held again, and is free once the Service is removed."""
    spec = {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10"],
        "healthCheckNodePort": 30002,
        "ports": [{"port": 80, "nodePort": 30001}],
    }
    stored = raw("Service", spec=spec)
    strategy = _strategy(kinds)
    strategy.restore(stored)
    strategy.restore(raw("Service", "headless", spec={"clusterIP": "None"}))
    assert _free(kinds) == ([253], 2766)
    assert "already allocated" in kinds.write(raw("Service", "two", spec=spec)).failure
    strategy.remove(stored)
    assert _free(kinds) == ([254], 2768)


@pytest.mark.parametrize(
    ("gates", "spec", "want"),
    [
        pytest.param(
            FeatureGates().without(Gate.SERVICE_TRAFFIC_DISTRIBUTION),
            {"trafficDistribution": "PreferClose"},
            {},
            id="dropped without its gate",
        ),
        pytest.param(
            FeatureGates(),
            {"trafficDistribution": "PreferSameNode"},
            {"trafficDistribution": "PreferSameNode"},
            id="kept with its gate",
        ),
        pytest.param(
            FeatureGates(), {"topologyKeys": ["*"]}, {}, id="topology keys dropped by default"
        ),
    ],
)
def test_fields_follow_their_gates(
    kinds: Kinds, gates: FeatureGates, spec: JsonObject, want: JsonObject
) -> None:
    """A field whose gate is off is not stored."""
    got = kinds.write(raw("Service", spec={"ports": ONE_PORT, **spec}), gates=gates)
    found: dict[str, Any] = got.object["spec"]
    assert got.causes == []
    assert {key: found[key] for key in spec if key in found} == want


def test_an_unknown_traffic_distribution_is_refused(kinds: Kinds) -> None:
    """The supported values are listed in their fixed order."""
    spec = {"ports": ONE_PORT, "trafficDistribution": "Random"}
    assert kinds.write(raw("Service", spec=spec)).causes == [
        (
            'spec.trafficDistribution: Unsupported value: "Random": supported values: '
            '"PreferClose", '
            '"PreferSameZone", "PreferSameNode"'
        )
    ]


def test_the_writer_is_told_what_is_deprecated(kinds: Kinds) -> None:
    """A deprecated value is accepted with a warning."""
    spec = {"ports": ONE_PORT, "trafficDistribution": "PreferClose"}
    assert kinds.write(raw("Service", spec=spec)).warnings == [
        'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'
    ]


def test_names_begin_with_a_letter_without_the_newer_gate(kinds: Kinds) -> None:
    """The older rule on names stands in the place of the newer one."""
    older = FeatureGates().without(Gate.RELAXED_SERVICE_NAME_VALIDATION)
    new = raw("Service", "1a", spec={"ports": ONE_PORT})
    assert kinds.write(new).causes == []
    (cause,) = kinds.write(new, gates=older).causes
    assert cause.startswith('metadata.name: Invalid value: "1a": a DNS-1035 label must consist of')
    (cause,) = kinds.write(raw("Service", "A_", spec={"ports": ONE_PORT}), gates=older).causes
    assert cause.startswith('metadata.name: Invalid value: "A_": a DNS-1035 label must consist of')


def test_causes_of_metadata_come_first_and_once(kinds: Kinds) -> None:
    """The model's causes on metadata are not repeated, but those on known annotations stay."""
    annotations = {
        "service.kubernetes.io/topology-mode": "Auto",
        "service.kubernetes.io/topology-aware-hints": "Disabled",
    }
    metadata = {"labels": {"a": "b_"}, "annotations": annotations}
    new = raw("Service", metadata=metadata, spec={"ports": ONE_PORT})
    assert kinds.write(new).causes == [
        f'metadata.labels: Invalid value: "b_": {LABEL_VALUE_SENTENCE}',
        (
            "metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: "
            '"Auto": must match annotations[service.kubernetes.io/topology-aware-hints] when both '
            "are specified"
        ),
    ]


_specs = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]),
        "externalName": st.just("a.b"),
        "externalTrafficPolicy": st.sampled_from(["Local", "Cluster", ""]),
        "ipFamilyPolicy": st.sampled_from(["SingleStack", "PreferDualStack", None]),
        "clusterIP": st.sampled_from(["", "None", "10.96.0.5", "10.96.0.6"]),
        "ports": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["a", "b"]),
                    "port": st.sampled_from([80, 81]),
                    "nodePort": st.sampled_from([0, 30001, 30002]),
                }
            ),
            max_size=2,
            unique_by=lambda port: port["name"],
        ),
    }
)


@settings(deadline=None, max_examples=60)
@given(writes=st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), _specs), max_size=8))
def test_what_is_held_is_what_the_stored_services_have(
    writes: list[tuple[str, JsonObject]],
) -> None:
    """After any writes, refused or not, the ranges hold what is stored and nothing else."""
    kinds = Kinds("10.96.0.0/24", "fd00:96::/112")
    stored: dict[str, JsonObject] = {}
    for name, spec in writes:
        clean = {key: value for key, value in spec.items() if value not in ("", None)}
        if clean["type"] != "ExternalName":
            del clean["externalName"]
        got = kinds.write(raw("Service", name, spec=clean), stored.get(name))
        if not got.causes and not got.failure:
            stored[name] = got.object
    addresses: list[str] = []
    ports: list[int] = []
    for obj in stored.values():
        spec = obj["spec"]
        addresses += [one for one in spec.get("clusterIPs") or [] if one != "None"]
        if spec["type"] != "ExternalName":
            ports += {one["nodePort"] for one in spec["ports"] if one.get("nodePort")}
        ports += [spec["healthCheckNodePort"]] if spec.get("healthCheckNodePort") else []
    assert len(set(addresses)) == len(addresses)
    assert len(set(ports)) == len(ports)
    free, free_ports = _free(kinds)
    assert sum(free) == 254 + 65535 - len(addresses)
    assert free_ports == 2768 - len(ports)


def test_a_health_check_is_given_when_it_becomes_needed(kinds: Kinds) -> None:
    """Turning to Local draws a port, or takes the one that is named."""
    spec = {"type": "LoadBalancer", "ports": ONE_PORT}
    old = kinds.write(raw("Service", spec=spec)).object
    new = deepcopy(old)
    new["spec"]["externalTrafficPolicy"] = "Local"
    drawn = kinds.write(new, old)
    assert drawn.causes == []
    assert 30086 <= drawn.object["spec"]["healthCheckNodePort"] <= 32767
    assert _free(kinds) == ([253], 2766)
    other = kinds.write(raw("Service", "two", spec=spec)).object
    named = deepcopy(other)
    named["spec"] |= {"externalTrafficPolicy": "Local", "healthCheckNodePort": 30009}
    assert kinds.write(named, other).object["spec"]["healthCheckNodePort"] == 30009
    assert _strategy(kinds).ranges.ports.holds(30009)


def test_named_node_ports_of_one_number_stand_side_by_side(kinds: Kinds) -> None:
    """A second protocol may have a node port of its own, and a taken one is refused."""
    ports = [
        {"name": "a", "port": 53, "protocol": "TCP", "nodePort": 30001},
        {"name": "b", "port": 53, "protocol": "UDP", "nodePort": 30002},
    ]
    got = kinds.write(raw("Service", spec={"type": "NodePort", "ports": ports})).object
    assert [port["nodePort"] for port in got["spec"]["ports"]] == [30001, 30002]
    ports[0]["nodePort"] = 30003
    again = kinds.write(raw("Service", "two", spec={"type": "NodePort", "ports": ports}))
    assert again.failure == (
        '422 Service "two" is invalid: spec.ports[1].nodePort: Invalid value: 30002: provided port '
        "is already allocated"
    )
    assert not _strategy(kinds).ranges.ports.holds(30003)


def test_an_update_draws_node_ports_for_new_ports(kinds: Kinds) -> None:
    """A port that is added gets a node port; without any left the update is refused."""
    old = kinds.write(raw("Service", spec={"type": "NodePort", "ports": ONE_PORT})).object
    new = deepcopy(old)
    new["spec"]["ports"] = [{"name": "a", "port": 80}, {"name": "b", "port": 81}]
    assert kinds.write(new, old).causes == []
    assert _free(kinds) == ([253], 2766)
    full = Kinds(first_port=30000, last_port=30000)
    old = full.write(raw("Service", spec={"type": "NodePort", "ports": ONE_PORT})).object
    wide = deepcopy(old)
    wide["spec"]["ports"] = [{**old["spec"]["ports"][0], "name": "a"}, {"name": "b", "port": 81}]
    assert full.write(wide, old).failure == (
        "500 Internal error occurred: failed to allocate a nodePort: range is full"
    )
    local = deepcopy(old)
    local["spec"] |= {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    assert full.write(local, old).failure == (
        "500 Internal error occurred: failed to allocate a HealthCheck NodePort 0: range is full"
    )
    assert _free(full)[1] == 0


def test_services_of_old_have_one_address(kinds: Kinds) -> None:
    """A stored Service that knows only the singular field holds its address all the same."""
    old = raw("Service", spec={"type": "ClusterIP", "clusterIP": "10.96.0.10", "ports": ONE_PORT})
    _strategy(kinds).restore(old)
    assert _free(kinds) == ([253], 2768)
    new = deepcopy(old)
    new["spec"]["type"] = "ExternalName"
    new["spec"]["externalName"] = "a.b"
    del new["spec"]["clusterIP"]
    assert kinds.write(new, old).causes == []
    assert _free(kinds) == ([254], 2768)
