"""What mechanisms cost over time."""

from __future__ import annotations

import pytest

from keepclose.routing.heuristics import Refusal, ZoneDemand
from keepclose.routing.reasons import ReasonCode
from keepclose.simulate.churn import (
    Churn,
    StepChurn,
    compare_churn,
    evaluate_traffic,
    measure_churn,
)
from keepclose.simulate.mechanisms import (
    MECHANISMS,
    SCENARIOS,
    EventKind,
    LocalHints,
    Scenario,
    ScenarioEvent,
    ScenarioStep,
)
from support.builders import node, pod

NODES = (node("n1", "a"), node("n2", "b"), node("n3", "c"))


def step(*pods: str, gone: str = "", kind: EventKind = EventKind.SCALE_UP) -> ScenarioStep:
    """Return a step that adds pods such as 1a (number and zone) and removes others."""
    made = [(name, f"n{'abc'.index(name[-1]) + 1}") for name in pods]
    keys = tuple(pod(name).key for name in gone.split())
    return ScenarioStep(
        kind,
        NODES,
        tuple(pod(name, place, ip=f"10.0.0.{name[:-1]}") for name, place in made),
        keys,
    )


def measure(mechanism: str, *steps: ScenarioStep) -> tuple[StepChurn, ...]:
    """Return the costs of the steps with a mechanism."""
    return measure_churn(MECHANISMS[mechanism], steps, scenario="test").steps


def spread(count: int) -> list[str]:
    """Return so many pods, one zone after the other."""
    return [f"{number}{'abc'[number % 3]}" for number in range(1, count + 1)]


def test_own_zone_hints_never_change() -> None:
    """PreferSameZone hints an endpoint once; only slices that gain or lose one are written."""
    first, second, third = measure(
        "same-zone", step(*spread(6)), step("7a", gone="1b"), step("8a", "9a")
    )
    assert (first.rehinted, first.written, first.endpoints) == (0, 1, 6)
    assert [(s.rehinted, s.written, s.is_random) for s in (second, third)] == [(0, 1, False)] * 2
    assert second.in_zone == third.in_zone == pytest.approx(1)
    # Nine pods less one, of which two are in zone c: a third of the traffic on two of eight.
    assert third.overload == pytest.approx(8 / 3 / 1 - 1)


def test_without_a_mechanism_everything_is_random() -> None:
    """No hints means that nothing is ever re-hinted and every step counts as Random."""
    steps = measure("none", step(*spread(6)), step("7a"))
    assert [(one.rehinted, one.is_random, one.overload) for one in steps] == [(0, True, 0.0)] * 2
    assert steps[0].in_zone == pytest.approx(1 / 3)


def test_falling_back_to_random_rewrites_every_endpoint() -> None:
    """An endpoint that served a zone and now serves everybody counts as re-hinted."""
    divided, whole = measure("auto", step(*spread(6)), step(gone="1b 2c 3a 4b"))
    assert (divided.is_random, whole.is_random) == (False, True)
    assert (whole.rehinted, whole.endpoints) == (2, 2)


def test_slices_by_zone_are_more_slices() -> None:
    """Subsetting writes a slice for each zone, and one for each zone that changes."""
    first, second = measure("subsetting", step(*spread(12)), step("13a", "14b"))
    assert (first.written, second.written, second.is_random) == (3, 2, False)


def test_padding_keeps_the_state_around_the_start() -> None:
    """Between 6 and 12 endpoints padding leaves things alone; without it 9 is the limit."""
    steps = (step(*spread(12)), step(gone="1b 2c 3a 4b"), step("13b"))
    padded = measure("subsetting", *steps)
    bare = measure("subsetting-unpadded", *steps)
    assert [one.is_random for one in padded] == [False, False, False]
    assert [one.is_random for one in bare] == [False, True, False]
    assert sum(one.rehinted for one in padded) == 0
    assert [one.rehinted for one in bare] == [0, 8, 8]


def test_lazy_rebalance_leaves_what_is_good_enough() -> None:
    """Below the overload threshold nothing moves; the eager allocator moves for the mean."""
    steps = (step(*spread(24)), step(gone="2c 5c 8c"))
    lazy, eager = measure("local", *steps), measure("local-eager", *steps)
    assert (lazy[1].rehinted, lazy[1].written, eager[1].rehinted) == (0, 1, 2)
    assert lazy[1].in_zone == pytest.approx(1)
    assert eager[1].in_zone == pytest.approx((1 + 1 + 5 / 7) / 3)
    assert lazy[1].overload == pytest.approx(0.4)
    assert eager[1].overload == pytest.approx(0)


def test_memory_saves_changes() -> None:
    """Without the previous assignment more endpoints change zone, in every mechanism that lends."""
    for scenario in ("zone-outages", "mixed"):
        for name in ("balanced", "local-eager"):
            other = name.replace("-eager", "") + "-forgetful"
            calm, restless = compare_churn(
                (MECHANISMS[name], MECHANISMS[other]), SCENARIOS[scenario], 1
            )
            assert calm.rehinted < restless.rehinted
            assert calm.written <= restless.written


def test_the_same_seed_gives_the_same_answer() -> None:
    """A comparison is a function of mechanisms, scenario and seed."""
    scenario = Scenario(
        "short",
        "",
        {"a": 2, "b": 1},
        10,
        (ScenarioEvent(EventKind.SCALE_UP, 2), ScenarioEvent(EventKind.ROLLING_UPDATE)),
    )
    mechanisms = [MECHANISMS["auto"], MECHANISMS["balanced"]]
    once = compare_churn(mechanisms, scenario, 7)
    assert once == compare_churn(mechanisms, scenario, 7)
    assert [(one.mechanism, one.scenario, len(one.steps)) for one in once] == [
        ("auto", "short", 10),
        ("balanced", "short", 10),
    ]
    assert once[0].steps[0].event is EventKind.START


def test_sums_leave_the_start_out() -> None:
    """Making the first slices is no churn."""
    first = StepChurn(EventKind.START, 9, 9, 9, True, 0.0, 9.0)
    second = StepChurn(EventKind.SCALE_UP, 9, 2, 1, False, 0.5, 0.25)
    third = StepChurn(EventKind.SCALE_UP, 9, 3, 4, True, 1.0, 0.75)
    churn = Churn("m", "s", (first, second, third))
    assert (churn.rehinted, churn.written, churn.random_share) == (5, 5, 0.5)
    assert (churn.in_zone, churn.mean_overload, churn.worst_overload) == (0.75, 0.5, 0.75)
    nothing = Churn("m", "s", (first,))
    assert (nothing.rehinted, nothing.random_share, nothing.worst_overload) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("serving", "want"),
    [
        pytest.param([], (0.0, 0.0), id="no endpoints"),
        pytest.param(["aa", "ab"], (0.5, 0.0), id="one lent to the other zone"),
        pytest.param(["aa", "aa", "bb"], (1.0, 0.5), id="three for two equal zones"),
        pytest.param(["aa", "aa"], (0.5, 0.0), id="a zone without endpoints uses all"),
        pytest.param(["aa", "b-"], (0.5, 0.0), id="one without a hint switches the hints off"),
    ],
)
def test_what_proxies_make_of_it(serving: list[str], want: tuple[float, float]) -> None:
    """In-zone traffic and the load of the busiest endpoint, on two zones of equal traffic."""
    pods = {f"p{n}": (one[0], one[1].replace("-", "")) for n, one in enumerate(serving)}
    assert evaluate_traffic({"a": 0.5, "b": 0.5}, pods) == pytest.approx(want)


@pytest.mark.parametrize(
    ("padding", "lazy", "ready", "written", "want_allocated"),
    [
        pytest.param(3, True, 12, False, True, id="begins at start and padding"),
        pytest.param(3, True, 11, False, False, id="not before"),
        pytest.param(3, True, 7, True, True, id="goes on down to start less padding"),
        pytest.param(3, True, 6, True, False, id="and ends there"),
        pytest.param(3, False, 7, True, True, id="the eager one goes on as long"),
        pytest.param(3, False, 6, True, False, id="and ends there too"),
        pytest.param(0, False, 9, True, True, id="without padding start is the limit"),
        pytest.param(0, False, 8, True, False, id="and below it there is nothing"),
    ],
)
def test_when_local_hints_begin_and_end(
    *, padding: int, lazy: bool, ready: int, written: bool, want_allocated: bool
) -> None:
    """Padding counts by whether hints are written now; three zones start at nine endpoints."""
    counts = {zone: ready // 3 + (n < ready % 3) for n, zone in enumerate("abc")}
    answer = LocalHints(padding=padding, lazy=lazy).allocate(
        ZoneDemand(
            dict.fromkeys("abc", 1 / 3),
            counts,
            {zone: {zone: number} for zone, number in counts.items()} if written else {},
        )
    )
    if want_allocated:
        assert answer == {zone: {zone: number} for zone, number in counts.items()}
    else:
        assert isinstance(answer, Refusal)
        assert answer.reason.code in {ReasonCode.BELOW_START, ReasonCode.PADDING_HOLDS_RANDOM}
