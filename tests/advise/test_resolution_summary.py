"""What many resolved Services come to."""

from __future__ import annotations

import pytest

from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import resolve_services
from keepclose.advise.resolution_summary import ResolutionSummary, summarise_resolution
from keepclose.slices.settings import PlannerSettings
from support.builders import node, pod, service

NODES = (node("n1", "zone-a"), node("n2", "zone-b"))


def summarise(*objects: object) -> ResolutionSummary:
    """Return the summary of these objects on two nodes in two zones."""
    inventory = Inventory.of([*NODES, *objects])
    resolved = resolve_services(inventory, settings=PlannerSettings())
    return summarise_resolution(resolved, inventory.nodes)


def test_shares_count_nodes_and_services_alike() -> None:
    """One Service is all in zone, another by half: three quarters stay."""
    near = service("near", traffic_distribution="PreferSameZone", selector={"app": "near"})
    far = service("far", selector={"app": "far"})
    pods = [
        pod(f"{app}{number}", name, ip=f"10.0.{len(app)}.{number}", labels={"app": app})
        for app in ("near", "far")
        for number, name in enumerate(("n1", "n2"), 1)
    ]
    got = summarise(near, far, *pods)
    assert (got.services, got.endpoints, got.ready, got.nodes, got.zones) == (2, 4, 4, 2, 2)
    assert got.in_zone == pytest.approx(0.75)
    assert got.mechanisms == {"PreferSameZone": 1, "None": 1}
    assert [(one.name, one.has_fix) for one in got.worth_a_look] == [("far", True)]


def test_pods_of_two_families_count_once() -> None:
    """A dual-stack Service has two slices and one endpoint for each Pod."""
    made = service(
        ip_families=("IPv4", "IPv6"), ip_family_policy="RequireDualStack",
        cluster_ips=("10.96.0.10", "fd00::10"),
    )  # fmt: skip
    got = summarise(made, pod(ips=("10.0.0.1", "fd00::1")), pod("p2", ready=False, ip="10.0.0.2"))
    assert (got.endpoints, got.ready) == (2, 1)


def test_failing_services_come_before_far_ones() -> None:
    """Then those with most endpoints that serve other zones."""
    services = [
        service(name, selector={"app": name}, traffic_distribution="PreferSameZone")
        for name in ("empty", "small", "large")
    ]
    pods = [
        pod(f"{app}{number}", "n1", ip=f"10.0.{len(app)}.{number}", labels={"app": app})
        for app, count in (("small", 1), ("large", 7))
        for number in range(1, count + 1)
    ]
    got = summarise(*services, *pods)
    assert [one.name for one in got.worth_a_look] == ["empty", "large", "small"]
    assert (got.worth_a_look[0].why, got.worth_a_look[0].nodes_without) == ("no ready endpoint", 2)
    assert got.without_endpoints == 1


def test_what_no_node_routes_has_no_share() -> None:
    """A headless Service counts, with its endpoints, and has nothing to note."""
    got = summarise(service(cluster_ip="None", cluster_ips=("None",)), pod())
    assert (got.services, got.endpoints, got.in_zone, got.worth_a_look) == (1, 1, None, ())


def test_what_no_node_reaches_has_no_share() -> None:
    """It has no traffic, so the mean of the others stays; plan counts alike."""
    near = service("near", traffic_distribution="PreferSameZone", selector={"app": "near"})
    empty = service("empty", selector={"app": "empty"})
    pods = [
        pod(f"near{number}", name, ip=f"10.0.4.{number}", labels={"app": "near"})
        for number, name in enumerate(("n1", "n2"), 1)
    ]
    got = summarise(near, empty, *pods)
    assert got.in_zone == pytest.approx(1.0)
    assert [(each.name, each.in_zone) for each in got.worth_a_look] == [("empty", None)]


def test_the_service_of_the_api_server_has_no_share() -> None:
    """Its endpoints are not in any zone, so it would say that traffic is far."""
    got = summarise(service("kubernetes", selector=None))
    assert (got.services, got.in_zone, got.without_endpoints, got.worth_a_look) == (1, None, 0, ())


def test_an_annotation_without_effect_is_worth_a_look() -> None:
    """What a Service asks for in vain is said, although nothing fails."""
    made = service(traffic_distribution="keepclose.dev/Balanced")
    got = summarise(made, pod(), pod("p2", "n2", ip="10.0.0.2"))
    (one,) = got.worth_a_look
    assert "keepclose.dev/Balanced" in one.why
