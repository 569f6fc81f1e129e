"""Plain storage: status apart, generations counted."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.apiserver.registry.strategy import KindStrategy, ObjectWrite, PlainStrategy, same
from keepclose.apiserver.resources import BY_KIND
from keepclose.model.json_values import JsonObject


class _Counted(PlainStrategy):
    counts_generations = True
    has_status = True
    kept_by_status_updates = ("labels",)


def _object(**members: Any) -> JsonObject:
    return {"metadata": {"name": "a", "generation": 4, **members.pop("metadata", {})}, **members}


def test_a_new_object_starts_with_nothing_reported() -> None:
    """A client cannot create an object with a status or a generation."""
    new = _object(spec={"a": 1}, status={"b": 1})
    _Counted(BY_KIND["v1", "Pod"]).prepare_create(ObjectWrite(new))
    assert new == {"metadata": {"name": "a", "generation": 1}, "spec": {"a": 1}, "status": {}}


@pytest.mark.parametrize(
    ("spec", "want_generation"),
    [
        pytest.param({"a": 1}, 4, id="the same"),
        pytest.param({"a": 1, "b": [], "c": {"d": None}}, 4, id="the same but for empty members"),
        pytest.param({"a": 2}, 5, id="another"),
    ],
)
def test_updates_count_changes_of_the_spec(spec: JsonObject, want_generation: int) -> None:
    """The generation grows with the spec, and the status stays."""
    new = _object(spec=spec, status={"b": 1}, metadata={"generation": 77})
    write = ObjectWrite(new, _object(spec={"a": 1}))
    write.keep_system_metadata()
    _Counted(BY_KIND["v1", "Pod"]).prepare_update(write)
    assert new == _object(spec=spec, metadata={"generation": want_generation})


def test_updates_of_the_status_change_nothing_else() -> None:
    """Spec and the named metadata are those that are stored, also where there are none."""
    new = _object(spec={"a": 2}, data=1, status={"b": 2}, metadata={"labels": {"x": "y"}})
    old = _object(spec={"a": 1}, status={"b": 1}, more=1)
    _Counted(BY_KIND["v1", "Pod"]).prepare_update(ObjectWrite(new, old, subresource="status"))
    assert new == _object(spec={"a": 1}, status={"b": 2}, more=1)


def test_a_plain_kind_refuses_and_tells_nothing() -> None:
    """Without rules of its own a kind has neither causes nor warnings; metadata is apart."""
    plain = PlainStrategy(BY_KIND["v1", "Pod"])
    assert plain.validate(ObjectWrite({})) == []
    assert plain.validate(ObjectWrite({}, {}, subresource="status")) == []
    assert plain.warnings(ObjectWrite({})) == []
    assert plain.grace_period({}, 5) is None
    assert KindStrategy().validate(ObjectWrite({})) == []


@pytest.mark.parametrize(
    ("one", "other", "want_same"),
    [
        pytest.param({"a": []}, {}, True, id="an empty list is none"),
        pytest.param({"a": ""}, {"a": None}, True, id="an empty text is none"),
        pytest.param([{"a": {}}], [{}], True, id="also within lists"),
        pytest.param([1], [1, 1], False, id="longer lists differ"),
        pytest.param({"a": 0}, {}, False, id="zero is a value"),
        pytest.param({"a": False}, {}, False, id="no is a value"),
        pytest.param(None, {"a": {"b": 1}}, False, id="something is not nothing"),
    ],
)
def test_what_means_the_same_to_kubernetes(one: Any, other: Any, want_same: bool) -> None:
    """Empty and absent members are alike; numbers and booleans are not."""
    assert same(one, other) is same(other, one) is want_same
