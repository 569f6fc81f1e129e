"""Events: when, how bad, why, about what, and in which words.

The core group and events.k8s.io name the same fields differently; the rows are the same. An event
that repeats has a series, which then tells when it was last seen and how often; an event of the
newer group that happened once has no count and counts as one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from keepclose.apiserver.printing.cells import Cells, Column, Printer, name_of, wide
from keepclose.apiserver.tables.ages import UNKNOWN, age_of
from keepclose.apiserver.tables.fields import number_at, object_at, text_at, value_at
from keepclose.model.json_values import JsonObject


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
    return _cells(event, now, names=_CORE)


def _newer_cells(event: JsonObject, now: float) -> Cells:
    return _cells(event, now, names=_NEWER)


def _cells(event: JsonObject, now: float, *, names: _Names) -> Cells:
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
        name_of(event),
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
    Column("Last Seen", "Time since it happened last."),
    Column("Type", "Normal or Warning."),
    Column("Reason", "Why it happened, in one word."),
    Column("Object", "What it happened to."),
    wide("Subobject", "Which part of the object it happened to."),
    wide("Source", "Who reports it."),
    Column("Message", "What happened."),
    wide("First Seen", "Time since it happened first."),
    wide("Count", "How often it happened."),
    Column("Name", "Name of the event.", format="name", priority=1),
)
EVENT: Final = Printer(columns=_COLUMNS, cells=_core_cells)
NEWER_EVENT: Final = Printer(columns=_COLUMNS, cells=_newer_cells)
