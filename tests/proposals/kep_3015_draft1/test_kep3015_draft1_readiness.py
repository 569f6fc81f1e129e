"""KEP-3015, first draft: Graduation Criteria and the Production Readiness Review.

One test a statement. How fast an answer comes is told by the hops that it takes: one that stays
on the node has none.

Left out: that there are no metrics for single Services, what other proxies have to do, calls to
cloud providers, drawbacks, and dates.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.requests import SERVICES as SERVICE_KIND
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import DEFAULT_GATES, FeatureGates, Gate, parse_gates
from keepclose.model.service.types import Service
from keepclose.ruleset import TableListing
from keepclose.testing.api_server import Served, serving
from support.controllers import world
from support.live.sights import POST, PUT, quick
from support.proposals.api_outages import outlast_outage
from support.proposals.policy_services import (
    NODES,
    OFF,
    ON,
    exposed,
    external,
    internal,
    on,
    outcomes,
    sliced,
    trace,
)
from support.ruleset.tracednodes import make_ruleset

JsonObject = dict[str, Any]
SERVICES = "/api/v1/namespaces/default/services"
MERGE_PATCH = "application/merge-patch+json"
ENABLED = parse_gates("PreferLocalTrafficPolicy=true")
POLICIES = ("Cluster", "Local", "PreferLocal")
EVERYWHERE = sliced(*(on(name) for name in NODES))
SOME = sliced(on("n1"), on("n3"))
PREFERRED = {"externalTrafficPolicy": "PreferLocal", "internalTrafficPolicy": "PreferLocal"}


@pytest.fixture
async def enabled(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve with the gate."""
    async with serving(tmp_path / "enabled", gates=ENABLED) as api:
        yield api


def body(**spec: str) -> JsonObject:
    """Return a NodePort Service as the API takes it."""
    return {
        "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "ports": [{"port": 80}], **spec},
    }


async def patch(api: Served, **spec: str) -> tuple[int, JsonObject]:
    """Change the Service and return the status and the answer."""
    reply = await api.call("PATCH", f"{SERVICES}/web", {"spec": spec}, type=MERGE_PATCH)
    return reply.status, reply.json


def test_kep3015_draft1_alpha_is_behind_a_feature_flag() -> None:
    """Graduation, Alpha: the feature is implemented behind a feature flag, off by default."""
    assert not DEFAULT_GATES.on(Gate.PREFER_LOCAL_TRAFFIC_POLICY)
    asked = exposed(internal="PreferLocal")
    assert internal(asked, EVERYWHERE, "n1", OFF) != internal(asked, EVERYWHERE, "n1", ON)


def test_kep3015_draft1_enablement_the_gate_has_this_name() -> None:
    """Enablement: the feature gate's name is PreferLocalTrafficPolicy."""
    gates = parse_gates("PreferLocalTrafficPolicy=true")
    assert internal(exposed(internal="PreferLocal"), EVERYWHERE, "n1", gates) == {"10.0.1.1"}


async def test_kep3015_draft1_enablement_the_apiserver_depends_on_the_gate(
    tmp_path: Path, enabled: Served
) -> None:
    """Enablement: the apiserver depends on the gate; without it the value is not supported."""
    async with serving(tmp_path / "disabled") as api:
        refused = await api.call("POST", SERVICES, body(**PREFERRED))
        assert refused.status == 422
        fields = {cause["field"] for cause in refused.json["details"]["causes"]}
        assert fields == {"spec.externalTrafficPolicy", "spec.internalTrafficPolicy"}
    await enabled.create(SERVICES, body(**PREFERRED))


@pytest.mark.parametrize("is_external", [False, True])
def test_kep3015_draft1_enablement_the_proxy_depends_on_the_gate(is_external: bool) -> None:
    """Enablement: kube-proxy depends on the gate; without it PreferLocal means Cluster."""
    asked = exposed(external="PreferLocal", internal="PreferLocal")
    new = trace(asked, EVERYWHERE, "n1", is_external=is_external, gates=ON)
    old = trace(asked, EVERYWHERE, "n1", is_external=is_external, gates=OFF)
    assert (len(new[0]), len(old[0])) == (1, 4)


async def test_kep3015_draft1_enablement_changes_no_default(enabled: Served) -> None:
    """Enablement: enabling the feature changes no default behaviour of new Services."""
    created = await enabled.create(SERVICES, body())
    assert created["spec"]["externalTrafficPolicy"] == "Cluster"
    assert created["spec"]["internalTrafficPolicy"] == "Cluster"


def _rules(asked: Service, slices: list[EndpointSlice], gates: FeatureGates) -> list[str]:
    ruleset = make_ruleset([asked], slices, gates=gates)
    return list(ruleset.reconcile(TableListing()).phases)


def test_kep3015_draft1_rollback_services_are_still_handled() -> None:
    """Enablement: once disabled, PreferLocal services are handled in a reasonable manner."""
    asked = exposed(external="PreferLocal", internal="PreferLocal")
    for slices in (EVERYWHERE, SOME):
        for name in NODES:
            assert outcomes(asked, slices, name, OFF) == outcomes(exposed(), slices, name, OFF)


async def test_kep3015_draft1_rollback_stored_values_stay(tmp_path: Path) -> None:
    """Enablement: the feature can be disabled with services of this policy; they are kept."""
    async with serving(tmp_path, gates=ENABLED) as api:
        await api.create(SERVICES, body(**PREFERRED))
    async with serving(tmp_path) as api:
        stored = (await api.get(f"{SERVICES}/web"))["spec"]
        assert {field: stored[field] for field in PREFERRED} == PREFERRED
        assert (await patch(api, sessionAffinity="ClientIP"))[0] == 200


def test_kep3015_draft1_reenabling_it_starts_working_again() -> None:
    """Enablement: when the feature is reenabled, it starts working again."""
    asked = exposed(internal="PreferLocal")
    found = [internal(asked, EVERYWHERE, "n1", gates) for gates in (ON, OFF, ON)]
    assert found == [{"10.0.1.1"}, {f"10.0.{number}.1" for number in range(1, 5)}, {"10.0.1.1"}]


async def test_kep3015_draft1_rollout_no_such_services_before(tmp_path: Path) -> None:
    """Rollout: at the initial rollout there cannot already be any PreferLocal services."""
    async with serving(tmp_path) as api:
        for field in PREFERRED:
            refused = await api.call("POST", SERVICES, body(**{field: "PreferLocal"}))
            assert refused.status == 422
            assert f"spec.{field}" in refused.message
        await api.create(SERVICES, body())
        assert (await patch(api, externalTrafficPolicy="PreferLocal"))[0] == 422


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_kep3015_draft1_rollout_does_not_impact_running_workloads(policy: str) -> None:
    """Rollout: already running workloads are not impacted: their rules stay as they are."""
    asked = exposed(external=policy, internal=policy)
    for slices in (EVERYWHERE, SOME, sliced(on("n3"))):
        assert _rules(asked, slices, ON) == _rules(asked, slices, OFF)


async def test_kep3015_draft1_rerollout_updates_existing_services(tmp_path: Path) -> None:
    """Rollout: a re-rollout updates the behaviour of existing PreferLocal services."""
    async with serving(tmp_path, gates=ENABLED) as api:
        await api.create(SERVICES, body(**PREFERRED))
    async with serving(tmp_path) as api:
        assert (await patch(api, sessionAffinity="ClientIP"))[0] == 200
    async with serving(tmp_path, gates=ENABLED) as api:
        stored = (await api.get(f"{SERVICES}/web"))["spec"]
        asked = exposed(
            external=stored["externalTrafficPolicy"], internal=stored["internalTrafficPolicy"]
        )
    assert internal(asked, EVERYWHERE, "n1") == external(asked, EVERYWHERE, "n1") == {"10.0.1.1"}


def test_kep3015_draft1_rollout_never_turns_a_service_local() -> None:
    """Rollout: no combination of rollouts switches a service to Local, so none drops traffic."""
    for policy, gates in product(("Cluster", "PreferLocal"), (ON, OFF)):
        asked = exposed(external=policy, internal=policy)
        for name in NODES:
            assert internal(asked, sliced(on("n3")), name, gates) == {"10.0.3.1"}
            assert external(asked, sliced(on("n3")), name, gates) == {"10.0.3.1"}


def test_kep3015_draft1_rollout_changes_efficiency_only() -> None:
    """Rollout: services just become more or less efficient: all of them stay available."""
    asked = exposed(external="PreferLocal", internal="PreferLocal")
    by_gate = {gates: _service_level(asked, SOME, gates) for gates in (ON, OFF)}
    assert [availability for availability, _ in by_gate.values()] == [1.0, 1.0]
    assert by_gate[ON][1] > by_gate[OFF][1]


@pytest.mark.parametrize("policy", ["Local", "Cluster"])
async def test_kep3015_draft1_rollback_metrics_a_user_can_switch_back(
    enabled: Served, policy: str
) -> None:
    """Rollback: a user just has to switch the service back to Local or Cluster."""
    await enabled.create(SERVICES, body(**PREFERRED))
    status, changed = await patch(enabled, **dict.fromkeys(PREFERRED, policy))
    assert status == 200
    assert {changed["spec"][field] for field in PREFERRED} == {policy}


async def test_kep3015_draft1_rollout_removes_nothing(enabled: Served) -> None:
    """Rollout: there are no removals; Cluster and Local are taken as before."""
    await enabled.create(SERVICES, body())
    for policy in ("Local", "Cluster"):
        status, _ = await patch(enabled, **dict.fromkeys(PREFERRED, policy))
        assert status == 200


async def test_kep3015_draft1_monitoring_services_tell_whether_it_is_used(
    enabled: Served,
) -> None:
    """Monitoring: the feature is in use if any Service has one of the policies PreferLocal."""
    await enabled.create(SERVICES, body(externalTrafficPolicy="PreferLocal"))
    other = body()
    other["metadata"]["name"] = "other"
    await enabled.create(SERVICES, other)
    items = (await enabled.get("/api/v1/services"))["items"]
    users = [
        item["metadata"]["name"]
        for item in items
        if "PreferLocal" in {item["spec"].get(field) for field in PREFERRED}
    ]
    assert users == ["web"]


def test_kep3015_draft1_monitoring_no_more_failures_after_the_move() -> None:
    """Monitoring: after a move from Local to PreferLocal clients see no sporadic failures."""
    moves = [sliced(on("n1")), sliced(on("n1", ready=False), on("n2")), sliced(on("n2"))]
    failures = {
        policy: sum(
            not external(exposed(external=policy), slices, name)
            for slices in moves
            for name in NODES
        )
        for policy in ("Local", "PreferLocal")
    }
    assert failures["Local"] > 0
    assert failures["PreferLocal"] == 0


def test_kep3015_draft1_monitoring_rules_show_the_expected_connections() -> None:
    """Monitoring: endpoints receive the expected connections and no unexpected ones."""
    asked = exposed(internal="PreferLocal")
    for name in NODES:
        chances, _ = trace(asked, EVERYWHERE, name, is_external=False)
        assert set(chances) == {f"10.0.{name[1:]}.1:8080"}


def _service_level(
    asked: Service, slices: list[EndpointSlice], gates: FeatureGates = ON
) -> tuple[float, float]:
    """Return the part of nodes that serve, and the part of their connections without a hop.

    A connection that is not served has no response time, so it does not count for that.
    """
    served = [
        found.endpoints
        for name in NODES
        if (found := outcomes(asked, slices, name, gates)[1]).endpoints
    ]
    entries = [name for name in NODES if outcomes(asked, slices, name, gates)[1].endpoints]
    local = sum(
        sum(one.node_name == name for one in endpoints) / len(endpoints)
        for name, endpoints in zip(entries, served, strict=True)
    )
    return len(served) / len(NODES), local / len(served)


LEVELS = {
    (policy, where): _service_level(exposed(external=policy, internal=policy), slices)
    for policy in POLICIES
    for where, slices in (("everywhere", EVERYWHERE), ("some nodes", SOME))
}


def test_kep3015_draft1_slo_with_endpoints_on_all_nodes() -> None:
    """SLOs: with endpoints on all nodes it is as available as Cluster and as fast as Local."""
    preferred = LEVELS["PreferLocal", "everywhere"]
    assert preferred[0] == LEVELS["Cluster", "everywhere"][0]
    assert preferred[1] == LEVELS["Local", "everywhere"][1]


def test_kep3015_draft1_slo_with_nodes_without_endpoints() -> None:
    """SLOs: otherwise it is as available as Cluster, its speed between Local and Cluster."""
    preferred = LEVELS["PreferLocal", "some nodes"]
    assert preferred[0] == LEVELS["Cluster", "some nodes"][0]
    assert LEVELS["Cluster", "some nodes"][1] < preferred[1] < LEVELS["Local", "some nodes"][1]


def test_kep3015_draft1_slo_table_cluster() -> None:
    """SLO table: Cluster is 100%-ish available and not as fast."""
    assert LEVELS["Cluster", "everywhere"] == (1.0, 0.25)
    assert LEVELS["Cluster", "some nodes"][0] == 1.0


def test_kep3015_draft1_slo_table_local() -> None:
    """SLO table: Local is observably less than 100% available, and fast."""
    availability, speed = LEVELS["Local", "some nodes"]
    assert availability < 1.0
    assert speed == 1.0


def test_kep3015_draft1_slo_table_prefer_local_as_fallback() -> None:
    """SLO table: as a fallback it is 100%-ish available, normally fast, occasionally not."""
    asked = exposed(external="PreferLocal")
    assert _service_level(asked, EVERYWHERE) == (1.0, 1.0)
    restarting = sliced(*(on(name, ready=name != "n2") for name in NODES))
    assert _service_level(asked, restarting) == (1.0, 0.75)


def test_kep3015_draft1_slo_table_prefer_local_as_optimization() -> None:
    """SLO table: as an optimization it is 100%-ish available, and of a speed in between."""
    availability, speed = LEVELS["PreferLocal", "some nodes"]
    assert availability == 1.0
    assert 0.0 < speed < 1.0


async def test_kep3015_draft1_scalability_no_new_api_calls(tmp_path: Path) -> None:
    """Scalability: no new API calls: the controller writes as much as for Cluster."""
    writes = {}
    async with serving(tmp_path, gates=ENABLED) as api, world(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        await cluster.add_pod("p1", "n1", ip="10.0.1.1")
        for policy in ("Cluster", "PreferLocal"):
            await cluster.add_service(internalTrafficPolicy=policy)
            async with cluster.controlled(quick(ON)) as controller:
                await cluster.settle(controller)
                await cluster.add_pod(f"p-{policy.lower()}", "n1", ip="10.0.1.2")
                await cluster.settle(controller)
                writes[policy] = [one for one in cluster.wire.take() if one in (POST, PUT)]
            await cluster.end_pod(f"p-{policy.lower()}", grace=0)
            await cluster.remove(SERVICE_KIND, "web")
            async with cluster.controlled(quick(ON)) as controller:
                await cluster.settle(controller)
    assert writes["PreferLocal"] == writes["Cluster"] != []


async def test_kep3015_draft1_scalability_no_new_api_types(tmp_path: Path, enabled: Served) -> None:
    """Scalability: enabling it introduces no new API types."""
    async with serving(tmp_path / "disabled") as api:
        for path in ("/api/v1", "/apis", "/apis/discovery.k8s.io/v1"):
            assert await api.get(path) == await enabled.get(path)


async def test_kep3015_draft1_scalability_a_few_more_bytes(enabled: Served) -> None:
    """Scalability: PreferLocal is more bytes than either Cluster or Local, and nothing else is."""
    assert len("PreferLocal") > max(len("Cluster"), len("Local"))
    created = await enabled.create(SERVICES, body(internalTrafficPolicy="Cluster"))
    _, changed = await patch(enabled, internalTrafficPolicy="PreferLocal")
    assert created["spec"] | {"internalTrafficPolicy": "PreferLocal"} == changed["spec"]


def test_kep3015_draft1_scalability_no_more_rules() -> None:
    """Scalability: no non-negligible increase of resources: a node has no more rules for it."""
    preferred = exposed(external="PreferLocal", internal="PreferLocal")
    local = exposed(external="Local", internal="Local")
    size = {
        name: sum(map(len, _rules(asked, EVERYWHERE, ON)))
        for name, asked in (("preferred", preferred), ("local", local), ("cluster", exposed()))
    }
    assert size["preferred"] <= max(size["local"], size["cluster"])


def test_kep3015_draft1_troubleshooting_never_slower_than_local() -> None:
    """Troubleshooting: a service faster as Local than as PreferLocal would be a bug.

    Wherever Local is served by ready endpoints, PreferLocal is served by the same ones.
    """
    for states in product((True, False, None), repeat=3):
        present = [
            on(name, ready=ready)
            for name, ready in zip(NODES, states, strict=False)
            if ready is not None
        ]
        for name in NODES:
            local = external(exposed(external="Local"), sliced(*present), name)
            if local:
                preferred = external(exposed(external="PreferLocal"), sliced(*present), name)
                assert preferred == local


async def test_kep3015_draft1_troubleshooting_the_api_server_is_unavailable() -> None:
    """Troubleshooting: without the API server the proxy goes on as with any other policy."""
    for policy, want in (("PreferLocal", {"10.0.1.1"}), ("Cluster", {"10.0.1.1", "10.0.3.1"})):
        found = await outlast_outage(exposed(internal=policy), SOME, zone="zone-a", gates=ON)
        assert found == (want, want, [])
