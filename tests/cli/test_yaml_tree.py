"""Tests of how one YAML document is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yaml.nodes import MappingNode, Node

from keepclose.cli.manifests.yaml_tree import Unreadable, build_value, compose_tree, read_members


def read(text: str) -> Any:
    """Return the value of a text, or why it has none."""
    tree = compose_tree(text)
    return build_value(tree) if isinstance(tree, Node) else tree


@pytest.mark.parametrize(
    ("text", "want_value"),
    [
        pytest.param("80", 80, id="a number"),
        pytest.param('"80"', "80", id="a quoted number"),
        pytest.param("!!str 80", "80", id="a number said to be a string"),
        pytest.param("-1_000", -1000, id="a number with underscores"),
        pytest.param("010", 8, id="an octal number"),
        pytest.param("0o10", 8, id="an octal number with a letter"),
        pytest.param("0x1F", 31, id="a hexadecimal number"),
        pytest.param("0b11", 3, id="a binary number"),
        pytest.param("0x_", "0x_", id="a prefix without digits"),
        pytest.param("1.5", 1.5, id="a fraction"),
        pytest.param("1e3", 1000.0, id="an exponent"),
        pytest.param("0812", 812.0, id="no octal number is a fraction"),
        pytest.param("-.inf", float("-inf"), id="infinity"),
        pytest.param("1" * 65, "1" * 65, id="digits without end are a string"),
        pytest.param("true", True, id="true"),
        pytest.param("off", False, id="off"),
        pytest.param("!!bool maybe", "maybe", id="no boolean after all"),
        pytest.param("!!int maybe", "maybe", id="no number after all"),
        pytest.param("null", None, id="null"),
        pytest.param("a:", {"a": None}, id="nothing is null"),
        pytest.param("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", id="a time"),
        pytest.param("2026-01-01", "2026-01-01", id="a date"),
        pytest.param("12:30", "12:30", id="minutes"),
        pytest.param("=", "=", id="an equals sign"),
        pytest.param("a: <<", {"a": "<<"}, id="arrows as a value"),
        pytest.param("!mine x", "x", id="an unknown tag"),
        pytest.param("1: {true: [a, 2]}", {"1": {"true": ["a", 2]}}, id="keys are strings"),
        pytest.param("a: &x [1]\nb: *x", {"a": [1], "b": [1]}, id="an alias"),
        pytest.param(
            "x: &x {a: 1, b: 1}\ny: {<<: *x, b: 2}",
            {"x": {"a": 1, "b": 1}, "y": {"a": 1, "b": 2}},
            id="own members win over merged ones",
        ),
        pytest.param(
            "{<<: [{a: 1, b: 1}, {b: 2, c: 2}]}",
            {"a": 1, "b": 1, "c": 2},
            id="the first of several merged maps wins",
        ),
        pytest.param("# nothing", None, id="a comment only"),
        pytest.param("", None, id="nothing at all"),
    ],
)
def test_value_is_read(text: str, want_value: object) -> None:
    """Scalars, maps and lists are read as kubectl reads them."""
    value = read(text)

    assert value == want_value
    assert type(value) is type(want_value)


INDENT_RULE = "check the indentation of this line and of those above it"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "a:\n\tb: c",
            Unreadable("not valid YAML: a tab is not allowed here", 1, 0, "indent with spaces"),
            id="a tab",
        ),
        pytest.param(
            "a: @b",
            Unreadable(
                "not valid YAML: a text cannot start with '@'", 0, 3, "put the text in quotes"
            ),
            id="a reserved sign",
        ),
        pytest.param(
            "a: b: c",
            Unreadable(
                "not valid YAML: a ':' is not allowed here",
                0,
                4,
                "check the indentation, and put texts that contain ': ' in quotes",
            ),
            id="two colons",
        ),
        pytest.param(
            "a: 1\n- b",
            Unreadable("not valid YAML: expected a key such as 'name:'", 1, 0, INDENT_RULE),
            id="an item among keys",
        ),
        pytest.param(
            "- a\nb: c",
            Unreadable("not valid YAML: expected another item after '- '", 1, 0, INDENT_RULE),
            id="a key among items",
        ),
        pytest.param(
            "a: [1",
            Unreadable(
                "not valid YAML: expected ',' or ']'",
                1,
                0,
                "close the bracket, or put a comma between items",
            ),
            id="an open bracket",
        ),
        pytest.param(
            "a: {b: 1",
            Unreadable(
                "not valid YAML: expected ',' or '}'",
                1,
                0,
                "close the brace, or put a comma between members",
            ),
            id="an open brace",
        ),
        pytest.param(
            "a: 'x",
            Unreadable("not valid YAML: a quote is not closed", 0, 5, "close the quote"),
            id="an open quote",
        ),
        pytest.param(
            "{}\n{}",
            Unreadable(
                "not valid YAML: expected the end of the document",
                1,
                0,
                "put '---' on a line of its own between documents",
            ),
            id="two documents without a line between",
        ),
        pytest.param(
            "a: *b",
            Unreadable(
                "not valid YAML: the text after '*' is not the name of any anchor",
                0,
                3,
                "put it in quotes if it is no alias",
            ),
            id="an alias of nothing",
        ),
        pytest.param(
            "a: 1\nb: \x07",
            Unreadable("not valid YAML: there is a control character", 1, 3),
            id="a control character",
        ),
        pytest.param(
            "[" * 100_000,
            Unreadable("not valid YAML: nested too deeply", 0, 199),
            id="brackets without end",
        ),
        pytest.param(
            "a: 1\nb:\n  c: 1\n  c: 2",
            Unreadable(
                'the key "c" is repeated in one map', 3, 2, "remove one of the two", earlier=2
            ),
            id="a key that stands twice",
        ),
        pytest.param(
            "? [a]\n: b",
            Unreadable("a key must be a text, not a list or a map", 0, 2),
            id="list key",
        ),
        pytest.param("<<: 5", Unreadable("'<<' must be followed by a map", 0, 4), id="merged 5"),
        pytest.param(
            "a: &x [*x]", Unreadable("the document refers to itself", 0, 3), id="a list in itself"
        ),
        pytest.param(
            "&x\n<<: *x",
            Unreadable("the document refers to itself", 0, 0),
            id="a map merged in itself",
        ),
    ],
)
def test_unreadable_text_is_explained(text: str, want: Unreadable) -> None:
    """What cannot be read is explained in plain words, with its line and column."""
    assert read(text) == want


def test_excessive_aliases_are_refused() -> None:
    """A text whose aliases would unfold to billions of items is refused where they exceed it."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    unreadable = read("\n".join(lines))

    assert isinstance(unreadable, Unreadable)
    assert unreadable.message == "not valid YAML: its aliases repeat more than a document may hold"
    assert unreadable.line == 5


def test_aliases_share_the_value_of_their_anchor() -> None:
    """What an alias repeats is built once."""
    value = read("a: &a [x]\nb: [*a, *a]")

    assert value["b"][0] is value["b"][1] is value["a"]


def test_members_are_read_without_their_values() -> None:
    """The members of a map are given as nodes, or why they cannot be."""
    trees = [compose_tree(text) for text in ("{a: 1, b: 2}", "{a: 1, a: 2}", "&x\n<<: *x")]
    found = [read_members(tree) for tree in trees if isinstance(tree, MappingNode)]

    assert isinstance(found[0], dict)
    assert {key: node.value for key, node in found[0].items()} == {"a": "1", "b": "2"}
    assert found[1] == Unreadable(
        'the key "a" is repeated in one map', 0, 7, "remove one of the two", earlier=0
    )
    assert found[2] == Unreadable("the document refers to itself", 0, 0)


@given(st.text(max_size=40) | st.text("ab:- \n[]{}&*!#'\"\t|>?<%@,1.", max_size=40))
@settings(deadline=None, max_examples=200)
def test_reading_never_raises(text: str) -> None:
    """Any text gives a value or says why not, at a line that the text has."""
    result = read(text)
    if isinstance(result, Unreadable):
        assert 0 <= result.line <= len(text.splitlines())
