"""The time of the earliest change that a sync responds to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Pod, StatusCondition
from keepclose.slices.changes import TriggerTimeTracker, format_instant, parse_timestamp
from support.builders import pod, service

WEB = NamespacedName("default", "web")


def at(second: int) -> str:
    """Return a time of day as the API writes it."""
    return f"2026-01-01T00:00:{second:02}Z"


def created(second: int, *, name: str = "web") -> Service:
    """Return a Service created at a second."""
    base = service(name)
    return replace(base, metadata=replace(base.metadata, creation_timestamp=at(second)))


def ready(name: str, second: int | None) -> Pod:
    """Return a pod whose readiness last changed at a second."""
    base = pod(name)
    condition = StatusCondition(
        type="Ready", status="True", last_transition_time=None if second is None else at(second)
    )
    return replace(base, status=replace(base.status, conditions=(condition,)))


def test_new_service_without_pods() -> None:
    """The creation triggered it."""
    assert TriggerTimeTracker().compute(created(5), ()) == at(5)


def test_new_service_with_pods() -> None:
    """The creation triggered it, however old the pods are."""
    tracker = TriggerTimeTracker()
    assert tracker.compute(created(5), [ready("a", 1), ready("b", 9)]) == at(5)


def test_pods_added() -> None:
    """The earliest of the new pods counts."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 1)])
    assert tracker.compute(created(0), [ready("a", 1), ready("b", 7), ready("c", 6)]) == at(6)


def test_pods_updated() -> None:
    """A later transition counts, the earliest of several."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 1), ready("b", 2), ready("c", 3)])
    got = tracker.compute(created(0), [ready("a", 9), ready("b", 8), ready("c", 3)])
    assert got == at(8)


def test_pods_not_updated() -> None:
    """Nothing newer than before gives no time."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 5)])
    assert tracker.compute(created(0), [ready("a", 5)]) == ""
    assert tracker.compute(created(0), [ready("a", 4)]) == ""


def test_pod_deleted_then_added() -> None:
    """The deletion gives no time; the pod that returns counts as new."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 5)])
    assert tracker.compute(created(0), []) == ""
    assert tracker.compute(created(0), [ready("a", 5)]) == at(5)


def test_service_deleted_then_added() -> None:
    """A Service of the same name is a new Service."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 5)])
    tracker.delete_service(WEB)
    assert tracker.compute(created(3), [ready("a", 5)]) == at(3)


def test_service_recreated_unseen() -> None:
    """A creation newer than the remembered one counts like a pod's change."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 1)])
    assert tracker.compute(created(7), [ready("a", 9)]) == at(7)
    assert tracker.compute(created(7), [ready("a", 9)]) == ""


def test_service_updated_without_pod_change() -> None:
    """An update of the Service itself has no time of its own."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 5)])
    relabelled = created(0)
    meta = replace(relabelled.metadata, labels={"a": "b"})
    assert tracker.compute(replace(relabelled, metadata=meta), [ready("a", 5)]) == ""


def test_what_has_no_time_does_not_count() -> None:
    """A Service without creation, a pod without condition or time: none gives a time."""
    tracker = TriggerTimeTracker()
    bare = replace(pod("b"), status=replace(pod("b").status, conditions=()))
    assert tracker.compute(service(), [ready("a", None), bare]) == ""
    assert tracker.compute(service(), [ready("a", None), bare]) == ""
    assert tracker.compute(service(), [ready("a", 3), bare]) == at(3)
    assert tracker.compute(created(1), [ready("a", 3), bare]) == at(1)


def test_services_are_apart() -> None:
    """One Service's pods do not count for another."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 5)])
    tracker.compute(created(0, name="other"), [])
    assert tracker.compute(created(0, name="other"), [ready("a", 5)]) == at(5)


def test_a_pod_gone_and_come_again_counts_as_new() -> None:
    """Told of both at once, the tracker answers to the new pod."""
    tracker = TriggerTimeTracker()
    tracker.compute(created(0), [ready("a", 5)])
    assert tracker.compute_changed(created(0), changed=[ready("a", 5)], gone=()) == ""
    assert tracker.compute_changed(created(0), changed=[ready("a", 5)], gone=["a"]) == at(5)


STATES = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 20))), max_size=5
)


@settings(deadline=None, max_examples=100)
@given(states=STATES)
def test_told_of_changes_alone_the_answer_is_the_same(
    states: list[dict[str, int | None]],
) -> None:
    """Whoever knows what changed need not tell of all pods."""
    whole, partial = TriggerTimeTracker(), TriggerTimeTracker()
    before: dict[str, int | None] = {}
    for now in states:
        want = whole.compute(created(3), [ready(name, second) for name, second in now.items()])
        got = partial.compute_changed(
            created(3),
            changed=[ready(n, s) for n, s in now.items() if n not in before or before[n] != s],
            gone=[name for name in before if name not in now],
        )
        assert got == want
        before = now


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("2026-01-01T00:00:05Z", "2026-01-01T00:00:05Z", id="whole seconds"),
        pytest.param("2026-01-01T02:00:05+02:00", "2026-01-01T00:00:05Z", id="another zone"),
        pytest.param("2026-01-01T00:00:05.5Z", "2026-01-01T00:00:05.5Z", id="half a second"),
        pytest.param(
            "2026-01-01T00:00:05.123456789Z", "2026-01-01T00:00:05.123456789Z", id="nanoseconds"
        ),
        pytest.param(
            "2026-01-01T00:00:05.1234567891Z", "2026-01-01T00:00:05.123456789Z", id="beyond them"
        ),
        pytest.param("2026-01-01T00:00:05.500000-01:30", "2026-01-01T01:30:05.5Z", id="both"),
        pytest.param("1969-12-31T23:59:59.25Z", "1969-12-31T23:59:59.25Z", id="before 1970"),
        pytest.param("", "", id="the empty text"),
        pytest.param(None, "", id="nothing"),
        pytest.param("yesterday", "", id="no time"),
        pytest.param("2026-01-01T00:00:05", "", id="no zone"),
        pytest.param("2026-01-01T00:00:05.Z", "", id="a dot without digits"),
    ],
)
def test_times_are_read_and_written_as_rfc3339(text: str | None, want: str) -> None:
    """Times come out in UTC without trailing zeros; what is no time is none."""
    assert format_instant(parse_timestamp(text)) == want


def test_times_compare_by_their_moment() -> None:
    """A fraction is later than the whole second, which text alone would get wrong."""
    half, whole = parse_timestamp("2026-01-01T00:00:05.5Z"), parse_timestamp("2026-01-01T00:00:05Z")
    assert half is not None
    assert whole is not None
    assert half - whole == 500_000_000
