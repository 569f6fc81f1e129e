"""The upgrade and rollback that KEP-4444 tried by hand, with kubectl and real connections.

Its cluster was kind with two workers in two zones; here `keepclose up` runs it, and what was a
downgrade of a program there is its gate here. An API server that knows the field but has its gate
off shows what is stored and keeps it, and takes it from nobody who has none yet.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.real.kep4444_demo import DEMO, GATE, LATE, A, B, Demo, distribution
from support.real.labs_running import (
    JsonObject,
    RunningLab,
    running_lab,
    until,
    until_equal,
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Run two zones and apply the manifest of the proposal."""
    with running_lab(tmp_path_factory.mktemp("kep4444")) as lab:
        told = lab.kubectl("apply", "-f", "-", stdin=DEMO)
        assert told.splitlines() == ["service/demo-svc created", "deployment.apps/demo created"]
        lab.rolled_out("deployment/demo")
        yield Demo(lab)


def test_endpoints_are_hinted_for_their_zones(demo: Demo) -> None:
    """Steps 1 to 3: five pods in two zones, each hinted for its own, and clients stay in theirs."""
    assert sorted(demo.hinted.values()) in ([A, A, A, B, B], [A, A, B, B, B])
    demo.until_close()
    want = {
        "TrafficDistributionAccepted": "True Accepted",
        "TrafficDistributionProgrammed": "True HintsPopulated",
        "TrafficDistributionHonored": "True AllNodesAcknowledged",
    }
    until_equal(lambda: conditions(demo.lab), want)
    warned = demo.lab.get("events", "--field-selector=type=Warning")["items"]
    assert [one for one in warned if one["involvedObject"]["kind"] == "Service"] == []


def test_the_gate_is_turned_off_and_on_again(demo: Demo) -> None:
    """Steps 4 to 8: slices stay and lose their hints, the field is kept, and all of it returns."""
    lab = demo.lab
    names = {one["metadata"]["name"] for one in lab.slices("demo-svc")}
    try:
        lab.keepclose("lab", "gates", f"{GATE}=false")
        demo.until_anywhere(demo.bare)
        assert {one["metadata"]["name"] for one in lab.slices("demo-svc")} == names
        assert demo.field == "PreferClose"
        # A change of something else does not lose it, and a new Service does not get it.
        lab.kubectl("label", "service", "demo-svc", "changed=yes")
        assert demo.field == "PreferClose"
        lab.apply(LATE)
        assert distribution(lab, "late-svc") is None
        lab.apply(LATE)
        assert distribution(lab, "late-svc") is None
    finally:
        lab.keepclose("lab", "gates", f"{GATE}=true")
    assert demo.field == "PreferClose"
    demo.until_close()
    # What was dropped was never stored, so it must be said again.
    assert distribution(lab, "late-svc") is None
    lab.apply(LATE)
    assert distribution(lab, "late-svc") == "PreferClose"
    until_equal(lambda: lab.hints("late-svc"), demo.hinted)
    lab.kubectl("delete", "service", "late-svc")


def test_proxies_alone_are_turned_back(demo: Demo) -> None:
    """Steps 9 to 11: rules of such a proxy lead to all endpoints; field and hints stay."""
    lab = demo.lab
    try:
        lab.keepclose("lab", "gates", f"{GATE}=false", "--only=proxy")
        demo.until_anywhere(demo.hinted)
        assert demo.field == "PreferClose"
        until(
            lambda: conditions(lab),
            lambda found: found["TrafficDistributionHonored"] == "False PartiallyHonored",
        )
    finally:
        lab.keepclose("lab", "gates", f"{GATE}=true", "--only=proxy")
    demo.until_close()


def test_the_controller_alone_is_turned_back(demo: Demo) -> None:
    """Without hints a proxy that knows the gate has nothing to follow."""
    lab = demo.lab
    try:
        lab.keepclose("lab", "gates", f"{GATE}=false", "--only=controller")
        demo.until_anywhere(demo.bare)
        want = {
            "TrafficDistributionAccepted": "False FeatureDisabled",
            "TrafficDistributionProgrammed": "False NotAccepted",
        }
        until_equal(lambda: conditions(lab), want)
    finally:
        lab.keepclose("lab", "gates", f"{GATE}=true", "--only=controller")
    demo.until_close()


def test_everything_stops_and_starts_with_the_gate_off(demo: Demo) -> None:
    """A cluster that is stopped keeps its objects, and each start follows the gates it is given.

    A Service of the demo's name is not overwritten by the demo that comes to an empty cluster.
    """
    lab = demo.lab
    try:
        lab.down()
        lab.up(f"{GATE}=false", with_demo=True)
        assert lab.pods("demo-app") == demo.pods
        demo.until_anywhere(demo.bare)
        assert demo.field == "PreferClose"
    finally:
        lab.down()
        lab.up()
    assert demo.field == "PreferClose"
    demo.until_close()


def conditions(lab: RunningLab) -> dict[str, str]:
    """Return what the status of the Service says of its field."""
    status: JsonObject = lab.get("service", "demo-svc").get("status", {})
    return {one["type"]: f"{one['status']} {one['reason']}" for one in status["conditions"]}
