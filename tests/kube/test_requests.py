"""Tests of what goes over the wire."""

from __future__ import annotations

import msgspec
import pytest

from keepclose.kube import requests
from keepclose.kube.errors import UsageError
from keepclose.kube.requests import (
    APPLY,
    ENDPOINT_SLICES,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    PatchType,
)
from keepclose.kube.transport.transport import ApiRequest
from keepclose.model.core_kinds import Namespace
from keepclose.model.meta import ObjectMeta
from support.builders import node, pod, service

WEB = "/api/v1/namespaces/shop/services/web"
SHOP = {"metadata": {"name": "web", "namespace": "shop"}}
JSON = {"Content-Type": "application/json"}
OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions"}


@pytest.mark.parametrize(
    ("request_", "want"),
    [
        pytest.param(
            requests.get_request(NODES, "n1"), ApiRequest("GET", "/api/v1/nodes/n1"), id="get"
        ),
        pytest.param(
            requests.get_request(PODS, "p", namespace="a", resource_version="0"),
            ApiRequest("GET", "/api/v1/namespaces/a/pods/p", (("resourceVersion", "0"),)),
            id="get from the cache",
        ),
        pytest.param(
            requests.get_request(PODS, "a b", namespace="ü"),
            ApiRequest("GET", "/api/v1/namespaces/%C3%BC/pods/a%20b"),
            id="get with odd characters",
        ),
        pytest.param(requests.list_request(PODS), ApiRequest("GET", "/api/v1/pods"), id="list"),
        pytest.param(
            requests.list_request(
                PODS,
                namespace="a",
                label_selector="app=web,tier in (x)",
                field_selector="spec.nodeName=n1",
                limit=5,
                resource_version="7",
                resource_version_match="Exact",
            ),
            ApiRequest(
                "GET",
                "/api/v1/namespaces/a/pods",
                (
                    ("labelSelector", "app=web,tier in (x)"),
                    ("fieldSelector", "spec.nodeName=n1"),
                    ("limit", "5"),
                    ("resourceVersion", "7"),
                    ("resourceVersionMatch", "Exact"),
                ),
            ),
            id="list with everything",
        ),
        pytest.param(
            requests.list_request(
                PODS,
                limit=5,
                continue_token="t",  # noqa: S106
                resource_version="7",
                resource_version_match="Exact",
            ),
            ApiRequest("GET", "/api/v1/pods", (("limit", "5"), ("continue", "t"))),
            id="a continued list names no version",
        ),
        pytest.param(
            requests.watch_request(PODS, resource_version="7", timeout_seconds=300),
            ApiRequest(
                "GET",
                "/api/v1/pods",
                (
                    ("watch", "true"),
                    ("allowWatchBookmarks", "true"),
                    ("resourceVersion", "7"),
                    ("timeoutSeconds", "300"),
                ),
                streaming=True,
            ),
            id="watch",
        ),
        pytest.param(
            requests.watch_request(
                ENDPOINT_SLICES,
                namespace="a",
                label_selector="x",
                field_selector="y=z",
                send_initial_events=True,
            ),
            ApiRequest(
                "GET",
                "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices",
                (
                    ("watch", "true"),
                    ("allowWatchBookmarks", "true"),
                    ("labelSelector", "x"),
                    ("fieldSelector", "y=z"),
                    ("sendInitialEvents", "true"),
                    ("resourceVersionMatch", "NotOlderThan"),
                ),
                streaming=True,
            ),
            id="watch with initial events",
        ),
        pytest.param(
            requests.create_request(SERVICES, SHOP, field_manager="keepclose", dry_run=True),
            ApiRequest(
                "POST",
                "/api/v1/namespaces/shop/services",
                (("fieldManager", "keepclose"), ("dryRun", "All")),
                JSON,
                msgspec.json.encode({"apiVersion": "v1", "kind": "Service", **SHOP}),
            ),
            id="create from plain values adds the type",
        ),
        pytest.param(
            requests.create_request(SERVICES, b'{"metadata":{"namespace":"x"}}', namespace="shop"),
            ApiRequest(
                "POST",
                "/api/v1/namespaces/shop/services",
                (),
                JSON,
                b'{"metadata":{"namespace":"x"}}',
            ),
            id="create from bytes sends them as they are",
        ),
        pytest.param(
            requests.create_request(NAMESPACES, Namespace(metadata=ObjectMeta(name="shop"))),
            ApiRequest(
                "POST",
                "/api/v1/namespaces",
                (),
                JSON,
                b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"},"status":{}}',
            ),
            id="create from a struct",
        ),
        pytest.param(
            requests.replace_request(NODES, node("n1"), subresource="status", field_manager="k"),
            ApiRequest(
                "PUT",
                "/api/v1/nodes/n1/status",
                (("fieldManager", "k"),),
                JSON,
                msgspec.json.encode(node("n1")),
            ),
            id="replace",
        ),
        pytest.param(
            requests.patch_request(SERVICES, "web", {"a": None}, namespace="shop"),
            ApiRequest(
                "PATCH",
                WEB,
                (),
                {"Content-Type": "application/merge-patch+json"},
                b'{"a":null}',
            ),
            id="merge patch",
        ),
        pytest.param(
            requests.patch_request(
                SERVICES,
                "web",
                [{"op": "remove", "path": "/a"}],
                namespace="shop",
                media_type=PatchType.JSON,
                subresource="status",
                field_manager="k",
            ),
            ApiRequest(
                "PATCH",
                WEB + "/status",
                (("fieldManager", "k"),),
                {"Content-Type": "application/json-patch+json"},
                b'[{"op":"remove","path":"/a"}]',
            ),
            id="JSON patch of a subresource",
        ),
        pytest.param(
            requests.patch_request(
                SERVICES,
                "web",
                SHOP,
                namespace="shop",
                media_type=APPLY,
                field_manager="k",
                force=True,
            ),
            ApiRequest(
                "PATCH",
                WEB,
                (("fieldManager", "k"), ("force", "true")),
                {"Content-Type": "application/apply-patch+yaml"},
                msgspec.json.encode({"apiVersion": "v1", "kind": "Service", **SHOP}),
            ),
            id="apply",
        ),
        pytest.param(
            requests.delete_request(SERVICES, "web", namespace="shop", preconditions={}),
            ApiRequest("DELETE", WEB, (), JSON, msgspec.json.encode(OPTIONS)),
            id="delete",
        ),
        pytest.param(
            requests.delete_request(
                SERVICES,
                "web",
                namespace="shop",
                preconditions={"uid": "u"},
                grace_period=0,
                propagation="Foreground",
            ),
            ApiRequest(
                "DELETE",
                WEB,
                (),
                JSON,
                msgspec.json.encode(
                    {
                        **OPTIONS,
                        "preconditions": {"uid": "u"},
                        "gracePeriodSeconds": 0,
                        "propagationPolicy": "Foreground",
                    }
                ),
            ),
            id="delete with everything",
        ),
    ],
)
def test_requests_are_those_of_the_api(request_: ApiRequest, want: ApiRequest) -> None:
    """Each verb has its path, query, headers and body."""
    assert request_ == want


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2Fb"])
def test_names_that_would_lead_elsewhere_are_refused(name: str) -> None:
    """Deleting nothing in particular must not delete a whole collection."""
    with pytest.raises(UsageError):
        requests.delete_request(SERVICES, name, namespace="shop", preconditions={})
    with pytest.raises(UsageError):
        requests.get_request(PODS, "p", namespace=name)


@pytest.mark.parametrize(
    "body", [pod("p", namespace=""), {"metadata": None}, {"spec": 1}, b'{"a":1}', [1]]
)
def test_an_object_needs_a_namespace(body: requests.Body) -> None:
    """Creating an object of a namespaced kind nowhere is a mistake of the program."""
    with pytest.raises(UsageError) as raised:
        requests.create_request(PODS, body)
    assert str(raised.value) == "pods: an object needs a namespace"


def test_structs_know_who_they_are() -> None:
    """Name and namespace of a replaced object come from the object."""
    request = requests.replace_request(SERVICES, service("web", namespace="shop"))
    assert str(request) == f"PUT {WEB}"
