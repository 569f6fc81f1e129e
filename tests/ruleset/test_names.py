"""Names are kube-proxy's, fit the kernel's limit, and hold nothing that nft could misread."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.meta import NamespacedName
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset.names import (
    AFFINITY,
    ENDPOINT,
    EXTERNAL_CHAIN,
    ServicePortKey,
    endpoint_base,
    fingerprint,
    is_service_chain,
    port_base,
    safe_name,
    whole_name,
)

PLAIN = re.compile(r"[A-Za-z_.][A-Za-z0-9/_.-]{0,254}")


def key(namespace: str, name: str, port: str, protocol: str = "TCP") -> ServicePortKey:
    """Return the identity of a service port."""
    return ServicePortKey(NamespacedName(namespace, name), port, protocol)


@pytest.mark.parametrize(
    ("port", "want"),
    [
        pytest.param(key("ns1", "svc1", "p80"), "ULMVA6XW-ns1/svc1/tcp/p80", id="usual"),
        pytest.param(key("default", "lb", "p80"), "E2DJX5ES-default/lb/tcp/p80", id="default"),
        pytest.param(key("default", "udp", "p80", "UDP"), "YXXL4FV5-default/udp/udp/p80", id="UDP"),
        pytest.param(
            key("default", "svc", ""), "GJQUHOIH-default/svc/tcp/", id="port without name"
        ),
    ],
)
def test_port_has_kube_proxys_base_name(port: ServicePortKey, want: str) -> None:
    """The names are those that a real kube-proxy gave."""
    assert port_base(port) == want


@pytest.mark.parametrize(
    ("port", "address", "number", "want"),
    [
        pytest.param(
            key("ns1", "svc1", "p80"),
            "10.180.0.1",
            80,
            "5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80",
            id="IPv4",
        ),
        pytest.param(
            key("default", "aff", "p80"),
            "10.244.1.11",
            8080,
            "RNEKMWCQ-default/aff/tcp/p80__10.244.1.11/8080",
            id="another port",
        ),
    ],
)
def test_endpoint_has_kube_proxys_base_name(
    port: ServicePortKey, address: str, number: int, want: str
) -> None:
    """The names are those that a real kube-proxy gave."""
    assert endpoint_base(port, address, number) == want


def test_colons_of_an_endpoint_turn_to_dots() -> None:
    """An IPv6 address can stand in a name."""
    base = endpoint_base(key("ns1", "svc1", "p80"), "fd00::1", 80)
    assert base.endswith("-ns1/svc1/tcp/p80__fd00..1/80")


def test_long_base_is_cut_and_stays_distinct() -> None:
    """240 bytes, of which the last three say that something is missing."""
    long = key("n" * 63, "s" * 63, "p" * 63)
    address = "1234:5678:9abc:def0:1234:5678:9abc:def0"
    first, second = endpoint_base(long, address, 1000), endpoint_base(long, address, 1001)
    assert (len(first), first[-3:]) == (240, "...")
    assert first[:8] != second[:8]
    assert whole_name(ENDPOINT, first, fingerprint_of="x").endswith(f"....{fingerprint('x')}")
    assert len(whole_name(ENDPOINT, first, fingerprint_of="x")) == 255
    assert whole_name(AFFINITY, first) == AFFINITY + first


def test_fingerprint_follows_from_the_text() -> None:
    """Eight letters, the same for the same text."""
    assert fingerprint("a") == fingerprint("a")
    assert fingerprint("a") != fingerprint("b")
    assert re.fullmatch("[A-Z2-7]{8}", fingerprint("a"))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.text(max_size=300), min_size=5, max_size=5))
def test_no_name_can_hold_anything_but_plain_letters(texts: list[str]) -> None:
    """Whatever objects are called."""
    namespace, name, port, protocol, label = texts
    odd = key(namespace, name, port, protocol)
    for base in (port_base(odd), endpoint_base(odd, label, 80)):
        assert PLAIN.fullmatch(whole_name(EXTERNAL_CHAIN, base, fingerprint_of="rules"))
    assert set(safe_name(name)) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/_.-"
    )


def test_service_chains_are_told_by_their_slash() -> None:
    """A marker of the layout is none."""
    assert is_service_chain("service-ULMVA6XW-ns1/svc1/tcp/p80")
    assert not is_service_chain("services")
    assert not is_service_chain("layout/ABCDEFGH")


def test_key_shows_service_and_port() -> None:
    """As kube-proxy comments its elements."""
    port = RoutedPort(NamespacedName("ns1", "svc1"), "p80", "TCP", "10.0.0.1", 80)
    assert str(ServicePortKey.of(port)) == "ns1/svc1:p80"
    assert str(key("ns1", "svc1", "")) == "ns1/svc1"
