"""Selectors of workloads."""

from __future__ import annotations

import pytest

from keepclose.apiserver.registry.metadata import selector_causes, selector_matches, selector_text
from keepclose.model.json_values import JsonObject

EXPRESSIONS: JsonObject = {
    "matchLabels": {"b": "2"},
    "matchExpressions": [
        {"key": "d", "operator": "DoesNotExist"},
        {"key": "a", "operator": "In", "values": ["y", "x"]},
        {"key": "c", "operator": "NotIn", "values": ["z"]},
        {"key": "e", "operator": "Exists"},
    ],
}


@pytest.mark.parametrize(
    ("labels", "want_match"),
    [
        pytest.param({"a": "x", "b": "2", "e": ""}, True, id="all hold"),
        pytest.param({"a": "q", "b": "2", "e": ""}, False, id="not in the values"),
        pytest.param({"a": "x", "b": "3", "e": ""}, False, id="another label"),
        pytest.param({"a": "x", "b": "2", "c": "z", "e": ""}, False, id="in the values"),
        pytest.param({"a": "x", "b": "2", "d": "", "e": ""}, False, id="a label that must not be"),
        pytest.param({"a": "x", "b": "2"}, False, id="a label that must be"),
    ],
)
def test_labels_match_when_everything_holds(labels: dict[str, str], want_match: bool) -> None:
    """A selector asks for all that it names."""
    assert selector_matches(EXPRESSIONS, labels) is want_match


def test_no_selector_matches_nothing_and_an_empty_one_everything() -> None:
    """Absent and empty selectors are opposites."""
    assert selector_matches(None, {"a": "b"}) is False
    assert selector_matches({}, {"a": "b"}) is True


def test_a_selector_reads_as_a_query() -> None:
    """Requirements are sorted by their keys, values among themselves."""
    assert selector_text(EXPRESSIONS) == "a in (x,y),b=2,c notin (z),!d,e"
    assert selector_text(None) == selector_text({}) == ""


def test_what_is_wrong_with_expressions() -> None:
    """Operators, keys and values are checked at their places."""
    selector = {
        "matchLabels": {"a": "b c"},
        "matchExpressions": [
            {"key": "y", "operator": "Exists", "values": ["1"]},
            {"key": "z", "operator": "In", "values": ["b c"]},
        ],
    }
    found = [
        (cause.field, cause.detail.partition(" ")[0]) for cause in selector_causes(selector, "s")
    ]
    assert found == [
        ("s.matchLabels", "a"),
        ("s.matchExpressions[0].values", "may"),
        ("s.matchExpressions[1].values[0]", "a"),
    ]
