"""Entries of metadata.managedFields."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.apiserver.patch.field_sets import set_of
from keepclose.apiserver.patch.managed_fields import (
    EntryError,
    cap_updates,
    is_reset,
    make_entry,
    read_entries,
    restore_times,
    sort_entries,
    write_entries,
)


def _entry(manager: str, operation: str = "Update", **more: Any) -> dict[str, Any]:
    return {
        "manager": manager,
        "operation": operation,
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {f"f:{manager}": {}},
        **more,
    }


def test_an_entry_is_written_field_by_field() -> None:
    """Names and order of the fields are those of the API; an empty subresource is left out."""
    fields = set_of("a")
    entry = make_entry(("m", "Update", "v1", "status"), fields, api_version="v1", time="t")
    assert list(entry) == [
        "manager",
        "operation",
        "apiVersion",
        "time",
        "fieldsType",
        "fieldsV1",
        "subresource",
    ]
    assert make_entry(("m", "Apply", "", ""), fields, api_version="v1", time=None) == {
        "manager": "m",
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:a": {}},
    }


def test_entries_are_sorted() -> None:
    """Applies first, then by time, manager, version and subresource; no time is the oldest."""
    late = _entry("a", time="2026-01-02T00:00:00Z")
    timeless = _entry("z")
    del timeless["time"]
    apply = _entry("z", "Apply")
    status = _entry("b", subresource="status")
    entries = [late, status, _entry("b"), _entry("b", apiVersion="v0"), timeless, apply]
    want = [apply, timeless, _entry("b", apiVersion="v0"), _entry("b"), status, late]
    assert sort_entries(entries) == want


@pytest.mark.parametrize(
    ("sent", "want"),
    [
        pytest.param([], True, id="an empty list"),
        pytest.param([{}], True, id="an empty entry"),
        pytest.param(None, False, id="nothing"),
        pytest.param([{}, {}], False, id="two empty entries"),
        pytest.param([{"manager": "x"}], False, id="an entry"),
    ],
)
def test_a_reset_is_told(sent: Any, want: bool) -> None:
    """An empty list or one empty entry asks to forget all owners."""
    assert is_reset(sent) is want


def test_entries_of_a_client_are_read() -> None:
    """Times go to UTC, fields to one spelling, and of one owner the last entry counts."""
    sent = [
        _entry("a"),
        _entry("b", time="2026-01-01T02:00:00+02:00", fieldsV1={"f:x": {".": {}}}),
        _entry("a", fieldsV1=None),
    ]
    want = [_entry("b", fieldsV1={"f:x": {}}), _entry("a", fieldsV1={})]
    assert read_entries(sent) == want


@pytest.mark.parametrize(
    ("sent", "want"),
    [
        pytest.param({}, "managedFields must be a list", id="no list"),
        pytest.param([1], "an entry must be an object", id="no object"),
        pytest.param(
            [_entry("a", "Delete")], "operation must be `Apply` or `Update`", id="operation"
        ),
        pytest.param([_entry("a", apiVersion="")], "apiVersion must not be empty", id="version"),
        pytest.param(
            [_entry("a"), _entry("b", fieldsType="V2")],
            "missing fieldsType in managed fields entry 1",
            id="type",
        ),
        pytest.param([_entry("a", fieldsV1={"a": {}})], "missing colon: a", id="fields"),
        pytest.param([_entry("a", time="soon")], "time must be RFC 3339", id="time"),
        pytest.param([_entry("a", time="2026-01-01")], "time must be RFC 3339", id="no zone"),
    ],
)
def test_entries_that_make_no_sense_are_told(sent: Any, want: str) -> None:
    """What a server would not accept is an error that says why."""
    with pytest.raises(EntryError) as caught:
        read_entries(sent)
    assert str(caught.value) == want


def test_ten_updaters_are_kept_apart() -> None:
    """Up to ten nothing is put together, and applies do not count."""
    entries = [_entry(f"m{number}") for number in range(10)]
    entries.append(_entry("a", "Apply"))
    assert cap_updates(entries) == entries


def test_the_oldest_updaters_are_put_together() -> None:
    """Beyond ten, the two oldest of a version become ancient changes with the later time."""
    entries = [
        _entry(f"m{number:02}", time=f"2026-01-{number + 1:02}T00:00:00Z") for number in range(12)
    ]
    capped = sort_entries(cap_updates(entries))
    assert [entry["manager"] for entry in capped] == [
        "ancient-changes",
        *(f"m{number:02}" for number in range(3, 12)),
    ]
    assert capped[0]["fieldsV1"] == {"f:m00": {}, "f:m01": {}, "f:m02": {}}
    assert capped[0]["time"] == "2026-01-03T00:00:00Z"


def test_ancient_changes_take_in_more() -> None:
    """What was put together before grows by the next oldest."""
    entries = [_entry("ancient-changes", time="2025-01-01T00:00:00Z")]
    entries += [_entry(f"m{number}") for number in range(10)]
    capped = sort_entries(cap_updates(entries))
    assert len(capped) == 10
    assert capped[0]["manager"] == "ancient-changes"
    assert capped[0]["fieldsV1"] == {"f:ancient-changes": {}, "f:m0": {}}


def test_without_entries_there_is_no_field() -> None:
    """An object that nobody owns has no managedFields."""
    metadata: dict[str, Any] = {"managedFields": [1]}
    write_entries(metadata, [])
    assert metadata == {}


def test_times_alone_are_no_change() -> None:
    """When only times differ, the stored ones are taken; else the new ones stay."""
    old = {"metadata": {"managedFields": [_entry("a")]}, "data": 1}
    later = _entry("a", time="2026-02-01T00:00:00Z")
    same: dict[str, Any] = {"metadata": {"managedFields": [later]}, "data": 1}
    restore_times(old, same)
    assert same == old
    other: dict[str, Any] = {"metadata": {"managedFields": [later]}, "data": 2}
    restore_times(old, other)
    assert other["metadata"]["managedFields"] == [later]
    owned: dict[str, Any] = {
        "metadata": {"managedFields": [{**later, "fieldsV1": {"f:b": {}}}]},
        "data": 1,
    }
    restore_times(old, owned)
    assert owned["metadata"]["managedFields"][0]["time"] == "2026-02-01T00:00:00Z"
    bare: dict[str, Any] = {"metadata": {}, "data": 1}
    restore_times(old, bare)
    assert bare == {"metadata": {}, "data": 1}
