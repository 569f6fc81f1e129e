"""VPC flow logs of AWS: text of the default format (version 2) and of custom formats.

A file of S3 begins with a line of field names, which decides. Without one, a line of 14 fields has
the default format, one of 21, 25 or 29 the fields of version 3, 4 or 5 as AWS documents them; any
other format must be named. A time before the fields, as CloudWatch exports have it, is left out.

Interfaces of EKS nodes carry pods at further addresses: the fields srcaddr and dstaddr then hold
the address of the interface, and only pkt-srcaddr and pkt-dstaddr that of the pod, so these win.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from keepclose.accounting.address_book import pack_address
from keepclose.accounting.cloud_logs import NO_HINT, CloudLog, LogRecord, PartyHint
from keepclose.accounting.flow_files import FlowFileError, bounded_lines
from keepclose.accounting.flow_table import LATEST_S, parse_moment
from keepclose.model.json_values import parse_natural

MAX_FIELDS: Final = 100
"""The most fields of a format."""
_ADDED: Final = (
    (
        "version account-id interface-id srcaddr dstaddr srcport dstport protocol packets bytes"
        " start end action log-status"
    ),
    "vpc-id subnet-id instance-id tcp-flags type pkt-srcaddr pkt-dstaddr",
    "region az-id sublocation-type sublocation-id",
    "pkt-src-aws-service pkt-dst-aws-service flow-direction traffic-path",
)
"""The fields that versions 2 to 5 added, in the order of AWS's table."""
_VERSIONS: Final = tuple(
    tuple(" ".join(_ADDED[: index + 1]).split()) for index in range(len(_ADDED))
)
_BY_LENGTH: Final = {len(fields): fields for fields in _VERSIONS}
_NAMES: Final = frozenset(("srcaddr", "dstaddr", "pkt-srcaddr", "pkt-dstaddr", "bytes"))
"""Words of a line of field names that no record has."""
_ADDRESSES: Final = (("pkt-srcaddr", "srcaddr"), ("pkt-dstaddr", "dstaddr"))
_NEEDED: Final = ("srcport", "dstport", "protocol", "bytes", "start", "end")
_FIELD: Final = re.compile(r"[a-z][a-z0-9-]{0,60}")
_NONE: Final = "-"
_MAX_PORT: Final = 65_535
_MAX_PROTOCOL: Final = 255
_MAX_FLAGS: Final = 255


class _BrokenLineError(ValueError):
    """A line that is no record."""


class AwsFormat(NamedTuple):
    """The fields of a flow log."""

    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> AwsFormat:
        """Read a format such as `${version} ${srcaddr} ...` or a line of names; raise ValueError.

        The message names what is missing.
        """
        names = [
            word.removeprefix("${").removesuffix("}") if word.startswith("${") else word
            for word in text.replace("}${", "} ${").split()
        ]
        if len(names) > MAX_FIELDS:
            message = f"more than {MAX_FIELDS} fields"
            raise ValueError(message)
        for name in names:
            if not _FIELD.fullmatch(name):
                message = f"{name!r} is no field"
                raise ValueError(message)
        for choice in (*_ADDRESSES, *((name,) for name in _NEEDED)):
            if not any(name in names for name in choice):
                message = f"the field {choice[-1]} is missing, without which no flow is known"
                raise ValueError(message)
        return cls(tuple(names))


def read_aws_log(
    lines: Iterable[str],
    log: CloudLog,
    *,
    name: str,
    log_format: AwsFormat | None = None,
    zones: Mapping[str, str] | None = None,
) -> None:
    """Take the records of a file into a log.

    `zones` has the names of zones by their ids (use1-az1). Raises FlowFileError for a file without
    a known format, and what `CloudLog.add` raises.
    """
    current = log_format
    for line, text in bounded_lines(lines, name):
        values = text.split()
        if not values or text.startswith("#"):
            continue
        if _is_header(values):
            try:
                current = AwsFormat.parse(text)
            except ValueError as error:
                raise FlowFileError(name, line, str(error)) from None
            continue
        fields = current.fields if current else None
        # NB: parse_moment returns None for a number, which the first field of a record is.
        if parse_moment(values[0]) is not None and not (fields and len(fields) == len(values)):
            values = values[1:]
        if fields is None:
            fields = _BY_LENGTH.get(len(values))
            if fields is None:
                log.add_broken(name, line, _unknown_length(len(values)))
                continue
        elif len(fields) != len(values):
            message = f"{len(values)} values for a format of {len(fields)} fields"
            log.add_broken(name, line, message)
            continue
        try:
            _read_line(dict(zip(fields, values, strict=True)), log, zones or {}, name, line)
        except _BrokenLineError as error:
            log.add_broken(name, line, str(error))


def is_aws_log(first: str) -> bool:
    """Return whether a first line is that of a VPC flow log."""
    values = first.removeprefix("\ufeff").split()
    if _is_header(values):
        return True
    if values and parse_moment(values[0]) is not None:
        values = values[1:]
    return len(values) in _BY_LENGTH and parse_natural(values[0]) is not None


def _is_header(values: list[str]) -> bool:
    return not _NAMES.isdisjoint(values)


def _read_line(
    row: dict[str, str], log: CloudLog, zones: Mapping[str, str], name: str, line: int
) -> None:
    status = row.get("log-status", "OK")
    match status:
        case "OK":
            pass
        case "NODATA":
            log.count("records of intervals without traffic (NODATA)")
            return
        case "SKIPDATA":
            log.count("records of intervals that AWS skipped (SKIPDATA), whose bytes are missing")
            return
        case _:
            message = f"log-status: {status!r} is none of OK, NODATA, SKIPDATA"
            raise _BrokenLineError(message)
    action = row.get("action", "ACCEPT")
    if action not in ("ACCEPT", "REJECT"):
        message = f"action: {action!r} is neither ACCEPT nor REJECT"
        raise _BrokenLineError(message)
    direction = row.get("flow-direction", _NONE)
    if direction not in ("ingress", "egress", _NONE):
        message = f"flow-direction: {direction!r} is neither ingress nor egress"
        raise _BrokenLineError(message)
    is_sender = None if direction == _NONE else direction == "egress"
    reporter = row.get("interface-id", _NONE)
    if reporter == _NONE:
        reporter = direction
        if is_sender is None:
            log.count(
                "records without interface-id and flow-direction, of which traffic between two"
                " interfaces with a flow log counts twice"
            )
    if not row.keys() & {"pkt-srcaddr", "pkt-dstaddr"}:
        log.count(
            "records without pkt-srcaddr and pkt-dstaddr, in which EKS pods may appear as nodes"
        )
    start, end = (_number(row, field, LATEST_S) for field in ("start", "end"))
    if end < start:
        message = f"end {end} is before start {start}"
        raise _BrokenLineError(message)
    hint = _hint(row, zones)
    record = LogRecord(
        protocol=_number(row, "protocol", _MAX_PROTOCOL),
        source=_address(row, *_ADDRESSES[0]),
        source_port=_number(row, "srcport", _MAX_PORT, empty=True),
        destination=_address(row, *_ADDRESSES[1]),
        destination_port=_number(row, "dstport", _MAX_PORT, empty=True),
        amount=_number(row, "bytes"),
        start=float(start),
        end=float(end),
        reporter=reporter[:100],
        is_sender=is_sender,
        flags=_number(row, "tcp-flags", _MAX_FLAGS, empty=True),
        is_rejected=action == "REJECT",
        source_hint=hint if is_sender else NO_HINT,
        destination_hint=hint if is_sender is False else NO_HINT,
    )
    log.add(record, name, line)


def _hint(row: dict[str, str], zones: Mapping[str, str]) -> PartyHint:
    """Return the zone of the interface, for the side that it is on."""
    zone = row.get("az-id", _NONE)
    if zone == _NONE:
        return NO_HINT
    if not _FIELD.fullmatch(zone):
        message = f"az-id: {zone!r} is no id of a zone"
        raise _BrokenLineError(message)
    return PartyHint(zone=zones.get(zone, zone))


def _number(
    row: dict[str, str], field: str, most: int | None = None, *, empty: bool = False
) -> int:
    text = row.get(field, _NONE)
    if empty and text == _NONE:
        return 0
    number = parse_natural(text)
    if number is None or (most is not None and number > most):
        limit = f" up to {most}" if most is not None else ""
        message = f"{field}: {text[:100]!r} is no whole number{limit}"
        raise _BrokenLineError(message)
    return number


def _address(row: dict[str, str], *fields: str) -> bytes:
    for field in fields:
        text = row.get(field, _NONE)
        if text != _NONE:
            raw = pack_address(text)
            if raw is None:
                message = f"{field}: {text[:100]!r} is no address"
                raise _BrokenLineError(message)
            return raw
    message = f"{fields[-1]} is empty"
    raise _BrokenLineError(message)


def _unknown_length(number: int) -> str:
    known = ", ".join(map(str, _BY_LENGTH))
    return (
        f"{number} values and no line of field names before them; without one, lines of {known} "
        "values are known: name the format"
    )
