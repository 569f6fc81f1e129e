"""Writing events."""

from __future__ import annotations

from copy import deepcopy

import pytest

from keepclose.apiserver.registry.events import strict_event_causes
from keepclose.model.json_values import JsonObject
from support.kinds import NOW, Kinds, raw

NOT_A_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


@pytest.mark.parametrize(
    ("members", "want_causes"),
    [
        pytest.param({"involvedObject": {"namespace": "default"}}, [], id="the same namespace"),
        pytest.param({}, [], id="none at all in the default one"),
        pytest.param({"metadata": {"namespace": "other"}}, ["foreign"], id="none in another"),
        pytest.param({"involvedObject": {"namespace": "foo"}}, ["foreign"], id="another one"),
        pytest.param(
            {"eventTime": NOW, "metadata": {"namespace": "other"}, "message": "x" * 1025},
            [
                "foreign",
                "reportingComponent: Required value",
                'reportingComponent: Invalid value: "": name part must be non-empty',
                f'reportingComponent: Invalid value: "": {NOT_A_NAME}',
                "reportingInstance: Required value",
                "action: Required value",
                "reason: Required value",
                'message: Invalid value: "": can have at most 1024 characters',
            ],
            id="one with a time must say more",
        ),
    ],
)
def test_events_belong_to_their_namespace(
    kinds: Kinds, members: JsonObject, want_causes: list[str]
) -> None:
    """An event stands in the namespace of what it is about."""
    shown = (members.get("involvedObject") or {}).get("namespace", "")
    foreign = f'involvedObject.namespace: Invalid value: "{shown}": does not match event.namespace'
    got = kinds.write(raw("Event", **deepcopy(members)))
    assert got.causes == [foreign if cause == "foreign" else cause for cause in want_causes]


def test_an_event_is_written_whole(kinds: Kinds) -> None:
    """Clients find the members they look for."""
    got = kinds.write(raw("Event")).object
    assert {key: got[key] for key in got if key not in ("apiVersion", "kind", "metadata")} == {
        "involvedObject": {},
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    }


def test_the_newer_api_for_events_is_stricter() -> None:
    """A new event has no deprecated members, and a stored one hardly changes."""
    new: JsonObject = {"type": "Foo", "count": 3, "series": {"count": 1}}
    assert [str(cause) for cause in strict_event_causes(new, None)] == [
        'series.count: Invalid value: "": should be at least 2',
        "series.lastObservedTime: Required value",
        "eventTime: Required value",
        'type: Invalid value: "": has invalid value: Foo',
        'count: Invalid value: "": needs to be unset',
    ]
    old = {"type": "Foo", "reportingComponent": "a", "count": 3, "series": {"count": 1}}
    assert [str(cause) for cause in strict_event_causes(new | {"action": "x"}, old)] == [
        'action: Invalid value: "x": field is immutable',
        "reportingController: Invalid value: null: field is immutable",
    ]
    assert strict_event_causes({**old, "series": None}, old) == []
