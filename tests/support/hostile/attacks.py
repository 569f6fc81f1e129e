"""Requests that are small or allowed, and cost a server much: every known case, to be replayed.

Each is what one identity with few rights can send: a node, which may write about itself and report
events, or a viewer, which may read. Sizes are just below what the server takes in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from keepclose.apiserver.storage.store import Store
from keepclose.model.json_values import JsonObject
from support.hostile.attackers import NODE, Attacker, Reply, Wire
from support.hostile.replaying import Attack, Strike

TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
YAML: Final = "application/yaml"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
_NODE_NAME: Final = NODE.removeprefix("node-")
_EVENTS: Final = "/api/v1/namespaces/default/events"
_NODE: Final = f"/api/v1/nodes/{_NODE_NAME}"
_PODS: Final = "/api/v1/namespaces/default/pods"
_LIST_SIZE: Final = 10_000
# Just below the limit of 3 MiB for a body.
_LARGE: Final = 3_000_000


def seed_pods(store: Store, count: int = _LIST_SIZE) -> None:
    """Store pods as a cluster of some size has them, and the node that attacks."""
    seed_node(store)
    for number in range(count):
        name = f"web-{number:05}"
        store.create(
            "pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": f"00000000-0000-0000-0000-{number:012}",
                    "labels": {"app": "web", "tier": f"t{number % 7}"},
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": {
                    "nodeName": f"node-{number % 100}",
                    "containers": [
                        {
                            "name": "main",
                            "image": "web:1",
                            "env": [
                                {"name": f"SETTING_{place}", "value": "x"} for place in range(8)
                            ],
                            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                        }
                    ],
                },
                "status": {"phase": "Running", "podIP": "10.0.0.1"},
            },
        )


def seed_node(store: Store) -> None:
    """Store the node that attacks."""
    store.create(
        "nodes",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": _NODE_NAME,
                "uid": "10000000-0000-0000-0000-000000000000",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {},
            "status": {"conditions": []},
        },
    )


def seed_services(store: Store) -> None:
    """Store Services, which nodes may list, and the node that attacks."""
    seed_node(store)
    for number in range(_LIST_SIZE):
        store.create(
            "services",
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {
                    "name": f"web-{number:05}",
                    "namespace": "default",
                    "uid": f"00000000-0000-0000-0001-{number:012}",
                    "labels": {"app": "web"},
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": {
                    "type": "ClusterIP",
                    "clusterIP": "None",
                    "clusterIPs": ["None"],
                    "selector": {"app": f"web-{number}"},
                    "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
                },
                "status": {"loadBalancer": {}},
            },
        )


def _event(**fields: Any) -> JsonObject:
    involved = {"kind": "Node", "name": _NODE_NAME, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "hostile-"},
        "involvedObject": involved,
        **fields,
    }


def _filled(text: str, size: int = _LARGE) -> str:
    return (text * (size // len(text) + 1))[:size]


def _sending(method: str, path: str, body: Any, **how: str) -> Strike:
    return _Sender(method, path, body, how)


class _Sender:
    """Sends one request again and again; a class, because it goes to another process."""

    def __init__(self, method: str, path: str, body: Any, how: dict[str, str]) -> None:
        self.request = (method, path, body, how)
        self.encoded = b""

    async def __call__(self, attacker: Attacker) -> None:
        if not self.encoded:
            method, path, body, how = self.request
            given: Any = how
            self.encoded = attacker.request(method, path, body, **given)
        await attacker.exchange(self.encoded)


class Tree(msgspec.Struct):
    """A body that is made where it is sent, because it is large or deep."""

    kind: str

    def encode(self) -> bytes:
        """Return the bytes."""
        return _TREES[self.kind]()


class _Made(_Sender):
    """Sends a body that is made in the process that sends it."""

    async def __call__(self, attacker: Attacker) -> None:
        if not self.encoded:
            method, path, tree, how = self.request
            given: Any = how
            self.encoded = attacker.request(method, path, tree.encode(), **given)
        await attacker.exchange(self.encoded)


def _making(method: str, path: str, kind: str, **how: str) -> Strike:
    return _Made(method, path, Tree(kind), how)


def _copies() -> bytes:
    """Return a JSON patch that doubles an annotation again and again."""
    steps: list[JsonObject] = [
        {"op": "add", "path": "/metadata/annotations", "value": {"a": ["x" * 1000]}}
    ]
    steps += [
        {
            "op": "copy",
            "from": "/metadata/annotations",
            "path": f"/metadata/annotations/c{number}",
        }
        for number in range(40)
    ]
    return msgspec.json.encode(steps)


def _conditions() -> bytes:
    conditions = [
        {"type": f"Type{number}", "status": "True", "reason": "x", "message": "y"}
        for number in range(20_000)
    ]
    return msgspec.json.encode({"status": {"conditions": conditions}})


def _element_order() -> bytes:
    order = [{"type": f"Type{number}"} for number in range(20_000)]
    conditions = [{"type": f"Type{number}", "status": "True"} for number in range(15_000)]
    return msgspec.json.encode(
        {"status": {"$setElementOrder/conditions": order, "conditions": conditions}}
    )


def _unknown_fields() -> bytes:
    fields = {f"unknown{number}": 1 for number in range(90_000)}
    return msgspec.json.encode(_event(**fields))[:_LARGE]


def _unknown_everywhere() -> bytes:
    fields = {f"unknown{number}": {"a": [1, {"b": 2}]} for number in range(19_000)}
    return msgspec.json.encode(_event(**fields))


def _quantities() -> bytes:
    quantities = {f"example.com/r{number}": "1e" + "9" * 17 for number in range(20_000)}
    return msgspec.json.encode({"status": {"capacity": quantities, "allocatable": quantities}})


def _long_quantity() -> bytes:
    return msgspec.json.encode({"status": {"capacity": {"cpu": "9" * 2_000_000}}})


def _labels() -> bytes:
    labels = {f"label{number}": "x" for number in range(60_000)}
    event = _event(message="x")
    event["metadata"]["labels"] = labels
    return msgspec.json.encode(event)


def _managed_fields() -> bytes:
    event = _event(message="x")
    event["metadata"]["managedFields"] = [
        {
            "manager": f"m{number}",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:message": {}},
        }
        for number in range(15_000)
    ]
    return msgspec.json.encode(event)


def _large_event() -> bytes:
    related = {f"k{number}": "v" * 20 for number in range(40_000)}
    event = _event(message="x")
    event["metadata"]["annotations"] = related
    return msgspec.json.encode(event)


def _owners() -> bytes:
    event = _event(message="x")
    event["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": f"n{number}", "uid": f"u{number}"}
        for number in range(19_000)
    ]
    return msgspec.json.encode(event)


def _alias_bomb() -> bytes:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [
        f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)
    ]
    return "\n".join(lines).encode()


def _yaml_map() -> bytes:
    head = "apiVersion: v1\nkind: Event\nmetadata: {generateName: x-, annotations: {\n"
    return (head + ",\n".join(f"k{number}: v" for number in range(200_000)) + "}}\n").encode()


def _applied_conditions() -> bytes:
    """Return an apply of 20,000 conditions of the node's own status."""
    applied = msgspec.json.decode(_conditions())
    applied |= {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE_NAME}}
    return msgspec.json.encode(applied)


def _sexagesimal() -> bytes:
    """Return a number of hours, minutes and seconds, as YAML 1.1 has them, without end."""
    return b"apiVersion: v1\nkind: Event\nmessage: 1" + b":59" * 300_000


def _nested_merges() -> bytes:
    """Return maps that each merge the one within, 190 levels deep."""
    inner = ",".join(f"k{number}: v" for number in range(40_000))
    return ("a: " + "{<<: " * 190 + "{" + inner + "}" + "}" * 190).encode()


def _large_patch() -> bytes:
    """Return a patch of the node's annotations by 200 kB."""
    annotations = {f"k{number}": "v" * 1_000 for number in range(200)}
    return msgspec.json.encode({"metadata": {"annotations": annotations}})


_TREES: Final[Mapping[str, Callable[[], bytes]]] = {
    "nested-yaml": lambda: b"a: " + b"[" * 20_000,
    "nested-flow": lambda: b"{a: " * 50_000,
    "nested-json": lambda: b'{"a":' * 500_000,
    "alias-bomb": _alias_bomb,
    "yaml-map": _yaml_map,
    "sexagesimal": _sexagesimal,
    "nested-merges": _nested_merges,
    "applied-conditions": _applied_conditions,
    "large-patch": _large_patch,
    "copies": _copies,
    "conditions": _conditions,
    "element-order": _element_order,
    "unknown": _unknown_fields,
    "unknown-everywhere": _unknown_everywhere,
    "quantities": _quantities,
    "long-quantity": _long_quantity,
    "labels": _labels,
    "managed": _managed_fields,
    "large-event": _large_event,
    "owners": _owners,
    "grace": lambda: msgspec.json.encode(
        {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 2**62}
    ),
}


async def _endless_headers(attacker: Attacker) -> None:
    wire = await attacker.connect()
    try:
        await wire.send(b"GET /healthz HTTP/1.1\r\n")
        for number in range(2_000):
            await wire.send(b"X-Header-%d: %b\r\n" % (number, b"x" * 1_000))
    finally:
        wire.close()


async def _many_headers(attacker: Attacker) -> None:
    lines = b"".join(b"a%d:\r\n" % number for number in range(200_000))
    await attacker.exchange(b"GET /healthz HTTP/1.1\r\n" + lines + b"\r\n")


async def _idle_connections(attacker: Attacker) -> None:
    wires: list[Wire] = []
    try:
        for _ in range(200):
            wires.append(await attacker.connect())
            await wires[-1].send(b"GET /healthz HTTP/1.1\r\nHost: ")
    finally:
        for wire in wires:
            wire.close()


async def _handshakes(attacker: Attacker) -> None:
    wires = await asyncio.gather(*(attacker.connect() for _ in range(4)))
    for wire in wires:
        wire.close()


async def _slow_readers(attacker: Attacker) -> None:
    wires: list[Wire] = []
    try:
        for _ in range(20):
            wire = await attacker.connect()
            wires.append(wire)
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            request = attacker.request("GET", "/api/v1/services")
            await wire.send(request * 20)
        await asyncio.sleep(0.5)
    finally:
        for wire in wires:
            wire.close()


async def _tiny_chunks(attacker: Attacker) -> None:
    """Send bodies of single bytes, each a chunk, on twenty connections at once."""
    head = attacker.request("POST", _EVENTS, headers={"Transfer-Encoding": "chunked"})
    body = b"1\r\n \r\n" * 200_000

    async def send() -> None:
        wire = await attacker.connect()
        try:
            with contextlib.suppress(OSError):
                await wire.send(head + body)
        finally:
            wire.close()

    await asyncio.gather(*(send() for _ in range(20)))


async def _large_bodies(attacker: Attacker) -> None:
    """Send bodies of the largest size on a hundred connections at once, and never end them."""
    head = attacker.request("POST", _EVENTS, headers={"Content-Length": str(_LARGE)})

    async def send() -> None:
        wire = await attacker.connect()
        try:
            with contextlib.suppress(OSError):
                await wire.send(head + b" " * (_LARGE - 1))
        finally:
            wire.close()

    await asyncio.gather(*(send() for _ in range(100)))


async def _heads_behind_watches(attacker: Attacker) -> None:
    """Let large heads wait behind watches."""
    watch = attacker.request("GET", f"{_EVENTS}?watch=1")
    large = attacker.request("GET", "/api/v1/services", headers={"X-Large": "x" * 60_000})
    wires: list[Wire] = []
    try:
        for _ in range(50):
            wires.append(await attacker.connect())
            with contextlib.suppress(OSError):
                await wires[-1].send(watch + large * 20)
    finally:
        for wire in wires:
            wire.close()


async def _huge_selectors(attacker: Attacker) -> None:
    """Hold a hundred watches with selectors of 1,900 terms, and write what they look at."""
    terms = ",".join(f"!{number:04}" for number in range(1_900))
    wires: list[Wire] = []
    try:
        for number in range(100):
            wire = await attacker.connect()
            wires.append(wire)
            path = f"{_EVENTS}?watch=1&resourceVersion=0&labelSelector=!a{number},{terms}"
            await wire.send(attacker.request("GET", path, who="viewer"))
            await wire.reader.readuntil(b"\r\n\r\n")
        for _ in range(50):
            await attacker.exchange(attacker.request("POST", _EVENTS, _event(message="x")))
    finally:
        for wire in wires:
            wire.close()


async def _too_huge_selectors(attacker: Attacker) -> None:
    """Ask with a selector of more terms than are allowed."""
    terms = ",".join(f"!{number:04}" for number in range(10_000))
    path = f"/api/v1/services?watch=1&labelSelector={terms}"
    await attacker.exchange(attacker.request("GET", path))


async def _watch_storm(attacker: Attacker) -> None:
    """Open watches with initial events of many objects and leave again."""
    path = (
        "/api/v1/services?watch=1&sendInitialEvents=true&allowWatchBookmarks=true"
        "&resourceVersionMatch=NotOlderThan"
    )
    wires = await asyncio.gather(*(attacker.connect() for _ in range(10)))
    try:
        for wire in wires:
            await wire.send(attacker.request("GET", path))
        for wire in wires:
            await wire.reader.readuntil(b"\r\n\r\n")
    finally:
        for wire in wires:
            wire.close()


async def _watch_fan_out(attacker: Attacker) -> None:
    """Hold many watches of events and report events."""
    wires: list[Wire] = []
    try:
        for _ in range(500):
            wire = await attacker.connect()
            wires.append(wire)
            await wire.send(attacker.request("GET", f"{_EVENTS}?watch=1", who="viewer"))
            await wire.reader.readuntil(b"\r\n\r\n")
        for _ in range(200):
            await attacker.exchange(attacker.request("POST", _EVENTS, _event(message="x")))
    finally:
        for wire in wires:
            wire.close()


async def _delete_collection(attacker: Attacker) -> None:
    await attacker.exchange(attacker.request("DELETE", _PODS, who="admin"))


async def _discovery(attacker: Attacker) -> None:
    whole = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    requests = [attacker.request("GET", path, accept=whole) for path in ("/api", "/apis")]
    requests += [attacker.request("GET", path) for path in ("/openapi/v2", "/openapi/v3")]
    requests.append(
        attacker.request(
            "GET",
            "/openapi/v2",
            accept="application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
        )
    )
    requests.append(attacker.request("GET", "/openapi/v3/apis/apps/v1"))
    await attacker.exchange(*requests)


async def _small_storm(attacker: Attacker) -> None:
    """Send small requests over many connections at once."""
    wires = await asyncio.gather(*(attacker.connect() for _ in range(100)))
    request = attacker.request("POST", _EVENTS, _event(message="x"))
    try:
        for _ in range(20):
            for wire in wires:
                wire.writer.write(request)
            replies: list[Reply] = await asyncio.gather(*(wire.reply() for wire in wires))
            for reply in replies:
                attacker.statuses[reply.status] = attacker.statuses.get(reply.status, 0) + 1
    finally:
        for wire in wires:
            wire.close()


async def _delete_large_grace(attacker: Attacker) -> None:
    """Delete pods whose grace period, their own or the client's, is without end."""
    body = Tree("grace").encode()
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
    for name, fields, sent in (
        ("grace", {}, body),
        ("own-grace", {"terminationGracePeriodSeconds": 2**62}, None),
    ):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {**spec, **fields},
        }
        await attacker.exchange(
            attacker.request("POST", _PODS, pod, who="lab"),
            attacker.request("DELETE", f"{_PODS}/{name}", sent, who="lab"),
            attacker.request("DELETE", f"{_PODS}/{name}?gracePeriodSeconds=0", who="lab"),
        )


async def _scale(attacker: Attacker) -> None:
    """Ask for as many replicas as a number holds, and for none again."""
    path = "/apis/apps/v1/namespaces/default/deployments"
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    web = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    await attacker.exchange(attacker.request("POST", path, web, who="admin"))
    for replicas in (2**31 - 1, 0):
        patch = msgspec.json.encode({"spec": {"replicas": replicas}})
        scale = attacker.request("PATCH", f"{path}/web/scale", patch, media_type=MERGE, who="admin")
        await attacker.exchange(scale)


async def _odd_values(attacker: Attacker) -> None:
    """Ask with values that no number holds, and patch with an index beyond any list."""
    digits = "9" * 5_000
    queries = (
        f"resourceVersion={digits}",
        f"limit={digits}",
        f"watch=1&timeoutSeconds=1{'0' * 400}",
        "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTk5OTk5OTk5LCJzdGFydCI6ImEvYlx1MDAwMCJ9",
    )
    requests = [attacker.request("GET", f"/api/v1/services?{query}") for query in queries[:2]]
    requests.append(attacker.request("GET", f"/api/v1/services?{queries[3]}"))
    step = [{"op": "add", "path": f"/metadata/finalizers/{digits}", "value": "a"}]
    requests.append(attacker.request("PATCH", _NODE, step, media_type=JSON_PATCH))
    await attacker.exchange(*requests)
    wire = await attacker.connect()
    try:
        await wire.send(attacker.request("GET", f"/api/v1/services?{queries[2]}"))
        await wire.reader.readuntil(b"\r\n\r\n")
    finally:
        wire.close()


async def _refused_rights(attacker: Attacker) -> None:
    """Apply what one may not create, and show credentials behind the body."""
    path = "/apis/apps/v1/namespaces/default/deployments/web?fieldManager=x"
    body = (
        b"{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector:"
        b" {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers:"
        b" [{name: c, image: i}]}}}}"
    )
    await attacker.exchange(
        attacker.request("PATCH", path, body, media_type=APPLY, who="lab"),
    )
    token = attacker.target.token("admin").encode()
    wire = await attacker.connect()
    try:
        await wire.send(
            b"POST /api/v1/namespaces HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
            b"Authorization: Bearer " + token + b"\r\n\r\n"
        )
        reply = await wire.reply()
        attacker.statuses[reply.status] = attacker.statuses.get(reply.status, 0) + 1
    finally:
        wire.close()


_CASES: Final = (
    Attack("idle", _sending("GET", "/healthz", None)),
    Attack("nested-yaml", _making("POST", _EVENTS, "nested-yaml", media_type=YAML)),
    Attack("nested-flow", _making("POST", _EVENTS, "nested-flow", media_type=YAML)),
    Attack("nested-json", _making("POST", _EVENTS, "nested-json")),
    Attack("alias-bomb", _making("POST", _EVENTS, "alias-bomb", media_type=YAML)),
    Attack("yaml-map", _making("POST", _EVENTS, "yaml-map", media_type=YAML)),
    Attack("apply-yaml", _making("PATCH", _NODE + "?fieldManager=x", "yaml-map", media_type=APPLY)),
    Attack("sexagesimal", _making("POST", _EVENTS, "sexagesimal", media_type=YAML)),
    Attack("nested-merges", _making("POST", _EVENTS, "nested-merges", media_type=YAML)),
    Attack("copies", _making("PATCH", _NODE, "copies", media_type=JSON_PATCH), seed_node),
    Attack(
        "conditions",
        _making("PATCH", f"{_NODE}/status", "conditions", media_type=STRATEGIC),
        seed_node,
    ),
    Attack(
        "applied-conditions",
        _making(
            "PATCH",
            f"{_NODE}/status?fieldManager=x&force=true",
            "applied-conditions",
            media_type=APPLY,
        ),
        seed_node,
    ),
    Attack(
        "element-order",
        _making("PATCH", f"{_NODE}/status", "element-order", media_type=STRATEGIC),
        seed_node,
    ),
    Attack("unknown-fields", _making("POST", _EVENTS, "unknown-everywhere")),
    Attack(
        "quantities", _making("PATCH", f"{_NODE}/status", "quantities", media_type=MERGE), seed_node
    ),
    Attack(
        "long-quantity",
        _making("PATCH", f"{_NODE}/status", "long-quantity", media_type=MERGE),
        seed_node,
    ),
    Attack("labels", _making("POST", _EVENTS, "labels")),
    Attack("managed-fields", _making("POST", _EVENTS, "managed")),
    Attack("large-creates", _making("POST", _EVENTS, "large-event")),
    Attack("large-creates-parallel", _making("POST", _EVENTS, "large-event"), parallel=8),
    Attack(
        "history", _making("PATCH", _NODE, "large-patch", media_type=MERGE), seed_node, parallel=4
    ),
    Attack("owners", _making("POST", _EVENTS, "owners")),
    Attack("grace", _delete_large_grace),
    Attack("scale", _scale),
    Attack("odd-values", _odd_values, seed_node),
    Attack("refused-rights", _refused_rights),
    Attack("endless-headers", _endless_headers),
    Attack("many-headers", _many_headers),
    Attack("idle-connections", _idle_connections),
    Attack("handshakes", _handshakes),
    Attack("slow-readers", _slow_readers, seed_services),
    Attack("json-list", _sending("GET", "/api/v1/services", None), seed_services),
    Attack("yaml-list", _sending("GET", _PODS, None, accept=YAML, who="viewer"), seed_pods),
    Attack("table-list", _sending("GET", "/api/v1/services", None, accept=TABLE), seed_services),
    Attack(
        "selected-list",
        _sending("GET", f"{_PODS}?fieldSelector=spec.nodeName%3Dnone", None, who="viewer"),
        seed_pods,
    ),
    Attack("delete-collection", _delete_collection, seed_pods),
    Attack("huge-selectors", _huge_selectors),
    Attack("too-huge-selectors", _too_huge_selectors),
    Attack("watch-storm", _watch_storm, seed_services),
    Attack("watch-fan-out", _watch_fan_out),
    Attack("discovery", _discovery),
    Attack("metrics", _sending("GET", "/metrics", None, who="viewer")),
    Attack("small-storm", _small_storm),
    Attack("tiny-chunks", _tiny_chunks),
    Attack("large-bodies", _large_bodies),
    Attack("heads-behind-watches", _heads_behind_watches),
)
ATTACKS: Final = {attack.name: attack for attack in _CASES}
"""Every case by its name."""
