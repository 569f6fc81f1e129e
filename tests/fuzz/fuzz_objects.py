"""Objects of every kind as JSON: decoded, checked, defaulted, validated, stored, shown and deleted.

What is accepted can be read back, is unchanged by writing it again, and is readable to our client.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from fuzzbounds import require
from fuzzobjects import OBJECTS, object_seeds
from fuzzserver import BY_NAME, TABLE, Bed, collection_path

from keepclose.model.decoding import KINDS, Rejected, convert

MUTATES_JSON = True


def seeds() -> Iterator[bytes]:
    """Yield one object of every kind, and some that are large or deep."""
    yield from object_seeds()
    for nested in (b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900, b"9" * 5000):
        yield b'services\n{"metadata":{"name":"a"},"spec":{"ports":' + nested + b"}}"
        yield b'services\n{"metadata":{"name":"a"},"unknown":' + nested + b"}"
    many = b",".join(b'"k%d":"v"' % number for number in range(1000))
    yield b'configmaps\n{"metadata":{"name":"a"},"data":{' + many + b"}}"
    yield b'configmaps\n{"metadata":{"name":"a"},' + b'"a":1,' * 1000 + b'"b":1}'


def check(data: bytes) -> None:
    """Create the object, strictly and leniently, and follow it through its life."""
    name, _, body = data.partition(b"\n")
    resource = BY_NAME.get(name.decode(errors="replace"))
    if resource is None:
        return
    strict = Bed().create(resource, body, query="?fieldValidation=Strict")
    bed = Bed()
    created = bed.create(resource, body)
    require(strict.status >= 300 or created.status == 201, "strict takes what lenient refuses")
    if created.status != 201:
        return
    made = msgspec.json.decode(created.body)
    path = f"{collection_path(resource)}/{made['metadata']['name']}"
    read = bed.ask("GET", path)
    require(msgspec.json.decode(read.body) == made, "what is read is not what was answered")
    bed.ask("GET", path, accept=TABLE)
    bed.ask("GET", collection_path(resource), accept=TABLE)
    bed.ask("GET", path, accept="application/yaml")
    _check_rewrite(bed, path, made)
    if (made["apiVersion"], made["kind"]) in KINDS:
        seen = convert(made)
        require(not isinstance(seen, Rejected), f"our client cannot read it: {seen}")
    if "status" in resource.subresources:
        bed.ask("PUT", f"{path}/status", body)
    bed.ask("PUT", path, body)
    bed.ask("GET", path, accept=TABLE)
    bed.ask("DELETE", path)


def _check_rewrite(bed: Bed, path: str, made: dict[str, object]) -> None:
    """Write what is stored, which must be accepted and change nothing."""
    again = bed.ask("PUT", path, msgspec.json.encode(made))
    require(again.status == 200, f"its own object is refused: {again.body[:300]!r}")
    rewritten = msgspec.json.decode(again.body)
    require(rewritten == made, "writing it again changes it")


assert set(OBJECTS) == set(BY_NAME), "every kind has a seed"
