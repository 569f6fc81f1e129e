"""The chain of an explanation: numbers of zones, endpoints, nodes, and what is not repeated."""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.advise.explaining.causes import CauseWeight, TrafficCauseCode
from keepclose.advise.explaining.explanation import Explanation, TrafficFlow
from keepclose.model.acknowledgements import HintLevel, NodeAcknowledgement
from keepclose.model.endpointslice.types import EndpointHints, EndpointSlice, ForZone
from keepclose.model.service.types import ServicePort
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.model.workload import Container, ContainerPort, Pod
from support.builders import node, pod
from support.explained import (
    NODES,
    PODS,
    changed,
    explain,
    healthy,
    slices_of,
    versioned,
    web,
    without,
    written,
)


def codes(answer: Explanation) -> list[TrafficCauseCode]:
    """Return the codes of all causes."""
    return [cause.code for cause in answer.causes]


def hinted(objects: list[object], zone: str, *, unready: bool = False) -> list[EndpointSlice]:
    """Return the slices with all endpoints hinted for a zone, or only those that are not ready."""
    hints = EndpointHints(for_zones=(ForZone(zone),))
    return [
        replace(
            held,
            endpoints=tuple(
                replace(point, hints=hints) if not (unready and point.is_ready) else point
                for point in held.endpoints
            ),
        )
        for held in slices_of(objects)
    ]


def unready(name: str) -> Pod:
    """Return a pod of the cluster as not ready."""
    (found,) = (each for each in PODS if each.metadata.name == name)
    return pod(name, found.spec.node_name, ip=found.status.pod_ip, ready=False)


def test_numbers_are_those_of_the_zones() -> None:
    """Endpoints count where they are, and hints where they point."""
    made = healthy()
    answer = explain(changed(made, *hinted(made, "zone-b")))
    numbers = {zone.zone: zone for zone in answer.zones}
    assert [numbers[zone].ready for zone in sorted(numbers)] == [1, 1, 1]
    assert [numbers[zone].hinted for zone in sorted(numbers)] == [0, 3, 0]
    assert [numbers[zone].expected for zone in sorted(numbers)] == [1.0, 1.0, 1.0]
    assert {zone.share for zone in answer.zones} == {1 / 3}


def test_a_pod_with_two_addresses_counts_once() -> None:
    """Auto decides for each family apart, so both together must not make enough endpoints."""
    pods = [
        pod(f"p{number}", f"n{number}", ips=(f"10.0.0.{number}", f"fd00::{number}"))
        for number in (1, 2)
    ]
    dual = web(
        annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"},
        traffic_distribution=None,
        ip_families=("IPv4", "IPv6"),
        cluster_ips=("10.96.0.10", "fd00::10"),
    )
    answer = explain(written(*NODES, *pods, dual))
    assert [(zone.endpoints, zone.ready) for zone in answer.zones] == [(1, 1), (1, 1), (0, 0)]
    assert answer.mechanism.thresholds.endswith("with 2 ready endpoints that cannot be kept")
    assert {zone.load for zone in answer.zones} == {1.0, None}


def test_loads_are_those_of_each_port() -> None:
    """A port that one of three Pods has gives all its connections to that Pod, its fair share."""
    named = ServicePort(name="admin", protocol="TCP", port=81, target_port="admin")
    plain = ServicePort(name="http", protocol="TCP", port=80, target_port=8080)
    container = Container(ports=(ContainerPort("admin", 9000, "TCP"),))
    first, *others = PODS
    first = replace(first, spec=replace(first.spec, containers=(container,)))
    answer = explain(written(*NODES, first, *others, web(ports=(plain, named))))
    assert answer.traffic is not None
    assert answer.traffic.busiest == 1.0
    assert {point.pod: point.load for point in answer.endpoints} == {
        "p1": 1.0,
        "p2": 1.0,
        "p3": 1.0,
    }


def test_a_zone_whose_endpoints_are_hinted_elsewhere_is_not_unready() -> None:
    """Its Pods are ready; the hints are to blame."""
    made = healthy()
    found = codes(explain(changed(made, *hinted(made, "zone-b"))))
    assert TrafficCauseCode.ZONE_UNREADY not in found
    assert TrafficCauseCode.HINTS_DIFFER in found


def test_hints_of_unready_endpoints_are_no_difference() -> None:
    """Proxies ignore them, and a controller may leave them."""
    made = written(*NODES, *PODS[1:], unready("p1"), web())
    answer = explain(changed(made, *hinted(made, "zone-c", unready=True)))
    assert not {
        TrafficCauseCode.HINTS_DIFFER,
        TrafficCauseCode.HINTS_LEFT_OVER,
        TrafficCauseCode.HINTS_NOT_WRITTEN,
    }.intersection(codes(answer))


def test_a_rewrite_that_would_take_them_is_no_difference_either() -> None:
    """The hint that is missing is to blame, not the one that no proxy reads."""
    made = written(*NODES, *PODS[1:], unready("p1"), web())
    (held,) = hinted(made, "zone-c", unready=True)
    bare = tuple(
        replace(point, hints=None) if point.addresses == ("10.0.0.2",) else point
        for point in held.endpoints
    )
    found = codes(explain(changed(made, replace(held, endpoints=bare))))
    assert TrafficCauseCode.HINTS_NOT_WRITTEN in found
    assert TrafficCauseCode.HINTS_LEFT_OVER not in found


def test_a_port_that_no_pod_has_is_to_blame_beside_one_that_works() -> None:
    """Connections to the other port arrive, so nothing is blocked as a whole."""
    ports = (
        ServicePort(name="http", protocol="TCP", port=80, target_port=8080),
        ServicePort(name="metrics", protocol="TCP", port=90, target_port="metrics"),
    )
    answer = explain(written(*NODES, *PODS, web(ports=ports)))
    (cause,) = [each for each in answer.causes if each.code is TrafficCauseCode.TARGET_PORT_MISSING]
    assert (answer.flow, cause.weight) == (TrafficFlow.NOT_AS_ASKED, CauseWeight.DEFEATS)


def test_a_port_that_one_pod_lacks_is_a_note() -> None:
    """Its other Pods have it."""
    bare = replace(PODS[0], spec=replace(PODS[0].spec, containers=()))
    made = web(
        ports=(ServicePort(name="http", protocol="TCP", port=80, target_port="http"),),
        traffic_distribution=None,
    )
    answer = explain(written(*NODES, bare, *PODS[1:], made))
    (cause,) = [each for each in answer.causes if each.code is TrafficCauseCode.TARGET_PORT_MISSING]
    assert (answer.flow, cause.weight) == (TrafficFlow.AS_ASKED, CauseWeight.NOTE)


def test_labels_that_have_nothing_in_common_are_no_near_miss() -> None:
    """Another workload of the namespace is not what the selector means."""
    strangers = [
        replace(each, metadata=replace(each.metadata, labels={"app": "database"})) for each in PODS
    ]
    found = codes(explain(written(*NODES, *strangers, web())))
    assert TrafficCauseCode.NO_PODS in found
    assert TrafficCauseCode.SELECTOR_VALUE_DIFFERS not in found


def test_a_missing_label_is_one_cause() -> None:
    """What names the node says more than that some node lacks something."""
    made = web(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"}, traffic_distribution=None)
    answer = explain(written(*NODES[:2], node("n3", "zone-c", cpu=None), *PODS, made))
    assert codes(answer).count(TrafficCauseCode.NODE_INFO_MISSING) == 1


def test_the_only_pod_of_a_zone_is_named_once() -> None:
    """The zone's cause has the Pod's own in it."""
    answer = explain(written(*NODES, *PODS[1:], unready("p1"), web()))
    assert codes(answer) == [TrafficCauseCode.ZONE_UNREADY]
    assert "p1: it is not ready" in answer.causes[0].message


def test_old_nodes_whose_proxies_acknowledge_hints_are_not_to_blame() -> None:
    """The version is that of the kubelet; the proxy says itself that it follows hints."""
    old = [versioned(each, "v1.29.0") for each in NODES]
    levels = frozenset({HintLevel.ZONES, HintLevel.NODES})
    said = [NodeAcknowledgement(each.name, version=9, honors=levels) for each in NODES]
    made = written(*old, *PODS, web())
    assert TrafficCauseCode.PROXY_TOO_OLD in codes(explain(made))
    assert TrafficCauseCode.PROXY_TOO_OLD not in codes(explain(made, acknowledgements=said))


def test_only_nodes_in_question_are_judged_by_their_versions() -> None:
    """A new node follows hints, whatever others run."""
    mixed = [versioned(NODES[0], "v1.29.0"), *(versioned(each, "v1.36.0") for each in NODES[1:])]
    made = written(*mixed, *PODS, web())
    assert TrafficCauseCode.PROXY_TOO_OLD in codes(explain(made, source="n1"))
    assert TrafficCauseCode.PROXY_TOO_OLD not in codes(explain(made, source="n2"))


def test_a_namespace_without_pods_was_not_read() -> None:
    """Its slices count, and whether they are stale is unknown."""
    stranger = pod("other", namespace="elsewhere", labels={})
    answer = explain([*without(healthy(), Pod), stranger])
    assert answer.flow is TrafficFlow.AS_ASKED
    assert not answer.causes
    assert "without Pods it is unknown whether the slices are stale" in answer.unknown


def test_all_pods_of_a_service_gone_are_stale_slices() -> None:
    """Other Pods of the namespace were read, so those of the Service are gone."""
    stranger = pod("other", labels={"app": "other"})
    answer = explain([*without(healthy(), Pod), stranger])
    assert TrafficCauseCode.SLICES_STALE in codes(answer)
    assert answer.flow is TrafficFlow.NOT_AS_ASKED


def test_slices_of_the_input_count_not_the_planned_ones() -> None:
    """Nodes go by what stands in the slices; what the planner would write is a difference."""
    made = healthy()
    answer = explain(changed(made, *hinted(made, "zone-b")), source="n1")
    (group,) = answer.nodes
    used = group.ports[0].selection.internal.endpoints
    assert len(used) == 3
    assert (answer.slices.is_written, answer.slices.differs) == (True, True)


def test_a_ready_pod_that_slices_call_unready_is_behind_them() -> None:
    """The Pod became ready, and its slice does not say so yet."""
    made = written(*NODES, unready("p1"), *PODS[1:], web())
    answer = explain(changed(made, PODS[0]), target="p1")
    assert (answer.flow, answer.causes[0].code) == (
        TrafficFlow.BLOCKED,
        TrafficCauseCode.SLICES_STALE,
    )
    assert answer.causes[0].message == (
        "p1: it is ready, and an EndpointSlice of the Service says that 10.0.0.1 is not"
    )


def test_a_ready_pod_without_an_endpoint_is_not_in_the_slices() -> None:
    """The Pod is new, and the controller behind."""
    answer = explain([*healthy(), pod("q1", "n1", ip="10.0.9.9")], target="q1")
    assert (answer.flow, answer.causes[0].code) == (
        TrafficFlow.BLOCKED,
        TrafficCauseCode.SLICES_STALE,
    )
    assert "no EndpointSlice of the Service has its address" in answer.causes[0].message
