"""The policies that are compared, and their objects."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.lab.access import LabRefusal
from keepclose.lab.slo.figures import (
    explain_choice,
    list_policies,
    make_daemon_set,
    make_deployment,
    make_service,
    restart_patch,
)
from keepclose.model.gates import FeatureGates, Gate

DEFAULT = FeatureGates()
WITH_LOCAL = DEFAULT.with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY)


def test_the_draft_has_four_and_two_came_later() -> None:
    """Cluster, Local and PreferLocal in two roles with guesses, the present values without."""
    assert [(one.title, one.workload, *one[3:]) for one in list_policies(WITH_LOCAL)] == [
        ("Cluster", "everywhere", "100 %-ish", "not as fast"),
        ("Local", "everywhere", "less than 100 %", "fast"),
        ("PreferLocal as fallback", "everywhere", "100 %-ish", "normally fast"),
        ("PreferLocal as optimisation", "some", "100 %-ish", "between the two"),
        ("PreferSameZone", "everywhere", None, None),
        ("PreferSameNode", "everywhere", None, None),
    ]
    assert explain_choice(WITH_LOCAL) == ""


def test_without_the_gate_its_successor_is_measured() -> None:
    """PreferSameNode stands in for PreferLocal, and that is said."""
    assert [one.name for one in list_policies(DEFAULT)] == [
        "Cluster",
        "Local",
        "PreferSameNode",
        "PreferSameNode",
        "PreferSameZone",
    ]
    assert explain_choice(DEFAULT) == (
        "PreferLocalTrafficPolicy is off: PreferSameNode, which came instead of PreferLocal, "
        "was measured"
    )


def test_without_both_gates_there_is_nothing_to_compare() -> None:
    """The refusal names both gates."""
    gates = DEFAULT.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
    with pytest.raises(
        LabRefusal, match=r"PreferLocalTrafficPolicy and PreferSameTrafficDistribution are both off"
    ):
        list_policies(gates)


PORTS = [{"name": "http", "port": 80, "targetPort": 8080}]


@pytest.mark.parametrize(
    ("gates", "place", "want_name", "want_annotations", "want_spec"),
    [
        pytest.param(
            DEFAULT,
            0,
            "cluster",
            {},
            {"internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster"},
            id="Cluster",
        ),
        pytest.param(
            DEFAULT,
            1,
            "local",
            {},
            {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"},
            id="Local",
        ),
        pytest.param(
            WITH_LOCAL,
            2,
            "preferlocal-as-fallback",
            {
                "keepclose.dev/internal-traffic-policy": "PreferLocal",
                "keepclose.dev/external-traffic-policy": "PreferLocal",
            },
            {},
            id="PreferLocal by annotations",
        ),
        pytest.param(
            DEFAULT,
            2,
            "prefersamenode-as-fallback",
            {},
            {"trafficDistribution": "PreferSameNode"},
            id="PreferSameNode by the field",
        ),
        pytest.param(
            DEFAULT,
            4,
            "prefersamezone",
            {},
            {"trafficDistribution": "PreferSameZone"},
            id="PreferSameZone by the field",
        ),
    ],
)
def test_services(
    gates: FeatureGates,
    place: int,
    want_name: str,
    want_annotations: dict[str, str],
    want_spec: dict[str, Any],
) -> None:
    """A Service has its policy for both kinds of traffic."""
    made = make_service(list_policies(gates)[place])
    assert made["metadata"] == {"name": want_name, "annotations": want_annotations}
    common = {"type": "NodePort", "selector": {"app": "everywhere"}, "ports": PORTS}
    assert made["spec"] == common | want_spec


@pytest.mark.parametrize(
    ("nodes", "want"),
    [
        pytest.param(2, 1, id="one of two"),
        pytest.param(7, 3, id="less than half"),
        pytest.param(1, 1, id="at least one"),
    ],
)
def test_some_nodes_have_endpoints(nodes: int, want: int) -> None:
    """The Deployment has pods on about half of the nodes."""
    assert make_deployment(nodes)["spec"]["replicas"] == want


def test_daemons_leave_in_quarters() -> None:
    """A quarter of the nodes may be without their pod at a time."""
    strategy = make_daemon_set()["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}}


def test_restarts_are_those_of_kubectl() -> None:
    """A new annotation in the template makes all pods new."""
    assert restart_patch("now") == {
        "spec": {
            "template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
        }
    }
