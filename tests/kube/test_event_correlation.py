"""Which occurrences are counted together, combined or held back."""

from __future__ import annotations

from keepclose.kube.event_recorder import Correlator, EventTally, LruMap
from keepclose.model.meta import ObjectReference
from keepclose.testing.fake_clock import FakeClock

WEB = ObjectReference(kind="Service", namespace="default", name="web", uid="u1", api_version="v1")
API = ObjectReference(kind="Service", namespace="default", name="api", uid="u2", api_version="v1")


def file(correlator: Correlator, message: str, *, about: ObjectReference = WEB) -> EventTally:
    """File an occurrence that must not be held back."""
    tally = correlator.correlate(about, "Warning", "Failed", message)
    assert tally is not None
    return tally


async def test_the_same_occurrence_counts_for_the_same_event() -> None:
    """Count and last time go on, the first time stays."""
    clock = FakeClock(now=100.0)
    correlator = Correlator(clock)

    first = file(correlator, "no pods")
    await clock.advance(30.0)
    second = file(correlator, "no pods")

    assert second is first
    assert (first.count, first.first_at, first.last_at) == (2, 100.0, 130.0)


async def test_different_occurrences_do_not() -> None:
    """Object, type, reason and message each make a difference; the object's version does not."""
    correlator = Correlator(FakeClock())
    first = file(correlator, "no pods")

    others = [
        correlator.correlate(API, "Warning", "Failed", "no pods"),
        correlator.correlate(WEB, "Normal", "Failed", "no pods"),
        correlator.correlate(WEB, "Warning", "Stale", "no pods"),
        correlator.correlate(WEB, "Warning", "Failed", "no nodes"),
    ]
    newer = ObjectReference(
        kind="Service",
        namespace="default",
        name="web",
        uid="u1",
        api_version="v1",
        resource_version="99",
    )

    assert all(other is not None and other is not first for other in others)
    assert correlator.correlate(newer, "Warning", "Failed", "no pods") is first


async def test_an_occurrence_after_the_window_is_a_new_event() -> None:
    """Ten minutes without it end an event; ten minutes with it in between do not."""
    clock = FakeClock()
    correlator = Correlator(clock)
    first = file(correlator, "no pods")

    await clock.advance(600.0)
    assert file(correlator, "no pods") is first
    await clock.advance(600.5)
    second = file(correlator, "no pods")

    assert second is not first
    assert (first.count, second.count) == (2, 1)


async def test_more_than_ten_similar_ones_are_combined() -> None:
    """Ten messages of one reason stand alone, all further ones share one combined event."""
    correlator = Correlator(FakeClock())

    alone = [file(correlator, f"pod {n}") for n in range(10)]
    combined = [file(correlator, f"pod {n}") for n in range(10, 15)]

    assert [one.message for one in alone] == [f"pod {n}" for n in range(10)]
    assert {id(one) for one in combined} == {id(combined[0])}
    assert combined[0].message == "(combined from similar events): pod 14"
    assert combined[0].count == 5


async def test_known_messages_go_on_alone_beside_combined_ones() -> None:
    """One of the first ten messages is still its own event after others were combined."""
    correlator = Correlator(FakeClock())
    first = file(correlator, "pod 0")
    for number in range(1, 12):
        file(correlator, f"pod {number}")

    assert file(correlator, "pod 0") is first


async def test_combining_ends_after_a_quiet_window() -> None:
    """After ten minutes without a similar one, messages stand alone again."""
    clock = FakeClock()
    correlator = Correlator(clock)
    for number in range(11):
        file(correlator, f"pod {number}")

    await clock.advance(600.5)

    assert file(correlator, "pod 11").message == "pod 11"


async def test_other_objects_are_not_combined_with_these() -> None:
    """Similar is only what is about the same object."""
    correlator = Correlator(FakeClock())
    for number in range(11):
        file(correlator, f"pod {number}")

    assert file(correlator, "pod 11", about=API).message == "pod 11"


async def test_a_flood_is_held_back() -> None:
    """25 at once, then one each 300 s; the others are counted but not told."""
    clock = FakeClock()
    correlator = Correlator(clock)

    first = file(correlator, "no pods")
    told = [correlator.correlate(WEB, "Warning", "Failed", "no pods") for _ in range(30)]

    assert sum(one is not None for one in told) == 24
    assert first.count == 31
    assert correlator.correlate(API, "Warning", "Failed", "no pods") is not None
    await clock.advance(299.0)
    assert correlator.correlate(WEB, "Warning", "Failed", "no pods") is None
    await clock.advance(1.0)
    assert file(correlator, "no pods").count == 33
    assert correlator.correlate(WEB, "Warning", "Failed", "no pods") is None


def test_memory_is_bounded() -> None:
    """Of very many things the ones not asked for longest are forgotten."""
    recent: LruMap[str] = LruMap(2)
    recent.get("a", lambda: "first a")
    recent.get("b", lambda: "first b")
    recent.get("a", lambda: "second a")
    recent.get("c", lambda: "first c")

    assert len(recent) == 2
    assert recent.get("a", lambda: "third a") == "first a"
    assert recent.get("b", lambda: "second b") == "second b"
