"""Flows from the answers of Prometheus' query API.

Three queries ask for connections, failed connections and bytes of a window, summed by the labels
that `flow_table.FlowKey` has as fields. A vector holds what was counted in the window; a matrix
holds samples of counters, whose increase is summed here, with counters that began again from 0.

Agents and proxies both count connections; series of a proxy have the label mode. A connection that
both have counted must not count twice, so proxies are asked only where there is no agent.

Prometheus may have fewer samples than the window is long. `FirstSample` has the queries that find
the first one, and the period begins with it: a rate is a count divided by the time there is.

A series with a value that is no number, or a negative one, is an error that names it, because a
silent 0 would be a lower bill, and so is one whose sum is beyond 63 bits. Increases are
extrapolated by Prometheus, so they are rounded.

An answer is decoded a series at a time, each within limits, because a few bytes of JSON become many
in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isfinite, nan
from typing import Final, NamedTuple, TypeVar

import msgspec

from keepclose.accounting.flow_files import (
    MAX_NAME_CHARACTERS,
    MAX_ROWS,
    FlowFileError,
)
from keepclose.accounting.flow_table import (
    LATEST_S,
    UNKNOWN,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
)
from keepclose.model.json_values import INT64_MAX
from keepclose.model.plain_text import is_hidden, make_plain

CONNECTIONS_METRIC: Final = "keepclose_flow_connections_total"
FAILED_METRIC: Final = "keepclose_flow_failed_connections_total"
BYTES_METRIC: Final = "keepclose_flow_bytes_total"
AGENT_METRIC: Final = "keepclose_flows_walks_total"
"""A series that each agent has from its start, also without connections."""
MAX_SAMPLES: Final = 100_000
"""The most samples of a series; Prometheus itself answers ranges with 11,000 at most."""
MAX_LABELS_BYTES: Final = 64 << 10
"""The most bytes of the labels of a series."""
_MAX_WARNINGS: Final = 10
_MOST_STEPS: Final = 1000
# Prometheus takes a sample for the present value of its series for five minutes.
_LONGEST_STEP_S: Final = 240
_COUNTED: Final = ((CONNECTIONS_METRIC, ""), (FAILED_METRIC, "reason"), (BYTES_METRIC, "direction"))
_KINDS: Final = {kind.value: kind for kind in FlowKind}
_Sample = tuple[float, str]


_NO_JSON: Final = msgspec.Raw()
_T = TypeVar("_T")


class _LazySeries(msgspec.Struct):
    """A series whose labels and samples are JSON yet."""

    metric: msgspec.Raw
    value: _Sample | None = None
    values: msgspec.Raw = _NO_JSON


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_LazySeries] = []


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error: str = ""
    error_type: str = ""
    warnings: msgspec.Raw = _NO_JSON


_DECODER: Final = msgspec.json.Decoder(_Answer)
_LABELS: Final = msgspec.json.Decoder(dict[str, str])
_SAMPLES: Final = msgspec.json.Decoder(list[_Sample])
_WARNINGS: Final = msgspec.json.Decoder(list[str] | None)


class _Series(NamedTuple):
    metric: dict[str, str]
    samples: list[_Sample]
    is_counter: bool
    """Whether the samples are those of a counter; else there is one, what was counted."""

    @classmethod
    def read(cls, lazy: _LazySeries, name: str) -> _Series:
        """Decode a series; raise FlowFileError."""
        if len(bytes(lazy.metric)) > MAX_LABELS_BYTES:
            message = f"the labels of a series have more than {MAX_LABELS_BYTES:,} bytes"
            raise FlowFileError(name, 0, message)
        metric = _decode_part(_LABELS, lazy.metric, name)
        if lazy.value is not None:
            return cls(metric, [lazy.value], is_counter=False)
        values = bytes(lazy.values)
        # NB: each sample is an array, in an array.
        if values.count(b"[") > MAX_SAMPLES + 1:
            message = f"series {_show(metric)} has more than {MAX_SAMPLES:,} samples"
            raise FlowFileError(name, 0, message)
        samples = _decode_part(_SAMPLES, lazy.values, name) if values else []
        return cls(metric, samples, is_counter=True)


class FlowQueries(NamedTuple):
    """What to ask Prometheus, and how to read its answers."""

    window_s: int = 3600
    selector: str = ""
    """Further matchers of labels, such as cluster="prod"."""
    labels: Mapping[str, str] = {}
    """The names of labels in Prometheus by fields of FlowKey, where they differ."""
    of_proxies: bool = False
    """Whether connections of proxies are asked for, instead of those of agents."""

    def texts(self) -> Iterator[str]:
        """Yield the queries, in the order in which `read` takes the answers."""
        fields = [self._label(field) for field in FlowKey._fields]
        for metric, label in _COUNTED:
            by = ", ".join([*fields, label] if label else fields)
            yield f"sum by ({by}) (increase({self._series(metric)}[{self.window_s}s]))"

    def first_samples(self, *, end: float) -> Iterator[FirstSample]:
        """Yield what finds the first sample of the window that ends then, the cheapest first."""
        metrics = (CONNECTIONS_METRIC,) if self.of_proxies else (AGENT_METRIC, CONNECTIONS_METRIC)
        for metric in metrics:
            yield FirstSample(self._series(metric), float(self.window_s), end)

    def _series(self, metric: str) -> str:
        matchers = [self.selector] if self.selector else []
        if metric == CONNECTIONS_METRIC:
            matchers.append('mode!=""' if self.of_proxies else 'mode=""')
        return f"{metric}{{{','.join(matchers)}}}"

    def read(self, answers: list[bytes], *, name: str) -> FlowTable:
        """Return the flows of the answers to the queries; raise FlowFileError.

        The period of the table is the whole window.
        """
        table = FlowTable(has_bytes=False, is_window=True)
        for (metric, label), data in zip(_COUNTED, answers, strict=True):
            answer = _decode(data, name)
            table.notes += _read_warnings(answer, name)
            if answer.data is None:
                raise FlowFileError(name, 0, "the answer has no data")
            if answer.data.result_type not in ("vector", "matrix"):
                message = f"the answer is a {answer.data.result_type[:50]}, no vector or matrix"
                raise FlowFileError(name, 0, message)
            for lazy in answer.data.result:
                series = _Series.read(lazy, name)
                counted = series.metric.get(label, "") if label else "connections"
                number, at = _increase(series, name)
                table.end = max(table.end, at)
                table.add(self._key(series.metric, name), _counts(counted, number, name))
                if len(table) > MAX_ROWS:
                    raise _too_many(name)
            if metric == BYTES_METRIC:
                table.has_bytes = bool(answer.data.result) or not table.rows
        blind = [key for key, counts in table if counts.connections and not counts.total_bytes]
        if table.has_bytes and blind:
            table.notes.append(
                f"{name}: {len(blind):,} of {len(table):,} flows have connections without bytes:"
                " some nodes do not count bytes"
            )
        if self.of_proxies and table.rows:
            table.notes.append(
                f"{name}: no flow agent is scraped, so connections are those that proxies counted"
            )
        if table.end:
            table.start = max(0.0, table.end - self.window_s)
        return table

    def _label(self, field: str) -> str:
        return self.labels.get(field, field)

    def _key(self, labels: Mapping[str, str], name: str) -> FlowKey:
        texts = {field: labels.get(self._label(field), "") for field in FlowKey._fields}
        for field, text in texts.items():
            if len(text) > MAX_NAME_CHARACTERS or any(map(is_hidden, text)):
                shown = make_plain(text, most=100)
                raise FlowFileError(name, 0, f"label {self._label(field)}: {shown!r} is no name")
        kind = texts["kind"] or (FlowKind.SERVICE if texts["service"] else FlowKind.UNKNOWN)
        if kind not in _KINDS:
            message = f"label {self._label('kind')}: {kind!r} is none of {', '.join(_KINDS)}"
            raise FlowFileError(name, 0, message)
        return FlowKey(
            _KINDS[kind],
            texts["namespace"],
            texts["service"],
            texts["port"],
            texts["protocol"] or "TCP",
            texts["client_zone"] or UNKNOWN,
            texts["endpoint_zone"] or UNKNOWN,
            texts["client_node"],
            texts["endpoint_node"],
            texts["client"],
            texts["endpoint"],
        )


class FirstSample(NamedTuple):
    """Finds the first sample of series: at first about when, then within a second or a hundredth.

    `timestamp` is that of the last sample before each step, so a query finds a sample that is later
    than the first one by less than a step.
    """

    series: str
    window_s: float
    end: float

    @property
    def step_s(self) -> int:
        """The time between two steps of the query."""
        return max(1, min(_LONGEST_STEP_S, int(self.window_s / _MOST_STEPS)))

    @property
    def text(self) -> str:
        """The query, for the time `end`."""
        # NB: min() within the subquery keeps one number for each step, not one for each series.
        window = max(1, int(self.window_s))
        return f"min_over_time(min(timestamp({self.series}))[{window}s:{self.step_s}s])"

    def read(self, data: bytes, *, name: str) -> float | None:
        """Return the time of a sample; None if there is none. Raise FlowFileError."""
        answer = _decode(data, name)
        if answer.data is None or not answer.data.result:
            return None
        series = _Series.read(answer.data.result[0], name)
        return _number(series.samples[0][1], series, name) if series.samples else None

    def refine(self, at: float | None) -> FirstSample | None:
        """Return what to ask after an answer; None if its sample is near enough to the first."""
        if self.step_s <= 1:
            return None
        # Without a sample at any step, all of them are later than the last step.
        at = self.end if at is None else at
        # A sample within the first step: the whole window has samples.
        if at - (self.end - self.window_s) <= self.step_s:
            return None
        return FirstSample(self.series, float(self.step_s), at)


def read_vector(data: bytes, *, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of each series of an instant vector; raise FlowFileError.

    A value that is no number is NaN; the caller judges values by the series they belong to. Labels
    take many times their bytes in memory, so that only those of one series are there at a time.
    """
    answer = _decode(data, name)
    if answer.data is None or answer.data.result_type != "vector":
        kind = make_plain("nothing" if answer.data is None else answer.data.result_type, most=50)
        raise FlowFileError(name, 0, f"the answer is {kind}, expected a vector")
    for lazy in answer.data.result:
        series = _Series.read(lazy, name)
        if series.samples and not series.is_counter:
            yield series.metric, _float(series.samples[0][1])


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _decode(data: bytes, name: str) -> _Answer:
    # NB: a series and its labels are an object each, and so are the answer and its data.
    if data.count(b"{") > 2 * MAX_ROWS + 2:
        raise _too_many(name)
    answer = _decode_part(_DECODER, data, name)
    if answer.status != "success":
        message = f"Prometheus answered {answer.error_type or answer.status}: {answer.error}"
        raise FlowFileError(name, 0, make_plain(message, most=500))
    return answer


def _decode_part(decoder: msgspec.json.Decoder[_T], data: bytes | msgspec.Raw, name: str) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        message = f"it is no answer of Prometheus' query API: {error}"
        raise FlowFileError(name, 0, message) from None


def _read_warnings(answer: _Answer, name: str) -> list[str]:
    if len(bytes(answer.warnings)) > MAX_LABELS_BYTES:
        return [f"{name}: it answers with warnings of more than {MAX_LABELS_BYTES:,} bytes"]
    warnings = _decode_part(_WARNINGS, answer.warnings, name) if bytes(answer.warnings) else None
    return [make_plain(f"{name}: {warning}") for warning in (warnings or [])[:_MAX_WARNINGS]]


def _too_many(name: str) -> FlowFileError:
    return FlowFileError(name, 0, f"more than {MAX_ROWS:,} series: narrow the selector")


def _counts(counted: str, number: int, name: str) -> FlowCounts:
    match counted:
        case "connections":
            return FlowCounts(connections=number)
        case "refused":
            return FlowCounts(refused=number)
        case "unanswered":
            return FlowCounts(unanswered=number)
        case "request":
            return FlowCounts(request_bytes=number)
        case "response":
            return FlowCounts(response_bytes=number)
        case _:
            message = f"{make_plain(counted, most=100)!r} is no reason or direction of flows"
            raise FlowFileError(name, 0, message)


def _increase(series: _Series, name: str) -> tuple[int, float]:
    """Return what a series counted, and the time of its last sample."""
    samples = series.samples
    if not samples:
        raise FlowFileError(name, 0, f"series {_show(series.metric)} has no value")
    numbers = [_number(text, series, name) for _, text in samples]
    if series.is_counter:
        steps = pairwise(numbers)
        total = sum(now - before if now >= before else now for before, now in steps)
    else:
        total = numbers[0]
    # NB: the sum of finite numbers may be infinite.
    if total > INT64_MAX:
        message = f"series {_show(series.metric)} has counted {total:.3g}, more than {INT64_MAX}"
        raise FlowFileError(name, 0, message)
    at = samples[-1][0]
    return min(INT64_MAX, round(total)), at if 0 < at <= LATEST_S else 0.0


def _number(text: str, series: _Series, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        message = f"series {_show(series.metric)} has the value {make_plain(text, most=50)}"
        raise FlowFileError(name, 0, message)
    return number


def _show(metric: Mapping[str, str]) -> str:
    labels = ", ".join(f'{label}="{value}"' for label, value in metric.items())
    return make_plain(f"{{{labels}}}", most=300)
