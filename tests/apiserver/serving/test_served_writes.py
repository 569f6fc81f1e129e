"""Writes over HTTP beyond the plain ones: odd bodies, versions, allocations, subresources."""

from __future__ import annotations

import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.testing.api_server import Served, serving

JsonObject = dict[str, Any]
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
NODES = "/api/v1/nodes"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


def _service(name: str, **spec: Any) -> JsonObject:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def _deployment(name: str = "web") -> JsonObject:
    labels = {"app": "web"}
    return {
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "registry.test/main:1"}]},
            },
        },
    }


def _no_kind(kind: str) -> str:
    return (
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get "
        f"version/kind; json parse error: {kind}"
    )


@pytest.mark.parametrize(
    ("body", "want_code", "want_message"),
    [
        pytest.param(b"", 400, _no_kind("unexpected end of JSON input (<empty>)"), id="nothing"),
        pytest.param(b"{", 400, _no_kind("unexpected end of JSON input ({)"), id="half of it"),
        pytest.param(
            b'{"metadata":' + b"[" * 100_000,
            400,
            _no_kind('exceeded max depth ({"metadata":[[[[[[[[[[[[[[[[[[ ...)'),
            id="very deep",
        ),
        pytest.param(
            {"kind": "Pod", "apiVersion": "v1"},
            400,
            'Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to '
            "(core.ConfigMap): unknown conversion",
            id="another kind",
        ),
        pytest.param(
            {"kind": ["ConfigMap"]},
            400,
            "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go "
            "struct field .kind of type string",
            id="a kind that is no text",
        ),
        pytest.param(
            {"metadata": "one"},
            400,
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal '
            "string into Go struct field ConfigMap.metadata of type v1.ObjectMeta",
            id="metadata that is text",
        ),
        pytest.param(
            {"metadata": {"name": "one", "namespace": "other"}},
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
            id="another namespace",
        ),
        pytest.param(
            {"metadata": {"name": "one", "resourceVersion": "3"}},
            500,
            "resourceVersion should not be set on objects to be created",
            id="a version before there is one",
        ),
        pytest.param(
            {},
            422,
            'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is '
            "required",
            id="no name",
        ),
    ],
)
async def test_creates_that_are_refused(
    api: Served, body: object, want_code: int, want_message: str
) -> None:
    """A body that is no object of the kind is refused in the words of a real server."""
    reply = await api.call("POST", CONFIGMAPS, body)
    assert (reply.status, reply.message) == (want_code, want_message)
    assert (await api.get(CONFIGMAPS))["items"] == []


@pytest.mark.parametrize(
    ("path", "body", "type_", "want_text"),
    [
        pytest.param(
            CONFIGMAPS,
            b"a: b: c",
            "application/yaml",
            "the object provided is unrecognized (must be of type ConfigMap): yaml: line 1: "
            "mapping values are not allowed in this context (613a20623a2063)",
            id="yaml",
        ),
        pytest.param(
            CONFIGMAPS,
            b"k8s\x00\xff",
            "application/vnd.kubernetes.protobuf",
            "protobuf",
            id="protobuf",
        ),
        pytest.param(
            "/api/v1/namespaces/default/events",
            b'{"apiVersion":"events.k8s.io/v1","kind":"Event"}',
            "application/json",
            "the API version in the data (events.k8s.io/v1) does not match the expected API "
            "version (v1)",
            id="the other group",
        ),
        pytest.param(
            CONFIGMAPS,
            b'{"apiVersion":"v7","kind":"ConfigMap"}',
            "application/json",
            'no kind "ConfigMap" is registered for version "v7"',
            id="no such version",
        ),
    ],
)
async def test_bodies_that_cannot_be_read(
    api: Served, path: str, body: bytes, type_: str, want_text: str
) -> None:
    """Bodies of other types and of other versions are refused with the reason."""
    reply = await api.call("POST", path, body, type=type_)
    assert reply.status == 400
    assert want_text in reply.message


async def test_patches_are_no_yaml(api: Served) -> None:
    """A merge patch in YAML is refused, as kube-apiserver does; apply reads dates as text."""
    await api.create(CONFIGMAPS, {"metadata": {"name": "one"}})
    path = f"{CONFIGMAPS}/one"
    reply = await api.call("PATCH", path, b"data:\n  day: 2026-01-02\n", type=MERGE_PATCH)
    assert reply.status == 400
    assert reply.message.startswith("error decoding patch: ")
    applied = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {day: 2026-01-02}\n"
    reply = await api.call("PATCH", f"{path}?fieldManager=me", applied, type=APPLY)
    assert (reply.status, reply.json["data"]) == (200, {"day": "2026-01-02"})


async def test_a_namespace_must_exist(api: Served) -> None:
    """Nothing is created in a namespace that is not there, nor without one."""
    body = {"metadata": {"name": "one"}}
    reply = await api.call("POST", "/api/v1/namespaces/none/configmaps", body)
    assert (reply.status, reply.message) == (404, 'namespaces "none" not found')
    for method in ("POST", "DELETE"):
        assert (await api.call(method, "/api/v1/configmaps", body)).status == 405


@pytest.mark.parametrize(
    ("metadata", "want_code", "want_message"),
    [
        pytest.param(
            {"name": "two"},
            400,
            "the name of the object (two) does not match the name on the URL (one)",
            id="another name",
        ),
        pytest.param(
            {},
            400,
            "the name of the object (one based on URL) was undeterminable: name must be provided",
            id="no name",
        ),
        pytest.param(
            {"name": "one", "namespace": "other"},
            400,
            "the namespace of the object (other) does not match the namespace on the request "
            "(default)",
            id="another namespace",
        ),
        pytest.param(
            {"name": "one", "uid": "u"},
            409,
            'Operation cannot be fulfilled on configmaps "one": Precondition failed: UID in '
            "precondition: u, UID in object meta: UID",
            id="another uid",
        ),
        pytest.param(
            {"name": "one", "resourceVersion": "1"},
            409,
            'Operation cannot be fulfilled on configmaps "one": the object has been modified; '
            "please apply your changes to the latest version and try again",
            id="an old version",
        ),
    ],
)
async def test_updates_that_are_refused(
    api: Served, metadata: JsonObject, want_code: int, want_message: str
) -> None:
    """An update must name the object of the path, and the state that it was made from."""
    created = await api.create(CONFIGMAPS, {"metadata": {"name": "one"}})
    reply = await api.call("PUT", f"{CONFIGMAPS}/one", {"metadata": metadata})
    want = want_message.replace(
        "UID in object meta: UID", f"UID in object meta: {created['metadata']['uid']}"
    )
    assert (reply.status, reply.message) == (want_code, want)
    assert await api.get(f"{CONFIGMAPS}/one") == created


@pytest.mark.parametrize(
    ("patch", "type_", "query", "want_code", "want_message"),
    [
        pytest.param(b"{}", "text/plain", "", 415, "415: Unsupported Media Type", id="no patch"),
        pytest.param(
            b"[]",
            MERGE_PATCH,
            "",
            400,
            "error decoding patch: expected an object, got list",
            id="a merge patch that is a list",
        ),
        pytest.param(
            b'{"metadata":{"name":"two"}}',
            MERGE_PATCH,
            "",
            400,
            "the name of the object (two) does not match the name on the URL (one)",
            id="a new name",
        ),
        pytest.param(
            b'{"nope":1}',
            STRATEGIC_PATCH,
            "?fieldValidation=Strict",
            400,
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: '
            'unknown field "nope"',
            id="an unknown field, strictly",
        ),
        pytest.param(
            b"{}",
            MERGE_PATCH,
            "?force=true",
            422,
            'PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for '
            "non-apply patch",
            id="force without apply",
        ),
        pytest.param(
            b"{}",
            APPLY,
            "",
            422,
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for '
            "apply patch",
            id="apply without a manager",
        ),
        pytest.param(
            b"metadata: {}",
            APPLY,
            "?fieldManager=m",
            400,
            "invalid object type: /, Kind=",
            id="apply without a kind",
        ),
        pytest.param(
            b"{apiVersion: v1, kind: ConfigMap, metadata: text}",
            APPLY,
            "?fieldManager=m",
            400,
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: .metadata: expected map',
            id="apply of metadata that is text",
        ),
        pytest.param(
            b"{apiVersion: v1, kind: ConfigMap, nope: 1}",
            APPLY,
            "?fieldManager=m",
            500,
            "failed to create typed patch object (/one; /v1, Kind=ConfigMap): .nope: field not "
            "declared in schema",
            id="apply of an unknown field",
        ),
    ],
)
async def test_patches_that_are_refused(  # noqa: PLR0917 - the columns of a table
    api: Served, patch: bytes, type_: str, query: str, want_code: int, want_message: str
) -> None:
    """A patch that cannot be read, or leads to something odd, changes nothing."""
    created = await api.create(CONFIGMAPS, {"metadata": {"name": "one"}})
    reply = await api.call("PATCH", f"{CONFIGMAPS}/one{query}", patch, type=type_)
    assert (reply.status, reply.message) == (want_code, want_message)
    assert await api.get(f"{CONFIGMAPS}/one") == created


async def test_patches_of_nothing(api: Served) -> None:
    """A patch of a name that is free is refused; apply refuses to bring a uid into being."""
    reply = await api.call("PATCH", f"{CONFIGMAPS}/one", b"{}", type=MERGE_PATCH)
    assert (reply.status, reply.message) == (404, 'configmaps "one" not found')
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"uid": "u"}}
    path = f"{CONFIGMAPS}/one?fieldManager=m"
    reply = await api.call("PATCH", path, applied, type=APPLY)
    assert reply.status == 409
    assert reply.message.endswith("specified uid u, and no existing object was found")
    path = f"{DEPLOYMENTS}/one/status?fieldManager=m"
    applied = {"apiVersion": "apps/v1", "kind": "Deployment", "status": {"replicas": 1}}
    assert (await api.call("PATCH", path, applied, type=APPLY)).status == 404


async def test_warnings_come_with_answers_and_refusals(api: Served) -> None:
    """Odd and deprecated fields are told of, also when the write is refused for another reason."""
    odd = '299 - "unknown field \\"spec.odd\\""'
    use = 'use \\"PreferSameZone\\"'
    old = f'299 - "spec.trafficDistribution: \\"PreferClose\\" is deprecated; {use}"'
    body = _service("one", trafficDistribution="PreferClose", odd=1)
    assert (await api.call("POST", SERVICES, body)).warnings == [odd, old]
    again = await api.call("POST", SERVICES, body)
    assert (again.status, again.warnings) == (409, [odd, old])
    bad = _service("Bad_Name", trafficDistribution="PreferClose", odd=1)
    refused = await api.call("POST", SERVICES, bad)
    assert (refused.status, refused.warnings) == (422, [odd])
    patch = {"spec": {"odd": 1, "type": "Nope"}}
    refused = await api.call("PATCH", f"{SERVICES}/one", patch, type=MERGE_PATCH)
    assert (refused.status, refused.warnings) == (422, [odd])
    changed = await api.get(f"{SERVICES}/one")
    changed["spec"]["odd"] = 1
    assert (await api.call("PUT", f"{SERVICES}/one", changed)).warnings == [odd, old]


async def test_repeated_fields_are_told_of(api: Served) -> None:
    """A field that stands twice in the JSON is warned of; Strict refuses it."""
    body = b'{"metadata":{"name":"one"},"data":{"a":"1"},"data":{"a":"2"}}'
    reply = await api.call("POST", f"{CONFIGMAPS}?dryRun=All", body)
    assert (reply.status, reply.warnings) == (201, ['299 - "duplicate field \\"data\\""'])
    strict = await api.call("POST", f"{CONFIGMAPS}?fieldValidation=Strict", body)
    assert strict.status == 400
    assert strict.message.endswith('strict decoding error: duplicate field "data"')


@pytest.mark.parametrize(
    ("query", "want_field"),
    [
        pytest.param("dryRun=Some", "dryRun", id="an unknown dry run"),
        pytest.param("fieldValidation=Some", "fieldValidation", id="an unknown validation"),
        pytest.param(f"fieldManager={'x' * 129}", "fieldManager", id="a long manager"),
        pytest.param("fieldManager=%07", "fieldManager", id="a manager that rings"),
    ],
)
async def test_bad_options(api: Served, query: str, want_field: str) -> None:
    """Options of a write that mean nothing are refused."""
    reply = await api.call("POST", f"{CONFIGMAPS}?{query}", {"metadata": {"name": "one"}})
    assert reply.status == 422
    assert [one["field"] for one in reply.json["details"]["causes"]] == [want_field]


async def test_too_many_options(api: Served) -> None:
    """A query of hundreds of options is refused, not failed on."""
    query = "&".join(f"o{number}=1" for number in range(300))
    reply = await api.call("GET", f"{CONFIGMAPS}?{query}")
    assert (reply.status, reply.message) == (400, "a query may have 200 options at most")


async def test_owners_of_fields_are_named_by_the_client(api: Served) -> None:
    """The manager of a write is the one given, or the name of the client's program."""
    agent = {"User-Agent": "someone/1.2 (x)"}
    body = {"metadata": {"name": "one"}, "data": {"a": "1"}}
    created = await api.call("POST", CONFIGMAPS, body, headers=agent)
    given = {"data": {"b": "2"}}
    path = f"{CONFIGMAPS}/one?fieldManager=other"
    patched = await api.call("PATCH", path, given, type=MERGE_PATCH, headers=agent)
    assert [one["manager"] for one in created.json["metadata"]["managedFields"]] == ["someone"]
    assert {
        one["manager"]: list(one["fieldsV1"]["f:data"])
        for one in patched.json["metadata"]["managedFields"]
    } == {"someone": [".", "f:a"], "other": ["f:b"]}


async def test_a_dry_run_allocates_nothing(tmp_path: Path) -> None:
    """A dry run neither keeps an address or a port, nor gives back those of a stored Service."""
    small = AllocationSettings(("10.96.0.0/30",), 30000, 30000)
    async with serving(tmp_path, allocation=small) as api:
        for _ in range(5):
            made = await api.call(
                "POST", f"{SERVICES}?dryRun=All", _service("one", type="NodePort")
            )
            assert made.status == 201
        created = await api.create(SERVICES, _service("one", type="NodePort"))
        assert created["spec"]["ports"][0]["nodePort"] == 30000
        first = created["spec"]["clusterIP"]
        plain = deepcopy(created)
        plain["spec"]["type"] = "ClusterIP"
        del plain["spec"]["ports"][0]["nodePort"]
        for _ in range(2):
            reply = await api.call("PUT", f"{SERVICES}/one?dryRun=All", plain)
            assert (reply.status, "nodePort" in reply.json["spec"]["ports"][0]) == (200, False)
        refused = await api.call("POST", SERVICES, _service("two", type="NodePort"))
        assert (refused.status, refused.message) == (
            500,
            "Internal error occurred: failed to allocate a nodePort: range is full",
        )
        assert (
            "provided port is already allocated"
            in (
                await api.call(
                    "POST",
                    SERVICES,
                    _service("two", type="NodePort", ports=[{"port": 1, "nodePort": 30000}]),
                )
            ).message
        )
        assert (await api.call("DELETE", f"{SERVICES}/one?dryRun=All")).status == 200
        taken = await api.call("POST", SERVICES, _service("two", clusterIP=first))
        assert taken.status == 422
        assert (await api.call("DELETE", f"{SERVICES}/one")).status == 200
        again = await api.create(SERVICES, _service("two", type="NodePort", clusterIP=first))
        assert again["spec"]["ports"][0]["nodePort"] == 30000


async def test_status_is_written_on_its_own(api: Served) -> None:
    """A status update changes the status alone, any other update everything but the status."""
    created = await api.create(NODES, {"metadata": {"name": "one"}, "status": {"phase": "Running"}})
    path = f"{NODES}/one"
    changed = deepcopy(created)
    changed["spec"]["unschedulable"] = True
    changed["status"]["phase"] = "Running"
    reply = await api.call("PUT", f"{path}/status", changed)
    assert reply.status == 200
    assert reply.json["status"]["phase"] == "Running"
    assert "unschedulable" not in reply.json["spec"]
    changed["metadata"]["resourceVersion"] = reply.json["metadata"]["resourceVersion"]
    changed["status"]["phase"] = "Pending"
    reply = await api.call("PUT", path, changed)
    assert (reply.json["status"]["phase"], reply.json["spec"]["unschedulable"]) == ("Running", True)
    patch = {"spec": {"unschedulable": False}, "status": {"phase": "Terminated"}}
    reply = await api.call("PATCH", f"{path}/status", patch, type=STRATEGIC_PATCH)
    assert (reply.json["status"]["phase"], reply.json["spec"]["unschedulable"]) == (
        "Terminated",
        True,
    )
    applied = {"apiVersion": "v1", "kind": "Node", "status": {"nodeInfo": {"machineID": "m"}}}
    reply = await api.call("PATCH", f"{path}/status?fieldManager=m", applied, type=APPLY)
    assert reply.status == 200
    entry = next(one for one in reply.json["metadata"]["managedFields"] if one["manager"] == "m")
    assert entry["subresource"] == "status"
    assert await api.get(f"{path}/status") == reply.json
    assert (
        await api.call("PUT", f"{NODES}/none/status", {"metadata": {"name": "none"}})
    ).status == 404
    assert (await api.call("DELETE", f"{path}/status")).status == 405


async def test_scale_changes_replicas(api: Served) -> None:
    """A Scale is read, updated and patched, and changes the number of replicas alone."""
    await api.create(DEPLOYMENTS, _deployment())
    path = f"{DEPLOYMENTS}/web/scale"
    scale = await api.get(path)
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 1},
        {"replicas": 0, "selector": "app=web"},
    )
    scale["spec"]["replicas"] = 2
    reply = await api.call("PUT", path, scale)
    assert (reply.status, reply.json["spec"]) == (200, {"replicas": 2})
    assert (await api.call("PUT", path, scale)).status == 409
    for replicas, kind in ((3, MERGE_PATCH), (4, STRATEGIC_PATCH)):
        patch = {"spec": {"replicas": replicas}}
        reply = await api.call("PATCH", path, patch, type=kind)
        assert (reply.status, reply.json["spec"]) == (200, {"replicas": replicas})
    operations = [{"op": "replace", "path": "/spec/replicas", "value": 5}]
    assert (await api.call("PATCH", path, operations, type=JSON_PATCH)).status == 200
    dry = await api.call("PATCH", f"{path}?dryRun=All", {"spec": {"replicas": 9}}, type=MERGE_PATCH)
    assert dry.json["spec"] == {"replicas": 9}
    stored = await api.get(f"{DEPLOYMENTS}/web")
    assert (stored["spec"]["replicas"], stored["metadata"]["generation"]) == (5, 5)
    yaml = await api.call(
        "PUT", path, {**scale, "metadata": {"name": "web"}}, accept="application/yaml"
    )
    assert yaml.headers["Content-Type"] == "application/yaml"
    assert msgspec.yaml.decode(yaml.body)["spec"] == {"replicas": 2}


@pytest.mark.parametrize(
    ("scale", "want_code", "want_text"),
    [
        pytest.param(
            {"spec": {"replicas": -1}},
            422,
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            id="fewer than none",
        ),
        pytest.param(
            {"spec": {"replicas": "two"}},
            400,
            "cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32",
            id="a number in words",
        ),
        pytest.param(
            {"metadata": "web"},
            400,
            "cannot unmarshal string into Go struct field Scale.metadata of type v1.ObjectMeta",
            id="metadata that is text",
        ),
        pytest.param(
            {"kind": "Pod", "apiVersion": "v1"},
            400,
            "converting (v1.Pod) to (autoscaling.Scale): unknown conversion",
            id="another kind",
        ),
        pytest.param(
            {"metadata": {"name": "other"}},
            400,
            "the name of the object (other) does not match the name on the URL (web)",
            id="another name",
        ),
    ],
)
async def test_scales_that_are_refused(
    api: Served, scale: JsonObject, want_code: int, want_text: str
) -> None:
    """A Scale that is none, or asks for what cannot be, is refused and changes nothing."""
    created = await api.create(DEPLOYMENTS, _deployment())
    body = {"metadata": {"name": "web"}, **scale}
    reply = await api.call("PUT", f"{DEPLOYMENTS}/web/scale", body)
    assert reply.status == want_code
    assert want_text in reply.message
    assert await api.get(f"{DEPLOYMENTS}/web") == created
    patch: JsonObject = {"spec": {"replicas": []}}
    reply = await api.call("PATCH", f"{DEPLOYMENTS}/web/scale", patch, type=MERGE_PATCH)
    assert reply.status == 422


async def test_events_are_one_kind_in_two_groups(api: Served) -> None:
    """An event written through one group is read, changed and deleted through the other."""
    core, newer = (
        "/api/v1/namespaces/default/events",
        "/apis/events.k8s.io/v1/namespaces/default/events",
    )
    created = await api.create(
        core,
        {
            "metadata": {"name": "one"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
            "message": "text",
            "reason": "Why",
            "type": "Normal",
            "count": 3,
        },
    )
    shown = await api.get(f"{newer}/one")
    assert shown["apiVersion"] == "events.k8s.io/v1"
    assert shown["regarding"] == created["involvedObject"]
    assert (shown["note"], shown["deprecatedCount"]) == ("text", 3)
    assert shown["metadata"]["uid"] == created["metadata"]["uid"]
    listed = await api.get(f"{newer}?fieldSelector=regarding.name%3Dp,reason%3DWhy")
    assert listed["items"] == [shown]
    patch = {"metadata": {"labels": {"seen": "yes"}}}
    assert (await api.call("PATCH", f"{newer}/one", patch, type=MERGE_PATCH)).status == 200
    selected = await api.get(
        f"{core}?labelSelector=seen%3Dyes&fieldSelector=involvedObject.kind%3DPod"
    )
    assert [one["metadata"]["name"] for one in selected["items"]] == ["one"]
    assert (await api.call("DELETE", f"{newer}/one")).status == 200
    assert (await api.call("GET", f"{core}/one")).status == 404


async def test_old_slices_are_read_only(api: Served) -> None:
    """Slices are shown as discovery.k8s.io/v1beta1 had them, and not written that way."""
    base = "namespaces/default/endpointslices"
    await api.create(
        f"/apis/discovery.k8s.io/v1/{base}",
        {
            "metadata": {"name": "one"},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1"], "nodeName": "n", "zone": "a"}],
        },
    )
    old = f"/apis/discovery.k8s.io/v1beta1/{base}"
    shown = await api.get(f"{old}/one")
    assert shown["apiVersion"] == "discovery.k8s.io/v1beta1"
    assert shown["endpoints"][0]["topology"] == {
        "kubernetes.io/hostname": "n",
        "topology.kubernetes.io/zone": "a",
    }
    assert (await api.get(old))["items"] == [shown]
    async with api.watch(old) as events:
        assert await events.next() == {"type": "ADDED", "object": shown}
    assert (await api.call("POST", old, {"metadata": {"name": "two"}})).status == 405
    assert (await api.call("DELETE", f"{old}/one")).status == 405


async def test_a_versionless_create_by_put(api: Served) -> None:
    """A PUT that creates a Service gives it an address, and refuses one that claims a version."""
    reply = await api.call("PUT", f"{SERVICES}/one", _service("one"))
    assert reply.status == 201
    assert reply.json["spec"]["clusterIP"].startswith("10.96.")
    claimed = _service("two")
    claimed["metadata"]["resourceVersion"] = "5"
    assert (await api.call("PUT", f"{SERVICES}/two", claimed)).status == 500


async def test_no_body_makes_the_server_fail(api: Served) -> None:
    """Objects with anything anywhere are stored or refused, and are never a fault of the server."""
    rnd = random.Random(7)
    junk: list[Any] = [
        None,
        True,
        -1,
        2**40,
        1.5,
        "",
        "x" * 300,
        "10.0.0.1",
        [],
        [None],
        [{}],
        {},
        {"a": None},
    ]
    bodies = {
        SERVICES: _service("one", type="NodePort", selector={"app": "a"}),
        DEPLOYMENTS: _deployment("one"),
        CONFIGMAPS: {"metadata": {"name": "one", "labels": {"a": "b"}}, "data": {"a": "b"}},
    }
    for number in range(400):
        path, body = rnd.choice(list(bodies.items()))
        changed = _with_junk(body, rnd, junk)
        kind, method, where = rnd.choice(
            [
                ("application/json", "POST", path),
                ("application/json", "PUT", f"{path}/one"),
                (MERGE_PATCH, "PATCH", f"{path}/one"),
                (STRATEGIC_PATCH, "PATCH", f"{path}/one"),
                (APPLY, "PATCH", f"{path}/one?fieldManager=m&force=true"),
            ]
        )
        reply = await api.call(method, where, changed, type=kind)
        reason = reply.json.get("reason") if reply.status >= 400 else None
        assert reason != "InternalError", (number, method, where, changed)


def _with_junk(body: JsonObject, rnd: random.Random, junk: list[Any]) -> JsonObject:
    changed = deepcopy(body)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(changed)
    holder, key = rnd.choice(places)
    holder[key] = deepcopy(rnd.choice(junk))
    return changed
