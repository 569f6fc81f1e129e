"""The limits that docs/reference/limits.md states: each is a constant, and the server holds it."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import re
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import keepclose.apiserver
from keepclose.apiserver.http.request_parser import MAX_BODY_BYTES, MAX_HEAD_BYTES
from keepclose.apiserver.patch.json_patch import MAX_OPERATIONS
from keepclose.apiserver.registry.core_kinds import MAX_BYTES
from keepclose.apiserver.registry.metadata import FIELD_MANAGER_MAX
from keepclose.apiserver.serving.options import _MAX_OPTIONS
from keepclose.model.json_values import DEPTH_MAX
from keepclose.model.metadata_validation import ANNOTATIONS_MAX_BYTES
from keepclose.testing.api_server import PATIENCE, Served, serving

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from reference_limits import LIMITS, show_value, value_of  # noqa: E402 - scripts are no package

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PAGE = (ROOT / "docs" / "reference" / "limits.md").read_text()
# Names that say that something is limited.
_LIMITING = re.compile(r"_?(MAX|MOST|SOFT|HARD|LONGEST|LARGEST|DEEPEST)(_|$)|_MAX(_|$)|_LIMIT$")
# Of the API server, and no limit of what others may ask: a reason for each.
NO_LIMITS = {
    "apiserver.patch.apply:MAX_ANNOTATIONS": "the limit of annotations, by another name",
    "apiserver.patch.json_patch:_MAX_INDEX_DIGITS": "an index beyond any list",
    "apiserver.schema.scalars:_LARGEST": "a number of 64 bits",
    "apiserver.schema.protobuf_wire:_MAX_VARINT_BYTES": "the form of protobuf",
    "apiserver.serving.attempts:MAX_ATTEMPTS": "how often the server tries, not a client",
    "apiserver.serving.request_bodies:_REPEATED_MAX": "the limit of named fields, for YAML",
    "apiserver.http.connection_table:ADDRESS_LIMIT": "a reason, as the metric names it",
    "apiserver.http.connection_table:TOTAL_LIMIT": "a reason, as the metric names it",
    "apiserver.http.connection_table:UNAUTHENTICATED_LIMIT": "a reason, as the metric names it",
    "apiserver.http.connection_table:USER_LIMIT": "a reason, as the metric names it",
    "apiserver.serving.object_meta:_BASE_MAX": "the form of generated names",
    "apiserver.serving.responses:MAX_OF_ONE": "how the limit of warnings is divided",
    "apiserver.serving.options:_MAX_VERSION": "a number of 64 bits",
    "apiserver.serving.reading:_MAX_CACHED": "the size of a cache",
    "apiserver.serving.fair_queue:_MAX_REMEMBERED": "the size of a cache",
    "apiserver.storage.recovery:_MAX_GAPS": "the length of a log line",
    "apiserver.storage.store:PENDING_LIMIT": "watches of the API set a limit of their own",
    "apiserver.registry.events:_LIMIT": "a rule of Kubernetes for one field",
    "apiserver.registry.events:_NOTE_LIMIT": "a rule of Kubernetes for one field",
    "apiserver.registry.pod_templates:DEADLINE_MAX": "a number of 32 bits",
    "apiserver.printing.cells:_LONGEST": "a number of 64 bits",
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory."""
    async with serving(tmp_path / "data") as served:
        yield served


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.constant)
def test_the_page_states_the_constant(limit: Any) -> None:
    """Every listed constant exists, is positive, and stands in the page with its value."""
    assert value_of(limit) > 0
    assert f"| {limit.what} | {show_value(value_of(limit), limit.unit)} |" in PAGE


def test_each_limit_of_the_server_is_stated() -> None:
    """A constant of the API server that limits something stands in the page, or has a reason."""
    found = set()
    for module in pkgutil.walk_packages(keepclose.apiserver.__path__, "keepclose.apiserver."):
        source = Path(str(importlib.import_module(module.name).__file__)).read_text()
        for name in re.findall(r"^(_?[A-Z][A-Z0-9_]*): Final(?:\[.*?\])? = ", source, re.MULTILINE):
            if _LIMITING.search(name):
                found.add(f"{module.name.removeprefix('keepclose.')}:{name}")
    stated = {limit.constant for limit in LIMITS}
    assert found - stated - set(NO_LIMITS) == set()
    assert set(NO_LIMITS) <= found - stated


# Limits whose names do not tell that they are limits, by what they are about.
PROMISED = {
    "age of an Event": "apiserver.controllers.event_expiry:EVENT_SECONDS",
    "history in bytes": "apiserver.storage.store:HISTORY_BYTES",
    "all history in bytes": "apiserver.storage.store:TOTAL_HISTORY_BYTES",
    "bytes that wait for a watcher": "apiserver.storage.history:PENDING_BYTES",
    "idle connections": "apiserver.http.connection:IDLE_SECONDS",
    "clients that do not read": "apiserver.http.response_writer:STALLED_SECONDS",
    "slow heads": "apiserver.http.connection:HEADER_SECONDS",
    "slow requests": "apiserver.http.connection:REQUEST_SECONDS",
    "slow handshakes": "apiserver.http.server:HANDSHAKE_SECONDS",
    "connections of one user": "apiserver.serving.http_messages:ConnectionLimits.per_user",
    "digits of a number": "kube.yaml_nodes:NUMBER_CHARACTERS_MAX",
    "digits of a quantity": "model.quantities:QUANTITY_CHARACTERS_MAX",
    "time to end": "apiserver.assembly:END_SECONDS",
}


@pytest.mark.parametrize("constant", PROMISED.values(), ids=PROMISED)
def test_limits_of_other_names_are_stated(constant: str) -> None:
    """What bounds memory and time of the server stands in the page, whatever it is called."""
    assert constant in {limit.constant for limit in LIMITS}


@pytest.mark.parametrize(
    ("size", "status"), [(MAX_BODY_BYTES, 422), (MAX_BODY_BYTES + 1, 413)], ids=["at", "beyond"]
)
async def test_bodies(api: Served, size: int, status: int) -> None:
    """A body of the largest size is read, and judged as an object; one byte more is not."""
    head = b'{"metadata":{"name":"a"},"data":{"a":"'
    body = head + b"x" * (size - len(head) - 3) + b'"}}'
    assert (await api.call("POST", CONFIG_MAPS, body)).status == status


async def test_headers(api: Served) -> None:
    """Headers beyond the limit are refused; many bytes below it are not."""
    near, beyond = MAX_HEAD_BYTES - 2000, MAX_HEAD_BYTES + 1
    assert await _status_with_header(api, near) == 200
    assert await _status_with_header(api, beyond) == 431


async def test_options(api: Served) -> None:
    """A query may have as many options as stated."""
    most = "&".join(f"o{number}=1" for number in range(_MAX_OPTIONS))
    assert (await api.call("GET", f"{CONFIG_MAPS}?{most}")).status == 200
    assert (await api.call("GET", f"{CONFIG_MAPS}?{most}&more=1")).status == 400


async def test_depth(api: Served) -> None:
    """An unknown field may be nested as deep as stated."""
    for depth, status in ((DEPTH_MAX - 1, 201), (DEPTH_MAX + 1, 400)):
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        body = b'{"metadata":{"generateName":"a"},"unknown":' + nested + b"}"
        reply = await api.call("POST", CONFIG_MAPS, body)
        assert reply.status == status, reply.body[:500]


async def test_operations(api: Served) -> None:
    """A JSON patch may have as many operations as stated."""
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}})
    step = {"op": "test", "path": "/metadata/name", "value": "a"}
    kind = "application/json-patch+json"
    most = await api.call("PATCH", f"{CONFIG_MAPS}/a", [step] * MAX_OPERATIONS, type=kind)
    more = await api.call("PATCH", f"{CONFIG_MAPS}/a", [step] * (MAX_OPERATIONS + 1), type=kind)
    assert (most.status, more.status) == (200, 413)


async def test_sizes_within_objects(api: Served) -> None:
    """Annotations, data of a ConfigMap and the name of a manager may be as large as stated."""
    for beyond, status in ((0, 201), (1, 422)):
        annotations = {"a": "x" * (ANNOTATIONS_MAX_BYTES - 1 + beyond)}
        metadata = {"name": f"a{beyond}", "annotations": annotations}
        assert (await api.call("POST", CONFIG_MAPS, {"metadata": metadata})).status == status
        data = {"a": "x" * (MAX_BYTES + beyond)}
        body = {"metadata": {"name": f"b{beyond}"}, "data": data}
        assert (await api.call("POST", CONFIG_MAPS, body)).status == status
        manager = "m" * (FIELD_MANAGER_MAX + beyond)
        body = {"metadata": {"name": f"c{beyond}"}}
        reply = await api.call("POST", f"{CONFIG_MAPS}?fieldManager={manager}", body)
        assert reply.status == status


async def _status_with_header(api: Served, size: int) -> int:
    """Return the status of a request with one header of a size, over a connection of its own."""
    host, _, port = api.url.removeprefix("https://").partition(":")
    context = ssl.create_default_context(cafile=str(api.ca))
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-A: " + b"x" * size + b"\r\n\r\n")
        line = await reader.readline()
        writer.close()
    return int(line.split()[1])
