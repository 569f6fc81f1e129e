"""What a request for deletion leads to."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from keepclose.apiserver.registry.deletion import (
    DeleteOptions,
    Deletion,
    DeletionStep,
    Preconditions,
    check_options,
    decide_deletion,
    is_finished,
    reject_immortal_namespace,
    reject_new_content,
)
from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.json_values import JsonObject
from support.kinds import NOW, Kinds, raw

LATER = "2026-01-02T03:04:35Z"
ONE_SECOND_AGO = "2026-01-02T03:04:04Z"
GONE = {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0}


def _decide(obj: JsonObject, **options: Any) -> Deletion:
    kept = deepcopy(obj)
    resource = BY_KIND[obj["apiVersion"], obj["kind"]]
    found = decide_deletion(resource, obj, Kinds().of(obj), DeleteOptions(**options), now=NOW)
    assert obj == kept
    return found


@pytest.mark.parametrize(
    ("finalizers", "options", "want_step", "want_finalizers"),
    [
        pytest.param([], {}, DeletionStep.REMOVE, None, id="nothing holds it"),
        pytest.param(["a.b/c"], {}, DeletionStep.MARK, ["a.b/c"], id="a finalizer holds it"),
        pytest.param(
            [],
            {"propagation_policy": "Foreground"},
            DeletionStep.MARK,
            ["foregroundDeletion"],
            id="dependents go first",
        ),
        pytest.param(
            ["a.b/c"],
            {"propagation_policy": "Orphan"},
            DeletionStep.MARK,
            ["a.b/c", "orphan"],
            id="dependents are let go first",
        ),
        pytest.param(
            ["orphan"],
            {"propagation_policy": "Background"},
            DeletionStep.REMOVE,
            None,
            id="the client's wish beats a finalizer of the collector",
        ),
        pytest.param(["orphan"], {}, DeletionStep.MARK, ["orphan"], id="which else stays"),
        pytest.param(
            [], {"orphan_dependents": True}, DeletionStep.MARK, ["orphan"], id="the older wish"
        ),
        pytest.param(
            ["foregroundDeletion"],
            {"orphan_dependents": False},
            DeletionStep.REMOVE,
            None,
            id="the older wish for the contrary",
        ),
    ],
)
def test_finalizers_decide_whether_an_object_goes_at_once(
    finalizers: list[str],
    options: dict[str, Any],
    want_step: DeletionStep,
    want_finalizers: list[str] | None,
) -> None:
    """An object that is held is marked; the collector is told what to do by a finalizer."""
    stored = raw("ConfigMap", metadata={"finalizers": finalizers} if finalizers else {})
    got = _decide(stored, **options)
    assert (got.step, got.object["metadata"].get("finalizers")) == (want_step, want_finalizers)
    if want_step is DeletionStep.MARK:
        assert {key: got.object["metadata"][key] for key in GONE} == GONE


def test_an_object_that_is_marked_already_waits() -> None:
    """A second request changes nothing, unless it wants something else of the dependents."""
    stored = raw("ConfigMap", metadata={**GONE, "finalizers": ["a.b/c"]})
    assert _decide(stored) == Deletion(DeletionStep.WAIT, stored)
    got = _decide(stored, propagation_policy="Orphan")
    assert got.step is DeletionStep.MARK
    assert got.object["metadata"]["finalizers"] == ["a.b/c", "orphan"]
    early = raw("ConfigMap", metadata={**GONE, "deletionTimestamp": LATER, "finalizers": ["a/b"]})
    assert _decide(early).object["metadata"]["deletionTimestamp"] == NOW


def test_marking_is_a_new_generation() -> None:
    """Whoever controls the object sees that it changed."""
    stored = raw("Deployment", metadata={"generation": 4, "finalizers": ["a.b/c"]})
    assert _decide(stored).object["metadata"]["generation"] == 5
    assert "generation" not in _decide(raw("ConfigMap", metadata={"finalizers": ["a/b"]})).object


def _pod(metadata: JsonObject | None = None, **members: Any) -> JsonObject:
    spec = {"nodeName": "n", "terminationGracePeriodSeconds": 30}
    return raw("Pod", metadata=metadata or {}, **{"spec": spec, **members})


@pytest.mark.parametrize(
    ("pod", "asked", "want_step", "want_end", "want_period"),
    [
        pytest.param(_pod(), None, DeletionStep.MARK, LATER, 30, id="its own time"),
        pytest.param(
            _pod(), 5, DeletionStep.MARK, "2026-01-02T03:04:10Z", 5, id="the client's time"
        ),
        pytest.param(
            _pod(), -3, DeletionStep.MARK, "2026-01-02T03:04:06Z", 1, id="a second at least"
        ),
        pytest.param(_pod(), 0, DeletionStep.REMOVE, NOW, 0, id="no time"),
        pytest.param(_pod(spec={}), None, DeletionStep.REMOVE, NOW, 0, id="a pod without a node"),
        pytest.param(
            _pod(status={"phase": "Succeeded"}),
            None,
            DeletionStep.REMOVE,
            NOW,
            0,
            id="a pod that ended",
        ),
        pytest.param(
            _pod({"finalizers": ["a.b/c"]}),
            0,
            DeletionStep.MARK,
            NOW,
            0,
            id="no time, but a finalizer",
        ),
        pytest.param(
            _pod({"deletionTimestamp": LATER, "deletionGracePeriodSeconds": 30}),
            0,
            DeletionStep.REMOVE,
            NOW,
            0,
            id="the node has ended it",
        ),
        pytest.param(
            _pod({"deletionTimestamp": LATER, "deletionGracePeriodSeconds": 30}),
            10,
            DeletionStep.MARK,
            "2026-01-02T03:04:15Z",
            10,
            id="sooner than asked before",
        ),
        pytest.param(
            _pod({"deletionTimestamp": ONE_SECOND_AGO, "deletionGracePeriodSeconds": 30}),
            10,
            DeletionStep.MARK,
            NOW,
            1,
            id="sooner, when the time is over",
        ),
        pytest.param(
            _pod({"deletionTimestamp": LATER, "deletionGracePeriodSeconds": 30}),
            40,
            DeletionStep.WAIT,
            LATER,
            30,
            id="never later",
        ),
        pytest.param(
            _pod({"deletionTimestamp": LATER, "deletionGracePeriodSeconds": 30}),
            None,
            DeletionStep.WAIT,
            LATER,
            30,
            id="asked a second time",
        ),
        pytest.param(_pod(GONE), None, DeletionStep.REMOVE, NOW, 0, id="left over from a crash"),
    ],
)
def test_pods_are_given_time(
    pod: JsonObject, asked: int | None, want_step: DeletionStep, want_end: str, want_period: int
) -> None:
    """A pod on a node is marked with the end of its time, and removed without."""
    got = _decide(pod, grace_period_seconds=asked)
    metadata = got.object["metadata"]
    assert (
        got.step,
        metadata["deletionTimestamp"],
        metadata["deletionGracePeriodSeconds"],
    ) == (want_step, want_end, want_period)


def test_a_namespace_is_emptied_first() -> None:
    """It is marked as long as its contents hold it, and removed after."""
    spec = {"finalizers": ["kubernetes"]}
    stored = raw("Namespace", spec=spec, status={"phase": "Active"})
    got = _decide(stored)
    assert got.step is DeletionStep.MARK
    assert got.object["metadata"] == {"name": "one", "deletionTimestamp": NOW}
    assert got.object["status"] == {"phase": "Terminating"}
    assert _decide(got.object) == Deletion(DeletionStep.WAIT, got.object)
    assert _decide({**got.object, "spec": {}}).step is DeletionStep.REMOVE
    assert _decide(raw("Namespace", spec={})).step is DeletionStep.REMOVE


@pytest.mark.parametrize(
    ("obj", "want_finished"),
    [
        pytest.param(raw("ConfigMap"), False, id="not deleted"),
        pytest.param(raw("ConfigMap", metadata=GONE), True, id="nothing holds it"),
        pytest.param(
            raw("ConfigMap", metadata={**GONE, "finalizers": ["a.b/c"]}), False, id="a finalizer"
        ),
        pytest.param(
            raw("Pod", metadata={"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 30}),
            False,
            id="time is left",
        ),
        pytest.param(
            raw("Namespace", metadata=GONE, spec={"finalizers": ["kubernetes"]}),
            False,
            id="a namespace with contents",
        ),
        pytest.param(raw("Namespace", metadata=GONE, spec={}), True, id="an empty namespace"),
    ],
)
def test_the_update_that_frees_an_object_removes_it(obj: JsonObject, want_finished: bool) -> None:
    """An object on its way out goes when nothing holds it any more."""
    assert is_finished(obj) is want_finished


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(
            DeleteOptions(propagation_policy="Foreground", orphan_dependents=True),
            'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Invalid value: '
            '"Foreground": orphanDependents and deletionPropagation cannot be both set',
            id="two wishes",
        ),
        pytest.param(
            DeleteOptions(propagation_policy="Foo"),
            'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Foo": '
            'supported values: "Foreground", "Background", "Orphan", "nil"',
            id="an unknown wish",
        ),
    ],
)
def test_options_that_cannot_be_followed(options: DeleteOptions, want: str) -> None:
    """Contradicting and unknown options are refused."""
    with pytest.raises(StatusError) as caught:
        check_options(options)
    assert (caught.value.code, caught.value.message) == (422, want)


@pytest.mark.parametrize(
    ("preconditions", "want"),
    [
        pytest.param(
            Preconditions(uid="x"),
            'Operation cannot be fulfilled on ConfigMap "one": the UID in the precondition (x) does'
            " not match the UID in record (u). The object might have been deleted and then "
            "recreated",
            id="another object",
        ),
        pytest.param(
            Preconditions(uid="u", resource_version="1"),
            'Operation cannot be fulfilled on ConfigMap "one": the ResourceVersion in the '
            "precondition (1) does not match the ResourceVersion in record (7). The object might "
            "have been modified",
            id="another version",
        ),
    ],
)
def test_preconditions_must_hold(preconditions: Preconditions, want: str) -> None:
    """A deletion that was meant for something else is refused."""
    stored = raw("ConfigMap", metadata={"uid": "u", "resourceVersion": "7"})
    with pytest.raises(StatusError) as caught:
        _decide(stored, preconditions=preconditions)
    assert (caught.value.code, caught.value.message) == (409, want)
    met = Preconditions(uid="u", resource_version="7")
    assert _decide(stored, preconditions=met).step is DeletionStep.REMOVE


def test_some_namespaces_are_for_ever() -> None:
    """The namespaces that every cluster has cannot be deleted."""
    namespaces = BY_KIND["v1", "Namespace"]
    reject_immortal_namespace(namespaces, "mine")
    reject_immortal_namespace(BY_KIND["v1", "ConfigMap"], "default")
    with pytest.raises(StatusError) as caught:
        reject_immortal_namespace(namespaces, "kube-system")
    assert (caught.value.code, caught.value.message) == (
        403,
        'namespaces "kube-system" is forbidden: this namespace may not be deleted',
    )


def test_nothing_is_created_in_a_namespace_that_is_going() -> None:
    """The refusal says so, for machines too."""
    config_maps = BY_KIND["v1", "ConfigMap"]
    reject_new_content(config_maps, "x", raw("Namespace", "n"))
    with pytest.raises(StatusError) as caught:
        reject_new_content(config_maps, "x", raw("Namespace", "n", metadata=GONE))
    failure = caught.value
    assert (failure.code, failure.message) == (
        403,
        (
            'configmaps "x" is forbidden: unable to create new content in namespace n because it '
            "is "
            "being terminated"
        ),
    )
    assert failure.details == {
        "name": "x",
        "kind": "configmaps",
        "causes": [
            {
                "reason": "NamespaceTerminating",
                "message": "namespace n is being terminated",
                "field": "metadata.namespace",
            }
        ],
    }
