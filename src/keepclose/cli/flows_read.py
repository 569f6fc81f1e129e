"""`keepclose flows read`: flows from files and flow logs of a cloud, as a table, CSV or JSON.

Joins the flow logs of AWS and Google Cloud with the objects of a cluster, which a file holds:
`kubectl get nodes,pods,services,endpointslices -A -o yaml`. What has no owner there is counted and
named, and so are broken lines. It asks no cluster and no cloud.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.flow_sources import (
    FlowSourceError,
    TextLines,
    check_sources,
    guess_format,
    name_source,
    read_lines,
    show_notes,
)
from keepclose.cli.render.output import echo_document, echo_json, say

if TYPE_CHECKING:
    from keepclose.accounting.address_book import AddressBook
    from keepclose.accounting.aws_logs import AwsFormat
    from keepclose.accounting.cloud_logs import CloudLog
    from keepclose.accounting.flow_table import Detail, FlowTable

_MAX_PROBLEMS: Final = 20


class FlowFormat(StrEnum):
    """Formats of files with flows."""

    AUTO = "auto"
    CSV = "csv"
    JSON_LINES = "jsonl"
    AWS = "aws"
    GCP = "gcp"


class FlowDetail(StrEnum):
    """What flows are counted by, besides Services and zones."""

    ZONES = "zones"
    CLIENTS = "clients"
    NODES = "nodes"
    PODS = "pods"


class TableCsvOrLines(StrEnum):
    """Output formats of flows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    JSON_LINES = "jsonl"


def read(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Files, compressed or not; - for standard input."),
    ],
    *,
    file_format: Annotated[
        FlowFormat, typer.Option("--format", help="The format of the files.")
    ] = FlowFormat.AUTO,
    snapshot: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Nodes, pods, Services and EndpointSlices as YAML or JSON, to join flow logs "
            "with. May be repeated.",
        ),
    ] = None,
    log_format: Annotated[
        str,
        typer.Option(
            metavar="FORMAT", help="The format of AWS logs without a header: '${version} ...'."
        ),
    ] = "",
    zone_id: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=ZONE", help="The zone of an AWS zone id: use1-az1=us-east-1a. Repeated."
        ),
    ] = None,
    cluster_cidr: Annotated[
        str, typer.Option(metavar="RANGES", help="Ranges of pods, of which some have no owner.")
    ] = "",
    subnet: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR=ZONE", help="The zone of addresses outside the cluster. Repeated."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with an error at the first broken line.")
    ] = False,
    detail: Annotated[
        FlowDetail, typer.Option(help="What flows are counted by besides Services and zones.")
    ] = FlowDetail.CLIENTS,
    output: Annotated[
        TableCsvOrLines, typer.Option("-o", "--output", help="Output format.")
    ] = TableCsvOrLines.TABLE,
) -> None:
    """Read flows from files and from the flow logs of AWS and Google Cloud.

    Each connection counts once, although both of its interfaces report it. Exit codes: 0 fine, 2
    bad input, 3 no flows.
    """
    from keepclose.accounting.cloud_logs import CloudLog
    from keepclose.accounting.flow_files import FlowFileError

    check_sources(files)
    book = _read_book(snapshot or [], cluster_cidr, subnet or [])
    wanted = _read_detail(detail)
    read_aws = _aws_reader(log_format, _read_pairs("--zone-id", zone_id or [], "ID=ZONE"))
    log = CloudLog(is_strict=strict)
    tables: list[FlowTable] = []
    logs: list[str] = []
    try:
        for path in files:
            lines = read_lines(path)
            chosen = _choose(file_format, lines, path)
            if chosen in (FlowFormat.AWS, FlowFormat.GCP):
                logs.append(path)
                _read_log(log, lines, path, read_aws if chosen is FlowFormat.AWS else None)
            else:
                tables += [table.reduced(wanted) for table in _read_tables(chosen, lines, path)]
    except FlowSourceError as error:
        fail(str(error), error.fix, code=error.code)
    except FlowFileError as error:
        fail(str(error))
    if logs and not log.records and log.first_broken:
        fail(
            f"no line is a record: {log.first_broken}",
            "check --format, and name the fields of an AWS log with --log-format",
        )
    if logs:
        logged = log.table(book, detail=wanted)
        if not snapshot:
            logged.notes.insert(0, "no --snapshot: Services, pods and nodes have no names")
        tables.append(logged)
    _show(tables, output)
    if not any(table.rows for table in tables):
        fail(f"no flows in {', '.join(map(name_source, files))}", code=ExitCode.NOTHING)


def _choose(file_format: FlowFormat, lines: TextLines, path: str) -> FlowFormat:
    if file_format is not FlowFormat.AUTO:
        return file_format
    guessed = guess_format(lines)
    if not guessed:
        fail(
            f"{name_source(path)}: its format is not known by its first line",
            "name it with --format csv, jsonl, aws or gcp",
        )
    return FlowFormat(guessed)


def _read_tables(chosen: FlowFormat, lines: TextLines, path: str) -> list[FlowTable]:
    from keepclose.accounting.flow_files import read_csv_tables, read_json_tables

    reader = read_csv_tables if chosen is FlowFormat.CSV else read_json_tables
    return reader(lines, name=name_source(path))


def _read_log(
    log: CloudLog,
    lines: TextLines,
    path: str,
    read_aws: Callable[[TextLines, CloudLog, str], None] | None,
) -> None:
    from keepclose.accounting.gcp_logs import MAX_ARRAY_BYTES, read_gcp_log

    if read_aws is not None:
        read_aws(lines, log, name_source(path))
    else:
        # An array may stand in one line.
        read_gcp_log(lines.with_longest(MAX_ARRAY_BYTES + 1), log, name=name_source(path))


def _aws_reader(
    log_format: str, zones: dict[str, str]
) -> Callable[[TextLines, CloudLog, str], None]:
    from keepclose.accounting.aws_logs import AwsFormat, read_aws_log

    named: AwsFormat | None = None
    if log_format:
        try:
            named = AwsFormat.parse(log_format)
        except ValueError as error:
            fail(f"--log-format: {error}")

    def read_file(lines: TextLines, log: CloudLog, name: str) -> None:
        read_aws_log(lines, log, name=name, log_format=named, zones=zones)

    return read_file


def _read_detail(detail: FlowDetail) -> Detail:
    from keepclose.accounting.flow_table import ALL_DETAIL, ZONES_ONLY, Detail

    match detail:
        case FlowDetail.ZONES:
            return ZONES_ONLY
        case FlowDetail.CLIENTS:
            return Detail(workloads=True)
        case FlowDetail.NODES:
            return Detail(nodes=True, workloads=True)
        case FlowDetail.PODS:
            return ALL_DETAIL


def _read_book(snapshot: list[str], cluster_cidr: str, subnets: list[str]) -> AddressBook:
    from keepclose.accounting.address_book import AddressBook
    from keepclose.cli.manifests.objects import load_manifests
    from keepclose.cli.manifests.problems import render
    from keepclose.model.endpointslice.types import EndpointSlice
    from keepclose.model.service.types import Service
    from keepclose.model.workload import Node, Pod

    ranges = [part for part in cluster_cidr.split(",") if part.strip()]
    zones = _read_pairs("--subnet", subnets, "CIDR=ZONE")
    for option, texts in (("--cluster-cidr", ranges), ("--subnet", list(zones))):
        for text in texts:
            try:
                ip_network(text.strip(), strict=False)
            except ValueError as error:
                fail(f"{option}: {error}")
    book = AddressBook(cluster_ranges=ranges, subnets=zones.items())
    manifests = load_manifests(snapshot)
    for problem in manifests.problems[:_MAX_PROBLEMS]:
        say(*render(problem).splitlines(), err=True)
    if manifests.problems:
        raise typer.Exit(ExitCode.BAD_INPUT)
    # The objects have no times; they count for the whole log.
    for node in manifests.of(Node):
        book.set_node(node, at=0.0)
    for service in manifests.of(Service):
        book.set_service(service, at=0.0)
    for endpoint_slice in manifests.of(EndpointSlice):
        book.set_slice(endpoint_slice, at=0.0)
    for pod in manifests.of(Pod):
        book.set_pod(pod, at=0.0)
    _warn_of_missing(snapshot, {type(located.object) for located in manifests.objects})
    return book


def _warn_of_missing(snapshot: list[str], present: set[type]) -> None:
    from keepclose.model.endpointslice.types import EndpointSlice
    from keepclose.model.service.types import Service
    from keepclose.model.workload import Node, Pod

    lost = {
        Node: "zones",
        Pod: "names of clients",
        Service: "the difference between headless and other Services",
        EndpointSlice: "names of Services",
    }
    if snapshot:
        say(
            *(
                f"warning: the snapshot has no {kind.__name__}, so {what} are missing"
                for kind, what in lost.items()
                if not any(issubclass(each, kind) for each in present)
            ),
            err=True,
        )


def _read_pairs(option: str, texts: list[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            fail(f"{option}: {text!r} must be {form}")
        pairs[name] = value
    return pairs


def _show(tables: list[FlowTable], output: TableCsvOrLines) -> None:
    """Print all flows; files of flows keep the period of each table."""
    from keepclose.accounting.flow_files import flow_document, write_csv, write_json_lines
    from keepclose.accounting.flow_table import merge_tables
    from keepclose.cli.render.flow_reports import print_flow_table

    table = merge_tables(tables)
    match output:
        case TableCsvOrLines.TABLE:
            print_flow_table(table)
            show_notes(table)
        case TableCsvOrLines.JSON:
            echo_json(flow_document(table))
        case TableCsvOrLines.CSV:
            for line in write_csv(*tables):
                echo_document(line)
            show_notes(table)
        case TableCsvOrLines.JSON_LINES:
            for line in write_json_lines(*tables):
                echo_document(line)
