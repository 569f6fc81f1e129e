"""Kinds with hardly a column of their own, and the table for kinds that nobody knows."""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.printing.cells import AGE, NAME, Cells, Column, Printer, age, name_of
from keepclose.apiserver.tables.ages import read_time
from keepclose.apiserver.tables.fields import object_at, text_at, texts_at, value_at
from keepclose.model.json_values import JsonObject


def _namespace_cells(item: JsonObject, now: float) -> Cells:
    return [name_of(item), text_at(item, "status", "phase") or "Active", age(item, now)]


def _config_map_cells(item: JsonObject, now: float) -> Cells:
    entries = len(object_at(item, "data") or {}) + len(object_at(item, "binaryData") or {})
    return [name_of(item), entries, age(item, now)]


def _service_account_cells(item: JsonObject, now: float) -> Cells:
    return [name_of(item), age(item, now)]


def _lease_cells(item: JsonObject, now: float) -> Cells:
    return [name_of(item), text_at(item, "spec", "holderIdentity"), age(item, now)]


def _service_cidr_cells(item: JsonObject, now: float) -> Cells:
    return [name_of(item), ",".join(texts_at(item, "spec", "cidrs")), age(item, now)]


def _unknown_cells(item: JsonObject, now: float) -> Cells:
    del now
    created = read_time(value_at(item, "metadata", "creationTimestamp"))
    if created is None:
        return [name_of(item), "0001-01-01T00:00:00Z"]
    shown = created.replace(microsecond=0, tzinfo=None).isoformat()
    return [name_of(item), f"{shown}Z"]


NAMESPACE: Final = Printer(
    columns=(NAME, Column("Status", "Whether the namespace is in use or going away."), AGE),
    cells=_namespace_cells,
)
CONFIG_MAP: Final = Printer(
    columns=(NAME, Column("Data", "How many entries it has."), AGE),
    cells=_config_map_cells,
)
SERVICE_ACCOUNT: Final = Printer(
    columns=(NAME, AGE),
    cells=_service_account_cells,
)
LEASE: Final = Printer(
    columns=(NAME, Column("Holder", "Who holds the lease."), AGE),
    cells=_lease_cells,
)
SERVICE_CIDR: Final = Printer(
    columns=(NAME, Column("CIDRs", "Ranges from which Services get their addresses."), AGE),
    cells=_service_cidr_cells,
)
UNKNOWN_KIND: Final = Printer(
    columns=(NAME, Column("Created At", "When the object was created.", type="date")),
    cells=_unknown_cells,
)
