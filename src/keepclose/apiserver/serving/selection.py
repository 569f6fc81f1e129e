"""Which stored objects a request with selectors is about.

Labels are kept beside each entry, so most requests are answered without reading any JSON; fields
other than name and namespace are read from the object when a selector names them. Requests with
equal selectors share one matcher, and what is asked about one object by many watchers is read once.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from keepclose.apiserver.conversion import from_stored
from keepclose.apiserver.registry.resources import Resource
from keepclose.apiserver.serving.options import ListOptions
from keepclose.apiserver.status_errors import Failure, bad_request
from keepclose.apiserver.storage.entries import Entry
from keepclose.model.selectors import FieldMatcher, FieldSelector, LabelMatcher, LabelSelector

_METADATA: Final = frozenset({"metadata.name", "metadata.namespace"})
_NO_LABELS: Final[dict[str, str]] = {}
# Most watchers look at the same few changes.
_MOST_READ: Final = 256
_decode_parts: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_label_matchers: WeakValueDictionary[LabelSelector, LabelMatcher] = WeakValueDictionary()
_field_matchers: WeakValueDictionary[FieldSelector, FieldMatcher] = WeakValueDictionary()


class Selection:
    """The namespace and the selectors of one request."""

    def __init__(self, resource: Resource, namespace: str, options: ListOptions) -> None:
        """Check that every field may be selected by."""
        self.resource = resource
        self.namespace = namespace
        self.fields = options.fields
        self.takes_all = options.selects_all
        self._labels = _label_matcher(options.labels)
        self._fields = _field_matcher(options.fields)
        self._reads_objects = False
        for one in options.fields.requirements:
            if one.field in resource.selectable:
                self._reads_objects = True
            elif one.field not in _METADATA:
                raise _unknown_field(resource, one.field)

    def single_name(self) -> str:
        """Return the one name that the fields allow, or ""."""
        for one in self.fields.requirements:
            if one.field == "metadata.name" and not one.negated:
                return one.value
        return ""

    def takes(self, entry: Entry | None) -> bool:
        """Return whether the entry is selected; an absent one is not."""
        if entry is None or (self.namespace and entry.namespace != self.namespace):
            return False
        if self.takes_all:
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


# By the id of an entry, which is held beside and so keeps its id.
_read: dict[int, tuple[Entry, Resource, dict[str, str]]] = {}


def _read_fields(resource: Resource, entry: Entry) -> dict[str, str]:
    """Return all fields of the object that may be selected by."""
    known = _read.get(id(entry))
    if known is not None and known[0] is entry and known[1] is resource:
        return known[2]
    found = _decode_selectable(resource, entry.data)
    values = {field: _text_at(found, field) for field in resource.selectable}
    if len(_read) >= _MOST_READ:
        _read.clear()
    _read[id(entry)] = (entry, resource, values)
    return values


def _decode_selectable(resource: Resource, data: bytes) -> dict[str, Any]:
    """Return an object with those of its members that may be selected by."""
    if resource.stored_as:
        return from_stored(resource, msgspec.json.decode(data))
    # NB: the loop does this for watchers, and an object may have a mebibyte of other members.
    names = {field.partition(".")[0] for field in resource.selectable} | _EVENT_SOURCES
    parts = _decode_parts(data)
    return {name: msgspec.json.decode(parts[name]) for name in names if name in parts}


def _text_at(found: Any, path: str) -> str:
    """Return the field as text; absent ones as "", booleans as the API writes them."""
    if path == "source":
        source = found.get("source") or {}
        return str(source.get("component") or found.get("reportingComponent") or "")
    for step in path.split("."):
        if not isinstance(found, dict):
            return ""
        found = found.get(step)
    if isinstance(found, bool) or (found is None and path in _BOOLEANS):
        return "true" if found else "false"
    return "" if found is None else str(found)


_EVENT_SOURCES: Final = frozenset({"source", "reportingComponent"})
_BOOLEANS: Final = frozenset({"spec.unschedulable", "spec.hostNetwork"})


def _unknown_field(resource: Resource, field: str) -> Failure:
    if resource.selectable:
        return bad_request(f"field label not supported: {field}")
    return bad_request(
        f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
    )
