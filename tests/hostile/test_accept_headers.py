"""An Accept header of many parts costs little more than to cut it up."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from keepclose.apiserver.http.request_parser import MAX_HEAD_BYTES
from keepclose.apiserver.serving.negotiation import ResponseForm, ResponseShape, read_accept
from keepclose.apiserver.status_errors import StatusError

# To read parts in full takes seven times what is measured here.
MAX_TIMES = 4.0


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of several runs."""
    taken = []
    for _ in range(7):
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return min(taken)


@pytest.mark.parametrize("part", [",", "a;,", ";,"])
def test_parts_that_are_not_served_are_passed_over(part: str) -> None:
    """In CPU time beside that of a plain walk over the same parts."""
    header = part * (MAX_HEAD_BYTES // len(part))

    def read() -> None:
        with contextlib.suppress(StatusError):
            read_accept(header)

    def walk() -> int:
        return sum(1 for one in header.split(",") if one.partition(";")[0].strip() == "x")

    assert _cpu_seconds(read) < MAX_TIMES * _cpu_seconds(walk)


def test_the_first_part_that_is_served_counts() -> None:
    """Also behind many others."""
    header = ",".join(
        ["text/html;q=0.9"] * 1_000 + ["application/json;as=Table;v=v1;g=meta.k8s.io"]
    )
    assert read_accept(header) == ResponseForm(ResponseShape.TABLE)
