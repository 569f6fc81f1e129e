"""Deletions over HTTP, with the garbage collector at work."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.testing.api_server import Served

JsonObject = dict[str, Any]
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
NAMESPACES = "/api/v1/namespaces"
PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
MERGE_PATCH = "application/merge-patch+json"


def _pod(name: str, *, node: str = "", **metadata: Any) -> JsonObject:
    spec: JsonObject = {"containers": [{"name": "main", "image": "registry.test/main:1"}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def _map(name: str, **metadata: Any) -> JsonObject:
    return {"metadata": {"name": name, **metadata}}


def _owned_by(owner: JsonObject, *, blocking: bool = True) -> list[JsonObject]:
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": blocking,
        }
    ]


async def test_a_delete_at_once(api: Served) -> None:
    """Most kinds are answered with a Status that names what is gone, some with the object."""
    created = await api.create(CONFIGMAPS, _map("one"))
    reply = await api.call("DELETE", f"{CONFIGMAPS}/one")
    assert (reply.status, reply.json) == (
        200,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {"name": "one", "kind": "configmaps", "uid": created["metadata"]["uid"]},
        },
    )
    service = await api.create(
        SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}}
    )
    reply = await api.call("DELETE", f"{SERVICES}/s")
    assert reply.json["metadata"]["uid"] == service["metadata"]["uid"]
    assert reply.json["kind"] == "Service"
    again = await api.call("DELETE", f"{SERVICES}/s")
    assert (again.status, again.message) == (404, 'services "s" not found')


async def test_graces_of_pods(api: Served) -> None:
    """A pod on a node is marked and stays; one that is nowhere goes; no grace takes it at once."""
    await api.create(PODS, _pod("nowhere"))
    await api.create(PODS, _pod("bound", node="n"))
    assert (await api.call("DELETE", f"{PODS}/nowhere")).status == 200
    assert (await api.call("GET", f"{PODS}/nowhere")).status == 404
    reply = await api.call("DELETE", f"{PODS}/bound")
    assert reply.json["metadata"]["deletionGracePeriodSeconds"] == 30
    marked = await api.get(f"{PODS}/bound")
    assert reply.json == marked
    longer = await api.call("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 60})
    assert longer.json == marked
    shorter = await api.call("DELETE", f"{PODS}/bound?gracePeriodSeconds=20")
    assert shorter.json["metadata"]["deletionGracePeriodSeconds"] == 20
    assert shorter.json["metadata"]["deletionTimestamp"] < marked["metadata"]["deletionTimestamp"]
    reply = await api.call("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 0})
    assert reply.json["metadata"]["deletionGracePeriodSeconds"] == 0
    assert (await api.call("GET", f"{PODS}/bound")).status == 404


async def test_finalizers_hold(api: Served) -> None:
    """What has finalizers is marked, loses them one by one, and goes with the last."""
    await api.create(
        CONFIGMAPS, _map("one", finalizers=["test.example.com/a", "test.example.com/b"])
    )
    path = f"{CONFIGMAPS}/one"
    reply = await api.call("DELETE", path)
    assert reply.json["metadata"]["deletionTimestamp"]
    assert (await api.call("DELETE", path)).json == reply.json
    more = {"metadata": {"finalizers": ["test.example.com/c", "test.example.com/a"]}}
    refused = await api.call("PATCH", path, more, type=MERGE_PATCH)
    assert refused.status == 422
    assert "no new finalizers can be added if the object is being deleted" in refused.message
    fewer = {"metadata": {"finalizers": ["test.example.com/a"]}}
    assert (await api.call("PATCH", path, fewer, type=MERGE_PATCH)).status == 200
    assert (await api.get(path))["metadata"]["finalizers"] == ["test.example.com/a"]
    none = {"metadata": {"finalizers": None}}
    dry = await api.call("PATCH", f"{path}?dryRun=All", none, type=MERGE_PATCH)
    assert dry.status == 200
    assert (await api.call("GET", path)).status == 200
    last = await api.call("PATCH", path, none, type=MERGE_PATCH)
    assert (last.status, "finalizers" in last.json["metadata"]) == (200, False)
    assert (await api.call("GET", path)).status == 404


async def test_preconditions(api: Served) -> None:
    """A delete is refused where uid or version are not those that the client knows."""
    created = await api.create(CONFIGMAPS, _map("one"))
    path, metadata = f"{CONFIGMAPS}/one", created["metadata"]
    reply = await api.call("DELETE", path, {"preconditions": {"uid": "other"}})
    assert reply.status == 409
    assert reply.message == (
        'Operation cannot be fulfilled on ConfigMap "one": the UID in the precondition (other) '
        f"does not match the UID in record ({metadata['uid']}). The object might have been deleted "
        "and then recreated"
    )
    reply = await api.call("DELETE", path, {"preconditions": {"resourceVersion": "1"}})
    assert reply.status == 409
    known = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": known}
    assert (await api.call("DELETE", path, options)).status == 200


@pytest.mark.parametrize(
    ("body", "query", "want_code", "want_text"),
    [
        pytest.param(
            {"propagationPolicy": "Sideways"},
            "",
            422,
            'propagationPolicy: Unsupported value: "Sideways"',
            id="an unknown policy",
        ),
        pytest.param(
            {"propagationPolicy": "Orphan", "orphanDependents": True},
            "",
            422,
            "orphanDependents and deletionPropagation cannot be both set",
            id="two policies",
        ),
        pytest.param(
            {"kind": "Pod"},
            "",
            400,
            "decoded object cannot be converted to DeleteOptions",
            id="options that are a pod",
        ),
        pytest.param(
            {"gracePeriodSeconds": "long"}, "", 400, "invalid DeleteOptions", id="a grace in words"
        ),
        pytest.param({"dryRun": ["Some"]}, "", 422, "dryRun: Unsupported", id="some dry run"),
        pytest.param(None, "gracePeriodSeconds=long", 400, "invalid syntax", id="a query in words"),
    ],
)
async def test_options_that_are_refused(
    api: Served, body: object, query: str, want_code: int, want_text: str
) -> None:
    """Options that contradict themselves or cannot be read leave the object alone."""
    created = await api.create(CONFIGMAPS, _map("one"))
    reply = await api.call("DELETE", f"{CONFIGMAPS}/one?{query}", body)
    assert reply.status == want_code
    assert want_text in reply.message
    assert await api.get(f"{CONFIGMAPS}/one") == created


async def test_collections(api: Served) -> None:
    """A delete of a collection takes what the selectors select, and answers what it was."""
    for name, color in (("a", "red"), ("b", "red"), ("c", "blue")):
        await api.create(CONFIGMAPS, _map(name, labels={"color": color}))
    dry = await api.call("DELETE", f"{CONFIGMAPS}?labelSelector=color%3Dred&dryRun=All")
    assert len(dry.json["items"]) == 2
    reply = await api.call("DELETE", f"{CONFIGMAPS}?labelSelector=color%3Dred")
    assert (reply.status, reply.json["kind"]) == (200, "ConfigMapList")
    assert [one["metadata"]["name"] for one in reply.json["items"]] == ["a", "b"]
    assert [one["metadata"]["name"] for one in (await api.get(CONFIGMAPS))["items"]] == ["c"]
    await api.create(CONFIGMAPS, _map("d"))
    assert (await api.call("DELETE", f"{CONFIGMAPS}?fieldSelector=metadata.name%3Dd")).status == 200
    assert [one["metadata"]["name"] for one in (await api.get(CONFIGMAPS))["items"]] == ["c"]
    bad = await api.call("DELETE", f"{CONFIGMAPS}?labelSelector=color%3D%3D%3D")
    assert bad.status == 400
    assert (await api.call("DELETE", CONFIGMAPS)).status == 200
    assert (await api.get(CONFIGMAPS))["items"] == []


async def test_background(api: Served) -> None:
    """With the owner gone at once, its objects follow, and theirs."""
    owner = await api.create(CONFIGMAPS, _map("owner"))
    child = await api.create(CONFIGMAPS, _map("child", ownerReferences=_owned_by(owner)))
    await api.create(CONFIGMAPS, _map("grandchild", ownerReferences=_owned_by(child)))
    path = f"{CONFIGMAPS}/owner?propagationPolicy=Background"
    assert (await api.call("DELETE", path)).json["status"] == "Success"
    assert (await api.call("GET", f"{CONFIGMAPS}/owner")).status == 404
    await api.until_gone(f"{CONFIGMAPS}/child")
    await api.until_gone(f"{CONFIGMAPS}/grandchild")


async def test_orphans(api: Served) -> None:
    """Objects that are orphaned stay and name no owner any more."""
    owner = await api.create(CONFIGMAPS, _map("owner"))
    await api.create(CONFIGMAPS, _map("child", ownerReferences=_owned_by(owner)))
    reply = await api.call("DELETE", f"{CONFIGMAPS}/owner", {"propagationPolicy": "Orphan"})
    assert reply.json["metadata"]["finalizers"] == ["orphan"]
    await api.until_gone(f"{CONFIGMAPS}/owner")
    assert "ownerReferences" not in (await api.get(f"{CONFIGMAPS}/child"))["metadata"]
    old = await api.create(CONFIGMAPS, _map("old"))
    await api.create(CONFIGMAPS, _map("kept", ownerReferences=_owned_by(old)))
    await api.call("DELETE", f"{CONFIGMAPS}/old?orphanDependents=true")
    await api.until_gone(f"{CONFIGMAPS}/old")
    assert (await api.call("GET", f"{CONFIGMAPS}/kept")).status == 200


async def test_foreground(api: Served) -> None:
    """An owner waits for those who block it, and goes after the last of them."""
    owner = await api.create(CONFIGMAPS, _map("owner"))
    await api.create(
        CONFIGMAPS,
        _map("child", ownerReferences=_owned_by(owner), finalizers=["test.example.com/a"]),
    )
    async with api.watch(CONFIGMAPS) as events:
        assert len(await events.take(2)) == 2
        reply = await api.call("DELETE", f"{CONFIGMAPS}/owner", {"propagationPolicy": "Foreground"})
        assert reply.json["metadata"]["finalizers"] == ["foregroundDeletion"]
        # The owner is marked, then the child.
        assert await events.take(2) == [("MODIFIED", "owner"), ("MODIFIED", "child")]
        assert (await api.call("GET", f"{CONFIGMAPS}/owner")).status == 200
        none = {"metadata": {"finalizers": None}}
        await api.call("PATCH", f"{CONFIGMAPS}/child", none, type=MERGE_PATCH)
        assert await events.take(2) == [("DELETED", "child"), ("DELETED", "owner")]


async def test_a_namespace_goes_with_all_that_is_in_it(api: Served) -> None:
    """A namespace is emptied, takes nothing new meanwhile, and goes when it is empty."""
    await api.create(NAMESPACES, _map("gone"))
    inside = f"{NAMESPACES}/gone/configmaps"
    await api.create(inside, _map("plain"))
    await api.create(inside, _map("held", finalizers=["test.example.com/a"]))
    reply = await api.call("DELETE", f"{NAMESPACES}/gone")
    assert reply.json["status"]["phase"] == "Terminating"
    await api.until_gone(f"{inside}/plain")
    refused = await api.call("POST", inside, _map("late"))
    assert refused.status == 403
    assert refused.message == (
        'configmaps "late" is forbidden: unable to create new content in namespace gone because '
        "it is being terminated"
    )
    assert refused.json["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    assert (await api.call("GET", f"{NAMESPACES}/gone")).status == 200
    none = {"metadata": {"finalizers": None}}
    await api.call("PATCH", f"{inside}/held", none, type=MERGE_PATCH)
    await api.until_gone(f"{NAMESPACES}/gone")
    await api.create(NAMESPACES, _map("gone"))
    assert (await api.get(inside))["items"] == []


async def test_finalizing_a_namespace(api: Served) -> None:
    """The finalizers in the spec of a namespace are changed through its own subresource alone."""
    created = await api.create(NAMESPACES, {"metadata": {"name": "one"}})
    created["spec"]["finalizers"] = ["kubernetes", "test.example.com/a"]
    plain = await api.call("PUT", f"{NAMESPACES}/one", created)
    assert plain.json["spec"]["finalizers"] == ["kubernetes"]
    created["metadata"]["resourceVersion"] = plain.json["metadata"]["resourceVersion"]
    reply = await api.call("PUT", f"{NAMESPACES}/one/finalize", created)
    assert reply.json["spec"]["finalizers"] == ["kubernetes", "test.example.com/a"]
    await api.call("DELETE", f"{NAMESPACES}/one")
    waiting = await api.until(
        f"{NAMESPACES}/one", lambda now: now.json["spec"]["finalizers"] == ["test.example.com/a"]
    )
    last = waiting.json
    last["spec"]["finalizers"] = []
    assert (await api.call("PUT", f"{NAMESPACES}/one/finalize", last)).status == 200
    assert (await api.call("GET", f"{NAMESPACES}/one")).status == 404
    assert (await api.call("GET", f"{NAMESPACES}/default/finalize")).status == 405


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_immortal_namespaces(api: Served, name: str) -> None:
    """The namespaces that every cluster has cannot be deleted."""
    reply = await api.call("DELETE", f"{NAMESPACES}/{name}")
    assert (reply.status, reply.message) == (
        403,
        f'namespaces "{name}" is forbidden: this namespace may not be deleted',
    )


async def test_the_endpoints_of_a_service_go_with_it(api: Served) -> None:
    """Endpoints of the name of a deleted Service go too, and slices that it owns."""
    created = await api.create(
        SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}}
    )
    endpoints = "/api/v1/namespaces/default/endpoints"
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    await api.create(endpoints, {"metadata": {"name": "s"}})
    owner = {"apiVersion": "v1", "kind": "Service", "name": "s", "uid": created["metadata"]["uid"]}
    await api.create(
        slices, {"metadata": {"name": "s-1", "ownerReferences": [owner]}, "addressType": "IPv4"}
    )
    await api.call("DELETE", f"{SERVICES}/s")
    await api.until_gone(f"{endpoints}/s")
    await api.until_gone(f"{slices}/s-1")
