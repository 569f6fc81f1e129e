"""Nodes, Events and the kinds with hardly a column of their own, and the table for unknown kinds.

A role of a node is the end of a label `node-role.kubernetes.io/<role>` or the value of
`kubernetes.io/role`. The core group and events.k8s.io name the fields of an Event differently; the
rows are the same. A repeated event has a series, which holds its last time and its count; an event
of the newer group that happened once has no count and counts as one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from keepclose.apiserver.printing.cells import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Cells,
    Printer,
    TableColumn,
    age,
    age_of,
    is_set,
    list_at,
    number_at,
    object_at,
    object_name,
    pairs_at,
    parse_creation_time,
    text_at,
    texts_at,
    value_at,
    wide,
)
from keepclose.model.json_values import JsonObject

_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
_ROLE_LABEL: Final = "kubernetes.io/role"


def node_status(node: JsonObject) -> str:
    """Return "Ready", "NotReady" or "Unknown", and whether the node is cordoned."""
    ready = [
        text_at(condition, "status") == "True"
        for condition in list_at(node, "status", "conditions")
        if text_at(condition, "type") == "Ready"
    ]
    status = ("Ready" if ready[-1] else "NotReady") if ready else "Unknown"
    return f"{status},SchedulingDisabled" if is_set(node, "spec", "unschedulable") else status


def node_roles(node: JsonObject) -> str:
    """Return the roles of the node, by its labels."""
    labels = pairs_at(node, "metadata", "labels")
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    roles.add(labels.get(_ROLE_LABEL, ""))
    return ",".join(sorted(roles - {""})) or NONE


def _node_cells(node: JsonObject, now: float) -> Cells:
    architecture = text_at(node, "status", "nodeInfo", "architecture")
    kernel = _info(node, "kernelVersion")
    return [
        object_name(node),
        node_status(node),
        node_roles(node),
        age(node, now),
        text_at(node, "status", "nodeInfo", "kubeletVersion"),
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        _info(node, "osImage"),
        f"{kernel} ({architecture})" if architecture else kernel,
        _info(node, "containerRuntimeVersion"),
    ]


def _address(node: JsonObject, kind: str) -> str:
    for address in list_at(node, "status", "addresses"):
        if text_at(address, "type") == kind:
            return text_at(address, "address")
    return NONE


def _info(node: JsonObject, name: str) -> str:
    return text_at(node, "status", "nodeInfo", name) or UNKNOWN


class _EventFields(NamedTuple):
    """The names of the shown fields in the events of one group."""

    subject: str
    message: str
    source: str
    reporter: str
    first: str
    last: str
    times: str


_CORE_FIELDS: Final = _EventFields(
    subject="involvedObject",
    message="message",
    source="source",
    reporter="reportingComponent",
    first="firstTimestamp",
    last="lastTimestamp",
    times="count",
)
_NEWER_FIELDS: Final = _EventFields(
    subject="regarding",
    message="note",
    source="deprecatedSource",
    reporter="reportingController",
    first="deprecatedFirstTimestamp",
    last="deprecatedLastTimestamp",
    times="deprecatedCount",
)


def _core_cells(event: JsonObject, now: float) -> Cells:
    return _event_cells(event, now, names=_CORE_FIELDS)


def _newer_cells(event: JsonObject, now: float) -> Cells:
    return _event_cells(event, now, names=_NEWER_FIELDS)


def _event_cells(event: JsonObject, now: float, *, names: _EventFields) -> Cells:
    first = _age(event, now, names.first)
    if first == UNKNOWN:
        first = _age(event, now, "eventTime")
    last = _age(event, now, names.last)
    if last == UNKNOWN:
        last = first
    count = number_at(event, names.times) or 1
    series = object_at(event, "series")
    if series is not None:
        last, count = _age(series, now, "lastObservedTime"), number_at(series, "count")
    return [
        last,
        text_at(event, "type"),
        text_at(event, "reason"),
        _subject(event, names),
        text_at(event, names.subject, "fieldPath"),
        _source(event, names),
        text_at(event, names.message).strip(),
        first,
        count,
        object_name(event),
    ]


def _age(holder: JsonObject, now: float, field: str) -> str:
    return age_of(value_at(holder, field), now)


def _subject(event: JsonObject, names: _EventFields) -> str:
    kind, name = text_at(event, names.subject, "kind"), text_at(event, names.subject, "name")
    return f"{kind.lower()}/{name}" if name else kind.lower()


def _source(event: JsonObject, names: _EventFields) -> str:
    component = text_at(event, names.source, "component") or text_at(event, names.reporter)
    instance = text_at(event, names.source, "host") or text_at(event, "reportingInstance")
    return f"{component}, {instance}" if instance else component


def _namespace_cells(item: JsonObject, now: float) -> Cells:
    return [object_name(item), text_at(item, "status", "phase") or "Active", age(item, now)]


def _config_map_cells(item: JsonObject, now: float) -> Cells:
    entries = len(object_at(item, "data") or {}) + len(object_at(item, "binaryData") or {})
    return [object_name(item), entries, age(item, now)]


def _service_account_cells(item: JsonObject, now: float) -> Cells:
    return [object_name(item), age(item, now)]


def _lease_cells(item: JsonObject, now: float) -> Cells:
    return [object_name(item), text_at(item, "spec", "holderIdentity"), age(item, now)]


def _service_cidr_cells(item: JsonObject, now: float) -> Cells:
    return [object_name(item), ",".join(texts_at(item, "spec", "cidrs")), age(item, now)]


def _unknown_cells(item: JsonObject, now: float) -> Cells:
    del now
    created = parse_creation_time(value_at(item, "metadata", "creationTimestamp"))
    if created is None:
        return [object_name(item), "0001-01-01T00:00:00Z"]
    shown = created.replace(microsecond=0, tzinfo=None).isoformat()
    return [object_name(item), f"{shown}Z"]


NODE_COLUMNS: Final = Printer(
    columns=(
        NAME,
        TableColumn("Status", "Whether the node is ready and accepts new pods."),
        TableColumn("Roles", "The roles of the node, by its labels."),
        AGE,
        TableColumn("Version", "Version of the kubelet."),
        wide("Internal-IP", "First address inside the cluster."),
        wide("External-IP", "First address outside the cluster."),
        wide("OS-Image", "Operating system."),
        wide("Kernel-Version", "Kernel and its architecture."),
        wide("Container-Runtime", "The container runtime and its version."),
    ),
    cells=_node_cells,
)
_EVENT_COLUMNS: Final = (
    TableColumn("Last Seen", "Time since the event happened last."),
    TableColumn("Type", "Normal or Warning."),
    TableColumn("Reason", "The reason of the event, in one word."),
    TableColumn("Object", "The object of the event."),
    wide("Subobject", "The part of the object."),
    wide("Source", "The component that reports the event."),
    TableColumn("Message", "What happened."),
    wide("First Seen", "Time since the event happened first."),
    wide("Count", "How often the event happened."),
    TableColumn("Name", "Name of the event.", format="name", priority=1),
)
EVENT: Final = Printer(columns=_EVENT_COLUMNS, cells=_core_cells)
NEWER_EVENT: Final = Printer(columns=_EVENT_COLUMNS, cells=_newer_cells)
NAMESPACE_COLUMNS: Final = Printer(
    columns=(NAME, TableColumn("Status", "Whether the namespace is active or being deleted."), AGE),
    cells=_namespace_cells,
)
CONFIG_MAP: Final = Printer(
    columns=(NAME, TableColumn("Data", "Number of entries."), AGE),
    cells=_config_map_cells,
)
SERVICE_ACCOUNT: Final = Printer(
    columns=(NAME, AGE),
    cells=_service_account_cells,
)
LEASE: Final = Printer(
    columns=(NAME, TableColumn("Holder", "Holder of the lease."), AGE),
    cells=_lease_cells,
)
SERVICE_CIDR: Final = Printer(
    columns=(
        NAME,
        TableColumn("CIDRs", "Ranges from which Services are allocated cluster IPs."),
        AGE,
    ),
    cells=_service_cidr_cells,
)
UNKNOWN_KIND: Final = Printer(
    columns=(NAME, TableColumn("Created At", "When the object was created.", type="date")),
    cells=_unknown_cells,
)
