"""Whatever the cluster, an explanation agrees with the resolution, and blames nothing at random."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.advise.explaining.causes import CauseWeight, TrafficCauseCode
from keepclose.advise.explaining.explanation import TrafficFlow, explain_service
from keepclose.advise.explaining.pod_paths import ClientKind, Clients, find_clients
from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import resolve_services
from keepclose.cli.explain.documents import explanation_document, explanation_markdown
from keepclose.cli.explain.text import print_explanation
from keepclose.cli.render.screen import Screen
from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForNode,
    ForZone,
)
from keepclose.model.meta import ObjectMeta, ObjectReference
from keepclose.model.reported import (
    AwaitedCondition,
    ContainerEnd,
    ContainerWait,
    ReportedCondition,
    ReportedContainer,
    ReportedPod,
    ReportedPodSpec,
    ReportedPodStatus,
    ReportedState,
)
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.workload import Container, ContainerPort, PodIP
from keepclose.slices.settings import PlannerSettings
from support.builders import endpoint_slice, node, service
from support.generated_clusters import GeneratedCluster, clusters

OF_SLICES = {
    TrafficCauseCode.SLICES_STALE,
    TrafficCauseCode.SLICES_NOT_WRITTEN,
    TrafficCauseCode.SLICES_OF_OTHER_CONTROLLER,
    TrafficCauseCode.SLICES_OF_OLDER_SERVICE,
    TrafficCauseCode.HINTS_NOT_WRITTEN,
    TrafficCauseCode.HINTS_LEFT_OVER,
    TrafficCauseCode.HINTS_DIFFER,
}


def with_slices(cluster: GeneratedCluster) -> Inventory:
    """Return the cluster with the slices that its controller writes."""
    (resolved,) = resolve_services(cluster.inventory, settings=cluster.settings)
    return replace(cluster.inventory, slices={cluster.service.key: resolved.slices})


@settings(deadline=None, max_examples=60)
@given(clusters())
def test_nodes_use_what_resolve_says(cluster: GeneratedCluster) -> None:
    """Groups of nodes are an economy: each node is as if it were selected for alone."""
    inventory = with_slices(cluster)
    (resolved,) = resolve_services(inventory, settings=cluster.settings)
    answer = explain_service(inventory, cluster.service, settings=cluster.settings)
    got = {
        node: [
            (port.title, port.selection.mode, port.selection.internal, port.selection.external)
            for port in group.ports
        ]
        for group in answer.nodes
        for node in group.nodes
    }
    assert got == {
        node: [
            (port.title, port.selection.mode, port.selection.internal, port.selection.external)
            for port in ports
        ]
        for node, ports in resolved.nodes.items()
    }


@settings(deadline=None, max_examples=60)
@given(clusters())
def test_slices_as_planned_are_never_to_blame(cluster: GeneratedCluster) -> None:
    """After the controller has written its plan, no cause says that slices or hints are others."""
    inventory = with_slices(cluster)
    answer = explain_service(inventory, cluster.service, settings=cluster.settings)
    assert not OF_SLICES & {cause.code for cause in answer.causes}, answer.causes


@settings(deadline=None, max_examples=60)
@given(clusters())
def test_the_verdict_follows_from_the_routes(cluster: GeneratedCluster) -> None:
    """Blocked without a node that reaches an endpoint, and only where some node does not."""
    answer = explain_service(cluster.inventory, cluster.service, settings=cluster.settings)
    reached = [
        bool(port.selection.internal.endpoints) for group in answer.nodes for port in group.ports
    ]
    if reached and not any(reached):
        assert answer.flow is TrafficFlow.BLOCKED
        assert answer.causes[0].weight is CauseWeight.BLOCKS
    if answer.flow is TrafficFlow.BLOCKED:
        assert not all(reached) or not reached


@settings(deadline=None, max_examples=60)
@given(clusters(), st.data())
def test_shares_of_all_pods_are_the_whole(cluster: GeneratedCluster, data: st.DataObject) -> None:
    """Of one client's connections every Pod has its share, and together they have all of them."""
    nodes = [node.name for node in cluster.inventory.nodes]
    found = find_clients(cluster.inventory, data.draw(st.sampled_from(nodes)), "default")
    assert isinstance(found, Clients)
    assert found.kind is ClientKind.NODE
    total, refused = 0.0, False
    for pod in cluster.inventory.pods.get("default", ()):
        answer = explain_service(
            cluster.inventory,
            cluster.service,
            settings=cluster.settings,
            clients=found,
            target=pod,
        )
        for share in answer.shares:
            assert share.low == share.high
            total += share.high
        gets = any(share.high > 0.0 for share in answer.shares)
        assert gets is (answer.flow is not TrafficFlow.BLOCKED), answer.causes
        if not gets and answer.shares:
            assert answer.causes[0].weight is CauseWeight.BLOCKS
        ports = [port for group in answer.nodes for port in group.ports]
        refused = not any(port.selection.internal.endpoints for port in ports)
    assert refused or not cluster.inventory.pods or abs(total - 1.0) < 1e-9


@settings(deadline=None, max_examples=40)
@given(clusters(), st.booleans())
def test_every_explanation_is_rendered(cluster: GeneratedCluster, is_narrow: bool) -> None:
    """Whatever is found, every form of it can be shown."""
    answer = explain_service(cluster.inventory, cluster.service, settings=cluster.settings)
    screen = Screen(width=60 if is_narrow else 80, force_terminal=False)
    with screen.capture() as captured:
        print_explanation(screen, answer)
    assert str(cluster.service.key) in captured.get()
    assert explanation_markdown(answer).startswith("# ")
    assert explanation_document(answer)["name"] == cluster.service.metadata.name
    assert isinstance(answer.service, Service)
    assert all(
        isinstance(each, EndpointSlice) for each in with_slices(cluster).slices[answer.service.key]
    )


@settings(deadline=None, max_examples=60)
@given(clusters())
def test_loads_agree_with_the_figures(cluster: GeneratedCluster) -> None:
    """The busiest endpoint of the table is that of the figures, which advice is judged by."""
    answer = explain_service(cluster.inventory, cluster.service, settings=cluster.settings)
    loads = [endpoint.load for endpoint in answer.endpoints if endpoint.load is not None]
    zones = [zone.load for zone in answer.zones if zone.load is not None]
    assert answer.traffic is not None
    assert max(loads, default=0.0) == max(zones, default=0.0)
    assert abs(max(loads, default=0.0) - answer.traffic.busiest) < 1e-9


ODD = st.sampled_from(["", "x", "10.0.0.1", "fd00::1", "::ffff:1.2.3.4", "a/b", "\x1b[2J", "n1"])
ODD_ENDPOINTS = st.builds(
    Endpoint,
    addresses=st.lists(ODD, max_size=2).map(tuple),
    conditions=st.builds(
        EndpointConditions,
        ready=st.none() | st.booleans(),
        serving=st.none() | st.booleans(),
        terminating=st.none() | st.booleans(),
    ),
    target_ref=st.none()
    | st.builds(
        ObjectReference, kind=st.sampled_from(["Pod", "", "VM"]), namespace=ODD, name=ODD, uid=ODD
    ),
    node_name=st.none() | ODD,
    zone=st.none() | ODD,
    hints=st.none()
    | st.builds(
        EndpointHints,
        for_zones=st.lists(st.builds(ForZone, name=ODD), max_size=2).map(tuple),
        for_nodes=st.lists(st.builds(ForNode, name=ODD), max_size=2).map(tuple),
    ),
)
ODD_PORTS = st.lists(
    st.builds(
        EndpointPort,
        name=st.none() | ODD,
        protocol=st.none() | ODD,
        port=st.none() | st.sampled_from([0, 80, 8080]),
    ),
    max_size=2,
).map(tuple)
ODD_PODS = st.builds(
    ReportedPod,
    metadata=st.builds(
        ObjectMeta,
        name=ODD,
        namespace=st.just("default"),
        labels=st.dictionaries(st.sampled_from(["app", "tier", ""]), ODD, max_size=2),
        deletion_timestamp=st.none() | ODD,
    ),
    spec=st.builds(
        ReportedPodSpec,
        node_name=ODD,
        host_network=st.booleans(),
        containers=st.lists(
            st.builds(
                Container,
                name=ODD,
                ports=st.lists(
                    st.builds(ContainerPort, name=ODD, container_port=st.integers(0, 3)),
                    max_size=2,
                ).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
        readiness_gates=st.lists(st.builds(AwaitedCondition, condition_type=ODD), max_size=1).map(
            tuple
        ),
    ),
    status=st.builds(
        ReportedPodStatus,
        phase=st.sampled_from(["", "Running", "Failed", "Pending"]),
        pod_ip=ODD,
        pod_ips=st.lists(st.builds(PodIP, ip=ODD), max_size=2).map(tuple),
        conditions=st.lists(
            st.builds(ReportedCondition, type=st.sampled_from(["Ready", "x"]), status=ODD),
            max_size=2,
        ).map(tuple),
        container_statuses=st.lists(
            st.builds(
                ReportedContainer,
                name=ODD,
                ready=st.booleans(),
                started=st.none() | st.booleans(),
                state=st.builds(
                    ReportedState,
                    waiting=st.none() | st.builds(ContainerWait, reason=ODD),
                    terminated=st.none() | st.builds(ContainerEnd, exit_code=st.integers(0, 2)),
                ),
            ),
            max_size=2,
        ).map(tuple),
    ),
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(ODD_PODS, max_size=4),
    st.lists(ODD_ENDPOINTS, max_size=4),
    ODD_PORTS,
    st.none() | st.dictionaries(st.sampled_from(["app", "tier"]), ODD, max_size=2),
    st.sampled_from(["http", 8080, "", 0, None]),
    st.integers(-1, 3),
)
def test_objects_that_no_server_admitted_are_explained(  # noqa: PLR0917 - hypothesis passes them
    pods: list[ReportedPod],
    endpoints: list[Endpoint],
    ports: tuple[EndpointPort, ...],
    selector: dict[str, str] | None,
    target_port: int | str | None,
    target: int,
) -> None:
    """A live cluster may have any object; none of them ends the explanation."""
    made = service(
        selector=selector,
        traffic_distribution="PreferSameNode",
        ports=(ServicePort(name="http", protocol="", port=80, target_port=target_port),),
    )
    held = endpoint_slice(*endpoints, ports=ports)
    inventory = Inventory.of([node("n1"), node("", None), made, held, *pods])
    answer = explain_service(
        inventory,
        made,
        settings=PlannerSettings(),
        target=pods[target] if 0 <= target < len(pods) else None,
    )
    screen = Screen(width=80, force_terminal=False)
    with screen.capture() as captured:
        print_explanation(screen, answer)
    assert "\x1b" not in captured.get()
    assert "\x1b" not in explanation_markdown(answer)
    assert explanation_document(answer)["traffic"] == answer.flow.value
