"""Writing Deployments, ReplicaSets and DaemonSets."""

from __future__ import annotations

from copy import deepcopy

import pytest

from keepclose.model.json_values import JsonObject
from support.kinds import Kinds, raw

SELECTOR = {"matchLabels": {"app": "web"}}
TEMPLATE = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "web", "image": "nginx"}]},
}
PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
KINDS = ("Deployment", "ReplicaSet", "DaemonSet")


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


def _spec(**changes: object) -> JsonObject:
    return deepcopy({"selector": SELECTOR, "template": TEMPLATE, **changes})


@pytest.mark.parametrize(
    ("kind", "want_spec", "want_status"),
    [
        pytest.param(
            "Deployment",
            {
                "replicas": 1,
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
                },
                "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
            },
            {},
            id="a Deployment",
        ),
        pytest.param("ReplicaSet", {"replicas": 1}, {"replicas": 0}, id="a ReplicaSet"),
        pytest.param(
            "DaemonSet",
            {
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
                },
                "revisionHistoryLimit": 10,
            },
            {
                "currentNumberScheduled": 0,
                "numberMisscheduled": 0,
                "desiredNumberScheduled": 0,
                "numberReady": 0,
            },
            id="a DaemonSet",
        ),
    ],
)
def test_a_new_workload_is_completed(
    kinds: Kinds, kind: str, want_spec: JsonObject, want_status: JsonObject
) -> None:
    """Spec, status and template get what a real server sets."""
    got = kinds.write(raw(kind, spec=_spec(), status={"replicas": 7}))
    assert got.causes == []
    spec = got.object["spec"]
    assert {key: spec[key] for key in spec if key not in ("selector", "template")} == want_spec
    assert got.object["status"] == want_status
    assert got.object["metadata"]["generation"] == 1
    template = spec["template"]["spec"]
    assert template["restartPolicy"] == "Always"
    # What only pods get would make every workload look changed.
    assert "enableServiceLinks" not in template
    assert "tolerations" not in template


@pytest.mark.parametrize(
    ("kind", "spec", "want_causes"),
    [
        pytest.param(
            "Deployment",
            {"template": TEMPLATE},
            [
                "spec.selector: Required value",
                (
                    'spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` '
                    "does not "
                    "match template `labels`"
                ),
            ],
            id="a Deployment without a selector",
        ),
        pytest.param(
            "DaemonSet",
            {"template": TEMPLATE},
            [
                (
                    'spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` '
                    "does not "
                    "match template `labels`"
                ),
            ],
            id="a DaemonSet without a selector",
        ),
        pytest.param(
            "ReplicaSet",
            {"selector": {}, "template": TEMPLATE},
            ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
            id="an empty selector",
        ),
        pytest.param(
            "DaemonSet",
            {"selector": {}, "template": TEMPLATE},
            ["spec.selector: Invalid value: {}: empty selector is invalid for daemonset"],
            id="an empty selector of a DaemonSet",
        ),
        pytest.param(
            "Deployment",
            {},
            [
                "spec.selector: Required value",
                (
                    "spec.template.metadata.labels: Invalid value: null: `selector` does not match "
                    "template `labels`"
                ),
                "spec.template.spec.containers: Required value",
            ],
            id="nothing at all",
        ),
        pytest.param(
            "Deployment",
            {
                "replicas": -1,
                "selector": {"matchExpressions": [{"key": "a", "operator": "Foo"}]},
                "template": TEMPLATE,
            },
            [
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                (
                    'spec.selector.matchExpressions[0].operator: Invalid value: "Foo": not a valid '
                    "selector operator"
                ),
                (
                    "spec.selector: Invalid value: "
                    '{"matchExpressions":[{"key":"a","operator":"Foo"}]}:'
                    " invalid label selector"
                ),
            ],
            id="a selector that cannot be read",
        ),
        pytest.param(
            "DaemonSet",
            {
                "selector": {"matchExpressions": [{"key": "a", "operator": "In"}]},
                "template": TEMPLATE,
                "minReadySeconds": -1,
            },
            [
                (
                    "spec.selector.matchExpressions[0].values: Required value: must be specified "
                    "when "
                    "`operator` is 'In' or 'NotIn'"
                ),
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
            ],
            id="a selector of a DaemonSet that cannot be read",
        ),
        pytest.param(
            "Deployment",
            {
                "selector": SELECTOR,
                "template": {
                    **TEMPLATE,
                    "spec": {
                        "containers": [{"name": "a", "image": "b", "ports": [{}]}],
                        "restartPolicy": "Never",
                        "activeDeadlineSeconds": 5,
                    },
                },
            },
            [
                "spec.template.spec.containers[0].ports[0].containerPort: Required value",
                (
                    'spec.template.spec.restartPolicy: Unsupported value: "Never": supported '
                    "values: "
                    '"Always"'
                ),
                (
                    "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in "
                    "ReplicaSet is not Supported"
                ),
            ],
            id="a template that ends",
        ),
        pytest.param(
            "Deployment",
            {"selector": SELECTOR, "template": TEMPLATE, "strategy": {"type": "Foo"}},
            [
                (
                    'spec.strategy: Unsupported value: {"Type":"Foo","RollingUpdate":null}: '
                    "supported "
                    'values: "Recreate", "RollingUpdate"'
                )
            ],
            id="an unknown strategy",
        ),
        pytest.param(
            "DaemonSet",
            {"selector": SELECTOR, "template": TEMPLATE, "updateStrategy": {"type": "Foo"}},
            [
                (
                    'spec.updateStrategy: Unsupported value: {"Type":"Foo","RollingUpdate":null}: '
                    'supported values: "RollingUpdate", "OnDelete"'
                )
            ],
            id="an unknown strategy of a DaemonSet",
        ),
        pytest.param(
            "Deployment",
            {
                "selector": SELECTOR,
                "template": TEMPLATE,
                "strategy": {"type": "Recreate", "rollingUpdate": {}},
            },
            [
                (
                    "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy "
                    "`type` "
                    "is 'Recreate'"
                )
            ],
            id="steps where there are none",
        ),
        pytest.param(
            "Deployment",
            {
                "selector": SELECTOR,
                "template": TEMPLATE,
                "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}},
                "progressDeadlineSeconds": -2,
            },
            [
                (
                    'spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "0%": may not be '
                    "0 when"
                    " `maxSurge` is 0"
                ),
                (
                    "spec.progressDeadlineSeconds: Invalid value: -2: must be greater than or "
                    "equal to "
                    "0"
                ),
                (
                    "spec.progressDeadlineSeconds: Invalid value: -2: must be greater than "
                    "minReadySeconds"
                ),
            ],
            id="steps of nothing",
        ),
        pytest.param(
            "Deployment",
            {
                "selector": SELECTOR,
                "template": TEMPLATE,
                "strategy": {"rollingUpdate": {"maxSurge": -1, "maxUnavailable": "200%"}},
            },
            [
                (
                    "spec.strategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater "
                    "than or "
                    "equal to 0"
                ),
                (
                    'spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "200%": must not '
                    "be "
                    "greater than 100%"
                ),
            ],
            id="steps of more than all",
        ),
        pytest.param(
            "DaemonSet",
            {
                "selector": SELECTOR,
                "template": TEMPLATE,
                "updateStrategy": {"rollingUpdate": {"maxSurge": "x", "maxUnavailable": 1}},
            },
            [f'spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: "x": {PERCENT}'],
            id="a share that is none",
        ),
        pytest.param(
            "DaemonSet",
            {
                "selector": SELECTOR,
                "template": TEMPLATE,
                "updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}},
            },
            [
                (
                    "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be "
                    "0 when"
                    " maxSurge is 0"
                )
            ],
            id="steps of nothing of a DaemonSet",
        ),
        pytest.param(
            "DaemonSet",
            {
                "selector": SELECTOR,
                "template": TEMPLATE,
                "updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
            },
            [
                (
                    "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be "
                    "set when "
                    "maxUnavailable is non-zero"
                )
            ],
            id="two kinds of steps at once",
        ),
    ],
)
def test_common_mistakes_are_named(
    kinds: Kinds, kind: str, spec: JsonObject, want_causes: list[str]
) -> None:
    """Each mistake is told at its field with upstream's words."""
    assert kinds.write(raw(kind, spec=deepcopy(spec))).causes == want_causes


@pytest.mark.parametrize("kind", KINDS)
def test_the_selector_never_changes(kinds: Kinds, kind: str) -> None:
    """A selector stays, even when the template follows it."""
    old = kinds.write(raw(kind, spec=_spec())).object
    new = deepcopy(old)
    new["spec"]["selector"]["matchLabels"]["x"] = "y"
    new["spec"]["template"]["metadata"]["labels"]["x"] = "y"
    assert kinds.write(new, old).causes == [
        'spec.selector: Invalid value: {"matchLabels":{"app":"web","x":"y"}}: field is immutable'
    ]


@pytest.mark.parametrize(
    ("kind", "change", "want_generation"),
    [
        pytest.param("Deployment", {"spec": {"minReadySeconds": 1}}, 2, id="the spec counts"),
        pytest.param("Deployment", {"annotations": {"a": "b"}}, 2, id="annotations count here"),
        pytest.param("ReplicaSet", {"annotations": {"a": "b"}}, 1, id="but not here"),
        pytest.param("DaemonSet", {"annotations": {"a": "b"}}, 1, id="nor here"),
        pytest.param("ReplicaSet", {"labels": {"a": "b"}}, 1, id="labels do not count"),
        pytest.param("Deployment", {"status": {"replicas": 1}}, 1, id="nor does the status"),
    ],
)
def test_the_generation_counts_changes(
    kinds: Kinds, kind: str, change: JsonObject, want_generation: int
) -> None:
    """One more with every change of what the workload wants."""
    old = kinds.write(raw(kind, spec=_spec())).object
    new = deepcopy(old)
    new["spec"].update(change.get("spec", {}))
    new["status"].update(change.get("status", {}))
    for key in ("labels", "annotations"):
        new["metadata"][key] = {**new["metadata"].get(key, {}), **change.get(key, {})}
    got = kinds.write(new, old).object
    assert got["metadata"]["generation"] == want_generation
    assert got["status"] == old["status"]


def test_daemon_sets_count_generations_of_their_template(kinds: Kinds) -> None:
    """The deprecated annotation grows with the template alone."""
    key = "deprecated.daemonset.template.generation"
    old = kinds.write(raw("DaemonSet", spec=_spec())).object
    assert old["metadata"]["annotations"] == {key: "1"}
    new = deepcopy(old)
    new["spec"]["minReadySeconds"] = 1
    assert kinds.write(new, old).object["metadata"]["annotations"] == {key: "1"}
    new["spec"]["template"]["metadata"]["labels"]["x"] = "y"
    assert kinds.write(new, old).object["metadata"]["annotations"] == {key: "2"}


@pytest.mark.parametrize(
    ("kind", "before", "status", "want_causes"),
    [
        pytest.param(
            "Deployment",
            {"collisionCount": 2},
            {"replicas": 3, "readyReplicas": 4, "availableReplicas": 5, "collisionCount": -1},
            [
                "status.collisionCount: Invalid value: -1: must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: 4: cannot be greater than status.replicas",
                (
                    "status.availableReplicas: Invalid value: 5: cannot be greater than "
                    "status.replicas"
                ),
                "status.availableReplicas: Invalid value: 5: cannot be greater than readyReplicas",
                "status.collisionCount: Invalid value: -1: cannot be decremented",
            ],
            id="numbers that cannot be",
        ),
        pytest.param(
            "Deployment",
            {},
            {"replicas": -1},
            [
                "status.replicas: Invalid value: -1: must be greater than or equal to 0",
                "status.updatedReplicas: Invalid value: 0: cannot be greater than status.replicas",
                "status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas",
                (
                    "status.availableReplicas: Invalid value: 0: cannot be greater than "
                    "status.replicas"
                ),
            ],
            id="absent numbers are zero",
        ),
        pytest.param(
            "DaemonSet",
            {},
            {"numberReady": -1},
            ["status.numberReady: Invalid value: -1: must be greater than or equal to 0"],
            id="a negative number",
        ),
        pytest.param(
            "ReplicaSet", {}, {"replicas": 3, "readyReplicas": 3}, [], id="numbers that can be"
        ),
    ],
)
def test_numbers_of_a_status(
    kinds: Kinds,
    kind: str,
    before: JsonObject,
    status: JsonObject,
    want_causes: list[str],
) -> None:
    """A status may not report what cannot be."""
    old = kinds.write(raw(kind, spec=_spec())).object
    old["status"] |= before
    new = {**deepcopy(old), "status": status}
    assert kinds.write(new, old, subresource="status").causes == want_causes


def test_labels_of_a_deployment_are_not_changed_with_its_status(kinds: Kinds) -> None:
    """A status update of a Deployment keeps labels, of a ReplicaSet it does not."""
    for kind, want_labels in (("Deployment", {"a": "b"}), ("ReplicaSet", {"c": "d"})):
        old = kinds.write(raw(kind, spec=_spec(), metadata={"labels": {"a": "b"}})).object
        new = deepcopy(old)
        new["metadata"]["labels"] = {"c": "d"}
        new["spec"] = {}
        got = kinds.write(new, old, subresource="status").object
        assert (got["metadata"]["labels"], got["spec"]) == (want_labels, old["spec"])
