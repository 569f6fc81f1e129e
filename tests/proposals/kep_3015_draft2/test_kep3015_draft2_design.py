"""KEP-3015, second draft: applying node-level topology, and to which Services.

One test a statement.

Left out: which approach to pick, which is unresolved; all three are there.
"""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.service.types import ServicePort
from keepclose.routing.node_level import NodeLevelMode, NodeLevelOptions
from keepclose.routing.selection import DROPPED
from support.proposals.node_level_services import (
    DRAFT,
    HINTS,
    NODES,
    OVERLAY,
    daemon_set,
    daemons,
    is_local_first,
    replica_set,
    uses_all,
    zone_of,
)
from support.proposals.planned_services import count_writes, hints_of

MANUAL = {HINTS: "Node"}
WITHOUT_N1 = NODES[1:]
TEN = tuple(f"n{number}" for number in range(1, 11))
TWENTY = tuple(f"n{number}" for number in range(1, 21))
PORT = ServicePort(name="http", protocol="TCP", port=80, target_port=8080, node_port=30080)
NODE_PORT: dict[str, Any] = {
    "type": "NodePort",
    "ports": (PORT,),
    "external_traffic_policy": "Cluster",
}


def test_kep3015_draft2_applying_filters_to_local_endpoints() -> None:
    """Applying: with at least one endpoint on the node, only local ones are used."""
    planned = daemons(annotations=MANUAL, on=("n1", "n1", "n2", "n3"))
    assert planned.nodes_used("n1") == {"n1"}
    assert len(planned.used("n1")) == 2
    assert len(planned.used("n2")) == 1


def test_kep3015_draft2_applying_without_local_endpoints_nothing_changes() -> None:
    """Applying: without local endpoints the rules are those without node-level topology."""
    asked = daemons(annotations={OVERLAY: "Enabled"}, on=WITHOUT_N1)
    plain = daemons(on=WITHOUT_N1)
    assert asked.used("n1") == plain.used("n1")
    zoned: dict[str, Any] = {"traffic_distribution": "PreferSameZone", "on": WITHOUT_N1}
    asked = daemons(annotations={OVERLAY: "Enabled"}, **zoned)
    plain = daemons(**zoned)
    assert asked.used("n1") == plain.used("n1")
    assert len(plain.used("n1")) == 1


def test_kep3015_draft2_applying_is_for_the_cluster_policy() -> None:
    """Applying: it only applies to connections with Cluster traffic policy, in both directions."""
    planned = daemons(annotations=MANUAL, **NODE_PORT)
    for name in NODES:
        selection = planned.select(name)
        assert {one.node_name for one in selection.internal.endpoints} == {name}
        assert {one.node_name for one in selection.external.endpoints} == {name}


def test_kep3015_draft2_applying_internal_local_does_not_fall_back() -> None:
    """Applying: internalTrafficPolicy Local requires local delivery and must not fall back."""
    planned = daemons(annotations=MANUAL, on=WITHOUT_N1, internal_traffic_policy="Local")
    assert planned.select("n1").internal == DROPPED


def test_kep3015_draft2_applying_external_local_does_not_fall_back() -> None:
    """Applying: externalTrafficPolicy Local keeps the source, so it cannot go elsewhere."""
    spec: dict[str, Any] = {**NODE_PORT, "external_traffic_policy": "Local"}
    planned = daemons(annotations=MANUAL, on=WITHOUT_N1, **spec)
    assert planned.select("n1").external == DROPPED
    assert {one.node_name for one in planned.select("n2").external.endpoints} == {"n2"}


def test_kep3015_draft2_manual_users_tag_services() -> None:
    """Manual: users explicitly tag services where they want this behaviour."""
    assert is_local_first(daemons(annotations=MANUAL))
    assert uses_all(daemons())


@pytest.mark.parametrize("key", [HINTS, "service.kubernetes.io/topology-mode"])
def test_kep3015_draft2_manual_the_existing_annotation_says_node(key: str) -> None:
    """Manual: service.kubernetes.io/topology-aware-hints set to Node asks for it.

    The annotation has been renamed since; both names are known.
    """
    planned = daemons(annotations={key: "Node"})
    assert set(hints_of(planned.slices).values()) == {((), (name,)) for name in NODES}


def test_kep3015_draft2_manual_auto_means_zones() -> None:
    """Manual: Auto in the same annotation means zone-level rather than node-level topology."""
    planned = daemons(annotations={HINTS: "Auto"})
    hints = set(hints_of(planned.slices).values())
    assert hints == {((zone_of(name),), ()) for name in NODES}


def test_kep3015_draft2_manual_one_annotation_cannot_ask_for_both() -> None:
    """Manual: a service could not use both node-level and zone-level topology that way."""
    planned = daemons(annotations=MANUAL, on=WITHOUT_N1)
    assert planned.zones_used("n1") == {"zone-a", "zone-b", "zone-c"}


def test_kep3015_draft2_manual_zones_only_matter_where_nodes_failed() -> None:
    """Manual: zone-level topology would only be useful when node-level topology failed."""
    both = daemons(annotations={OVERLAY: "Enabled"}, traffic_distribution="PreferSameZone")
    node_only = daemons(annotations=MANUAL)
    for name in NODES:
        assert both.used(name) == node_only.used(name)


@pytest.mark.parametrize(
    ("annotations", "spec"),
    [
        pytest.param({HINTS: "Auto"}, {}, id="Auto"),
        pytest.param({}, {"traffic_distribution": "PreferSameZone"}, id="PreferSameZone"),
    ],
)
def test_kep3015_draft2_manual_a_separate_annotation_allows_both(
    annotations: dict[str, str], spec: dict[str, Any]
) -> None:
    """Manual: a separate annotation for node-level topology covers the case of both."""
    planned = daemons(annotations={**annotations, OVERLAY: "Enabled"}, **spec)
    assert is_local_first(planned)
    hints = set(hints_of(planned.slices).values())
    assert hints == {((zone_of(name),), (name,)) for name in NODES}


def test_kep3015_draft2_automatic_the_controller_determines_it() -> None:
    """Automatic: the controller determines which services would benefit, without being asked."""
    planned = daemons(NodeLevelMode.AUTO)
    assert planned.service.metadata.annotations == {}
    assert is_local_first(planned)


def test_kep3015_draft2_automatic_an_endpoint_on_every_node() -> None:
    """Automatic: it looks for services that have an endpoint on every node."""
    strict = NodeLevelOptions(max_missing_fraction=0.0, min_missing=0)
    assert is_local_first(daemons(NodeLevelMode.AUTO, options=strict))
    assert uses_all(daemons(NodeLevelMode.AUTO, options=strict, on=WITHOUT_N1))


@pytest.mark.parametrize(("missing", "is_on"), [(1, True), (2, False)])
def test_kep3015_draft2_automatic_no_more_than_n_nodes_are_missing(
    missing: int, is_on: bool
) -> None:
    """Automatic: almost every node may mean that no more than N nodes are missing an endpoint."""
    options = NodeLevelOptions(max_missing_fraction=0.0, min_missing=1)
    planned = daemons(NodeLevelMode.AUTO, nodes=TEN, on=TEN[missing:], options=options)
    assert is_local_first(planned) == is_on


@pytest.mark.parametrize(("missing", "is_on"), [(2, True), (3, False)])
def test_kep3015_draft2_automatic_no_more_than_n_percent_are_missing(
    missing: int, is_on: bool
) -> None:
    """Automatic: almost every node may mean that no more than N% of nodes are missing one."""
    options = NodeLevelOptions(max_missing_fraction=0.1, min_missing=0)
    planned = daemons(NodeLevelMode.AUTO, nodes=TWENTY, on=TWENTY[missing:], options=options)
    assert is_local_first(planned) == is_on


def test_kep3015_draft2_automatic_pods_of_one_daemon_set() -> None:
    """Automatic: all endpoints have an OwnerReference pointing to the same DaemonSet."""
    planned = daemons(NodeLevelMode.AUTO)
    assert is_local_first(planned)
    planned.start("n1", owner=daemon_set("other"))
    planned.sync()
    assert uses_all(planned)


def test_kep3015_draft2_automatic_other_owners_do_not_count() -> None:
    """Automatic: pods on every node that are no DaemonSet's do not qualify."""
    assert uses_all(daemons(NodeLevelMode.AUTO, owner=replica_set()))


def test_kep3015_draft2_automatic_all_criteria_must_be_met() -> None:
    """Automatic: the hint is set only if all relevant criteria are met."""
    few = daemons(NodeLevelMode.AUTO, on=("n1", "n2", "n3"))
    foreign = daemons(NodeLevelMode.AUTO, owner=replica_set())
    both = daemons(NodeLevelMode.AUTO)
    marked = [any(nodes for _, nodes in hints_of(one.slices).values()) for one in (few, foreign)]
    assert marked == [False, False]
    assert all(nodes for _, nodes in hints_of(both.slices).values())


def test_kep3015_draft2_automatic_a_field_of_hints_is_set() -> None:
    """Automatic: a new field in the Hints of the EndpointSlices is set: forNodes."""
    planned = daemons(NodeLevelMode.AUTO)
    for endpoint_slice in planned.slices:
        for endpoint in endpoint_slice.endpoints:
            assert endpoint.hints is not None
            assert [hint.name for hint in endpoint.hints.for_nodes] == [endpoint.node_name]


def test_kep3015_draft2_automatic_the_proxy_uses_the_field() -> None:
    """Automatic: kube-proxy uses the field to know to do node-level topology.

    Proxies see no annotation here, only slices.
    """
    planned = daemons(NodeLevelMode.AUTO, gates=DRAFT)
    assert is_local_first(planned, DRAFT)


def test_kep3015_draft2_semi_automatic_requires_the_annotation() -> None:
    """Semi-Automatic: the annotation must be set before endpoints are investigated."""
    assert uses_all(daemons(NodeLevelMode.SEMI_AUTO))
    assert is_local_first(daemons(NodeLevelMode.SEMI_AUTO, annotations={OVERLAY: "Auto"}))


def test_kep3015_draft2_semi_automatic_still_investigates() -> None:
    """Semi-Automatic: with the annotation the endpoints decide whether the feature is enabled."""
    asked = {OVERLAY: "Auto"}
    assert uses_all(daemons(NodeLevelMode.SEMI_AUTO, annotations=asked, on=("n1", "n2")))
    assert uses_all(daemons(NodeLevelMode.SEMI_AUTO, annotations=asked, owner=replica_set()))


def test_kep3015_draft2_opt_out_by_annotation() -> None:
    """Automatic-With-Opt-Out: the controller requires that an annotation is not set."""
    assert is_local_first(daemons(NodeLevelMode.AUTO))
    assert uses_all(daemons(NodeLevelMode.AUTO, annotations={OVERLAY: "Disabled"}))


@pytest.mark.parametrize("value", ["Auto", "Disabled"])
def test_kep3015_draft2_opt_out_by_the_hints_annotation(value: str) -> None:
    """Automatic-With-Opt-Out: the topology-aware-hints annotation can be the one, too."""
    planned = daemons(NodeLevelMode.AUTO, annotations={HINTS: value})
    assert not any(nodes for _, nodes in hints_of(planned.slices).values())


def test_kep3015_draft2_opt_out_must_come_before_the_upgrade() -> None:
    """Automatic-With-Opt-Out: services that did not opt out are changed by an upgrade."""
    forgotten = daemons(NodeLevelMode.AUTO, gates=DRAFT.without(*DRAFT.enabled))
    foresighted = daemons(
        NodeLevelMode.AUTO,
        gates=DRAFT.without(*DRAFT.enabled),
        annotations={OVERLAY: "Disabled"},
    )
    for planned, want in ((forgotten, True), (foresighted, False)):
        assert uses_all(planned, DRAFT)
        planned.settings = daemons(NodeLevelMode.AUTO, gates=DRAFT).settings
        assert (count_writes(planned.sync()) > 0) == want
        assert is_local_first(planned, DRAFT) == want
