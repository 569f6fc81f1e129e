"""What a sync is told of changes in the caches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.well_known import (
    HEADLESS_LABEL,
    PROXY_NAME_LABEL,
    SERVICE_NAME_LABEL,
    TRIGGER_TIME_ANNOTATION,
)
from keepclose.proxy.change_tracker import ChangeTracker, parse_time
from keepclose.proxy.validation import ValidationLog
from support.builders import endpoint, endpoint_slice, service

WEB = NamespacedName("default", "web")
STARTED_AT = 1_767_225_600.0  # 2026-01-01T00:00:00Z


class Tally:
    """Counts what a tracker counts, and how often it asks for a sync."""

    def __init__(self) -> None:
        self.services = 0
        self.endpoints = 0
        self.asked = 0

    def service_changed(self) -> None:
        """Count an event of a Service."""
        self.services += 1

    def endpoints_changed(self) -> None:
        """Count an event of a slice."""
        self.endpoints += 1

    def ask(self) -> None:
        """Count a wish for a sync."""
        self.asked += 1


def make_tracker(family: str = "IPv4") -> tuple[ChangeTracker, Tally]:
    """Return a tracker and what counts for it."""
    tally = Tally()
    tracker = ChangeTracker(
        family,
        gates=FeatureGates(),
        counter=tally,
        on_change=tally.ask,
        started_at=STARTED_AT,
        validation_log=ValidationLog(),
    )
    return tracker, tally


def versioned(one: EndpointSlice, version: str) -> EndpointSlice:
    """Return the slice as a server would store it."""
    return replace(one, metadata=replace(one.metadata, resource_version=version))


def test_a_new_service_is_taken_once() -> None:
    """The ports of a new Service come with the next take, and not again."""
    tracker, tally = make_tracker()
    tracker.on_service(None, service())
    assert (tally.services, tally.asked, tracker.pending_services) == (1, 1, 1)
    changes = tracker.take()
    assert [port.name for port in changes.services[WEB]] == ["http"]
    assert tracker.pending_services == 0
    assert tracker.take().services == {}


def test_a_change_of_labels_asks_for_nothing() -> None:
    """Only what is derived for the ports counts."""
    tracker, tally = make_tracker()
    tracker.on_service(None, service())
    tracker.take()
    tracker.on_service(service(), service(labels={"team": "blue"}))
    assert (tally.services, tally.asked, tracker.pending_services) == (2, 1, 0)


def test_a_change_that_is_taken_back_is_none() -> None:
    """From A to B and back to A before a sync leaves nothing to do."""
    tracker, _ = make_tracker()
    one = service()
    other = service(ports=(ServicePort(name="http", protocol="TCP", port=81),))
    tracker.on_service(None, one)
    tracker.take()
    tracker.on_service(one, other)
    assert tracker.pending_services == 1
    tracker.on_service(other, one)
    assert tracker.pending_services == 0
    assert tracker.take().services == {}


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(service(cluster_ip="None", cluster_ips=("None",)), id="headless"),
        pytest.param(service(type="ExternalName"), id="of type ExternalName"),
        pytest.param(
            service(cluster_ip="fd00::1", cluster_ips=("fd00::1",), ip_families=("IPv6",)),
            id="of the other family",
        ),
        pytest.param(service(labels={PROXY_NAME_LABEL: "other"}), id="of another proxy"),
        pytest.param(service(cluster_ip="nonsense", cluster_ips=("nonsense",)), id="bad address"),
        pytest.param(service(name='we"b'), id="a name that no server allows"),
        pytest.param(service(ports=(ServicePort(name="http", port=70000),)), id="a bad port"),
        pytest.param(
            service(ports=(ServicePort(name="http", port=80, protocol="ICMP"),)),
            id="an unknown protocol",
        ),
    ],
)
def test_services_without_rules(one: Service) -> None:
    """A Service that this proxy does not route is no change."""
    tracker, tally = make_tracker()
    tracker.on_service(None, one)
    assert (tracker.take().services, tally.asked) == ({}, 0)


def test_a_service_that_goes_away_or_to_another_proxy() -> None:
    """Deletion and the label of another proxy both take the ports away."""
    for new in (None, service(labels={PROXY_NAME_LABEL: "other"})):
        tracker, _ = make_tracker()
        tracker.on_service(None, service())
        tracker.take()
        tracker.on_service(service(), new)
        assert tracker.take().services == {WEB: ()}


def test_a_slice_touches_its_service() -> None:
    """Every change of a slice counts, and a moved one touches both Services."""
    tracker, tally = make_tracker()
    one = endpoint_slice(endpoint())
    tracker.on_slice(None, one)
    moved = endpoint_slice(endpoint(), service_name="other")
    tracker.on_slice(one, moved)
    assert (tally.endpoints, tally.asked, tracker.pending_endpoints) == (2, 2, 2)
    assert tracker.take().endpoints == {WEB, NamespacedName("default", "other")}
    assert (tracker.pending_endpoints, tracker.take().endpoints) == (0, frozenset())


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(endpoint_slice(endpoint(), address_type="IPv6"), id="of the other family"),
        pytest.param(endpoint_slice(endpoint(), address_type="FQDN"), id="of names"),
        pytest.param(endpoint_slice(endpoint(), labels={HEADLESS_LABEL: ""}), id="headless"),
        pytest.param(endpoint_slice(endpoint(), labels={SERVICE_NAME_LABEL: ""}), id="of nobody"),
    ],
)
def test_slices_that_are_ignored(one: EndpointSlice) -> None:
    """Slices that can lead nowhere are not even counted."""
    tracker, tally = make_tracker()
    tracker.on_slice(None, one)
    assert (tally.endpoints, tally.asked) == (0, 0)


def test_the_version_of_hinted_slices() -> None:
    """Only slices with hints move the version, which never goes back."""
    tracker, _ = make_tracker()
    tracker.on_slice(None, versioned(endpoint_slice(endpoint()), "9"))
    assert tracker.version == 0
    hinted = endpoint_slice(endpoint(for_zones=("zone-a",)))
    tracker.on_slice(None, versioned(hinted, "7"))
    tracker.on_slice(None, versioned(hinted, "5"))
    tracker.on_slice(None, versioned(hinted, "opaque"))
    assert (tracker.version, tracker.take().version) == (7, 7)


def test_trigger_times() -> None:
    """Times after the start are kept, others are not, and a removal drops those of its Service."""
    tracker, _ = make_tracker()
    for text in ("2026-01-01T00:00:05.5Z", "2025-12-31T23:59:59Z", "soon"):
        one = endpoint_slice(endpoint(), annotations={TRIGGER_TIME_ANNOTATION: text})
        tracker.on_slice(None, one)
    assert tracker.take().trigger_times == (STARTED_AT + 5.5,)
    one = endpoint_slice(annotations={TRIGGER_TIME_ANNOTATION: "2026-01-01T00:00:07Z"})
    tracker.on_slice(None, one)
    tracker.on_slice(one, None)
    assert tracker.take().trigger_times == ()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("2026-01-01T00:00:00Z", STARTED_AT, id="UTC"),
        pytest.param("2026-01-01T02:00:00+02:00", STARTED_AT, id="elsewhere"),
        pytest.param("2026-01-01T00:00:00.250000001Z", STARTED_AT + 0.25, id="nanoseconds"),
        pytest.param("2026-01-01T00:00:00", None, id="nowhere"),
        pytest.param("", None, id="empty"),
    ],
)
def test_times(text: str, want: float | None) -> None:
    """A time must name its offset from UTC."""
    assert parse_time(text) == want
