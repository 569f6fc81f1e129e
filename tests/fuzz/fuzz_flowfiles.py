"""Files of flows: a table or an error with its line, and what is written is read again."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzbounds import require

from keepclose.accounting.flow_files import (
    FlowFileError,
    read_csv,
    read_json_lines,
    write_csv,
    write_json_lines,
)
from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowTable
from keepclose.model.json_values import INT64_MAX
from keepclose.model.plain_text import is_hidden


def seeds() -> Iterator[bytes]:
    """Yield files of both forms, good and bad."""
    table = FlowTable(start=1.7e9, end=1.7e9 + 60.5, notes=["x"])
    table.add(FlowKey(client_zone="a", endpoint_zone="b"), FlowCounts(1, 2, 3, 4, 5))
    table.add(FlowKey(service="=1", client_zone="'a", endpoint_zone='"b,'), FlowCounts(1))
    yield b"c" + "".join(write_csv(table)).encode()
    yield b"j" + "".join(write_json_lines(table)).encode() * 2
    yield b"c\xef\xbb\xbfclient_zone,endpoint_zone,request_bytes,response_bytes\r\na,,9,1\r\n"
    yield b"cclient_zone,endpoint_zone,connections\n\xff,a,99999999999999999999\n"
    yield b"cclient_zone,endpoint_zone,start,end\na,b,0001-01-01T00:00:00+23:59,9999-12-31T24:00Z\n"
    yield b'j{"hasBytes":false,"start":"1970-01-01T00:00:00Z"}\n{"kind":"pod"}\n'


def check(data: bytes) -> None:
    """Read a file; what was read is safe, and the same when it is written and read again."""
    read, write = (read_csv, write_csv) if data[:1] == b"c" else (read_json_lines, write_json_lines)
    lines = data[1:].decode("utf-8", "surrogateescape").split("\n")
    try:
        table = read(lines, name="file")
    except FlowFileError as error:
        require(0 <= error.line <= len(lines), "a line that is not in the file")
        return
    for key, counts in table:
        require(not any(map(is_hidden, "".join(key))), "a hidden character in a name")
        require(counts.total_bytes >= 0, "negative bytes")
    total = table.total()
    if max(total.connections, total.total_bytes) > INT64_MAX or not table.rows:
        return
    written = list(write(table))
    require(all(line.endswith("\n") and "\n" not in line[:-1] for line in written), "a torn line")
    # CSV leaves bytes empty that are not known for every row.
    if table.has_bytes and all(
        text == text.strip() and len(text) <= 500 for key in table.rows for text in key
    ):
        require(read(written, name="again").rows == table.rows, "another table when read again")
