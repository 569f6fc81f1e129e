"""Tests of how JSON texts are read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.cli.manifests.documents import JsonError, JsonText, split_json


@pytest.mark.parametrize(
    ("text", "want_texts"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param(" \n ", [], id="blanks"),
        pytest.param('{"a": 1}', [JsonText('{"a": 1}', 1, {"a": 1})], id="one"),
        pytest.param(
            '\n{"a":\n1}\n\n[2] 3',
            [JsonText('{"a":\n1}', 2, {"a": 1}), JsonText("[2]", 5, [2]), JsonText("3", 5, 3)],
            id="several in a row",
        ),
        pytest.param(
            '{"a": {"b": 1, "c": 2, "b": 3}}{}',
            [
                JsonText('{"a": {"b": 1, "c": 2, "b": 3}}', 1, {"a": {"b": 3, "c": 2}}, "b"),
                JsonText("{}", 1, {}),
            ],
            id="a key that stands twice is noted",
        ),
        pytest.param(
            r'"\ud83d\ude00"',
            [JsonText(r'"\ud83d\ude00"', 1, "\U0001f600")],
            id="a whole character",
        ),
    ],
)
def test_texts_are_read(text: str, want_texts: list[JsonText]) -> None:
    """Values in a row are read with their texts and first lines."""
    assert split_json(text) == (want_texts, None)


@pytest.mark.parametrize(
    ("text", "want_error"),
    [
        pytest.param(
            '{"a": 1,\n "b" 2}',
            JsonError("not valid JSON: expected ':' delimiter", 2, 6),
            id="colon",
        ),
        pytest.param(
            "[\n1\n2]", JsonError("not valid JSON: expected ',' delimiter", 3, 1), id="comma"
        ),
        pytest.param("[NaN]", JsonError("not valid JSON: NaN is no number", 1), id="not a number"),
        pytest.param(
            r'["\ud800"]',
            JsonError("not valid JSON: a text holds half of a character (a lone surrogate)", 1),
            id="half a character",
        ),
        pytest.param(
            f'{{"a": {"9" * 5000}}}',
            JsonError("not valid JSON: a number of 5,000 digits; at most 64 can be read", 1),
            id="a number of too many digits",
        ),
        pytest.param(
            "[" * 100_000, JsonError("not valid JSON: nested too deeply", 1), id="too deep"
        ),
    ],
)
def test_error_ends_the_reading(text: str, want_error: JsonError) -> None:
    """An error is placed, and the values before it are kept."""
    assert split_json(text) == ([], want_error)
    texts, error = split_json(f"{{}}\n{text}")

    assert texts == [JsonText("{}", 1, {})]
    assert error is not None
    assert (error.message, error.line) == (want_error.message, want_error.line + 1)


@given(st.text(max_size=30) | st.text('{}[]",:1ae \n\\u', max_size=30))
@settings(deadline=None, max_examples=200)
def test_reading_never_raises(text: str) -> None:
    """Any text gives values whose own texts stand in it in order, and at most one error."""
    texts, _ = split_json(text)
    rest = text
    for one in texts:
        assert one.text in rest
        rest = rest[rest.index(one.text) + len(one.text) :]
