"""What would happen to each Service."""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import ResolvedService, resolve_services
from keepclose.cli.render.resolve import resolved_document
from keepclose.model.endpointslice.types import (
    EndpointAddress,
    Endpoints,
    EndpointsPort,
    EndpointSubset,
)
from keepclose.model.meta import NamespacedName, ObjectMeta
from keepclose.model.service.types import ServicePort
from keepclose.model.well_known import MANAGED_BY_LABEL, MIRRORING_CONTROLLER
from keepclose.routing.reasons import ReasonCode
from keepclose.slices.settings import PlannerSettings
from support.builders import endpoint, endpoint_slice, node, pod, service


def test_every_service_is_answered_on_every_node() -> None:
    """Without filters the answer is complete and in the order given."""
    inventory = Inventory.of([node("n1"), node("n2"), service("b"), service("a"), pod()])
    answer = resolve_services(inventory, settings=PlannerSettings())
    assert [one.service.metadata.name for one in answer] == ["b", "a"]
    assert [sorted(one.nodes) for one in answer] == [["n1", "n2"], ["n1", "n2"]]


def test_filters_pick_one_service_and_one_node() -> None:
    """What was not asked for is not worked out, and what is not there gives nothing."""
    inventory = Inventory.of([node("n1"), node("n2"), service("b"), service("a")])
    key = NamespacedName("default", "a")
    (one,) = resolve_services(inventory, settings=PlannerSettings(), service=key, node="n2")
    assert (one.service.key, list(one.nodes)) == (key, ["n2"])
    missing = NamespacedName("default", "c")
    assert resolve_services(inventory, settings=PlannerSettings(), service=missing) == ()


def test_slices_of_others_are_used_but_not_planned() -> None:
    """A slice that another controller manages stays as it is, and nodes use its endpoints."""
    foreign = endpoint_slice(endpoint("10.9.9.9"), name="foreign")
    labels = {**foreign.metadata.labels, "endpointslice.kubernetes.io/managed-by": "me"}
    foreign = replace(foreign, metadata=replace(foreign.metadata, labels=labels))
    inventory = Inventory.of([node(), service(), pod(), foreign])
    (one,) = resolve_services(inventory, settings=PlannerSettings())
    assert one.slices[-1] == foreign
    shown = [e.shown for e in one.nodes["n1"][0].selection.internal.endpoints]
    assert shown == ["10.0.0.1/8080", "10.9.9.9/8080"]


def test_names_of_new_slices_never_clash() -> None:
    """Made-up names are the same each time, differ from one another and from those in use."""
    pods = [pod(f"p{n}", ip=f"10.0.0.{n}") for n in range(1, 4)]
    inventory = Inventory.of([node(), service(), *pods])
    settings = PlannerSettings(max_endpoints=1)
    first = [one.metadata.name for one in resolve_services(inventory, settings=settings)[0].slices]
    again = [one.metadata.name for one in resolve_services(inventory, settings=settings)[0].slices]
    assert first == again
    assert len(set(first)) == 3
    taken = endpoint_slice(name=first[0])
    foreign = {**taken.metadata.labels, "endpointslice.kubernetes.io/managed-by": "me"}
    taken = replace(taken, metadata=replace(taken.metadata, labels=foreign))
    inventory = Inventory.of([node(), service(), *pods, taken])
    names = [one.metadata.name for one in resolve_services(inventory, settings=settings)[0].slices]
    assert len(set(names)) == 4
    assert names[-1] == first[0]


def test_mirrored_endpoints_that_are_skipped_are_told() -> None:
    """Addresses that cannot be mirrored give an event."""
    made = replace(service(), spec=replace(service().spec, selector=None))
    endpoints = Endpoints(
        metadata=ObjectMeta(name="web", namespace="default"),
        subsets=(
            EndpointSubset(
                addresses=(EndpointAddress(ip="nowhere"), EndpointAddress(ip="10.0.0.5")),
                ports=(EndpointsPort(name="http", port=8080, protocol="TCP"),),
            ),
        ),
    )
    (one,) = resolve_services(Inventory.of([node(), made, endpoints]), settings=PlannerSettings())
    assert [event.reason for event in one.events] == ["InvalidIPAddress"]
    assert [reason.code for reason in one.reasons] == [ReasonCode.NO_SELECTOR]


def test_weights_are_shown_where_they_differ() -> None:
    """Endpoint weights travel from the slice's annotation to the answer."""
    made = replace(service(), spec=replace(service().spec, selector=None))
    piece = endpoint_slice(
        endpoint("10.0.0.1"),
        endpoint("10.0.0.2"),
        annotations={"keepclose.dev/endpoint-weights": "[3, 1]"},
    )
    answer = resolved_document(
        resolve_services(Inventory.of([node(), made, piece]), settings=PlannerSettings())
    )
    assert answer["services"][0]["nodes"]["n1"]["IPv4 tcp/http"]["internal"] == {
        "endpoints": ["10.0.0.1/8080", "10.0.0.2/8080"],
        "weights": {"10.0.0.1/8080": 3, "10.0.0.2/8080": 1},
    }


def test_pods_on_unknown_nodes_are_errors() -> None:
    """What the controller would report as an error is carried along."""
    (one,) = resolve_services(Inventory.of([service(), pod()]), settings=PlannerSettings())
    assert one.errors == ("skipping Pod p1 for Service default/web: Node n1 Not Found",)


def without_pods(inventory: Inventory, resolved: ResolvedService) -> Inventory:
    """Return what a dump without Pods holds, once the slices of the answer are written."""
    slices = {resolved.service.key: resolved.slices}
    return replace(inventory, pods={}, slices=slices)


def test_a_dump_without_pods_is_answered_from_its_slices() -> None:
    """Endpoints, ports, readiness and hints are those that the Pods would have given."""
    made = service(
        traffic_distribution="PreferSameZone",
        ports=(ServicePort(name="web", protocol="TCP", port=80, target_port="http"),),
        ip_families=("IPv4", "IPv6"),
        cluster_ips=("10.96.0.10", "fd00::10"),
    )
    pods = [
        pod("p1", "n1", ips=("10.0.0.1", "fd00::1")),
        pod("p2", "n2", ips=("10.0.0.2", "fd00::2"), ready=False),
        pod("p3", "n2", ips=("10.0.0.3", "fd00::3"), terminating=True),
    ]
    inventory = Inventory.of([node("n1"), node("n2", "zone-b"), made, *pods])
    (want,) = resolve_services(inventory, settings=PlannerSettings())
    (got,) = resolve_services(without_pods(inventory, want), settings=PlannerSettings())
    assert got.slices == want.slices
    assert got.nodes == want.nodes
    (reason,) = [one for one in got.reasons if one.code is ReasonCode.PODS_MISSING]
    assert (
        reason.message == "the input has no Pods, so 3 endpoints were taken from the EndpointSlices"
    )
    assert reason.fix.startswith("kubectl get nodes,pods,")


def test_a_wish_is_carried_out_without_pods_too() -> None:
    """Hints follow the Service, also where the slices were written before it asked."""
    inventory = Inventory.of([node("n1"), node("n2", "zone-b"), service(), pod()])
    (before,) = resolve_services(inventory, settings=PlannerSettings())
    asked = replace(
        without_pods(inventory, before), services=(service(traffic_distribution="PreferSameZone"),)
    )
    (after,) = resolve_services(asked, settings=PlannerSettings())
    ((hinted,),) = [one.endpoints for one in after.slices]
    assert hinted.hints is not None
    assert [hint.name for hint in hinted.hints.for_zones] == ["zone-a"]


def test_a_namespace_without_pods_is_answered_from_its_slices() -> None:
    """Pods of other namespaces do not make the Pods of this one deleted: they were not read."""
    inventory = Inventory.of([node("n1"), service(), pod()])
    (before,) = resolve_services(inventory, settings=PlannerSettings())
    other = pod("other", namespace="elsewhere")
    gone = replace(without_pods(inventory, before), pods={"elsewhere": (other,)})
    (after,) = resolve_services(gone, settings=PlannerSettings())
    assert after.nodes == before.nodes
    (reason,) = [one for one in after.reasons if one.code is ReasonCode.PODS_MISSING]
    assert reason.message == (
        "the input has no Pods of namespace default, so 1 endpoint was taken from the "
        "EndpointSlices"
    )


def test_pods_that_are_gone_from_a_dump_with_others_are_told() -> None:
    """Among other Pods of the namespace the missing ones count as deleted, and it says so."""
    inventory = Inventory.of([node("n1"), service(), pod()])
    (before,) = resolve_services(inventory, settings=PlannerSettings())
    other = pod("other", labels={"app": "other"})
    gone = replace(without_pods(inventory, before), pods={"default": (other,)})
    (after,) = resolve_services(gone, settings=PlannerSettings())
    assert [one.endpoints for one in after.slices] == [()]
    (reason,) = [one for one in after.reasons if one.code is ReasonCode.PODS_MISSING]
    assert reason.message == (
        "the EndpointSlices have 1 endpoint and the input has none of their Pods, "
        "so they count as deleted"
    )


def test_endpoints_that_name_no_pod_are_used() -> None:
    """Slices that were written without references still have their endpoints."""
    inventory = Inventory.of([node("n1"), service(), pod()])
    (want,) = resolve_services(inventory, settings=PlannerSettings())
    unnamed = tuple(
        replace(one, endpoints=tuple(replace(end, target_ref=None) for end in one.endpoints))
        for one in want.slices
    )
    bare = replace(inventory, pods={}, slices={want.service.key: unnamed})
    (got,) = resolve_services(bare, settings=PlannerSettings())
    internal = [port.selection.internal for ports in got.nodes.values() for port in ports]
    assert internal == [port.selection.internal for port in want.nodes["n1"]]


def test_mirrored_slices_stay_where_no_endpoints_were_read() -> None:
    """Without the Endpoints object nothing says that its mirrored slices are stale."""
    made = service(selector=None)
    mirrored = endpoint_slice(endpoint(), labels={MANAGED_BY_LABEL: MIRRORING_CONTROLLER})
    inventory = Inventory.of([node("n1"), made, mirrored])
    (got,) = resolve_services(inventory, settings=PlannerSettings())
    assert got.slices == (mirrored,)


def test_named_ports_without_a_number_are_left_out() -> None:
    """A slice that lacks the port of a Service gives Pods without it, and nothing fails."""
    made = service(
        ports=(
            ServicePort(name="web", protocol="TCP", port=80, target_port="http"),
            ServicePort(name="admin", protocol="TCP", port=81, target_port="admin"),
        )
    )
    inventory = Inventory.of([node("n1"), made, pod()])
    (want,) = resolve_services(inventory, settings=PlannerSettings())
    (got,) = resolve_services(without_pods(inventory, want), settings=PlannerSettings())
    assert got.slices == want.slices
