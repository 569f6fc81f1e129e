"""Selectors made ready to be asked often answer as the plain ones, at a cost by labels."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from keepclose.model.selectors import (
    FieldMatcher,
    FieldRequirement,
    FieldSelector,
    LabelMatcher,
    LabelRequirement,
    LabelSelector,
    Operator,
)

_keys = st.sampled_from("abc")
_values = st.sampled_from(["", "1", "2", "3", "x"])
_numbers = st.sampled_from(["1", "2", "3"])
_label_requirements = st.one_of(
    st.builds(
        LabelRequirement,
        _keys,
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.lists(_values, min_size=1).map(lambda some: tuple(sorted(set(some)))),
    ),
    st.builds(
        LabelRequirement,
        _keys,
        st.sampled_from([Operator.EQUALS, Operator.NOT_EQUALS]),
        _values.map(lambda value: (value,)),
    ),
    st.builds(LabelRequirement, _keys, st.sampled_from([Operator.EXISTS, Operator.ABSENT])),
    st.builds(
        LabelRequirement,
        _keys,
        st.sampled_from([Operator.GREATER, Operator.LESS]),
        _numbers.map(lambda value: (value,)),
    ),
)


@given(st.lists(_label_requirements), st.dictionaries(_keys, _values))
def test_a_label_matcher_answers_as_its_selector(
    requirements: list[LabelRequirement], labels: dict[str, str]
) -> None:
    """Conditions that are combined mean what they meant one by one."""
    selector = LabelSelector(tuple(requirements))
    assert LabelMatcher(selector).matches(labels) == selector.matches(labels)


@given(
    st.lists(st.builds(FieldRequirement, _keys, _values, negated=st.booleans())),
    st.dictionaries(_keys, _values),
)
def test_a_field_matcher_answers_as_its_selector(
    requirements: list[FieldRequirement], fields: dict[str, str]
) -> None:
    """Conditions on fields that are combined mean what they meant one by one."""
    selector = FieldSelector(tuple(requirements))
    assert FieldMatcher(selector).matches(fields) == selector.matches(fields)


def test_many_conditions_cost_no_more_than_the_labels_of_the_object() -> None:
    """A selector of 10,000 conditions is asked in a hundredth of the time that they would take."""
    conditions = [LabelRequirement(f"k{number}", Operator.ABSENT) for number in range(10_000)]
    conditions += [
        LabelRequirement("app", Operator.NOT_EQUALS, (f"v{number}",)) for number in range(10_000)
    ]
    selector = LabelSelector(tuple(conditions))
    matcher = LabelMatcher(selector)
    labels = {"app": "web", "tier": "front"}

    def cost(matches: object) -> float:
        assert callable(matches)
        start = time.process_time()
        for _ in range(20):
            assert matches(labels)
        return time.process_time() - start

    assert cost(matcher.matches) < cost(selector.matches) / 100
