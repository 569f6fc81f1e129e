"""Each complaint is made once."""

from __future__ import annotations

from structlog.testing import capture_logs

from keepclose.kube.complaints import Complaints
from keepclose.kube.errors import Forbidden, Unauthorized
from keepclose.model.causes import invalid


def test_a_failure_is_told_when_its_message_changes() -> None:
    """The same message in a row is one line; another message, or a success between, is another."""
    complaints = Complaints("pods")
    with capture_logs() as logs:
        for message in ("no token", "no token", "bad token", "no token"):
            complaints.note_failure("list", Unauthorized(401, "Unauthorized", message))
        complaints.note_success()
        complaints.note_success()
        complaints.note_failure("watch", Forbidden(403, "Forbidden", "no token"))

    assert [(log["log_level"], log.get("doing"), log.get("error")) for log in logs] == [
        ("warning", "list", "no token"),
        ("warning", "list", "bad token"),
        ("warning", "list", "no token"),
        ("info", None, None),
        ("warning", "watch", "no token"),
    ]


def test_an_unreadable_object_is_told_once_for_each_cause() -> None:
    """A list every few minutes does not repeat what was said about its broken objects."""
    complaints = Complaints("pods")
    first, second = invalid("spec", 1, "no map"), invalid("status", 2, "no map")
    with capture_logs() as logs:
        for name, cause in (("a", first), ("a", first), ("b", first), ("a", second)):
            complaints.note_unreadable(name, cause)

    assert [(log["object"], log["cause"]) for log in logs] == [
        ("a", str(first)),
        ("b", str(first)),
        ("a", str(second)),
    ]


def test_memory_of_unreadable_objects_is_bounded() -> None:
    """After a thousand others a complaint may be made again."""
    complaints = Complaints("pods")
    cause = invalid("spec", 1, "no map")
    with capture_logs() as logs:
        for number in range(1001):
            complaints.note_unreadable(f"p{number}", cause)
        complaints.note_unreadable("p0", cause)
        complaints.note_unreadable("p1000", cause)

    assert len(logs) == 1002
