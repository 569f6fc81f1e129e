"""YAML bodies: what is accepted as YAML can be sent back as YAML and is the same object."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import yaml
from fuzzbounds import require
from fuzzobjects import OBJECTS
from fuzzserver import BY_NAME, Bed, collection_path

YAML = "application/yaml"
_KINDS = ("configmaps", "services", "events")


def seeds() -> Iterator[bytes]:
    """Yield objects as YAML, and constructs that YAML has and JSON has not."""
    for name in _KINDS:
        yield name.encode() + b"\n" + yaml.safe_dump(OBJECTS[name]).encode()
    head = b"configmaps\nmetadata: {name: a}\ndata:\n"
    yield head + b"  a: &x b\n  c: *x\n"
    yield head + b"  <<: {a: b}\n  c: !!str 1\n"
    yield head + b"  a: 2026-01-02\n  b: |\n   x\n  c: >-\n   y\n"
    yield head + b"  ? a\n  : 'b'\n---\nx: 1\n"
    yield head + b'  a: "\\x00\\u2028"\n  b: 0o17\n  c: 1_000\n  d: .inf\n  e: 12:30\n'
    yield head + b"  a: ~\n  b: yes\n  c: !!binary AA==\n  d: !x 1\n"
    yield b"configmaps\n&a [*a, *a]\n"
    # Texts that readers of YAML take for something else where they are not quoted.
    texts = (
        "y N yes OFF ~ null 1e3 1E3 0o17 017 0x1F 0b11 1_000 12:30 +1 -.5 1. .inf -.Inf .NaN << = "
        "2026-01-02 2026-01-02T03:04:05Z - ? : # & * ! | > % @ ` ' [ ] { } , --- ... 0.1e+9 08 -0"
    )
    data = {f"k{number}": text for number, text in enumerate(texts.split(" "))}
    data |= {
        "empty": "",
        "blank": " ",
        "lines": "a\n\n b\n",
        "tab": "\t",
        "end": "a ",
        "key": "a: b",
    }
    yield b"configmaps\n" + msgspec.json.encode({"metadata": {"name": "a"}, "data": data})


def check(data: bytes) -> None:
    """Create the object; write what is read of it once more."""
    name, _, body = data.partition(b"\n")
    resource = BY_NAME.get(name.decode(errors="replace"))
    if resource is None:
        return
    bed = Bed()
    created = bed.create(resource, body, media_type=YAML)
    bed.create(resource, body, media_type=YAML, query="?fieldValidation=Strict&dryRun=All")
    if created.status != 201:
        return
    made = msgspec.json.decode(created.body)
    path = f"{collection_path(resource)}/{made['metadata']['name']}"
    shown = bed.ask("GET", path, accept=YAML)
    again = bed.ask("PUT", path, shown.body, media_type=YAML)
    require(again.status == 200, f"its own YAML is refused: {again.body[:300]!r}")
    require(msgspec.json.decode(again.body) == made, "YAML and back is another object")
