"""Write definitions.json: the structure of the API types that the server serves.

Names, types, list and map kinds and merge keys come from the published definitions that the PyPI
package kubernetes-validate carries; what only the Go sources tell (names of types in messages,
embedded structs, which fields keep empty values) comes from the modules k8s.io/api and
k8s.io/apimachinery of the same version. No prose is taken from either.

    python scripts/schemas.py            # needs uv and the network; downloads to a temporary folder
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keepclose.apiserver.resources import RESOURCES
from keepclose.apiserver.schema.types import API, META
from keepclose.apiserver.schema.types import SPECIAL as SPECIAL_NAMES

TARGET = Path(__file__).parents[1] / "src/keepclose/apiserver/schema/definitions.json"
VERSION = "1.37.0"
GO_VERSION = "v0.37.0"
OTHERS = (
    API + "autoscaling.v1.Scale",
    API + "core.v1.Binding",
    META + "APIGroup",
    META + "APIGroupList",
    META + "APIResourceList",
    META + "APIVersions",
    META + "DeleteOptions",
    META + "Patch",
    META + "Status",
    META + "WatchEvent",
)
SPECIAL = {name: short for short, name in SPECIAL_NAMES.items()}
GO_NAMES = {
    "IntOrString": "intstr.IntOrString",
    "Quantity": "resource.Quantity",
    "RawExtension": "runtime.RawExtension",
    "bool": "bool",
    "boolean": "bool",
    "byte": "uint8",
    "bytes": "[]uint8",
    "int32": "int32",
    "int64": "int64",
    "string": "string",
}
GO_PACKAGES = {"intstr", "resource", "runtime", "types"}
_struct = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
# An embedded struct has no name of its own before its type.
_field = re.compile(r"\t(?:\w+[ \t]+)?(\S+)[ \t]+`.*?json:\"([^\"]*)\"").match
_default = re.compile(r"\t// \+default=\"(.*)\"").match


class GoField:
    """A field as its Go struct declares it."""

    def __init__(self, go: str, options: list[str], embedded: str = "") -> None:
        """Take the type, the options of the JSON tag, and the embedded struct it came with."""
        self.go = go.removeprefix("*")
        self.embedded = embedded
        self.default: str | None = None
        self.omits_empty = "omitempty" in options and not go.startswith("*")


def main() -> None:
    """Write the file anew."""
    definitions = published_definitions()
    structs = go_structs()
    written = {
        short(name): definition_entry(name, definitions[name], structs.get(short(name), {}))
        for name in sorted(closure(definitions))
        if name not in SPECIAL
    }
    TARGET.write_text(render(written))
    sys.stdout.write(f"{TARGET}: {len(written)} definitions, {TARGET.stat().st_size} bytes\n")


def published_definitions() -> dict[str, Any]:
    """Return the definitions by their published names."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*command, f"kubernetes-validate=={VERSION}"], check=True)  # noqa: S603
        path = f"kubernetes_validate/kubernetes-json-schema/v{VERSION}-local/_definitions.json"
        found: dict[str, Any] = json.loads((Path(folder) / path).read_text())["$defs"]
        return found


def closure(definitions: dict[str, Any]) -> set[str]:
    """Return the names of all definitions that the served kinds are made of."""
    roots = [one.definition for one in RESOURCES]
    todo = [*roots, *(f"{one}List" for one in roots), *OTHERS]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(references(definitions[name]))
    return found


def references(value: Any) -> Iterator[str]:
    """Yield the names of the definitions that a piece of a schema refers to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for below in value.values():
            yield from references(below)
    elif isinstance(value, list):
        for below in value:
            yield from references(below)


def short(name: str) -> str:
    """Return a definition's name as the file writes it: core.v1.Service."""
    if name in SPECIAL:
        return SPECIAL[name]
    return "meta.v1." + name[len(META) :] if name.startswith(META) else name.removeprefix(API)


def go_structs() -> dict[str, dict[str, GoField]]:
    """Return the fields of every struct by the definition's short name."""
    packages: dict[str, str] = {}
    for module in ("api", "apimachinery"):
        address = f"https://proxy.golang.org/k8s.io/{module}/@v/{GO_VERSION}.zip"
        with urllib.request.urlopen(address) as answer:
            archive = zipfile.ZipFile(io.BytesIO(answer.read()))
        prefix = f"k8s.io/{module}@{GO_VERSION}/"
        folders = "pkg/apis/meta/v1/" if module == "apimachinery" else ""
        for path in archive.namelist():
            inside = path.removeprefix(prefix)
            if inside.startswith(folders) and inside.endswith(("/types.go", "/watch.go")):
                package = inside.rpartition("/")[0].removeprefix("pkg/apis/").replace("/", ".")
                packages[package] = packages.get(package, "") + archive.read(path).decode()
    bodies = {
        f"{package}.{name}": body
        for package, text in packages.items()
        for name, body in _struct.findall(text)
    }
    return {name: go_fields(name, bodies) for name in bodies}


def go_fields(name: str, bodies: dict[str, str]) -> dict[str, GoField]:
    """Return the fields of a struct by their JSON names, with those of embedded structs."""
    fields: dict[str, GoField] = {}
    default: str | None = None
    for line in bodies.get(name, "").splitlines():
        if marked := _default(line):
            default = marked[1]
        if (declared := _field(line)) is None:
            continue
        go, (json_name, *options) = declared[1], declared[2].split(",")
        if json_name:
            fields[json_name] = GoField(go, options)
            fields[json_name].default, default = default, None
            continue
        local = go.rpartition(".")[2]
        owner = "meta.v1" if go.startswith("metav1.") else name.rpartition(".")[0]
        for below, field in go_fields(f"{owner}.{local}", bodies).items():
            field.embedded = f"{local}.{field.embedded}".rstrip(".")
            fields[below] = field
    return fields


def definition_entry(name: str, schema: dict[str, Any], go: dict[str, GoField]) -> dict[str, Any]:
    """Return what the file says about one definition."""
    entry: dict[str, Any] = {
        "fields": {
            field: field_text(below, go.get(field))
            for field, below in sorted(schema["properties"].items())
        }
    }
    missing = set(schema["properties"]) - set(go)
    if missing:
        sys.stderr.write(f"{name}: not in the Go sources: {', '.join(sorted(missing))}\n")
    if schema.get("required"):
        entry["required"] = sorted(schema["required"])
    if schema.get("x-kubernetes-map-type") == "atomic":
        entry["atomic"] = True
    kinds = schema.get("x-kubernetes-group-version-kind", ())
    if kinds:
        served = {(one.group, one.version) for one in RESOURCES} | {("autoscaling", "v1")}
        entry["kinds"] = [
            [one["group"], one["version"], one["kind"]]
            for one in kinds
            if (one["group"], one["version"]) in served
        ]
    return entry


def field_text(schema: dict[str, Any], go: GoField | None) -> str:
    """Return the type of a field in one line: `[]core.v1.ServicePort list=map keys=port`."""
    words = [type_text(schema)]
    kind = schema.get("x-kubernetes-list-type", "")
    if kind and kind != "atomic":
        words.append(f"list={kind}")
    if keys := schema.get("x-kubernetes-list-map-keys"):
        words.append(f"keys={','.join(keys)}")
    if strategy := schema.get("x-kubernetes-patch-strategy"):
        words.append(f"patch={strategy}")
    if merge_key := schema.get("x-kubernetes-patch-merge-key"):
        words.append(f"key={merge_key}")
    if schema.get("x-kubernetes-map-type") == "atomic":
        words.append("atomic")
    if go is not None:
        if printed(go.go) != printed(words[0].replace("map[]", "map[string]")):
            words.append(f"go={printed(go.go)}")
        if go.embedded:
            words.append(f"in={go.embedded}")
        if go.default is not None and " " not in go.default:
            words.append(f"default={go.default}")
        if not go.omits_empty and "$ref" not in schema:
            words.append("keep")
    return " ".join(words)


def type_text(schema: dict[str, Any]) -> str:
    """Return a type as the file writes it."""
    if "$ref" in schema:
        return short(schema["$ref"].rpartition("/")[2])
    kind = schema["type"][0] if isinstance(schema["type"], list) else schema["type"]
    if kind == "array":
        return f"[]{type_text(schema['items'])}"
    if kind == "object":
        return f"map[]{type_text(schema['additionalProperties'])}"
    if kind == "integer":
        return str(schema.get("format", "int64"))
    return "bytes" if schema.get("format") == "byte" else str(kind)


def printed(go: str) -> str:
    """Return a type's name as messages print it, from Go source or from this file's own form."""
    if go.startswith("[]"):
        return f"[]{printed(go[2:])}"
    if go.startswith("*"):
        return f"*{printed(go[1:])}"
    if go.startswith("map["):
        key, _, value = go.removeprefix("map[").partition("]")
        return f"map[{printed(key)}]{printed(value)}"
    if go in GO_NAMES:
        return GO_NAMES[go]
    package, _, name = go.rpartition(".")
    return go if package in GO_PACKAGES else f"v1.{name}"


def render(written: dict[str, dict[str, Any]]) -> str:
    """Return the text of the file: one definition a line, so that changes can be read."""
    lines = [
        f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'), sort_keys=True)}"
        for name, entry in written.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
