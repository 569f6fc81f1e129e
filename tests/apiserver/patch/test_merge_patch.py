"""JSON merge patches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.patch.json_patch import apply_merge_patch
from keepclose.apiserver.status_errors import StatusError


@pytest.mark.parametrize(
    ("document", "patch", "want"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="replaces"),
        pytest.param({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}, id="adds"),
        pytest.param({"a": "b"}, {"a": None}, {}, id="null deletes"),
        pytest.param({"a": "b"}, {"z": None}, {"a": "b"}, id="null deletes nothing"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}, id="merges"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="a list is replaced"),
        pytest.param({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}, id="an object over a list"),
        pytest.param(
            {}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}, id="nulls below are left out"
        ),
        pytest.param(
            {}, {"a": [{"b": None, "c": 1}, None]}, {"a": [{"c": 1}, None]}, id="nulls in lists"
        ),
        pytest.param({"a": 1}, {"a": {"b": None}}, {"a": {}}, id="an object over a number"),
        pytest.param(
            {"a": {"b": 1}}, {"a": [{"c": None}]}, {"a": [{"c": None}]}, id="a list over an object"
        ),
    ],
)
def test_a_patch_is_merged(
    document: dict[str, Any], patch: dict[str, Any], want: dict[str, Any]
) -> None:
    """Objects merge, null deletes, all else replaces."""
    before = copy.deepcopy((document, patch))
    assert apply_merge_patch(document, patch) == want
    assert (document, patch) == before


def test_a_patch_must_be_an_object() -> None:
    """A list is no merge patch."""
    broken: Any = [1]
    with pytest.raises(StatusError) as caught:
        apply_merge_patch({}, broken)
    assert (caught.value.code, caught.value.message) == (400, "Invalid JSON Patch")


_SCALARS = st.integers(0, 3) | st.sampled_from(["x", "y"]) | st.booleans()
_NAMES = st.sampled_from(["a", "b", "c"])
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.dictionaries(_NAMES, inner) | st.lists(inner, max_size=2)
)
_DOCUMENTS = st.dictionaries(_NAMES, _VALUES)


def _diff(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            patch[name] = _diff(before, value)
        else:
            patch[name] = value
    return patch


@given(_DOCUMENTS, _DOCUMENTS)
@settings(deadline=None, max_examples=100)
def test_the_difference_of_two_documents_makes_one_the_other(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    """Patching with the difference gives the new document, and doing so again changes nothing."""
    patched = apply_merge_patch(old, _diff(old, new))
    assert patched == new
    assert apply_merge_patch(patched, _diff(old, new)) == new
