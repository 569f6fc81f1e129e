"""Events in both of their groups."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.apiserver.registry.events import from_stored, to_stored
from keepclose.apiserver.resources import BY_KIND

NEWER = BY_KIND["events.k8s.io/v1", "Event"]
CORE = BY_KIND["v1", "Event"]
STORED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "a", "namespace": "default"},
    "involvedObject": {"kind": "Pod", "name": "p"},
    "related": {"kind": "Node", "name": "n"},
    "reason": "R",
    "message": "M",
    "source": {"component": "c", "host": "h"},
    "firstTimestamp": "2026-01-01T00:00:00Z",
    "lastTimestamp": "2026-01-01T00:00:01Z",
    "count": 3,
    "type": "Normal",
    "eventTime": None,
    "series": {"count": 2},
    "action": "A",
    "reportingComponent": "a.b/c",
    "reportingInstance": "i",
    "future": 1,
}
SHOWN: dict[str, Any] = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "a", "namespace": "default"},
    "regarding": {"kind": "Pod", "name": "p"},
    "related": {"kind": "Node", "name": "n"},
    "reason": "R",
    "note": "M",
    "deprecatedSource": {"component": "c", "host": "h"},
    "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
    "deprecatedLastTimestamp": "2026-01-01T00:00:01Z",
    "deprecatedCount": 3,
    "type": "Normal",
    "eventTime": None,
    "series": {"count": 2},
    "action": "A",
    "reportingController": "a.b/c",
    "reportingInstance": "i",
    "future": 1,
}


def test_the_newer_group_has_other_names() -> None:
    """Each field has its counterpart, and unknown ones stay."""
    assert from_stored(NEWER, STORED) == SHOWN
    assert to_stored(NEWER, SHOWN) == STORED


def test_empty_reporters_are_left_out_by_the_newer_group() -> None:
    """What core/v1 writes as an empty text, events.k8s.io/v1 does not write."""
    silent = {**STORED, "reportingComponent": "", "reportingInstance": ""}
    shown = from_stored(NEWER, silent)
    assert shown.keys() == SHOWN.keys() - {"reportingController", "reportingInstance"}


def test_everything_else_is_stored_as_it_is_served() -> None:
    """Other kinds, and events of the core group, are handed through."""
    assert from_stored(CORE, STORED) is STORED
    assert to_stored(CORE, STORED) is STORED
    node = {"kind": "Node"}
    assert from_stored(BY_KIND["v1", "Node"], node) is node


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from(sorted(SHOWN)), st.integers() | st.text(min_size=1)))
def test_nothing_is_lost_on_the_way_and_back(members: dict[str, Any]) -> None:
    """Storing and showing again gives the same event."""
    shown = {**members, "apiVersion": "events.k8s.io/v1"}
    assert from_stored(NEWER, to_stored(NEWER, shown)) == shown


def test_old_slices_have_their_places_in_a_topology() -> None:
    """The old version of slices shows node and zone as labels, without changing what is stored."""
    old = replace(BY_KIND["discovery.k8s.io/v1", "EndpointSlice"], version="v1beta1")
    stored: dict[str, Any] = {
        "apiVersion": "discovery.k8s.io/v1",
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "nodeName": "n",
                "zone": "z",
                "deprecatedTopology": {"a": "b"},
            },
            {"addresses": ["10.0.0.2"]},
        ],
    }
    assert from_stored(old, stored) == {
        "apiVersion": "discovery.k8s.io/v1beta1",
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "nodeName": "n",
                "topology": {
                    "a": "b",
                    "kubernetes.io/hostname": "n",
                    "topology.kubernetes.io/zone": "z",
                },
            },
            {"addresses": ["10.0.0.2"]},
        ],
    }
    assert stored["endpoints"][0]["zone"] == "z"
