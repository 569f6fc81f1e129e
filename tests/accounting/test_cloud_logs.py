"""Flow logs of AWS and Google Cloud, joined with a cluster."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.accounting import cloud_logs
from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.aws_logs import AwsFormat, is_aws_log, read_aws_log
from keepclose.accounting.cloud_logs import CloudLog
from keepclose.accounting.flow_files import FlowFileError
from keepclose.accounting.flow_table import (
    ALL_DETAIL,
    HOST,
    OUTSIDE,
    UNKNOWN,
    ZONES_ONLY,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
)
from keepclose.accounting.gcp_logs import SAMPLING_NOTE, is_gcp_log, read_gcp_log
from keepclose.cli.manifests.objects import load_manifests
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "flows"
CLUSTER = ROOT / "examples" / "flows" / "cluster.yaml"
WEB, CART, NODE_B = "10.0.1.21", "10.0.3.31", "10.0.2.10"
HEADER = "interface-id srcaddr dstaddr srcport dstport protocol bytes start end"


def book_of(**options: Any) -> AddressBook:
    """Return the addresses of the example: web in zones a and b, cart in a and c."""
    book = AddressBook(**options)
    manifests = load_manifests([str(CLUSTER)])
    assert not manifests.problems
    for node in manifests.of(Node):
        book.set_node(node, at=0.0)
    for service in manifests.of(Service):
        book.set_service(service, at=0.0)
    for endpoint_slice in manifests.of(EndpointSlice):
        book.set_slice(endpoint_slice, at=0.0)
    for pod in manifests.of(Pod):
        book.set_pod(pod, at=0.0)
    return book


def read_aws(*lines: str, header: str = HEADER, book: AddressBook | None = None) -> FlowTable:
    """Return the flows of lines after a header."""
    log = CloudLog()
    read_aws_log([header, *lines], log, name="log", zones={"use1-az3": "us-east-1c"})
    return log.table(book or book_of(), detail=ALL_DETAIL)


def line(source: str, destination: str, ports: str, amount: int, *, by: str = "eni-1") -> str:
    """Return a line of the header above."""
    return f"{by} {source} {destination} {ports} 6 {amount} 1767225600 1767225660"


def only(table: FlowTable) -> tuple[FlowKey, FlowCounts]:
    """Return the one row of a table."""
    ((key, counts),) = table
    return key, counts


def test_the_default_format_counts_each_connection_once() -> None:
    """Both interfaces report both directions, and two intervals are one connection."""
    log = CloudLog()
    read_aws_log((DATA / "aws-v2.log").read_text().splitlines(), log, name="aws-v2.log")
    table = log.table(book_of(), detail=ZONES_ONLY)
    assert table.rows == {
        FlowKey(
            FlowKind.SERVICE,
            "shop",
            "cart",
            "http",
            client_zone="us-east-1a",
            endpoint_zone="us-east-1c",
        ): FlowCounts(1, 0, 0, 3000, 9000),
        FlowKey(FlowKind.POD, client_zone=OUTSIDE, endpoint_zone="us-east-1b"): FlowCounts(1, 1),
    }
    assert (table.start, table.end) == (1767225600.0, 1767225720.0)
    assert table.notes[:3] == [
        "records without pkt-srcaddr and pkt-dstaddr, in which EKS pods may appear as nodes: 6",
        "records of intervals without traffic (NODATA): 1",
        "records of intervals that AWS skipped (SKIPDATA), whose bytes are missing: 1",
    ]
    assert table.notes[3].endswith("counted as outside: 1 in 2 connections, such as 198.51.100.7")


def test_the_example_of_a_custom_format_is_joined() -> None:
    """Pods behind one interface are told apart by their packet addresses."""
    log = CloudLog()
    lines = (ROOT / "examples" / "flows" / "vpc-flow-log.txt").read_text().splitlines()
    read_aws_log(lines, log, name="vpc-flow-log.txt")
    table = log.table(book_of())
    by_service = {
        (key.kind.value, key.service, key.client, key.client_zone, key.endpoint_zone): counts
        for key, counts in table
    }
    assert by_service == {
        ("service", "cart", "shop/web", "us-east-1a", "us-east-1c"): FlowCounts(
            1, 0, 0, 2500000, 9000000
        ),
        ("service", "cart", "shop/web", "us-east-1b", "us-east-1a"): FlowCounts(
            1, 0, 0, 600000, 1800000
        ),
        ("pod", "kafka", "shop/cart", "us-east-1a", "us-east-1c"): FlowCounts(
            1, 0, 0, 30000000, 700000
        ),
        ("egress", "", "shop/cart", "us-east-1c", OUTSIDE): FlowCounts(1, 0, 0, 400000, 1500000),
        ("pod", "", OUTSIDE, OUTSIDE, "us-east-1b"): FlowCounts(1, 1),
    }
    assert any("vpc-flow-log.txt, line 16: 8 values for a format" in note for note in table.notes)


def test_the_senders_interface_counts_although_another_reports_more() -> None:
    """Bytes are what the sender's interface saw, where the log names directions."""
    header = f"{HEADER} flow-direction"
    _, counts = only(
        read_aws(
            line(WEB, CART, "41000 8080", 100, by="eni-a") + " egress",
            line(WEB, CART, "41000 8080", 140, by="eni-c") + " ingress",
            header=header,
        )
    )
    assert counts == FlowCounts(1, 0, 0, 100, 0)


def test_a_log_of_one_side_has_both_directions() -> None:
    """Where only the receiver has a flow log, its records count."""
    header = f"{HEADER} flow-direction"
    _, counts = only(
        read_aws(
            line(WEB, CART, "41000 8080", 100, by="eni-c") + " ingress",
            line(CART, WEB, "8080 41000", 900, by="eni-c") + " egress",
            header=header,
        )
    )
    assert counts == FlowCounts(1, 0, 0, 100, 900)


def test_a_log_without_interfaces_says_that_it_counts_twice() -> None:
    """Nothing can tell the two reports apart, so a note says it."""
    header = "srcaddr dstaddr srcport dstport protocol bytes start end"
    table = read_aws(
        *[line(WEB, CART, "41000 8080", 100).removeprefix("eni-1 ")] * 2, header=header
    )
    assert only(table)[1].request_bytes == 200
    assert any("counts twice: 2" in note for note in table.notes)


@pytest.mark.parametrize(
    ("lines", "flags"),
    [
        pytest.param([(CART, WEB, "8080 41000")], "", id="the endpoint of a Service serves"),
        pytest.param([(WEB, CART, "8000 9999")], " 2", id="the sender of SYN is the client"),
        pytest.param([(CART, WEB, "9999 8000")], " 18", id="the sender of SYN and ACK serves"),
        pytest.param([(CART, WEB, "22 50000")], "", id="the larger port is ephemeral"),
    ],
)
def test_which_side_is_the_client(lines: list[tuple[str, str, str]], flags: str) -> None:
    """Web is the client of cart, whichever side the first record is of."""
    header = f"{HEADER} tcp-flags" if flags else HEADER
    key, _ = only(read_aws(*(line(*parts, 1) + flags for parts in lines), header=header))
    assert (key.client, key.endpoint) == ("shop/web", "shop/cart-79f-c")


def test_a_node_port_is_traffic_to_the_node() -> None:
    """What the node forwards to an endpoint has records of its own, so no Service is named."""
    book = book_of()
    manifest = {
        "metadata": {"name": "door", "namespace": "shop"},
        "spec": {"clusterIP": "172.20.0.9", "ports": [{"port": 80, "nodePort": 30080}]},
    }
    book.set_service(msgspec.convert(manifest, Service), at=0.0)
    key, _ = only(read_aws(line(WEB, NODE_B, "41000 30080", 5), book=book))
    assert (key.kind, key.service, key.endpoint_zone) == (FlowKind.NODE, "", "us-east-1b")


def test_a_zone_id_places_what_the_cluster_does_not_know() -> None:
    """A database with a flow log of its own has a zone; without one it is outside."""
    header = f"{HEADER} az-id flow-direction"
    table = read_aws(
        line(WEB, "10.0.200.5", "41000 5432", 10, by="eni-a") + " use1-az1 egress",
        line("10.0.200.5", WEB, "5432 41000", 90, by="eni-db") + " use1-az3 egress",
        header=header,
    )
    key, counts = only(table)
    assert (key.kind, key.client_zone, key.endpoint_zone) == (
        FlowKind.EGRESS,
        "us-east-1a",
        "us-east-1c",
    )
    assert counts == FlowCounts(1, 0, 0, 10, 90)


def test_subnets_and_ranges_place_other_addresses() -> None:
    """A subnet has the zone that the user names, and an address of the cluster is unknown."""
    book = book_of(cluster_ranges=["10.9.0.0/16"], subnets=[("10.0.200.0/24", "us-east-1b")])
    table = read_aws(
        line(WEB, "10.0.200.5", "41000 5432", 10),
        line(WEB, "10.9.0.1", "41001 80", 10),
        book=book,
    )
    assert {(key.kind, key.endpoint_zone) for key in table.rows} == {
        (FlowKind.EGRESS, "us-east-1b"),
        (FlowKind.UNKNOWN, UNKNOWN),
    }
    assert any("cluster's ranges" in note and "10.9.0.1" in note for note in table.notes)


def test_an_unknown_client_in_the_ranges_counts() -> None:
    """A log has a connection once, so that of a pod without a name is a flow of its Service."""
    book = book_of(cluster_ranges=["10.9.0.0/16"])
    key, _ = only(read_aws(line("10.9.0.1", CART, "41000 8080", 10), book=book))
    assert (key.kind, key.service, key.client_zone) == (FlowKind.SERVICE, "cart", UNKNOWN)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("eni-1 x 10.0.0.1 1 2 6 3 1 2", "srcaddr: 'x' is no address", id="address"),
        pytest.param(line(WEB, CART, "1 99999", 3), "dstport: '99999' is no", id="port"),
        pytest.param(line(WEB, CART, "1 2", -3), "bytes: '-3' is no whole number", id="negative"),
        pytest.param("eni-1 - - - - - - 1 2", "protocol: '-'", id="empty"),
        pytest.param("eni-1 a b", "3 values for a format of 9 fields", id="short"),
        pytest.param(f"eni-1 {WEB} {CART} 1 2 6 3 9 5", "end 5 is before start 9", id="backwards"),
        pytest.param(f"eni-1 {WEB} {CART} 1 2 256 3 1 2", "protocol: '256'", id="protocol"),
    ],
)
def test_a_broken_line_is_named_and_left_out(text: str, want: str) -> None:
    """The reading goes on by default; a strict one ends there."""
    table = read_aws(text, line(WEB, CART, "41000 8080", 1))
    (note,) = [note for note in table.notes if note.startswith("broken")]
    assert note.startswith("broken lines, left out: 1 (log, line 2: ")
    assert want in note
    assert table.total().connections == 1
    with pytest.raises(FlowFileError) as raised:
        read_aws_log([HEADER, text], CloudLog(is_strict=True), name="log")
    assert (raised.value.line, want in raised.value.message) == (2, True)


def test_only_some_broken_lines_are_quoted() -> None:
    """A file of another kind does not fill the terminal."""
    table = read_aws(*["x"] * 50, line(WEB, CART, "41000 8080", 1))
    (note,) = [note for note in table.notes if note.startswith("broken")]
    assert "left out: 50 (" in note
    assert note.endswith("and 47 more)")


def test_lines_without_a_header_are_known_by_their_length() -> None:
    """Versions 2 to 5 as documented, with a time of CloudWatch or without; others are broken."""
    two = f"2 123 eni-1 {WEB} {CART} 41000 8080 6 1 70 1767225600 1767225660 ACCEPT OK"
    three = f"{two} vpc-1 subnet-1 i-1 2 IPv4 10.0.2.21 {CART}"
    five = f"{three} us-east-1 use1-az1 - - - - egress 1"
    log = CloudLog()
    lines = [two, f"2026-01-01T00:00:00.000Z {two}", three, five, f"{two} more"]
    read_aws_log(lines, log, name="log")
    table = log.table(book_of())
    assert {key.client_zone: counts.connections for key, counts in table} == {
        "us-east-1a": 1,
        "us-east-1b": 1,
    }
    assert any("log, line 5: 15 values and no line of field names" in note for note in table.notes)


def test_a_header_may_come_again() -> None:
    """Files of S3 that were joined have several headers, of other formats too."""
    other = "bytes start end protocol srcport dstport srcaddr dstaddr interface-id"
    log = CloudLog(is_strict=True)
    lines = [HEADER, line(WEB, CART, "1 8080", 1), other, f"7 1 2 6 2 8080 {WEB} {CART} eni-1"]
    read_aws_log(lines, log, name="log")
    assert log.table(book_of()).total() == FlowCounts(2, 0, 0, 8, 0)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("${version} ${bytes}", "the field srcaddr is missing", id="addresses"),
        pytest.param(HEADER.replace("bytes ", ""), "the field bytes is missing", id="bytes"),
        pytest.param("${a b}", "'b}' is no field", id="braces"),
        pytest.param("x " * 101, "more than 100 fields", id="many"),
        pytest.param("", "the field srcaddr is missing", id="empty"),
    ],
)
def test_a_format_that_names_no_flow_is_refused(text: str, want: str) -> None:
    """The message names what is missing."""
    with pytest.raises(ValueError, match="field") as raised:
        AwsFormat.parse(text)
    assert want in str(raised.value)


def test_a_format_of_the_console_is_read() -> None:
    """The form in which AWS shows custom formats."""
    text = (
        "${pkt-srcaddr} ${pkt-dstaddr} ${srcport} ${dstport} ${protocol} ${bytes} ${start} ${end}"
    )
    assert AwsFormat.parse(text).fields[:2] == ("pkt-srcaddr", "pkt-dstaddr")


def test_too_many_connections_end_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, and the message says what to do."""
    monkeypatch.setattr(cloud_logs, "MAX_LOGGED_CONNECTIONS", 2)
    lines = [line(WEB, CART, f"{port} 8080", 1) for port in (1, 2, 3)]
    with pytest.raises(FlowFileError, match="log, line 4: more than 2 connections"):
        read_aws(*lines)


def test_google_clouds_log_names_what_no_snapshot_does() -> None:
    """Zones, workloads and Services of GKE come from the log itself, each direction once."""
    log = CloudLog(is_strict=True)
    read_gcp_log((DATA / "gcp.jsonl").read_text().splitlines(), log, name="gcp.jsonl")
    table = log.table(AddressBook())
    assert table.rows == {
        FlowKey(
            FlowKind.SERVICE,
            "shop",
            "cart",
            "",
            "TCP",
            "europe-west1-b",
            "europe-west1-c",
            "gke-b-1",
            "gke-c-1",
            "shop/web",
            "shop/cart-79f-c",
        ): FlowCounts(1, 0, 0, 2000, 9000),
        FlowKey(
            FlowKind.EGRESS,
            client_zone="europe-west1-b",
            endpoint_zone=OUTSIDE,
            client_node="gke-b-1",
            client="shop/web",
        ): FlowCounts(1, 0, 0, 700, 3000),
    }
    assert table.notes[:2] == [
        SAMPLING_NOTE,
        "records of gateways, whose traffic interfaces of instances report too: 1",
    ]


def test_google_clouds_array_is_the_same_as_its_lines() -> None:
    """`gcloud logging read --format=json` prints an array over many lines."""
    entries = [json.loads(text) for text in (DATA / "gcp.jsonl").read_text().splitlines()]
    tables = []
    for text in (json.dumps(entries), json.dumps(entries, indent=2)):
        log = CloudLog(is_strict=True)
        read_gcp_log(text.splitlines(), log, name="gcp.json")
        tables.append(log.table(AddressBook()).rows)
    assert tables[0] == tables[1]
    assert len(tables[0]) == 2


@pytest.mark.parametrize(
    "text", ["[1,1", "[1 1]", "[1,]", "[] x", "[1] ]", "[", "[,]", "[" * 100_000]
)
def test_what_is_no_array_is_an_error(text: str) -> None:
    """Entries before the error may have been read, so the file is refused."""
    with pytest.raises(FlowFileError, match="line 1: it is no array of JSON"):
        read_gcp_log([text], CloudLog(), name="log")


def test_an_array_of_numbers_takes_little_memory() -> None:
    """Elements are read one at a time, as each takes far more than its text."""
    log = CloudLog()
    text = "[" + "1," * 50_000 + "1]"
    tracemalloc.start()
    try:
        read_gcp_log([text], log, name="log")
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert (log.records, "entry 1: " in log.first_broken) == (0, True)


def test_the_snapshot_wins_over_google_clouds_metadata() -> None:
    """Metadata of a flow log is approximate, as Google documents; the cluster's objects are not."""
    entry = json.loads((DATA / "gcp.jsonl").read_text().splitlines()[0])
    entry["jsonPayload"]["connection"] |= {"src_ip": NODE_B, "dest_ip": CART}
    log = CloudLog()
    read_gcp_log([json.dumps(entry)], log, name="gcp.jsonl")
    key, _ = only(log.table(book_of()))
    assert (key.client, key.client_zone, key.port) == (HOST, "us-east-1b", "http")


@pytest.mark.parametrize(
    ("change", "want"),
    [
        pytest.param({"reporter": "X"}, "jsonPayload.reporter: 'X' is neither", id="reporter"),
        pytest.param({"bytes_sent": "-1"}, "bytes_sent: '-1' is no number", id="negative"),
        pytest.param({"bytes_sent": 1.5}, "Expected `int | str`, got `float`", id="float"),
        pytest.param({"bytes_sent": str(2**63)}, "is no number of bytes", id="huge"),
        pytest.param({"start_time": "now"}, "jsonPayload.start_time: 'now' is no time", id="time"),
        pytest.param({"end_time": "2025-01-01T00:00:00Z"}, "is before start_time", id="order"),
        pytest.param({"connection": {}}, "missing required field", id="connection"),
        pytest.param(
            {"connection": {"src_ip": "x", "dest_ip": "::1", "protocol": 6}},
            "connection.src_ip: 'x' is no address",
            id="address",
        ),
        pytest.param(
            {"connection": {"src_ip": "::1", "dest_ip": "::1", "protocol": 6, "src_port": -1}},
            "are no ports",
            id="port",
        ),
    ],
)
def test_a_broken_entry_is_named(change: dict[str, Any], want: str) -> None:
    """The field is named with its line."""
    entry = json.loads((DATA / "gcp.jsonl").read_text().splitlines()[0])
    entry["jsonPayload"] |= change
    with pytest.raises(FlowFileError) as raised:
        read_gcp_log(["", json.dumps(entry)], CloudLog(is_strict=True), name="gcp.jsonl")
    assert (raised.value.line, want in raised.value.message) == (2, True)


def test_logs_are_known_by_their_first_line() -> None:
    """What the command reads without an option."""
    first = (DATA / "gcp.jsonl").read_text().splitlines()[0]
    assert [is_gcp_log(text) for text in (first, "[", '{"a": 1}', "2 1")] == [
        True,
        True,
        False,
        False,
    ]
    second = (DATA / "aws-v2.log").read_text().splitlines()[0]
    assert [is_aws_log(text) for text in (second, HEADER, "a b c", "")] == [
        True,
        True,
        False,
        False,
    ]
