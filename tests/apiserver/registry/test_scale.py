"""Scales of workloads."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.serving.subresources import scale_of, write_scale
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.json_values import JsonObject
from support.kinds import raw

DEPLOYMENTS = BY_KIND["apps/v1", "Deployment"]
METADATA = {"uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}


def _workload(**spec: Any) -> JsonObject:
    selector = {"matchLabels": {"app": "web"}}
    return raw(
        "Deployment", metadata=METADATA, spec={"selector": selector, **spec}, status={"replicas": 3}
    )


def test_a_scale_shows_what_is_wanted_and_what_is() -> None:
    """Name, version, replicas and the selector as text are the workload's."""
    assert scale_of(DEPLOYMENTS, _workload(replicas=2)) == {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": "one",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "7",
        },
        "spec": {"replicas": 2},
        "status": {"replicas": 3, "selector": "app=web"},
    }
    assert scale_of(DEPLOYMENTS, _workload(replicas=0))["spec"] == {}


def test_writing_a_scale_changes_the_replicas_alone() -> None:
    """The version is the scale's, and the stored workload is left alone."""
    stored = _workload(replicas=2)
    scale = scale_of(DEPLOYMENTS, stored)
    scale["spec"] = {"replicas": 5}
    scale["metadata"]["resourceVersion"] = "6"
    got = write_scale(DEPLOYMENTS, stored, scale)
    assert got["spec"] == {**stored["spec"], "replicas": 5}
    assert got["metadata"] == {**stored["metadata"], "resourceVersion": "6"}
    blind = write_scale(DEPLOYMENTS, stored, {"metadata": {"name": "one"}, "spec": {}})
    assert (blind["spec"]["replicas"], "resourceVersion" in blind["metadata"]) == (0, False)
    assert stored == _workload(replicas=2)


@pytest.mark.parametrize(
    ("metadata", "replicas", "want"),
    [
        pytest.param(
            {"name": "foo"},
            1,
            "400 the name of the object (foo) does not match the name on the URL (one)",
            id="another name",
        ),
        pytest.param(
            {"name": "one", "namespace": "foo"},
            1,
            "400 the namespace of the provided object does not match the namespace sent on the "
            "request",
            id="another namespace",
        ),
        pytest.param(
            {"name": "one"},
            -1,
            '422 Scale.autoscaling "one" is invalid: spec.replicas: Invalid value: -1: must be '
            "greater than or equal to 0",
            id="less than none",
        ),
    ],
)
def test_a_scale_that_cannot_be_followed(metadata: JsonObject, replicas: int, want: str) -> None:
    """Scales of other objects and negative ones are refused."""
    scale = {"metadata": metadata, "spec": {"replicas": replicas}}
    with pytest.raises(StatusError) as caught:
        write_scale(DEPLOYMENTS, _workload(), scale)
    assert f"{caught.value.code} {caught.value.message}" == want
