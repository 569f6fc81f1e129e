"""Get and list: objects as they are now, or as they were at a version within the history.

A list that is cut by a limit continues with a token that holds the version of the first chunk and
the last name sent, so that all chunks together are the state of one version.

`ListSelection` applies the selectors of a request. Labels are stored beside each entry, so most
requests are answered without decoding JSON; fields other than name and namespace are decoded when a
selector names them. Requests with equal selectors share one matcher, and the fields of an object
that many watchers select by are decoded once.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from keepclose.apiserver.registry.events import from_stored
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.serving.options import EXACT, ListOptions, RequestTarget, check_version
from keepclose.apiserver.status_errors import StatusError, bad_request, expired, not_found
from keepclose.apiserver.storage.entries import Entry, ObjectStore
from keepclose.apiserver.storage.errors import RevisionCompacted
from keepclose.model.selectors import FieldMatcher, FieldSelector, LabelMatcher, LabelSelector

_METADATA: Final = frozenset({"metadata.name", "metadata.namespace"})
_EVENT_SOURCES: Final = frozenset({"source", "reportingComponent"})
_BOOLEANS: Final = frozenset({"spec.unschedulable", "spec.hostNetwork"})
_NO_LABELS: Final[dict[str, str]] = {}
# How many objects keep their decoded fields; most watchers select among the same few changes.
_MAX_CACHED: Final = 256
_CONTINUE_API_VERSION: Final = "meta.k8s.io/v1"

_decode_parts: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_label_matchers: WeakValueDictionary[LabelSelector, LabelMatcher] = WeakValueDictionary()
_field_matchers: WeakValueDictionary[FieldSelector, FieldMatcher] = WeakValueDictionary()
# By the version of the entry, which another store of the process may have too.
_cached_fields: dict[int, tuple[Entry, Resource, dict[str, str]]] = {}


class ListSelection:
    """The namespace and the selectors of one request."""

    def __init__(self, resource: Resource, namespace: str, options: ListOptions) -> None:
        """Reject field selectors that the resource does not support."""
        self.resource = resource
        self.namespace = namespace
        self.fields = options.fields
        self.matches_all = options.selects_all
        self._labels = _label_matcher(options.labels)
        self._fields = _field_matcher(options.fields)
        self._reads_objects = False
        for requirement in options.fields.requirements:
            if requirement.field in resource.selectable:
                self._reads_objects = True
            elif requirement.field not in _METADATA:
                raise _unknown_field(resource, requirement.field)

    def single_name(self) -> str:
        """Return the name that the field selector requires, or ""."""
        for requirement in self.fields.requirements:
            if requirement.field == "metadata.name" and not requirement.negated:
                return requirement.value
        return ""

    def matches(self, entry: Entry | None) -> bool:
        """Return whether the entry is selected; None is not."""
        if entry is None or (self.namespace and entry.namespace != self.namespace):
            return False
        if self.matches_all:
            return True
        if self._labels is not None and not self._labels.matches(entry.labels or _NO_LABELS):
            return False
        if self._fields is None:
            return True
        values = {"metadata.name": entry.name, "metadata.namespace": entry.namespace}
        if self._reads_objects:
            values |= _read_fields(self.resource, entry)
        return self._fields.matches(values)


def _label_matcher(selector: LabelSelector) -> LabelMatcher | None:
    if not selector.requirements:
        return None
    matcher = _label_matchers.get(selector)
    if matcher is None:
        matcher = _label_matchers[selector] = LabelMatcher(selector)
    return matcher


def _field_matcher(selector: FieldSelector) -> FieldMatcher | None:
    if not selector.requirements:
        return None
    matcher = _field_matchers.get(selector)
    if matcher is None:
        matcher = _field_matchers[selector] = FieldMatcher(selector)
    return matcher


def _read_fields(resource: Resource, entry: Entry) -> dict[str, str]:
    """Return all selectable fields of the object."""
    cached = _cached_fields.get(entry.version)
    if cached is not None and cached[0] is entry and cached[1] is resource:
        return cached[2]
    obj = _decode_selectable(resource, entry.data)
    values = {field: _text_at(obj, field) for field in resource.selectable}
    if len(_cached_fields) >= _MAX_CACHED:
        _cached_fields.clear()
    _cached_fields[entry.version] = (entry, resource, values)
    return values


def _decode_selectable(resource: Resource, data: bytes) -> dict[str, Any]:
    """Return an object with only the members that have selectable fields."""
    if resource.stored_as:
        return from_stored(resource, msgspec.json.decode(data))
    # NB: watchers do this on the event loop, and other members may have a mebibyte.
    names = {field.partition(".")[0] for field in resource.selectable} | _EVENT_SOURCES
    parts = _decode_parts(data)
    return {name: msgspec.json.decode(parts[name]) for name in names if name in parts}


def _text_at(value: Any, path: str) -> str:
    """Return the field as a string: "" when absent, booleans as in the API."""
    if path == "source":
        source = value.get("source") or {}
        return str(source.get("component") or value.get("reportingComponent") or "")
    for step in path.split("."):
        if not isinstance(value, dict):
            return ""
        value = value.get(step)
    if isinstance(value, bool) or (value is None and path in _BOOLEANS):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _unknown_field(resource: Resource, field: str) -> StatusError:
    if resource.selectable:
        return bad_request(f"field label not supported: {field}")
    return bad_request(
        f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
    )


class Listed(msgspec.Struct, frozen=True):
    """A list, or one chunk of it, with its metadata."""

    entries: list[Entry]
    metadata: dict[str, Any]


class Candidates(NamedTuple):
    """The objects at one version, before selectors and limit."""

    entries: list[Entry]
    version: int
    selection: ListSelection


def get_entry(store: ObjectStore, target: RequestTarget) -> Entry:
    """Return the named object. Raises StatusError 404."""
    resource = target.resource
    entry = store.get(resource.store, target.namespace, target.name)
    if entry is None:
        raise not_found(resource.plural, resource.group, target.name)
    return entry


def read_list(store: ObjectStore, target: RequestTarget, options: ListOptions) -> Listed:
    """Return the selected objects, by namespace and name."""
    return select_entries(read_candidates(store, target, options), options)


def read_candidates(store: ObjectStore, target: RequestTarget, options: ListOptions) -> Candidates:
    """Return the objects at the requested version, before selectors and limit."""
    resource = target.resource
    selection = ListSelection(resource, target.namespace, options)
    version, after = _starting_point(store, options)
    if version == store.version:
        entries = _current_entries(store, selection, resource.store)
    else:
        try:
            entries = store.entries_at(resource.store, version, target.namespace)
        except RevisionCompacted:
            raise _too_old(after) from None
    if after is not None:
        entries = entries[bisect_right(entries, after, key=_key_of) :]
    return Candidates(entries, version, selection)


def select_entries(candidates: Candidates, options: ListOptions) -> Listed:
    """Return the selected objects up to the limit; safe in a thread."""
    selected, selection = candidates.entries, candidates.selection
    if not selection.matches_all:
        selected = [entry for entry in selected if selection.matches(entry)]
    metadata: dict[str, Any] = {"resourceVersion": str(candidates.version)}
    if 0 < options.limit < len(selected):
        last = selected[options.limit - 1]
        metadata["continue"] = _make_token(candidates.version, last.namespace, last.name)
        if selection.matches_all:
            # As in Kubernetes, the remaining items are counted only without selectors.
            metadata["remainingItemCount"] = len(selected) - options.limit
        selected = selected[: options.limit]
    return Listed(selected, metadata)


def _key_of(entry: Entry) -> tuple[str, str]:
    return (entry.namespace, entry.name)


def too_large_version(asked: int, current: int) -> StatusError:
    """Return the error for a version that the store has not reached."""
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={
            "causes": [
                {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            ]
        },
        retry_after=1,
    )


def _current_entries(store: ObjectStore, selection: ListSelection, name: str) -> list[Entry]:
    single = selection.single_name()
    if single and selection.namespace:
        entry = store.get(name, selection.namespace, single)
        return [] if entry is None else [entry]
    return store.entries(name, selection.namespace)


def _starting_point(store: ObjectStore, options: ListOptions) -> tuple[int, tuple[str, str] | None]:
    """Return the version to list at, and the object after which to continue."""
    if options.continue_token:
        if options.resource_version not in ("", "0"):
            message = "specifying resource version is not allowed when using continue"
            raise bad_request(message)
        version, after = _read_token(options.continue_token)
        if version > store.version:
            raise too_large_version(version, store.version)
        return (store.version if version < 0 else version), after
    if options.resource_version in ("", "0"):
        return store.version, None
    asked = check_version(options.resource_version)
    if asked > store.version:
        raise too_large_version(asked, store.version)
    return (asked if options.match == EXACT else store.version), None


def _too_old(after: tuple[str, str] | None) -> StatusError:
    if after is None:
        return expired("The resourceVersion for the provided list is too old.")
    # The client may continue with the current state of the rest, if it accepts inconsistency.
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can "
        "start a new list without the continue parameter, or use the continue token in this "
        "response to retrieve the remainder of the results. Continuing with the provided token "
        "results in an inconsistent list - objects that were created, modified, or deleted "
        "between the time the first chunk was returned and now may show up in the list."
    )
    failure = expired(message)
    failure.metadata = {"continue": _make_token(-1, *after)}
    return failure


def _make_token(version: int, namespace: str, name: str) -> str:
    value = {"v": _CONTINUE_API_VERSION, "rv": version, "start": f"{namespace}/{name}\0"}
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        padded = token.encode() + b"=" * (-len(token) % 4)
        value = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Token)
    except (binascii.Error, UnicodeEncodeError):
        raise _bad_token("illegal base64 data at input byte 0") from None
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise _bad_token(str(error)) from None
    if value.v != _CONTINUE_API_VERSION:
        raise _bad_token("server does not recognize this encoded version " + f'"{value.v}"')
    namespace, slash, name = value.start.removesuffix("\0").partition("/")
    if not slash or not value.rv:
        raise _bad_token("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
    return value.rv, (namespace, name)


def _bad_token(why: str) -> StatusError:
    return bad_request(f"invalid continue token: continue key is not valid: {why}")


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str
