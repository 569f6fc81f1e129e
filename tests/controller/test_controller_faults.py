"""Faults of servers, networks and clocks: the slices come out right, and nobody is buried.

Every row ends with the exact state that a plan from nothing gives, and with the number of writes
that led there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from keepclose.kube.requests import ENDPOINTS
from keepclose.model.well_known import TRIGGER_TIME_ANNOTATION
from keepclose.model.workload import StatusCondition
from keepclose.reconcile.settings import ControllerSettings
from keepclose.slices.settings import PlannerSettings
from support.builders import node, pod, service
from support.faultycluster import Desk, desk, facts, populate, web

OUTAGE_S = 300.0
RETRY_AFTER_S = 20
CLOSE = "PreferSameZone"


@pytest.fixture
async def cluster() -> AsyncIterator[Desk]:
    """Open a cluster with one Service."""
    async with desk() as found:
        populate(found)
        yield found


def cut_watches(cluster: Desk) -> None:
    """Break every open connection."""
    for watch in cluster.server.watches:
        watch.cut()


async def test_a_server_that_is_gone_for_five_minutes_changes_nothing(cluster: Desk) -> None:
    """Everybody asks less and less often, nothing is read twice, and no slice is touched."""
    async with cluster.controlled() as controlled:
        before = cluster.slices()
        with capture_logs() as logs:
            controlled.wire.is_cut = True
            cut_watches(cluster)
            asked = len(controlled.wire.requests)
            await cluster.clock.advance(OUTAGE_S)
            attempts = len(controlled.wire.requests) - asked
            controlled.wire.is_cut = False
            asked = len(controlled.wire.requests)
            # The longest delay of a reflector, and the longest wait for a bookmark.
            await cluster.clock.advance(30 + 60)
        reflectors = controlled.controller.reflectors
        assert len(controlled.wire.requests) - asked == len(reflectors)
        assert 5 * len(reflectors) <= attempts <= 40 * len(reflectors)
        assert [one.relists for one in reflectors] == [0] * len(reflectors)
        assert cluster.slices() == before
        assert controlled.wire.writes == [(1000.0, "POST")]
    told = [log["event"] for log in logs]
    # The end of the connection, that nobody answers, and that somebody does.
    assert told.count("request failed") == 2 * len(reflectors)
    assert told.count("request succeeded again") == len(reflectors)


async def test_changes_during_an_outage_cost_few_writes(cluster: Desk) -> None:
    """What happened behind the controller's back is seen on return: one write for each kind."""
    async with cluster.controlled(ControllerSettings(batch_s=0.5)) as controlled:
        controlled.wire.is_cut = True
        cut_watches(cluster)
        await cluster.clock.advance(OUTAGE_S / 2)
        cluster.put(web(0, ready=False), web(6))
        cluster.delete(web(1))
        cluster.put(node("n2", "zone-b"))
        await cluster.clock.advance(OUTAGE_S / 2)
        controlled.wire.is_cut = False
        await cluster.clock.advance(60)
        assert facts(cluster.slices()) == cluster.want()
        assert len(facts(cluster.slices())) == 6
        # Pods and nodes may be seen together or one after the other.
        methods = [method for _, method in controlled.wire.writes]
        assert methods[0] == "POST"
        assert set(methods[1:]) == {"PUT"}
        assert len(methods) <= 3


@pytest.mark.parametrize(
    "outage_s",
    [
        pytest.param(OUTAGE_S, id="five minutes"),
        pytest.param(3 * 3600.0, id="three hours, when the key was given up long ago"),
    ],
)
async def test_a_write_that_an_outage_cut_off_is_made_up_for(
    cluster: Desk, outage_s: float
) -> None:
    """The Service need not wait for the end of its delay once the server is back."""
    async with cluster.controlled() as controlled:
        controlled.wire.is_cut = True
        cluster.put(web(0, ready=False))
        await cluster.clock.advance(1)
        cut_watches(cluster)
        await cluster.clock.advance(outage_s)
        failed = len(controlled.wire.writes) - 1
        assert 5 <= failed <= 16
        assert controlled.controller.is_idle == (outage_s > OUTAGE_S)
        assert controlled.counted("endpoint_slice_controller_syncs_total", result="error") == failed
        controlled.wire.is_cut = False
        # The longest delay of a reflector, and the longest wait for a bookmark.
        await cluster.clock.advance(30 + 60)
        assert facts(cluster.slices()) == cluster.want()
        assert len(controlled.wire.writes) == 1 + failed + 1
        # Events are not kept for hours.
        reasons = {reason for reason, _ in cluster.told()}
        assert reasons == ({"FailedToUpdateEndpointSlices"} if outage_s == OUTAGE_S else set())


async def test_mirrored_slices_are_made_up_for_too(cluster: Desk) -> None:
    """Endpoints written by hand that could not be mirrored are, as soon as the server is back."""
    cluster.put(service("hand", selector=None))
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}
    async with cluster.controlled() as controlled:
        controlled.wire.cuts = lambda request: request.method != "GET"
        meta = {"name": "hand", "namespace": "default"}
        cluster.server.put(ENDPOINTS, {"metadata": meta, "subsets": [subset]})
        await cluster.clock.advance(1)
        cut_watches(cluster)
        controlled.wire.is_cut = True
        await cluster.clock.advance(3600)
        assert controlled.controller.is_idle
        assert cluster.slices("hand") == []
        controlled.wire.cuts = lambda _request: False
        controlled.wire.is_cut = False
        await cluster.clock.advance(30 + 60)
        (piece,) = cluster.slices("hand")
        assert [one.addresses for one in piece.endpoints] == [("192.0.2.1",)]


async def test_a_server_that_asks_for_patience_is_obeyed(cluster: Desk) -> None:
    """No Service comes back before the time that the server named, and all come through."""
    names = [f"s{number}" for number in range(20)]
    cluster.put(*(service(name, traffic_distribution=CLOSE) for name in names))
    async with cluster.controlled() as controlled:
        asked = len(controlled.wire.writes)
        controlled.wire.busy_s = RETRY_AFTER_S
        cluster.put(web(0, ready=False))
        began = cluster.clock.monotonic()
        await cluster.clock.advance(100)
        storm = [at - began for at, _ in controlled.wire.writes[asked:]]
        # At 0, 20, 40, 60 and 80 s, and once more at the end; later delays of a key are longer.
        assert len(storm) <= 6 * (len(names) + 1)
        assert all(at % RETRY_AFTER_S < 3 for at in storm), storm
        controlled.wire.busy_s = None
        asked = len(controlled.wire.writes)
        await cluster.clock.advance(200)
        assert len(controlled.wire.writes) - asked == len(names) + 1
        for name in ("web", *names):
            assert facts(cluster.slices(name)) == cluster.want(name)


async def test_a_large_plan_stops_at_the_first_refusal(cluster: Desk) -> None:
    """Of 40 slices to write none is tried once the server has asked for patience."""
    settings = ControllerSettings(plan=PlannerSettings(max_endpoints=1))
    cluster.put(*(web(number) for number in range(6, 40)))
    async with cluster.controlled(settings) as controlled:
        assert len(cluster.slices()) == 40
        asked = len(controlled.wire.writes)
        controlled.wire.busy_s = RETRY_AFTER_S
        cluster.put(service("web"))
        await cluster.clock.advance(1)
        assert len(controlled.wire.writes) - asked == 1
        controlled.wire.busy_s = None
        await cluster.clock.advance(60)
        assert facts(cluster.slices()) == cluster.want(settings=settings)
        assert len(controlled.wire.writes) - asked == 1 + 40


def _expire(cluster: Desk) -> None:
    cluster.server.store.compact()
    for watch in cluster.server.watches:
        watch.expire()


def _expire_by_answer(cluster: Desk) -> None:
    cluster.server.expires_by_event = False
    cluster.server.store.compact()
    cut_watches(cluster)


def _fall_silent(cluster: Desk) -> None:
    for watch in cluster.server.watches:
        watch.stall()


def _break_midway(cluster: Desk) -> None:
    for watch in cluster.server.watches:
        watch.cut_midway()


def _garble(cluster: Desk) -> None:
    for watch in cluster.server.watches:
        watch.garble()


@pytest.mark.parametrize(
    ("fault", "forgets"),
    [
        pytest.param(cut_watches, False, id="connections break"),
        pytest.param(_break_midway, False, id="connections break in the middle of an event"),
        pytest.param(_garble, False, id="something that is no event"),
        pytest.param(_fall_silent, False, id="connections fall silent, no bookmark comes"),
        pytest.param(_fall_silent, True, id="silence, and the history is gone meanwhile"),
        pytest.param(_expire, True, id="410 Gone by an event"),
        pytest.param(_expire_by_answer, True, id="410 Gone by the answer"),
    ],
)
async def test_changes_in_the_gap_of_a_watch_are_not_missed(
    cluster: Desk, fault: Callable[[Desk], None], forgets: bool
) -> None:
    """Pods that came, changed and went in a gap, and a slice that did, are all accounted for."""
    async with cluster.controlled() as controlled:
        (piece,) = cluster.slices()
        fault(cluster)
        cluster.put(web(0, ready=False), web(6))
        cluster.delete(web(1), piece)
        cluster.put(service("web", traffic_distribution="PreferSameNode"))
        if forgets:
            cluster.server.store.compact()
        await cluster.clock.advance(200)
        assert facts(cluster.slices()) == cluster.want()
        assert len(facts(cluster.slices())) == 6
        # The cache of slices may be the last to catch up: then each change has its write.
        assert len(controlled.wire.writes) <= 6
        asked = len(controlled.wire.writes)
        await cluster.clock.advance(600)
        assert len(controlled.wire.writes) == asked


async def test_a_pod_without_a_node_is_left_out_and_told_of(cluster: Desk) -> None:
    """The others are served, a warning says why one is not, and it comes when its node does."""
    async with cluster.controlled() as controlled:
        before = facts(cluster.slices())
        cluster.put(pod("p9", "", ip="10.0.0.99"), pod("p8", "n8", ip="10.0.0.98"))
        await cluster.clock.advance(10)
        assert facts(cluster.slices()) == before
        assert {reason for reason, _ in cluster.told()} == {"FailedToUpdateEndpointSlices"}
        message = cluster.told()[-1][1]
        assert "skipping Pod p9 for Service default/web: Node  Not Found" in message
        assert "skipping Pod p8 for Service default/web: Node n8 Not Found" in message
        assert controlled.counted("endpoint_slice_controller_syncs_total", result="error") >= 3
        cluster.put(node("n8", "zone-a"), pod("p9", "n1", ip="10.0.0.99"))
        await cluster.clock.advance(10)
        assert facts(cluster.slices()) == cluster.want()
        assert len(facts(cluster.slices())) == len(before) + 2
        assert controlled.controller.is_idle


async def test_a_node_that_loses_its_zone_takes_the_hints_along_and_brings_them_back(
    cluster: Desk,
) -> None:
    """Without a zone there is no hint, nobody is lost, and one write each way is enough."""
    async with cluster.controlled() as controlled:
        before = facts(cluster.slices())
        cluster.put(node("n1", None))
        await cluster.clock.advance(5)
        (piece,) = cluster.slices()
        assert facts([piece]) == cluster.want()
        assert len(piece.endpoints) == 6
        assert {one.zone for one in piece.endpoints if one.node_name == "n1"} == {None}
        cluster.put(node("n1", "zone-b"))
        await cluster.clock.advance(5)
        assert facts(cluster.slices()) == before
        assert [method for _, method in controlled.wire.writes] == ["POST", "PUT", "PUT"]


async def test_a_hundred_services_that_change_at_once_cost_a_write_each(cluster: Desk) -> None:
    """As many writes as slices that change, and not one more."""
    names = [f"s{number}" for number in range(100)]
    for name in names:
        cluster.put(
            service(name, selector={"app": name}, traffic_distribution=CLOSE),
            pod(f"{name}-1", "n1", ip="10.1.0.1", labels={"app": name}),
            pod(f"{name}-2", "n2", ip="10.1.0.2", labels={"app": name}),
        )
    async with cluster.controlled() as controlled:
        assert len(controlled.wire.writes) == 101
        for name in names:
            gone = pod(f"{name}-1", "n1", ip="10.1.0.1", labels={"app": name}, ready=False)
            cluster.put(gone)
        await cluster.clock.advance(5)
        for name in ("web", *names):
            assert facts(cluster.slices(name)) == cluster.want(name)
        assert len(cluster.slices(None)) == 101
        assert controlled.wire.writes[101:] == [(1005.0, "PUT")] * 100
        changes = {
            operation: controlled.counted(
                "endpoint_slice_controller_changes_total", operation=operation
            )
            for operation in ("create", "update", "delete")
        }
        assert changes == {"create": 101, "update": 100, "delete": 0}


@pytest.mark.parametrize("jump_s", [86_400.0, 3600.0, -3600.0, -86_400.0])
async def test_a_wall_clock_that_jumps_changes_nothing(cluster: Desk, jump_s: float) -> None:
    """No slice is written, delays keep their length, and times in slices are those of pods."""
    async with cluster.controlled() as controlled:
        cluster.put(pod("p9", "nowhere", ip="10.0.0.99"))
        await cluster.clock.advance(1)
        cluster.clock.jump(jump_s)
        asked = len(controlled.wire.requests)
        await cluster.clock.advance(1)
        assert controlled.wire.writes == [(1000.0, "POST")]
        assert len(controlled.wire.requests) - asked <= 2
        ready = StatusCondition(
            type="Ready", status="True", last_transition_time="2023-11-14T23:00:00Z"
        )
        changed = web(7)
        cluster.put(replace(changed, status=replace(changed.status, conditions=(ready,))))
        await cluster.clock.advance(1)
        (piece,) = cluster.slices()
        assert piece.metadata.annotations == {TRIGGER_TIME_ANNOTATION: "2023-11-14T23:00:00Z"}
        # The pod that nobody can place is tried again 1, 2, 4 and 8 s after a failure.
        cluster.put(node("nowhere", "zone-a"))
        await cluster.clock.advance(20)
        assert facts(cluster.slices()) == cluster.want()
        cluster.put(pod("p8", "elsewhere", ip="10.0.0.98"))
        await cluster.clock.advance(1)
        # One from before the jump, one from after it, and neither took the other's name.
        pods = [message.partition("Pod ")[2][:2] for _, message in cluster.told()]
        assert sorted(pods) == ["p8", "p9"]
