"""The pages at paths without a resource: health, version, metrics, discovery and OpenAPI.

Discovery is what a client reads before its first request: versions, groups and resources. Old
clients request the groups one by one, newer ones all at once (aggregated discovery). Both are built
from the table of resources, in the form and order of kube-apiserver.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from keepclose.apiserver.resources import (
    RESOURCES,
    SERVED,
    SUBRESOURCE_VERBS,
    USUAL_SUBRESOURCE_VERBS,
    Resource,
)
from keepclose.apiserver.schema import openapi2, openapi3
from keepclose.apiserver.schema.openapi_types import Document
from keepclose.apiserver.schema.operations import group_paths
from keepclose.apiserver.serving.http_messages import HttpRequest, HttpResponse
from keepclose.apiserver.status_errors import not_acceptable, path_not_found
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

# The release whose behaviour the server follows.
GIT_VERSION: Final = "v1.36.3+keepclose"
# How many releases back kube-apiserver can emulate.
_EMULATED_RELEASES: Final = 3
# The order of groups in kube-apiserver; clients prefer the first.
_RANKED: Final = (
    "apps",
    "events.k8s.io",
    "networking.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
)
_CHECKS: Final = ("ping", "storage")
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_DISCOVERY: Final = "APIGroupDiscoveryList"
_METRICS: Final = b"text/plain; version=0.0.4; charset=utf-8"

_Query = dict[str, str]
_Page = Callable[[HttpRequest, _Query], HttpResponse]


def version_info(emulated_minor: int | None = None) -> JsonObject:
    """Return the content of /version, with the own release and the emulated release 1.NN."""
    major, minor = GIT_VERSION[1:].split(".")[:2]
    emulated = int(minor) if emulated_minor is None else emulated_minor
    # kube-apiserver is compatible with the release before, but with none older than it can emulate.
    compatible = max(emulated - 1, min(emulated, int(minor) - _EMULATED_RELEASES))
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": str(emulated),
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(compatible),
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": "linux/amd64",
    }


def core_versions(address: str) -> JsonObject:
    """Return the content of /api for a server at host:port."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list() -> JsonObject:
    """Return the content of /apis."""
    groups = [_group(name) for name in _group_names()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group_info(group: str) -> JsonObject | None:
    """Return the content of /apis/<group>, or None for a group that is not served."""
    if group not in _group_names():
        return None
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(group)


def resource_list(group: str, version: str) -> JsonObject | None:
    """Return the content of /api/v1 or /apis/<group>/<version>, or None for an unknown version."""
    served = _resources(group, version)
    if not served:
        return None
    entries = [
        entry for resource in served for entry in (_entry(resource), *_sub_entries(resource))
    ]
    # NB: the list of the core group has no apiVersion, as before there were groups.
    head = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
    return head | {"groupVersion": served[0].api_version, "resources": entries}


def aggregated_core(version: str = "v2") -> JsonObject:
    """Return the content of /api for clients of aggregated discovery."""
    return _aggregated([""], version)


def aggregated_groups(version: str = "v2") -> JsonObject:
    """Return the content of /apis for clients of aggregated discovery."""
    return _aggregated(_group_names(), version)


def _group_names() -> list[str]:
    served = {resource.group for resource in RESOURCES if resource.group}
    return [*(name for name in _RANKED if name in served), *sorted(served.difference(_RANKED))]


def _versions(group: str) -> list[str]:
    return list(
        dict.fromkeys(resource.version for resource in RESOURCES if resource.group == group)
    )


def _resources(group: str, version: str) -> list[Resource]:
    served = [
        resource for resource in SERVED if (resource.group, resource.version) == (group, version)
    ]
    return sorted(served, key=lambda resource: resource.plural)


def _group(name: str) -> JsonObject:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _entry(resource: Resource) -> JsonObject:
    entry: JsonObject = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": sorted(resource.verbs),
    }
    return entry | _names(resource)


def _names(resource: Resource) -> JsonObject:
    names: JsonObject = {}
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return names


def _sub_entries(resource: Resource) -> list[JsonObject]:
    entries = []
    for name in sorted(resource.subresources):
        kind = _sub_kind(resource, name)
        foreign = {"group": kind["group"], "version": kind["version"]} if kind["group"] else {}
        entries.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                **foreign,
                "kind": kind["kind"],
                "verbs": _sub_verbs(name),
            }
        )
    return entries


def _sub_kind(resource: Resource, name: str) -> JsonObject:
    """Return the kind of a subresource; group and version are empty if they are the parent's."""
    if name == "scale":
        return {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    kind = "Binding" if name == "binding" else resource.kind
    return {"group": "", "version": "", "kind": kind}


def _sub_verbs(name: str) -> list[str]:
    return list(SUBRESOURCE_VERBS.get(name, USUAL_SUBRESOURCE_VERBS))


def _aggregated(groups: list[str], version: str) -> JsonObject:
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": served,
                    "resources": [
                        _aggregated_entry(resource) for resource in _resources(group, served)
                    ],
                    "freshness": "Current",
                }
                for served in _versions(group)
            ],
        }
        for group in groups
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_entry(resource: Resource) -> JsonObject:
    entry: JsonObject = {
        "resource": resource.plural,
        "responseKind": {"group": "", "version": "", "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": sorted(resource.verbs),
    }
    entry |= _names(resource)
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": name,
                "responseKind": _sub_kind(resource, name),
                "verbs": _sub_verbs(name),
            }
            for name in sorted(resource.subresources)
        ]
    return entry


class _Metrics(Protocol):
    """The metrics of the server."""

    def page(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        ...


def make_pages(
    gates: FeatureGates, metrics: _Metrics, find_problem: Callable[[], str] = str
) -> dict[str, _Page]:
    """Return all pages by path; `find_problem` returns the fault of the storage, or ""."""
    pages: dict[str, _Page] = {
        "/version": _json_page(version_info(gates.emulated_minor)),
        "/metrics": lambda _request, _query: HttpResponse(200, metrics.page(), _METRICS),
        "/api": _discovery_page(core_versions, aggregated_core),
        "/apis": _discovery_page(lambda _: group_list(), aggregated_groups),
        "/openapi/v3": lambda request, _query: _document(request, openapi3.index_document(gates)),
        "/openapi/v2": lambda request, _query: _openapi2(request, gates),
    }
    for path in ("/healthz", "/livez", "/readyz"):
        pages[path] = _health
        for check in _CHECKS:
            pages[f"{path}/{check}"] = _health
    # NB: only readiness fails: a server that cannot write still reads and deletes, and a restart,
    # which a failing liveness would cause, does not help.
    pages["/readyz"] = pages["/readyz/storage"] = _readiness(find_problem)
    for path, resources in group_paths().items():
        group, version = resources[0].group, resources[0].version
        if group:
            pages[f"/apis/{group}"] = _json_page(group_info(group))
        pages[f"/{path}"] = _json_page(resource_list(group, version))
        pages[f"/openapi/v3/{path}"] = _group_page(path, gates)
    index = _json_page({"paths": sorted(pages)})
    pages["/"] = index
    return pages


def _health(request: HttpRequest, query: _Query) -> HttpResponse:
    if "verbose" not in query:
        return HttpResponse(200, b"ok", _TEXT)
    name = request.path.strip("/").partition("/")[0]
    passed = "".join(f"[+]{check} ok\n" for check in _CHECKS)
    text = f"{passed}{name} check passed\n"
    return HttpResponse(200, text.encode(), _TEXT)


def _readiness(find_problem: Callable[[], str]) -> _Page:
    def page(request: HttpRequest, query: _Query) -> HttpResponse:
        problem = find_problem()
        if not problem:
            return _health(request, query)
        text = f"[+]ping ok\n[-]storage failed: {problem}\nreadyz check failed\n"
        return HttpResponse(500, text.encode(), _TEXT)

    return page


def _json_page(value: JsonObject | None) -> _Page:
    body = msgspec.json.encode(value)
    return lambda _request, _query: HttpResponse(200, body, _JSON)


def _discovery_page(
    plain: Callable[[str], JsonObject], aggregated: Callable[[str], JsonObject]
) -> _Page:
    """Return a page of aggregated discovery for clients that accept it, else of plain discovery."""

    def page(request: HttpRequest, query: _Query) -> HttpResponse:
        del query
        for part in request.header(b"accept").split(","):
            media_type, _, rest = part.partition(";")
            if media_type.strip() != "application/json":
                continue
            parameters = (parameter.strip() for parameter in rest.split(";"))
            values = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
            version = values.get("v", "")
            if values.get("as") != _DISCOVERY or version not in ("v2", "v2beta1"):
                continue
            content_type = f"application/json;g=apidiscovery.k8s.io;v={version};as={_DISCOVERY}"
            return HttpResponse(
                200, msgspec.json.encode(aggregated(version)), content_type.encode()
            )
        return HttpResponse(200, msgspec.json.encode(plain(request.header(b"host"))), _JSON)

    return page


def _group_page(path: str, gates: FeatureGates) -> _Page:
    def page(request: HttpRequest, query: _Query) -> HttpResponse:
        del query
        document = openapi3.group_document(path, gates)
        if document is None:
            raise path_not_found()
        return _document(request, document)

    return page


def _openapi2(request: HttpRequest, gates: FeatureGates) -> HttpResponse:
    accept = request.header(b"accept")
    if "protobuf" in accept:
        return _document(request, openapi2.protobuf_document(gates))
    if accept and not any(
        media_type in accept for media_type in ("application/json", "*/*", "application/*")
    ):
        raise not_acceptable(("application/json", openapi2.OPENAPI2_PROTOBUF))
    return _document(request, openapi2.json_document(gates))


def _document(request: HttpRequest, document: Document) -> HttpResponse:
    headers = ((b"ETag", document.etag.encode()), (b"Vary", b"Accept"))
    if request.header(b"if-none-match") == document.etag:
        return HttpResponse(304, b"", headers=headers)
    return HttpResponse(200, document.body, document.media_type.encode(), headers)
