"""What is advised to a Service: only what helps, and harms no endpoint, policy or client."""

from __future__ import annotations

import pytest

from keepclose.advise.advice import find_harm
from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import Mechanism, change_patch, is_governed, switch_to
from keepclose.advise.resolution import ResolvedService, resolve_services
from keepclose.advise.routed_traffic import RoutedTraffic
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.slices.settings import PlannerSettings
from support.builders import node, pod, service

ZONES = ("zone-a", "zone-b", "zone-c")
PREFER_ZONE = (
    'kubectl patch service -n default web -p \'{"spec":{"trafficDistribution":"PreferSameZone"}}\''
)


AUTO = (
    "kubectl annotate service -n default web --overwrite service.kubernetes.io/topology-mode=Auto"
)


def inventory_of(made: Service, *counts: int, nodes: tuple[int, ...] = (2, 2, 2)) -> Inventory:
    """Return a cluster of some nodes in each zone, with some pods of the Service in each."""
    objects: list[object] = [made]
    for zone, count, machines in zip(ZONES, counts, nodes, strict=True):
        objects += [node(f"{zone}-{number}", zone) for number in range(machines)]
        objects += [
            pod(
                f"{zone}-pod-{number}",
                f"{zone}-{number % machines}",
                ip=f"10.{ZONES.index(zone)}.0.{number + 1}",
            )
            for number in range(count)
        ]
    return Inventory.of(objects)


def answer(inventory: Inventory, settings: PlannerSettings = PlannerSettings()) -> ResolvedService:  # noqa: B008
    """Return the answer for the only Service of a cluster."""
    (resolved,) = resolve_services(inventory, settings=settings)
    return resolved


def commands(resolved: ResolvedService) -> list[str]:
    """Return the commands that the reasons of a Service and of its nodes advise."""
    reasons = [*resolved.strategy.reasons, *resolved.reasons]
    reasons += [
        reason
        for ports in resolved.nodes.values()
        for port in ports
        for reason in port.selection.reasons
    ]
    fixes = dict.fromkeys(reason.fix for reason in reasons)
    return [fix for fix in fixes if fix.startswith(("kubectl", "--"))]


def test_an_even_placement_is_advised_to_prefer_its_zone() -> None:
    """Two endpoints in each of three equal zones: all traffic can stay at no cost."""
    assert commands(answer(inventory_of(service(), 2, 2, 2))) == [PREFER_ZONE]


def test_the_older_value_is_advised_where_only_that_is_known() -> None:
    """Without the gate of PreferSameZone the command sets PreferClose."""
    settings = PlannerSettings(gates=FeatureGates().without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION))
    (command,) = commands(answer(inventory_of(service(), 2, 2, 2), settings))
    assert '"trafficDistribution":"PreferClose"' in command


@pytest.mark.parametrize(
    ("made", "counts"),
    [
        pytest.param(service(), (1, 0, 0), id="one endpoint"),
        pytest.param(service(), (0, 0, 0), id="no endpoint"),
        pytest.param(service(cluster_ip="None", cluster_ips=("None",)), (2, 2, 2), id="headless"),
        pytest.param(
            service(type="ExternalName", external_name="example.com", cluster_ip="", ports=()),
            (2, 2, 2),
            id="only a DNS name",
        ),
        pytest.param(service("kubernetes", selector=None), (2, 2, 2), id="default/kubernetes"),
        pytest.param(
            service(labels={"service.kubernetes.io/service-proxy-name": "other"}),
            (2, 2, 2),
            id="another proxy's",
        ),
        pytest.param(service(internal_traffic_policy="Local"), (2, 2, 2), id="Local has no use"),
        pytest.param(
            service(type="NodePort", external_traffic_policy="Local"),
            (3, 1, 0),
            id="Local drops at some nodes",
        ),
        pytest.param(
            service(
                annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"}, traffic_distribution="PreferClose"
            ),
            (4, 2, 1),
            id="overridden, and better so",
        ),
    ],
)
def test_no_command_where_it_would_harm_or_change_nothing(
    made: Service, counts: tuple[int, int, int]
) -> None:
    """Load, policies, client addresses and objects of others are left alone."""
    assert commands(answer(inventory_of(made, *counts))) == []


def test_a_mechanism_with_a_bound_is_advised_where_the_zone_alone_would_overload() -> None:
    """PreferSameZone would give one endpoint a third of all traffic; Auto does not."""
    resolved = answer(inventory_of(service(), 9, 1, 0))
    assert commands(resolved) == [AUTO]
    (reason,) = resolved.strategy.reasons
    assert reason.effect == "in zone 33 -> 44 %, busiest 1.00 -> 1.11x"


def test_an_advised_mechanism_removes_what_takes_precedence() -> None:
    """One command drops the annotation that would win, and sets the field."""
    made = service(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto", "team": "shop"})
    change = switch_to(Mechanism.SAME_ZONE, made, PlannerSettings())
    assert change is not None
    assert change.command == (
        "kubectl patch service -n default web -p "
        """'{"metadata":{"annotations":{"service.kubernetes.io/topology-mode":null}},"""
        """"spec":{"trafficDistribution":"PreferSameZone"}}'"""
    )
    assert change_patch(made, change.service) == {
        "metadata": {"annotations": {TOPOLOGY_MODE_ANNOTATION: None}},
        "spec": {"trafficDistribution": "PreferSameZone"},
    }
    assert is_governed(Mechanism.SAME_ZONE, change.service, PlannerSettings())
    assert change_patch(made, made) == {}
    assert change.service.metadata.annotations == {"team": "shop"}
    assert switch_to(Mechanism.AUTO, made, PlannerSettings()) is None
    assert switch_to(Mechanism.BALANCED, made, PlannerSettings()) is None


def test_only_one_zone_has_nothing_to_gain() -> None:
    """Where all nodes are in one zone, traffic cannot come closer."""
    objects = [service(), node("n1"), node("n2"), pod(), pod("p2", "n2", ip="10.0.0.2")]
    assert commands(answer(Inventory.of(objects))) == []


def test_a_gate_is_named_where_switching_it_on_helps() -> None:
    """A gate that is off is advised for even placements, and not where it overloads."""
    settings = PlannerSettings(gates=FeatureGates().without(Gate.SERVICE_TRAFFIC_DISTRIBUTION))
    made = service(traffic_distribution="PreferSameZone")
    want = ["--feature-gates ServiceTrafficDistribution=true"]
    assert commands(answer(inventory_of(made, 2, 2, 2), settings)) == want
    assert commands(answer(inventory_of(made, 9, 1, 0), settings)) == []


def test_an_annotation_that_keeps_traffic_away_is_advised_to_go() -> None:
    """Auto gives up with too few endpoints; the field that it overrides would do."""
    made = service(
        annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"}, traffic_distribution="PreferClose"
    )
    objects = [made, *(node(f"{zone}-0", zone, cpu=None) for zone in ZONES)]
    objects += [pod(zone, f"{zone}-0", ip=f"10.0.0.{n}") for n, zone in enumerate(ZONES, 1)]
    assert commands(answer(Inventory.of(objects))) == [
        f"kubectl annotate service -n default web {TOPOLOGY_MODE_ANNOTATION}-"
    ]


def test_an_unknown_value_in_the_annotation_is_replaced_there() -> None:
    """The annotation wins over the field, so the command changes the annotation."""
    made = service(annotations={"keepclose.dev/traffic-distribution": "Nearest"})
    assert commands(answer(inventory_of(made, 2, 2, 2))) == [
        (
            "kubectl annotate service -n default web --overwrite "
            "keepclose.dev/traffic-distribution=PreferSameZone"
        )
    ]


def test_the_advice_is_the_same_when_one_node_is_asked_about() -> None:
    """The whole cluster is tried, whichever nodes the answer is about."""
    inventory = inventory_of(service(), 9, 1, 0)
    (resolved,) = resolve_services(inventory, settings=PlannerSettings(), node="zone-a-0")
    assert commands(resolved) == commands(answer(inventory)) == [AUTO]


def test_a_load_is_never_rounded_to_its_bound() -> None:
    """Load and bound are shown so that the reader sees which one is larger."""
    now = RoutedTraffic(in_zone=0.5, busiest=1.0)
    assert find_harm(RoutedTraffic(in_zone=1.0, busiest=1.21), now, bound=0.2) == (
        "the busiest endpoint would get 1.21x its fair share, beyond 1.2x"
    )
    assert find_harm(RoutedTraffic(in_zone=1.0, busiest=1.3), now, bound=0.25).endswith("1.25x")
