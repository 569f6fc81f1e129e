"""JSON about flows from outside: Google Cloud's log, answers of Prometheus, and price tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
from fuzzbounds import require

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.cloud_logs import CloudLog
from keepclose.accounting.cost import CostGrouping, price_flows
from keepclose.accounting.flow_files import FlowFileError, write_csv
from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowTable
from keepclose.accounting.gcp_logs import is_gcp_log, read_gcp_log
from keepclose.accounting.prices import PriceError, read_prices
from keepclose.accounting.prometheus_answers import FlowQueries

MUTATES_JSON = True
_EMPTY = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


def seeds() -> Iterator[bytes]:
    """Yield an input for each of the three."""
    connection = {"src_ip": "10.0.0.1", "dest_ip": "::1", "src_port": 4, "dest_port": 5}
    payload: dict[str, Any] = {
        "connection": {**connection, "protocol": 6},
        "reporter": "SRC",
        "bytes_sent": "12",
        "start_time": "2026-01-01T00:00:00.123456789Z",
        "end_time": "2026-01-01T00:00:01Z",
        "src_instance": {"zone": "a", "vm_name": "n"},
        "dest_gke_details": {
            "pod": {"pod_name": "p", "pod_namespace": "x", "pod_workload": {"workload_name": "w"}},
            "service": [{"service_name": "s", "service_namespace": "x"}],
        },
    }
    yield b"g\n" + msgspec.json.encode([{"jsonPayload": payload}, payload])
    yield b"g\n" + msgspec.json.encode({"jsonPayload": payload})
    metric = {"service": "web", "client_zone": "a", "endpoint_zone": "b", "kind": "pod"}
    for kind, series in (
        ("vector", {"metric": metric, "value": [1.5, "7"]}),
        ("matrix", {"metric": metric, "values": [[1, "7"], [2, "+Inf"], [3, "2"]]}),
    ):
        document = {"status": "success", "data": {"resultType": kind, "result": [series]}}
        yield b"p\n" + msgspec.json.encode({**document, "warnings": ["w"]})
    pair = {"from": "a*b", "to": "*", "sent": 0.01, "received": 1e308}
    prices = {"currency": "USD", "per": "GB", "betweenZones": [pair], "sameZone": {"sent": 1}}
    yield b"m\n" + msgspec.json.encode({**prices, "outside": {"received": 2}, "date": 2025})


def check(data: bytes) -> None:
    """Read the input as what its first byte names; only documented errors are raised."""
    text = data.partition(b"\n")[2]
    match data[:1]:
        case b"g":
            _check_log(text)
        case b"p":
            _check_answer(text)
        case _:
            _check_prices(text)


def _check_log(text: bytes) -> None:
    lines = text.decode("utf-8", "surrogateescape").split("\n")
    is_gcp_log(lines[0])
    log = CloudLog()
    try:
        read_gcp_log(lines, log, name="log")
    except FlowFileError:
        return
    table = log.table(AddressBook())
    require(sum(counts.connections for _, counts in table) <= log.records, "too many connections")
    list(write_csv(table))


def _check_answer(text: bytes) -> None:
    try:
        table = FlowQueries().read([text, _EMPTY, _EMPTY], name="p")
    except FlowFileError:
        return
    require(all(counts.connections >= 0 for _, counts in table), "a negative count")
    require(math.isfinite(table.end) and table.seconds >= 0, "a period that is none")


def _check_prices(text: bytes) -> None:
    try:
        prices = read_prices(msgspec.json.decode(text), name="prices")
    except (PriceError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    flows = FlowTable(start=1, end=3601)
    flows.add(FlowKey(client_zone="aab", endpoint_zone="b"), FlowCounts(1, 0, 0, 10**9, 10**9))
    report = price_flows([flows], prices, by=CostGrouping.ZONES)
    require(math.isfinite(report.total.amount) and report.total.amount >= 0, "a cost that is none")
    known = report.total.bytes + sum(report.unpriced.values())
    require(known == 2 * 10**9, "bytes that are neither priced nor reported")
