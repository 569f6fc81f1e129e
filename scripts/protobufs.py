"""Write protobuf.json: the fields of the messages in which clients may send objects.

Numbers and types come from the generated.proto files, names in JSON and what becomes of empty
values from the tags of the Go structs, both of the modules k8s.io/api and k8s.io/apimachinery as Go
keeps them on this machine. No prose is taken from either.

    python scripts/protobufs.py          # needs the modules in Go's cache (see scripts/real)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from keepclose.apiserver.resources import SERVED

TARGET = Path(__file__).parents[1] / "src/keepclose/apiserver/schema/protobuf.json"
GO_VERSION = "v0.36.3"
API = "io.k8s.api."
OTHERS = ("autoscaling.v1.Scale", "meta.v1.DeleteOptions")
# Types that are written in JSON in a way of their own.
SPECIAL = {
    ".k8s.io.apimachinery.pkg.api.resource.Quantity": "Quantity",
    ".k8s.io.apimachinery.pkg.runtime.RawExtension": "RawExtension",
    ".k8s.io.apimachinery.pkg.util.intstr.IntOrString": "IntOrString",
    "meta.v1.FieldsV1": "FieldsV1",
    "meta.v1.MicroTime": "MicroTime",
    "meta.v1.Time": "Time",
}
PLAIN = {"bool", "bytes", "int32", "int64", "string", *SPECIAL.values()}
_message = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_line = re.compile(r"^  (optional|required|repeated) (\S+) \w+ = (\d+);", re.MULTILINE)
_map = re.compile(r"^  map<string, (\S+)> \w+ = (\d+);", re.MULTILINE)
_struct = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
# An embedded struct has no name of its own before its type.
_tagged = re.compile(
    r"^\t(?:\w+[ \t]+)?(\S+)[ \t]+`(?=.*json:\"([^\"]*)\")(?=.*protobuf:\"\w+,(\d+))",
    re.MULTILINE,
)


class Tag(NamedTuple):
    """What a Go struct says about a field."""

    pointer: bool
    name: str
    options: list[str]


def main() -> None:
    """Write the file anew."""
    roots = [one.definition.removeprefix(API) for one in SERVED]
    todo = sorted({*roots, *OTHERS})
    written: dict[str, list[str]] = {}
    packages: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    while todo:
        name = todo.pop()
        if name in written:
            continue
        package, _, local = name.rpartition(".")
        if package not in packages:
            packages[package] = read_package(package)
        messages, structs = packages[package]
        fields = read_fields(package, messages[local])
        tags = read_tags(structs[local])
        written[name] = [
            field_text(number, fields[number], tags[number]) for number in sorted(fields)
        ]
        below = {field.removeprefix("map[]").removeprefix("[]") for field in fields.values()}
        todo.extend(below - PLAIN)
    TARGET.write_text(render(written))
    sys.stdout.write(f"{TARGET}: {len(written)} messages, {TARGET.stat().st_size} bytes\n")


def read_package(package: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the bodies of the messages and of the structs of a package."""
    go = ["go", "env", "GOMODCACHE"]
    cache = Path(subprocess.run(go, check=True, capture_output=True, text=True).stdout.strip())  # noqa: S603
    if package == "meta.v1":
        folder = cache / f"k8s.io/apimachinery@{GO_VERSION}/pkg/apis/meta/v1"
    else:
        folder = cache / f"k8s.io/api@{GO_VERSION}" / package.replace(".", "/")
    messages = _message.findall((folder / "generated.proto").read_text())
    structs = _struct.findall((folder / "types.go").read_text())
    return dict(messages), dict(structs)


def read_fields(package: str, body: str) -> dict[int, str]:
    """Return the types of a message's fields by their numbers."""
    fields = {
        int(number): ("[]" if label == "repeated" else "") + type_text(package, type_name)
        for label, type_name, number in _line.findall(body)
    }
    for type_name, number in _map.findall(body):
        fields[int(number)] = f"map[]{type_text(package, type_name)}"
    return fields


def type_text(package: str, name: str) -> str:
    """Return a type as the file writes it: string, Time, core.v1.PodSpec."""
    if name in PLAIN or name in SPECIAL:
        return SPECIAL.get(name, name)
    short = name.removeprefix(".k8s.io.apimachinery.pkg.apis.").removeprefix(".k8s.io.api.")
    full = short if "." in short else f"{package}.{short}"
    return SPECIAL.get(full, full)


def read_tags(body: str) -> dict[int, Tag]:
    """Return what a struct says about its fields, by the numbers of their tags."""
    tags: dict[int, Tag] = {}
    for go, tag, number in _tagged.findall(body):
        name, *options = tag.split(",")
        tags[int(number)] = Tag(go.startswith("*"), name, options)
    return tags


def field_text(number: int, type_name: str, tag: Tag) -> str:
    """Return a field in one line: `7 terminationGracePeriodSeconds *int64`."""
    words = [str(number), tag.name or "-", ("*" if tag.pointer else "") + type_name]
    if "omitempty" not in tag.options:
        words.append("keep")
    if "omitzero" in tag.options:
        words.append("omitzero")
    return " ".join(words)


def render(written: dict[str, list[str]]) -> str:
    """Return the text of the file: one message a line, so that changes can be read."""
    lines = [
        f"{json.dumps(name)}:{json.dumps(fields, separators=(',', ':'))}"
        for name, fields in sorted(written.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
