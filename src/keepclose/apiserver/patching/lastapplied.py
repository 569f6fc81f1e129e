"""What kubectl's client-side apply left behind, so that server-side apply can take over.

The annotation holds the configuration that was applied last. Its fields are handed over without
conflicts as long as they still have the values it gave them, and the annotation is kept up to
date, for kubectl alone.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.patch.comparing import compare_objects
from keepclose.apiserver.patch.field_sets import FieldSet, difference
from keepclose.apiserver.patch.go_format import encode_sorted
from keepclose.apiserver.patch.shapes import shape_of
from keepclose.apiserver.patch.typed_values import list_fields
from keepclose.apiserver.patching.checking import find_misfits
from keepclose.apiserver.schema.types import Type
from keepclose.model.json_values import JsonObject, decode_json

KUBECTL: Final = "kubectl"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
MAX_ANNOTATIONS: Final = 256 * 1024


def list_last_applied(live: JsonObject | None, api_version: str, described: Type) -> FieldSet:
    """Return the fields of a client-side apply that still have the value it gave them."""
    annotations = ((live or {}).get("metadata") or {}).get("annotations") or {}
    shape = shape_of(described)
    try:
        last = decode_json(annotations.get(LAST_APPLIED, ""))
    except ValueError:
        return {}
    if shape is None or not isinstance(last, dict) or last.get("apiVersion") != api_version:
        return {}
    if find_misfits(last, described):
        return {}
    changed, gone = compare_objects(last, live or {}, shape, frozenset())
    return difference(difference(list_fields(last, shape), changed), gone)


def renew_last_applied(metadata: JsonObject, applied: JsonObject) -> None:
    """Bring the annotation up to date with what was applied, where there is one."""
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return
    stated = dict(applied)
    if isinstance(stated.get("metadata"), dict):
        inner = dict(stated["metadata"])
        if isinstance(inner.get("annotations"), dict):
            own = {k: v for k, v in inner["annotations"].items() if k != LAST_APPLIED}
            inner["annotations"] = own
            if not own:
                del inner["annotations"]
        stated["metadata"] = inner
    renewed = {**annotations, LAST_APPLIED: encode_sorted(stated) + "\n"}
    if sum(len(k.encode()) + len(v.encode()) for k, v in renewed.items()) > MAX_ANNOTATIONS:
        del renewed[LAST_APPLIED]
    metadata["annotations"] = renewed
