"""Kubernetes objects from files, directories and standard input, and what is wrong with them.

Every problem is gathered and none ends the reading, so that a user mends a file in one go. Each
object keeps its place: a rule that fails later can still be reported with the line of its field.
Kinds that keepclose does not use are counted and passed over. Nothing here prints or raises.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from keepclose.cli.manifests.documents import DocumentError, Draft, Source, line_of, read_documents
from keepclose.cli.manifests.problems import InputPlace, InputProblem, describe_cause
from keepclose.model.decoding import (
    API_VERSIONS,
    CLUSTER_SCOPED,
    KnownObject,
    Rejected,
    UnknownKind,
    convert,
)
from keepclose.model.field_errors import FieldError, duplicate, invalid, required
from keepclose.system.files import InputError, read_input, read_standard_input

SUFFIXES: Final = (".yaml", ".yml", ".json")
STDIN_NAME: Final = "-"
DEFAULT_NAMESPACE: Final = "default"

_Known = TypeVar("_Known")


class Located(msgspec.Struct, frozen=True):
    """An object and the place that it came from."""

    object: KnownObject
    place: InputPlace
    source: Source | None = None


class Manifests(msgspec.Struct, frozen=True):
    """All that was read; `ignored` counts the objects of kinds that were passed over."""

    objects: tuple[Located, ...] = ()
    problems: tuple[InputProblem, ...] = ()
    ignored: dict[str, int] = {}
    ignored_at: dict[str, InputPlace] = {}
    """Where the first object of each kind that was passed over stands."""

    def of(self, kind: type[_Known]) -> tuple[_Known, ...]:
        """Return the objects of one kind in the order in which they were read."""
        return tuple(one.object for one in self.objects if isinstance(one.object, kind))


def load_manifests(paths: Iterable[str], *, stdin: BinaryIO | None = None) -> Manifests:
    """Return the objects in the given files; "-" is standard input, a directory all its manifests.

    Namespaced objects without a namespace get "default". Of two objects of the same name the first
    one is kept. No paths give no objects.
    """
    reading = _Reading()
    with _collector_paused():
        for path in paths:
            if path == STDIN_NAME:
                reading.read_stdin(stdin)
            elif os.path.isdir(path):  # noqa: PTH112 - Path.is_dir fails on names too long
                reading.read_directory(Path(path))
            else:
                reading.read_file(path)
    return Manifests(
        tuple(reading.objects),
        tuple(reading.problems),
        dict(sorted(reading.ignored.items())),
        reading.ignored_at,
    )


def place_of_object(located: Located, field: str, value: object = None) -> InputPlace:
    """Return the place of an object's field, with the line of the field if the text is at hand."""
    if located.source is None:
        return located.place
    return msgspec.structs.replace(located.place, line=line_of(located.source, field, value))


def report(located: Located, cause: FieldError) -> InputProblem:
    """Return the problem for a cause that some rule found in a located object."""
    place = place_of_object(located, cause.field, cause.value)
    return describe_cause(cause, place=place, subject=name_object(located.object))


def name_object(obj: KnownObject) -> str:
    """Return what to call an object: shop/web for a Service, else with its kind before."""
    return _name(obj.kind, obj.metadata.namespace, obj.metadata.name)


class _Reading:
    """What was read so far."""

    def __init__(self) -> None:
        self.objects: list[Located] = []
        self.problems: list[InputProblem] = []
        self.ignored: Counter[str] = Counter()
        self.ignored_at: dict[str, InputPlace] = {}
        self.places: dict[tuple[str, str, str], InputPlace] = {}

    def read_directory(self, directory: Path) -> None:
        """Read the manifests in a directory, sorted by name; those in folders below are left."""
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
        """Read one file, which a user named or a directory has."""
        try:
            data = read_input(file, takes_pipes=is_named)
        except InputError as error:
            self._add_unreadable(file, error)
        else:
            self.read_bytes(file, data)

    def read_stdin(self, stdin: BinaryIO | None) -> None:
        """Read standard input, or what stands for it."""
        try:
            data = read_standard_input() if stdin is None else stdin.read()
        except InputError as error:
            self._add_unreadable(STDIN_NAME, error)
        else:
            self.read_bytes(STDIN_NAME, data)

    def read_bytes(self, file: str, data: bytes) -> None:
        """Read the contents of a file."""
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            place = InputPlace(file, line=data.count(b"\n", 0, error.start) + 1)
            self.problems.append(
                InputProblem(place, "not UTF-8 text", fix="save the file as UTF-8")
            )
            return
        for found in read_documents(text, is_json=file.endswith(".json")):
            place = InputPlace(file, found.document, found.item, found.line)
            if isinstance(found, DocumentError):
                place = msgspec.structs.replace(place, column=found.column)
                self.problems.append(InputProblem(place, found.message, fix=found.fix))
            else:
                self._read_draft(found, place)

    def _add_unreadable(self, file: str, error: InputError) -> None:
        self.problems.append(
            InputProblem(InputPlace(file), f"cannot be read: {error}", fix=error.fix)
        )

    def _read_draft(self, draft: Draft, place: InputPlace) -> None:
        raw = draft.value
        if not isinstance(raw, dict):
            text = "expected a Kubernetes object: a map with apiVersion, kind and metadata"
            self.problems.append(InputProblem(place, f"{text}, got {_describe(raw)}"))
            return
        subject = _name_raw(raw)
        match convert(_with_namespace(raw)):
            case UnknownKind(api_version, kind):
                if _is_wrong_version(api_version, kind):
                    wanted = API_VERSIONS[kind]
                    cause = invalid("apiVersion", api_version, f"keepclose reads {kind} {wanted}")
                    self._add(cause, draft, place, subject, fix=f"write apiVersion: {wanted}")
                else:
                    self.ignored[kind] += 1
                    self.ignored_at.setdefault(kind, place)
            case Rejected(cause):
                self._add(cause, draft, place, subject)
            case obj:
                self._keep(obj, draft, place, subject)

    def _keep(self, obj: KnownObject, draft: Draft, place: InputPlace, subject: str) -> None:
        meta = obj.metadata
        if not meta.name:
            fix = "give it a name: generateName is for the API server" if meta.generate_name else ""
            self._add(required("metadata.name"), draft, place, subject, fix=fix)
            return
        key = (obj.kind, meta.namespace, meta.name)
        first = self.places.setdefault(key, place)
        if first is not place:
            fix = f"the first one is in {first}; remove or rename one of them"
            self._add(duplicate("metadata.name", meta.name), draft, place, subject, fix=fix)
            return
        self.objects.append(Located(obj, place, draft.source))

    def _add(
        self, cause: FieldError, draft: Draft, place: InputPlace, subject: str, *, fix: str = ""
    ) -> None:
        if draft.source is not None:
            line = line_of(draft.source, cause.field, cause.value)
            place = msgspec.structs.replace(place, line=line)
        problem = describe_cause(cause, place=place, subject=subject)
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
    """Return whether a known kind is asked for in a version of Kubernetes' own that is not read.

    Others have kinds of the same name (Knative has a Service), and so have events.k8s.io.
    """
    group = api_version.rpartition("/")[0]
    is_kubernetes = "." not in group or group.endswith(".k8s.io")
    return kind in API_VERSIONS and is_kubernetes and group != "events.k8s.io"


def _name_raw(raw: dict[str, Any]) -> str:
    """Return what to call an object that may be broken; "" when nothing names it."""
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
    # Trees of nodes are many small objects that all live for a moment; looking for cycles among
    # them would take four times as long as the reading.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
