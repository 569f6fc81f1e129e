"""From counts to endpoints with the fewest changes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.heuristics import assign_groups

Current = dict[str, dict[str, list[str]]]
Target = dict[str, dict[str, int]]
GROUPS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("target", "current", "want_changes"),
    [
        pytest.param({}, {}, {}, id="nothing at all"),
        pytest.param(
            {"a": {"a": 2}}, {"a": {"a": ["p1", "p2"]}}, {}, id="what is right stays as it is"
        ),
        pytest.param(
            {"a": {"a": 2}},
            {"a": {"": ["p2", "p1"]}},
            {"p1": "a", "p2": "a"},
            id="new endpoints are placed",
        ),
        pytest.param(
            {"a": {"a": 1, "b": 2}},
            {"a": {"a": ["p3", "p1", "p2"]}},
            {"p2": "b", "p3": "b"},
            id="a group with too many keeps its first ids",
        ),
        pytest.param(
            {"a": {"a": 2, "b": 1}},
            {"a": {"a": ["p1", "p2", "p3"], "": ["p4"]}},
            {"p4": "b"},
            id="an endpoint in no group goes before one that is in a group",
        ),
        pytest.param(
            {"a": {"b": 1, "c": 2, "a": 1}},
            {"a": {"": ["p1", "p2", "p3", "p4"]}},
            {"p1": "c", "p2": "c", "p3": "a", "p4": "b"},
            id="the group that lacks most is served first, then by name",
        ),
        pytest.param(
            {"a": {"a": 1}, "b": {"a": 1}},
            {"a": {"gone": ["p1"]}, "b": {"gone": ["p2"]}},
            {"p1": "a", "p2": "a"},
            id="a group that is no longer wanted is emptied",
        ),
        pytest.param(
            {"a": {"b": 1}, "b": {"a": 1}},
            {"a": {"a": ["p1"]}, "b": {"b": ["p2"]}},
            {"p1": "b", "p2": "a"},
            id="locations are settled one by one",
        ),
        pytest.param(
            {"a": {"a": 3, "b": 1}},
            {"a": {"": ["p1", "p2"]}},
            {"p1": "a", "p2": "a"},
            id="a target beyond what is there is met as far as it goes",
        ),
        pytest.param(
            {"a": {"a": 1}},
            {"a": {"": ["p1", "p2"], "b": ["p3"]}},
            {"p1": "a"},
            id="endpoints that the target forgets stay where they are",
        ),
        pytest.param(
            {"": {"a": 1, "b": 1}},
            {"": {"a": ["p1"], "": ["p2"]}},
            {"p2": "b"},
            id="the unknown location is one like any other",
        ),
        pytest.param({"b": {"a": 4}}, {"a": {"": ["p1"]}}, {}, id="a location without target"),
        pytest.param(
            {"a": {"": 2, "a": 1}},
            {"a": {"a": ["p1", "p2", "p3"]}},
            {},
            id="nobody is moved out of all groups",
        ),
    ],
)
def test_changes(target: Target, current: Current, want_changes: dict[str, str]) -> None:
    """Only endpoints that must move are told, each with its new group."""
    assert assign_groups(target, current) == want_changes


def test_ids_may_be_anything_that_sorts() -> None:
    """Positions serve as ids just as well as names."""
    current = {"a": {"": [(1, 0), (0, 2), (0, 10)]}}

    assert assign_groups({"a": {"a": 1, "b": 2}}, current) == {
        (0, 2): "b",
        (0, 10): "b",
        (1, 0): "a",
    }


@st.composite
def assignments(draw: st.DrawFn) -> tuple[Target, Current]:
    """Draw endpoints in up to three locations and a target that uses each of them once."""
    target: Target = {}
    current: Current = {}
    for location in draw(st.sets(st.sampled_from(["a", "b", ""]), min_size=1)):
        places = draw(st.lists(st.sampled_from(["", *GROUPS]), max_size=5))
        current[location] = {}
        for number, group in enumerate(places):
            current[location].setdefault(group, []).append(f"{location}-{number}")
        wanted = draw(st.lists(st.sampled_from(GROUPS), min_size=len(places), max_size=len(places)))
        target[location] = {group: wanted.count(group) for group in GROUPS}
    return target, current


@settings(deadline=None, max_examples=150)
@given(drawn=assignments())
def test_changes_reach_the_target_and_are_the_fewest(drawn: tuple[Target, Current]) -> None:
    """After the changes the counts are right, and no other way of getting there changes less."""
    target, current = drawn

    changes = assign_groups(target, current)

    for location, groups in current.items():
        before = {one: group for group, ids in groups.items() for one in ids}
        after = {one: changes.get(one, group) for one, group in before.items()}
        moved = sum(after[one] != before[one] for one in before)
        assert {g: list(after.values()).count(g) for g in GROUPS} == target[location]
        fewest = min(
            sum(one != two for one, two in zip(choice, before.values(), strict=True))
            for choice in product(GROUPS, repeat=len(before))
            if {g: choice.count(g) for g in GROUPS} == target[location]
        )
        bound = sum(max(0, target[location][g] - len(groups.get(g, []))) for g in GROUPS)
        assert moved == fewest == bound
    everyone = {one for groups in current.values() for ids in groups.values() for one in ids}
    assert set(changes) <= everyone


@settings(deadline=None, max_examples=100)
@given(drawn=assignments())
def test_order_of_input_does_not_matter(drawn: tuple[Target, Current]) -> None:
    """The same endpoints in another order are assigned alike."""
    target, current = drawn
    turned = {
        location: {group: ids[::-1] for group, ids in reversed(groups.items())}
        for location, groups in reversed(current.items())
    }

    assert assign_groups(target, turned) == assign_groups(target, current)
