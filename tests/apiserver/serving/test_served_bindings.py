"""Pods get their nodes by Bindings, over the wire."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from keepclose.testing.api_server import Reply, Served

JsonObject = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
BINDINGS = "/api/v1/namespaces/default/bindings"
TOPOLOGY = "topology.kubernetes.io"
SUCCESS = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Success",
    "code": 201,
}


def pod(name: str = "p", *, labels: dict[str, str] | None = None, **spec: Any) -> JsonObject:
    """Return a pod that waits for a node."""
    containers = [{"name": "main", "image": "web:1"}]
    metadata = {"name": name, "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def binding(name: str = "p", *, target: JsonObject | None = None, **metadata: Any) -> JsonObject:
    """Return a Binding, to node n1 unless told otherwise."""
    aim = {"apiVersion": "v1", "kind": "Node", "name": "n1"} if target is None else target
    meta = {"name": name, **metadata}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": aim}


async def bind(api: Served, body: object, *, name: str = "p", query: str = "") -> Reply:
    """Send a Binding to a pod."""
    return await api.call("POST", f"{PODS}/{name}/binding{query}", body)


async def test_a_binding_gives_the_node(api: Served) -> None:
    """The node and the condition are set, watchers see it, and nothing else changes."""
    made = await api.create(PODS, pod())
    since = f"resourceVersion={made['metadata']['resourceVersion']}"
    async with api.watch(PODS, since) as events:
        reply = await bind(api, binding())
        assert (reply.status, reply.json) == (201, SUCCESS)
        event = await events.next()
    bound = await api.get(f"{PODS}/p")
    assert event == {"type": "MODIFIED", "object": bound}
    assert bound["spec"] == {**made["spec"], "nodeName": "n1"}
    (condition,) = bound["status"].pop("conditions")
    assert condition.pop("lastTransitionTime") >= made["metadata"]["creationTimestamp"]
    assert condition == {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
    assert bound["status"] == made["status"]
    version = bound["metadata"].pop("resourceVersion")
    assert int(version) > int(made["metadata"].pop("resourceVersion"))
    # No generation is counted and nobody owns the node.
    assert bound["metadata"] == made["metadata"]


async def test_a_condition_that_was_there_is_replaced(api: Served) -> None:
    """Why the pod waited is forgotten, and so is the node it was promised; the rest stays."""
    await api.create(PODS, pod())
    since = "2020-01-02T03:04:05Z"
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    other = {"type": "Other", "status": "True"}
    conditions = [{**one, "lastTransitionTime": since} for one in (waiting, other)]
    patch = {"status": {"nominatedNodeName": "n2", "conditions": conditions}}
    merge = "application/merge-patch+json"
    assert (await api.call("PATCH", f"{PODS}/p/status", patch, type=merge)).status == 200
    await bind(api, binding())
    status = (await api.get(f"{PODS}/p"))["status"]
    assert "nominatedNodeName" not in status
    first, second = status["conditions"]
    assert first.pop("lastTransitionTime") > since
    assert first == {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
    assert second == {**other, "lastProbeTime": None, "lastTransitionTime": since}


async def test_a_condition_that_holds_already_keeps_its_time(api: Served) -> None:
    """Only a change of the state is a transition."""
    await api.create(PODS, pod())
    since = "2020-01-02T03:04:05Z"
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    patch = {"status": {"conditions": [{**condition, "reason": "Early"}]}}
    await api.call("PATCH", f"{PODS}/p/status", patch, type="application/merge-patch+json")
    await bind(api, binding())
    found = (await api.get(f"{PODS}/p"))["status"]["conditions"]
    assert found == [{**condition, "lastProbeTime": None}]


async def test_labels_and_annotations_go_to_the_pod(api: Served) -> None:
    """Those of the Binding win over the pod's, and the place of the node wins over both."""
    places = {f"{TOPOLOGY}/zone": "z", f"{TOPOLOGY}/region": "r"}
    node = {"metadata": {"name": "n1", "labels": {**places, "kubernetes.io/hostname": "n1"}}}
    await api.create("/api/v1/nodes", node)
    await api.create(PODS, pod(labels={"app": "web", "x": "1"}))
    labels = {"x": "2", f"{TOPOLOGY}/zone": "other"}
    await bind(api, binding(labels=labels, annotations={"note": "here"}))
    metadata = (await api.get(f"{PODS}/p"))["metadata"]
    assert metadata["labels"] == {"app": "web", "x": "2", **places}
    assert metadata["annotations"] == {"note": "here"}


async def test_the_old_way(api: Served) -> None:
    """A Binding of the namespace names the pod; its uid and the node's place do not count."""
    node = {"metadata": {"name": "n1", "labels": {f"{TOPOLOGY}/zone": "z"}}}
    await api.create("/api/v1/nodes", node)
    await api.create(PODS, pod())
    reply = await api.call("POST", BINDINGS, binding(uid="odd", labels={"x": "2"}))
    assert (reply.status, reply.json) == (201, SUCCESS)
    found = await api.get(f"{PODS}/p")
    assert (found["spec"]["nodeName"], found["metadata"]["labels"]) == ("n1", {"x": "2"})


async def test_the_right_pod(api: Served) -> None:
    """A Binding may say which pod of the name it means, and in which version."""
    metadata = (await api.create(PODS, pod()))["metadata"]
    wanted = {key: metadata[key] for key in ("uid", "resourceVersion")}
    assert (await bind(api, binding(**wanted))).status == 201


async def test_a_target_without_a_kind_is_a_node(api: Served) -> None:
    """Only then its place is not looked up."""
    node = {"metadata": {"name": "n1", "labels": {f"{TOPOLOGY}/zone": "z"}}}
    await api.create("/api/v1/nodes", node)
    await api.create(PODS, pod())
    assert (await bind(api, binding(target={"name": "n1"}))).status == 201
    found = await api.get(f"{PODS}/p")
    assert found["spec"]["nodeName"] == "n1"
    assert "labels" not in found["metadata"]


async def test_a_dry_run_changes_nothing(api: Served) -> None:
    """It is answered like the real thing."""
    made = await api.create(PODS, pod())
    reply = await bind(api, binding(), query="?dryRun=All")
    assert (reply.status, reply.json) == (201, SUCCESS)
    assert await api.get(f"{PODS}/p") == made


async def test_unknown_fields_are_warned_of(api: Served) -> None:
    """The pod is bound nevertheless, and the answer comes in the form that was asked for."""
    await api.create(PODS, pod())
    body = {**binding(), "color": "red"}
    reply = await api.call("POST", f"{PODS}/p/binding", body, accept="application/yaml")
    assert (reply.status, yaml.safe_load(reply.body)) == (201, SUCCESS)
    assert reply.warnings == ['299 - "unknown field \\"color\\""']


CONFLICT = 'Operation cannot be fulfilled on pods/binding "p": pod p '


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"nodeName": "n2"}, 'is already assigned to node "n2"', id="a node"),
        pytest.param(
            {"schedulingGates": [{"name": "a"}]}, "has non-empty .spec.schedulingGates", id="a gate"
        ),
    ],
)
async def test_a_pod_that_cannot_be_bound(api: Served, spec: JsonObject, want: str) -> None:
    """One with a node or a gate is refused, both ways."""
    made = await api.create(PODS, pod(**spec))
    for path in (f"{PODS}/p/binding", BINDINGS):
        reply = await api.call("POST", path, binding())
        assert (reply.status, reply.json["reason"]) == (409, "Conflict")
        assert reply.message == CONFLICT + want
        assert reply.json["details"] == {"name": "p", "kind": "pods/binding"}
    assert await api.get(f"{PODS}/p") == made


async def test_a_pod_that_is_leaving(api: Served) -> None:
    """It gets no node any more."""
    made = pod()
    made["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(PODS, made)
    await api.call("DELETE", f"{PODS}/p")
    reply = await bind(api, binding())
    assert (reply.status, reply.message) == (
        409,
        CONFLICT + "is being deleted, cannot be assigned to a host",
    )


AIMS = 'target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>"'
NO_NAME = "target.name: Required value"
MISMATCH = "name in URL does not match name in Binding object"
OTHER_NAMESPACE = (
    "the namespace of the provided object does not match the namespace sent on the request"
)


@pytest.mark.parametrize(
    ("body", "want_code", "want_message"),
    [
        pytest.param(binding(target={"kind": "Pod", "name": "n"}), 500, AIMS, id="another kind"),
        pytest.param(binding(target={"kind": "Node"}), 500, NO_NAME, id="no node"),
        pytest.param(binding(target={"kind": "Pod"}), 500, f"[{AIMS}, {NO_NAME}]", id="both"),
        pytest.param({"metadata": {"name": "p"}}, 500, NO_NAME, id="no target"),
        pytest.param(binding("q"), 400, MISMATCH, id="another name"),
        pytest.param({"target": {"name": "n1"}}, 400, MISMATCH, id="no name"),
        pytest.param(binding(namespace="other"), 400, OTHER_NAMESPACE, id="another namespace"),
        pytest.param(
            pod() | {"kind": "Pod"},
            400,
            'Pod in version "v1" cannot be handled as a Binding: converting (v1.Pod) to '
            "(core.Binding): unknown conversion",
            id="no Binding",
        ),
    ],
)
async def test_bindings_that_make_no_sense(
    api: Served, body: JsonObject, want_code: int, want_message: str
) -> None:
    """What is wrong with the target is told as kube-apiserver does, which is as an own fault."""
    made = await api.create(PODS, pod())
    reply = await bind(api, body)
    assert (reply.status, reply.message) == (want_code, want_message)
    assert await api.get(f"{PODS}/p") == made


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("", "Name parameter required.", id="none"),
        pytest.param("..", "Name parameter invalid: \"..\": may not be '..'", id="the parent"),
        pytest.param(
            "a/b%",
            "Name parameter invalid: \"a/b%\": may not contain '/';may not contain '%'",
            id="a path",
        ),
    ],
)
async def test_names_that_no_pod_has(api: Served, name: str, want: str) -> None:
    """Where the name does not stand in the path it is looked at too."""
    reply = await api.call("POST", BINDINGS, binding(name))
    assert (reply.status, reply.message) == (400, want)


@pytest.mark.parametrize("key", ["uid", "resourceVersion"])
async def test_another_pod_of_the_name(api: Served, key: str) -> None:
    """A Binding that was meant for another pod, or for another state of it, is a conflict."""
    made = await api.create(PODS, pod())
    body = binding()
    body["metadata"][key] = "1"
    reply = await bind(api, body)
    title = "UID" if key == "uid" else "ResourceVersion"
    assert (reply.status, reply.json["details"]) == (409, {"name": "p", "kind": "pods"})
    assert reply.message == (
        f'Operation cannot be fulfilled on pods "p": Precondition failed: {title} in precondition: '
        f"1, {title} in object meta: {made['metadata'][key]}"
    )
    assert await api.get(f"{PODS}/p") == made


async def test_what_is_not_there(api: Served) -> None:
    """A missing pod is told by its name, a missing namespace by its own."""
    reply = await bind(api, binding())
    assert (reply.status, reply.message) == (404, 'pods "p" not found')
    path = "/api/v1/namespaces/none/pods/p/binding"
    reply = await api.call("POST", path, binding())
    assert (reply.status, reply.message) == (404, 'namespaces "none" not found')


async def test_a_namespace_that_is_leaving(api: Served) -> None:
    """Nothing is bound there any more."""
    await api.create("/api/v1/namespaces", {"metadata": {"name": "shop"}})
    held = pod()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create("/api/v1/namespaces/shop/pods", held)
    await api.call("DELETE", "/api/v1/namespaces/shop")
    reply = await api.call("POST", "/api/v1/namespaces/shop/pods/p/binding", binding())
    assert (reply.status, reply.message) == (
        403,
        (
            'pods "p" is forbidden: unable to create new content in namespace shop because it is '
            "being terminated"
        ),
    )


@pytest.mark.parametrize(
    ("method", "path", "want"),
    [
        ("GET", f"{PODS}/p/binding", 405),
        ("PUT", f"{PODS}/p/binding", 405),
        ("GET", BINDINGS, 405),
        ("GET", f"{BINDINGS}/p", 404),
        ("POST", "/api/v1/bindings", 404),
    ],
)
async def test_there_is_nothing_to_read(api: Served, method: str, path: str, want: int) -> None:
    """Bindings are created and are gone."""
    await api.create(PODS, pod())
    body = None if method == "GET" else binding()
    assert (await api.call(method, path, body)).status == want


@pytest.mark.parametrize("role", ["controller", "viewer", "lab"])
async def test_who_may_bind(api: Served, role: str) -> None:
    """Of the roles it is the lab's."""
    await api.create(PODS, pod())
    token = (api.server.settings.data_dir / "tokens" / role).read_text().strip()
    reply = await api.call("POST", f"{PODS}/p/binding", binding(), token=token)
    if role == "lab":
        assert reply.status == 201
        return
    assert (reply.status, reply.message) == (
        403,
        (
            f'pods "p" is forbidden: User "keepclose:{role}" cannot create resource "pods/binding" '
            'in API group "" in the namespace "default"'
        ),
    )
