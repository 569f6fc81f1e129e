"""The steps of Deployments, one by one and in random order."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.workloads.deployment_plan import plan_deployment
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.rolling_update import (
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    REVISION,
    template_hash,
)
from keepclose.model.workloads.types import Deployment, ReplicaSet, RolloutStrategy
from support.lab.labobjects import NOW, a_deployment, a_pod, a_replica_set, stamp
from support.lab.simulation import Simulation

OLD = "web:0"


def sized(replicas: int, most: int) -> dict[str, str]:
    """Return the annotations of a ReplicaSet that was made for this size of its Deployment."""
    return {DESIRED_REPLICAS: str(replicas), MAX_REPLICAS: str(most)}


def sizes_of(
    deployment: Deployment,
    replica_sets: list[ReplicaSet],
    pods: list[WorkloadPod] | None = None,
) -> dict[str, int]:
    """Return the sizes that the next step gives."""
    plan = plan_deployment(deployment, replica_sets, pods or [], now=NOW)
    return {one.replica_set.metadata.name: one.replicas for one in plan.sizes}


@pytest.mark.parametrize(
    ("old_sizes", "surge", "want_replicas"),
    [
        pytest.param([], "25%", 10, id="all at once when there is nothing"),
        pytest.param([10], "25%", 3, id="the surge beside the old"),
        pytest.param([13], "25%", 0, id="nothing where there is no room"),
        pytest.param([4, 4], 0, 2, id="what is missing"),
    ],
)
def test_a_new_template_gets_a_replica_set(
    old_sizes: list[int], surge: int | str, want_replicas: int
) -> None:
    """The ReplicaSet of a new template begins with what the surge allows."""
    old = [
        a_replica_set(f"old{place}", size, image=f"{OLD}{place}", annotations={REVISION: "4"})
        for place, size in enumerate(old_sizes)
    ]
    deployment = a_deployment(10, surge=surge)
    plan = plan_deployment(deployment, old, [], now=NOW)
    assert plan.creation is not None
    meta, spec = plan.creation["metadata"], plan.creation["spec"]
    hashed = template_hash(deployment.spec.template)
    assert meta["name"] == f"web-{hashed}"
    assert meta["labels"] == {"app": "web", "pod-template-hash": hashed}
    assert meta["ownerReferences"][0]["uid"] == "uid-web"
    assert meta["annotations"][REVISION] == ("5" if old else "1")
    assert meta["annotations"][DESIRED_REPLICAS] == "10"
    assert spec["replicas"] == want_replicas
    assert spec["selector"] == {"matchLabels": meta["labels"]}
    assert spec["template"]["metadata"]["labels"] == meta["labels"]
    assert spec["template"]["spec"] == deployment.spec.template["spec"]
    assert (plan.sizes, plan.revision) == ((), 5 if old else 1)
    reasons = [(one.type, one.reason) for one in plan.status.conditions]
    assert reasons[-1] == ("Progressing", "NewReplicaSetCreated")


@pytest.mark.parametrize(
    ("new", "new_available", "old", "old_available", "want_sizes"),
    [
        pytest.param(3, 0, 10, 10, {"old": 8}, id="as many as may be missing"),
        pytest.param(3, 3, 10, 10, {"old": 5}, id="as many as the new ones replace"),
        pytest.param(3, 3, 5, 5, {"new": 8}, id="the new one grows first"),
        pytest.param(5, 0, 8, 8, {}, id="new ones that never come keep the old"),
        pytest.param(3, 0, 10, 6, {"old": 8}, id="useless ones go, within what is spare"),
        pytest.param(5, 5, 8, 3, {"old": 3}, id="all useless ones, and no other"),
        pytest.param(10, 10, 3, 3, {"old": 0}, id="the end"),
        pytest.param(10, 10, 0, 0, {}, id="after the end"),
        pytest.param(12, 12, 0, 0, {"new": 10}, id="too many of the new"),
        pytest.param(
            3, 3, 10, 12, {"old": 5}, id="a status that lags counts no more than the size"
        ),
    ],
)
def test_steps_of_a_rolling_update(
    new: int, new_available: int, old: int, old_available: int, want_sizes: dict[str, int]
) -> None:
    """Of ten pods two may be missing and three too many."""
    replica_sets = [
        a_replica_set("old", old, image=OLD, available=old_available),
        a_replica_set("new", new, available=new_available, age_s=1),
    ]
    deployment = a_deployment(10, unavailable=2, surge=3)
    assert sizes_of(deployment, replica_sets) == want_sizes


def test_the_oldest_shrinks_first() -> None:
    """Of several old ReplicaSets the oldest gives way first, useless pods before all."""
    replica_sets = [
        a_replica_set("b", 4, image="web:b", age_s=50),
        a_replica_set("a", 4, image="web:a", age_s=60, available=3),
        a_replica_set("new", 3, age_s=1, available=3),
    ]
    assert sizes_of(a_deployment(8, unavailable=1, surge=3), replica_sets) == {"a": 0}


def test_a_template_that_comes_back_finds_its_replica_set() -> None:
    """The former ReplicaSet grows again, gets the next revision, and remembers the old one."""
    replica_sets = [
        a_replica_set("first", 0, annotations={REVISION: "1"}),
        a_replica_set("second", 4, image="web:2", annotations={REVISION: "2"}, age_s=1),
    ]
    plan = plan_deployment(a_deployment(4), replica_sets, [], now=NOW)
    assert plan.creation is None
    assert [(one.replica_set.metadata.name, one.replicas) for one in plan.sizes] == [("first", 1)]
    assert plan.annotations == {
        REVISION: "3",
        "deployment.kubernetes.io/revision-history": "1",
    }
    assert plan.revision == 3


@pytest.mark.parametrize(
    ("replica_sets", "pods", "want_sizes", "want_creation"),
    [
        pytest.param([a_replica_set("old", 3, image=OLD)], [], {"old": 0}, False, id="old ones go"),
        pytest.param(
            [a_replica_set("old", 0, image=OLD)],
            [a_pod("p", "n", owner="old", ready=True, terminating=True)],
            {},
            False,
            id="and must be gone",
        ),
        pytest.param(
            [a_replica_set("old", 0, image=OLD)],
            [a_pod("p", "n", owner="old", phase="Failed")],
            {},
            True,
            id="those that ended do not matter",
        ),
        pytest.param(
            [a_replica_set("old", 0, image=OLD), a_replica_set("new", 0)],
            [],
            {"new": 3},
            False,
            id="then all new ones come at once",
        ),
    ],
)
def test_recreation(
    replica_sets: list[ReplicaSet],
    pods: list[WorkloadPod],
    want_sizes: dict[str, int],
    want_creation: bool,
) -> None:
    """With Recreate no new pod comes before the last old one is gone."""
    deployment = a_deployment(3, strategy={"type": "Recreate"})
    plan = plan_deployment(deployment, replica_sets, pods, now=NOW)
    assert {one.replica_set.metadata.name: one.replicas for one in plan.sizes} == want_sizes
    assert (plan.creation is not None) is want_creation


@pytest.mark.parametrize(
    ("deployment", "replica_sets", "want_sizes"),
    [
        pytest.param(
            a_deployment(5),
            [a_replica_set("new", 3, annotations=sized(3, 4))],
            {"new": 5},
            id="scaled up",
        ),
        pytest.param(
            a_deployment(0),
            [a_replica_set("new", 3, annotations=sized(3, 4))],
            {"new": 0},
            id="scaled to none",
        ),
        pytest.param(
            a_deployment(20, unavailable=2, surge=3),
            [
                a_replica_set("old", 8, image=OLD, annotations=sized(10, 13)),
                a_replica_set("new", 5, annotations=sized(10, 13), age_s=1),
            ],
            {"old": 14, "new": 9},
            id="in the middle of an update all grow",
        ),
        pytest.param(
            a_deployment(5, paused=True),
            [a_replica_set("old", 3, image=OLD)],
            {"old": 5},
            id="a paused one still scales what it has",
        ),
        pytest.param(
            a_deployment(3, paused=True),
            [a_replica_set("old", 3, image=OLD), a_replica_set("new", 0)],
            {},
            id="a paused one does not go on",
        ),
        pytest.param(a_deployment(3, paused=True), [], {}, id="a paused one does not begin"),
        pytest.param(
            a_deployment(3, paused=True),
            [
                a_replica_set("old", 2, image=OLD),
                a_replica_set("new", 3, annotations=sized(3, 4), age_s=1),
            ],
            {"old": 0},
            id="a paused one that has all it needs drops the rest",
        ),
    ],
)
def test_scaling(
    deployment: Deployment, replica_sets: list[ReplicaSet], want_sizes: dict[str, int]
) -> None:
    """Another number of replicas changes what is there, and begins nothing new."""
    assert sizes_of(deployment, replica_sets) == want_sizes
    assert plan_deployment(deployment, replica_sets, [], now=NOW).creation is None


def test_old_revisions_are_kept_up_to_a_limit() -> None:
    """Once an update is complete, the oldest empty ReplicaSets beyond the limit go."""
    old = [
        a_replica_set(f"old{n}", 0, image=f"web:old{n}", annotations={REVISION: str(n)})
        for n in range(1, 5)
    ]
    current = a_replica_set("new", 2, annotations={REVISION: "5", **sized(2, 3)})
    done = {
        "observedGeneration": 1,
        "replicas": 2,
        "updatedReplicas": 2,
        "readyReplicas": 2,
        "availableReplicas": 2,
    }
    deployment = a_deployment(2, revisionHistoryLimit=2, status=done)
    plan = plan_deployment(deployment, [*old, current], [], now=NOW)
    assert [one.metadata.name for one in plan.deletions] == ["old1", "old2"]
    busy = a_deployment(2, revisionHistoryLimit=2)
    assert plan_deployment(busy, [*old, current], [], now=NOW).deletions == ()


def test_a_deployment_on_its_way_out_is_left_alone() -> None:
    """Only its status is still told."""
    whole = a_deployment(3)
    meta = replace(whole.metadata, deletion_timestamp=stamp())
    plan = plan_deployment(replace(whole, metadata=meta), [], [], now=NOW)
    assert (plan.creation, plan.sizes, plan.deletions) == (None, (), ())


@settings(deadline=None, max_examples=120)
@given(
    replicas=st.integers(0, 7),
    surge=st.one_of(st.integers(0, 3), st.sampled_from(["25%", "50%"])),
    unavailable=st.one_of(st.integers(0, 3), st.sampled_from(["25%", "100%"])),
    seed=st.integers(0, 2**32),
    images=st.lists(st.sampled_from(["web:1", "web:2", "web:3"]), min_size=1, max_size=4),
)
def test_any_rolling_update_keeps_its_bounds_and_ends(
    replicas: int,
    surge: int | str,
    unavailable: int | str,
    seed: int,
    images: list[str],
) -> None:
    """In whatever order pods get ready and hands act, there are never too few nor too many."""
    spec: dict[str, Any] = {"surge": surge, "unavailable": unavailable}
    world = Simulation(a_deployment(replicas, **spec))
    world.settle()
    world.begin_watching()
    random = Random(seed)
    for place in range(150):
        if place % 30 == 0:
            world.set_image(images[place // 30 % len(images)])
        world.do(random.randrange(10_000))
    world.set_image(images[-1])
    world.settle()
    assert world.images() == [images[-1]] * replicas
    assert world.deployment.status.available_replicas == replicas
    assert world.deployment.status.observed_generation == world.deployment.metadata.generation
    progressing = [one for one in world.deployment.status.conditions if one.type == "Progressing"]
    assert [one.reason for one in progressing] == ["NewReplicaSetAvailable"]


@settings(deadline=None, max_examples=80)
@given(
    strategy=st.sampled_from(["RollingUpdate", "Recreate"]),
    replicas=st.integers(0, 7),
    seed=st.integers(0, 2**32),
)
def test_whatever_people_do_it_comes_to_rest(strategy: str, replicas: int, seed: int) -> None:
    """Scaled, paused, changed and changed back at any moment, it ends as it was last asked to."""
    random = Random(seed)
    world = Simulation(a_deployment(4))
    for _ in range(120):
        match random.randrange(20):
            case 0:
                world.set_image(random.choice(["web:1", "web:2", "web:3"]))
            case 1:
                world.change(replicas=random.randrange(8))
            case 2:
                world.change(paused=not world.deployment.spec.paused)
            case 3:
                kind = random.choice(["RollingUpdate", "Recreate"])
                world.change(strategy=RolloutStrategy(type=kind))
            case _:
                world.do(random.randrange(10_000))
    world.change(paused=False, replicas=replicas, strategy=RolloutStrategy(type=strategy))
    world.settle()
    want_image = world.deployment.spec.template["spec"]["containers"][0]["image"]
    assert world.images() == [want_image] * replicas
    status = world.deployment.status
    assert (status.updated_replicas, status.available_replicas) == (replicas, replicas)
