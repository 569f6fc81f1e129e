"""Lint of manifests that no cluster has: it takes no longer than their length asks for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.advise.linting.context import LabelIndex, LintContext, LintedObjects, LintLimits
from keepclose.advise.linting.placements import MAX_CONSTRAINTS_PLACED, ModelPods
from keepclose.advise.linting.promises import place_evenly
from keepclose.advise.linting.rollouts import play_drains, play_rollouts
from keepclose.advise.linting.workload_kinds import LintedWorkload, view_workload
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.field_errors import FieldError
from keepclose.model.selectors import matches
from keepclose.model.workload import Node
from keepclose.model.workloads.types import Deployment
from keepclose.slices.settings import PlannerSettings
from support import builders
from support.lint_cases import manifests

NODES = tuple(builders.node(f"n{number}", f"zone-{number % 3}") for number in range(6))
CONSTRAINT = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"app": "web"}},
}
TERM = {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["v"]}]}
AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"
LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))


def deployment(**spec: Any) -> LintedWorkload:
    """Return the Deployment of the manifests whose pods have these fields too."""
    raw = manifests()["deployment"]
    raw["spec"]["template"]["spec"] |= spec
    decoded = convert_as(Deployment, raw)
    assert not isinstance(decoded, Rejected)
    viewed = view_workload(decoded)
    assert not isinstance(viewed, FieldError)
    return viewed


def context_of(workload: LintedWorkload, nodes: tuple[Node, ...] = NODES) -> LintContext:
    """Return the context of a workload on the nodes."""
    objects = LintedObjects(workloads=(workload,), nodes=nodes)
    return LintContext(objects, settings=PlannerSettings(), limits=LintLimits(), assumed_zones=3)


@pytest.mark.parametrize(
    "spec",
    [
        {"topologySpreadConstraints": [CONSTRAINT] * 100_000},
        {"topologySpreadConstraints": [CONSTRAINT] * (MAX_CONSTRAINTS_PLACED + 1)},
        {"tolerations": [{"key": f"k{number}"} for number in range(100_000)]},
        {"affinity": {"nodeAffinity": {AFFINITY: {"nodeSelectorTerms": [TERM] * 10_000}}}},
    ],
    ids=["constraints", "one too many", "tolerations", "terms"],
)
def test_pods_with_endless_rules_are_not_placed_one_by_one(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pod would be held against each rule on each node, in each played rollout."""
    huge = deployment(**spec)

    def add(*_: Any, **__: Any) -> None:
        raise AssertionError("placed a pod")

    monkeypatch.setattr(ModelPods, "add", add)
    assert play_rollouts(huge, NODES, lambda _: True, has_given_nodes=True) is None
    drains = play_drains(huge, NODES, lambda *_: True, replicas=6, budgets=(), has_given_nodes=True)
    assert drains is None
    placed = place_evenly(huge, context_of(huge))
    assert sum(placed.values()) == huge.replicas


def test_pods_with_usual_rules_are_placed_one_by_one() -> None:
    """The largest number of constraints is more than pods have."""
    usual = deployment(topologySpreadConstraints=[CONSTRAINT] * MAX_CONSTRAINTS_PLACED)
    assert play_rollouts(usual, NODES, lambda _: True, runs=1, has_given_nodes=True) is not None


def test_a_workload_of_many_services_is_placed_once() -> None:
    """Hundreds of Services may select the same workload."""
    usual = deployment()
    context = context_of(usual)
    assert place_evenly(usual, context) is place_evenly(usual, context)


@given(st.lists(st.tuples(st.sampled_from("pq"), LABELS)), LABELS)
def test_an_index_selects_what_a_scan_selects(
    labeled: list[tuple[str, dict[str, str]]], selector: dict[str, str]
) -> None:
    """In the order of the input, also for the empty selector."""
    index = LabelIndex((space, labels, place) for place, (space, labels) in enumerate(labeled))
    for space in "pqr":
        assert index.select(space, selector) == tuple(
            place
            for place, (own, labels) in enumerate(labeled)
            if own == space and matches(selector, labels)
        )
