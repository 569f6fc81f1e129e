"""The paths that are no resources: health, version, metrics, discovery and OpenAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from keepclose.apiserver import discovery
from keepclose.apiserver.http.messages import Answer, Request
from keepclose.apiserver.schema import openapi2, openapi3
from keepclose.apiserver.schema.operations import group_paths
from keepclose.apiserver.schemas.documents import Document
from keepclose.apiserver.status_errors import no_such_path, not_acceptable
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

Query = dict[str, str]
Page = Callable[[Request, Query], Answer]
_CHECKS: Final = ("ping", "storage")
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_DISCOVERY: Final = "APIGroupDiscoveryList"
_METRICS: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Measured(Protocol):
    """What has figures to show."""

    def page(self) -> bytes:
        """Return the figures as text."""
        ...


def make_pages(
    gates: FeatureGates, metrics: Measured, find_problem: Callable[[], str] = str
) -> dict[str, Page]:
    """Return every page by its path; `find_problem` says what is wrong with the storage."""
    pages: dict[str, Page] = {
        "/version": _json(discovery.version_info(gates.emulated_minor)),
        "/metrics": lambda _request, _query: Answer(200, metrics.page(), _METRICS),
        "/api": _discovery(discovery.core_versions, discovery.aggregated_core),
        "/apis": _discovery(lambda _: discovery.group_list(), discovery.aggregated_groups),
        "/openapi/v3": lambda request, _query: _document(request, openapi3.index_document(gates)),
        "/openapi/v2": lambda request, _query: _openapi2(request, gates),
    }
    for path in ("/healthz", "/livez", "/readyz"):
        pages[path] = _health
        for check in _CHECKS:
            pages[f"{path}/{check}"] = _health
    # NB: only readiness: a server that cannot write still reads and deletes, and a restart of it,
    # as a failing liveness asks for, would help nothing.
    pages["/readyz"] = pages["/readyz/storage"] = _readiness(find_problem)
    for path, resources in group_paths().items():
        group, version = resources[0].group, resources[0].version
        if group:
            pages[f"/apis/{group}"] = _json(discovery.group_info(group))
        pages[f"/{path}"] = _json(discovery.resource_list(group, version))
        pages[f"/openapi/v3/{path}"] = _group_page(path, gates)
    listed = _json({"paths": sorted(pages)})
    pages["/"] = listed
    return pages


def _health(request: Request, query: Query) -> Answer:
    if "verbose" not in query:
        return Answer(200, b"ok", _TEXT)
    name = request.path.strip("/").partition("/")[0]
    passed = "".join(f"[+]{check} ok\n" for check in _CHECKS)
    text = f"{passed}{name} check passed\n"
    return Answer(200, text.encode(), _TEXT)


def _readiness(find_problem: Callable[[], str]) -> Page:
    def page(request: Request, query: Query) -> Answer:
        problem = find_problem()
        if not problem:
            return _health(request, query)
        text = f"[+]ping ok\n[-]storage failed: {problem}\nreadyz check failed\n"
        return Answer(500, text.encode(), _TEXT)

    return page


def _json(value: JsonObject | None) -> Page:
    body = msgspec.json.encode(value)
    return lambda _request, _query: Answer(200, body, _JSON)


def _discovery(plain: Callable[[str], JsonObject], whole: Callable[[str], JsonObject]) -> Page:
    """Return a page in the form that the client asks for: all kinds at once, or only groups."""

    def page(request: Request, query: Query) -> Answer:
        del query
        for part in request.header(b"accept").split(","):
            media_type, _, rest = part.partition(";")
            if media_type.strip() != "application/json":
                continue
            parameters = (piece.strip() for piece in rest.split(";"))
            named = dict(one.split("=", 1) for one in parameters if "=" in one)
            version = named.get("v", "")
            if named.get("as") != _DISCOVERY or version not in ("v2", "v2beta1"):
                continue
            shown = f"application/json;g=apidiscovery.k8s.io;v={version};as={_DISCOVERY}"
            return Answer(200, msgspec.json.encode(whole(version)), shown.encode())
        return Answer(200, msgspec.json.encode(plain(request.header(b"host"))), _JSON)

    return page


def _group_page(path: str, gates: FeatureGates) -> Page:
    def page(request: Request, query: Query) -> Answer:
        del query
        document = openapi3.group_document(path, gates)
        if document is None:
            raise no_such_path()
        return _document(request, document)

    return page


def _openapi2(request: Request, gates: FeatureGates) -> Answer:
    accept = request.header(b"accept")
    if "protobuf" in accept:
        return _document(request, openapi2.protobuf_document(gates))
    if accept and not any(one in accept for one in ("application/json", "*/*", "application/*")):
        raise not_acceptable(("application/json", openapi2.PROTOBUF))
    return _document(request, openapi2.json_document(gates))


def _document(request: Request, document: Document) -> Answer:
    headers = ((b"ETag", document.etag.encode()), (b"Vary", b"Accept"))
    if request.header(b"if-none-match") == document.etag:
        return Answer(304, b"", headers=headers)
    return Answer(200, document.body, document.media_type.encode(), headers)
