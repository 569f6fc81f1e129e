"""What is left out of flawed objects, and how it is told."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from keepclose.model.endpointslice.types import Endpoint, EndpointPort, EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.proxy.validation import ValidationLog, service_error, slice_error, usable_endpoints
from keepclose.routing.port_endpoints import PortEndpoint
from support.builders import endpoint, endpoint_slice, service

WEB = NamespacedName("default", "web")


def test_a_flaw_is_told_once() -> None:
    """The same flaw of the same object is one line; another flaw is another."""
    log = ValidationLog()
    with capture_logs() as lines:
        for error in ("a", "a", "", "b", "b"):
            log.report("Service", WEB, error)
    assert [(line["object"], line["error"]) for line in lines] == [
        ("default/web", "a"),
        ("default/web", "b"),
    ]


def test_what_is_remembered_has_an_end() -> None:
    """Objects that come and go do not pile up; one may then be told again."""
    log = ValidationLog()
    with capture_logs() as lines:
        for number in range(1001):
            log.report("Service", NamespacedName("default", f"s{number}"), "a")
        log.report("Service", NamespacedName("default", "s0"), "a")
    assert len(lines) == 1002


@pytest.mark.parametrize(
    ("one", "want"),
    [
        pytest.param(endpoint_slice(endpoint("10.0.0.1")), "", id="none"),
        pytest.param(endpoint_slice(endpoint("010.0.0.1")), "", id="leading zeros are read"),
        pytest.param(
            endpoint_slice(endpoint(), ports=(EndpointPort(None, "TCP", 80),)),
            "a port without a name",
            id="no name",
        ),
        pytest.param(
            endpoint_slice(endpoint(), ports=(EndpointPort("http", "TCP", 0),)),
            "port 'http' without a usable number",
            id="no number",
        ),
        pytest.param(endpoint_slice(Endpoint()), "an endpoint without an address", id="no address"),
        pytest.param(
            endpoint_slice(endpoint("fd00::1")),
            "endpoint 'fd00::1': not an IPv4 address",
            id="of the other family",
        ),
        pytest.param(
            endpoint_slice(endpoint("10.0.0.999")),
            "endpoint '10.0.0.999': not an IPv4 address",
            id="no address at all",
        ),
    ],
)
def test_slices(one: EndpointSlice, want: str) -> None:
    """The first thing that must be left out is named."""
    assert slice_error(one, "IPv4") == want


def test_services() -> None:
    """External IPs and health checks that cannot be followed are told, blank ones are not."""
    assert service_error(service(external_ips=(" ", "1.2.3.4"))) == ""
    assert service_error(service(external_ips=("nonsense",))) == (
        "external IP 'nonsense': not an IP address"
    )
    balanced = service(type="LoadBalancer", external_traffic_policy="Local")
    assert service_error(balanced) == (
        "externalTrafficPolicy is Local, but there is no healthCheckNodePort"
    )


def test_endpoints_that_can_be_used() -> None:
    """Those of the family stay; nothing is copied when all do."""
    four, six, far = PortEndpoint("10.0.0.1", 80), PortEndpoint("fd00::1", 80), PortEndpoint("", 0)
    assert usable_endpoints((four, six), "IPv4") == (four,)
    assert usable_endpoints((four, six), "IPv6") == (six,)
    assert usable_endpoints((PortEndpoint("10.0.0.1", 70000), far), "IPv6") == ()
    both = (four, PortEndpoint("10.0.0.2", 80))
    assert usable_endpoints(both, "IPv4") is both
