"""Requests of pods beside what nodes have."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.model.workload import Node
from keepclose.model.workloads.node_fit import pod_requests
from keepclose.model.workloads.placement import NodePlacement, place_pods
from keepclose.model.workloads.pods import WorkloadPod
from support.lab.labobjects import a_node, a_pod

FOUR = {"cpu": "4", "memory": "16Gi", "pods": "250"}


def container(cpu: str = "", memory: str = "", **more: Any) -> dict[str, Any]:
    """Return a container that requests CPU and memory."""
    requests = {"cpu": cpu, "memory": memory}
    return {
        "name": "main",
        "resources": {"requests": {name: one for name, one in requests.items() if one}},
        **more,
    }


def asking(name: str = "p1", node: str = "", **requests: str) -> WorkloadPod:
    """Return a pod of one container."""
    return a_pod(name, node, containers=[container(**requests)])


def place_one(pod: WorkloadPod, nodes: list[Node], *there: WorkloadPod) -> NodePlacement:
    """Return the place of a single pod."""
    (found,) = place_pods([pod], nodes=nodes, pods=there)
    return found


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({}, {}, id="nothing is requested"),
        pytest.param(
            {"containers": [container("100m", "1Gi"), container("0.4")]},
            {"cpu": 500, "memory": 2**30 * 1000},
            id="containers add up",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]},
            {"cpu": 1000},
            id="a limit does not count beside a request",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": {"cpu": "2"}}}]},
            {"cpu": 2000},
            id="a limit alone is a request",
        ),
        pytest.param(
            {
                "containers": [container("1")],
                "initContainers": [container("3"), container("2")],
            },
            {"cpu": 3000},
            id="init containers run one after the other",
        ),
        pytest.param(
            {
                "containers": [container("1")],
                "initContainers": [
                    container("1", restartPolicy="Always"),
                    container("3"),
                ],
            },
            {"cpu": 4000},
            id="an init container runs beside the sidecars before it",
        ),
        pytest.param(
            {
                "containers": [container("2")],
                "initContainers": [container("1", restartPolicy="Always")],
            },
            {"cpu": 3000},
            id="sidecars run beside containers",
        ),
        pytest.param(
            {"containers": [container("1")], "overhead": {"cpu": "250m"}},
            {"cpu": 1250},
            id="overhead comes on top",
        ),
    ],
)
def test_requests_of_a_pod(spec: dict[str, Any], want: dict[str, int]) -> None:
    """They are those that the scheduler counts, in thousandths."""
    assert pod_requests(a_pod("p1", **spec).spec) == want


@pytest.mark.parametrize(
    ("pod", "there", "want"),
    [
        pytest.param(asking(cpu="4"), [], "n1", id="exactly what is there"),
        pytest.param(
            asking(cpu="4001m"),
            [],
            "0/2 nodes are available: 2 Insufficient cpu.",
            id="more than any node has",
        ),
        pytest.param(
            asking(cpu="5", memory="17Gi"),
            [],
            "0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient memory.",
            id="a node may lack two things",
        ),
        pytest.param(
            asking(cpu="2"),
            [asking("a", "n1", cpu="3"), asking("b", "n2", cpu="2")],
            "n2",
            id="requests of others count",
        ),
        pytest.param(
            asking(cpu="2"),
            [
                asking("a", "n1", cpu="3"),
                asking("b", "n2", cpu="1"),
                asking("c", "n2", cpu="1500m"),
            ],
            "0/2 nodes are available: 2 Insufficient cpu.",
            id="the sum counts",
        ),
        pytest.param(
            asking(cpu="2"),
            [
                asking("a", "n1", cpu="3"),
                a_pod("b", "n2", phase="Failed", containers=[container("4")]),
            ],
            "n2",
            id="pods that ended count no more",
        ),
        pytest.param(
            a_pod("p1", containers=[{"resources": {"requests": {"example.dev/gpu": "1"}}}]),
            [],
            "0/2 nodes are available: 2 Insufficient example.dev/gpu.",
            id="what no node has",
        ),
        pytest.param(asking(), [asking("a", "n1", cpu="4")], "n2", id="who asks for nothing fits"),
    ],
)
def test_nodes_without_room_are_refused(
    pod: WorkloadPod, there: list[WorkloadPod], want: str
) -> None:
    """The pod gets a node with room, or the scheduler's words for why there is none."""
    nodes = [a_node("n1", allocatable=FOUR), a_node("n2", allocatable=FOUR)]
    found = place_one(pod, nodes, *there)
    assert want in (found.node, found.reason)


def test_the_number_of_pods_is_a_resource() -> None:
    """A node that says how many pods it takes takes no more, whatever they request."""
    nodes = [a_node("n1", allocatable={"pods": "1"})]
    assert place_one(asking(), nodes).node == "n1"
    refused = place_one(asking(), nodes, asking("a", "n1"))
    assert refused.reason == "0/1 nodes are available: 1 Too many pods."


@given(
    requests=st.lists(st.integers(0, 3000), max_size=20),
    rooms=st.lists(st.integers(0, 4000), min_size=1, max_size=4),
)
def test_no_node_is_overcommitted(requests: list[int], rooms: list[int]) -> None:
    """Whatever is asked for, the requests on a node fit it, and who waits fits nowhere."""
    nodes = [
        a_node(f"n{number}", allocatable={"cpu": f"{room}m"}) for number, room in enumerate(rooms)
    ]
    pods = [asking(f"p{number:02}", cpu=f"{one}m") for number, one in enumerate(requests)]
    used: Counter[str] = Counter()
    for place in place_pods(pods, nodes=nodes, pods=[]):
        amount = pod_requests(place.pod.spec).get("cpu", 0)
        if place.node:
            used[place.node] += amount
        else:
            assert all(used[f"n{number}"] + amount > room for number, room in enumerate(rooms))
    assert all(used[f"n{number}"] <= room for number, room in enumerate(rooms))
