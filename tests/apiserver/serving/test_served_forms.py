"""Answers over HTTP in the forms that clients ask for, and the pages that are no resources."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
import yaml

from keepclose.apiserver.resources import SERVED
from keepclose.testing.api_server import Served

JsonObject = dict[str, Any]
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


async def _maps(api: Served, *names: str) -> list[JsonObject]:
    return [
        await api.create(CONFIGMAPS, {"metadata": {"name": name}, "data": {"a": name}})
        for name in names
    ]


async def test_tables(api: Served) -> None:
    """One object, a list and a watch are shown as tables, with as much of the object as asked."""
    one, two = await _maps(api, "one", "two")
    reply = await api.call("GET", f"{CONFIGMAPS}/one", accept=f"{TABLE},application/json")
    assert reply.headers["Content-Type"] == "application/json"
    table = reply.json
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert [row["cells"][:2] for row in table["rows"]] == [["one", 1]]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert table["rows"][0]["object"]["metadata"] == one["metadata"]
    listed = await api.call("GET", f"{CONFIGMAPS}?includeObject=Object", accept=TABLE)
    assert [row["object"] for row in listed.json["rows"]] == [one, two]
    assert listed.json["metadata"]["resourceVersion"] == two["metadata"]["resourceVersion"]
    bare = await api.call("GET", f"{CONFIGMAPS}?includeObject=None", accept=TABLE)
    assert [row.get("object") for row in bare.json["rows"]] == [None, None]
    old = await api.call("GET", CONFIGMAPS, accept=TABLE.replace("v=v1", "v=v1beta1"))
    assert old.json["apiVersion"] == "meta.k8s.io/v1beta1"
    async with api.watch(CONFIGMAPS, accept=TABLE) as events:
        first, second = await events.next(), await events.next()
    assert first is not None
    assert second is not None
    assert len(first["object"]["columnDefinitions"]) == 3
    assert second["object"]["columnDefinitions"] is None
    assert second["object"]["rows"][0]["cells"][0] == "two"


async def test_metadata_alone(api: Served) -> None:
    """Objects, lists and watches are shown without anything but their metadata."""
    one, two = await _maps(api, "one", "two")
    reply = await api.call("GET", f"{CONFIGMAPS}/one", accept=METADATA)
    want = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": one["metadata"],
    }
    assert reply.json == want
    listed = (await api.call("GET", f"{CONFIGMAPS}?limit=1", accept=METADATA_LIST)).json
    assert listed["kind"] == "PartialObjectMetadataList"
    assert listed["items"] == [want]
    assert listed["metadata"]["remainingItemCount"] == 1
    version = one["metadata"]["resourceVersion"]
    async with api.watch(CONFIGMAPS, f"resourceVersion={version}", accept=METADATA) as events:
        event = await events.next()
    assert event == {"type": "ADDED", "object": {**want, "metadata": two["metadata"]}}
    made = await api.call("POST", CONFIGMAPS, {"metadata": {"name": "three"}}, accept=METADATA)
    assert (made.status, made.json["kind"]) == (201, "PartialObjectMetadata")


async def test_yaml(api: Served) -> None:
    """Lists and deleted collections are written as YAML for who asks for it."""
    one, two = await _maps(api, "one", "two")
    reply = await api.call("GET", CONFIGMAPS, accept="application/yaml")
    assert reply.headers["Content-Type"] == "application/yaml"
    assert yaml.safe_load(reply.body)["items"] == [one, two]
    reply = await api.call("DELETE", f"{CONFIGMAPS}/one", accept="application/yaml")
    assert msgspec.yaml.decode(reply.body)["status"] == "Success"
    reply = await api.call("DELETE", CONFIGMAPS, accept="application/yaml")
    assert reply.headers["Content-Type"] == "application/yaml"
    assert [item["metadata"]["name"] for item in yaml.safe_load(reply.body)["items"]] == ["two"]


async def test_yaml_means_the_same_to_every_reader(api: Served) -> None:
    """Strings that look like numbers or booleans to kubectl are quoted and stay strings."""
    texts = ["y", "N", "on", "1e3", "0o7", "0x_f", "+1", ".5", "1_000", "null", "", "<<", "12:30"]
    data = {f"k{number}": text for number, text in enumerate(texts)} | {"y": "y", "1e3": "1"}
    made = await api.create(CONFIGMAPS, {"metadata": {"name": "texts"}, "data": data})
    reply = await api.call("GET", f"{CONFIGMAPS}/texts", accept="application/yaml")
    again = await api.call("PUT", f"{CONFIGMAPS}/texts", reply.body, type="application/yaml")
    assert (again.status, again.json) == (200, made)


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param("text/html", id="html"),
        pytest.param("application/vnd.kubernetes.protobuf", id="protobuf alone"),
        pytest.param("application/json;as=Chart;v=v1;g=meta.k8s.io", id="an unknown shape"),
        pytest.param("application/json;as=Table;v=v7;g=meta.k8s.io", id="an unknown version"),
    ],
)
async def test_forms_that_are_not_served(api: Served, accept: str) -> None:
    """A client that takes nothing of what there is gets 406 and is told what there is."""
    reply = await api.call("GET", CONFIGMAPS, accept=accept)
    assert (reply.status, reply.json["reason"]) == (406, "NotAcceptable")
    assert reply.message == (
        "only the following media types are accepted: application/json, application/yaml"
    )


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param("*/*", id="anything"),
        pytest.param("application/vnd.kubernetes.protobuf, application/json", id="json too"),
        pytest.param("application/json;as=Chart;v=v1;g=meta.k8s.io,application/json", id="or json"),
    ],
)
async def test_the_first_form_that_is_served_counts(api: Served, accept: str) -> None:
    """JSON is sent to whoever takes it among others."""
    reply = await api.call("GET", CONFIGMAPS, accept=accept)
    assert (reply.status, reply.json["kind"]) == (200, "ConfigMapList")


async def test_a_list_of_the_future(api: Served) -> None:
    """A list at a version that is not there yet is told to come back in a second."""
    reply = await api.call("GET", f"{CONFIGMAPS}?resourceVersion=999999")
    assert (reply.status, reply.headers["Retry-After"]) == (504, "1")
    assert reply.message.startswith("Timeout: Too large resource version: 999999, current: ")
    assert reply.json["details"]["retryAfterSeconds"] == 1


async def test_one_name_in_one_namespace(api: Served) -> None:
    """A list of a single name finds it, or nothing, without looking at the others."""
    one, _ = await _maps(api, "one", "two")
    for name, want in (("one", [one]), ("none", [])):
        found = await api.get(f"{CONFIGMAPS}?fieldSelector=metadata.name%3D{name}")
        assert found["items"] == want


@pytest.mark.parametrize(
    "path", ["/healthz", "/livez", "/readyz", "/livez/ping", "/readyz/storage"]
)
async def test_health(api: Served, path: str) -> None:
    """Everybody may ask whether the server is well, in one word or in some detail."""
    reply = await api.call("GET", path, token="")
    assert (reply.status, reply.body) == (200, b"ok")
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    verbose = await api.call("GET", f"{path}?verbose", token="")
    name = path.split("/")[1]
    assert verbose.body.decode() == f"[+]ping ok\n[+]storage ok\n{name} check passed\n"
    head = await api.call("HEAD", path, token="")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", "2")
    assert (await api.call("POST", path)).status == 405


async def test_unknown_check(api: Served) -> None:
    """Nothing is said to be well that is not looked at."""
    assert (await api.call("GET", "/livez/nonsense")).status == 404


async def test_version_and_paths(api: Served) -> None:
    """The version is that of the Kubernetes that is followed; the root lists all pages."""
    version = await api.get("/version")
    assert version["gitVersion"].startswith("v1.")
    assert "keepclose" in version["gitVersion"]
    paths = (await api.get("/"))["paths"]
    assert {"/api", "/api/v1", "/apis/apps/v1", "/healthz", "/metrics", "/openapi/v2"} <= set(paths)
    for path in paths:
        assert (await api.call("GET", path)).status == 200, path
        assert (await api.call("GET", f"{path}/")).status == 200, path


async def test_plain_discovery(api: Served) -> None:
    """Groups, versions and resources are told one page at a time."""
    core = await api.get("/api")
    assert core["versions"] == ["v1"]
    assert api.url.endswith(core["serverAddressByClientCIDRs"][0]["serverAddress"])
    groups = {one["name"]: one for one in (await api.get("/apis"))["groups"]}
    assert set(groups) == {one.group for one in SERVED if one.group}
    assert await api.get("/apis/apps") == {"kind": "APIGroup", "apiVersion": "v1", **groups["apps"]}
    found = {one["name"]: one for one in (await api.get("/api/v1"))["resources"]}
    assert found["services"]["shortNames"] == ["svc"]
    assert found["services/status"]["verbs"] == ["get", "patch", "update"]
    assert found["nodes"]["namespaced"] is False


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
async def test_aggregated_discovery(api: Served, version: str) -> None:
    """All groups with all resources come in one answer, to clients that know of it."""
    wanted = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    names: list[str] = []
    for path in ("/api", "/apis"):
        reply = await api.call("GET", path, accept=f"{wanted},application/json")
        assert reply.headers["Content-Type"] == wanted
        assert reply.json["kind"] == "APIGroupDiscoveryList"
        assert reply.json["apiVersion"] == f"apidiscovery.k8s.io/{version}"
        names += [
            resource["resource"]
            for group in reply.json["items"]
            for one in group["versions"]
            for resource in one["resources"]
        ]
    assert sorted(names) == sorted(one.plural for one in SERVED)


async def test_openapi(api: Served) -> None:
    """Both versions of OpenAPI are served with an ETag, and not again to who has them."""
    index = await api.get("/openapi/v3")
    for path in ("/openapi/v2", "/openapi/v3", *(f"/openapi/v3/{one}" for one in index["paths"])):
        reply = await api.call("GET", path)
        assert reply.status == 200
        again = await api.call("GET", path, headers={"If-None-Match": reply.headers["ETag"]})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["ETag"] == reply.headers["ETag"]
        other = await api.call("GET", path, headers={"If-None-Match": '"other"'})
        assert (other.status, other.body) == (200, reply.body)
    assert set(index["paths"]) == {
        "api/v1",
        *(f"apis/{one.group}/{one.version}" for one in SERVED if one.group),
    }
    document = await api.get("/openapi/v2")
    assert "io.k8s.api.core.v1.Service" in document["definitions"]
    assert f"{CONFIGMAPS.replace('default', '{namespace}')}" in document["paths"]
    binary = await api.call(
        "GET", "/openapi/v2", accept="application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    )
    assert binary.status == 200
    assert binary.headers["Content-Type"].startswith("application/com.github.proto-openapi.spec.v2")
    assert (await api.call("GET", "/openapi/v2", accept="text/html")).status == 406


async def test_metrics(api: Served) -> None:
    """Requests, durations, watches and objects are counted under the names of a kube-apiserver."""
    await _maps(api, "one", "two")
    await api.call("GET", f"{CONFIGMAPS}/none")
    await api.call("GET", "/nowhere")
    async with api.watch("/api/v1/configmaps"):
        reply = await api.call("GET", "/metrics")
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = set(reply.body.decode().splitlines())
    create = 'group="",resource="configmaps",scope="namespace",subresource="",verb="CREATE"'
    missed = 'group="",resource="configmaps",scope="resource",subresource="",verb="GET"'
    watch = 'group="",resource="configmaps",scope="cluster",subresource="",verb="WATCH"'
    nowhere = 'group="",resource="",scope="",subresource="",verb="GET",version=""'
    assert lines >= {
        f'apiserver_request_total{{code="201",{create},version="v1"}} 2.0',
        f'apiserver_request_total{{code="404",{missed},version="v1"}} 1.0',
        f'apiserver_request_total{{code="404",{nowhere}}} 1.0',
        f'apiserver_longrunning_requests{{{watch},version="v1"}} 1.0',
        f'apiserver_request_duration_seconds_count{{{create},version="v1"}} 2.0',
        'apiserver_resource_objects{group="",resource="configmaps"} 2.0',
        'apiserver_resource_objects{group="apps",resource="deployments"} 0.0',
    }
    assert not [one for one in lines if "duration" in one and 'verb="WATCH"' in one]
    ended = f'apiserver_longrunning_requests{{{watch},version="v1"}} 0.0'
    await api.until("/metrics", lambda again: ended in again.body.decode())


@pytest.mark.parametrize(
    ("method", "path", "want"),
    [
        pytest.param("GET", "/nowhere", 404, id="no page"),
        pytest.param("GET", "/api/v2/pods", 404, id="no version"),
        pytest.param("GET", "/apis/apps/v1/statefulsets", 404, id="no such kind"),
        pytest.param("GET", "/api/v1/pods/one", 404, id="a name without its namespace"),
        pytest.param("GET", "/api/v1/namespaces/a/pods/b/none", 404, id="no such subresource"),
        pytest.param("GET", "/api/v1/namespaces/a/pods/b/c/d", 404, id="a longer path"),
        pytest.param("GET", "/api/v1/namespaces/a/nodes/b", 404, id="a node in a namespace"),
        pytest.param("GET", "/openapi/v3/apis/none/v1", 404, id="no document"),
        pytest.param("PUT", CONFIGMAPS, 405, id="update of a collection"),
        pytest.param("POST", f"{CONFIGMAPS}/one", 405, id="create at a name"),
        pytest.param("DELETE", "/api/v1/namespaces", 405, id="all namespaces"),
        pytest.param("DELETE", "/api/v1/pods", 405, id="the pods of all namespaces"),
        pytest.param("OPTIONS", CONFIGMAPS, 405, id="options"),
        pytest.param("HEAD", f"{CONFIGMAPS}", 405, id="the head of a list"),
        pytest.param("DELETE", "/metrics", 405, id="metrics deleted"),
    ],
)
async def test_what_is_not_there(api: Served, method: str, path: str, want: int) -> None:
    """Unknown paths are 404 and verbs that a path does not have are 405, both as a Status."""
    reply = await api.call(method, path)
    assert reply.status == want
    if method != "HEAD":
        reason = {404: "NotFound", 405: "MethodNotAllowed"}[want]
        assert (reply.json["kind"], reply.json["reason"]) == ("Status", reason)


@pytest.mark.parametrize(
    ("path", "selector", "want"),
    [
        pytest.param("/api/v1/pods", "spec.nodeName=n1", ["bound"], id="pods of a node"),
        pytest.param("/api/v1/pods", "spec.nodeName=", ["free"], id="pods without a node"),
        pytest.param("/api/v1/pods", "spec.nodeName!=n1", ["free"], id="pods of no such node"),
        pytest.param(
            "/api/v1/pods", "spec.hostNetwork=false", ["bound", "free"], id="an absent flag"
        ),
        pytest.param("/api/v1/nodes", "spec.unschedulable=true", ["closed"], id="a flag"),
        pytest.param("/api/v1/nodes", "spec.unschedulable=false", ["open"], id="no flag"),
        pytest.param("/api/v1/nodes", "metadata.name=open", ["open"], id="a name"),
        pytest.param("/api/v1/events", "source=scheduler", ["told"], id="the source of events"),
        pytest.param("/api/v1/events", "involvedObject.name=x", ["told"], id="their object"),
        pytest.param("/api/v1/events", "reason=Other", [], id="nothing"),
    ],
)
async def test_field_selectors(api: Served, path: str, selector: str, want: list[str]) -> None:
    """Objects are selected by the fields that a real server knows."""
    spec: JsonObject = {"containers": [{"name": "main", "image": "registry.test/main:1"}]}
    pods = "/api/v1/namespaces/default/pods"
    await api.create(pods, {"metadata": {"name": "free"}, "spec": spec})
    await api.create(pods, {"metadata": {"name": "bound"}, "spec": {**spec, "nodeName": "n1"}})
    await api.create(NODES, {"metadata": {"name": "open"}})
    await api.create(NODES, {"metadata": {"name": "closed"}, "spec": {"unschedulable": True}})
    await api.create(
        "/api/v1/namespaces/default/events",
        {
            "metadata": {"name": "told"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "x"},
            "source": {"component": "scheduler"},
        },
    )
    listed = await api.get(f"{path}?{urlencode({'fieldSelector': selector})}")
    assert [one["metadata"]["name"] for one in listed["items"]] == want


async def test_large_bodies_are_refused(api: Served) -> None:
    """A body of more than 3 MiB is refused, and one just below is read."""
    large = msgspec.json.encode({"metadata": {"name": "one"}, "data": {"a": "x" * (3 << 20)}})
    reply = await api.call("POST", CONFIGMAPS, large)
    assert (reply.status, reply.json["reason"]) == (413, "RequestEntityTooLarge")
    smaller = msgspec.json.encode({"metadata": {"name": "one"}, "data": {"a": "x" * (2 << 20)}})
    reply = await api.call("POST", CONFIGMAPS, smaller)
    assert reply.status == 422
    assert "Too long" in reply.message


async def test_bodies_of_other_types(api: Served) -> None:
    """A body of a type that is not read is 415; one without a type is JSON."""
    body = {"metadata": {"name": "one"}}
    reply = await api.call("POST", CONFIGMAPS, body, type="text/html")
    assert (reply.status, reply.json["reason"]) == (415, "UnsupportedMediaType")
    reply = await api.call("POST", CONFIGMAPS, body, type="application/json; charset=utf-8")
    assert reply.status == 201
