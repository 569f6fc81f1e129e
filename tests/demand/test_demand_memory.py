"""Demand from outside is read in little more memory than it has bytes, however it is written."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from keepclose.accounting.flow_files import MAX_ROWS
from keepclose.accounting.prometheus_answers import read_vector
from keepclose.demand.rates import parse_rates, rates_of_series
from keepclose.demand.sources import AgentSource, ReadErrors, TakePage
from keepclose.model.meta import NamespacedName
from keepclose.testing.fake_clock import FakeClock

HEADER = b"namespace,service,zone,rate\n"


@contextmanager
def at_most(limit_bytes: int) -> Iterator[None]:
    """Fail if what runs inside takes more memory at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes


def many_services(count: int) -> bytes:
    """Return JSON with Services that have no rates."""
    return b"{" + b",".join(b'"a/%d":{}' % number for number in range(count)) + b"}"


@pytest.mark.parametrize(
    ("make", "want"),
    [
        pytest.param(
            lambda: HEADER + b"\n" * (4 << 20),
            "line 1000001: more than 1,000,000 lines: remove the empty ones",
            id="empty lines",
        ),
        pytest.param(
            lambda: HEADER + b"a\n" * (4 << 20), "more than 500,000 rows", id="short lines"
        ),
        pytest.param(
            lambda: HEADER + "€".encode() * (3 << 20),
            "line 2: the line has more than 16,384 characters",
            id="one line of wide characters",
        ),
        pytest.param(
            lambda: many_services(2 * MAX_ROWS + 1), "f: more than 500,000 rates", id="JSON"
        ),
    ],
)
def test_a_file_is_refused_before_it_takes_memory(make: Callable[[], bytes], want: str) -> None:
    """The error names the limit, the line where there is one, and what to do."""
    data = make()
    with at_most(len(data) // 2), pytest.raises(ValueError, match=want):
        parse_rates(data, name="f")


def test_an_answer_of_prometheus_has_the_labels_of_one_series_in_memory() -> None:
    """Thousands of short labels take ten times their bytes."""
    labels = b",".join(b'"l%d":""' % number for number in range(4000))
    metric = (
        b'{"metric":{"namespace":"shop","service":"web","zone":"a",%b},"value":[1,"2"]}' % labels
    )
    result = b",".join([metric] * 200)
    data = b'{"status":"success","data":{"resultType":"vector","result":[%b]}}' % result
    with at_most(len(data) // 2):
        rates = rates_of_series(read_vector(data, name="p"), {}, zones={})
    assert rates == {NamespacedName("shop", "web"): {"a": 400.0}}


async def test_the_page_of_an_agent_is_read_line_by_line() -> None:
    """A page of millions of short lines is refused at the first, before they take memory."""
    page = b"a\n" * (4 << 20)

    async def read(take: TakePage) -> ReadErrors:
        with at_most(len(page) // 2):
            return ReadErrors({"n1": take("n1", page)})

    errors, _ = await AgentSource(read, clock=FakeClock())._read_once()
    assert errors["n1"].startswith("n1, line 1: ")
