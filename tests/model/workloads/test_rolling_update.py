"""The numbers of an update in steps."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.workloads.rolling_update import (
    RolloutBounds,
    daemon_bounds,
    deployment_bounds,
    resolve_share,
    spread_proportionally,
)
from support.lab.labobjects import a_daemon_set, a_deployment, a_replica_set


@pytest.mark.parametrize(
    ("share", "whole", "up", "want"),
    [
        pytest.param(3, 10, True, 3, id="a number is itself"),
        pytest.param("25%", 10, True, 3, id="up"),
        pytest.param("25%", 10, False, 2, id="down"),
        pytest.param("100%", 7, False, 7, id="the whole"),
        pytest.param("150%", 2, False, 3, id="more than the whole"),
        pytest.param(None, 10, True, 0, id="nothing said"),
        pytest.param("x%", 10, True, 0, id="no number"),
        pytest.param("25", 10, True, 0, id="no percent sign"),
        pytest.param(-1, 10, True, 0, id="less than nothing"),
    ],
)
def test_shares(share: int | str | None, whole: int, up: bool, want: int) -> None:
    """A share of the whole is rounded the way it is asked to."""
    assert resolve_share(share, whole, up=up) == want


@pytest.mark.parametrize(
    ("replicas", "more", "want"),
    [
        pytest.param(5, {}, RolloutBounds(1, 2), id="quarters of five"),
        pytest.param(1, {}, RolloutBounds(0, 1), id="quarters of one"),
        pytest.param(
            3, {"surge": 0, "unavailable": "10%"}, RolloutBounds(1, 0), id="nothing becomes one"
        ),
        pytest.param(2, {"unavailable": 5}, RolloutBounds(2, 1), id="no more missing than wanted"),
        pytest.param(0, {"surge": 0, "unavailable": 0}, RolloutBounds(0, 0), id="none wanted"),
        pytest.param(
            5, {"strategy": {"type": "Recreate"}}, RolloutBounds(0, 0), id="all recreated"
        ),
        pytest.param(
            4, {"strategy": {"type": "RollingUpdate"}}, RolloutBounds(1, 1), id="defaults"
        ),
    ],
)
def test_bounds_of_deployments(replicas: int, more: dict[str, Any], want: RolloutBounds) -> None:
    """What may be missing and what may be too many follow from the strategy."""
    assert deployment_bounds(a_deployment(replicas, **more)) == want


@pytest.mark.parametrize(
    ("more", "want"),
    [
        pytest.param({}, RolloutBounds(1, 0), id="one missing"),
        pytest.param({"unavailable": "25%"}, RolloutBounds(2, 0), id="a share is rounded up"),
        pytest.param({"unavailable": 0, "surge": "50%"}, RolloutBounds(0, 3), id="a surge"),
        pytest.param({"kind": "OnDelete"}, RolloutBounds(0, 0), id="no update by itself"),
    ],
)
def test_bounds_of_daemon_sets(more: dict[str, Any], want: RolloutBounds) -> None:
    """Shares are of the nodes that want a pod."""
    assert daemon_bounds(a_daemon_set(**more).spec.update_strategy, 5) == want


@pytest.mark.parametrize(
    ("replicas", "sizes", "former_most", "want"),
    [
        pytest.param(20, {"a": 8, "b": 5}, 13, {"a": 15, "b": 10}, id="up in proportion"),
        pytest.param(5, {"a": 8, "b": 5}, 13, {"a": 4, "b": 3}, id="down in proportion"),
        pytest.param(0, {"a": 8, "b": 5}, 13, {"a": 0, "b": 0}, id="down to none"),
        pytest.param(11, {"a": 5, "b": 5}, 10, {"a": 7, "b": 7}, id="leftovers to one"),
    ],
)
def test_sizes_in_the_middle_of_an_update(
    replicas: int, sizes: dict[str, int], former_most: int, want: dict[str, int]
) -> None:
    """Scaling during an update leaves its progress as it is."""
    replica_sets = [
        a_replica_set(name, size, age_s=100 - place)
        for place, (name, size) in enumerate(sizes.items())
    ]
    found = spread_proportionally(
        a_deployment(replicas), replica_sets, dict.fromkeys(sizes, former_most)
    )
    assert {one.replica_set.metadata.name: one.replicas for one in found} == want
