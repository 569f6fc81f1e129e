"""Zones and nodes of a cluster by number and name."""

from __future__ import annotations

import pytest

from keepclose.lab.cluster.programs import LAB_GATES, ClusterLayout, zone_name
from keepclose.model.gates import EXCLUSIVE_PAIRS, Gate

_TOO_MANY = "more than 200 nodes do not fit on one machine"


def test_nodes_stand_in_their_zones() -> None:
    """Zone by zone, numbered through."""
    layout = ClusterLayout(2, 2)
    assert layout.nodes == {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b", "n4": "zone-b"}
    assert layout.by_zone == {"zone-a": ["n1", "n2"], "zone-b": ["n3", "n4"]}
    assert layout.flaws() == []


@pytest.mark.parametrize(
    ("layout", "want"),
    [
        pytest.param(ClusterLayout(0, 2), ["--zones must be at least 1"], id="no zone"),
        pytest.param(ClusterLayout(2, 0), ["--nodes-per-zone must be at least 1"], id="no node"),
        pytest.param(
            ClusterLayout(67, 3),
            [f"--zones times --nodes-per-zone is 201; {_TOO_MANY}"],
            id="too many",
        ),
    ],
)
def test_what_cannot_be_built(layout: ClusterLayout, want: list[str]) -> None:
    """The option at fault is named."""
    assert layout.flaws() == want


def test_zones_beyond_the_alphabet_have_names_of_their_own() -> None:
    """As many as there can be nodes."""
    names = [zone_name(number) for number in range(200)]
    assert len(set(names)) == 200
    assert (names[0], names[25], names[26], names[52]) == ("zone-a", "zone-z", "zone-aa", "zone-ba")


def test_everything_can_be_tried_that_excludes_nothing_else() -> None:
    """All gates but one are on, and none of them excludes another."""
    assert set(Gate) - LAB_GATES.enabled == {Gate.SERVICE_TOPOLOGY}
    assert not any({one, other} <= LAB_GATES.enabled for one, other in EXCLUSIVE_PAIRS)
