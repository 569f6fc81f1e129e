"""Detection of Services with an endpoint on nearly every node, and who may switch it on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.meta import OwnerReference
from keepclose.model.workload import Node
from keepclose.routing.node_level import (
    EndpointOwner,
    NodeLevelDecision,
    NodeLevelMode,
    NodeLevelOptions,
    controller_of,
    detect_node_level,
    node_overlay,
)
from keepclose.routing.reasons import Reason, ReasonCode
from support.builders import node

DAEMON = OwnerReference(kind="DaemonSet", name="dns", uid="uid-dns", controller=True)
DEFAULTS = NodeLevelOptions()


def workers(count: int) -> list[Node]:
    """Return so many ready worker nodes, n01 and so on."""
    return [node(f"n{number:02}") for number in range(1, count + 1)]


def owned(*names: str, owner: OwnerReference | None = DAEMON) -> list[EndpointOwner]:
    """Return a ready endpoint on each of the nodes."""
    return [(name, owner) for name in names]


def covered(count: int, missing: int) -> list[EndpointOwner]:
    """Return an endpoint on all but the first `missing` of `count` nodes."""
    return owned(*(f"n{number:02}" for number in range(missing + 1, count + 1)))


def codes(decision: NodeLevelDecision) -> list[ReasonCode]:
    """Return the codes of the reasons."""
    return [reason.code for reason in decision.reasons]


@pytest.mark.parametrize(
    ("count", "options", "want_limit"),
    [
        pytest.param(0, DEFAULTS, 1, id="no nodes"),
        pytest.param(9, DEFAULTS, 1, id="at least one"),
        pytest.param(19, DEFAULTS, 1, id="19 nodes are rounded down"),
        pytest.param(20, DEFAULTS, 2, id="10 % of 20"),
        pytest.param(30, DEFAULTS, 3, id="10 % of 30"),
        pytest.param(100, NodeLevelOptions(max_missing_fraction=0.29), 29, id="29 % of 100"),
        pytest.param(9, NodeLevelOptions(min_missing=0), 0, id="none allowed"),
    ],
)
def test_limit(count: int, options: NodeLevelOptions, want_limit: int) -> None:
    """A tenth of the nodes may lack an endpoint, and always one."""
    assert options.limit(count) == want_limit


@pytest.mark.parametrize(
    ("count", "missing", "previously_on", "want_on", "want_codes"),
    [
        pytest.param(3, 0, False, True, [ReasonCode.ONE_DAEMON_SET], id="every node"),
        pytest.param(3, 1, False, True, [ReasonCode.ONE_DAEMON_SET], id="one of three is missing"),
        pytest.param(
            3, 2, False, False, [ReasonCode.TOO_MANY_NODES_MISSING], id="two of three are missing"
        ),
        pytest.param(
            3,
            2,
            True,
            True,
            [ReasonCode.ONE_DAEMON_SET, ReasonCode.HYSTERESIS_HOLDS],
            id="two of three are missing but it was on",
        ),
        pytest.param(
            4, 3, True, False, [ReasonCode.TOO_MANY_NODES_MISSING], id="more than twice the limit"
        ),
        pytest.param(
            2, 2, True, False, [ReasonCode.TOO_MANY_NODES_MISSING], id="no worker is served at all"
        ),
        pytest.param(30, 3, False, True, [ReasonCode.ONE_DAEMON_SET], id="a tenth is missing"),
        pytest.param(
            30, 4, False, False, [ReasonCode.TOO_MANY_NODES_MISSING], id="more than a tenth"
        ),
        pytest.param(
            30,
            6,
            True,
            True,
            [ReasonCode.ONE_DAEMON_SET, ReasonCode.HYSTERESIS_HOLDS],
            id="a fifth is missing but it was on",
        ),
        pytest.param(
            30, 7, True, False, [ReasonCode.TOO_MANY_NODES_MISSING], id="more than a fifth"
        ),
    ],
)
def test_missing_nodes(
    count: int,
    missing: int,
    previously_on: bool,
    want_on: bool,
    want_codes: list[ReasonCode],
) -> None:
    """Few nodes may be missing to switch on, twice as many to stay on."""
    endpoints = covered(count, missing) or owned("elsewhere")

    got = detect_node_level(nodes=workers(count), endpoints=endpoints, previously_on=previously_on)

    assert got.on is want_on
    assert got.missing == tuple(f"n{number:02}" for number in range(1, missing + 1))
    assert codes(got) == want_codes


@pytest.mark.parametrize(
    ("others", "want_message"),
    [
        pytest.param(
            owned("n02", owner=None),
            "the endpoint on node n02 does not belong to a DaemonSet",
            id="a pod without owner",
        ),
        pytest.param(
            owned("n02", owner=OwnerReference(kind="ReplicaSet", uid="uid-dns", controller=True)),
            "the endpoint on node n02 does not belong to a DaemonSet",
            id="a pod of a ReplicaSet",
        ),
        pytest.param(
            owned("n02", owner=OwnerReference(kind="DaemonSet", uid="uid-dns")),
            "the endpoint on node n02 does not belong to a DaemonSet",
            id="an owner that is no controller",
        ),
        pytest.param(
            owned(
                "n02",
                owner=OwnerReference(kind="DaemonSet", name="log", uid="uid-log", controller=True),
            ),
            "the endpoint on node n02 belongs to another DaemonSet (log)",
            id="two DaemonSets",
        ),
        pytest.param(
            [(None, None)],
            "an endpoint without node does not belong to a DaemonSet",
            id="an endpoint without node and owner",
        ),
    ],
)
@pytest.mark.parametrize("previously_on", [False, True])
def test_one_daemon_set_owns_all(
    others: list[EndpointOwner], want_message: str, previously_on: bool
) -> None:
    """One endpoint of another owner is enough to switch off, also when it was on."""
    got = detect_node_level(
        nodes=workers(2), endpoints=[*owned("n01"), *others], previously_on=previously_on
    )

    assert got == NodeLevelDecision(
        False, (), (Reason(ReasonCode.NOT_ONE_DAEMON_SET, want_message),)
    )


def test_an_owner_without_uid_is_nobody() -> None:
    """Two owners without a UID cannot be told to be the same."""
    nameless = OwnerReference(kind="DaemonSet", name="dns", controller=True)

    got = detect_node_level(
        nodes=workers(1), endpoints=owned("n01", owner=nameless), previously_on=False
    )

    assert codes(got) == [ReasonCode.NOT_ONE_DAEMON_SET]


def test_nodes_that_send_no_traffic_are_not_missed() -> None:
    """Nodes that are not ready and those of the control plane may lack an endpoint."""
    nodes = [
        *workers(3),
        node("sick", ready=False),
        node("master", labels={"node-role.kubernetes.io/control-plane": ""}),
        node("old-master", labels={"node-role.kubernetes.io/master": ""}),
    ]

    got = detect_node_level(
        nodes=nodes,
        endpoints=covered(3, 0),
        previously_on=False,
        options=NodeLevelOptions(min_missing=0),
    )

    assert got == NodeLevelDecision(
        True,
        (),
        (
            Reason(
                ReasonCode.ONE_DAEMON_SET,
                "all ready endpoints belong to DaemonSet dns; nodes without endpoint: 0 of 3",
                subject="DaemonSet dns",
            ),
        ),
    )


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want"),
    [
        pytest.param(
            workers(1),
            [],
            NodeLevelDecision(
                False, (), (Reason(ReasonCode.NO_READY_ENDPOINTS, "there is no ready endpoint"),)
            ),
            id="no endpoints",
        ),
        pytest.param(
            [],
            owned("n01"),
            NodeLevelDecision(
                False,
                (),
                (
                    Reason(
                        ReasonCode.TOO_MANY_NODES_MISSING,
                        "no node that sends traffic has an endpoint",
                    ),
                ),
            ),
            id="no nodes",
        ),
        pytest.param(
            workers(1),
            owned("other"),
            NodeLevelDecision(
                False,
                ("n01",),
                (
                    Reason(
                        ReasonCode.TOO_MANY_NODES_MISSING,
                        "no node that sends traffic has an endpoint",
                    ),
                ),
            ),
            id="endpoints only where no traffic comes from",
        ),
    ],
)
def test_nothing_to_go_by_is_off(
    nodes: list[Node], endpoints: list[EndpointOwner], want: NodeLevelDecision
) -> None:
    """Without endpoints, or without a node that has one, nothing is switched on or kept on."""
    assert detect_node_level(nodes=nodes, endpoints=endpoints, previously_on=True) == want


def overlay(
    annotation: str | None,
    mode: NodeLevelMode,
    *,
    explicit: bool = False,
    missing: int = 0,
    previously_on: bool = False,
) -> NodeLevelDecision:
    """Return the overlay of a DaemonSet's Service on four nodes."""
    return node_overlay(
        annotation=annotation,
        mode=mode,
        explicit=explicit,
        nodes=workers(4),
        endpoints=covered(4, missing),
        previously_on=previously_on,
    )


MANUAL, SEMI_AUTO, AUTO = NodeLevelMode.MANUAL, NodeLevelMode.SEMI_AUTO, NodeLevelMode.AUTO


@pytest.mark.parametrize(
    ("annotation", "mode", "explicit", "want_on", "want_codes"),
    [
        pytest.param(None, MANUAL, False, False, [ReasonCode.NOT_OPTED_IN], id="Manual, absent"),
        pytest.param("Auto", MANUAL, False, False, [ReasonCode.NOT_OPTED_IN], id="Manual, Auto"),
        pytest.param(
            None, SEMI_AUTO, False, False, [ReasonCode.NOT_OPTED_IN], id="SemiAuto, absent"
        ),
        pytest.param(
            "", SEMI_AUTO, False, False, [ReasonCode.NOT_OPTED_IN], id="SemiAuto, empty is absent"
        ),
        pytest.param(
            "Auto", SEMI_AUTO, False, True, [ReasonCode.ONE_DAEMON_SET], id="SemiAuto, Auto"
        ),
        pytest.param(
            "Auto",
            SEMI_AUTO,
            True,
            True,
            [ReasonCode.ONE_DAEMON_SET],
            id="SemiAuto, Auto on top of another wish",
        ),
        pytest.param(None, AUTO, False, True, [ReasonCode.ONE_DAEMON_SET], id="Auto, absent"),
        pytest.param(
            None, AUTO, True, False, [ReasonCode.OVERRIDDEN], id="Auto, absent, another wish"
        ),
        pytest.param(
            "Auto",
            AUTO,
            True,
            True,
            [ReasonCode.ONE_DAEMON_SET],
            id="Auto, Auto on top of another wish",
        ),
        pytest.param(
            "sure",
            AUTO,
            False,
            True,
            [ReasonCode.VALUE_NOT_SUPPORTED, ReasonCode.ONE_DAEMON_SET],
            id="Auto, a value that nobody knows",
        ),
        pytest.param(
            "auto",
            SEMI_AUTO,
            False,
            False,
            [ReasonCode.VALUE_NOT_SUPPORTED, ReasonCode.NOT_OPTED_IN],
            id="SemiAuto, auto in lower case is no value",
        ),
    ],
)
def test_who_may_detect(
    annotation: str | None,
    mode: NodeLevelMode,
    explicit: bool,
    want_on: bool,
    want_codes: list[ReasonCode],
) -> None:
    """Detection runs by opt-in, or in mode Auto where the user expressed nothing."""
    got = overlay(annotation, mode, explicit=explicit)

    assert got.on is want_on
    assert codes(got) == want_codes


@pytest.mark.parametrize("mode", list(NodeLevelMode))
@pytest.mark.parametrize("explicit", [False, True])
def test_explicit_values_need_no_detection(mode: NodeLevelMode, explicit: bool) -> None:
    """Enabled is always on and Disabled never, whatever the mode and the endpoints."""
    on = overlay("Enabled", mode, explicit=explicit, missing=4)
    off = overlay("Disabled", mode, explicit=explicit, missing=0, previously_on=True)

    assert (on.on, codes(on)) == (True, [ReasonCode.NODE_HINTS_ADDED])
    assert (off.on, codes(off)) == (False, [ReasonCode.TOPOLOGY_DISABLED])


def test_overlay_remembers() -> None:
    """Two of four nodes without endpoint do not begin node-level topology but do not end it."""
    begin = overlay(None, AUTO, missing=2)
    end = overlay(None, AUTO, missing=2, previously_on=True)

    assert (begin.on, begin.reasons) == (
        False,
        (
            Reason(
                ReasonCode.TOO_MANY_NODES_MISSING,
                "nodes without endpoint: 2 of 4, at most 1 may be",
                subject="Node n01",
            ),
        ),
    )
    assert (end.on, end.reasons[1]) == (
        True,
        Reason(
            ReasonCode.HYSTERESIS_HOLDS,
            "nodes without endpoint: 2 of 4; it takes 1 or fewer to begin, more than 2 to end",
        ),
    )


def test_refusals_advise_nothing_untried() -> None:
    """Only a wrong value has a fix; opting in may overload nodes, so it must be tried first."""
    assert overlay(None, MANUAL).reasons[0].fix == ""
    assert overlay(None, SEMI_AUTO).reasons[0].fix == ""
    assert overlay(None, AUTO, explicit=True).reasons[0].fix == ""
    assert overlay("on", AUTO).reasons[0].fix == "use Auto, Enabled or Disabled"


@pytest.mark.parametrize(
    ("owners", "want"),
    [
        pytest.param([], None, id="no owner"),
        pytest.param([OwnerReference(name="x")], None, id="an owner that does not control"),
        pytest.param([OwnerReference(name="x"), DAEMON], DAEMON, id="the second one controls"),
    ],
)
def test_controller_of(owners: list[OwnerReference], want: OwnerReference | None) -> None:
    """The controlling owner counts, not the first one."""
    assert controller_of(owners) is want


@settings(deadline=None, max_examples=150)
@given(
    count=st.integers(1, 60),
    missing=st.integers(0, 60),
    fraction=st.sampled_from([0.0, 0.1, 0.25]),
    least=st.integers(0, 3),
)
def test_hysteresis_is_monotone(count: int, missing: int, fraction: float, least: int) -> None:
    """What switches on also keeps on, and fewer missing nodes never switch off."""
    options = NodeLevelOptions(max_missing_fraction=fraction, min_missing=least)

    def is_on(missing: int, *, previously_on: bool) -> bool:
        return detect_node_level(
            nodes=workers(count),
            endpoints=covered(count, missing) or owned("elsewhere"),
            previously_on=previously_on,
            options=options,
        ).on

    missing = min(missing, count)
    begins = is_on(missing, previously_on=False)
    stays = is_on(missing, previously_on=True)
    limit = options.limit(count)
    assert begins is (missing <= limit and missing < count)
    assert stays is (missing <= 2 * limit and missing < count)
    assert stays or not begins
    if missing:
        assert is_on(missing - 1, previously_on=False) or not begins
        assert is_on(missing - 1, previously_on=True) or not stays
