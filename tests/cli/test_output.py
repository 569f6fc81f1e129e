"""Tests of how documents are printed."""

from __future__ import annotations

import msgspec
import pytest

from keepclose.cli.render.output import count_things, echo_json


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"b": 1, "a": ["zürich"]}, id="values"),
        pytest.param(msgspec.Raw('{"b":1,"a":["zürich"]}'.encode()), id="text as it came"),
    ],
)
def test_json_is_indented_in_its_own_order(
    document: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys keep their order, letters are not escaped, and a line break ends it."""
    echo_json(document)

    assert capsys.readouterr().out == '{\n  "b": 1,\n  "a": [\n    "zürich"\n  ]\n}\n'


@pytest.mark.parametrize(
    ("number", "want"), [(0, "0 zones"), (1, "1 zone"), (2, "2 zones"), (1234, "1,234 zones")]
)
def test_a_single_thing_has_no_plural(number: int, want: str) -> None:
    """A number is shown with its noun as it is spoken."""
    assert count_things(number, "zone") == want
