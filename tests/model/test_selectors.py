"""Tests of label and field selectors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.selectors import (
    FieldRequirement,
    FieldSelector,
    LabelRequirement,
    LabelSelector,
    Operator,
    SelectorRejected,
    matches,
    parse_field_selector,
    parse_label_selector,
)


def label_selector(text: str) -> LabelSelector:
    """Return the parsed selector, which must be one."""
    selector = parse_label_selector(text)
    assert isinstance(selector, LabelSelector), selector
    return selector


def field_selector(text: str) -> FieldSelector:
    """Return the parsed selector, which must be one."""
    selector = parse_field_selector(text)
    assert isinstance(selector, FieldSelector), selector
    return selector


@pytest.mark.parametrize(
    ("selector", "labels", "want_match"),
    [
        pytest.param({}, {}, True, id="the empty selector takes a pod without labels"),
        pytest.param({}, {"a": "b"}, True, id="the empty selector takes all"),
        pytest.param({"a": "b"}, {"a": "b", "c": "d"}, True, id="further labels do not matter"),
        pytest.param({"a": "b"}, {"a": "x"}, False, id="another value does not match"),
        pytest.param({"a": "b", "c": "d"}, {"a": "b"}, False, id="every label is needed"),
        pytest.param({"a": ""}, {}, False, id="an absent label is not an empty one"),
    ],
)
def test_service_selector(
    selector: dict[str, str], labels: dict[str, str], *, want_match: bool
) -> None:
    """A Service takes the pods that have all labels of its selector."""
    assert matches(selector, labels) is want_match


@pytest.mark.parametrize(
    ("text", "want_requirements"),
    [
        pytest.param("", (), id="nothing selects everything"),
        pytest.param("  ", (), id="blanks select everything"),
        pytest.param("a=b", (LabelRequirement("a", Operator.EQUALS, ("b",)),), id="equals"),
        pytest.param("a == b", (LabelRequirement("a", Operator.EQUALS, ("b",)),), id="two equals"),
        pytest.param("a!=b", (LabelRequirement("a", Operator.NOT_EQUALS, ("b",)),), id="unequal"),
        pytest.param("a=", (LabelRequirement("a", Operator.EQUALS, ("",)),), id="empty value"),
        pytest.param(
            "a in (y, x,y)",
            (LabelRequirement("a", Operator.IN, ("x", "y")),),
            id="values are sorted and unique",
        ),
        pytest.param("a in ()", (LabelRequirement("a", Operator.IN, ("",)),), id="empty set"),
        pytest.param(
            "a notin (x,)", (LabelRequirement("a", Operator.NOT_IN, ("", "x")),), id="notin"
        ),
        pytest.param("a", (LabelRequirement("a", Operator.EXISTS),), id="exists"),
        pytest.param("! a", (LabelRequirement("a", Operator.ABSENT),), id="absent"),
        pytest.param("a>5", (LabelRequirement("a", Operator.GREATER, ("5",)),), id="greater"),
        pytest.param("a < 5", (LabelRequirement("a", Operator.LESS, ("5",)),), id="less"),
        pytest.param("in=in", (LabelRequirement("in", Operator.EQUALS, ("in",)),), id="in as key"),
        pytest.param(
            "z,!example.com/b,a=c",
            (
                LabelRequirement("a", Operator.EQUALS, ("c",)),
                LabelRequirement("example.com/b", Operator.ABSENT),
                LabelRequirement("z", Operator.EXISTS),
            ),
            id="several are sorted by key",
        ),
    ],
)
def test_label_selector_is_parsed(
    text: str, want_requirements: tuple[LabelRequirement, ...]
) -> None:
    """A label selector becomes its conditions."""
    assert label_selector(text).requirements == want_requirements


@pytest.mark.parametrize(
    ("text", "want_message"),
    [
        pytest.param("a=b,", "expected ',' between conditions", id="comma at the end"),
        pytest.param("a=b c=d", "expected ',' between conditions", id="comma missing"),
        pytest.param(",a", "expected a label, found ','", id="comma at the start"),
        pytest.param("!", "expected a label after '!'", id="lone exclamation mark"),
        pytest.param("!!a", "expected a label, found '!'", id="two exclamation marks"),
        pytest.param("!a=b", "expected ',' between conditions", id="negated comparison"),
        pytest.param("a b", "expected one of =, ==, !=, in, notin, >, < after 'a'", id="no sign"),
        pytest.param("a in x", "expected values in parentheses after 'a' in", id="no parenthesis"),
        pytest.param("a in", "expected values in parentheses after 'a' in", id="no values"),
        pytest.param("a in (", "expected values in parentheses after 'a' in", id="nothing in it"),
        pytest.param("a in (x", "expected values in parentheses after 'a' in", id="not closed"),
        pytest.param("a in (x,", "expected values in parentheses after 'a' in", id="open comma"),
        pytest.param("a in (x y)", "expected values in parentheses after 'a' in", id="no comma"),
        pytest.param("a>b", "value 'b' of 'a': > needs a whole number", id="greater than a word"),
        pytest.param("a<", "value '' of 'a': < needs a whole number", id="less than nothing"),
        pytest.param(
            f"a>{'9' * 19}", f"value '{'9' * 19}' of 'a': > needs a whole number", id="too large"
        ),
    ],
)
def test_bad_label_selector_is_rejected(text: str, want_message: str) -> None:
    """What does not follow the grammar is rejected, with the text and the reason."""
    want = SelectorRejected(f"label selector {text!r}: {want_message}")

    assert parse_label_selector(text) == want


@pytest.mark.parametrize(
    ("text", "want_start"),
    [
        pytest.param("a b/c=d", "label selector 'a b/c=d': expected one of", id="blank in key"),
        pytest.param("/c=d", "label selector '/c=d': key '/c': prefix part", id="empty prefix"),
        pytest.param("a=-", "label selector 'a=-': value '-' of 'a': a valid label", id="value"),
        pytest.param("a in (x,-)", "label selector 'a in (x,-)': value '-' of 'a'", id="one value"),
    ],
)
def test_bad_label_is_rejected(text: str, want_start: str) -> None:
    """Keys and values must be legal labels."""
    rejected = parse_label_selector(text)

    assert isinstance(rejected, SelectorRejected)
    assert rejected.message.startswith(want_start)


@pytest.mark.parametrize(
    ("text", "labels", "want_match"),
    [
        pytest.param("a=b", {"a": "b"}, True, id="equal"),
        pytest.param("a=b", {}, False, id="equal needs the label"),
        pytest.param("a=", {}, False, id="an empty value needs the label"),
        pytest.param("a!=b", {"a": "c"}, True, id="unequal"),
        pytest.param("a!=b", {}, True, id="unequal holds without the label"),
        pytest.param("a!=b", {"a": "b"}, False, id="unequal does not hold for the value"),
        pytest.param("a in (x,y)", {"a": "y"}, True, id="in"),
        pytest.param("a in (x,y)", {"a": "z"}, False, id="not in"),
        pytest.param("a notin (x,y)", {}, True, id="notin holds without the label"),
        pytest.param("a notin (x,y)", {"a": "x"}, False, id="notin does not hold for a value"),
        pytest.param("a", {"a": ""}, True, id="exists with an empty value"),
        pytest.param("a", {}, False, id="does not exist"),
        pytest.param("!a", {}, True, id="absent"),
        pytest.param("!a", {"a": ""}, False, id="not absent"),
        pytest.param("a>5", {"a": "6"}, True, id="greater"),
        pytest.param("a>5", {"a": "5"}, False, id="not greater"),
        pytest.param("a<5", {"a": "4"}, True, id="less"),
        pytest.param("a<5", {"a": "5"}, False, id="not less"),
        pytest.param("a<5", {"a": "x"}, False, id="a word is not less"),
        pytest.param("a<5", {}, False, id="an absent label is not less"),
        pytest.param("a,b=c", {"a": "", "b": "c"}, True, id="all conditions hold"),
        pytest.param("a,b=c", {"a": ""}, False, id="one condition does not hold"),
    ],
)
def test_label_selector_matches(text: str, labels: dict[str, str], *, want_match: bool) -> None:
    """All conditions of a label selector must hold."""
    assert label_selector(text).matches(labels) is want_match


@pytest.mark.parametrize(
    ("text", "want_requirements"),
    [
        pytest.param("", (), id="nothing selects everything"),
        pytest.param("metadata.name=x", (FieldRequirement("metadata.name", "x"),), id="one"),
        pytest.param("a==x", (FieldRequirement("a", "x"),), id="two equals signs"),
        pytest.param(
            "metadata.name=x,,spec.clusterIP!=None",
            (
                FieldRequirement("metadata.name", "x"),
                FieldRequirement("spec.clusterIP", "None", negated=True),
            ),
            id="several, and an empty one between",
        ),
        pytest.param("a=", (FieldRequirement("a", ""),), id="an empty value"),
        pytest.param(r"a=b\,c\=d\\", (FieldRequirement("a", "b,c=d\\"),), id="escapes"),
    ],
)
def test_field_selector_is_parsed(
    text: str, want_requirements: tuple[FieldRequirement, ...]
) -> None:
    """A field selector becomes its conditions in their order."""
    assert field_selector(text).requirements == want_requirements


@pytest.mark.parametrize(
    ("text", "want_message"),
    [
        pytest.param(
            "metadata.name",
            "cannot read 'metadata.name'; write field=value or field!=value",
            id="no operator",
        ),
        pytest.param("a=b=c", "in 'b=c' a backslash must stand before", id="bare equals sign"),
        pytest.param("a=b\\", "in 'b\\\\' a backslash must stand before", id="lone backslash"),
        pytest.param("a=\\x", "in '\\\\x' a backslash must stand before", id="unknown escape"),
    ],
)
def test_bad_field_selector_is_rejected(text: str, want_message: str) -> None:
    """What does not follow the grammar is rejected, with the text and the reason."""
    rejected = parse_field_selector(text)

    assert isinstance(rejected, SelectorRejected)
    assert rejected.message.startswith(f"field selector {text!r}: {want_message}")


@pytest.mark.parametrize(
    ("text", "want_match"),
    [
        pytest.param("a=x", True, id="equal"),
        pytest.param("a!=x", False, id="not unequal"),
        pytest.param("a=x,b!=x", True, id="all conditions hold"),
        pytest.param("a=x,b=x", False, id="one condition does not hold"),
        pytest.param("missing=", True, id="an absent field is empty"),
        pytest.param("missing!=x", True, id="an absent field is unequal"),
    ],
)
def test_field_selector_matches(text: str, *, want_match: bool) -> None:
    """All conditions of a field selector must hold."""
    assert field_selector(text).matches({"a": "x", "b": "y"}) is want_match


LABEL_TEXTS = st.text("ab1.-/=!(), \tin><notZé", max_size=24)


@given(LABEL_TEXTS | st.text(max_size=24))
@settings(deadline=None, max_examples=200)
def test_label_selector_text_is_stable(text: str) -> None:
    """Any text parses or is rejected, and the text of a selector parses to the same selector."""
    selector = parse_label_selector(text)
    if isinstance(selector, LabelSelector):
        assert parse_label_selector(str(selector)) == selector


_names = st.from_regex(r"[a-z]{1,3}", fullmatch=True)
_one_value = st.tuples(
    st.sampled_from([Operator.EQUALS, Operator.NOT_EQUALS]), _names | st.just("")
)
_requirements = st.one_of(
    st.builds(LabelRequirement, _names, st.sampled_from([Operator.EXISTS, Operator.ABSENT])),
    st.builds(lambda key, pair: LabelRequirement(key, pair[0], (pair[1],)), _names, _one_value),
    st.builds(
        lambda key, operator, values: LabelRequirement(key, operator, tuple(sorted(values))),
        _names,
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.sets(_names, min_size=1),
    ),
)


@given(st.lists(_requirements, max_size=4))
@settings(deadline=None, max_examples=200)
def test_label_selector_round_trips(requirements: list[LabelRequirement]) -> None:
    """A selector is parsed from its own text."""
    selector = LabelSelector(tuple(sorted(requirements, key=lambda one: one.key)))

    assert parse_label_selector(str(selector)) == selector


@given(st.text("ab.=!\\,", max_size=16) | st.text(max_size=16))
@settings(deadline=None, max_examples=200)
def test_field_selector_text_is_stable(text: str) -> None:
    """Any text parses or is rejected, and the text of a selector parses to the same selector."""
    selector = parse_field_selector(text)
    if isinstance(selector, FieldSelector):
        assert parse_field_selector(str(selector)) == selector


@given(_names, st.text(max_size=12) | st.text("a\\,=", max_size=6))
@settings(deadline=None, max_examples=200)
def test_field_value_round_trips(field: str, value: str) -> None:
    """Any value can be written in a field selector."""
    selector = FieldSelector((FieldRequirement(field, value),))

    assert parse_field_selector(str(selector)) == selector
