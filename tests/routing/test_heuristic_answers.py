"""Answers of heuristics: what is not an allocation of the endpoints is a failure, never a hint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.routing.heuristic_answers import (
    MAX_MESSAGE,
    Allotment,
    FailureCause,
    HeuristicFailure,
    Refusal,
    ZoneDemand,
    ask_heuristic,
    check_answer,
)
from keepclose.routing.heuristics import apply_heuristic
from keepclose.routing.hints import SliceSet
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.traffic_shares import ZoneNodes
from support.builders import endpoint, endpoint_slice

DEMAND = ZoneDemand({"a": 0.5, "b": 0.25, "c": 0.25}, {"a": 2, "b": 1}, {"a": {"a": 2}})
GOOD = {"a": {"a": 1, "c": 1}, "b": {"b": 1}}
WHY = Reason(ReasonCode.OVERLOAD_BOUND, "too few")


class Index:
    """A whole number of another library, as numpy has them."""

    def __index__(self) -> int:
        return 2


class Unreadable(dict[str, Any]):
    """A mapping that breaks when it is read."""

    def items(self) -> Any:
        """Break."""
        raise RuntimeError("no items")


class Unprintable:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        """Break."""
        raise RuntimeError("no repr")


class Silent(Exception):  # noqa: N818 - a name of third parties
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(GOOD, id="a matrix"),
        pytest.param(Allotment(GOOD, (WHY,)), id="a matrix with reasons"),
        pytest.param({"a": {"a": Index()}, "b": {"b": 1, "c": 0}}, id="numbers of a library"),
        pytest.param({"a": {"b": 2}, "b": {"a": 1}}, id="all cross"),
        pytest.param({"a": {"a,b,c": 1, "b,c": 1}, "b": {"b": 1}}, id="several zones"),
    ],
)
def test_an_allocation_of_all_endpoints_is_taken(answer: object) -> None:
    """Each ready endpoint serves one zone of the question."""
    checked = check_answer(answer, DEMAND)
    assert isinstance(checked, Allotment)
    assert {zone: sum(row.values()) for zone, row in checked.matrix.items()} == DEMAND.endpoints
    assert all(type(number) is int for row in checked.matrix.values() for number in row.values())


def test_weights_are_taken_without_zeros() -> None:
    """Weights that name zones of the question are copied; a weight of 0 is left out."""
    checked = check_answer(Allotment(GOOD, (), {"c": {"a": Index(), "b": 0}}), DEMAND)  # type: ignore[dict-item]
    assert isinstance(checked, Allotment)
    assert checked.weights == {"c": {"a": 2}}


@pytest.mark.parametrize(
    ("weights", "want"),
    [
        pytest.param([("a", 2)], "expected a mapping of zones", id="a list"),
        pytest.param({"d": {"a": 1}}, "serve 'd', which is not a zone", id="an unknown client"),
        pytest.param({1: {"a": 1}}, "serve 1, which is not a zone", id="a number as a zone"),
        pytest.param({"a": 5}, "expected a mapping of zones", id="a row that is a number"),
        pytest.param({"a": {"c": 1}}, "endpoints in 'c', where none", id="no endpoint there"),
        pytest.param({"a": {"a": -1}}, "not a whole number of 0 to 10000", id="negative"),
        pytest.param({"a": {"a": 10001}}, "not a whole number of 0 to 10000", id="too large"),
        pytest.param({"a": {"a": 0.5}}, "not a whole number of 0 to 10000", id="a fraction"),
        pytest.param({"a": {"a": float("nan")}}, "not a whole number", id="not a number"),
        pytest.param({"a": {"a": True}}, "not a whole number of 0 to 10000", id="a truth value"),
        pytest.param({"a": {"a": 0, "b": 0}}, "for zone a are all 0", id="nothing but zeros"),
        pytest.param({"a": Unreadable()}, "cannot be read: RuntimeError", id="unreadable"),
    ],
)
def test_weights_that_no_proxy_could_follow_are_refused(weights: object, want: str) -> None:
    """Weights of unknown zones, or that are not small whole numbers, are a failure."""
    checked = check_answer(Allotment(GOOD, (), weights), DEMAND)  # type: ignore[arg-type]
    assert isinstance(checked, HeuristicFailure)
    assert checked.cause is FailureCause.INVALID_ANSWER
    assert want in checked.message


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(None, "allocate returned of the type NoneType", id="nothing"),
        pytest.param([("a", 2)], "allocate returned of the type list", id="a list"),
        pytest.param("zone-a", "allocate returned of the type str", id="a text"),
        pytest.param({}, "uses 0 of the 2 endpoints of zone a", id="nothing allocated"),
        pytest.param({"a": {"a": 2}}, "uses 0 of the 1 endpoints of zone b", id="a zone left out"),
        pytest.param({**GOOD, "a": {"a": 3}}, "uses 3 of the 2 endpoints", id="too many"),
        pytest.param({**GOOD, "a": {"a": 1}}, "uses 1 of the 2 endpoints", id="too few"),
        pytest.param({**GOOD, "x": {"a": 1}}, "endpoints in 'x', where none", id="unknown place"),
        pytest.param({7: {"a": 1}}, "endpoints in 7, where none", id="a number for a zone"),
        pytest.param({**GOOD, "b": {"x": 1}}, "serves 'x', which is not", id="unknown zone served"),
        pytest.param({**GOOD, "b": {"b,x": 1}}, "serves 'b,x', which is not", id="one unknown"),
        pytest.param({**GOOD, "b": {"c,b": 1}}, "'c,b', expected each zone once", id="no order"),
        pytest.param({**GOOD, "b": {"b,b": 1}}, "'b,b', expected each zone once", id="twice"),
        pytest.param({**GOOD, "b": {"b,": 1}}, "serves 'b,', which is not", id="an empty zone"),
        pytest.param({**GOOD, "b": {"": 1}}, "serves '', which is not", id="no zone"),
        pytest.param({**GOOD, "b": 1}, "for zone b is of the type int", id="a number for a row"),
        pytest.param({**GOOD, "b": {"b": -1, "a": 2}}, "lets -1 endpoints", id="negative"),
        pytest.param({**GOOD, "b": {"b": float("nan")}}, "lets nan endpoints", id="not a number"),
        pytest.param({**GOOD, "b": {"b": float("inf")}}, "lets inf endpoints", id="infinite"),
        pytest.param({**GOOD, "b": {"b": 1.0}}, "lets 1.0 endpoints", id="a float"),
        pytest.param({**GOOD, "b": {"b": True}}, "lets True endpoints", id="a truth value"),
        pytest.param({**GOOD, "b": {"b": "1"}}, "lets '1' endpoints", id="a digit"),
        pytest.param({**GOOD, "b": {"b": 10**80}}, "uses 1000", id="more than there are atoms"),
        pytest.param(Unreadable(), "cannot be read: RuntimeError: no items", id="unreadable"),
        pytest.param(Refusal("no"), "a reason of the answer is of the type str", id="no reason"),  # type: ignore[arg-type]
        pytest.param(Allotment(GOOD, WHY), "no tuple of at most 16", id="one reason"),  # type: ignore[arg-type]
        pytest.param(Allotment(GOOD, (WHY,) * 17), "no tuple of at most 16", id="17 reasons"),
        pytest.param(
            Refusal(Reason("Because", "so")),  # type: ignore[arg-type]
            "the unknown code 'Because'",
            id="a reason without a known code",
        ),
        pytest.param(
            Refusal(Reason(ReasonCode.OVERLOAD_BOUND, "x" * (MAX_MESSAGE + 1))),
            "no text of at most 500 characters",
            id="a reason that is too long",
        ),
    ],
)
def test_what_is_no_allocation_is_a_failure_that_names_the_flaw(answer: object, want: str) -> None:
    """Nothing that a third party returns is taken for granted."""
    checked = check_answer(answer, DEMAND)
    assert isinstance(checked, HeuristicFailure)
    assert checked.cause is FailureCause.INVALID_ANSWER
    assert want in checked.message
    assert len(checked.message) <= MAX_MESSAGE


NINE = {f"z{number}": 1 / 9 for number in range(9)}


@pytest.mark.parametrize(("zones", "is_taken"), [(8, True), (9, False)])
def test_a_group_has_no_more_zones_than_an_endpoint_has_hints(
    zones: int, *, is_taken: bool
) -> None:
    """An API server rejects a slice with an endpoint for 9 zones, which would fail every sync."""
    group = ",".join(list(NINE)[:zones])
    checked = check_answer({"z0": {group: 2}}, ZoneDemand(NINE, {"z0": 2}, {}))
    if is_taken:
        assert checked == Allotment({"z0": {group: 2}})
    else:
        want = f"the answer lets endpoints of zone z0 serve {group!r}, expected at most 8 zones"
        assert checked == HeuristicFailure(FailureCause.INVALID_ANSWER, want)


def test_an_answer_for_too_many_zones_leaves_slices_that_an_api_server_takes() -> None:
    """The endpoints have no hints then, and the reason names the heuristic."""

    class Wide:
        def allocate(self, demand: ZoneDemand) -> dict[str, dict[str, int]]:
            return {zone: {",".join(NINE): number} for zone, number in demand.endpoints.items()}

    start = endpoint_slice(endpoint("1", zone="z0"), endpoint("2", zone="z1"))
    result = apply_heuristic(SliceSet(unchanged=(start,)), Wide(), shares=NINE, name="x.dev/Wide")
    assert result.failure is not None
    assert result.failure.cause is FailureCause.INVALID_ANSWER
    assert result.reasons[0].message.startswith("x.dev/Wide: the answer lets endpoints of zone z0")
    assert all(each.hints is None for each in result.slices.all[0].endpoints)


@pytest.mark.parametrize(
    ("number", "want"),
    [
        pytest.param(10**5000, "a number of 16,610 bits", id="digits that Python does not print"),
        pytest.param(
            [0] * 10**6, "lets an object of the type list endpoints", id="a list of a million"
        ),
        pytest.param(Unprintable(), "lets an object of the type Unprintable", id="no repr"),
    ],
)
def test_what_cannot_be_shown_is_named_by_its_kind(number: object, want: str) -> None:
    """The failure still says where the flaw is."""
    for answer in ({**GOOD, "a": {"a": number}}, Allotment(GOOD, (), {"a": {"a": number}})):  # type: ignore[dict-item]
        checked = check_answer(answer, DEMAND)
        assert isinstance(checked, HeuristicFailure)
        assert checked.cause is FailureCause.INVALID_ANSWER
        assert "cannot be read" not in checked.message
    checked = check_answer({**GOOD, "a": {"a": number}}, DEMAND)
    assert isinstance(checked, HeuristicFailure)
    assert want in checked.message


@pytest.mark.parametrize(
    ("error", "want"),
    [
        pytest.param(KeyError("zone-x"), "allocate raised KeyError: 'zone-x'", id="a key"),
        pytest.param(ValueError("a\n  b"), "allocate raised ValueError: a b", id="several lines"),
        pytest.param(AssertionError(), "allocate raised AssertionError", id="no message"),
        pytest.param(Silent(), "allocate raised Silent", id="no text at all"),
        pytest.param(RecursionError("deep"), "allocate raised RecursionError: deep", id="too deep"),
    ],
)
def test_an_exception_is_a_failure(error: Exception, want: str) -> None:
    """A heuristic that raises says so in one line."""

    def allocate(_demand: ZoneDemand) -> object:
        raise error

    assert ask_heuristic(allocate, DEMAND) == HeuristicFailure(FailureCause.RAISED, want)


def test_a_heuristic_cannot_change_what_others_see() -> None:
    """The question is a copy: emptying it makes the answer wrong, and nothing else."""

    def allocate(demand: ZoneDemand) -> object:
        given: Any = demand
        nested = (given.written["a"], given.spread["a"])
        for mapping in (*nested, given.shares, given.endpoints, given.written, given.nodes):
            mapping.clear()
        given.spread.clear()
        return {}

    def ask() -> ZoneDemand:
        nodes = {"a": ZoneNodes(2, 8000)}
        return ZoneDemand({"a": 1.0}, {"a": 1}, {"a": {"a": 1}}, nodes=nodes, spread={"a": {1: 1}})

    demand = ask()
    assert isinstance(ask_heuristic(allocate, demand), HeuristicFailure)
    assert demand == ask()


def test_a_question_survives_the_way_to_another_process() -> None:
    """All its fields are the same after JSON, numbers of endpoints as keys included."""
    demand = ZoneDemand(
        {"a": 0.5, "b": 0.5},
        {"a": 4},
        {"a": {"a": 3, "a,b": 1}},
        {"b": {"a": 7}},
        "nodes",
        {"a": ZoneNodes(3, 12_000), "b": ZoneNodes(1, 0)},
        {"a": {1: 2, 2: 1}},
    )
    assert msgspec.json.decode(msgspec.json.encode(demand), type=ZoneDemand) == demand


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "x", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_whatever_a_heuristic_answers_the_endpoints_stay(answer: object) -> None:
    """Every endpoint is in the slices afterwards: all of them hinted to known zones, or none."""

    class Odd:
        def allocate(self, _demand: ZoneDemand) -> object:
            return answer

    start = endpoint_slice(
        *(endpoint(f"{n}", zone="ab"[n % 2], for_zones=("a",)) for n in range(3))
    )
    result = apply_heuristic(SliceSet(unchanged=(start,)), Odd(), shares={"a": 0.5, "b": 0.5})  # type: ignore[arg-type]
    (after,) = result.slices.all
    assert [e.addresses for e in after.endpoints] == [e.addresses for e in start.endpoints]
    hinted = [e.hints.for_zones[0].name if e.hints else "" for e in after.endpoints]
    assert set(hinted) == {""} or set(hinted) <= {"a", "b"}
    assert (result.failure is None) == ("" not in hinted)
