"""Writing ranges of cluster IPs."""

from __future__ import annotations

import pytest

from keepclose.apiserver.registry.services import default_service_cidr
from support.kinds import NOW, Kinds, raw


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


@pytest.mark.parametrize(
    ("before", "cidrs", "want_causes"),
    [
        pytest.param(
            None, [], ["spec.cidrs: Required value: at least one CIDR required"], id="none"
        ),
        pytest.param(
            None,
            ["a", "b", "c"],
            ['spec.cidrs: Invalid value: {"CIDRs":["a","b","c"]}: may only hold up to 2 values'],
            id="three",
        ),
        pytest.param(
            None,
            ["10.1.0.1/24", "fd00::/64"],
            [
                (
                    'spec.cidrs[0]: Invalid value: "10.1.0.1/24": must not have bits set beyond '
                    "the "
                    "prefix length"
                )
            ],
            id="stray bits",
        ),
        pytest.param(
            None,
            ["10.1.0.0/24", "10.2.0.0/24"],
            [
                (
                    'spec.cidrs: Invalid value: ["10.1.0.0/24","10.2.0.0/24"]: may specify no '
                    "more than"
                    " one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
                )
            ],
            id="two of one family",
        ),
        pytest.param(
            ["10.1.0.0/24"],
            ["10.3.0.0/24"],
            ['spec.cidrs[0]: Invalid value: "10.3.0.0/24": field is immutable'],
            id="another one",
        ),
        pytest.param(["10.1.0.0/24"], ["10.1.0.0/24", "fd00::/64"], [], id="a second family"),
        pytest.param(
            ["10.1.0.0/24"],
            ["10.3.0.0/24", "fd00::/64"],
            ['spec.cidrs[0]: Invalid value: "10.3.0.0/24": field is immutable'],
            id="a second family and another first",
        ),
        pytest.param(
            ["10.1.0.0/24"], [], ["spec.cidrs: Invalid value: []: field is immutable"], id="gone"
        ),
    ],
)
def test_ranges_of_the_cluster_stay(
    kinds: Kinds, before: list[str] | None, cidrs: list[str], want_causes: list[str]
) -> None:
    """Ranges are checked when they are made, and may only get a second family."""
    old = None if before is None else raw("ServiceCIDR", spec={"cidrs": before})
    got = kinds.write(raw("ServiceCIDR", spec={"cidrs": cidrs}, status={"x": 1}), old)
    assert got.causes == want_causes
    assert got.object.get("status", {}) == {}


def test_the_first_range_is_ready() -> None:
    """The server tells of its own ranges that they can be used."""
    got = default_service_cidr(("10.96.0.0/16",), now=NOW)
    assert got["metadata"] == {"name": "kubernetes"}
    assert got["spec"] == {"cidrs": ["10.96.0.0/16"]}
    (condition,) = got["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert condition["lastTransitionTime"] == NOW
