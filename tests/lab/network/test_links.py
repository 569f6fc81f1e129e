"""How lines are run: which one failed is said, and what takes away goes on."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from keepclose.lab.network.links import (
    detach_lines,
    do_at_once,
    pod_link,
    run_batch,
    run_batches,
    try_batches,
)
from keepclose.lab.network.privilege import why_no_packets
from keepclose.system.namespaces import NetworkError, NetworkNamespace, create_network_namespace


@pytest.fixture
def inside() -> Iterator[NetworkNamespace]:
    """Make a namespace, or skip the test with the reason."""
    reason = why_no_packets()
    if reason:
        pytest.skip(reason)
    namespace = create_network_namespace("here")
    yield namespace
    namespace.close()


def _links(namespace: NetworkNamespace) -> set[str]:
    lines = namespace.run("ip", "-brief", "link").splitlines()
    return {line.split()[0].partition("@")[0] for line in lines}


def test_the_line_that_failed_is_told(inside: NetworkNamespace) -> None:
    """An error names the place, the line and the kernel's word."""
    with pytest.raises(
        NetworkError,
        match=r"^here: ip route add 10\.9\.0\.0/16 via 10\.8\.0\.1: .*invalid gateway\.$",
    ):
        run_batch(inside, ["link add br0 type bridge", "route add 10.9.0.0/16 via 10.8.0.1"])
    assert _links(inside) == {"lo", "br0"}


def test_one_failure_does_not_hide_others_work(inside: NetworkNamespace) -> None:
    """All batches are run to their ends before the failure is told."""
    other = create_network_namespace("there")
    try:
        with pytest.raises(NetworkError, match=r"^here: ip link set nobody up: .*nobody"):
            run_batches([(inside, ["link set nobody up"]), (other, ["link add br0 type bridge"])])
        assert _links(other) == {"lo", "br0"}
    finally:
        other.close()


def test_what_is_gone_already_keeps_nothing(inside: NetworkNamespace) -> None:
    """Links are taken away also when one of them is not there, and only they."""
    run_batch(inside, [f"link add pod{number} type bridge" for number in (1, 2, 3)])
    try_batches([(inside, detach_lines(["pod1", "nobody", "pod3"]))])
    assert _links(inside) == {"lo", "pod2"}


def test_results_come_in_order() -> None:
    """The order of works is the order of results."""
    works = [functools.partial(int, str(number)) for number in range(20)]
    assert do_at_once(works) == list(range(20))


@pytest.mark.parametrize(
    ("host", "want"),
    [pytest.param(2, "client", id="the client"), pytest.param(254, "pod254", id="the last pod")],
)
def test_names_of_links(host: int, want: str) -> None:
    """A link is named by the number of the address at its far end."""
    assert pod_link(host) == want
