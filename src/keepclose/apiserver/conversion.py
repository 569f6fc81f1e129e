"""Events as both of their groups show them: core/v1 is stored, events.k8s.io/v1 is converted.

The newer group renamed most fields; nothing is lost either way. Slices can also be read in the old
version that kubectl 1.20 describes them by. Every other kind is stored as it is served, and comes
back as the same object.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.registry.resources import Resource
from keepclose.model.json_values import JsonObject
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


def _as_old_slice(stored: JsonObject) -> JsonObject:
    """Return a slice as discovery.k8s.io/v1beta1 shows it: places are labels of a topology."""
    endpoints: list[JsonObject] = []
    for one in stored.get("endpoints") or ():
        shown = {key: value for key, value in one.items() if key != "deprecatedTopology"}
        topology = dict(one.get("deprecatedTopology") or {})
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
