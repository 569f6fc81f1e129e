"""Numbers without end and JSON nested without end are refused, wherever a client can put them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.schema.scalars import Unparsable, store_quantity
from keepclose.model.json_values import (
    DEPTH_MAX,
    INT64_MAX,
    JsonDepthError,
    decode_json,
    parse_int64,
    parse_natural,
)
from keepclose.model.meta import ObjectMeta
from keepclose.model.quantities import QUANTITY_CHARACTERS_MAX, millis
from keepclose.model.workloads.rolling_update import number_in, resolve_share
from keepclose.testing.api_server import Served, serving

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
DIGITS = "1" * 6_000


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory, with one ConfigMap."""
    async with serving(tmp_path / "data") as served:
        await served.create(CONFIGMAPS, {"metadata": {"name": "one"}, "data": {"a": "b"}})
        yield served


def nested(depth: int, step: str = "a", inner: str = "1") -> str:
    """Return JSON that is nested so deeply."""
    return f'{{"{step}":' * depth + inner + "}" * depth


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 900, 5_000, 100_000])
async def test_deep_json_is_refused(api: Served, depth: int) -> None:
    """Bodies and patches of all types that are nested too deeply get 400."""
    deep, path = nested(depth), f"{CONFIGMAPS}/one"
    head = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"x":'
    requests = [
        ("POST", CONFIGMAPS, f"{head}{deep}}}", "application/json"),
        ("PUT", path, f"{head}{deep}}}", "application/json"),
        ("PATCH", path, f'{{"data":{deep}}}', MERGE),
        ("PATCH", path, f'{{"data":{deep}}}', STRATEGIC),
        ("PATCH", path, f'[{{"op":"add","path":"/data","value":{deep}}}]', JSON_PATCH),
        ("PATCH", f"{path}?fieldManager=me", f"{head}{deep}}}", APPLY),
        ("DELETE", path, f'{{"kind":"DeleteOptions","x":{deep}}}', "application/json"),
        ("PUT", f"{DEPLOYMENTS}/web/scale", f'{{"x":{deep}}}', "application/json"),
    ]
    for method, where, body, media_type in requests:
        reply = await api.call(method, where, body.encode(), type=media_type)
        assert reply.status == 400, (method, media_type)
        assert "exceeded max depth" in reply.message
    assert (await api.get(path))["data"] == {"a": "b"}


async def test_the_depth_that_is_allowed_is_safe(api: Served) -> None:
    """What the parser allows passes through all walks over objects: checks, merges, field sets."""
    deep, path = nested(DEPTH_MAX - 8), f"{CONFIGMAPS}/one"
    fields = nested(DEPTH_MAX - 8, "f:a", "{}")
    entry = (
        '{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1",'
        f'"fieldsV1":{fields}}}'
    )
    head = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"two"'
    created = await api.call("POST", CONFIGMAPS, f'{head}}},"x":{deep}}}'.encode())
    assert created.status == 201
    for dry in ("?dryRun=All", ""):
        body = f'{head.replace("two", "three")},"managedFields":[{entry}]}}}}'
        assert (await api.call("POST", f"{CONFIGMAPS}{dry}", body.encode())).status == 201
    applied = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: three}\ndata: {a: c}\n"
    where = f"{CONFIGMAPS}/three?fieldManager=me"
    assert (await api.call("PATCH", where, applied, type=APPLY)).status == 200
    for accept in ("application/json", "application/yaml"):
        assert (await api.call("GET", f"{CONFIGMAPS}/three", accept=accept)).status == 200
    for media_type in (MERGE, STRATEGIC):
        reply = await api.call("PATCH", path, f'{{"data":{deep}}}'.encode(), type=media_type)
        assert reply.status == 422
    assert (await api.call("GET", CONFIGMAPS)).status == 200


async def test_a_patch_cannot_nest_what_is_allowed(api: Served) -> None:
    """Operations of a JSON patch that nest value in value get 422, as a patched object does."""
    value = json.loads(nested(DEPTH_MAX - 10))
    operations = [
        {"op": "add", "path": "/x" + "/a" * ((DEPTH_MAX - 10) * level), "value": value}
        for level in range(3)
    ]
    reply = await api.call(
        "PATCH", f"{CONFIGMAPS}/one", json.dumps(operations).encode(), type=JSON_PATCH
    )
    assert reply.status == 422
    assert "exceeded max depth" in reply.message


@pytest.mark.parametrize("depth", [500, 100_000])
async def test_deep_json_in_texts_is_harmless(api: Served, depth: int) -> None:
    """JSON in an annotation, in a step of managed fields and in a token may be of any depth."""
    path = f"{CONFIGMAPS}/one"
    if depth < 1000:
        last = f'{{"apiVersion":"v1","kind":"ConfigMap","data":{nested(9_000)}}}'
        patch = {"metadata": {"annotations": {LAST_APPLIED: last}}}
        reply = await api.call("PATCH", path, json.dumps(patch).encode(), type=MERGE)
        assert reply.status == 200
    applied = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {b: c}\n"
    where = f"{path}?fieldManager=kubectl"
    assert (await api.call("PATCH", where, applied, type=APPLY)).status == 200
    fields: dict[str, Any] = {f"v:{'[' * depth}{']' * depth}": {}}
    managed = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    body = {"metadata": {"name": "two", "managedFields": [{**managed, "fieldsV1": fields}]}}
    reply = await api.call("POST", CONFIGMAPS, json.dumps(body).encode())
    assert reply.status < 500
    if depth < 1000:
        value = f'{{"v":"meta.k8s.io/v1","rv":1,"start":"a/b","x":{nested(2 * depth)}}}'
        token = base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")
        assert (await api.call("GET", f"{CONFIGMAPS}?limit=1&continue={token}")).status == 400


async def test_numbers_without_end_are_refused(api: Served) -> None:
    """Numbers of thousands of digits in queries and bodies get an answer below 500."""
    path = f"{CONFIGMAPS}/one"
    for query in ("resourceVersion", "limit", "timeoutSeconds"):
        assert (await api.call("GET", f"{CONFIGMAPS}?{query}={DIGITS}")).status == 400
    assert (await api.call("DELETE", f"{path}?gracePeriodSeconds={DIGITS}")).status == 400
    for number in (DIGITS, DIGITS[:4_000], "1" + "0" * 30, "1e400"):
        head = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"two"}'
        body = f'{head},"immutable":{number}}}'
        assert (await api.call("POST", CONFIGMAPS, body.encode())).status == 400
        for media_type in (MERGE, STRATEGIC):
            patch = f'{{"data":{{"a":{number}}}}}'
            reply = await api.call("PATCH", path, patch.encode(), type=media_type)
            assert reply.status in (400, 422)


async def test_percentages_without_end_are_refused(api: Served) -> None:
    """A share of thousands of digits is too large, as one of three digits is."""
    labels = {"app": "web"}
    container = {"name": "main", "image": "web:1"}
    rolling: dict[str, Any] = {"maxUnavailable": f"{DIGITS}%", "maxSurge": f"{DIGITS}%"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        "strategy": {"rollingUpdate": rolling},
    }
    deployment = {"metadata": {"name": "web"}, "spec": spec}
    reply = await api.call("POST", DEPLOYMENTS, json.dumps(deployment).encode())
    assert reply.status == 422
    assert "must not be greater than 100%" in reply.message


@pytest.mark.parametrize("quantity", ["1" * 30_000 + "x", "1" * 1_000_000, "0." + "1" * 20_000])
async def test_quantities_without_end_are_refused(api: Served, quantity: str) -> None:
    """A quantity that is longer than any amount is refused, in no time."""
    resources = {"requests": {"cpu": quantity}}
    spec = {"containers": [{"name": "main", "image": "web:1", "resources": resources}]}
    body = json.dumps({"metadata": {"name": "p"}, "spec": spec}).encode()
    start = time.process_time()
    reply = await api.call("POST", PODS, body)
    assert time.process_time() - start < 2.0
    assert reply.status == 400
    assert "quantities must match the regular expression" in reply.message


def test_the_longest_quantity_is_read() -> None:
    """A quantity of the greatest length is one, and a longer one is none."""
    longest = "1" * QUANTITY_CHARACTERS_MAX
    assert store_quantity(longest) == longest
    assert millis(longest) == INT64_MAX * 1000
    assert isinstance(store_quantity(longest + "1"), Unparsable)
    assert millis(longest + "1") is None


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("0", 0, id="zero"),
        pytest.param("00012", 12, id="leading zeros"),
        pytest.param(str(INT64_MAX), INT64_MAX, id="the largest"),
        pytest.param(str(INT64_MAX + 1), None, id="one more"),
        pytest.param(DIGITS, None, id="digits without end"),
        pytest.param("", None, id="nothing"),
        pytest.param("²", None, id="a digit of another kind"),
        pytest.param("1_0", None, id="an underscore"),
        pytest.param(" 1", None, id="a blank"),
    ],
)
def test_natural_numbers_have_63_bits(text: str, want: int | None) -> None:
    """A text is a number when it is one of ASCII digits in 63 bits."""
    assert parse_natural(text) == want
    assert parse_int64(f"-{text}") == (None if want is None else -want)


def test_annotations_of_many_digits_count_as_none() -> None:
    """Controllers read a revision and a share of thousands of digits as none."""
    meta = ObjectMeta(name="web", annotations={"deployment.kubernetes.io/revision": DIGITS})
    assert number_in(meta, "deployment.kubernetes.io/revision") == 0
    assert resolve_share(f"{DIGITS}%", 10, up=True) == 0


def test_depth_counts_levels_and_not_brackets() -> None:
    """A wide value of many brackets is decoded, a deep one is refused."""
    wide = decode_json(b"[" + b"[]," * 10_000 + b"[]]")
    assert len(wide) == 10_001
    assert decode_json("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    with pytest.raises(JsonDepthError):
        decode_json("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))
