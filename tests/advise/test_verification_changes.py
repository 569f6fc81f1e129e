"""Services that change while flows are counted: neither a rollout nor new hints are a fault."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.accounting.flow_table import NO_ZONE, FlowTable
from keepclose.advise.verification import TrafficVerdict
from keepclose.advise.verification_causes import CauseCode
from keepclose.model.acknowledgements import NodeAcknowledgement
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.well_known import TRIGGER_TIME_ANNOTATION
from keepclose.model.workload import Pod, StatusCondition
from support.builders import service
from support.observed import (
    PODS,
    WEB,
    ZONES,
    flows_of,
    in_zone,
    planned_slices,
    spread,
    verify,
    without_hints,
)

START = 1767225600.0
"""2026-01-01T00:00:00Z, when the first flow was counted."""
BEFORE = "2025-12-31T23:00:00Z"
WITHIN = "2026-01-01T00:05:00Z"
WEB_UID = replace(WEB, metadata=replace(WEB.metadata, uid="uid-web"))
OBSERVE = "keepclose verify default/web --observe 60s"


def _counted(flows: FlowTable, *, end: float = START + 600) -> FlowTable:
    flows.start, flows.end = START, end
    return flows


def _slices(**fields: Any) -> tuple[EndpointSlice, ...]:
    """Return the planned slices, each with a uid and these fields of metadata."""
    return tuple(
        replace(each, metadata=replace(each.metadata, uid=f"uid-{each.metadata.name}", **fields))
        for each in planned_slices(WEB_UID)
    )


def _written(time: str = BEFORE) -> dict[str, str]:
    """Return when the Service and its slices were written."""
    return dict.fromkeys(("uid-web", *(each.metadata.uid for each in _slices())), time)


def _replaced_pods() -> FlowTable:
    """Return flows that stay in their zones, with pods of before a rollout."""
    flows = _counted(in_zone(300, endpoint="default/web-old"))
    for number in (0, 2, 4):
        in_zone(300, zones=[ZONES[number // 2]], endpoint=f"default/web-{number}", table=flows)
    return flows


def _pod(pod: Pod, *, created: str, ready: str) -> Pod:
    condition = StatusCondition("Ready", "True", ready)
    return replace(
        pod,
        metadata=replace(pod.metadata, creation_timestamp=created),
        status=replace(pod.status, conditions=(condition,)),
    )


@pytest.mark.parametrize(
    ("slices", "pods", "subject"),
    [
        pytest.param(
            _slices(annotations={TRIGGER_TIME_ANNOTATION: WITHIN}),
            PODS,
            "EndpointSlice",
            id="a slice of changed pods",
        ),
        pytest.param(_slices(creation_timestamp=WITHIN), PODS, "EndpointSlice", id="a new slice"),
        pytest.param(
            _slices(),
            (_pod(PODS[0], created=WITHIN, ready=WITHIN), *PODS[1:]),
            "Pod default/web-0",
            id="a new pod",
        ),
        pytest.param(
            _slices(),
            (_pod(PODS[0], created=BEFORE, ready=WITHIN), *PODS[1:]),
            "Pod default/web-0",
            id="a pod that became ready",
        ),
    ],
)
def test_a_rollout_is_honoured(
    slices: tuple[EndpointSlice, ...], pods: tuple[Pod, ...], subject: str
) -> None:
    """Pods that were replaced within the period are not judged; the change is reported."""
    verified = verify(_replaced_pods(), web=WEB_UID, slices=slices, pods=pods)
    assert verified.verdict is TrafficVerdict.HONOURED
    (cause,) = verified.causes
    assert cause.code is CauseCode.CHANGED_WITHIN_PERIOD
    assert cause.subject.startswith(subject)
    assert "changed 300 s ago; flows are from before and after" in cause.message
    assert cause.fix == OBSERVE


def test_pods_are_judged_when_nothing_changed() -> None:
    """Objects that are older than the first flow leave no doubt: the proxies are behind."""
    verified = verify(_replaced_pods(), web=WEB_UID, slices=_slices(), writes=_written())
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
    assert [cause.code for cause in verified.causes] == [
        CauseCode.STALE_ENDPOINTS,
        CauseCode.UNUSED_ENDPOINTS,
    ]
    assert all("--observe" not in cause.fix for cause in verified.causes)


def test_pods_of_unknown_times() -> None:
    """Where no object says when it changed, the cause says what else it may be."""
    verified = verify(_replaced_pods(), web=WEB_UID, slices=_slices())
    assert verified.causes[0].code is CauseCode.STALE_ENDPOINTS
    assert "or the endpoints were removed after the first flow" in verified.causes[0].message
    assert OBSERVE in verified.causes[0].fix


def test_a_zone_without_endpoints_any_more() -> None:
    """Without pods in the flows, a zone that lost its endpoints within the period is no fault."""
    slices = tuple(
        replace(each, metadata=replace(each.metadata, creation_timestamp=WITHIN))
        for each in planned_slices(pods=PODS[:4])
    )
    verified = verify(_counted(in_zone()), pods=PODS[:4], slices=slices)
    assert verified.verdict is TrafficVerdict.CHANGED
    assert [cause.code for cause in verified.causes] == [CauseCode.CHANGED_WITHIN_PERIOD]


@pytest.mark.parametrize("uid", ["uid-web", _slices()[0].metadata.uid])
def test_hints_that_are_newer_than_flows(uid: str) -> None:
    """A change that only managedFields show is no fault of the data plane."""
    writes = _written() | {uid: WITHIN}
    verified = verify(_counted(spread()), web=WEB_UID, slices=_slices(), writes=writes)
    assert verified.verdict is TrafficVerdict.CHANGED
    (cause,) = verified.causes
    assert cause.code is CauseCode.CHANGED_WITHIN_PERIOD
    assert "changed 300 s ago; flows are from before and after" in cause.message
    assert cause.fix == OBSERVE
    assert {row.verdict for row in verified.rows} == {TrafficVerdict.CHANGED}
    assert verified.rows[0].difference == "zone-a got 33 %, expected 100 %"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        pytest.param(START + 120, "changed after the last flow was counted", id="flows of before"),
        pytest.param(0.0, "changed 300 s after the first flow", id="flows without an end"),
    ],
)
def test_when_the_change_was(end: float, words: str) -> None:
    """The message says where the change lies in the period, as far as it is known."""
    flows = _counted(spread(), end=end)
    verified = verify(flows, web=WEB_UID, slices=_slices(), writes=_written(WITHIN))
    assert words in verified.causes[0].message


def test_flows_that_are_newer_than_hints() -> None:
    """New connections that ignore hints are the data plane's fault, without a doubt."""
    verified = verify(_counted(spread()), web=WEB_UID, slices=_slices(), writes=_written())
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
    (cause,) = verified.causes
    assert cause.code is CauseCode.HINTS_NOT_FOLLOWED
    assert cause.message.endswith("the data plane ignores hints")
    assert (
        cause.fix == "use a proxy that follows hints: kube-proxy 1.33 or later, or keepclose proxy"
    )


@pytest.mark.parametrize(
    ("flows", "writes"),
    [
        pytest.param(_counted(spread()), {}, id="objects without times"),
        pytest.param(_counted(spread()), {"uid-web": BEFORE}, id="slices without times"),
        pytest.param(spread(), _written(), id="flows without a start"),
    ],
)
def test_times_that_are_not_known(flows: FlowTable, writes: dict[str, str]) -> None:
    """Where hints may be newer than the flows, the cause says so and how to be sure."""
    verified = verify(flows, web=WEB_UID, slices=_slices(), writes=writes)
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
    (cause,) = verified.causes
    assert cause.message.endswith("ignores hints, or the hints are newer than the flows")
    assert cause.fix.endswith(OBSERVE)


def test_a_proxy_that_refuses_hints() -> None:
    """What a proxy says of itself is a fault whenever the objects changed."""
    verified = verify(
        _counted(spread()),
        web=WEB_UID,
        slices=_slices(),
        writes=_written(WITHIN),
        acknowledgements=(NodeAcknowledgement("n1", 70),),
    )
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
    assert [cause.code for cause in verified.causes] == [
        CauseCode.PROXY_REFUSES_HINTS,
        CauseCode.CHANGED_WITHIN_PERIOD,
    ]


def test_a_controller_that_writes_no_hints() -> None:
    """Slices that lack hints now are a fault whenever the field was set."""
    verified = verify(
        _counted(spread()),
        web=WEB_UID,
        slices=without_hints(_slices()),
        writes=_written() | {"uid-web": WITHIN},
    )
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
    assert [cause.code for cause in verified.causes] == [CauseCode.HINTS_MISSING]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param({("zone-a", NO_ZONE): 300}, id="no endpoint found"),
        pytest.param({("zone-a", "zone-b"): 0}, id="bytes of connections from before"),
    ],
)
def test_other_traces_of_a_change(rows: dict[tuple[str, str], int]) -> None:
    """Connections without an endpoint and bytes elsewhere may be from before the change, too."""
    flows = flows_of(rows, request_bytes=50_000_000, table=_counted(in_zone()))
    verified = verify(flows, web=WEB_UID, slices=_slices(), writes=_written(WITHIN))
    assert verified.verdict in (TrafficVerdict.HONOURED, TrafficVerdict.CHANGED)
    assert {cause.code for cause in verified.causes} == {CauseCode.CHANGED_WITHIN_PERIOD}


@pytest.mark.parametrize(
    "flows",
    [
        pytest.param(spread(), id="as expected"),
        pytest.param(flows_of({("zone-a", "zone-c"): 600}), id="elsewhere"),
        pytest.param(in_zone(endpoint="default/web-old"), id="to pods that are gone"),
        pytest.param(in_zone(refused=500), id="refused"),
    ],
)
@pytest.mark.parametrize("web", [service(), service(traffic_distribution=None)])
def test_a_service_without_the_field(web: Service, flows: FlowTable) -> None:
    """A Service without trafficDistribution has shares, and neither faults nor causes."""
    slices = tuple(
        replace(each, metadata=replace(each.metadata, resource_version="70"))
        for each in planned_slices(web)
    )
    behind = (NodeAcknowledgement("n1", 60), NodeAcknowledgement("n2", 60))
    verified = verify(flows, web=web, slices=slices, acknowledgements=behind)
    assert verified.verdict is TrafficVerdict.NO_PREFERENCE
    assert verified.mechanism == "no trafficDistribution"
    assert verified.causes == ()
    assert {row.verdict for row in verified.rows} == {TrafficVerdict.NOT_JUDGED}
    assert verified.rows[0].expected["zone-a"] == pytest.approx((1 / 3, 1 / 3))
