"""Weights by zones: nodes that follow them, and the mixture with nodes that follow hints."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import TRAFFIC_DISTRIBUTION_ANNOTATION, ZONE_WEIGHTS_ANNOTATION
from keepclose.model.zone_weights import ALL_BY_HINTS, ZoneWeights, render_zone_weights
from keepclose.routing.allocation.weighted import weighted_matrix
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristic_answers import Allotment, Refusal, ZoneDemand
from keepclose.routing.hint_facts import zones_of
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.selection import Selection, select
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy, routed_ports
from keepclose.routing.topology import RoutingMode, followed_levels
from keepclose.routing.zone_weights import (
    WEIGHTS_HYSTERESIS,
    WeightDecision,
    read_weights_request,
    settle_weights,
    weights_of_flows,
)
from support.builders import endpoint, endpoint_slice, service

GATES = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
BALANCED_VALUE = "keepclose.dev/Balanced"
NODE = NodeView("n1", "a")
WRITTEN = ZoneWeights(weights={"a": {"a": 1000, "b": 250}, "c": {"b": 1000}})


def port(value: str | None = BALANCED_VALUE, gates: FeatureGates = GATES) -> RoutedPort:
    """Return the port of a Service with this trafficDistribution."""
    (routed,) = routed_ports(service(traffic_distribution=value), "IPv4", gates=gates)
    return routed


def endpoints(
    written: ZoneWeights | None = WRITTEN, *, hints: tuple[str, ...] = ("a", "a", "b", "b")
) -> tuple[PortEndpoint, ...]:
    """Return two endpoints in zone a and two in zone b, on n1 to n4, with these zone hints."""
    annotations = {}
    if written is not None:
        annotations[ZONE_WEIGHTS_ANNOTATION] = render_zone_weights(written)
    made = [
        endpoint(f"10.0.0.{number}", zone=zone, node_name=f"n{number}", for_zones=zones_of(hint))
        for number, (zone, hint) in enumerate(zip("aabb", hints, strict=True), 1)
    ]
    slices = [endpoint_slice(*made[:3]), endpoint_slice(*made[3:], name="s2")]
    meta = replace(slices[0].metadata, annotations=annotations)
    slices[0] = replace(slices[0], metadata=meta)
    return collect_endpoints(slices, "IPv4", gates=GATES)["http", "TCP"]


def weights_of(selection: Selection) -> dict[str, int]:
    """Return the weights of the endpoints for the cluster IP, by the last digit of the address."""
    return {each.address[-1]: each.weight for each in selection.internal.endpoints}


def test_a_node_uses_all_endpoints_in_proportion_to_the_weights_of_its_zone() -> None:
    """Endpoints of both zones are used, those of zone a four times as much as those of zone b."""
    got = select(port(), endpoints(), node=NODE, gates=GATES)
    assert got.mode is RoutingMode.WEIGHTS
    assert weights_of(got) == {"1": 4, "2": 4, "3": 1, "4": 1}
    assert [reason.code for reason in got.reasons] == [ReasonCode.WEIGHTED]


def test_endpoints_of_weight_zero_are_not_used() -> None:
    """Clients of zone c use zone b alone; equal weights are weights of one."""
    got = select(port(), endpoints(), node=NodeView("n9", "c"), gates=GATES)
    assert weights_of(got) == {"3": 1, "4": 1}


def test_a_part_of_the_traffic_follows_the_hints() -> None:
    """With a quarter by hints, a hinted endpoint gets its part of that quarter besides."""
    blended = endpoints(replace(WRITTEN, hints=250))
    got = weights_of(select(port(), blended, node=NODE, gates=GATES))
    whole = sum(got.values())
    want = Fraction(3, 4) * Fraction(4, 10) + Fraction(1, 4) * Fraction(1, 2)
    assert Fraction(got["1"], whole) == want
    assert Fraction(got["3"], whole) == Fraction(3, 4) * Fraction(1, 10)


def test_with_all_by_hints_weights_equal_the_hints() -> None:
    """At the full blend a following node does what any other node does."""
    got = select(port(), endpoints(replace(WRITTEN, hints=ALL_BY_HINTS)), node=NODE, gates=GATES)
    other = select(port(), endpoints(None), node=NODE, gates=GATES)
    assert weights_of(got) == weights_of(other) == {"1": 1, "2": 1}


def test_a_zone_without_hinted_endpoints_blends_with_all_endpoints() -> None:
    """Where no endpoint is hinted for the zone, following hints means using all endpoints."""
    written = endpoints(replace(WRITTEN, hints=ALL_BY_HINTS))
    got = select(port(), written, node=NodeView("n9", "c"), gates=GATES)
    assert weights_of(got) == {"1": 1, "2": 1, "3": 1, "4": 1}


@pytest.mark.parametrize(
    ("routed", "given_endpoints", "node", "code"),
    [
        pytest.param(port("PreferSameZone"), endpoints(), NODE, None, id="another value"),
        pytest.param(port(None), endpoints(), NODE, None, id="no value"),
        pytest.param(port(gates=FeatureGates()), endpoints(), NODE, None, id="gate off"),
        pytest.param(port(), endpoints(None), NODE, None, id="nothing written"),
        pytest.param(
            port(),
            endpoints(replace(WRITTEN, weights={"c": {"a": 1}})),
            NODE,
            ReasonCode.WEIGHTS_IGNORED,
            id="not for this zone",
        ),
        pytest.param(
            port(),
            endpoints(replace(WRITTEN, weights={"a": {"c": 1}})),
            NODE,
            ReasonCode.WEIGHTS_IGNORED,
            id="only zones without endpoints",
        ),
    ],
)
def test_hints_decide_where_weights_cannot(
    routed: RoutedPort,
    given_endpoints: tuple[PortEndpoint, ...],
    node: NodeView,
    code: ReasonCode | None,
) -> None:
    """Without weights for the node, or for another Service, it follows hints as any other node."""
    got = select(routed, given_endpoints, node=node, gates=GATES)
    assert got.mode is RoutingMode.SAME_ZONE
    assert weights_of(got) == {"1": 1, "2": 1}
    codes = {reason.code for reason in got.reasons}
    assert (ReasonCode.WEIGHTS_IGNORED in codes) == (code is not None)


def test_an_endpoint_without_a_hint_makes_weights_void() -> None:
    """A missing hint shows another writer, so all nodes use all endpoints, weights or not."""
    written = endpoints(hints=("a", "a", "b", ""))
    got = select(port(), written, node=NODE, gates=GATES)
    assert got.mode is RoutingMode.ALL
    assert [reason.code for reason in got.reasons][:2] == [
        ReasonCode.WEIGHTS_IGNORED,
        ReasonCode.ZONE_HINT_MISSING,
    ]


def test_a_node_without_a_zone_uses_all_endpoints() -> None:
    """A node that has no zone can follow neither weights nor hints."""
    got = select(port(), endpoints(), node=NodeView("n1"), gates=GATES)
    assert (got.mode, len(got.internal.endpoints)) == (RoutingMode.ALL, 4)


def test_hostile_weights_are_ignored() -> None:
    """A value that is no weights leaves the decision to the hints and names the problem."""
    hostile = endpoint_slice(
        endpoint("10.0.0.1", zone="a", for_zones=("a",)),
        annotations={ZONE_WEIGHTS_ANNOTATION: '{"weights":{"a":{"a":-5}}}'},
    )
    found = collect_endpoints([hostile], "IPv4", gates=GATES)["http", "TCP"]
    got = select(port(), found, node=NODE, gates=GATES)
    assert got.mode is RoutingMode.SAME_ZONE
    assert "between 0 and 10,000" in got.reasons[0].message


def test_the_annotation_of_the_value_counts_as_the_field() -> None:
    """A Service that asks by annotation, as on a real API server, is followed too."""
    asking = service(annotations={TRAFFIC_DISTRIBUTION_ANNOTATION: BALANCED_VALUE})
    (routed,) = routed_ports(asking, "IPv4", gates=GATES)
    assert select(routed, endpoints(), node=NODE, gates=GATES).mode is RoutingMode.WEIGHTS


def test_endpoints_that_are_not_ready_get_no_traffic_by_weights() -> None:
    """Only ready endpoints are weighed; without any, those that still serve are used alike."""
    first, *others = endpoints()
    gone = replace(first, ready=False, serving=True, terminating=True)
    got = select(port(), (gone, *others), node=NODE, gates=GATES)
    assert weights_of(got) == {"2": 4, "3": 1, "4": 1}
    none_ready = [replace(each, ready=False, terminating=True) for each in endpoints()]
    got = select(port(), none_ready, node=NODE, gates=GATES)
    assert weights_of(got) == {"1": 1, "2": 1, "3": 1, "4": 1}


def test_node_hints_come_before_weights() -> None:
    """An endpoint hinted for the own node is closer than any weight."""
    near = [replace(each, node_hints=(each.node_name,)) for each in endpoints()]
    got = select(port(), near, node=NODE, gates=GATES)
    assert (got.mode, weights_of(got)) == (RoutingMode.SAME_NODE, {"1": 1})


@pytest.mark.parametrize("policy", [TrafficPolicy.LOCAL, TrafficPolicy.PREFER_LOCAL])
def test_local_policies_are_not_weighed(policy: TrafficPolicy) -> None:
    """The Local set has no weights, and both sets are reachable where both are used."""
    local = replace(port(), internal_policy=policy, node_port=30080)
    got = select(local, endpoints(), node=NodeView("n4", "a"), gates=GATES)
    assert weights_of(got) == {"4": 1}
    assert [(each.address[-1], each.weight) for each in got.external.endpoints] == [
        ("1", 4),
        ("2", 4),
        ("3", 1),
        ("4", 1),
    ]
    assert len(got.reachable) == 4


def test_nodes_say_whether_they_follow_weights() -> None:
    """The gate of custom heuristics decides, and hints must be followed at all."""
    assert "zoneWeights" in followed_levels(GATES)
    assert "zoneWeights" not in followed_levels(FeatureGates())
    assert "zoneWeights" not in followed_levels(GATES.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION))


# The controller's side.


def limit_weights(
    names: list[str], shares: dict[str, float], counts: dict[str, int]
) -> dict[str, dict[str, int]]:
    """Return the weights of the limit."""
    flows = [0.0] * len(names) ** 2
    numbers = [counts.get(zone, 0) for zone in names]
    weighted_matrix(len(names), [shares.get(zone, 0.0) for zone in names], numbers, flows)
    return weights_of_flows(names, numbers, flows)


class Cell:
    """Random zones with their weights of the limit, beside the hints of Balanced."""

    def __init__(self, clients: list[int], counts: list[int]) -> None:
        """Take the traffic and the endpoints of each zone."""
        names = [f"z{number}" for number in range(len(counts))]
        whole = sum(clients)
        self.shares = {
            zone: part / whole for zone, part in zip(names, clients, strict=True) if part
        }
        self.counts = {zone: number for zone, number in zip(names, counts, strict=True) if number}
        self.weights = limit_weights(names, self.shares, self.counts)
        answer = BALANCED.allocate(ZoneDemand(self.shares, self.counts, {}))
        if isinstance(answer, Allotment):
            answer = answer.matrix
        if isinstance(answer, Refusal):
            # Hints for all zones are what no hints are.
            answer = {zone: {",".join(names): number} for zone, number in self.counts.items()}
        self.matrix = answer

    def settle(
        self, *, written: ZoneWeights | None = None, weighted_zones: tuple[str, ...] = ()
    ) -> WeightDecision:
        """Return the decision for this cell."""
        return settle_weights(
            self.weights,
            self.matrix,
            shares=self.shares,
            bound=0.2,
            written=written,
            weighted_zones=weighted_zones,
        )

    def endpoints(self, written: ZoneWeights | None) -> list[PortEndpoint]:
        """Return the endpoints as nodes see them."""
        return [
            PortEndpoint(
                f"{zone}.{group}.{number}",
                80,
                zone=zone,
                zone_hints=zones_of(group),
                zone_weights=written,
            )
            for zone, row in self.matrix.items()
            for group, count in row.items()
            for number in range(count)
        ]

    def worst(self, written: ZoneWeights | None, following: dict[str, float]) -> float:
        """Return the largest overload, where a part of the traffic of each zone follows weights."""
        load: dict[str, float] = {}
        every = self.endpoints(written)
        for zone, share in self.shares.items():
            for value, part in (
                (BALANCED_VALUE, following.get(zone, 0.0)),
                (None, 1.0 - following.get(zone, 0.0)),
            ):
                got = select(port(value), every, node=NodeView("n", zone), gates=GATES)
                chosen = got.internal.endpoints
                whole = sum(each.weight for each in chosen)
                for each in chosen:
                    load[each.address] = (
                        load.get(each.address, 0.0) + share * part * each.weight / whole
                    )
        return max(load.values()) * len(every) - 1.0


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    """Draw two to four zones with traffic and endpoints."""
    zones = draw(st.integers(2, 4))
    clients = draw(st.lists(st.integers(0, 20), min_size=zones, max_size=zones).filter(any))
    counts = draw(st.lists(st.integers(0, 9), min_size=zones, max_size=zones).filter(any))
    return Cell(clients, counts)


@given(cells(), st.data())
def test_no_mixture_of_nodes_overloads_an_endpoint(cell: Cell, data: st.DataObject) -> None:
    """Whatever part of each zone follows weights, the bound holds, or what hints alone cause."""
    written = cell.settle().written
    following = {zone: data.draw(st.sampled_from([0.0, 0.3, 0.5, 1.0])) for zone in cell.shares}
    allowed = max(0.2, cell.worst(None, {}), cell.worst(written, dict.fromkeys(cell.shares, 1.0)))
    if written is not None and written.hints:
        allowed = max(0.2, cell.worst(None, {}))
    assert cell.worst(written, following) <= allowed + 0.001


@given(cells(), st.data())
def test_zones_that_follow_weights_count_as_such(cell: Cell, data: st.DataObject) -> None:
    """Where all nodes of some zones follow weights, any mixture in the others is bounded."""
    pure = data.draw(st.sets(st.sampled_from(sorted(cell.shares))))
    written = cell.settle(weighted_zones=tuple(pure)).written
    if written is None:
        return
    following = {
        zone: 1.0 if zone in pure else data.draw(st.sampled_from([0.0, 0.4, 1.0]))
        for zone in cell.shares
    }
    assert cell.worst(written, following) <= max(0.2, cell.worst(None, {})) + 0.001


@given(cells())
def test_if_all_nodes_follow_weights_the_limit_is_written(cell: Cell) -> None:
    """All of the traffic goes by the weights of the limit, so no endpoint is overloaded."""
    written = cell.settle(weighted_zones=tuple(cell.shares)).written
    assert written == ZoneWeights(weights=cell.weights)
    assert cell.worst(written, dict.fromkeys(cell.shares, 1.0)) <= 0.01


@given(cells(), cells())
def test_written_weights_are_settled(cell: Cell, other: Cell) -> None:
    """A decision does not change its own result, whatever was written before."""
    before = other.settle().written
    first = cell.settle(written=before).written
    assert cell.settle(written=first).written == first


def test_weights_that_lose_little_stay() -> None:
    """One endpoint more leaves the written weights; many more replace them."""
    zones = ("z0", "z1", "z2")
    written = Cell([7, 2, 1], [30, 30, 30]).settle(weighted_zones=zones).written
    more = Cell([7, 2, 1], [30, 31, 30])
    assert more.weights != Cell([7, 2, 1], [30, 30, 30]).weights
    assert more.settle(written=written, weighted_zones=zones).written == written
    many = Cell([7, 2, 1], [60, 31, 30])
    got = many.settle(written=written, weighted_zones=zones).written
    assert got == ZoneWeights(weights=many.weights)
    assert WEIGHTS_HYSTERESIS == 0.02


def test_weights_that_overload_much_more_than_new_ones_go() -> None:
    """A seventh endpoint makes the old weights overload four others by 17 %, which new ones end."""
    zones = ("z0", "z1", "z2")
    written = Cell([1, 1, 1], [2, 2, 2]).settle(weighted_zones=zones).written
    more = Cell([1, 1, 1], [3, 2, 2])
    assert more.settle(written=written, weighted_zones=zones).written == ZoneWeights(
        weights=more.weights
    )


def test_the_blend_ends_when_all_nodes_follow_weights() -> None:
    """Weights that were blended for other nodes become those of the limit."""
    cell = Cell([5, 3, 2], [3, 6, 2])
    blended = cell.settle().written
    assert blended is not None
    assert blended.hints > 0
    zones = ("z0", "z1", "z2")
    assert cell.settle(written=blended, weighted_zones=zones).written == ZoneWeights(
        weights=cell.weights
    )


def test_weights_that_cannot_be_written_are_said_to_be_none() -> None:
    """Those of too many zones, or of zones without traffic alone, have a reason that says so."""
    names = [f"zone-{'n' * 50}-{number:02}" for number in range(40)]
    shares = dict.fromkeys(names, 1 / len(names))
    matrix = {name: {name: 1} for name in names}
    even = {client: dict.fromkeys(names, 1) for client in names}
    decision = settle_weights(even, matrix, shares=shares, bound=0.2, weighted_zones=names)
    assert decision.written is None
    assert decision.reason.code is ReasonCode.WEIGHTS_WITHHELD
    assert "those of 40 zones take more than 65,536 characters" in decision.reason.message
    few = names[:20]
    rows = {client: dict.fromkeys(few, 1) for client in few}
    matrix = {name: {name: 1} for name in few}
    shares = dict.fromkeys(few, 1 / len(few))
    decision = settle_weights(rows, matrix, shares=shares, bound=0.2, weighted_zones=few)
    assert decision.written is not None
    assert decision.reason.code is ReasonCode.WEIGHTS_WRITTEN
    idle = settle_weights(
        {few[0]: {few[1]: 1}}, matrix, shares={few[1]: 1.0}, bound=0.2, weighted_zones=few
    )
    assert idle.written is None
    assert "zones without traffic" in idle.reason.message


def test_weights_of_which_nothing_would_be_left_are_withheld() -> None:
    """If only hints keep the bound in a mixed cluster, no weights are written."""
    got = settle_weights(
        {"a": {"b": 1}, "b": {"a": 1}},
        {"a": {"a": 1}, "b": {"b": 1}},
        shares={"a": 0.5, "b": 0.5},
        bound=0.0,
    )
    assert got.written is None
    assert got.reason.code is ReasonCode.WEIGHTS_WITHHELD


@pytest.mark.parametrize(
    ("text", "default", "want", "codes"),
    [
        pytest.param(None, False, False, [], id="absent"),
        pytest.param(None, True, True, [], id="absent, on by default"),
        pytest.param("Enabled", False, True, [], id="enabled"),
        pytest.param("Disabled", True, False, [], id="disabled"),
        pytest.param("enabled", False, False, [ReasonCode.WEIGHTS_INVALID], id="lower case"),
        pytest.param("", True, True, [ReasonCode.WEIGHTS_INVALID], id="empty"),
    ],
)
def test_a_service_asks_for_weights(
    text: str | None, default: bool, want: bool, codes: list[ReasonCode]
) -> None:
    """Enabled and Disabled are valid; another value leaves the default and gives a reason."""
    annotations = {} if text is None else {"keepclose.dev/weights": text}
    got, reasons = read_weights_request(annotations, default=default)
    assert (got, [reason.code for reason in reasons]) == (want, codes)
