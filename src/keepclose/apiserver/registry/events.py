"""Writes of Events, and the conversion of events and slices between API versions.

Events are stored as core/v1 and converted to events.k8s.io/v1, which renamed most fields; nothing
is lost in either direction. An event with an eventTime comes from a client of the newer API and
must have more fields. Clients of events.k8s.io/v1 itself must meet stricter rules, which
`newer_event_causes` adds. Slices can also be read in discovery.k8s.io/v1beta1, with which kubectl
1.20 describes them. Every other kind is stored as it is served.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.registry.strategy import ObjectWrite, PlainStrategy, same
from keepclose.apiserver.resources import Resource
from keepclose.model.field_errors import FieldError, invalid, required
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import IMMUTABLE, qualified_name
from keepclose.model.well_known import HOSTNAME_LABEL, ZONE_LABEL

EVENTS_API: Final = "events.k8s.io/v1"
OLD_SLICES_API: Final = "discovery.k8s.io/v1beta1"
# Names in events.k8s.io/v1 and what core/v1 calls them; all others are the same.
_CORE_NAMES: Final = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_EVENTS_NAMES: Final = {core: newer for newer, core in _CORE_NAMES.items()}
_OTHER_NAMESPACE: Final = "does not match event.namespace"
_LIMIT: Final = 128
_NOTE_LIMIT: Final = 1024
_IMMUTABLE_FIELDS: Final = (
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)


def to_stored(resource: Resource, shown: JsonObject) -> JsonObject:
    """Return an object of the resource as it is stored."""
    if not _is_converted(resource):
        return shown
    return _renamed(shown, _CORE_NAMES, "v1")


def from_stored(resource: Resource, stored: JsonObject) -> JsonObject:
    """Return a stored object as the resource shows it."""
    if resource.api_version == OLD_SLICES_API:
        return _as_old_slice(stored)
    if not _is_converted(resource):
        return stored
    shown = _renamed(stored, _EVENTS_NAMES, EVENTS_API)
    for name in ("reportingController", "reportingInstance"):
        # The newer group leaves these two out where the older one writes them empty.
        if shown.get(name) == "":
            del shown[name]
    return shown


class EventStrategy(PlainStrategy):
    """Strategy of Events."""

    allows_create_on_update = True

    def set_defaults(self, write: ObjectWrite) -> None:
        """Write the fields that clients expect even when they are empty."""
        new = write.new
        for key in ("involvedObject", "source"):
            if new.get(key) is None:
                new[key] = {}
        for key in ("firstTimestamp", "lastTimestamp", "eventTime"):
            new.setdefault(key, None)
        for key in ("reportingComponent", "reportingInstance"):
            new[key] = new.get(key) or ""

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the event."""
        new = write.new
        namespace = new["metadata"].get("namespace", "")
        object_namespace = new["involvedObject"].get("namespace", "")
        field = "involvedObject.namespace"
        if not new.get("eventTime"):
            if object_namespace == namespace or (not object_namespace and namespace == "default"):
                return []
            return [invalid(field, object_namespace, _OTHER_NAMESPACE)]
        causes: list[FieldError] = []
        if not object_namespace and namespace not in ("default", "kube-system"):
            causes.append(invalid(field, object_namespace, _OTHER_NAMESPACE))
        return causes + _text_causes(new)


def newer_event_causes(causes: list[FieldError], write: ObjectWrite) -> list[FieldError]:
    """Return the causes of an event that was written through events.k8s.io/v1, in its names."""
    renamed = [
        FieldError(cause.type, "reportingController", cause.detail, cause.value)
        if cause.field == "reportingComponent"
        else cause
        for cause in causes
    ]
    return renamed + strict_event_causes(write.new, write.old or None)


def strict_event_causes(new: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """Return the additional validation errors of an event written through events.k8s.io/v1.

    The event is in its stored form.
    """
    if old is None:
        causes = _series_causes(new)
        if not new.get("eventTime"):
            causes.append(required("eventTime"))
        kind = new.get("type", "")
        if kind not in ("Normal", "Warning"):
            causes.append(invalid("type", "", f"has invalid value: {kind}"))
        causes += [
            invalid(key, "", "needs to be unset")
            for key in ("firstTimestamp", "lastTimestamp", "count", "source")
            if new.get(key)
        ]
        return causes
    causes = [] if same(new.get("series"), old.get("series")) else _series_causes(new)
    for key in _IMMUTABLE_FIELDS:
        if not same(new.get(key), old.get(key)):
            shown = "reportingController" if key == "reportingComponent" else key
            causes.append(invalid(shown, new.get(key), IMMUTABLE))
    return causes


def _as_old_slice(stored: JsonObject) -> JsonObject:
    """Return a slice as discovery.k8s.io/v1beta1 shows it: node and zone are topology labels."""
    endpoints: list[JsonObject] = []
    for endpoint in stored.get("endpoints") or ():
        shown = {key: value for key, value in endpoint.items() if key != "deprecatedTopology"}
        topology = dict(endpoint.get("deprecatedTopology") or {})
        if shown.get("nodeName"):
            topology[HOSTNAME_LABEL] = shown["nodeName"]
        zone = shown.pop("zone", None)
        if zone:
            topology[ZONE_LABEL] = zone
        if topology:
            shown["topology"] = topology
        endpoints.append(shown)
    return {**stored, "apiVersion": OLD_SLICES_API, "endpoints": endpoints}


def _is_converted(resource: Resource) -> bool:
    return resource.kind == "Event" and resource.api_version == EVENTS_API


def _renamed(obj: JsonObject, names: dict[str, str], api_version: str) -> JsonObject:
    renamed = {names.get(key, key): value for key, value in obj.items()}
    renamed["apiVersion"] = api_version
    return renamed


def _series_causes(new: JsonObject) -> list[FieldError]:
    series = new.get("series")
    if series is None:
        return []
    causes: list[FieldError] = []
    if series.get("count", 0) < 2:
        causes.append(invalid("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        causes.append(required("series.lastObservedTime"))
    return causes


def _text_causes(new: JsonObject) -> list[FieldError]:
    controller = new.get("reportingComponent") or ""
    causes: list[FieldError] = []
    if not controller:
        causes.append(required("reportingComponent"))
    causes += [
        invalid("reportingComponent", controller, text) for text in qualified_name(controller)
    ]
    for key, limit, needed in (
        ("reportingInstance", _LIMIT, True),
        ("action", _LIMIT, True),
        ("reason", _LIMIT, True),
        ("message", _NOTE_LIMIT, False),
    ):
        text = new.get(key) or ""
        if needed and not text:
            causes.append(required(key))
        if len(text.encode()) > limit:
            causes.append(invalid(key, "", f"can have at most {limit} characters"))
    return causes
