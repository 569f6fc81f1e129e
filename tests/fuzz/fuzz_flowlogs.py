"""VPC flow logs of AWS: broken lines are counted, and bytes are those of the lines, once."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzbounds import require

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.aws_logs import AwsFormat, is_aws_log, read_aws_log
from keepclose.accounting.cloud_logs import CloudLog
from keepclose.accounting.flow_files import FlowFileError

_LINE = b"2 1 eni-a 10.0.0.1 10.0.0.2 40000 80 6 1 70 1767225600 1767225660 ACCEPT OK\n"
_HEADER = b"srcaddr dstaddr srcport dstport protocol bytes start end az-id flow-direction tcp-flags"


def seeds() -> Iterator[bytes]:
    """Yield logs of several formats, and broken ones."""
    yield b"\n" + _LINE + _LINE.replace(b"eni-a", b"eni-b")
    yield b"\n2026-01-01T00:00:00Z " + _LINE + b"2 1 eni-a - - - - - - - 1 2 - NODATA\n"
    yield (
        b"\n"
        + _HEADER
        + b"\n::1 fe80::1 1 2 17 3 4 5 use1-az1 egress 18\n::1 x 1 2 6 3 4 5 - - -\n"
    )
    yield (
        b"${srcaddr}${dstaddr} ${srcport} ${dstport} ${protocol} ${bytes} ${start} ${end}\n"
        b"0.0.0.0 255.255.255.255 0 65535 255 9223372036854775807 0 253402300799\n"
    )
    yield b"\nversion bytes\n"
    yield b"\n\xff" + b" 9" * 13 + b"\n"


def check(data: bytes) -> None:
    """Read a log in the format of the first line, or in that of its content."""
    first, _, rest = data.partition(b"\n")
    lines = rest.decode("utf-8", "surrogateescape").split("\n")
    try:
        log_format = AwsFormat.parse(first.decode(errors="replace")) if first.strip() else None
    except ValueError:
        log_format = None
    is_aws_log(lines[0])
    log = CloudLog()
    try:
        read_aws_log(lines, log, name="log", log_format=log_format, zones={"use1-az1": "a"})
    except FlowFileError as error:
        require(0 < error.line <= len(lines), "a line that is not in the file")
        return
    table = log.table(AddressBook(cluster_ranges=["10.0.0.0/8"]))
    total = sum(counts.connections for _, counts in table)
    require(total <= log.records <= len(lines), "more connections than records")
    require(bool(log.records) == bool(table.rows), "records without a flow")
