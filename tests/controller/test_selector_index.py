"""Finding the Services of a pod through the index."""

from __future__ import annotations

from random import Random

import pytest

from keepclose.controller.event_handlers import SelectorIndex
from keepclose.model.service.types import Service
from keepclose.slices.changes import services_for_pod
from support import builders


@pytest.mark.parametrize(
    ("selector", "labels", "want"),
    [
        pytest.param({"a": "1"}, {"a": "1", "b": "2"}, True, id="one pair of several labels"),
        pytest.param({"a": "1", "b": "2"}, {"a": "1"}, False, id="only half of the selector"),
        pytest.param({"a": "1"}, {"a": "2"}, False, id="another value"),
        pytest.param({}, {"a": "1"}, True, id="the empty selector selects all"),
        pytest.param({}, {}, True, id="the empty selector selects a pod without labels"),
        pytest.param(None, {"a": "1"}, False, id="no selector selects nothing"),
    ],
)
def test_services_are_found_by_labels(
    selector: dict[str, str] | None, labels: dict[str, str], want: bool
) -> None:
    """A Service is found exactly for the pods that it selects."""
    selector_index = SelectorIndex()
    service = builders.service(selector=selector)
    selector_index.change(None, service)
    assert selector_index.services("default", labels) == ([service] if want else [])
    assert selector_index.services("other", labels) == []


def test_services_are_spread_over_their_pairs() -> None:
    """Services that share a label are filed under the pairs that tell them apart."""
    selector_index = SelectorIndex()
    for number in range(100):
        selector = {"part-of": "shop", "app": f"app-{number}"}
        selector_index.change(None, builders.service(f"s{number}", selector=selector))
    assert max(len(bucket) for bucket in selector_index._buckets.values()) == 1


def test_the_index_agrees_with_looking_at_every_service() -> None:
    """After any sequence of changes the index finds what a search through all Services finds."""
    random = Random(3)
    selector_index = SelectorIndex()
    present: dict[str, Service] = {}
    for _ in range(2000):
        name = f"s{random.randrange(30)}"
        new = None
        if random.random() < 0.8:
            keys = random.sample("abc", random.randrange(4))
            selector = {key: str(random.randrange(3)) for key in keys}
            new = builders.service(name, selector=selector if random.random() < 0.9 else None)
        selector_index.change(present.get(name), new)
        present.pop(name, None)
        if new is not None:
            present[name] = new
        labels = {key: str(random.randrange(3)) for key in "abc" if random.random() < 0.7}
        found = [one.key for one in selector_index.services("default", labels)]
        assert len(found) == len(set(found))
        assert set(found) == services_for_pod(present.values(), namespace="default", labels=labels)
    assert len(selector_index) == sum(one.spec.selector is not None for one in present.values())
