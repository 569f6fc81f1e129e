"""What an answer says of an invalid object is bounded, whatever the object repeats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from keepclose.apiserver.status_errors import MAX_CAUSE_CHARACTERS, MAX_CAUSES, invalid_object
from keepclose.model.field_errors import invalid as invalid_value
from keepclose.model.field_errors import required
from keepclose.testing.api_server import Served, serving

EVENTS = "/api/v1/namespaces/default/events"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory."""
    async with serving(tmp_path / "data", nodes=("n1",)) as served:
        yield served


def test_an_answer_names_so_many_causes() -> None:
    """The first ones are named, in the message as in the details."""
    causes = [required(f"spec.taints[{place}].key") for place in range(3 * MAX_CAUSES)]
    failure = invalid_object("Node", "", "n1", causes)
    assert failure.details is not None
    assert len(failure.details["causes"]) == MAX_CAUSES
    assert failure.message.count("Required value") == MAX_CAUSES
    assert failure.message.startswith('Node "n1" is invalid: [spec.taints[0].key: Required value,')


def test_causes_that_repeat_their_list_are_bounded() -> None:
    """Without a bound the answer has the square of the size of the body."""
    values = ["x" * 100] * 1_000
    causes = [invalid_value("spec.values", values, f"not {place}") for place in range(1_000)]
    assert len(invalid_object("Node", "", "n1", causes).message) < 2 * MAX_CAUSE_CHARACTERS
    one = invalid_object("Node", "", "n1", [invalid_value("spec.values", values * 10, "no")])
    assert "x: no" not in one.message
    assert one.message.endswith("no")


async def test_owners_that_all_control_get_a_short_answer(api: Served) -> None:
    """A kube-apiserver repeats all references for each of them that is one too many."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": True}
    owners = [{**owner, "uid": f"u{number}"} for number in range(2_000)]
    event = {
        "metadata": {"name": "x", "ownerReferences": owners},
        "involvedObject": {"namespace": "default"},
    }
    reply = await api.call("POST", EVENTS, msgspec.json.encode(event))
    assert reply.status == 422
    assert b"Only one reference can have Controller set to true" in reply.body
    assert len(reply.body) < 8 * MAX_CAUSE_CHARACTERS
