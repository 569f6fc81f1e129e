"""The steps of the tour as data."""

from __future__ import annotations

import pytest

from keepclose.kube.requests import SERVICES
from keepclose.lab.cluster.tour_steps import (
    TOUR_STEPS,
    ExpectedEndpoints,
    HintedEndpoint,
    ObjectPatch,
    distribute,
    hinted_endpoints,
)
from support.builders import endpoint, endpoint_slice


def placed(node: str, zone: str, *hints: str, nodes: tuple[str, ...] = ()) -> HintedEndpoint:
    """Return a ready endpoint whose pod is named after its node."""
    return HintedEndpoint(f"pod-{node}", node, zone, True, hints, nodes)


BOTH = {"zone-a": 1, "zone-b": 1}
PATCH = "kubectl patch service demo-svc -p"


@pytest.mark.parametrize(
    ("expected", "endpoints", "want"),
    [
        pytest.param(
            ExpectedEndpoints(BOTH),
            [placed("n1", "zone-a"), placed("n3", "zone-b")],
            "",
            id="no hints",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH, hinted=BOTH),
            [placed("n1", "zone-a", "zone-b"), placed("n3", "zone-b", "zone-a")],
            "",
            id="hinted for each other's zone",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH, hinted=BOTH, by_node=True),
            [
                placed("n1", "zone-a", "zone-a", nodes=("n1",)),
                placed("n3", "zone-b", "zone-b", nodes=("n3",)),
            ],
            "",
            id="hinted for nodes as well",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH),
            [placed("n1", "zone-a"), placed("n3", "zone-b")._replace(is_ready=False)],
            "pod-n3 is not ready",
            id="a pod that is not ready",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH),
            [placed("n1", "zone-a"), placed("n2", "zone-a")],
            "pods are in zone-a (2), not in zone-a (1), zone-b (1)",
            id="a pod in another zone",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH),
            [],
            "pods are in no zone, not in zone-a (1), zone-b (1)",
            id="no pods",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH),
            [placed("n1", "zone-a", "zone-a"), placed("n3", "zone-b")],
            "hints are for zone-a (1), not for no zone",
            id="a hint too many",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH, hinted=BOTH),
            [placed("n1", "zone-a", "zone-a"), placed("n3", "zone-b")],
            "hints are for zone-a (1), not for zone-a (1), zone-b (1)",
            id="a hint too few",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH, hinted=BOTH, by_node=True),
            [
                placed("n1", "zone-a", "zone-a", nodes=("n1",)),
                placed("n3", "zone-b", "zone-b"),
            ],
            "pod-n3 is hinted for no node, not for n3",
            id="a node hint too few",
        ),
        pytest.param(
            ExpectedEndpoints(BOTH),
            [placed("n1", "zone-a", nodes=("n1",)), placed("n3", "zone-b")],
            "pod-n1 is hinted for n1, not for no node",
            id="a node hint too many",
        ),
    ],
)
def test_what_is_not_as_promised(
    expected: ExpectedEndpoints, endpoints: list[HintedEndpoint], want: str
) -> None:
    """The first thing that is missing is named, and nothing where nothing is."""
    assert expected.find_difference(endpoints) == want


def test_endpoints_as_their_slices_have_them() -> None:
    """They come by place, with all their hints, and without a pod by their address."""
    first = endpoint_slice(
        endpoint("10.0.0.3", zone="zone-b", node_name="n3", pod_name="p3", ready=False),
        endpoint("10.0.0.9"),
    )
    second = endpoint_slice(
        endpoint(
            "10.0.0.1",
            zone="zone-a",
            node_name="n1",
            pod_name="p1",
            for_zones=("zone-a", "zone-b"),
            for_nodes=("n1",),
        )
    )
    assert hinted_endpoints([first, second]) == [
        HintedEndpoint("10.0.0.9", "", "", True),
        HintedEndpoint("p1", "n1", "zone-a", True, ("zone-a", "zone-b"), ("n1",)),
        HintedEndpoint("p3", "n3", "zone-b", False),
    ]


def test_commands_are_those_that_people_type() -> None:
    """Each can be copied as it stands."""
    assert [change.command for step in TOUR_STEPS for change in (*step.first, *step.changes)] == [
        PATCH + """ '{"spec":{"trafficDistribution":null}}'""",
        PATCH + """ '{"spec":{"trafficDistribution":"PreferSameZone"}}'""",
        PATCH + """ '{"spec":{"trafficDistribution":"PreferSameNode"}}'""",
        "keepclose lab drain n6",
        "keepclose lab drain n5",
        "keepclose lab heal",
        "kubectl scale deployment demo --replicas=6",
        PATCH + """ '{"spec":{"trafficDistribution":"keepclose.dev/Balanced"}}'""",
        "keepclose lab gates ServiceTrafficDistribution=false",
    ]
    want = ObjectPatch(SERVICES, "demo-svc", {"spec": {"trafficDistribution": None}})
    assert distribute(None).action == want
