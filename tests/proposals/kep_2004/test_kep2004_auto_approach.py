"""KEP-2004: Auto Approach with its Terminology and Scheme Logic, one test a statement.

Left out: how the algorithm is to be tuned on the way to GA.
"""

from __future__ import annotations

import pytest

from keepclose.routing.reasons import ReasonCode
from keepclose.routing.subsets import (
    DEFAULT_OVERLOAD_THRESHOLD,
    SubsetMode,
    SubsetOptions,
    overloads,
)
from support.proposals.subset_services import A, B, C, decide, sizes, subsetted

HALVES = {A: 0.5, B: 0.5}


def test_kep2004_auto_terminology_the_start_compares_endpoints_and_zones() -> None:
    """Terminology: the starting threshold is a number of endpoints against a number of zones."""
    options = SubsetOptions(start_per_zone=3, padding=0)
    assert decide({A: 3, B: 3}, shares=HALVES, options=options).mode is SubsetMode.SUBSETS
    assert decide({A: 3, B: 3}, options=options).mode is SubsetMode.RANDOM


def test_kep2004_auto_terminology_padding_defers_the_switch() -> None:
    """Terminology: with a start of 6 and a padding of 3 the switch is at 9 endpoints."""
    options = SubsetOptions(start_per_zone=3, padding=3)
    modes = {
        count: decide({A: count - 3, B: 3}, shares=HALVES, options=options).mode
        for count in range(5, 11)
    }
    assert [count for count, mode in modes.items() if mode is SubsetMode.SUBSETS] == [9, 10]


def test_kep2004_auto_terminology_overload() -> None:
    """Terminology: 150 requests where 100 were expected are an overload of 50 %."""
    # Of 6 endpoints zone-a expects 3; the 2 that it has get one and a half times their even part.
    assert overloads(HALVES, {A: 2, B: 4})[A] == pytest.approx(0.5)


def test_kep2004_auto_terminology_overload_threshold() -> None:
    """Terminology: no endpoint may be overloaded by 50 % compared to random, by default."""
    assert DEFAULT_OVERLOAD_THRESHOLD == 0.5
    # 14 endpoints: 7 / 5 - 1 is 40 %. 15 endpoints: 7.5 / 5 - 1 is 50 %, which is too much.
    below = decide({A: 9, B: 5}, shares=HALVES, placed={A: {A: 9}, B: {B: 5}})
    assert (sizes(below), below.rebalanced) == ({A: 9, B: 5}, False)
    above = decide({A: 10, B: 5}, shares=HALVES, placed={A: {A: 10}, B: {B: 5}})
    assert above.rebalanced
    assert max(above.overload.values()) < 0.5


def test_kep2004_auto_terminology_the_threshold_is_a_parameter() -> None:
    """Terminology: the overload threshold is 50 % by default, and another one is kept as well."""
    strict = SubsetOptions(overload_threshold=0.2, start_per_zone=0.1, padding=0)
    placed = {A: {A: 9}, B: {B: 5}}
    tight = decide({A: 9, B: 5}, shares=HALVES, placed=placed, options=strict)
    assert tight.rebalanced
    assert max(tight.overload.values()) < 0.2


def test_kep2004_scheme_logic_endpoints_start_in_their_zone() -> None:
    """Scheme Logic, step 1: all endpoints in a zone are grouped in a local group."""
    decision = decide({A: 5, B: 5, C: 5})
    assert decision.target == {A: {A: 5}, B: {B: 5}, C: {C: 5}}


def test_kep2004_scheme_logic_groups_follow_the_proportion_of_nodes() -> None:
    """Scheme Logic, step 2: endpoints are rebalanced by the proportion of nodes in each zone."""
    shares = {A: 0.6, B: 0.2, C: 0.2}
    decision = decide({A: 10, B: 10, C: 10}, shares=shares)
    assert sizes(decision) == {A: 18, B: 6, C: 6}
    assert ReasonCode.SUBSETS_BALANCED in {reason.code for reason in decision.reasons}


def test_kep2004_auto_is_one_algorithm_with_room_for_others() -> None:
    """Auto Approach: a single algorithm is described, with room left for other options.

    The annotation names an approach, and Auto is one name of the recommended one.
    """
    auto, prefer, require = (
        subsetted(value, a=10, b=4, c=1).groups() for value in ("Auto", "Prefer", "Require")
    )
    assert auto == prefer == {A: 5, B: 5, C: 5}
    assert require == {A: 10, B: 4, C: 1}
