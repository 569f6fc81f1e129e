"""Server-side apply: a configuration applied twice changes nothing the second time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from fuzzbounds import require
from fuzzobjects import OBJECTS, object_seeds
from fuzzserver import BY_NAME, TABLE, Bed, collection_path

MUTATES_JSON = True
APPLY = "application/apply-patch+yaml"


def seeds() -> Iterator[bytes]:
    """Yield whole configurations, and small ones."""
    yield from object_seeds()
    small = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    yield b"services\n" + msgspec.json.encode({**small, "spec": {"ports": [{"port": 80}]}})
    entry = {
        "manager": "fuzz",
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}}}}},
    }
    small["metadata"] = {"name": "web", "managedFields": [entry]}
    yield b"services\n" + msgspec.json.encode(small)


def check(data: bytes) -> None:
    """Apply over an object of another manager, then again, then less."""
    name, _, body = data.partition(b"\n")
    resource = BY_NAME.get(name.decode(errors="replace"))
    if resource is None:
        return
    bed = Bed()
    stored = OBJECTS[resource.qualified]
    bed.create(resource, msgspec.json.encode(stored))
    path = f"{collection_path(resource)}/{stored['metadata']['name']}"
    bed.ask("PATCH", f"{path}?fieldManager=one", body, media_type=APPLY)
    first = bed.ask("PATCH", f"{path}?fieldManager=one&force=true", body, media_type=APPLY)
    if first.status < 300:
        again = bed.ask("PATCH", f"{path}?fieldManager=one", body, media_type=APPLY)
        require(again.status == 200, f"applied again it is refused: {again.body[:300]!r}")
        answers = [msgspec.json.decode(answer.body) for answer in (first, again)]
        # A real server drops this field after it has counted the generation, and so do we.
        if b"deprecatedTopology" not in body:
            require(answers[0] == answers[1], "applying again changes something")
        bed.ask("GET", path, accept=TABLE)
        bed.ask("PATCH", f"{path}?fieldManager=two", body, media_type=APPLY)
    fresh = Bed()
    fresh.ask("PATCH", f"{path}?fieldManager=one", body, media_type=APPLY)
    bare = {part: stored[part] for part in ("apiVersion", "kind")}
    bare["metadata"] = {"name": stored["metadata"]["name"]}
    bed.ask("PATCH", f"{path}?fieldManager=one", msgspec.json.encode(bare), media_type=APPLY)
