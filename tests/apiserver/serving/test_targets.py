"""Paths and verbs of the API."""

from __future__ import annotations

import pytest

from keepclose.apiserver.resources import BINDINGS, BY_KIND
from keepclose.apiserver.serving.options import RequestTarget, parse_path, verb_of

POD = BY_KIND["v1", "Pod"]
NODE = BY_KIND["v1", "Node"]
NAMESPACE = BY_KIND["v1", "Namespace"]
SLICE = BY_KIND["discovery.k8s.io/v1", "EndpointSlice"]
DEPLOYMENT = BY_KIND["apps/v1", "Deployment"]


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param("/api/v1/pods", RequestTarget(POD), id="pods of all namespaces"),
        pytest.param(
            "/api/v1/namespaces/a/pods", RequestTarget(POD, "a"), id="pods of a namespace"
        ),
        pytest.param("/api/v1/namespaces/a/pods/p", RequestTarget(POD, "a", "p"), id="one pod"),
        pytest.param(
            "/api/v1/namespaces/a/pods/p/status",
            RequestTarget(POD, "a", "p", "status"),
            id="its status",
        ),
        pytest.param(
            "/api/v1/nodes/n1", RequestTarget(NODE, "", "n1"), id="a node has no namespace"
        ),
        pytest.param("/api/v1/namespaces", RequestTarget(NAMESPACE), id="all namespaces"),
        pytest.param("/api/v1/namespaces/a", RequestTarget(NAMESPACE, "", "a"), id="a namespace"),
        pytest.param(
            "/api/v1/namespaces/a/finalize",
            RequestTarget(NAMESPACE, "", "a", "finalize"),
            id="a namespace's own subresource is no resource in it",
        ),
        pytest.param(
            "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/s",
            RequestTarget(SLICE, "a", "s"),
            id="a kind of another group",
        ),
        pytest.param(
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            RequestTarget(DEPLOYMENT, "a", "d", "scale"),
            id="scale",
        ),
        pytest.param(
            "/api/v1/namespaces/a/pods/p/binding",
            RequestTarget(POD, "a", "p", "binding"),
            id="a binding",
        ),
        pytest.param(
            "/api/v1/namespaces/a/bindings", RequestTarget(BINDINGS, "a"), id="the old way to bind"
        ),
        pytest.param("/api/v1/pods/", RequestTarget(POD), id="a slash at the end does not matter"),
    ],
)
def test_paths_name_what_they_should(path: str, want: RequestTarget) -> None:
    """A path names a kind, a namespace, a name and a subresource."""
    assert parse_path(path) == want


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/", id="the root"),
        pytest.param("/api/v1", id="a group and version"),
        pytest.param("/api/v2/pods", id="an unknown version"),
        pytest.param("/apis/apps/v1", id="a group and version of another group"),
        pytest.param("/api/v1/widgets", id="an unknown kind"),
        pytest.param("/api/v1/pods/p", id="a namespaced object without namespace"),
        pytest.param("/api/v1/bindings", id="the bindings of all namespaces"),
        pytest.param("/api/v1/namespaces/a/bindings/b", id="a binding of its own"),
        pytest.param("/api/v1/nodes/n/binding", id="what is no pod has no binding"),
        pytest.param("/api/v1/namespaces/a/nodes/n", id="a node inside a namespace"),
        pytest.param("/api/v1/namespaces/a/pods/p/exec", id="an unknown subresource"),
        pytest.param("/api/v1/namespaces/a/pods/p/status/x", id="too long"),
        pytest.param("/api/v1/namespaces/a/pods//status", id="an empty name"),
    ],
)
def test_other_paths_name_nothing(path: str) -> None:
    """A path that no resource is behind is told apart."""
    assert parse_path(path) is None


@pytest.mark.parametrize(
    ("method", "path", "watch", "want"),
    [
        ("GET", "/api/v1/pods", False, "list"),
        ("GET", "/api/v1/pods", True, "watch"),
        ("POST", "/api/v1/namespaces/a/pods", False, "create"),
        ("POST", "/api/v1/namespaces/a/pods", True, "create"),
        ("DELETE", "/api/v1/namespaces/a/pods", False, "deletecollection"),
        ("GET", "/api/v1/nodes/n", False, "get"),
        ("PUT", "/api/v1/nodes/n", False, "update"),
        ("PATCH", "/api/v1/nodes/n", False, "patch"),
        ("DELETE", "/api/v1/nodes/n", False, "delete"),
        ("POST", "/api/v1/nodes/n", False, None),
        ("PUT", "/api/v1/nodes", False, None),
        ("DELETE", "/api/v1/namespaces", False, None),
        ("PATCH", "/api/v1/nodes/n/status", False, "patch"),
        ("DELETE", "/api/v1/nodes/n/status", False, None),
        ("PUT", "/api/v1/namespaces/a/finalize", False, "update"),
        ("GET", "/api/v1/namespaces/a/finalize", False, None),
        ("POST", "/api/v1/namespaces/a/pods/p/binding", False, "create"),
        ("POST", "/api/v1/namespaces/a/pods/p/status", False, None),
        ("GET", "/api/v1/namespaces/a/pods/p/binding", False, None),
        ("PUT", "/api/v1/namespaces/a/pods/p/binding", False, None),
        ("POST", "/api/v1/namespaces/a/bindings", False, "create"),
        ("GET", "/api/v1/namespaces/a/bindings", False, None),
        ("DELETE", "/api/v1/namespaces/a/bindings", False, None),
    ],
)
def test_verbs(method: str, path: str, want: str | None, *, watch: bool) -> None:
    """The verb follows from the method, the path and whether a watch is asked for."""
    target = parse_path(path)
    assert target is not None
    assert verb_of(method, target, watch=watch) == want
