"""The strategies of all kinds."""

from __future__ import annotations

import pytest

from keepclose.apiserver.registry.allocation_ranges import RangeError
from keepclose.apiserver.registry.registry import AllocationSettings, make_ranges, strategies
from keepclose.apiserver.registry.strategy import read_as
from keepclose.apiserver.resources import RESOURCES
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.service.types import Service


def test_every_kind_that_is_served_has_a_strategy() -> None:
    """No store is left without one, and none is made for nothing."""
    assert strategies().keys() == {one.store for one in RESOURCES}


@pytest.mark.parametrize(
    "cidrs",
    [
        pytest.param((), id="none"),
        pytest.param(("10.0.0.0/24", "10.1.0.0/24"), id="two of one family"),
        pytest.param(("10.0.0.0/24", "fd00::/64", "fd01::/64"), id="three"),
    ],
)
def test_ranges_must_fit_together(cidrs: tuple[str, ...]) -> None:
    """There is one range, or one of each family."""
    with pytest.raises(RangeError, match="one range of cluster IPs, or one of each family"):
        make_ranges(AllocationSettings(cidrs))


def test_the_first_range_is_of_the_primary_family() -> None:
    """Families come in the order of their ranges."""
    assert make_ranges(AllocationSettings(("fd00::/64", "10.0.0.0/24"))).families == (
        "IPv6",
        "IPv4",
    )
    assert make_ranges(AllocationSettings()).addresses[0].cidr == "10.96.0.0/16"


def test_objects_that_cannot_be_read_are_refused() -> None:
    """Wrong types are told at their field; another kind is not taken for this one."""
    bad = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"type": 1}}
    with pytest.raises(
        StatusError, match=r'Service "a" is invalid: spec.type: Invalid value: 1: expec'
    ):
        read_as(Service, bad)
    with pytest.raises(StatusError, match="must be of type Service"):
        read_as(Service, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
