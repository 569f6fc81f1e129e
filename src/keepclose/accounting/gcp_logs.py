"""VPC flow logs of Google Cloud: JSON of Cloud Logging, an entry a line or an array of entries.

An entry's jsonPayload has the connection, who reports it (SRC or DEST) and, unless metadata is
switched off, zones, instances and GKE pods of both sides. These fill in what the objects of the
cluster do not say. Google counts bytes of the payload, without headers, and samples packets, so
the numbers are lower than what a node sends; a note says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from keepclose.accounting.address_book import pack_address
from keepclose.accounting.cloud_logs import NO_HINT, CloudLog, LogRecord, PartyHint
from keepclose.accounting.flow_files import (
    MAX_NAME_CHARACTERS,
    FlowFileError,
    bounded_lines,
)
from keepclose.accounting.flow_table import parse_moment
from keepclose.model.json_values import INT64_MAX, parse_natural
from keepclose.model.plain_text import make_plain

MAX_ARRAY_BYTES: Final = 256 << 20
"""The largest array of entries; lines have no such limit."""
SAMPLING_NOTE: Final = (
    "Google Cloud samples packets and counts payload only: nodes send more than that"
)
_SIDES: Final = {"SRC": True, "DEST": False}
_GATEWAYS: Final = ("SRC_GATEWAY", "DEST_GATEWAY")
_MAX_PORT: Final = 65_535
_MAX_PROTOCOL: Final = 255


class _Connection(msgspec.Struct):
    src_ip: str
    dest_ip: str
    protocol: int
    src_port: int = 0
    dest_port: int = 0


class _Instance(msgspec.Struct):
    vm_name: str = ""
    zone: str = ""


class _GkePod(msgspec.Struct):
    pod_name: str = ""
    pod_namespace: str = ""
    pod_workload: dict[str, msgspec.Raw] = {}


class _GkeService(msgspec.Struct):
    service_name: str = ""
    service_namespace: str = ""


class _Gke(msgspec.Struct):
    pod: _GkePod | None = None
    service: list[_GkeService] | _GkeService = []


class _Payload(msgspec.Struct):
    connection: _Connection
    bytes_sent: int | str
    start_time: str
    end_time: str
    reporter: str = ""
    src_instance: _Instance | None = None
    dest_instance: _Instance | None = None
    src_gke_details: _Gke | None = None
    dest_gke_details: _Gke | None = None


class _Entry(msgspec.Struct, rename={"payload": "jsonPayload"}):
    payload: _Payload


_ENTRY: Final = msgspec.json.Decoder(_Entry)
_PAYLOAD: Final = msgspec.json.Decoder(_Payload)
_ARRAY: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\r\n]*")


def read_gcp_log(lines: Iterable[str], log: CloudLog, *, name: str) -> None:
    """Take the entries of a file into a log; raise FlowFileError as `CloudLog.add` does.

    A file that begins with a bracket is an array, as `gcloud logging read --format=json` prints it.
    """
    log.add_note(SAMPLING_NOTE)
    for place, line, text in _entries(lines, name):
        try:
            record = _read_entry(text)
        except UnicodeError:
            log.add_broken(name, line, f"{place}it is not UTF-8")
            continue
        except (ValueError, RecursionError) as error:
            log.add_broken(name, line, f"{place}{error}")
            continue
        if record is None:
            log.count("records of gateways, whose traffic interfaces of instances report too")
            continue
        log.add(record, name, line)


def is_gcp_log(first: str) -> bool:
    """Return whether the beginning of a file is that of a flow log of Google Cloud."""
    text = first.removeprefix("\ufeff").lstrip()
    return text.startswith("[") or (
        text.startswith("{") and ('"jsonPayload"' in text or text.strip() == "{")
    )


def _entries(lines: Iterable[str], name: str) -> Iterator[tuple[str, int, str]]:
    """Yield each entry with its place in a line, and the number of that line."""
    # NB: gcloud may print the whole array in one line.
    numbered = bounded_lines(lines, name, most=MAX_ARRAY_BYTES)
    for line, text in numbered:
        if not text.strip():
            continue
        if text.lstrip().startswith("["):
            yield from _array(line, text, numbered, name)
            return
        yield "", line, text


def _array(
    line: int, first: str, numbered: Iterator[tuple[int, str]], name: str
) -> Iterator[tuple[str, int, str]]:
    texts = [first]
    size = len(first)
    for _, text in numbered:
        size += len(text) + 1
        if size > MAX_ARRAY_BYTES:
            message = f"an array of more than {MAX_ARRAY_BYTES:,} bytes: write an entry a line"
            raise FlowFileError(name, line, message)
        texts.append(text)
    try:
        for number, entry in enumerate(_elements("\n".join(texts)), start=1):
            yield f"entry {number}: ", line, entry
    except (json.JSONDecodeError, RecursionError) as error:
        raise FlowFileError(name, line, f"it is no array of JSON: {error}") from None


def _elements(text: str) -> Iterator[str]:
    """Yield the elements of an array, one at a time: as objects, all of them would fill memory."""

    def skip(place: int) -> int:
        found = _SPACE.match(text, place)
        return found.end() if found else place

    place = skip(text.index("[") + 1)
    is_first = True
    while not text.startswith("]", place) or not is_first:
        start = skip(place)
        _, end = _ARRAY.raw_decode(text, start)
        yield text[start:end]
        is_first = False
        place = skip(end)
        if text.startswith("]", place):
            break
        if not text.startswith(",", place):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
        place += 1
    end = skip(place + 1)
    if end < len(text):
        raise json.JSONDecodeError("Extra data", text, end)


def _read_entry(text: str) -> LogRecord | None:
    """Return the record of an entry; None for one of a gateway. Raise ValueError."""
    payload = _decode(text)
    if payload.reporter in _GATEWAYS:
        return None
    if payload.reporter not in _SIDES:
        message = f"jsonPayload.reporter: {payload.reporter[:100]!r} is neither SRC nor DEST"
        raise ValueError(message)
    connection = payload.connection
    ports = (connection.src_port, connection.dest_port)
    if not all(0 <= port <= _MAX_PORT for port in ports):
        message = f"jsonPayload.connection: {ports} are no ports"
        raise ValueError(message)
    if not 0 <= connection.protocol <= _MAX_PROTOCOL:
        message = f"jsonPayload.connection.protocol: {connection.protocol} is no protocol"
        raise ValueError(message)
    start, end = _time(payload.start_time, "start_time"), _time(payload.end_time, "end_time")
    if end < start:
        message = "jsonPayload.end_time is before start_time"
        raise ValueError(message)
    return LogRecord(
        protocol=connection.protocol,
        source=_address(connection.src_ip, "src_ip"),
        source_port=connection.src_port,
        destination=_address(connection.dest_ip, "dest_ip"),
        destination_port=connection.dest_port,
        amount=_bytes(payload.bytes_sent),
        start=start,
        end=end,
        reporter=payload.reporter,
        is_sender=_SIDES[payload.reporter],
        source_hint=_hint(payload.src_instance, payload.src_gke_details),
        destination_hint=_hint(payload.dest_instance, payload.dest_gke_details),
    )


def _decode(text: str) -> _Payload:
    """Return the payload of an entry, or of a line that is a payload itself."""
    try:
        return _ENTRY.decode(text).payload
    except msgspec.ValidationError:
        try:
            return _PAYLOAD.decode(text)
        except msgspec.ValidationError:
            pass
        raise


def _hint(instance: _Instance | None, gke: _Gke | None) -> PartyHint:
    if instance is None and gke is None:
        return NO_HINT
    zone = _name(instance.zone) if instance else ""
    node = _name(instance.vm_name) if instance else ""
    pod = workload = namespace = service = ""
    if gke and gke.pod and gke.pod.pod_name:
        inside = _name(gke.pod.pod_namespace)
        pod = f"{inside}/{_name(gke.pod.pod_name)}"
        raw = gke.pod.pod_workload.get("workload_name")
        if raw is not None:
            workload = f"{inside}/{_name(msgspec.json.decode(raw, type=str))}"
    if gke:
        services = gke.service if isinstance(gke.service, list) else [gke.service]
        if services:
            namespace = _name(services[0].service_namespace)
            service = _name(services[0].service_name)
    return PartyHint(zone, node, pod, workload, namespace, service)


def _name(text: str) -> str:
    return make_plain(text, most=MAX_NAME_CHARACTERS // 4)


def _bytes(value: int | str) -> int:
    # Cloud Logging writes 64-bit numbers as texts.
    number = parse_natural(value) if isinstance(value, str) else value
    if number is None or not 0 <= number <= INT64_MAX:
        message = f"jsonPayload.bytes_sent: {str(value)[:100]!r} is no number of bytes"
        raise ValueError(message)
    return number


def _address(text: str, field: str) -> bytes:
    raw = pack_address(text)
    if raw is None:
        message = f"jsonPayload.connection.{field}: {text[:100]!r} is no address"
        raise ValueError(message)
    return raw


def _time(text: str, field: str) -> float:
    moment = parse_moment(text)
    if moment is None:
        message = f"jsonPayload.{field}: {text[:100]!r} is no time"
        raise ValueError(message)
    return moment
