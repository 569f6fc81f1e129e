"""Warnings as headers: quoted, each once, and never too many."""

from __future__ import annotations

import pytest

from keepclose.apiserver.serving.responses import warning_headers
from keepclose.testing.api_server import Served

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param(["a", "b", "a", ""], ['299 - "a"', '299 - "b"'], id="each once"),
        pytest.param(['"a\\b"'], ['299 - "\\"a\\\\b\\""'], id="quotes"),
        pytest.param(["größer"], ['299 - "größer"'], id="letters of other languages"),
        pytest.param(["a\nb", "c\x00", "d\x7f", "e"], ['299 - "e"'], id="control characters"),
        pytest.param(["x" * 4096], [f'299 - "{"x" * 4096}"'], id="just as long as allowed"),
        pytest.param(["x" * 4097], [f'299 - "{"x" * 256}"'], id="too long"),
    ],
)
def test_texts_become_headers(texts: list[str], want: list[str]) -> None:
    """A text is quoted, repeated ones come once, and what would break a header does not come."""
    assert [value.decode() for _, value in warning_headers(texts)] == want
    assert {name for name, _ in warning_headers(texts)} <= {b"Warning"}


def test_the_last_ones_are_left_out() -> None:
    """Of very many texts the first ones are kept, cut, as far as they fit."""
    texts = [f"{number:03}" + "x" * 297 for number in range(100)]
    assert [value[7:10] for _, value in warning_headers(texts)] == [
        f"{number:03}".encode() for number in range(16)
    ]


async def test_a_body_full_of_odd_fields(api: Served) -> None:
    """Thousands of unknown fields with long and strange names leave an answer that can be read."""
    odd = {f"f{number}\x00" if number % 2 else f"f{number}" * 9: 1 for number in range(5000)}
    reply = await api.call("POST", CONFIGMAPS, {"metadata": {"name": "one"}, **odd})
    assert reply.status == 201
    assert 0 < sum(map(len, reply.warnings)) < 8192
