"""Which ReplicaSet belongs to which template."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.workloads.rolling_update import (
    REVISION,
    current_annotations,
    find_current,
    is_same_template,
    new_replica_set,
    next_revision,
    number_in,
    template_hash,
)
from support.lab.labobjects import a_deployment, a_replica_set, template


def test_hashes_follow_the_content() -> None:
    """Order of members, nulls and the label with the hash do not matter; all else does."""
    one = template("web:1")
    turned = {"spec": one["spec"], "metadata": {**one["metadata"], "creationTimestamp": None}}
    turned["metadata"]["labels"] = {"pod-template-hash": "x", "app": "web"}
    assert template_hash(one) == template_hash(turned)
    assert is_same_template(one, turned)
    assert template_hash(one) != template_hash(template("web:2"))
    assert template_hash(one) != template_hash(one, 1)
    assert len(template_hash(one)) == 10


def test_the_oldest_with_the_template_is_the_current_one() -> None:
    """Should two have the same template, the older one counts."""
    replica_sets = [
        a_replica_set("young", 1, age_s=1),
        a_replica_set("other", 1, image="web:2", age_s=9),
        a_replica_set("old", 1, age_s=5),
    ]
    found = find_current(a_deployment(), replica_sets)
    assert found is replica_sets[2]
    assert find_current(a_deployment(image="web:3"), replica_sets) is None


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        pytest.param([], 1, id="the first"),
        pytest.param(["3", "12", "x"], 13, id="after the highest"),
    ],
)
def test_revisions_count_up(texts: list[str], want: int) -> None:
    """The next revision is one more than the highest; what is no number does not count."""
    old = [a_replica_set(f"rs{n}", 0, annotations={REVISION: t}) for n, t in enumerate(texts)]
    assert next_revision(old) == want
    assert number_in(a_deployment().metadata, REVISION) == 0


@pytest.mark.parametrize(
    ("annotations", "have", "want"),
    [
        pytest.param({}, {REVISION: "2"}, {}, id="nothing new"),
        pytest.param({"team": "a"}, {REVISION: "2"}, {"team": "a"}, id="what the Deployment says"),
        pytest.param(
            {"kubectl.kubernetes.io/last-applied-configuration": "{}", REVISION: "9"},
            {REVISION: "2"},
            {},
            id="not what is about the Deployment itself",
        ),
        pytest.param(
            {},
            {REVISION: "1", "deployment.kubernetes.io/revision-history": "0"},
            {REVISION: "2", "deployment.kubernetes.io/revision-history": "0,1"},
            id="one that came back",
        ),
    ],
)
def test_annotations(
    annotations: dict[str, str], have: dict[str, str], want: dict[str, Any]
) -> None:
    """The present ReplicaSet learns its revision and what its Deployment is annotated with."""
    current = a_replica_set("new", 1, annotations=have)
    old = [a_replica_set("old", 0, annotations={REVISION: "1"})]
    assert current_annotations(a_deployment(annotations=annotations), current, old) == want


def test_a_new_replica_set_inherits() -> None:
    """It has the Deployment's annotations, its minReadySeconds and its size."""
    deployment = a_deployment(4, annotations={"team": "a", REVISION: "7"}, minReadySeconds=5)
    made = new_replica_set(deployment, replicas=2, revision=3)
    assert made["metadata"]["annotations"] == {
        "team": "a",
        REVISION: "3",
        "deployment.kubernetes.io/desired-replicas": "4",
        "deployment.kubernetes.io/max-replicas": "5",
    }
    assert (made["spec"]["replicas"], made["spec"]["minReadySeconds"]) == (2, 5)
