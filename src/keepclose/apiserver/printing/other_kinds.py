"""Events: when, how bad, why, about what, and in which words.

The core group and events.k8s.io name the same fields differently; the rows are the same. An event
that repeats has a series, which then tells when it was last seen and how often; an event of the
newer group that happened once has no count and counts as one.
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
    """Return "Ready", "NotReady" or "Unknown", and whether new pods are kept off."""
    ready = [
        text_at(condition, "status") == "True"
        for condition in list_at(node, "status", "conditions")
        if text_at(condition, "type") == "Ready"
    ]
    status = ("Ready" if ready[-1] else "NotReady") if ready else "Unknown"
    return f"{status},SchedulingDisabled" if is_set(node, "spec", "unschedulable") else status


def node_roles(node: JsonObject) -> str:
    """Return what the labels say that the node is for."""
    labels = pairs_at(node, "metadata", "labels")
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    roles.add(labels.get(_ROLE_LABEL, ""))
    return ",".join(sorted(roles - {""})) or NONE


def _cells(node: JsonObject, now: float) -> Cells:
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


NODE_COLUMNS: Final = Printer(
    columns=(
        NAME,
        TableColumn("Status", "Whether the node is ready and takes new pods."),
        TableColumn("Roles", "What the node is for, by its labels."),
        AGE,
        TableColumn("Version", "Version of the kubelet."),
        wide("Internal-IP", "First address inside the cluster."),
        wide("External-IP", "First address outside the cluster."),
        wide("OS-Image", "Operating system."),
        wide("Kernel-Version", "Kernel and its architecture."),
        wide("Container-Runtime", "What runs the containers."),
    ),
    cells=_cells,
)


class _Names(NamedTuple):
    """Where a group's events keep what is shown."""

    subject: str
    message: str
    source: str
    reporter: str
    first: str
    last: str
    times: str


_CORE: Final = _Names(
    subject="involvedObject",
    message="message",
    source="source",
    reporter="reportingComponent",
    first="firstTimestamp",
    last="lastTimestamp",
    times="count",
)
_NEWER: Final = _Names(
    subject="regarding",
    message="note",
    source="deprecatedSource",
    reporter="reportingController",
    first="deprecatedFirstTimestamp",
    last="deprecatedLastTimestamp",
    times="deprecatedCount",
)


def _core_cells(event: JsonObject, now: float) -> Cells:
    return _other_kinds_cells(event, now, names=_CORE)


def _newer_cells(event: JsonObject, now: float) -> Cells:
    return _other_kinds_cells(event, now, names=_NEWER)


def _other_kinds_cells(event: JsonObject, now: float, *, names: _Names) -> Cells:
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


def _subject(event: JsonObject, names: _Names) -> str:
    kind, name = text_at(event, names.subject, "kind"), text_at(event, names.subject, "name")
    return f"{kind.lower()}/{name}" if name else kind.lower()


def _source(event: JsonObject, names: _Names) -> str:
    component = text_at(event, names.source, "component") or text_at(event, names.reporter)
    instance = text_at(event, names.source, "host") or text_at(event, "reportingInstance")
    return f"{component}, {instance}" if instance else component


_COLUMNS: Final = (
    TableColumn("Last Seen", "Time since it happened last."),
    TableColumn("Type", "Normal or Warning."),
    TableColumn("Reason", "Why it happened, in one word."),
    TableColumn("Object", "What it happened to."),
    wide("Subobject", "Which part of the object it happened to."),
    wide("Source", "Who reports it."),
    TableColumn("Message", "What happened."),
    wide("First Seen", "Time since it happened first."),
    wide("Count", "How often it happened."),
    TableColumn("Name", "Name of the event.", format="name", priority=1),
)
EVENT: Final = Printer(columns=_COLUMNS, cells=_core_cells)
NEWER_EVENT: Final = Printer(columns=_COLUMNS, cells=_newer_cells)


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


NAMESPACE_COLUMNS: Final = Printer(
    columns=(NAME, TableColumn("Status", "Whether the namespace is in use or going away."), AGE),
    cells=_namespace_cells,
)
CONFIG_MAP: Final = Printer(
    columns=(NAME, TableColumn("Data", "How many entries it has."), AGE),
    cells=_config_map_cells,
)
SERVICE_ACCOUNT: Final = Printer(
    columns=(NAME, AGE),
    cells=_service_account_cells,
)
LEASE: Final = Printer(
    columns=(NAME, TableColumn("Holder", "Who holds the lease."), AGE),
    cells=_lease_cells,
)
SERVICE_CIDR: Final = Printer(
    columns=(NAME, TableColumn("CIDRs", "Ranges from which Services get their addresses."), AGE),
    cells=_service_cidr_cells,
)
UNKNOWN_KIND: Final = Printer(
    columns=(NAME, TableColumn("Created At", "When the object was created.", type="date")),
    cells=_unknown_cells,
)
