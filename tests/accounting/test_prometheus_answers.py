"""Answers of Prometheus' query API."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import pytest

from keepclose.accounting.flow_files import FlowFileError
from keepclose.accounting.flow_table import UNKNOWN, FlowCounts, FlowKey, FlowKind
from keepclose.accounting.prometheus_answers import FirstSample, FlowQueries

LABELS = {
    "kind": "service",
    "namespace": "shop",
    "service": "web",
    "port": "http",
    "protocol": "TCP",
    "client_zone": "a",
    "endpoint_zone": "b",
}
KEY = FlowKey(FlowKind.SERVICE, "shop", "web", "http", "TCP", "a", "b")


def vector(*series: tuple[dict[str, str], str]) -> bytes:
    """Return an answer with one value a series."""
    result = [{"metric": labels, "value": [1767225600.5, value]} for labels, value in series]
    return answer({"resultType": "vector", "result": result})


def answer(data: dict[str, Any], **more: Any) -> bytes:
    """Return an answer that succeeded."""
    return json.dumps({"status": "success", "data": data, **more}).encode()


def test_three_answers_make_a_table() -> None:
    """Connections, failures and bytes of one flow are one row, for the window before the answer."""
    table = FlowQueries(window_s=7200).read(
        [
            vector((LABELS, "119.6")),
            vector(
                ({**LABELS, "reason": "refused"}, "3"), ({**LABELS, "reason": "unanswered"}, "1")
            ),
            vector(
                ({**LABELS, "direction": "request"}, "1e3"),
                ({**LABELS, "direction": "response"}, "5000"),
            ),
        ],
        name="prometheus",
    )
    assert table.rows == {KEY: FlowCounts(120, 3, 1, 1000, 5000)}
    assert (table.start, table.end, table.has_bytes) == (1767218400.5, 1767225600.5, True)


def test_a_matrix_is_the_increase_of_its_counters() -> None:
    """A counter that falls began again from 0, so what it shows then is new."""
    samples = [[10, "100"], [20, "150"], [30, "20"], [40, "25"]]
    series = {"metric": LABELS, "values": samples}
    matrix = answer({"resultType": "matrix", "result": [series]})
    table = FlowQueries(window_s=30).read([matrix, vector(), vector()], name="prometheus")
    assert table.rows == {KEY: FlowCounts(50 + 20 + 5)}
    assert (table.start, table.end) == (10.0, 40.0)


def test_without_series_of_bytes_the_table_has_none() -> None:
    """A node without accounting counts connections only, which is not 0 bytes."""
    table = FlowQueries().read([vector((LABELS, "1")), vector(), vector()], name="prometheus")
    assert not table.has_bytes


def test_flows_without_bytes_among_others_are_noted() -> None:
    """One node without accounting makes the bill too low, and a note says so."""
    seen = {**LABELS, "direction": "request"}
    answers = [
        vector((LABELS, "1"), ({**LABELS, "client_zone": "c"}, "1")),
        vector(),
        vector((seen, "9")),
    ]
    table = FlowQueries().read(answers, name="p")
    assert table.has_bytes
    assert table.notes == [
        "p: 1 of 2 flows have connections without bytes: some nodes do not count bytes"
    ]


def test_labels_may_have_other_names() -> None:
    """Queries and answers use the names that the user has."""
    queries = FlowQueries(60, 'cluster="x"', {"service": "destination_service", "kind": "what"})
    first, second, third = queries.texts()
    assert "destination_service" in first
    assert 'keepclose_flow_connections_total{cluster="x",mode=""}[60s]' in first
    assert "reason) (increase(keepclose_flow_failed_connections_total" in second
    assert "direction) (increase(keepclose_flow_bytes_total" in third
    table = queries.read(
        [vector(({"destination_service": "web"}, "1")), vector(), vector()], name=""
    )
    assert list(table.rows) == [FlowKey(service="web", client_zone=UNKNOWN, endpoint_zone=UNKNOWN)]


def test_the_first_sample_is_found_in_two_queries() -> None:
    """The second query looks for an older sample within a step, unless the window is full."""
    first = FirstSample("m{}", 86_400.0, 1_767_225_600.0)
    assert first.text == "min_over_time(min(timestamp(m{}))[86400s:86s])"
    assert first.read(vector(({}, "1767225550.5")), name="p") == 1_767_225_550.5
    finer = first.refine(1_767_225_550.5)
    assert finer is not None
    assert (finer.text, finer.end) == ("min_over_time(min(timestamp(m{}))[86s:1s])", 1767225550.5)
    assert finer.refine(1_767_225_540.0) is None
    assert first.refine(1_767_225_600.0 - 86_350) is None
    assert first.read(vector(), name="p") is None
    assert first.refine(None) == FirstSample("m{}", 86.0, first.end)
    assert finer.refine(None) is None


def test_warnings_become_notes() -> None:
    """Prometheus says what it could not read, and so does the table."""
    empty = {"resultType": "vector", "result": []}
    answers = [answer(empty, warnings=["remote \x1b read failed"]), vector(), vector()]
    assert FlowQueries().read(answers, name="p").notes == ["p: remote \\x1b read failed"]


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(b"<html>", "it is no answer of Prometheus", id="HTML"),
        pytest.param(b"{}", "missing required field `status`", id="empty"),
        pytest.param(b"[" * 5000, "it is no answer of Prometheus", id="deep"),
        pytest.param(
            b'{"status":"error","errorType":"bad_data","error":"parse error"}',
            "Prometheus answered bad_data: parse error",
            id="error",
        ),
        pytest.param(b'{"status":"success"}', "the answer has no data", id="no data"),
        pytest.param(answer({"resultType": "scalar"}), "the answer is a scalar", id="scalar"),
        pytest.param(vector((LABELS, "NaN")), "has the value NaN", id="NaN"),
        pytest.param(vector((LABELS, "+Inf")), "has the value +Inf", id="infinite"),
        pytest.param(vector((LABELS, "-1")), "has the value -1", id="negative"),
        pytest.param(vector((LABELS, "x")), 'service="web"', id="text"),
        pytest.param(vector(({"kind": "x"}, "1")), "label kind: 'x' is none of", id="kind"),
        pytest.param(vector(({"service": "\x1b"}, "1")), "label service: '\\\\x1b'", id="control"),
        pytest.param(
            answer({"resultType": "vector", "result": [{"metric": {}}]}), "has no value", id="none"
        ),
    ],
)
def test_a_bad_answer_is_an_error(data: bytes, want: str) -> None:
    """No value is taken as 0 in silence."""
    with pytest.raises(FlowFileError) as raised:
        FlowQueries().read([data, vector(), vector()], name="p")
    assert str(raised.value).startswith("p: ")
    assert want in str(raised.value)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(["0", "1e308", "0", "1e308"], id="infinite"),
        pytest.param(["0", "1e19"], id="beyond 63 bits"),
    ],
)
def test_a_sum_that_no_counter_reaches_is_an_error(samples: list[str]) -> None:
    """Finite samples may have an infinite sum; the error names the series."""
    series = {"metric": LABELS, "values": [[number, text] for number, text in enumerate(samples)]}
    matrix = answer({"resultType": "matrix", "result": [series]})
    with pytest.raises(FlowFileError, match=r'service="web".* has counted '):
        FlowQueries().read([matrix, vector(), vector()], name="p")


def test_a_time_beyond_the_calendar_is_not_known() -> None:
    """A table without a period is better than one that cannot be shown."""
    series = {"metric": LABELS, "value": [1e308, "5"]}
    data = answer({"resultType": "vector", "result": [series]})
    table = FlowQueries().read([data, vector(), vector()], name="p")
    assert (table.start, table.end) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("result", "want"),
    [
        pytest.param(
            b'{"metric":{},"values":[' + b'[1,"0"],' * 3_000_000 + b'[1,"0"]]}',
            "series {} has more than 100,000 samples",
            id="samples",
        ),
        pytest.param(
            b'{"metric":{}},' * 2_000_000 + b'{"metric":{}}',
            "more than 500,000 series",
            id="series",
        ),
        pytest.param(
            b'{"metric":{' + b",".join(b'"%d":""' % number for number in range(2_000_000)) + b"}}",
            "the labels of a series have more than 65,536 bytes",
            id="labels",
        ),
    ],
)
def test_a_large_answer_takes_little_memory(result: bytes, want: str) -> None:
    """Small pieces of JSON take many times their size as objects, so they are counted before."""
    data = b'{"status":"success","data":{"resultType":"matrix","result":[' + result + b"]}}"
    tracemalloc.start()
    try:
        with pytest.raises(FlowFileError, match=re.escape(want)):
            FlowQueries().read([data, vector(), vector()], name="p")
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_an_unknown_direction_is_an_error() -> None:
    """Bytes of no direction would have no price."""
    answers = [vector(), vector(), vector(({**LABELS, "direction": "up"}, "1"))]
    with pytest.raises(FlowFileError, match="'up' is no reason or direction"):
        FlowQueries().read(answers, name="p")
