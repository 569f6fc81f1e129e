"""The Table that answers `kubectl get`: one row an object, cells as kube-apiserver fills them.

kubectl prints what the server sends and has no columns of its own. v1 and v1beta1 of the Table have
the same shape. A kind without a printer of its own gets name and time of creation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from keepclose.apiserver.printing.cells import Printer, object_at, text_at
from keepclose.apiserver.printing.other_kinds import (
    CONFIG_MAP,
    EVENT,
    LEASE,
    NAMESPACE_COLUMNS,
    NEWER_EVENT,
    NODE_COLUMNS,
    SERVICE_ACCOUNT,
    SERVICE_CIDR,
    UNKNOWN_KIND,
)
from keepclose.apiserver.printing.services import ENDPOINT_SLICE, ENDPOINTS_COLUMNS, SERVICE_COLUMNS
from keepclose.apiserver.printing.workloads import DAEMON_SET, DEPLOYMENT, POD, REPLICA_SET
from keepclose.apiserver.resources import Resource
from keepclose.model.json_values import JsonObject

Include = Literal["Metadata", "Object", "None"]

META_V1: Final = "meta.k8s.io/v1"
_PRINTERS: Final[Mapping[tuple[str, str], Printer]] = {
    ("", "Namespace"): NAMESPACE_COLUMNS,
    ("", "Node"): NODE_COLUMNS,
    ("", "Pod"): POD,
    ("", "Service"): SERVICE_COLUMNS,
    ("", "Endpoints"): ENDPOINTS_COLUMNS,
    ("", "Event"): EVENT,
    ("", "ConfigMap"): CONFIG_MAP,
    ("", "ServiceAccount"): SERVICE_ACCOUNT,
    ("apps", "Deployment"): DEPLOYMENT,
    ("apps", "ReplicaSet"): REPLICA_SET,
    ("apps", "DaemonSet"): DAEMON_SET,
    ("coordination.k8s.io", "Lease"): LEASE,
    ("discovery.k8s.io", "EndpointSlice"): ENDPOINT_SLICE,
    ("events.k8s.io", "Event"): NEWER_EVENT,
    ("networking.k8s.io", "ServiceCIDR"): SERVICE_CIDR,
}


def make_table(
    resource: Resource,
    objects: Sequence[JsonObject],
    *,
    now: float,
    include: Include = "Metadata",
    columns_only: bool = False,
    headers: bool = True,
    list_metadata: Mapping[str, Any] | None = None,
    api_version: str = META_V1,
) -> JsonObject:
    """Return the objects as a Table.

    `list_metadata` is that of the list; without it the Table is of a single object and has its
    resourceVersion. `columns_only` omits the rows, `headers=False` the columns: a watch sends
    columns with its first event only. The rows hold the objects' metadata, or the objects, as they
    are: nothing is copied.
    """
    printer = _PRINTERS.get((resource.group, resource.kind), UNKNOWN_KIND)
    return {
        "kind": "Table",
        "apiVersion": api_version,
        "metadata": _list_metadata(objects, list_metadata),
        "columnDefinitions": (
            [column.definition() for column in printer.columns] if headers else None
        ),
        "rows": []
        if columns_only
        else [
            _row(printer, item, now=now, include=include, api_version=api_version)
            for item in objects
        ],
    }


def _row(
    printer: Printer, item: JsonObject, *, now: float, include: Include, api_version: str
) -> JsonObject:
    row: JsonObject = {"cells": printer.cells(item, now)}
    conditions = printer.conditions(item)
    if conditions:
        row["conditions"] = conditions
    row["object"] = _included(item, include, api_version)
    return row


def _included(item: JsonObject, include: Include, api_version: str) -> JsonObject | None:
    if include == "Object":
        return item
    if include == "None":
        return None
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": api_version,
        "metadata": object_at(item, "metadata") or {},
    }


def _list_metadata(
    objects: Sequence[JsonObject], list_metadata: Mapping[str, Any] | None
) -> JsonObject:
    if list_metadata is None:
        version = text_at(objects[0], "metadata", "resourceVersion") if objects else ""
        return {"resourceVersion": version} if version else {}
    names = ("resourceVersion", "continue", "remainingItemCount")
    return {
        name: list_metadata[name] for name in names if list_metadata.get(name) not in (None, "")
    }
