"""The registry of algorithms: names, parameters, and the figures recorded from the reference."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from keepclose.simulate.algorithms import (
    ALGORITHMS,
    PUBLISHED,
    RunsWith,
    UnknownAlgorithmError,
    find_algorithm,
)
from keepclose.simulate.datasets import InMemoryRows
from keepclose.simulate.engine import simulate_rows


class Case(msgspec.Struct, frozen=True):
    """One row of the reference: zones as (name, nodes, endpoints) and its seven figures."""

    note: str
    zones: tuple[tuple[str, int, int], ...]
    valid: bool
    expected: tuple[float, ...] | None


class Cases(msgspec.Struct, frozen=True):
    """All recorded rows of an algorithm."""

    cases: tuple[Case, ...]


class Recorded(msgspec.Struct, frozen=True):
    """What was recorded."""

    algorithms: dict[str, Cases]


RECORDED = msgspec.json.decode(
    (Path(__file__).parent.parent / "data" / "simulator.json").read_bytes(), type=Recorded
)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name}: {case.note}")
        for name, cases in RECORDED.algorithms.items()
        for case in cases.cases
    ],
)
def test_figures_of_the_reference_come_out(name: str, case: Case) -> None:
    """Each algorithm by its name gives the seven figures that the reference printed."""
    zones = sorted(case.zones)
    rows = InMemoryRows(
        [zone for zone, _, _ in zones],
        [nodes for _, nodes, _ in zones],
        [endpoints for _, _, endpoints in zones],
    )

    (got,) = simulate_rows(rows, find_algorithm(name), compiled=False)

    assert list(got.valid) == [int(case.valid)]
    if case.valid:
        assert list(got.figures) == pytest.approx(case.expected, abs=1.01e-4)


def test_names_are_those_in_public() -> None:
    """The seven of the proposal come first."""
    assert PUBLISHED == (
        "original",
        "local",
        "local-shared",
        "local-weighted",
        "local-opt",
        "shared-global",
        "shared-multizone",
    )
    assert tuple(ALGORITHMS)[7:] == ("same-zone", "kube-auto", "balanced", "balanced-weights")


@pytest.mark.parametrize(
    ("name", "want_threshold", "want_start"),
    [
        pytest.param("local", 0.5, 3.0, id="local starts at three endpoints a zone"),
        pytest.param("local-shared", 0.5, 0.0, id="local-shared has no such start"),
        pytest.param("kube-auto", 0.2, 0.0, id="Auto allows 20 %"),
        pytest.param("balanced", 0.2, 0.0, id="balanced allows 20 %"),
    ],
)
def test_parameters_are_those_published(
    name: str, want_threshold: float, want_start: float
) -> None:
    """Without being told otherwise an algorithm has its published parameters."""
    found = find_algorithm(name)

    assert (found.threshold, found.start) == (want_threshold, want_start)


def test_parameters_can_be_replaced() -> None:
    """Other parameters leave the registry as it is."""
    found = find_algorithm("local", threshold=0.3, start=1.0)

    assert (found.threshold, found.start) == (0.3, 1.0)
    assert (ALGORITHMS["local"].threshold, ALGORITHMS["local"].start) == (0.5, 3.0)
    assert found.parameters == ("threshold", "start")


def test_unknown_name_lists_the_known_ones() -> None:
    """Another name is refused with all that there are."""
    with pytest.raises(UnknownAlgorithmError, match="'best'; there are original, local"):
        find_algorithm("best")


def test_what_a_cluster_can_run() -> None:
    """Hints run with any proxy, slices for each zone with ours, groups of zones with none."""
    any_proxy = {name for name, one in ALGORITHMS.items() if one.runs_with is RunsWith.ANY_PROXY}
    assert any_proxy == {"original", "same-zone", "kube-auto", "balanced"}
    assert ALGORITHMS["local"].runs_with is RunsWith.KEEPCLOSE_PROXY
    for name in ("shared-global", "shared-multizone"):
        assert ALGORITHMS[name].runs_with is RunsWith.SIMULATOR
    assert [kind.mark_name("x") for kind in RunsWith] == ["x", "x +", "x ~"]
