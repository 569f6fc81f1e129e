"""KEP-4444, "Were upgrade and rollback tested?": the steps of the proposal, in a lab with kubectl.

What was a downgrade of a program there is its gate here. Not counted: how kind is set up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from support.real.kep4444_demo import DEMO, GATE, Demo
from support.real.labs_running import running_lab, until_equal

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Run two zones and apply the manifest of the proposal."""
    with running_lab(tmp_path_factory.mktemp("statements4444")) as lab:
        lab.kubectl("apply", "-f", "-", stdin=DEMO)
        lab.rolled_out("deployment/demo")
        yield Demo(lab)


@contextlib.contextmanager
def downgraded(demo: Demo, *which: str) -> Iterator[None]:
    """Have the gate off for the block, in all programs or in those named."""
    demo.lab.keepclose("lab", "gates", f"{GATE}=false", *which)
    try:
        yield
    finally:
        demo.lab.keepclose("lab", "gates", f"{GATE}=true", *which)


def in_zone(demo: Demo) -> dict[str, set[str]]:
    """Return the pods of the zones of both nodes."""
    zones = {"n1": "zone-a", "n3": "zone-b"}
    return {
        node: {pod for pod, hint in demo.hinted.items() if hint == zone}
        for node, zone in zones.items()
    }


def test_step_2_a_service_is_created_with_the_field(demo: Demo) -> None:
    """Step 2: a Service is created that uses the new field."""
    assert demo.field == "PreferClose"
    assert len(demo.pods) == 5


def test_step_3_the_slice_has_the_right_hints(demo: Demo) -> None:
    """Step 3: the EndpointSlice has the correct hints."""
    until_equal(lambda: demo.lab.hints("demo-svc"), demo.hinted)


def test_step_5_after_the_rollback_slices_have_no_hints(demo: Demo) -> None:
    """Steps 4 and 5: after the rollback the slices are still there but have no hints."""
    names = {one["metadata"]["name"] for one in demo.lab.slices("demo-svc")}
    with downgraded(demo):
        until_equal(lambda: demo.lab.hints("demo-svc"), demo.bare)
        assert {one["metadata"]["name"] for one in demo.lab.slices("demo-svc")} == names


def test_step_7_after_the_upgrade_field_and_hints_are_back(demo: Demo) -> None:
    """Steps 6 and 7: after the upgrade the field is visible again, and the hints are back."""
    with downgraded(demo):
        until_equal(lambda: demo.lab.hints("demo-svc"), demo.bare)
    assert demo.field == "PreferClose"
    until_equal(lambda: demo.lab.hints("demo-svc"), demo.hinted)


def test_step_8_rules_have_only_endpoints_of_the_zone(demo: Demo) -> None:
    """Step 8: the rules of a node contain only the endpoints that are local to its zone."""
    until_equal(demo.look_at_rules, in_zone(demo))


def test_step_10_rules_of_older_proxies_have_all_endpoints(demo: Demo) -> None:
    """Steps 9 and 10: after a downgrade of kube-proxy its rules contain all endpoints."""
    with downgraded(demo, "--only=proxy"):
        until_equal(demo.look_at_rules, {node: set(demo.pods) for node in ("n1", "n3")})


def test_step_11_field_and_hints_outlive_the_proxies(demo: Demo) -> None:
    """Step 11: though kube-proxy was downgraded, the Service has the field, the slices hints."""
    with downgraded(demo, "--only=proxy"):
        assert demo.field == "PreferClose"
        assert demo.lab.hints("demo-svc") == demo.hinted
