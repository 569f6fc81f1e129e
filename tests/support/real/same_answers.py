"""Requests that are sent to kube-apiserver and to ours, and objects to send."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from typing import Any, NamedTuple

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
SERVICES = "/api/v1/namespaces/default/services"
PODS = "/api/v1/namespaces/default/pods"
BINDINGS = "/api/v1/namespaces/default/bindings"
PLACES = "topology.kubernetes.io"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
MAPS = "/api/v1/namespaces/default/configmaps"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
EVENTS = "/api/v1/namespaces/default/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
ENDPOINTS = "/api/v1/namespaces/default/endpoints"
RANGES = "/apis/networking.k8s.io/v1/servicecidrs"
APPS = "/apis/apps/v1/namespaces/default"


class Api(NamedTuple):
    """A server and an admin's token."""

    url: str
    token: str

    def ask(
        self, method: str, path: str, body: Any = None, content: str = JSON
    ) -> tuple[int, Any, list[str]]:
        """Return code, body and warnings of an answer."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", content)
        request.add_header("Accept", JSON)
        request.add_header("User-Agent", "tester/1")
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                warnings = answer.headers.get_all("Warning") or []
                return answer.status, _read(answer.read()), warnings
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error.read()), error.headers.get_all("Warning") or []


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace").strip()


def service(name: str = "web", **spec: Any) -> dict[str, Any]:
    """Return a Service."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 80, "name": "http"}], "selector": {"app": "web"}, **spec},
    }


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    """Return a Pod."""
    containers = [{"name": "main", "image": "web:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, **spec},
    }


def endpoint_slice(name: str = "s", **fields: Any) -> dict[str, Any]:
    """Return an EndpointSlice."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.1.0.1"]}],
        **fields,
    }


def deployment(**spec: Any) -> dict[str, Any]:
    """Return a Deployment."""
    template = {
        "metadata": {"labels": {"app": "api"}},
        "spec": {"containers": [{"name": "main", "image": "api:1"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "api"},
        "spec": {"selector": {"matchLabels": {"app": "api"}}, "template": template, **spec},
    }


def plain(kind: str, name: str, api_version: str = "v1", **fields: Any) -> dict[str, Any]:
    """Return an object of any kind."""
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **fields}


def node(name: str, labels: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a Node."""
    return {**plain("Node", name, **fields), "metadata": {"name": name, "labels": labels or {}}}


def managed(manager: str) -> dict[str, Any]:
    """Return a ConfigMap that a field manager of the name is said to have written."""
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {}},
        "time": "2020-01-01T00:00:00Z",
    }
    return plain("ConfigMap", "managed", metadata={"name": "managed", "managedFields": [entry]})


def lease(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Lease."""
    return plain("Lease", name, "coordination.k8s.io/v1", spec=spec)


def event(name: str, **fields: Any) -> dict[str, Any]:
    """Return an Event of the core group."""
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    return plain("Event", name, **{"involvedObject": about, **fields})


def new_event(name: str, **fields: Any) -> dict[str, Any]:
    """Return an Event of the newer group."""
    given = {
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "eventTime": "2026-01-02T03:04:05.000000Z",
        "reportingController": "example.com/tester",
        "reportingInstance": "tester-1",
        "action": "Test",
        "reason": "Tested",
        "type": "Normal",
    }
    return plain("Event", name, "events.k8s.io/v1", **{**given, **fields})


def workload(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Return a workload of the apps group."""
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "api:1"}]},
    }
    selector = {"matchLabels": {"app": name}}
    return plain(kind, name, "apps/v1", spec={"selector": selector, "template": template, **spec})


def rolling(surge: int | str, unavailable: int | str) -> dict[str, Any]:
    """Return the strategy of a rolling update."""
    return {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def endpoints(
    name: str, addresses: list[dict[str, Any]], ports: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return Endpoints."""
    subset = {"addresses": addresses, "ports": ports or [{"port": 80}]}
    return plain("Endpoints", name, subsets=[subset])


def ranges(name: str, *cidrs: str) -> dict[str, Any]:
    """Return a ServiceCIDR."""
    return plain("ServiceCIDR", name, "networking.k8s.io/v1", spec={"cidrs": list(cidrs)})


def bound(name: str, *, to: Any = "n", **metadata: Any) -> dict[str, Any]:
    """Return a Binding of a pod to a node, or to anything else."""
    target = {"apiVersion": "v1", "kind": "Node", "name": to} if isinstance(to, str) else to
    return {**plain("Binding", name, target=target), "metadata": {"name": name, **metadata}}


def gates(*names: str) -> dict[str, Any]:
    """Return a patch of what holds a pod back."""
    return {"spec": {"schedulingGates": [{"name": name} for name in names]}}


_VOLATILE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
)


def plain_answer(value: Any) -> Any:
    """Return the value without what differs from server to server."""
    if isinstance(value, dict):
        return {
            key: "-" if key in ("resourceVersion", "clusterIP", "nodePort") else plain_answer(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            "IP" if isinstance(one, str) and one.startswith("10.96.") else plain_answer(one)
            for one in value
        ]
    if not isinstance(value, str):
        return value
    # How etcd words a precondition, the difference of two pods and a whole patched object are
    # told in ways that nobody should rely on.
    value = re.sub(r"StorageError: .*AdditionalErrorMsg: ", "", value)
    value = re.sub(r"ResourceVersion in object meta: \d+", "ResourceVersion: -", value)
    value = re.sub(r'Invalid value: "(\{.*\}|map\[.*\])"', "Invalid value: {}", value)
    return _VOLATILE.sub("-", value.partition("\n@@")[0])
