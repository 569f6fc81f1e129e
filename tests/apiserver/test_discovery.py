"""What clients learn about the server, as a kube-apiserver 1.36 tells it."""

from __future__ import annotations

from keepclose.apiserver.serving.pages import (
    aggregated_core,
    aggregated_groups,
    core_versions,
    group_info,
    group_list,
    resource_list,
    version_info,
)

ALL = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
SOME = ["get", "patch", "update"]


def test_the_version_names_the_release_that_is_followed() -> None:
    """Clients compare major and minor, people read the rest."""
    found = version_info()
    assert (found["major"], found["minor"], found["gitVersion"]) == (
        "1",
        "36",
        "v1.36.3+keepclose",
    )
    assert found["minCompatibilityMinor"] == "35"


def test_the_core_group_is_at_its_own_path() -> None:
    """It names its versions and the address of the server."""
    assert core_versions("127.0.0.1:6443") == {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [
            {"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443"}
        ],
    }


def test_groups_come_in_the_order_of_a_kube_apiserver() -> None:
    """Where two groups have a kind, clients take the one that comes first."""
    found = group_list()
    assert (found["kind"], found["apiVersion"]) == ("APIGroupList", "v1")
    assert [group["name"] for group in found["groups"]] == [
        "apps",
        "events.k8s.io",
        "networking.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
    ]


def test_a_group_names_its_versions() -> None:
    """The first version is the preferred one."""
    version = {"groupVersion": "apps/v1", "version": "v1"}
    assert group_info("apps") == {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "apps",
        "versions": [version],
        "preferredVersion": version,
    }
    assert group_info("batch") is None
    assert group_info("") is None


def test_resources_of_a_group_with_their_subresources() -> None:
    """A scale is of another group and says so."""
    found = resource_list("apps", "v1")
    assert found is not None
    assert found["groupVersion"] == "apps/v1"
    assert found["apiVersion"] == "v1"
    names = [entry["name"] for entry in found["resources"]]
    assert names == [
        "daemonsets",
        "daemonsets/status",
        "deployments",
        "deployments/scale",
        "deployments/status",
        "replicasets",
        "replicasets/scale",
        "replicasets/status",
    ]
    assert found["resources"][2:5] == [
        {
            "name": "deployments",
            "singularName": "deployment",
            "namespaced": True,
            "kind": "Deployment",
            "verbs": ALL,
            "shortNames": ["deploy"],
            "categories": ["all"],
        },
        {
            "name": "deployments/scale",
            "singularName": "",
            "namespaced": True,
            "group": "autoscaling",
            "version": "v1",
            "kind": "Scale",
            "verbs": SOME,
        },
        {
            "name": "deployments/status",
            "singularName": "",
            "namespaced": True,
            "kind": "Deployment",
            "verbs": SOME,
        },
    ]


def test_resources_of_the_core_group() -> None:
    """Finalizing is one verb, and the list names no version of its own."""
    found = resource_list("", "v1")
    assert found is not None
    assert "apiVersion" not in found
    assert found["groupVersion"] == "v1"
    entries = {entry["name"]: entry for entry in found["resources"]}
    assert entries["pods/status"] == {
        "name": "pods/status",
        "singularName": "",
        "namespaced": True,
        "kind": "Pod",
        "verbs": SOME,
    }
    assert entries["pods/binding"] == {
        "name": "pods/binding",
        "singularName": "",
        "namespaced": True,
        "kind": "Binding",
        "verbs": ["create"],
    }
    assert found["resources"][0] == {
        "name": "bindings",
        "singularName": "binding",
        "namespaced": True,
        "kind": "Binding",
        "verbs": ["create"],
    }
    assert entries["namespaces/finalize"]["verbs"] == ["update"]
    assert "deletecollection" not in entries["namespaces"]["verbs"]
    assert "categories" not in entries["namespaces"]
    assert resource_list("", "v2") is None
    assert resource_list("apps", "v1beta1") is None


def test_everything_at_once_for_the_core_group() -> None:
    """The one item of the core group has no name."""
    found = aggregated_core()
    assert found["kind"] == "APIGroupDiscoveryList"
    assert found["apiVersion"] == "apidiscovery.k8s.io/v2"
    (item,) = found["items"]
    assert item["metadata"] == {}
    (version,) = item["versions"]
    assert (version["version"], version["freshness"]) == ("v1", "Current")
    entries = {entry["resource"]: entry for entry in version["resources"]}
    assert entries["namespaces"] == {
        "resource": "namespaces",
        "responseKind": {"group": "", "version": "", "kind": "Namespace"},
        "scope": "Cluster",
        "singularResource": "namespace",
        "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        "shortNames": ["ns"],
        "subresources": [
            {
                "subresource": "finalize",
                "responseKind": {"group": "", "version": "", "kind": "Namespace"},
                "verbs": ["update"],
            },
            {
                "subresource": "status",
                "responseKind": {"group": "", "version": "", "kind": "Namespace"},
                "verbs": SOME,
            },
        ],
    }
    assert "subresources" not in entries["configmaps"]


def test_everything_at_once_for_the_other_groups() -> None:
    """Both forms of discovery know the same groups and resources."""
    found = aggregated_groups("v2beta1")
    assert found["apiVersion"] == "apidiscovery.k8s.io/v2beta1"
    names = [item["metadata"]["name"] for item in found["items"]]
    assert names == [group["name"] for group in group_list()["groups"]]
    deployments = found["items"][0]["versions"][0]["resources"][1]
    assert deployments["scope"] == "Namespaced"
    assert deployments["subresources"][0] == {
        "subresource": "scale",
        "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
        "verbs": SOME,
    }
