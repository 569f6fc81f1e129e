"""Subsetting decisions: the test plan of KEP-2004, its worked examples, and what is promised."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.well_known import (
    OVERLOAD_THRESHOLD_ANNOTATION,
    PADDING_ANNOTATION,
    STARTING_THRESHOLD_ANNOTATION,
)
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.subsets import (
    Approach,
    SubsetDecision,
    SubsetMode,
    SubsetOptions,
    decide_subsets,
    overloads,
    parse_annotation,
    read_limits,
)

Counts = dict[str, int]
Matrix = dict[str, dict[str, int]]

EVEN = {"a": 1, "b": 1, "c": 1}
FROM_THE_FIRST = SubsetOptions(start_per_zone=0.001, padding=0)


def decide(
    nodes: Counts,
    located: Counts,
    *,
    approach: Approach = Approach.PREFER,
    placed: Matrix | None = None,
    active: bool = False,
    options: SubsetOptions | None = None,
) -> SubsetDecision:
    """Return the decision with shares by nodes, the default options and nothing placed."""
    total = sum(nodes.values())
    return decide_subsets(
        approach=approach,
        shares={zone: count / total for zone, count in nodes.items()},
        located=located,
        placed=placed or {},
        active=active,
        options=options or SubsetOptions(),
    )


def codes(decision: SubsetDecision) -> list[ReasonCode]:
    """Return the codes of the reasons."""
    return [reason.code for reason in decision.reasons]


def groups_of(decision: SubsetDecision) -> Matrix:
    """Return the target by group and location, as slices would hold it."""
    groups: Matrix = {}
    for location, row in sorted(decision.target.items()):
        for group, count in row.items():
            groups.setdefault(group, {})[location] = count
    return groups


def spread(total: int) -> Counts:
    """Return so many endpoints over three zones, as evenly as may be."""
    return {zone: (total + 2 - place) // 3 for place, zone in enumerate("abc")}


@pytest.mark.parametrize(
    ("value", "want_approach"),
    [
        pytest.param("Auto", Approach.PREFER, id="Auto"),
        pytest.param("auto", Approach.PREFER, id="auto in lower case"),
        pytest.param("Prefer", Approach.PREFER, id="Prefer"),
        pytest.param("Require", Approach.REQUIRE, id="Require"),
        pytest.param("RequireZone", Approach.REQUIRE, id="RequireZone"),
        pytest.param("Disabled", Approach.RANDOM, id="Disabled"),
        pytest.param("Random", Approach.RANDOM, id="Random"),
        pytest.param(None, Approach.DEFAULT, id="absent"),
        pytest.param("", Approach.DEFAULT, id="empty"),
        pytest.param("AUTO", Approach.DEFAULT, id="AUTO is no value"),
        pytest.param("prefer", Approach.DEFAULT, id="prefer is no value"),
        pytest.param(" Auto", Approach.DEFAULT, id="blanks do not belong"),
    ],
)
def test_annotation_values(value: str | None, want_approach: Approach) -> None:
    """The annotation names an approach; all else leaves it to the controller."""
    assert parse_annotation(value) is want_approach


@pytest.mark.parametrize(
    ("shares", "sizes", "want_overloads"),
    [
        pytest.param({}, {}, {}, id="nothing"),
        pytest.param(
            {"a": 0.5, "b": 0.5}, {"a": 2, "b": 6}, {"a": 1.0, "b": 4 / 6 - 1}, id="uneven"
        ),
        pytest.param(
            {"a": 0.5, "b": 0.5}, {"a": 4}, {"a": -0.5, "b": math.inf}, id="an empty group"
        ),
        pytest.param(
            {"a": 1.0, "b": 0.0}, {"a": 4}, {"a": 0.0, "b": 0.0}, id="empty without traffic"
        ),
        pytest.param({"a": 1.0}, {"a": 2, "b": 2}, {"a": 1.0, "b": -1.0}, id="no traffic to b"),
    ],
)
def test_overloads(
    shares: dict[str, float], sizes: Counts, want_overloads: dict[str, float]
) -> None:
    """Overload is expected by actual endpoints less one, infinite for an empty group."""
    assert overloads(shares, sizes) == want_overloads


@pytest.mark.parametrize(
    ("nodes", "located", "want_groups"),
    [
        pytest.param(
            {"a": 1, "b": 2, "c": 7},
            {"a": 5, "b": 20, "c": 20},
            {"a": {"a": 5}, "b": {"b": 9}, "c": {"b": 11, "c": 20}},
            id="few nodes",
        ),
        pytest.param(
            {"a": 1, "b": 2, "c": 2},
            {"a": 3, "b": 2, "c": 2},
            {"a": {"a": 3}, "b": {"b": 2}, "c": {"c": 2}},
            id="few nodes, nothing to move",
        ),
        pytest.param(
            {"a": 1000, "b": 2000, "c": 7000},
            {"a": 5, "b": 20, "c": 20},
            {"a": {"a": 5}, "b": {"b": 9}, "c": {"b": 11, "c": 20}},
            id="many nodes in the same proportion",
        ),
    ],
)
def test_t1_small_and_large_numbers_of_nodes(
    nodes: Counts, located: Counts, want_groups: Matrix
) -> None:
    """Only the proportion of nodes counts, not their number."""
    got = decide(nodes, located, options=FROM_THE_FIRST)

    assert got.mode is SubsetMode.SUBSETS
    assert groups_of(got) == want_groups


@pytest.mark.parametrize(
    ("nodes", "located", "want_groups"),
    [
        pytest.param(
            {"a": 16, "b": 8, "c": 1},
            {"a": 5, "b": 1},
            {"a": {"a": 3}, "b": {"a": 1, "b": 1}, "c": {"a": 1}},
            id="most endpoints where most nodes are",
        ),
        pytest.param(
            EVEN,
            {"a": 5, "b": 3, "c": 2},
            {"a": {"a": 4}, "b": {"b": 3}, "c": {"a": 1, "c": 2}},
            id="slightly skewed",
        ),
        pytest.param(
            EVEN,
            {"a": 4, "b": 4, "c": 4},
            {"a": {"a": 4}, "b": {"b": 4}, "c": {"c": 4}},
            id="even",
        ),
    ],
)
def test_t2_random_and_skewed_endpoints(
    nodes: Counts, located: Counts, want_groups: Matrix
) -> None:
    """Endpoints stay in their zone as far as the overload bound allows."""
    got = decide(nodes, located, options=FROM_THE_FIRST)

    assert got.rebalanced
    assert groups_of(got) == want_groups


@pytest.mark.parametrize(
    ("nodes", "located", "want_groups"),
    [
        pytest.param(
            EVEN,
            {"a": 0, "b": 6, "c": 7},
            {"a": {"b": 1, "c": 2}, "b": {"b": 5}, "c": {"c": 5}},
            id="one zone without endpoints",
        ),
        pytest.param(
            {"a": 30, "b": 30, "c": 30},
            {"a": 100},
            {"a": {"a": 34}, "b": {"a": 33}, "c": {"a": 33}},
            id="two zones without endpoints",
        ),
    ],
)
def test_t3_zones_without_endpoints(nodes: Counts, located: Counts, want_groups: Matrix) -> None:
    """A zone that sends traffic gets endpoints of others."""
    got = decide(nodes, located)

    assert groups_of(got) == want_groups


@pytest.mark.parametrize(
    ("default", "want_mode", "want_codes"),
    [
        pytest.param(
            Approach.RANDOM, SubsetMode.RANDOM, [ReasonCode.SUBSETS_NOT_ASKED], id="Random"
        ),
        pytest.param(
            Approach.PREFER, SubsetMode.SUBSETS, [ReasonCode.SUBSETS_BALANCED], id="Prefer"
        ),
        pytest.param(
            Approach.REQUIRE, SubsetMode.SUBSETS, [ReasonCode.SUBSETS_BY_ZONE], id="Require"
        ),
        pytest.param(
            Approach.DEFAULT,
            SubsetMode.RANDOM,
            [ReasonCode.SUBSETS_NOT_ASKED],
            id="a default that refers to itself",
        ),
    ],
)
def test_t4_invalid_annotation_uses_the_controller_default(
    default: Approach, want_mode: SubsetMode, want_codes: list[ReasonCode]
) -> None:
    """A value that nobody knows gives what the controller does by default."""
    approach = parse_annotation("sometimes")

    got = decide(EVEN, spread(12), approach=approach, options=SubsetOptions(default=default))

    assert got.mode is want_mode
    assert codes(got) == want_codes


@pytest.mark.parametrize("start", [0, -1, math.nan, math.inf, "many", "", "-2"])
def test_t5_invalid_starting_threshold_is_the_default(start: float | str) -> None:
    """A threshold that is no positive number is replaced by three a zone, and told."""
    options = SubsetOptions(start_per_zone=start)

    below = decide(EVEN, spread(11), options=options)
    at = decide(EVEN, spread(12), options=options)

    assert below.mode is SubsetMode.RANDOM
    assert at.mode is SubsetMode.SUBSETS
    assert at.reasons[0] == Reason(
        ReasonCode.START_THRESHOLD_INVALID,
        f"starting threshold {start!r} is no positive number, the default is used",
    )
    assert codes(at)[1:] == [ReasonCode.SUBSETS_BALANCED]


@pytest.mark.parametrize("start", [1, "1", 1.0])
def test_custom_starting_threshold_is_followed(start: float | str) -> None:
    """One endpoint a zone and padding 3 begin at six endpoints in three zones."""
    options = SubsetOptions(start_per_zone=start)

    assert decide(EVEN, spread(5), options=options).mode is SubsetMode.RANDOM
    assert decide(EVEN, spread(6), options=options).mode is SubsetMode.SUBSETS


@pytest.mark.parametrize("threshold", [0.0, -0.5, math.nan])
def test_invalid_overload_threshold_is_the_default(threshold: float) -> None:
    """An overload threshold that nothing can meet is replaced by one half, and told."""
    got = decide(EVEN, spread(12), options=SubsetOptions(overload_threshold=threshold))

    assert got.mode is SubsetMode.SUBSETS
    assert got.reasons[0] == Reason(
        ReasonCode.OVERLOAD_THRESHOLD_INVALID,
        f"overload threshold {threshold!r} is no positive number, the default is used",
    )


@pytest.mark.parametrize("ready", [1, 3, 8, 9, 11])
def test_t6_below_start_and_padding_prefer_is_not_used(ready: int) -> None:
    """Fewer than twelve endpoints in three zones stay undivided."""
    got = decide(EVEN, spread(ready))

    assert (got.mode, got.target, got.overload) == (SubsetMode.RANDOM, {}, {})
    assert got.reasons[0].fix == "run at least 12 ready pods"


@pytest.mark.parametrize("ready", [12, 13, 300])
def test_t7_above_start_and_padding_prefer_works(ready: int) -> None:
    """Twelve endpoints or more are divided, none of them lost."""
    got = decide(EVEN, spread(ready))

    assert got.mode is SubsetMode.SUBSETS
    assert got.rebalanced
    assert groups_of(got) == {zone: {zone: count} for zone, count in spread(ready).items()}


@pytest.mark.parametrize(
    ("ready", "want_code"),
    [
        pytest.param(8, ReasonCode.BELOW_START, id="below the start"),
        pytest.param(9, ReasonCode.PADDING_HOLDS_RANDOM, id="at the start"),
        pytest.param(11, ReasonCode.PADDING_HOLDS_RANDOM, id="just below start and padding"),
    ],
)
def test_t8_growing_into_the_padding_stays_random(ready: int, want_code: ReasonCode) -> None:
    """Between the start and the padding above it an undivided Service stays undivided."""
    got = decide(EVEN, spread(ready), active=False)

    assert got.mode is SubsetMode.RANDOM
    assert got.reasons == (
        Reason(
            want_code,
            f"subsetting begins at 12 ready endpoints; there are {ready}",
            fix="run at least 12 ready pods",
        ),
    )


def test_t9_growing_above_the_padding_divides() -> None:
    """With the twelfth endpoint a Service goes from Random to groups."""
    modes = [decide(EVEN, spread(ready)).mode for ready in (10, 11, 12)]

    assert modes == [SubsetMode.RANDOM, SubsetMode.RANDOM, SubsetMode.SUBSETS]


@pytest.mark.parametrize("ready", [11, 9, 8, 7])
def test_t10_shrinking_into_the_padding_stays_divided(ready: int) -> None:
    """Down to seven endpoints a divided Service stays divided, without moving any."""
    groups = {zone: {zone: count} for zone, count in spread(ready).items()}

    got = decide(EVEN, spread(ready), active=True, placed=groups)

    assert got.mode is SubsetMode.SUBSETS
    assert groups_of(got) == groups
    assert got.reasons == (
        Reason(
            ReasonCode.PADDING_HOLDS_SUBSETS,
            f"subsetting stays on down to 6 ready endpoints; there are {ready}",
        ),
        Reason(
            ReasonCode.SUBSETS_KEPT,
            "the groups stay as they are, every zone is below 50% overload",
        ),
    )


@pytest.mark.parametrize("ready", [6, 5, 1])
def test_t11_shrinking_below_the_padding_ends_subsetting(ready: int) -> None:
    """At six endpoints a divided Service becomes undivided."""
    groups = {zone: {zone: count} for zone, count in spread(ready).items()}

    got = decide(EVEN, spread(ready), active=True, placed=groups)

    assert (got.mode, got.target) == (SubsetMode.RANDOM, {})
    assert codes(got) == [ReasonCode.BELOW_START]


@pytest.mark.parametrize("first", ["Prefer", "Require", "Random"])
@pytest.mark.parametrize(
    ("second", "want_groups"),
    [
        pytest.param(
            "Prefer",
            {"a": {"b": 2, "c": 2}, "b": {"b": 4}, "c": {"c": 4}},
            id="to Prefer",
        ),
        pytest.param("Require", {"b": {"b": 6}, "c": {"c": 6}}, id="to Require"),
        pytest.param("Random", {}, id="to Random"),
    ],
)
def test_t12_changing_the_annotation_is_followed(
    first: str, second: str, want_groups: Matrix
) -> None:
    """The groups follow the new value, whatever was there before."""
    located = {"b": 6, "c": 6}
    before = decide(EVEN, located, approach=parse_annotation(first))

    after = decide(
        EVEN,
        located,
        approach=parse_annotation(second),
        placed=groups_of(before),
        active=before.mode is SubsetMode.SUBSETS,
    )

    assert groups_of(after) == want_groups


@pytest.mark.parametrize("approach", [Approach.PREFER, Approach.REQUIRE])
def test_t13_there_and_back_again(approach: Approach) -> None:
    """A Service goes from Random to groups and back with its annotation."""
    located = spread(12)
    start = decide(EVEN, located, approach=Approach.RANDOM)
    divided = decide(EVEN, located, approach=approach)
    back = decide(EVEN, located, approach=Approach.RANDOM, placed=groups_of(divided), active=True)

    assert [one.mode for one in (start, divided, back)] == [
        SubsetMode.RANDOM,
        SubsetMode.SUBSETS,
        SubsetMode.RANDOM,
    ]
    assert back == start
    assert back.reasons == (Reason(ReasonCode.SUBSETS_NOT_ASKED, "subsetting is not asked for"),)


@pytest.mark.parametrize("active", [False, True])
def test_without_padding_the_start_does_not_flap(active: bool) -> None:
    """Exactly at the start the answer is the same from both sides when there is no padding."""
    got = decide(EVEN, spread(9), active=active, options=SubsetOptions(padding=0))

    assert got.mode is SubsetMode.SUBSETS


@pytest.mark.parametrize(
    ("nodes", "located"),
    [
        pytest.param({"a": 30, "b": 30, "c": 30}, {"a": 1}, id="one endpoint"),
        pytest.param(EVEN, {"a": 3, "b": 1, "c": 1}, id="a zone would be at 67 %"),
    ],
)
@pytest.mark.parametrize("active", [False, True])
def test_unreachable_bound_downgrades(nodes: Counts, located: Counts, active: bool) -> None:
    """Where the overload bound cannot be kept all zones use all endpoints."""
    got = decide(nodes, located, active=active, options=FROM_THE_FIRST)

    ready = sum(located.values())
    assert got == SubsetDecision(
        SubsetMode.RANDOM,
        {},
        False,
        {},
        (
            Reason(
                ReasonCode.DOWNGRADED,
                f"{ready} endpoints on 3 zones cannot keep every zone below 50% overload, "
                "so all zones use all endpoints",
                fix="run more pods",
            ),
        ),
    )


@pytest.mark.parametrize("threshold", [0.5, math.inf])
def test_share_too_small_for_doubles_never_empties_a_zone(threshold: float) -> None:
    """A zone with next to no traffic keeps an endpoint or the Service stays undivided.

    That holds however much overload is allowed.
    """
    got = decide_subsets(
        approach=Approach.PREFER,
        shares={"a": 1.0, "b": 1e-18},
        located={"a": 10, "b": 2},
        placed={},
        active=False,
        options=SubsetOptions(overload_threshold=threshold),
    )

    assert got.mode is SubsetMode.RANDOM
    assert codes(got) == [ReasonCode.DOWNGRADED]


@pytest.mark.parametrize(
    ("placed", "located", "want_groups"),
    [
        pytest.param(
            {"a": {"a": 4}, "b": {"b": 4}, "c": {"c": 4}},
            {"a": 6, "b": 4, "c": 4},
            {"a": {"a": 6}, "b": {"b": 4}, "c": {"c": 4}},
            id="new endpoints join their own zone",
        ),
        pytest.param(
            {"a": {"a": 3}, "b": {"b": 4}, "c": {"c": 4}},
            {"a": 3, "b": 4, "c": 4},
            {"a": {"a": 3}, "b": {"b": 4}, "c": {"c": 4}},
            id="an endpoint that is gone is just left out",
        ),
        pytest.param(
            {"a": {"b": 1, "c": 2}, "b": {"b": 5}, "c": {"c": 5}},
            {"a": 2, "b": 6, "c": 7},
            {"a": {"a": 2, "b": 1, "c": 2}, "b": {"b": 5}, "c": {"c": 5}},
            id="borrowed endpoints are not sent home",
        ),
        pytest.param(
            {"a": {"b": 4}, "b": {"a": 4}, "c": {"c": 4}},
            {"a": 4, "b": 4, "c": 4},
            {"a": {"b": 4}, "b": {"a": 4}, "c": {"c": 4}},
            id="nor are zones that had swapped all theirs",
        ),
        pytest.param(
            {"a": {"a": 4, "b": 1}, "b": {"b": 5}, "c": {"c": 4}},
            {"a": 4, "b": 4, "c": 4},
            {"a": {"a": 4}, "b": {"b": 4}, "c": {"c": 4}},
            id="should gone ones be counted still, the borrowed are taken for them",
        ),
        pytest.param(
            {"a": {"a": 4}, "b": {"b": 4}, "c": {"c": 4}, "d": {"a": 1}},
            {"a": 5, "b": 4, "c": 4},
            {"a": {"a": 5}, "b": {"b": 4}, "c": {"c": 4}},
            id="the group of a zone without nodes is given up",
        ),
    ],
)
def test_lazy_rebalance_keeps_groups(placed: Matrix, located: Counts, want_groups: Matrix) -> None:
    """As long as no zone reaches the threshold only the plain updates are made."""
    got = decide(EVEN, located, active=True, placed=placed)

    assert groups_of(got) == want_groups
    assert not got.rebalanced
    assert codes(got)[-1] is ReasonCode.SUBSETS_KEPT


@pytest.mark.parametrize(
    ("nodes", "placed", "located", "want_groups"),
    [
        pytest.param(
            EVEN,
            {"a": {"a": 3}, "b": {"b": 5}, "c": {"c": 5}},
            {"a": 3, "b": 5, "c": 6},
            {"a": {"a": 3, "c": 1}, "b": {"b": 5}, "c": {"c": 5}},
            id="more endpoints elsewhere bring a zone above one half",
        ),
        pytest.param(
            EVEN,
            {"b": {"b": 6}, "c": {"c": 6}},
            {"b": 6, "c": 6},
            {"a": {"b": 2, "c": 2}, "b": {"b": 4}, "c": {"c": 4}},
            id="a zone has lost all its endpoints",
        ),
        pytest.param(
            {"a": 4, "b": 1, "c": 1},
            {"a": {"a": 4}, "b": {"b": 4}, "c": {"c": 4}},
            {"a": 4, "b": 4, "c": 4},
            {"a": {"a": 4, "b": 2, "c": 2}, "b": {"b": 2}, "c": {"c": 2}},
            id="the nodes have shifted",
        ),
    ],
)
def test_full_rebalance_when_a_zone_reaches_the_threshold(
    nodes: Counts, placed: Matrix, located: Counts, want_groups: Matrix
) -> None:
    """Once a plain update would reach the threshold the groups are made anew."""
    got = decide(nodes, located, active=True, placed=placed)

    assert groups_of(got) == want_groups
    assert got.rebalanced


def test_exactly_one_half_is_too_much_for_lazy_updates() -> None:
    """A zone at exactly the threshold is rebalanced, one just below is not."""
    placed = {"a": {"a": 4}, "b": {"b": 8}}

    at_half = decide({"a": 1, "b": 1}, {"a": 4, "b": 8}, active=True, placed=placed)
    below = decide({"a": 1, "b": 1}, {"a": 4, "b": 7}, active=True, placed={"b": {"b": 7}})

    assert (at_half.rebalanced, at_half.overload) == (True, {"a": 0.0, "b": 0.0})
    assert (below.rebalanced, below.overload) == (False, {"a": 0.375, "b": 5.5 / 7 - 1})


@pytest.mark.parametrize(
    ("nodes", "located", "want_groups"),
    [
        pytest.param(
            EVEN,
            {"a": 4, "b": 4, "c": 2, "": 2},
            {"a": {"a": 4}, "b": {"b": 4}, "c": {"": 2, "c": 2}},
            id="endpoints without a zone go where most is lacking",
        ),
        pytest.param(
            EVEN,
            {"": 12},
            {"a": {"": 4}, "b": {"": 4}, "c": {"": 4}},
            id="no endpoint has a zone",
        ),
        pytest.param(
            EVEN,
            {"a": 4, "b": 4, "d": 4},
            {"a": {"a": 4}, "b": {"b": 4}, "c": {"d": 4}},
            id="endpoints in a zone without nodes serve others",
        ),
        pytest.param(
            {"a": 18, "b": 1, "c": 1},
            {"a": 3, "": 3},
            {"a": {"": 1, "a": 3}, "b": {"": 1}, "c": {"": 1}},
            id="strangers are given away before the zone's own",
        ),
    ],
)
def test_strays_are_placed_by_need(nodes: Counts, located: Counts, want_groups: Matrix) -> None:
    """Endpoints that are in no zone with nodes serve the zones with the highest need."""
    got = decide(nodes, located, options=FROM_THE_FIRST)

    assert groups_of(got) == want_groups
    assert ReasonCode.PLACED_BY_NEED in codes(got)


def test_strays_stay_where_they_were_placed() -> None:
    """An endpoint without zone that serves some zone goes on serving it."""
    placed = {"a": {"a": 3, "": 2}, "b": {"b": 4}, "c": {"c": 4}}

    got = decide(EVEN, {"a": 3, "b": 4, "c": 4, "": 3}, active=True, placed=placed)

    assert groups_of(got) == {"a": {"": 2, "a": 3}, "b": {"": 1, "b": 4}, "c": {"c": 4}}
    assert not got.rebalanced


def test_strays_are_explained() -> None:
    """Reasons tell strays without a zone from those in a zone without nodes."""
    got = decide(EVEN, {"a": 4, "b": 4, "": 2, "x": 3})

    assert [one.message for one in got.reasons if one.code is ReasonCode.PLACED_BY_NEED] == [
        "endpoints without a zone (2) serve the zones that lack most",
        "endpoints in zone x, which has no nodes (3) serve the zones that lack most",
    ]


def test_balanced_groups_are_explained() -> None:
    """The reason tells the size of each group and how many endpoints cross zones."""
    got = decide(EVEN, {"b": 6, "c": 6})

    assert got.reasons == (
        Reason(
            ReasonCode.SUBSETS_BALANCED,
            "the groups are balanced: a 4, b 4, c 4 (4 from another zone)",
        ),
    )
    assert got.overload == {"a": 0.0, "b": 0.0, "c": 0.0}


@pytest.mark.parametrize(
    ("located", "want_groups", "want_overload"),
    [
        pytest.param(
            {"a": 1, "b": 9, "c": 2},
            {"a": {"a": 1}, "b": {"b": 9}, "c": {"c": 2}},
            {"a": 3.0, "b": 4 / 9 - 1, "c": 1.0},
            id="whatever the load",
        ),
        pytest.param(
            {"b": 2, "c": 2},
            {"b": {"b": 2}, "c": {"c": 2}},
            {"a": math.inf, "b": 4 / 3 / 2 - 1, "c": 4 / 3 / 2 - 1},
            id="a zone without endpoints has no group",
        ),
        pytest.param(
            {"a": 1, "d": 3},
            {"a": {"a": 1}, "d": {"d": 3}},
            {"a": 4 / 3 - 1, "b": math.inf, "c": math.inf, "d": -1.0},
            id="a zone without nodes keeps its endpoints",
        ),
        pytest.param(
            {"a": 1, "b": 1, "": 1},
            {"a": {"a": 1}, "b": {"b": 1}, "c": {"": 1}},
            {"a": 0.0, "b": 0.0, "c": 0.0},
            id="an endpoint without zone goes where most is lacking",
        ),
        pytest.param(
            {"a": 1, "b": 1, "c": 1, "": 3},
            {"a": {"": 1, "a": 1}, "b": {"": 1, "b": 1}, "c": {"": 1, "c": 1}},
            {"a": 0.0, "b": 0.0, "c": 0.0},
            id="each endpoint without zone lowers the need for the next",
        ),
    ],
)
def test_require_keeps_everyone_home(
    located: Counts, want_groups: Matrix, want_overload: dict[str, float]
) -> None:
    """Require puts each endpoint into its own zone's group, however few there are."""
    got = decide(EVEN, located, approach=Approach.REQUIRE)

    assert groups_of(got) == want_groups
    assert got.overload == want_overload
    assert not got.rebalanced
    assert codes(got)[0] is ReasonCode.SUBSETS_BY_ZONE


def test_require_sends_borrowed_endpoints_home() -> None:
    """Groups that Prefer had balanced are sorted by zone again, strays excepted."""
    placed = {"a": {"b": 1, "c": 2}, "b": {"b": 5, "": 1}, "c": {"c": 5}}

    got = decide(
        EVEN, {"b": 6, "c": 7, "": 1}, approach=Approach.REQUIRE, active=True, placed=placed
    )

    assert groups_of(got) == {"b": {"": 1, "b": 6}, "c": {"c": 7}}


def test_require_works_without_known_shares() -> None:
    """Zones of endpoints are enough for Require; strays then join the smallest group."""
    got = decide_subsets(
        approach=Approach.REQUIRE,
        shares={},
        located={"a": 2, "b": 1, "": 1},
        placed={},
        active=False,
    )

    assert groups_of(got) == {"a": {"a": 2}, "b": {"": 1, "b": 1}}


@pytest.mark.parametrize("approach", [Approach.PREFER, Approach.REQUIRE])
@pytest.mark.parametrize(
    ("shares", "located", "want_code"),
    [
        pytest.param({}, {"": 20}, ReasonCode.NO_ZONES, id="no zones"),
        pytest.param({"": 1.0}, {"": 20}, ReasonCode.NO_ZONES, id="only an empty name"),
        pytest.param({"a": 1.0}, {"a": 20}, ReasonCode.NODES_IN_ONE_ZONE, id="one zone"),
        pytest.param(
            {"a": 1.0, "b": 0.0}, {"a": 20}, ReasonCode.NODES_IN_ONE_ZONE, id="no traffic in b"
        ),
        pytest.param({"a": 0.5, "b": 0.5}, {}, ReasonCode.NO_READY_ENDPOINTS, id="no endpoints"),
        pytest.param(
            {"a": 0.5, "b": 0.5}, {"a": 0}, ReasonCode.NO_READY_ENDPOINTS, id="zero endpoints"
        ),
    ],
)
def test_nothing_to_divide_is_random(
    approach: Approach, shares: dict[str, float], located: Counts, want_code: ReasonCode
) -> None:
    """Fewer than two zones or no endpoint at all leave the Service undivided."""
    got = decide_subsets(approach=approach, shares=shares, located=located, placed={}, active=True)

    assert (got.mode, got.target) == (SubsetMode.RANDOM, {})
    assert codes(got) == [want_code]


ZONES = ("a", "b", "c", "d", "e")


@st.composite
def regions(draw: st.DrawFn) -> tuple[Counts, Counts, Matrix]:
    """Draw nodes by zone, endpoints by location (strays among them) and groups as written."""
    zones = ZONES[: draw(st.integers(2, 5))]
    nodes = {zone: draw(st.integers(1, 20)) for zone in zones}
    size = st.one_of(st.just(0), st.integers(0, 4), st.integers(0, 60))
    located = {place: draw(size) for place in (*zones, "", "stray")}
    placed: Matrix = {}
    for location, count in located.items():
        left = count
        for group in draw(st.lists(st.sampled_from([*zones, "gone"]), max_size=3, unique=True)):
            taken = draw(st.integers(0, left))
            placed.setdefault(group, {})[location] = taken
            left -= taken
    return nodes, located, placed


@settings(deadline=None, max_examples=200)
@given(region=regions(), active=st.booleans(), threshold=st.sampled_from([0.5, 0.2, 1.0]))
def test_prefer_keeps_its_promises(
    region: tuple[Counts, Counts, Matrix], active: bool, threshold: float
) -> None:
    """Every endpoint is in one group, no zone goes without, and none reaches the threshold."""
    nodes, located, placed = region
    options = SubsetOptions(overload_threshold=threshold, start_per_zone=0.001, padding=0)

    got = decide(nodes, located, placed=placed, active=active, options=options)

    total = sum(located.values())
    if got.mode is SubsetMode.RANDOM:
        assert got.target == {}
        # From this size on the bound can always be kept.
        assert total < len(nodes) * (1 + threshold) / threshold
        return
    assert {place: sum(row.values()) for place, row in got.target.items()} == {
        place: count for place, count in located.items() if count
    }
    sizes = {group: sum(row.values()) for group, row in groups_of(got).items()}
    assert set(sizes) == set(nodes)
    assert all(count > 0 for row in got.target.values() for count in row.values())
    assert all(
        total * count / sum(nodes.values()) / sizes[zone] - 1 < threshold + 1e-9
        for zone, count in nodes.items()
    )
    assert max(got.overload.values()) < threshold
    if not got.rebalanced:
        assert active
        assert all(
            groups_of(got)[group].get(place, 0) >= count
            for group, row in placed.items()
            if group in nodes
            for place, count in row.items()
        )


@settings(deadline=None, max_examples=100)
@given(region=regions(), active=st.booleans())
def test_require_keeps_its_promises(region: tuple[Counts, Counts, Matrix], active: bool) -> None:
    """Every endpoint with a zone is in its zone's group, all others in exactly one."""
    nodes, located, placed = region

    got = decide(nodes, located, approach=Approach.REQUIRE, placed=placed, active=active)

    want_home = {place: {place: count} for place, count in located.items() if count and place}
    assert {place: row for place, row in got.target.items() if place} == want_home
    assert sum(got.target.get("", {}).values()) == located[""]


@settings(deadline=None, max_examples=100)
@given(
    nodes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
    steps=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12)), max_size=8
    ),
)
def test_rolling_updates_settle(
    nodes: tuple[int, int, int], steps: list[tuple[int, int, int]]
) -> None:
    """Through any series of updates bounds hold, and asking again changes nothing."""
    by_zone = dict(zip("abc", nodes, strict=True))
    groups: Matrix = {}
    active = False
    for counts in steps:
        located = dict(zip("abc", counts, strict=True))
        got = decide(by_zone, located, placed=groups, active=active)
        total = sum(counts)
        if got.mode is SubsetMode.SUBSETS:
            assert total >= 12 or (active and total > 6)
            assert max(got.overload.values()) < 0.5
        elif ReasonCode.DOWNGRADED not in codes(got):
            assert total <= 6 or (total < 12 and not active)
        groups = groups_of(got)
        active = got.mode is SubsetMode.SUBSETS
        again = decide(by_zone, located, placed=groups, active=active)
        assert (again.mode, again.target) == (got.mode, got.target)


SET = SubsetOptions(start_per_zone=4.0, padding=2, overload_threshold=0.25)


def test_a_service_sets_its_own_limits() -> None:
    """Each annotation replaces one limit of the controller, and none needs the others."""
    assert read_limits({}, SET) == (SET, ())
    limits = {
        STARTING_THRESHOLD_ANNOTATION: "1.5",
        PADDING_ANNOTATION: "0",
        OVERLOAD_THRESHOLD_ANNOTATION: "1",
    }
    want = SubsetOptions(start_per_zone=1.5, padding=0, overload_threshold=1.0)
    assert read_limits(limits, SET) == (want, ())
    (options, reasons) = read_limits({PADDING_ANNOTATION: "7"}, SET)
    assert (options.padding, options.start_per_zone, reasons) == (7, 4.0, ())


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", "nan", "inf", "1e9", "0x3", "3 pods", "1_0", "\u0663", " 3", "1e999", "."],
)
@pytest.mark.parametrize(
    ("key", "code", "held"),
    [
        pytest.param(
            STARTING_THRESHOLD_ANNOTATION, ReasonCode.START_THRESHOLD_INVALID, "4", id="start"
        ),
        pytest.param(PADDING_ANNOTATION, ReasonCode.PADDING_INVALID, "2", id="padding"),
        pytest.param(
            OVERLOAD_THRESHOLD_ANNOTATION,
            ReasonCode.OVERLOAD_THRESHOLD_INVALID,
            "0.25",
            id="overload",
        ),
    ],
)
def test_a_limit_that_is_none_leaves_the_default(
    key: str, code: ReasonCode, held: str, text: str
) -> None:
    """T5: the controller's limit holds, and a reason names the annotation and its value."""
    options, (reason,) = read_limits({key: text}, SET)
    assert options == SET
    assert reason.code is code
    assert reason.message.startswith(f"metadata.annotations[{key}]: {text!r} is not ")
    assert reason.message.endswith(f"so {held} holds")
    assert key in reason.fix


@pytest.mark.parametrize("key", [STARTING_THRESHOLD_ANNOTATION, OVERLOAD_THRESHOLD_ANNOTATION])
def test_nothing_is_no_threshold(key: str) -> None:
    """Zero endpoints would divide nothing, and no overload can never be kept; padding may be 0."""
    assert read_limits({key: "0"}, SET)[0] == SET
    assert len(read_limits({key: "0"}, SET)[1]) == 1


def test_half_an_endpoint_is_no_padding() -> None:
    """Padding counts endpoints."""
    assert read_limits({PADDING_ANNOTATION: "1.5"}, SET)[0] == SET
