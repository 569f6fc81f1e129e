"""JSON, merge and strategic merge patches of stored objects, by way of the API.

The first line names the resource, the type of the patch and, optionally, a subresource.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from fuzzobjects import OBJECTS
from fuzzserver import BY_NAME, TABLE, Bed, collection_path

MUTATES_JSON = True
TYPES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


def seeds() -> Iterator[bytes]:
    """Yield patches of each type."""
    patches: list[tuple[str, object]] = [
        ("services json", [{"op": "add", "path": "/spec/ports/-", "value": {"port": 81}}]),
        ("services json", [{"op": "remove", "path": "/metadata/labels/app"}]),
        ("services json", [{"op": "copy", "from": "/spec/ports/0", "path": "/spec/ports/1"}]),
        ("services json", [{"op": "move", "from": "/spec/selector", "path": "/metadata/labels"}]),
        ("pods json", [{"op": "test", "path": "/spec/nodeName", "value": "n1"}]),
        ("pods json status", [{"op": "replace", "path": "/status/phase", "value": "Failed"}]),
        ("services merge", {"spec": {"ports": [{"port": 1}], "selector": None}}),
        ("services merge status", {"status": {"loadBalancer": None}}),
        ("configmaps merge", {"data": {"a": "b", "form": None}}),
        ("deployments.apps merge scale", {"spec": {"replicas": 5}}),
        ("services strategic", {"spec": {"ports": [{"port": 80, "name": "web"}]}}),
        ("services strategic", {"spec": {"ports": [{"port": 80, "$patch": "delete"}]}}),
        ("services strategic", {"spec": {"$retainKeys": ["type"], "type": "ClusterIP"}}),
        ("services strategic", {"spec": {"$setElementOrder/ports": [{"port": 53}, {"port": 80}]}}),
        ("pods strategic", {"spec": {"containers": [{"name": "c", "image": "web:2"}]}}),
        ("pods strategic", {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
        ("nodes strategic status", {"status": {"conditions": [{"type": "Ready"}]}}),
        ("nodes strategic", {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}),
        ("endpointslices.discovery.k8s.io strategic", {"endpoints": None, "$patch": "replace"}),
        ("deployments.apps strategic", {"spec": {"template": {"spec": {"volumes": []}}}}),
    ]
    index = "9" * 5000
    patches += [
        ("services json", [{"op": "remove", "path": f"/spec/ports/{index}"}]),
        ("services json", [{"op": "test", "path": f"/spec/ports/-{index}", "value": 1}]),
        ("services json", [{"op": "add", "path": "/a" * 3000, "value": 1}]),
        ("services merge", _nest(900)),
        ("services strategic", _nest(900)),
    ]
    for head, patch in patches:
        yield head.encode() + b"\n" + msgspec.json.encode(patch)


def _nest(depth: int) -> object:
    nested: object = 1
    for _ in range(depth):
        nested = {"a": nested}
    return nested


def check(data: bytes) -> None:
    """Patch an object and look at it."""
    head, _, body = data.partition(b"\n")
    name, kind, subresource, *_ = [*head.decode(errors="replace").split(" "), "", "", ""]
    if name not in OBJECTS or kind not in TYPES:
        return
    resource = BY_NAME[name]
    if subresource and subresource not in resource.subresources:
        return
    bed = Bed()
    path = f"{collection_path(resource)}/{OBJECTS[name]['metadata']['name']}"
    bed.create(resource, msgspec.json.encode(OBJECTS[name]))
    target = f"{path}/{subresource}" if subresource else path
    bed.ask("PATCH", f"{target}?fieldValidation=Strict&dryRun=All", body, media_type=TYPES[kind])
    bed.ask("PATCH", target, body, media_type=TYPES[kind])
    bed.ask("GET", path, accept=TABLE)
    bed.ask("PATCH", target, body, media_type=TYPES[kind])
