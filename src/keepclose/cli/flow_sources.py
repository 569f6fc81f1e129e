"""Where commands read flows from: files, agents and Prometheus.

A source is FILE (CSV or JSON lines, as its content says; compressed with gzip or not), - for
standard input, http://HOST:PORT of a flow agent, or prometheus+http://HOST:PORT, each also with
https. What follows ? in an address of Prometheus sets the window, further matchers and names of
labels: ?window=24h&match=cluster="prod"&label=service=destination_service.

Answers and files are bounded in size, answers in time too. A source that cannot be read raises
`FlowSourceError`, which says what to do.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import parse_qsl, urlencode

import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.options import parse_duration
from keepclose.cli.render.output import say
from keepclose.system.files import InputError, read_input, read_standard_input

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from keepclose.accounting.flow_table import FlowTable
    from keepclose.accounting.prometheus_answers import FirstSample, FlowQueries

MAX_FLOWS_BYTES: Final = 256 << 20
"""The largest answer of an agent."""
MAX_PROMETHEUS_BYTES: Final = 32 << 20
"""The largest answer of Prometheus, which takes several times as much in memory."""
MAX_UNPACKED_BYTES: Final = 1 << 30
"""The largest content of a compressed file."""
WALK_QUERY: Final = "walk=true"
"""Lets an agent count the bytes of open connections first; without it they are up to 30 s old."""
NO_CLUSTER: Final = "or name flows with --flows: a file, an agent or a Prometheus"
"""What a command can read where there is no cluster."""
_STANDARD_INPUT: Final = "-"
_PROMETHEUS: Final = "prometheus+"
_SCHEMES: Final = ("http", "https")
_USER: Final = re.compile(r"://[^?#]*@")
_GZIP: Final = b"\x1f\x8b"
_LONGEST_WINDOW_S: Final = 366 * 86_400

FlowSources = Annotated[
    list[str],
    typer.Option(
        "--flows",
        metavar="SOURCE",
        help="Flows: a CSV or JSON lines file, - for standard input, http://HOST:PORT of a flow "
        "agent, or prometheus+http://HOST:PORT?window=24h. May be repeated.",
    ),
]


class FlowSourceError(Exception):
    """A source that cannot be read: why, what to do, and the exit code for it."""

    def __init__(self, message: str, fix: str = "", *, code: int = ExitCode.BAD_INPUT) -> None:
        super().__init__(message)
        self.fix = fix
        self.code = code


def check_sources(sources: Sequence[str]) -> None:
    """End the command if a source is named twice, because its flows would count twice."""
    known: set[str] = set()
    for source in sources:
        # NB: the path of a file may be written in several ways.
        is_path = is_file(source) and source != _STANDARD_INPUT
        same = str(Path(source).resolve()) if is_path else name_source(source).rstrip("/")
        if same in known:
            fail(f"{name_source(source)} is named twice, so its flows would count twice")
        known.add(same)


def read_flow_tables(sources: Sequence[str]) -> list[FlowTable]:
    """Return the tables of several sources; one that cannot be read ends the command."""
    check_sources(sources)
    tables = []
    for source in sources:
        try:
            tables += load_flow_tables(source)
        except FlowSourceError as error:
            fail(str(error), error.fix, code=error.code)
    return tables


def check_observable(flows: list[str]) -> None:
    """End the command if a source is no counter, whose tables could be subtracted."""
    for name in flows:
        if is_file(name):
            fail(
                f"--observe: {name} does not change",
                "name an agent with --flows http://HOST:PORT, or judge the file without --observe",
            )
        if is_prometheus(name):
            fail(
                "--observe: a Prometheus answers for a window before now",
                "set the window instead, without --observe: prometheus+http://HOST:PORT?window=5m",
            )


def load_flow_table(source: str) -> FlowTable:
    """Return all flows of a source as one table; raise FlowSourceError."""
    from keepclose.accounting.flow_table import merge_tables

    return merge_tables(load_flow_tables(source))


def load_flow_tables(source: str) -> list[FlowTable]:
    """Return the flows of a source, a table for each period; raise FlowSourceError."""
    from keepclose.accounting.flow_files import FlowFileError

    try:
        if is_prometheus(source):
            tables = [_ask_prometheus(source)]
        elif source.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES)):
            tables = _ask_agent(source)
        else:
            tables = _parse(name_source(source), read_lines(source))
    except FlowFileError as error:
        raise FlowSourceError(str(error)) from error
    if not all(table.has_bytes for table in tables):
        tables[0].notes.append(f"{name_source(source)} has connections only, no bytes")
    return tables


def name_tables(source: str, tables: list[FlowTable]) -> dict[str, FlowTable]:
    """Return the tables of a source by name; those of a file with several periods are numbered."""
    name = name_source(source)
    if len(tables) == 1:
        return {name: tables[0]}
    return {f"{name}, period {number}": table for number, table in enumerate(tables, 1)}


def is_prometheus(source: str) -> bool:
    """Whether a source is a Prometheus, which answers for a window."""
    return source.startswith(tuple(f"{_PROMETHEUS}{scheme}://" for scheme in _SCHEMES))


def is_file(source: str) -> bool:
    """Whether a source is a file or standard input, which do not change."""
    return "://" not in source


class TextLines:
    """The lines of a text, each unpacked and decoded when it is read, as many times as wanted.

    A byte that is not UTF-8 becomes a character that no name may have, so that readers of lines
    can name the line. A line that is longer than readers accept is cut behind its limit.
    """

    def __init__(self, data: bytes, name: str = "", *, longest: int = 0) -> None:
        """Take a text; lines end with a line feed alone, as other characters may be in them."""
        self._data = data
        self._name = name
        self._longest = longest
        """In bytes; 0 if the limit is that of readers, in characters."""

    def __iter__(self) -> Iterator[str]:
        """Yield the lines; raise FlowSourceError if a compressed text cannot be unpacked."""
        from keepclose.accounting.flow_files import MAX_LINE_CHARACTERS

        # NB: a line that is cut behind this many bytes has more characters than readers accept.
        longest = self._longest or 4 * (MAX_LINE_CHARACTERS + 2)
        is_packed = self._data.startswith(_GZIP)
        with (
            gzip.GzipFile(fileobj=BytesIO(self._data)) if is_packed else BytesIO(self._data) as file
        ):
            size = 0
            while line := self._read_line(file, longest):
                size += len(line)
                if is_packed and size > MAX_UNPACKED_BYTES:
                    message = f"{self._name} has more than {MAX_UNPACKED_BYTES:,} bytes"
                    raise FlowSourceError(message, "divide it")
                yield line.decode("utf-8", "surrogateescape")

    def with_longest(self, longest: int) -> TextLines:
        """Return the same text, with lines of so many bytes at most."""
        return TextLines(self._data, self._name, longest=longest)

    def _read_line(self, file: gzip.GzipFile | BytesIO, longest: int) -> bytes:
        try:
            return file.readline(longest)
        except (OSError, EOFError, zlib.error) as error:
            raise FlowSourceError(f"{self._name} cannot be unpacked: {error}") from error


def read_lines(path: str) -> TextLines:
    """Return the lines of a file or of standard input; raise FlowSourceError."""
    name = name_source(path)
    try:
        data = read_standard_input() if path == _STANDARD_INPUT else read_input(path)
    except InputError as error:
        raise FlowSourceError(f"{name} cannot be read: {error}", error.fix) from error
    return TextLines(data, name)


def name_source(source: str) -> str:
    """Return the name of a source for messages, without the user and password of an address."""
    return "standard input" if source == _STANDARD_INPUT else _USER.sub("://", source, count=1)


def guess_format(lines: Iterable[str]) -> str:
    """Return the format of a file by its first line: csv, jsonl, aws or gcp; "" if it is none."""
    from keepclose.accounting.aws_logs import is_aws_log
    from keepclose.accounting.gcp_logs import is_gcp_log

    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    if "client_zone" in first and not first.lstrip("\ufeff ").startswith("{"):
        return "csv"
    if '"hasBytes"' in first:
        return "jsonl"
    if is_gcp_log(first):
        return "gcp"
    return "aws" if is_aws_log(first) else ""


def show_notes(table: FlowTable) -> None:
    """Print what the sources could not say to standard error."""
    say(*(f"note: {note}" for note in table.notes), err=True)


def _parse(name: str, lines: TextLines) -> list[FlowTable]:
    from keepclose.accounting.flow_files import read_csv_tables, read_json_tables

    match guess_format(lines):
        case "csv":
            return read_csv_tables(lines, name=name)
        case "jsonl":
            return read_json_tables(lines, name=name)
        case "aws" | "gcp":
            raise FlowSourceError(
                f"{name} is a flow log of a cloud, which has no names of Services",
                f"join it: keepclose flows read {name} --snapshot cluster.yaml -o csv > flows.csv",
            )
        case _:
            raise FlowSourceError(
                f"{name} is not a file of flows",
                "CSV begins with a line of columns, client_zone and endpoint_zone among them; JSON "
                'lines begin with {"start": ..., "end": ..., "hasBytes": ...}',
            )


def _ask_agent(source: str) -> list[FlowTable]:
    from keepclose.accounting.flow_files import read_json_tables
    from keepclose.system.bounded_http import show_url

    url = _split(source)
    path = url.path if url.path.strip("/") else "/flows"
    data = _get(url, f"{path}?{url.query or WALK_QUERY}", what="flow agent", most=MAX_FLOWS_BYTES)
    return read_json_tables(TextLines(data), name=show_url(url, path))


def _ask_prometheus(source: str) -> FlowTable:
    from keepclose.system.bounded_http import show_url

    url = _split(source.removeprefix(_PROMETHEUS))
    queries = _read_queries(url)
    name = show_url(url, url.path)

    def ask(text: str, **options: str) -> bytes:
        parameters = urlencode({"query": text, **options})
        target = f"{url.path.rstrip('/')}/api/v1/query?{parameters}"
        return _get(url, target, what="Prometheus", most=MAX_PROMETHEUS_BYTES)

    table = queries.read([ask(text) for text in queries.texts()], name=name)
    if not table.rows:
        queries = queries._replace(of_proxies=True)
        table = queries.read([ask(text) for text in queries.texts()], name=name)
    if table.rows:
        first = _find_first_sample(queries, table, ask, name)
        table.start = max(table.start, min(first, table.end))
    else:
        table.notes.append(
            f"{show_url(url, '')} has no flows of the last {queries.window_s:,} s: does it scrape "
            "the flow agents?"
        )
    return table


def _find_first_sample(
    queries: FlowQueries, table: FlowTable, ask: Callable[..., bytes], name: str
) -> float:
    """Return when the first sample of the window was scraped; 0 if it is not known."""
    for series in queries.first_samples(end=table.end):
        first: float | None = None
        wanted: FirstSample | None = series
        while wanted is not None:
            found = wanted.read(ask(wanted.text, time=f"{wanted.end:.3f}"), name=name)
            first = found if found is not None else first
            wanted = wanted.refine(found)
        if first is not None:
            return first
    return 0.0


def _read_queries(url: SplitResult) -> FlowQueries:
    from keepclose.accounting.flow_table import FlowKey
    from keepclose.accounting.prometheus_answers import FlowQueries

    window_s, selector, labels = 3600.0, "", {}
    for name, value in parse_qsl(url.query, keep_blank_values=True):
        match name:
            case "window":
                seconds = parse_duration(value)
                if seconds is None or not 1 <= seconds <= _LONGEST_WINDOW_S:
                    raise FlowSourceError(f"window={value} is no duration such as 24h")
                window_s = seconds
            case "match":
                selector = value
            case "label":
                field, equals, label = value.partition("=")
                if field not in FlowKey._fields or not equals or not label.isidentifier():
                    raise FlowSourceError(
                        f"label={value} is no FIELD=LABEL",
                        f"fields: {', '.join(FlowKey._fields)}",
                    )
                labels[field] = label
            case _:
                raise FlowSourceError(
                    f"{name}={value} is not known in an address of Prometheus",
                    "known: window=24h, match=MATCHERS, label=FIELD=LABEL",
                )
    return FlowQueries(int(window_s), selector, labels)


def _get(url: SplitResult, target: str, *, what: str, most: int) -> bytes:
    from keepclose.system.bounded_http import HttpPageError, get_page

    try:
        return get_page(url, target, what=what, most=most)
    except HttpPageError as error:
        code = ExitCode.UNREACHABLE if error.is_unreachable else ExitCode.BAD_INPUT
        raise FlowSourceError(str(error), error.fix, code=code) from error


def _split(source: str) -> SplitResult:
    from keepclose.system.bounded_http import HttpPageError, split_url

    try:
        return split_url(source)
    except HttpPageError as error:
        raise FlowSourceError(str(error), error.fix) from error
