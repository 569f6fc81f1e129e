"""OpenAPI 3 documents."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.apiserver.resources import RESOURCES, Resource
from keepclose.apiserver.schema.openapi3 import group_document, index_document
from keepclose.model.gates import FeatureGates, Gate

GATES = FeatureGates()


def read(path: str, gates: FeatureGates = GATES) -> dict[str, Any]:
    """Return the document of a group and version."""
    document = group_document(path, gates)
    assert document is not None
    return msgspec.json.decode(document.body, type=dict[str, Any])


def references(value: Any) -> set[str]:
    """Return all references in a document."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(below) for below in value.values()))
    if isinstance(value, list):
        return set().union(*(references(below) for below in value))
    return set()


def test_the_index_names_every_group_with_the_hash_of_its_document() -> None:
    """The address changes exactly when the document does."""
    index = msgspec.json.decode(index_document(GATES).body)
    assert list(index) == ["paths"]
    assert list(index["paths"]) == [
        "api/v1",
        "apis/apps/v1",
        "apis/coordination.k8s.io/v1",
        "apis/discovery.k8s.io/v1",
        "apis/events.k8s.io/v1",
        "apis/networking.k8s.io/v1",
    ]
    for path, entry in index["paths"].items():
        document = group_document(path, GATES)
        assert document is not None
        want = {"serverRelativeURL": f"/openapi/v3/{path}?hash={document.hash}"}
        assert entry == want
        assert document.etag == f'"{document.hash}"'
        assert document.media_type == "application/json"


def test_documents_are_built_once_and_only_for_what_is_served() -> None:
    """A second request gets the same bytes; an unknown group gets none."""
    assert group_document("api/v1", GATES) is group_document("api/v1", FeatureGates())
    assert group_document("apis/batch/v1", GATES) is None


@pytest.mark.parametrize("path", ["api/v1", "apis/apps/v1", "apis/discovery.k8s.io/v1"])
def test_every_reference_leads_somewhere(path: str) -> None:
    """A document is complete in itself."""
    document = read(path)
    prefix = "#/components/schemas/"
    found = {name.removeprefix(prefix) for name in references(document)}
    assert found <= set(document["components"]["schemas"])


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: f"{one.api_version} {one.kind}")
def test_patch_of_every_kind_takes_what_kubectl_looks_for(resource: Resource) -> None:
    """Without these parameters kubectl validates by itself, or refuses a dry run."""
    paths = read(f"apis/{resource.api_version}" if resource.group else "api/v1")["paths"]
    want_kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    patches = [
        path["patch"]
        for path in paths.values()
        if "patch" in path and path["patch"]["x-kubernetes-group-version-kind"] == want_kind
    ]
    assert patches
    for patch in patches:
        query = [one["name"] for one in patch["parameters"] if one["in"] == "query"]
        assert query == ["dryRun", "fieldManager", "fieldValidation", "force"]


def test_paths_of_a_resource() -> None:
    """Collections, objects and subresources have the methods that are served."""
    paths = read("api/v1")["paths"]
    found = {
        path: sorted(set(methods) - {"parameters"})
        for path, methods in paths.items()
        if "services" in path or path.startswith("/api/v1/namespaces/{name}")
    }
    assert found == {
        "/api/v1/namespaces/{name}": ["delete", "get", "patch", "put"],
        "/api/v1/namespaces/{name}/finalize": ["put"],
        "/api/v1/namespaces/{name}/status": ["get", "patch", "put"],
        "/api/v1/namespaces/{namespace}/services": ["delete", "get", "post"],
        "/api/v1/namespaces/{namespace}/services/{name}": ["delete", "get", "patch", "put"],
        "/api/v1/namespaces/{namespace}/services/{name}/status": ["get", "patch", "put"],
        "/api/v1/services": ["get"],
    }


@pytest.mark.parametrize(
    ("path", "address", "method", "want_id", "want_kind"),
    [
        (
            "api/v1",
            "/api/v1/namespaces/{namespace}/services",
            "delete",
            "deleteCoreV1CollectionNamespacedService",
            "Service",
        ),
        ("api/v1", "/api/v1/services", "get", "listCoreV1ServiceForAllNamespaces", "Service"),
        ("api/v1", "/api/v1/nodes/{name}", "put", "replaceCoreV1Node", "Node"),
        (
            "api/v1",
            "/api/v1/namespaces/{namespace}/bindings",
            "post",
            "createCoreV1NamespacedBinding",
            "Binding",
        ),
        (
            "api/v1",
            "/api/v1/namespaces/{namespace}/pods/{name}/binding",
            "post",
            "createCoreV1NamespacedPodBinding",
            "Binding",
        ),
        (
            "api/v1",
            "/api/v1/namespaces/{name}/finalize",
            "put",
            "replaceCoreV1NamespaceFinalize",
            "Namespace",
        ),
        (
            "apis/apps/v1",
            "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale",
            "patch",
            "patchAppsV1NamespacedDeploymentScale",
            "Scale",
        ),
    ],
)
def test_operations_have_the_names_that_generators_expect(
    path: str, address: str, method: str, want_id: str, want_kind: str
) -> None:
    """Names and kinds are those of a kube-apiserver."""
    operation = read(path)["paths"][address][method]
    assert operation["operationId"] == want_id
    assert operation["x-kubernetes-group-version-kind"]["kind"] == want_kind


def test_bindings_are_only_created() -> None:
    """Neither way to bind a pod has another method, and there is no path to a single binding."""
    paths = read("api/v1")["paths"]
    found = {
        path: sorted(set(methods) - {"parameters"})
        for path, methods in paths.items()
        if "binding" in path
    }
    assert found == {
        "/api/v1/namespaces/{namespace}/bindings": ["post"],
        "/api/v1/namespaces/{namespace}/pods/{name}/binding": ["post"],
    }


def test_schemas_carry_the_marks_of_lists_and_kinds() -> None:
    """Clients merge lists and find kinds by these."""
    schemas = read("api/v1")["components"]["schemas"]
    service = schemas["io.k8s.api.core.v1.Service"]
    assert service["x-kubernetes-group-version-kind"] == [
        {"group": "", "kind": "Service", "version": "v1"}
    ]
    assert service["properties"]["spec"] == {
        "description": "The desired state of the Service.",
        "allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.ServiceSpec"}],
    }
    spec = schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]
    assert spec["ports"] == {
        "description": "The ports at which the Service answers.",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["port", "protocol"],
        "x-kubernetes-patch-merge-key": "port",
        "x-kubernetes-patch-strategy": "merge",
        "type": "array",
        "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.ServicePort"},
    }
    assert spec["selector"]["x-kubernetes-map-type"] == "atomic"
    assert spec["selector"]["additionalProperties"] == {"type": "string"}
    port = schemas["io.k8s.api.core.v1.ServicePort"]
    assert port["required"] == ["port"]
    assert port["properties"]["protocol"]["default"] == "TCP"
    assert port["properties"]["port"]["format"] == "int32"
    selector = schemas["io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"]
    assert selector["x-kubernetes-map-type"] == "atomic"
    assert schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] == {
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    }


def test_topology_keys_are_explained_while_their_gate_is_on() -> None:
    """Documents follow the gates, and so do their hashes."""
    old = GATES.with_gates(Gate.SERVICE_TOPOLOGY)
    name = "io.k8s.api.core.v1.ServiceSpec"
    assert "topologyKeys" not in read("api/v1")["components"]["schemas"][name]["properties"]
    found = read("api/v1", old)["components"]["schemas"][name]["properties"]["topologyKeys"]
    assert found["type"] == "array"
    assert found["description"].startswith("Labels of nodes, closest first")
    assert index_document(old).hash != index_document(GATES).hash
