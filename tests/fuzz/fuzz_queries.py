"""Paths and queries: options, selectors, versions and tokens of lists, gets and deletes."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec
from fuzzbounds import require
from fuzzobjects import OBJECTS
from fuzzserver import BY_NAME, TABLE, Bed

from keepclose.apiserver.serving.http_messages import HttpRequest, HttpResponse
from keepclose.apiserver.serving.options import parse_query
from keepclose.apiserver.serving.reading import _make_token, _read_token
from keepclose.apiserver.status_errors import StatusError


def seeds() -> Iterator[bytes]:
    """Yield requests of many kinds."""
    token = base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1","rv":2,"start":"default/a\\u0000"}')
    version = b'{"v":"meta.k8s.io/v1","rv":' + b"9" * 5000 + b',"start":"a/b"}'
    long_token = base64.urlsafe_b64encode(version)
    yield from (
        b"GET /api/v1/services?limit=1&continue=" + token.rstrip(b"="),
        b"GET /api/v1/namespaces/default/services?labelSelector=a%3Db&fieldSelector=spec.type=x",
        b"GET /api/v1/services?resourceVersion=1&resourceVersionMatch=Exact",
        b"GET /api/v1/services?resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=-1",
        b"GET /api/v1/services?watch=1&timeoutSeconds=1&allowWatchBookmarks=true",
        b"GET /api/v1/services?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        b"GET /api/v1/namespaces/default/services/web?includeObject=Object",
        b"DELETE /api/v1/namespaces/default/services/web?gracePeriodSeconds=0&dryRun=All",
        b"DELETE /api/v1/namespaces/default/services?propagationPolicy=Foreground",
        b"GET /apis/discovery.k8s.io/v1beta1/endpointslices?pretty=true",
        b"GET /apis/apps/v1/namespaces/default/deployments/web/scale",
        b"GET /api/v1/namespaces/default/pods/web/log?follow=true",
        b"POST /api/v1/namespaces/default/services?fieldManager=%00&fieldValidation=x",
        b"PATCH /api/v1/namespaces/default/services/..%2f?force=maybe",
        b"GET /api/v1/services?limit=99999999999999999999",
        b"GET /api/v1/services?resourceVersion=" + b"9" * 5000,
        b"GET /api/v1/services?watch=1&resourceVersion=" + b"9" * 5000,
        b"GET /api/v1/services?limit=" + b"9" * 5000,
        b"GET /api/v1/services?watch=1&timeoutSeconds=" + b"9" * 400,
        b"GET /api/v1/services?labelSelector=" + b"a," * 4000 + b"a",
        b"GET /api/v1/services?fieldSelector=" + b"metadata.name=a," * 500,
        b"DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=" + b"9" * 5000,
        b"GET /api/v1/services?continue=" + long_token,
        b"DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=9223372036854775807",
        b"DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=315360000000",
    )


def check(data: bytes) -> None:
    """Ask the API for what the line says, as JSON and as a table."""
    method, _, target = data.decode("latin-1").partition(" ")
    path, _, query = target.partition("?")
    bed = Bed()
    for name in ("services", "pods"):
        bed.create(BY_NAME[name], msgspec.json.encode(OBJECTS[name]))
    for accept in (b"application/json", TABLE.encode(), b"application/yaml"):
        request = HttpRequest(method, path, query, {b"accept": accept, b"user-agent": b"f"})
        answer = bed.handle(request)
        if isinstance(answer, HttpResponse):
            known = answer.status < 500 or answer.status in (501, 504)
            require(known, f"status {answer.status}: {answer.body[:300]!r}")
        else:
            answer.close()
    try:
        token = parse_query(query).get("continue", "")
        version, (namespace, after) = _read_token(token)
    except StatusError:
        return
    again = _read_token(_make_token(version, namespace, after))
    require(again == (version, (namespace, after)), "a token reads differently when made again")
