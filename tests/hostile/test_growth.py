"""The cost of a write grows with its size: no list and no map of any kind costs the square of it.

For each kind that the server serves, and each list and map of its type, an object with many entries
there takes every path of a write: create, update, status, strategic merge patch, apply by two
managers, a table of it. Most of these objects are refused in the end, which has its price too. A
quadratic walk over the entries takes a hundred times the CPU that is allowed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec
import pytest

from keepclose.apiserver.patch.strategic_merge import apply_strategic_patch
from keepclose.apiserver.registry.registry import strategies
from keepclose.apiserver.resources import BY_KIND, RESOURCES, Resource
from keepclose.apiserver.schema.findings import MAX_FINDINGS
from keepclose.apiserver.schema.types import Type, TypeForm, load_types
from keepclose.apiserver.serving import request_bodies
from keepclose.apiserver.serving.negotiation import ResponseForm, ResponseShape, render_entry
from keepclose.apiserver.serving.object_meta import drop_duplicate_owners
from keepclose.apiserver.serving.options import RequestTarget, WriteOptions
from keepclose.apiserver.serving.responses import respond_error, warning_headers
from keepclose.apiserver.serving.writing import ObjectWriter
from keepclose.apiserver.status_errors import StatusError
from keepclose.apiserver.storage.store import Store
from keepclose.model.gates import FeatureGates

JsonObject = dict[str, Any]
Path = tuple[str, ...]

GATES = FeatureGates()
TYPES = load_types(GATES)
# Entries of the lists and maps.
SMALL, LARGE = 1_000, 4_000
# A step that takes less at the large size is quick enough not to be asked how it grows.
QUICK_SECONDS = 0.15
# Linear is 4, quadratic 16; what lies between leaves room for noise.
MAX_GROWTH = 9.0
# How often a cost that seems too high is measured again.
ATTEMPTS = 4
# Pods stand within the workloads, whose other fields are few.
TEMPLATES = frozenset({"Deployment", "ReplicaSet", "DaemonSet"})
FORCE = WriteOptions(force=True)
ONCE = WriteOptions()


class Place(NamedTuple):
    """A list or a map within a kind."""

    resource: Resource
    path: Path

    def __str__(self) -> str:
        """Return the place as a test is called by it."""
        return ".".join((self.resource.kind, *self.path))


def walk(described: Type, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each list and map below a type; `*` stands for an item."""
    if described.form in (TypeForm.LIST, TypeForm.MAP):
        yield path
        if described.items is not None:
            yield from walk(described.items, (*path, "*"))
    for name, field in described.fields.items():
        yield from walk(field, (*path, name))


def places() -> list[Place]:
    """Return all lists and maps of all kinds, each type of them once for a kind."""
    return [
        Place(resource, path)
        for resource in RESOURCES
        for path in walk(TYPES[resource.definition])
        if not (resource.kind in TEMPLATES and path[:3] == ("spec", "template", "spec"))
        # The metadata of all kinds takes the same way, and so do all containers of a Pod.
        and not (path[0] == "metadata" and resource.kind != "ConfigMap")
        and not {"managedFields", "initContainers", "ephemeralContainers"} & set(path[:-1])
    ]


def make_scalar(name: str, described: Type, number: int) -> Any:
    """Return a value of a type that differs by its number, and fits the usual rules of its name."""
    match described.form:
        case TypeForm.INTEGER | TypeForm.INT_OR_STRING:
            return number % 60_000 + 1
        case TypeForm.NUMBER:
            return number
        case TypeForm.BOOLEAN:
            return True
        case TypeForm.QUANTITY:
            return "1"
        case TypeForm.TIME:
            return "2026-01-01T00:00:00Z"
        case TypeForm.ANY:
            return {}
    if described.format == "byte":
        return "YQ=="
    lower = name.lower()
    if lower.endswith(("ip", "ips", "addresses", "address")):
        return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    if lower.endswith(("cidr", "cidrs")):
        return f"10.{number >> 8 & 255}.{number & 255}.0/24"
    if lower == "protocol":
        return "TCP"
    if lower == "operator":
        return "In"
    return f"n{number}"


def make_value(described: Type, number: int, *, name: str = "", below: Path = ()) -> Any:
    """Return a value of a type: with its required fields, its keys, and the path below it."""
    head, rest = (below[0], below[1:]) if below else ("", ())
    if described.form is TypeForm.LIST:
        items = described.items
        return [] if items is None else [make_value(items, number, name=name, below=rest)]
    if described.form is TypeForm.MAP:
        items = described.items
        if items is None:
            return {}
        return {f"n{number}": make_value(items, number, name=name, below=rest)}
    if described.form is not TypeForm.OBJECT:
        return make_scalar(name, described, number)
    value: JsonObject = {}
    for field, inner in described.fields.items():
        if field == head:
            value[field] = make_value(inner, number, name=field, below=rest)
        elif field in described.required or is_scalar_key(field, inner):
            value[field] = make_value(inner, number, name=field)
    return value


def is_scalar_key(field: str, described: Type) -> bool:
    """Return whether a field is one that tells items apart."""
    keys = {"name", "key", "port", "containerPort", "ip", "type", "uid", "protocol", "mountPath"}
    return field in keys and described.form is not TypeForm.OBJECT


def make_object(place: Place, count: int, *, distinct: bool) -> JsonObject:
    """Return an object of the kind with so many entries at the place."""
    resource = place.resource
    described = TYPES[resource.definition]
    found: JsonObject = make_value(described, 1, below=place.path)
    found |= {"apiVersion": resource.api_version, "kind": resource.kind}
    metadata = found.get("metadata") if isinstance(found.get("metadata"), dict) else None
    found["metadata"] = {**(metadata or {}), "name": "web"}
    holder: Any = found
    for step, following in zip(place.path, (*place.path[1:], ""), strict=True):
        described = described.items if step == "*" else described.fields[step]  # type: ignore[assignment]
        if following:
            holder = next(iter(values_of(holder))) if step == "*" else holder[step]
    items = described.items
    assert items is not None
    name = next(step for step in reversed(place.path) if step != "*")
    numbers = [number if distinct else 1 for number in range(count)]
    if described.form is TypeForm.LIST:
        filled: Any = [make_value(items, number, name=name) for number in numbers]
    else:
        filled = {
            f"n{at}": make_value(items, number, name=name) for at, number in enumerate(numbers)
        }
    if place.path[-1] != "*":
        holder[place.path[-1]] = filled
    elif isinstance(holder, list):
        holder[0] = filled
    else:
        holder[next(iter(holder))] = filled
    return found


def values_of(holder: Any) -> Any:
    """Return the values of a list or a map."""
    return holder.values() if isinstance(holder, dict) else holder


class Door:
    """The path of writes without the connection: bytes to a stored object or a refusal."""

    def __init__(self, resource: Resource) -> None:
        """Serve one kind from an empty store."""
        self.store = Store.open(None)
        self.writer = ObjectWriter(self.store, strategies(), TYPES, GATES)
        self.resource = resource
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
        self.writer.create(RequestTarget(BY_KIND["v1", "Namespace"]), namespace, ONCE, manager="m")
        self.namespace = "default" if resource.namespaced else ""
        self.shape = TYPES[resource.definition]

    def target(self, name: str = "web", subresource: str = "") -> RequestTarget:
        """Return the target of a request."""
        return RequestTarget(self.resource, self.namespace, name, subresource)

    def read(self, sent: JsonObject) -> JsonObject:
        """Return what a body holds, with all that is said about it."""
        new, warnings = request_bodies.read_body_object(
            msgspec.json.encode(sent), "application/json", self.resource, self.shape, validation=""
        )
        warning_headers(warnings + drop_duplicate_owners(new["metadata"]))
        return new

    def create(self, sent: JsonObject) -> None:
        """Create the object."""
        self.writer.create(self.target(""), self.read(sent), ONCE, manager="creator")

    def update(self, sent: JsonObject) -> None:
        """Update the object."""
        sent = {**sent, "metadata": {**sent["metadata"], "annotations": {"changed": "yes"}}}
        self.writer.update(self.target(), self.read(sent), ONCE, manager="updater")

    def update_status(self, sent: JsonObject) -> None:
        """Update the status of the object."""
        if "status" in self.resource.subresources:
            target = self.target(subresource="status")
            self.writer.update(target, self.read(sent), ONCE, manager="reporter")

    def patch(self, sent: JsonObject) -> None:
        """Merge the object into itself."""
        patched = apply_strategic_patch(deepcopy(sent), sent, self.shape)
        request_bodies.check_patched(patched, self.resource, self.shape, validation="")
        self.writer.update(self.target(), patched, ONCE, manager="patcher")

    def apply(self, sent: JsonObject) -> None:
        """Apply the object as one manager, and then by force as another."""
        applied = request_bodies.read_applied(msgspec.json.encode(sent), self.resource)
        applied["metadata"].pop("managedFields", None)
        self.writer.apply(self.target(), deepcopy(applied), ONCE, manager="one")
        self.writer.apply(self.target(), deepcopy(applied), FORCE, manager="two")

    def apply_less(self, sent: JsonObject) -> None:
        """Apply almost nothing, so that all that was applied before is pruned."""
        names = {"apiVersion": sent["apiVersion"], "kind": sent["kind"]}
        for manager in ("one", "two"):
            bare = {**names, "metadata": {"name": "web"}}
            self.writer.apply(self.target(), bare, FORCE, manager=manager)

    def show(self, sent: JsonObject) -> None:
        """Render the object as a row of a table."""
        del sent
        entry = self.store.get(self.resource.store, self.namespace, "web")
        if entry is not None:
            render_entry(self.resource, entry, ResponseForm(ResponseShape.TABLE))


STEPS: tuple[Callable[[Door, JsonObject], None], ...] = (
    Door.create,
    Door.update,
    Door.update_status,
    Door.patch,
    Door.show,
    Door.apply,
    Door.apply_less,
)


def measure(place: Place, count: int, *, distinct: bool) -> dict[str, float]:
    """Return the CPU seconds of each step of a write of an object with so many entries."""
    door = Door(place.resource)
    sent = make_object(place, count, distinct=distinct)
    costs: dict[str, float] = {}
    for step in STEPS:
        given = deepcopy(sent)
        begun = time.process_time()
        try:
            step(door, given)
        except StatusError as failure:
            respond_error(failure)
        costs[step.__name__] = time.process_time() - begun
    door.store.close()
    return costs


@pytest.mark.slow
@pytest.mark.parametrize("distinct", [True, False], ids=["distinct", "same"])
@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: f"{resource.qualified}")
def test_every_list_and_map_grows_linearly(resource: Resource, *, distinct: bool) -> None:
    """No step of a write costs the square of the entries of any list or map of the kind."""
    slow: list[str] = []
    for place in places():
        if place.resource is resource:
            slow += find_slow_steps(place, distinct=distinct)
    assert not slow, "\n".join(slow)


def find_slow_steps(place: Place, *, distinct: bool) -> list[str]:
    """Return the steps whose cost grows faster than the entries of the place."""
    large = measure(place, LARGE, distinct=distinct)
    if max(large.values()) < QUICK_SECONDS:
        return []
    small = measure(place, SMALL, distinct=distinct)
    slow: list[str] = []
    # Noise only ever adds, so that the least of several measurements counts.
    for _ in range(ATTEMPTS):
        again = measure(place, LARGE, distinct=distinct)
        large = {step: min(cost, again[step]) for step, cost in large.items()}
        slow = [
            f"{place} {step}: {small[step]:.3f} s for {SMALL}, {cost:.3f} s for {LARGE}"
            for step, cost in large.items()
            if cost >= QUICK_SECONDS and cost > MAX_GROWTH * small[step]
        ]
        if not slow:
            break
    return slow


@pytest.mark.parametrize("depth", ["top", "list"])
def test_unknown_fields_grow_linearly(depth: str) -> None:
    """Fields that a kind does not have are dropped and counted once each; a hundred are named."""
    config_maps = BY_KIND["v1", "ConfigMap"]

    def cost(count: int) -> float:
        door = Door(config_maps)
        if depth == "top":
            sent: JsonObject = {"metadata": {"name": "web"}, **dict.fromkeys(names(count), 1)}
        else:
            references = [{"uid": name, "nope": 1} for name in names(count)]
            sent = {"metadata": {"name": "web", "ownerReferences": references}}
        body = msgspec.json.encode(sent)
        begun = time.process_time()
        _, warnings = request_bodies.read_body_object(
            body, "application/json", config_maps, door.shape, validation="Warn"
        )
        assert len(warnings) == MAX_FINDINGS
        spent = time.process_time() - begun
        door.store.close()
        return spent

    small, large = min(cost(6_000), cost(6_000)), min(cost(24_000), cost(24_000))
    assert large < MAX_GROWTH * small + 0.05, f"{small:.3f} s, then {large:.3f} s"


def names(count: int) -> list[str]:
    """Return so many names."""
    return [f"u{number}" for number in range(count)]
