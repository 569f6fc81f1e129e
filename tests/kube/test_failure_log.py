"""Each complaint is made once."""

from __future__ import annotations

from structlog.testing import capture_logs

from keepclose.kube.errors import Forbidden, Unauthorized
from keepclose.kube.watch.reflector import MAX_NAMED_OBJECTS, FailureLog
from keepclose.model.field_errors import invalid
from keepclose.testing.fake_clock import FakeClock


def test_a_failure_is_told_when_its_message_changes() -> None:
    """The same message in a row is one line; another message, or a success between, is another."""
    failure_log = FailureLog("pods", FakeClock())
    with capture_logs() as logs:
        for message in ("no token", "no token", "bad token", "no token"):
            failure_log.record_failure("list", Unauthorized(401, "Unauthorized", message))
        failure_log.record_success()
        failure_log.record_success()
        failure_log.record_failure("watch", Forbidden(403, "Forbidden", "no token"))

    assert [(log["log_level"], log.get("doing"), log.get("error")) for log in logs] == [
        ("warning", "list", "no token"),
        ("warning", "list", "bad token"),
        ("warning", "list", "no token"),
        ("info", None, None),
        ("warning", "watch", "no token"),
    ]


def test_an_unreadable_object_is_told_once_for_each_cause() -> None:
    """A list every few minutes does not repeat what was said about its broken objects."""
    failure_log = FailureLog("pods", FakeClock())
    first, second = invalid("spec", 1, "no map"), invalid("status", 2, "no map")
    with capture_logs() as logs:
        for name, cause in (("a", first), ("a", first), ("b", first), ("a", second)):
            failure_log.record_unreadable(name, cause)

    assert [(log["object"], log["cause"]) for log in logs] == [
        ("a", str(first)),
        ("b", str(first)),
        ("a", str(second)),
    ]


async def test_unreadable_objects_without_end_are_a_hundred_lines_and_a_count() -> None:
    """However many broken objects a server has, the log is short and tells of more."""
    clock = FakeClock()
    failure_log = FailureLog("pods", clock)
    cause = invalid("spec", 1, "no map")
    with capture_logs() as logs:
        for number in range(5000):
            failure_log.record_unreadable(f"p{number}", cause)
        await clock.advance(60.0)
        failure_log.record_unreadable("later", cause)

    named = [log for log in logs if log["event"] == "object skipped"]
    others = [log["event"] for log in logs if log not in named]
    assert len(named) == MAX_NAMED_OBJECTS + 1
    assert others == ["more objects are skipped than named"]
    assert (named[-1]["object"], named[-1]["not_named_before"]) == (
        "later",
        5000 - MAX_NAMED_OBJECTS,
    )
