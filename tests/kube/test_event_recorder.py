"""Events as the server gets them, and what never happens to who records them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from structlog.testing import capture_logs

from keepclose.kube.client import Client
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import EVENTS
from keepclose.kube.transport.retries import Retries
from keepclose.model.core_kinds import Event, EventSource
from keepclose.model.meta import ObjectReference
from keepclose.model.timestamps import format_event_time
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.scripted_streams import Answer, failure, lost, refusal

WEB = ObjectReference(kind="Service", namespace="default", name="web", uid="u1", api_version="v1")
NODE = ObjectReference(kind="Node", name="n1", uid="u2", api_version="v1")
NOW = 1_700_000_000.0


class Desk:
    """A recorder at a fake cluster."""

    def __init__(self, *, most_waiting: int = 1000) -> None:
        self.clock = FakeClock(now=NOW)
        self.cluster = FakeCluster(self.clock)
        client = Client(self.cluster, clock=self.clock, retries=Retries(max_elapsed=0))
        self.recorder = EventRecorder(
            client,
            component="endpoint-slice-controller",
            host="n7",
            clock=self.clock,
            random=Random(0),
            most_waiting=most_waiting,
        )

    def record(self, message: str, *, about: ObjectReference = WEB) -> None:
        """Record a warning."""
        self.recorder.record(about, "Warning", "Failed", message)

    def events(self) -> list[Event]:
        """Return what the server has, the oldest first."""
        found = self.cluster.objects(EVENTS).values()
        return sorted(found, key=lambda event: event.metadata.name)

    def methods(self) -> list[str]:
        """Return how the server was asked."""
        return [request.method for request in self.cluster.requests]


@asynccontextmanager
async def running(desk: Desk) -> AsyncIterator[Desk]:
    """Send events until the end of the context."""
    task = asyncio.ensure_future(desk.recorder.run())
    try:
        yield desk
    finally:
        task.cancel()
        await asyncio.wait((task,))
    assert task.cancelled()


async def test_an_event_says_who_tells_what_about_which_object() -> None:
    """All fields that people and tools look at are there."""
    async with running(Desk()) as desk:
        desk.record("no pods")
        await desk.recorder.flush()

        (event,) = desk.events()
        assert event.metadata.namespace == "default"
        assert event.metadata.name == f"web.{int(NOW * 1e9):x}"
        assert event.involved_object == WEB
        assert (event.type, event.reason, event.message) == ("Warning", "Failed", "no pods")
        assert event.count == 1
        assert event.first_timestamp == event.last_timestamp == "2023-11-14T22:13:20Z"
        assert event.source == EventSource(component="endpoint-slice-controller", host="n7")
        assert event.reporting_component == "endpoint-slice-controller"
        assert event.reporting_instance == "n7"


async def test_a_repeat_patches_the_event_there_is() -> None:
    """Count and last time change, nothing is created a second time."""
    async with running(Desk()) as desk:
        desk.record("no pods")
        await desk.clock.advance(30.0)
        desk.record("no pods")
        await desk.recorder.flush()

        (event,) = desk.events()
        assert event.count == 2
        assert event.first_timestamp == "2023-11-14T22:13:20Z"
        assert event.last_timestamp == "2023-11-14T22:13:50Z"
        assert desk.methods() == ["POST", "PATCH"]
        assert desk.recorder.sent == 2


async def test_repeats_that_still_wait_are_sent_together() -> None:
    """Ten repeats before the first one is sent are one write with the count of ten."""
    desk = Desk()
    for _ in range(10):
        desk.record("no pods")
    assert desk.recorder.waiting == 1

    async with running(desk):
        await desk.recorder.flush()

        assert [event.count for event in desk.events()] == [10]
        assert desk.methods() == ["POST"]


async def test_similar_events_are_combined() -> None:
    """The eleventh message and those after it are one event with a growing count."""
    async with running(Desk()) as desk:
        for number in range(13):
            desk.record(f"pod {number}")
            await desk.recorder.flush()

        events = desk.events()
        assert len(events) == 11
        assert events[10].message == "(combined from similar events): pod 12"
        assert events[10].count == 3


async def test_a_flood_is_counted_and_not_sent() -> None:
    """After 25 events of one object the rest is only counted."""
    async with running(Desk()) as desk:
        for _ in range(30):
            desk.record("no pods")
            await desk.recorder.flush()

        assert desk.recorder.filtered == 5
        assert [event.count for event in desk.events()] == [25]


async def test_a_full_line_drops_and_never_waits() -> None:
    """Recording is done at once, however many wait already."""
    desk = Desk(most_waiting=2)

    for number in range(5):
        desk.record(f"pod {number}")

    assert (desk.recorder.waiting, desk.recorder.dropped) == (2, 3)
    async with running(desk):
        await desk.recorder.flush()
        assert [event.message for event in desk.events()] == ["pod 0", "pod 1"]


async def test_an_event_that_was_dropped_may_come_later() -> None:
    """A repeat of what did not fit is sent when there is room, with the whole count."""
    desk = Desk(most_waiting=1)
    desk.record("first")
    desk.record("second")
    async with running(desk):
        await desk.recorder.flush()
        desk.record("second")
        await desk.recorder.flush()

        assert [(event.message, event.count) for event in desk.events()] == [
            ("first", 1),
            ("second", 2),
        ]


async def test_events_about_cluster_objects_go_to_the_default_namespace() -> None:
    """An object without a namespace has its events where kubectl looks for them."""
    async with running(Desk()) as desk:
        desk.record("not ready", about=NODE)
        await desk.recorder.flush()

        (event,) = desk.events()
        assert event.metadata.namespace == "default"
        assert event.involved_object.namespace == ""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("system:node-role", id="characters that names must not have"),
        pytest.param("x" * 250, id="too long with the digits"),
        pytest.param("", id="none"),
    ],
)
async def test_odd_names_of_objects_give_valid_names_of_events(name: str) -> None:
    """What cannot begin an event's name is replaced by a digest of it."""
    async with running(Desk()) as desk:
        desk.record("odd", about=ObjectReference(kind="ClusterRole", name=name))
        await desk.recorder.flush()

        (event,) = desk.events()
        digest, _, stamp = event.metadata.name.partition(".")
        assert len(digest) == 16
        assert int(stamp, 16) == int(NOW * 1e9)


async def test_names_differ_within_one_nanosecond() -> None:
    """Two events of one object at the same moment are two events."""
    async with running(Desk()) as desk:
        desk.record("one")
        desk.record("two")
        await desk.recorder.flush()

        assert [event.message for event in desk.events()] == ["one", "two"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(refusal(), id="a refused connection"),
        pytest.param(failure(503, "ServiceUnavailable"), id="an unavailable server"),
        pytest.param(failure(429, "TooManyRequests", retry_after=20), id="a busy server"),
    ],
)
async def test_a_server_that_is_away_is_asked_again(fault: Answer) -> None:
    """What may pass is waited for, as long as the server says or the delays are."""
    desk = Desk()
    desk.cluster.answer_next(fault, fault)
    async with running(desk):
        desk.record("no pods")
        await desk.clock.advance(45.0)

        assert [event.message for event in desk.events()] == ["no pods"]
        assert desk.methods() == ["POST"] * 3
        assert (desk.recorder.sent, desk.recorder.failed) == (1, 0)


async def test_a_server_that_stays_away_costs_one_event_at_a_time() -> None:
    """After twelve tries an event is given up, and the next one has its turn."""
    desk = Desk()
    desk.cluster.answer_next(*(refusal() for _ in range(12)))
    async with running(desk):
        desk.record("lost")
        desk.record("sent")
        await desk.clock.advance(400.0)

        assert [event.message for event in desk.events()] == ["sent"]
        assert (desk.recorder.sent, desk.recorder.failed) == (1, 1)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(failure(403, "Forbidden"), id="no permission"),
        pytest.param(failure(422, "Invalid"), id="an invalid event"),
        pytest.param(failure(404, "NotFound"), id="a namespace that is gone"),
    ],
)
async def test_a_refusal_is_final(fault: Answer) -> None:
    """What will not pass is told in the log and not tried again."""
    desk = Desk()
    desk.cluster.answer_next(fault)
    with capture_logs() as logs:
        async with running(desk):
            desk.record("lost")
            desk.record("sent")
            await desk.recorder.flush()

            assert [event.message for event in desk.events()] == ["sent"]
            assert desk.recorder.failed == 1
    assert [(log["event"], log["object"]) for log in logs] == [("Event not sent", "web")]


async def test_a_lost_answer_does_not_double_an_event() -> None:
    """An event that was created without our knowing is found and patched."""
    desk = Desk()
    desk.cluster.lost_answers = 1
    async with running(desk):
        desk.record("no pods")
        await desk.clock.advance(1.6)

        assert [(event.message, event.count) for event in desk.events()] == [("no pods", 1)]
        assert desk.methods() == ["POST", "POST", "PATCH"]
        assert desk.recorder.sent == 1


async def test_a_name_taken_by_another_is_left_alone() -> None:
    """Without a lost answer, a taken name is not ours; another one is chosen."""
    desk = Desk()
    taken = {"metadata": {"name": f"web.{int(NOW * 1e9):x}", "namespace": "default"}, "count": 9}
    desk.cluster.put(EVENTS, taken)
    async with running(desk):
        desk.record("no pods")
        await desk.recorder.flush()

        assert [(event.message, event.count) for event in desk.events()] == [
            ("", 9),
            ("no pods", 1),
        ]


async def test_an_event_that_the_server_forgot_is_created_anew() -> None:
    """Servers drop events after an hour; a repeat then is a new event with the whole count."""
    async with running(Desk()) as desk:
        desk.record("no pods")
        await desk.recorder.flush()
        (event,) = desk.events()
        desk.cluster.delete(EVENTS, event.metadata.name, namespace="default")
        await desk.clock.advance(1.0)
        desk.record("no pods")
        await desk.recorder.flush()

        (again,) = desk.events()
        assert again.metadata.name != event.metadata.name
        assert again.count == 2
        assert desk.methods() == ["POST", "PATCH", "POST"]


async def test_an_occurrence_while_its_event_is_sent_is_not_lost() -> None:
    """What happens during a write is sent by the next one."""
    desk = Desk()
    desk.cluster.answer_next(lost())
    async with running(desk):
        desk.record("no pods")
        await desk.clock.run_until_idle()
        desk.record("no pods")
        desk.record("no pods")
        await desk.clock.advance(10.0)

        assert [event.count for event in desk.events()] == [3]


def test_times_are_whole_seconds() -> None:
    """Fractions are cut off, as the API's times have none."""
    assert format_event_time(1_700_000_000.9) == "2023-11-14T22:13:20Z"
