"""Which address types a Service has slices for."""

from __future__ import annotations

import pytest

from keepclose.slices.slice_metadata import address_types, slices_of_other_types
from support.builders import endpoint_slice, service


@pytest.mark.parametrize(
    ("families", "cluster_ip", "want"),
    [
        pytest.param(("IPv4",), "10.0.0.1", ("IPv4",), id="IPv4 as recorded"),
        pytest.param(("IPv6",), "fd00::1", ("IPv6",), id="IPv6 as recorded"),
        pytest.param(("IPv4", "IPv6"), "10.0.0.1", ("IPv4", "IPv6"), id="both, IPv4 first"),
        pytest.param(("IPv6", "IPv4"), "fd00::1", ("IPv6", "IPv4"), id="both, IPv6 first"),
        pytest.param(("IPv4",), "None", ("IPv4",), id="headless, IPv4 as recorded"),
        pytest.param(("IPv6",), "None", ("IPv6",), id="headless, IPv6 as recorded"),
        pytest.param(("IPv4", "IPv6"), "None", ("IPv4", "IPv6"), id="headless, both"),
        pytest.param((), "10.0.0.1", ("IPv4",), id="nothing recorded, by an IPv4 cluster IP"),
        pytest.param((), "fd00::1", ("IPv6",), id="nothing recorded, by an IPv6 cluster IP"),
        pytest.param((), "None", ("IPv4", "IPv6"), id="nothing recorded, headless: both"),
        pytest.param((), "", ("IPv4", "IPv6"), id="nothing recorded, no cluster IP yet: both"),
        pytest.param((), "nonsense", ("IPv4",), id="an unreadable cluster IP counts as IPv4"),
        pytest.param(("IPv4", "IPv4"), "10.0.0.1", ("IPv4",), id="a repetition counts once"),
        pytest.param(("IPX",), "fd00::1", ("IPv6",), id="an unknown family is not recorded"),
    ],
)
def test_address_types(families: tuple[str, ...], cluster_ip: str, want: tuple[str, ...]) -> None:
    """The recorded families decide, else the cluster IP, else both."""
    assert address_types(service(ip_families=families, cluster_ip=cluster_ip)) == want


def test_slices_of_other_types_are_found_by_name() -> None:
    """Slices of types that the Service does not have go, names of hosts among them."""
    named = [
        endpoint_slice(name=name, address_type=kind)
        for name, kind in (("c", "FQDN"), ("a", "IPv6"), ("b", "IPv4"))
    ]
    assert [s.metadata.name for s in slices_of_other_types(named, ("IPv4",))] == ["a", "c"]
    assert slices_of_other_types((), ("IPv4",)) == ()
