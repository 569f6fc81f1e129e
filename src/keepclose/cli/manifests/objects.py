"""Loads Kubernetes objects from files, directories and standard input, and collects problems.

No problem ends the loading, so that a user can fix a file in one go. Each object keeps its place: a
validation error that is found later can still be reported with the line of its field. Kinds that
keepclose does not use are counted and ignored. Nothing here prints or raises.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from keepclose.cli.manifests.documents import (
    DocumentError,
    RawObject,
    Source,
    line_of,
    read_documents,
)
from keepclose.cli.manifests.problems import InputPlace, InputProblem, describe_field_error
from keepclose.cli.manifests.unrendered import Unrendered, find_unrendered
from keepclose.model.decoding import (
    API_VERSIONS,
    CLUSTER_SCOPED,
    KINDS,
    KnownObject,
    Rejected,
    UnknownKind,
    convert,
)
from keepclose.model.field_errors import FieldError, duplicate, invalid, required
from keepclose.model.json_values import JsonObject
from keepclose.model.reported import ReportedNode, ReportedPod
from keepclose.system.files import InputError, read_input, read_standard_input, unpack_input

SUFFIXES: Final = (".yaml", ".yml", ".json")
STDIN_NAME: Final = "-"
DEFAULT_NAMESPACE: Final = "default"
# NB: commands that explain say what kubelets report; no decision needs it.
_KINDS: Final = {**KINDS, ("v1", "Node"): ReportedNode, ("v1", "Pod"): ReportedPod}
_Known = TypeVar("_Known")


class LocatedObject(msgspec.Struct, frozen=True):
    """An object and its place in the input."""

    object: KnownObject
    place: InputPlace
    source: Source | None = None


class LocatedExtra(msgspec.Struct, frozen=True):
    """An object of an extra kind as it is, and its place in the input."""

    object: JsonObject
    place: InputPlace
    source: Source | None = None


class Manifests(msgspec.Struct, frozen=True):
    """Objects and problems of the input; `ignored` counts the objects of each ignored kind."""

    objects: tuple[LocatedObject, ...] = ()
    problems: tuple[InputProblem, ...] = ()
    ignored: dict[str, int] = {}
    ignored_at: dict[str, InputPlace] = {}
    """The place of the first object of each ignored kind."""
    extra: tuple[JsonObject, ...] = ()
    """The objects of the extra kinds that were asked for; only their names are checked."""
    located_extra: tuple[LocatedExtra, ...] = ()
    """The same objects with their places."""

    def of(self, kind: type[_Known]) -> tuple[_Known, ...]:
        """Return the objects of one kind in the order in which they were read."""
        objects = (located.object for located in self.objects)
        return tuple(obj for obj in objects if isinstance(obj, kind))


def load_manifests(
    paths: Iterable[str],
    *,
    stdin: BinaryIO | None = None,
    extra: Mapping[str, str] | None = None,
) -> Manifests:
    """Return the objects of files; "-" is standard input, a directory stands for its manifests.

    `extra` names the version of each kind that is kept as it is, besides the kinds that keepclose
    decodes.

    Namespaced objects without a namespace get "default". Of two objects of the same name the first
    is kept, and the second is a problem.
    """
    loader = _Loader(extra or {})
    with _collector_paused():
        for path in paths:
            if path == STDIN_NAME:
                loader.read_stdin(stdin)
            elif (unrendered := find_unrendered(Path(path))) is not None:
                loader.add_unrendered(path, unrendered)
            elif os.path.isdir(path):  # noqa: PTH112 - Path.is_dir fails on names too long
                loader.read_directory(Path(path))
            else:
                loader.read_file(path)
    return Manifests(
        tuple(loader.objects),
        tuple(loader.problems),
        dict(sorted(loader.ignored.items())),
        loader.ignored_at,
        tuple(located.object for located in loader.extra),
        tuple(loader.extra),
    )


def place_of_object(
    located: LocatedObject | LocatedExtra, field: str, value: object = None
) -> InputPlace:
    """Return the place of an object's field, with its line if the object kept its text."""
    if located.source is None:
        return located.place
    return msgspec.structs.replace(located.place, line=line_of(located.source, field, value))


def describe_problem(located: LocatedObject, error: FieldError) -> InputProblem:
    """Return the problem for a validation error of a located object."""
    place = place_of_object(located, error.field, error.value)
    return describe_field_error(error, place=place, subject=name_object(located.object))


def name_object(obj: KnownObject) -> str:
    """Return an object's name for messages: shop/web for a Service, else with its kind."""
    return _name(obj.kind, obj.metadata.namespace, obj.metadata.name)


class _Loader:
    """The objects and problems that were read so far."""

    def __init__(self, extra_versions: Mapping[str, str]) -> None:
        self._extra_versions = extra_versions
        self.extra: list[LocatedExtra] = []
        self.objects: list[LocatedObject] = []
        self.problems: list[InputProblem] = []
        self.ignored: Counter[str] = Counter()
        self.ignored_at: dict[str, InputPlace] = {}
        self.places: dict[tuple[str, str, str], InputPlace] = {}

    def read_directory(self, directory: Path) -> None:
        """Read the manifests in a directory, sorted by name; subdirectories are ignored."""
        try:
            files = sorted(file for file in directory.iterdir() if file.suffix in SUFFIXES)
        except OSError as error:
            self._add_unreadable(str(directory), InputError(error.strerror or str(error)))
            return
        if not files:
            place, endings = InputPlace(str(directory)), ", ".join(f"*{end}" for end in SUFFIXES)
            self.problems.append(InputProblem(place, f"the directory has no manifests ({endings})"))
        for file in files:
            self.read_file(str(file), is_named=False)

    def read_file(self, file: str, *, is_named: bool = True) -> None:
        """Read one file; pipes only if the user named it."""
        try:
            data = read_input(file, takes_pipes=is_named)
        except InputError as error:
            self._add_unreadable(file, error)
        else:
            self.read_bytes(file, data)

    def read_stdin(self, stdin: BinaryIO | None) -> None:
        """Read standard input, or the stream that stands for it."""
        try:
            data = read_standard_input() if stdin is None else stdin.read()
        except InputError as error:
            self._add_unreadable(STDIN_NAME, error)
        else:
            self.read_bytes(STDIN_NAME, data)

    def read_bytes(self, file: str, data: bytes) -> None:
        """Read the contents of a file."""
        try:
            data = unpack_input(data)
        except InputError as error:
            self._add_unreadable(file, error)
            return
        file_name = file.removesuffix(".gz")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            place = InputPlace(file, line=data.count(b"\n", 0, error.start) + 1)
            self.problems.append(
                InputProblem(place, "not UTF-8 text", fix="save the file as UTF-8")
            )
            return
        for entry in read_documents(text, is_json=file_name.endswith(".json")):
            place = InputPlace(file, entry.document, entry.item, entry.line)
            if isinstance(entry, DocumentError):
                place = msgspec.structs.replace(place, column=entry.column)
                self.problems.append(InputProblem(place, entry.message, fix=entry.fix))
            else:
                self._read_raw_object(entry, place)

    def add_unrendered(self, path: str, unrendered: Unrendered) -> None:
        """Add the problem of a path that must be rendered before it can be read."""
        self.problems.append(InputProblem(InputPlace(path), unrendered.text, fix=unrendered.fix))

    def _is_extra(self, raw: JsonObject) -> bool:
        """Return whether an object is of an extra kind that was asked for, and has a name."""
        kind, meta = raw.get("kind"), raw.get("metadata")
        if not isinstance(kind, str) or kind not in self._extra_versions:
            return False
        is_named = isinstance(meta, dict) and isinstance(meta.get("name"), str)
        return is_named and raw.get("apiVersion") == self._extra_versions[kind]

    def _add_unreadable(self, file: str, error: InputError) -> None:
        self.problems.append(
            InputProblem(InputPlace(file), f"cannot be read: {error}", fix=error.fix)
        )

    def _read_raw_object(self, raw_object: RawObject, place: InputPlace) -> None:
        raw = raw_object.value
        if not isinstance(raw, dict):
            text = "expected a Kubernetes object: a map with apiVersion, kind and metadata"
            self.problems.append(InputProblem(place, f"{text}, got {_describe(raw)}"))
            return
        if self._is_extra(raw):
            is_namespace = raw["kind"] == "Namespace"
            named = raw if is_namespace else _with_namespace(raw)
            self.extra.append(LocatedExtra(named, place, raw_object.source))
            return
        subject = _name_raw(raw)
        match convert(_with_namespace(raw), kinds=_KINDS):
            case UnknownKind(api_version, kind):
                if _is_wrong_version(api_version, kind):
                    right = API_VERSIONS[kind]
                    error = invalid("apiVersion", api_version, f"keepclose reads {kind} {right}")
                    self._add(error, raw_object, place, subject, fix=f"write apiVersion: {right}")
                else:
                    self.ignored[kind] += 1
                    self.ignored_at.setdefault(kind, place)
            case Rejected(error):
                self._add(error, raw_object, place, subject)
            case obj:
                self._keep(obj, raw_object, place, subject)

    def _keep(
        self, obj: KnownObject, raw_object: RawObject, place: InputPlace, subject: str
    ) -> None:
        meta = obj.metadata
        if not meta.name:
            fix = "give it a name: generateName is for the API server" if meta.generate_name else ""
            self._add(required("metadata.name"), raw_object, place, subject, fix=fix)
            return
        key = (obj.kind, meta.namespace, meta.name)
        first = self.places.setdefault(key, place)
        if first is not place:
            fix = f"the first one is in {first}; remove or rename one of them"
            self._add(duplicate("metadata.name", meta.name), raw_object, place, subject, fix=fix)
            return
        self.objects.append(LocatedObject(obj, place, raw_object.source))

    def _add(
        self,
        error: FieldError,
        raw_object: RawObject,
        place: InputPlace,
        subject: str,
        *,
        fix: str = "",
    ) -> None:
        if raw_object.source is not None:
            line = line_of(raw_object.source, error.field, error.value)
            place = msgspec.structs.replace(place, line=line)
        problem = describe_field_error(error, place=place, subject=subject)
        self.problems.append(msgspec.structs.replace(problem, fix=fix) if fix else problem)


def _with_namespace(raw: dict[str, Any]) -> dict[str, Any]:
    meta = raw.get("metadata")
    if not isinstance(meta, dict) or meta.get("namespace"):
        return raw
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind in CLUSTER_SCOPED:
        return raw
    return {**raw, "metadata": {**meta, "namespace": DEFAULT_NAMESPACE}}


def _is_wrong_version(api_version: str, kind: str) -> bool:
    """Return whether a kind of Kubernetes has a version that keepclose does not read.

    NB: other API groups have kinds of the same name (Knative has a Service).
    """
    group = api_version.rpartition("/")[0]
    is_kubernetes = "." not in group or group.endswith(".k8s.io")
    return kind in API_VERSIONS and is_kubernetes and group != "events.k8s.io"


def _name_raw(raw: dict[str, Any]) -> str:
    """Return the name of an object that may be invalid, or "" without a kind and a name."""
    meta = raw.get("metadata")
    texts = [raw.get("kind")]
    texts += [meta.get("namespace"), meta.get("name")] if isinstance(meta, dict) else ["", ""]
    kind, namespace, name = (text if isinstance(text, str) else "" for text in texts)
    if kind in API_VERSIONS and kind not in CLUSTER_SCOPED:
        namespace = namespace or DEFAULT_NAMESPACE
    return _name(kind, namespace, name)


def _name(kind: str, namespace: str, name: str) -> str:
    if not name:
        return kind
    full = f"{namespace}/{name}" if namespace else name
    return full if kind in ("Service", "") else f"{kind} {full}"


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else "a plain value"


@contextmanager
def _collector_paused() -> Iterator[None]:
    # Trees of YAML nodes are many small objects of a short life. A search for cycles among them
    # would take four times as long as the reading.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
