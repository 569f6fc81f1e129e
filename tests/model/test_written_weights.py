"""Written weights: what is rendered is read again, and all else is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.model.well_known import ZONE_WEIGHTS_ANNOTATION
from keepclose.model.zone_weights import (
    ALL_BY_HINTS,
    MAX_WEIGHT,
    MAX_WEIGHTS_BYTES,
    ZoneWeights,
    parse_zone_weights,
    read_zone_weights,
    render_zone_weights,
)
from support.builders import endpoint_slice

GOOD = '{"hints":250,"weights":{"a":{"a":1000,"b":20},"b":{"b":1000}}}'
ZONES = st.text(min_size=1, max_size=5)
ROWS = st.dictionaries(ZONES, st.integers(0, MAX_WEIGHT), min_size=1).filter(
    lambda row: any(row.values())
)


@given(st.dictionaries(ZONES, ROWS, min_size=1, max_size=4), st.integers(0, ALL_BY_HINTS))
def test_what_is_rendered_is_read_again(weights: dict[str, dict[str, int]], hints: int) -> None:
    """The annotation keeps every weight, and equal weights give equal text in any order."""
    written = ZoneWeights(weights=weights, hints=hints)
    text = render_zone_weights(written)
    assert parse_zone_weights(text) == written
    turned = {zone: dict(reversed(row.items())) for zone, row in reversed(weights.items())}
    assert render_zone_weights(ZoneWeights(weights=turned, hints=hints)) == text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[1, 2]", id="a list"),
        pytest.param("{}", id="no weights"),
        pytest.param('{"weights":{}}', id="no zones"),
        pytest.param('{"weights":{"a":{}}}', id="a zone without weights"),
        pytest.param('{"weights":{"a":{"a":0}}}', id="all zero"),
        pytest.param('{"weights":{"a":{"a":-1,"b":5}}}', id="negative"),
        pytest.param('{"weights":{"a":{"a":10001}}}', id="too large"),
        pytest.param('{"weights":{"a":{"a":1.5}}}', id="a fraction"),
        pytest.param('{"weights":{"a":{"a":NaN}}}', id="not a number"),
        pytest.param('{"weights":{"a":{"a":"5"}}}', id="a text"),
        pytest.param('{"weights":{"a":{"a":true}}}', id="a truth value"),
        pytest.param('{"weights":{"a":{"a":99999999999999999999999}}}', id="beyond 64 bits"),
        pytest.param('{"weights":{"a":5}}', id="a row that is a number"),
        pytest.param('{"hints":1001,"weights":{"a":{"a":1}}}', id="more than all by hints"),
        pytest.param('{"hints":-1,"weights":{"a":{"a":1}}}', id="less than none by hints"),
        pytest.param('{"weights":{"a":{"a":1}},"unknown":1}', id="a newer form"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"weights":{"\ud800":{"a":1}}}', id="half a character"),
        pytest.param(GOOD + " " * MAX_WEIGHTS_BYTES, id="too long"),
    ],
)
def test_another_form_gives_a_problem(text: str) -> None:
    """A value that is not exactly of the form has a problem and no weights."""
    got = parse_zone_weights(text)
    assert got.problem
    assert not got.weights


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_gives_an_answer(text: str) -> None:
    """Whatever the annotation holds, reading it does not raise."""
    got = parse_zone_weights(text)
    assert bool(got.problem) != bool(got.weights)


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        pytest.param((), None, id="no slices"),
        pytest.param((None, None), None, id="none"),
        pytest.param((None, GOOD), parse_zone_weights(GOOD), id="one of two"),
        pytest.param((GOOD, GOOD), parse_zone_weights(GOOD), id="both alike"),
        pytest.param(
            (GOOD, GOOD.replace("250", "0")),
            ZoneWeights(problem="the slices of the Service disagree"),
            id="both, but not alike",
        ),
    ],
)
def test_slices_must_agree(texts: tuple[str | None, ...], want: ZoneWeights | None) -> None:
    """One slice is enough to hold the weights; slices with different ones make them void."""
    slices = [
        endpoint_slice(annotations={} if text is None else {ZONE_WEIGHTS_ANNOTATION: text})
        for text in texts
    ]
    assert read_zone_weights(slices) == want
