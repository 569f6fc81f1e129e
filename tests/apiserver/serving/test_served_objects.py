"""Every kind over HTTP: created, read, listed, updated, patched, applied, deleted."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import msgspec
import pytest

from keepclose.apiserver.resources import RESOURCES, Resource
from keepclose.testing.api_server import Served

JsonObject = dict[str, Any]
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_CONTAINER = {"name": "main", "image": "registry.test/main:1"}
_TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [_CONTAINER]}}
_WORKLOAD = {"selector": {"matchLabels": {"app": "a"}}, "template": _TEMPLATE}


class Case(NamedTuple):
    """The least that a kind needs, and the place of something that is set to a default."""

    resource: Resource
    body: JsonObject
    # A JSON pointer and what stands there although nobody set it.
    default: tuple[str, object]

    @property
    def collection(self) -> str:
        """The path of the collection."""
        one = self.resource
        prefix = f"/apis/{one.group}" if one.group else "/api"
        namespace = "/namespaces/default" if one.namespaced else ""
        return f"{prefix}/{one.version}{namespace}/{one.plural}"


_MEMBERS: dict[str, tuple[JsonObject, tuple[str, object]]] = {
    "Namespace": ({}, ("/spec/finalizers", ["kubernetes"])),
    "Node": ({}, ("/spec", {})),
    "Pod": ({"spec": {"containers": [_CONTAINER]}}, ("/spec/restartPolicy", "Always")),
    "Service": ({"spec": {"ports": [{"port": 80}]}}, ("/spec/ports/0/targetPort", 80)),
    "Endpoints": (
        {"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1}]}]},
        ("/subsets/0/ports/0/protocol", "TCP"),
    ),
    "ConfigMap": ({"data": {"a": "b"}}, ("/data/a", "b")),
    "ServiceAccount": (
        {"automountServiceAccountToken": False},
        ("/automountServiceAccountToken", False),
    ),
    "Deployment": ({"spec": _WORKLOAD}, ("/spec/replicas", 1)),
    "ReplicaSet": ({"spec": _WORKLOAD}, ("/spec/replicas", 1)),
    "DaemonSet": ({"spec": _WORKLOAD}, ("/spec/updateStrategy/type", "RollingUpdate")),
    "Lease": ({"spec": {"holderIdentity": "me"}}, ("/spec/holderIdentity", "me")),
    "EndpointSlice": (
        {
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1"]}],
            "ports": [{"port": 80}],
        },
        ("/ports/0/protocol", "TCP"),
    ),
    "ServiceCIDR": ({"spec": {"cidrs": ["10.97.0.0/24"]}}, ("/spec/cidrs", ["10.97.0.0/24"])),
}
_EVENTS: dict[str, tuple[JsonObject, tuple[str, object]]] = {
    "": (
        {"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "Why"},
        ("/involvedObject/name", "p"),
    ),
    "events.k8s.io": (
        {
            "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
            "eventTime": "2026-01-02T03:04:05.000000Z",
            "reportingController": "test.example.com/one",
            "reportingInstance": "one-1",
            "action": "Try",
            "reason": "Why",
            "type": "Normal",
        },
        ("/regarding/name", "p"),
    ),
}


def _case(resource: Resource) -> Case:
    members, default = (
        _EVENTS[resource.group] if resource.kind == "Event" else _MEMBERS[resource.kind]
    )
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "one", "labels": {"round": "0"}},
        **deepcopy(members),
    }
    return Case(resource, body, default)


EVERY_KIND = pytest.mark.parametrize(
    "case", [pytest.param(_case(one), id=f"{one.kind} of {one.api_version}") for one in RESOURCES]
)


def _at(value: Any, pointer: str) -> object:
    for step in pointer.strip("/").split("/"):
        value = value[int(step)] if isinstance(value, list) else value[step]
    found: object = value
    return found


def _round(value: JsonObject) -> str:
    return str(value["metadata"]["labels"]["round"])


@EVERY_KIND
async def test_objects_live_from_create_to_delete(api: Served, case: Case) -> None:
    """A kind is created with defaults, read, listed, updated, patched in all ways and deleted."""
    path = f"{case.collection}/one"
    created = await api.create(case.collection, case.body)
    assert _at(created, case.default[0]) == case.default[1]
    assert created["metadata"]["uid"]
    assert created["metadata"]["creationTimestamp"]
    assert await api.get(path) == created

    listed = await api.get(f"{case.collection}?labelSelector=round%3D0")
    assert listed["kind"] == case.resource.list_kind
    assert listed["apiVersion"] == case.resource.api_version
    assert listed["items"] == [created]

    again = await api.call("POST", case.collection, case.body)
    assert again.status == 409
    assert again.json["reason"] == "AlreadyExists"
    assert again.message == f'{case.resource.qualified} "one" already exists'

    changed = deepcopy(created)
    changed["metadata"]["labels"]["round"] = "1"
    reply = await api.call("PUT", path, changed)
    assert (reply.status, _round(reply.json)) == (200, "1")
    assert int(reply.json["metadata"]["resourceVersion"]) > int(
        created["metadata"]["resourceVersion"]
    )
    assert reply.json["metadata"]["uid"] == created["metadata"]["uid"]

    stale = await api.call("PUT", path, changed)
    assert stale.status == 409
    assert stale.json["reason"] == "Conflict"

    patch = [{"op": "replace", "path": "/metadata/labels/round", "value": "2"}]
    reply = await api.call("PATCH", path, patch, type=JSON_PATCH)
    assert (reply.status, _round(reply.json)) == (200, "2")
    labels: JsonObject = {"metadata": {"labels": {"round": "3"}}}
    reply = await api.call("PATCH", path, labels, type=MERGE_PATCH)
    assert (reply.status, _round(reply.json)) == (200, "3")
    labels["metadata"]["labels"]["round"] = "4"
    reply = await api.call("PATCH", path, labels, type=STRATEGIC_PATCH)
    assert (reply.status, _round(reply.json)) == (200, "4")

    applied = {
        "apiVersion": case.resource.api_version,
        "kind": case.resource.kind,
        "metadata": {"name": "one", "labels": {"round": "5"}},
    }
    query = "?fieldManager=tester"
    refused = await api.call("PATCH", path + query, applied, type=APPLY)
    assert refused.status == 409
    assert refused.json["details"]["causes"][0]["field"] == ".metadata.labels.round"
    reply = await api.call("PATCH", f"{path}{query}&force=true", applied, type=APPLY)
    assert (reply.status, _round(reply.json)) == (200, "5")
    managers = {one["manager"] for one in reply.json["metadata"]["managedFields"]}
    assert "tester" in managers

    reply = await api.call("DELETE", path)
    assert reply.status == 200
    if case.resource.kind == "Namespace":
        await api.until_gone(path)
    gone = await api.call("GET", path)
    assert gone.status == 404
    assert gone.message == f'{case.resource.qualified} "one" not found'


@EVERY_KIND
async def test_apply_creates(api: Served, case: Case) -> None:
    """Server-side apply of a name that is free creates the object, in JSON as in YAML."""
    path = f"{case.collection}/one?fieldManager=tester"
    reply = await api.call("PATCH", path, case.body, type=APPLY)
    assert reply.status == 201
    assert _at(reply.json, case.default[0]) == case.default[1]
    same = await api.call("PATCH", path, case.body, type=APPLY)
    assert same.status == 200
    assert same.json["metadata"]["resourceVersion"] == reply.json["metadata"]["resourceVersion"]


@EVERY_KIND
async def test_names_are_generated(api: Served, case: Case) -> None:
    """A create with generateName gets a name of that beginning and five more letters."""
    body = deepcopy(case.body)
    body["metadata"] = {"generateName": "made-"}
    names = {(await api.create(case.collection, body))["metadata"]["name"] for _ in range(2)}
    assert len(names) == 2
    for name in names:
        assert name.startswith("made-")
        assert len(name) == len("made-") + 5


@EVERY_KIND
async def test_a_dry_run_leaves_no_trace(api: Served, case: Case) -> None:
    """Create, update, patch, apply and delete with dryRun=All answer as usual and store nothing."""
    path = f"{case.collection}/one"
    version = (await api.get(case.collection))["metadata"]["resourceVersion"]
    reply = await api.call("POST", f"{case.collection}?dryRun=All", case.body)
    assert reply.status == 201
    assert reply.json["metadata"]["uid"]
    applying = f"{path}?fieldManager=tester&dryRun=All"
    assert (await api.call("PATCH", applying, case.body, type=APPLY)).status == 201
    assert (await api.call("GET", path)).status == 404
    assert (await api.get(case.collection))["metadata"]["resourceVersion"] == version

    created = await api.create(case.collection, case.body)
    changed = deepcopy(created)
    changed["metadata"]["labels"]["round"] = "9"
    reply = await api.call("PUT", f"{path}?dryRun=All", changed)
    assert (reply.status, _round(reply.json)) == (200, "9")
    patch = {"metadata": {"labels": {"round": "9"}}}
    reply = await api.call("PATCH", f"{path}?dryRun=All", patch, type=MERGE_PATCH)
    assert (reply.status, _round(reply.json)) == (200, "9")
    assert (await api.call("DELETE", f"{path}?dryRun=All")).status == 200
    assert await api.get(path) == created


@EVERY_KIND
async def test_writes_that_change_nothing_keep_the_version(api: Served, case: Case) -> None:
    """An update or a patch that changes nothing is answered with the stored object as it is."""
    path = f"{case.collection}/one"
    created = await api.create(case.collection, case.body)
    assert (await api.call("PUT", path, created)).json == created
    patch = {"metadata": {"labels": {"round": "0"}}}
    for kind in (MERGE_PATCH, STRATEGIC_PATCH):
        assert (await api.call("PATCH", path, patch, type=kind)).json == created
    assert (await api.call("PATCH", path, b"[]", type=JSON_PATCH)).json == created


@EVERY_KIND
async def test_unknown_fields_are_judged_as_asked(api: Served, case: Case) -> None:
    """Strict refuses a field that the kind does not have, Warn tells of it, Ignore drops it."""
    body = {**case.body, "surprise": 1}
    strict = await api.call("POST", f"{case.collection}?fieldValidation=Strict", body)
    assert strict.status == 400
    assert strict.message.endswith('strict decoding error: unknown field "surprise"')
    warned = await api.call("POST", f"{case.collection}?dryRun=All", body)
    assert warned.status == 201
    assert '299 - "unknown field \\"surprise\\""' in warned.warnings
    assert "surprise" not in warned.json
    ignored = await api.call("POST", f"{case.collection}?dryRun=All&fieldValidation=Ignore", body)
    assert ignored.status == 201
    assert not [one for one in ignored.warnings if "surprise" in one]


@EVERY_KIND
async def test_updates_without_a_version(api: Served, case: Case) -> None:
    """An update may leave out the resourceVersion, but for kinds that insist on it."""
    path = f"{case.collection}/one"
    created = await api.create(case.collection, case.body)
    changed = deepcopy(created)
    del changed["metadata"]["resourceVersion"]
    changed["metadata"]["labels"]["round"] = "1"
    reply = await api.call("PUT", path, changed)
    if api.server.writer.strategy_of(case.resource).allows_unconditional_update:
        assert (reply.status, _round(reply.json)) == (200, "1")
    else:
        assert reply.status == 422
        assert reply.json["details"]["causes"] == [
            {
                "reason": "FieldValueInvalid",
                "message": "Invalid value: 0: must be specified for an update",
                "field": "metadata.resourceVersion",
            }
        ]


@EVERY_KIND
async def test_a_put_to_a_free_name(api: Served, case: Case) -> None:
    """A PUT creates where the kind allows it, and is answered with 404 where not."""
    reply = await api.call("PUT", f"{case.collection}/one", case.body)
    if api.server.writer.strategy_of(case.resource).allows_create_on_update:
        assert reply.status == 201
        assert reply.json == await api.get(f"{case.collection}/one")
    else:
        assert reply.status == 404
        assert reply.message == f'{case.resource.qualified} "one" not found'


@EVERY_KIND
async def test_protobuf_free_clients_get_yaml(api: Served, case: Case) -> None:
    """YAML is read and written."""
    created = await api.create(case.collection, case.body)
    reply = await api.call("GET", f"{case.collection}/one", accept="application/yaml")
    assert reply.headers["Content-Type"] == "application/yaml"
    assert msgspec.yaml.decode(reply.body) == created
    sent = msgspec.yaml.encode({**case.body, "metadata": {"name": "two"}})
    made = await api.call("POST", case.collection, sent, type="application/yaml")
    assert made.status == 201
    assert made.json["metadata"]["name"] == "two"
