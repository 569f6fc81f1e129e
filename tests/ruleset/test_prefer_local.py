"""The three traffic policies in both directions, traced as packets.

Nine pairs of policies, four situations of the node, with and without zone hints: the answer is
always the local set, the cluster set, a drop or a reject, and never a third set of endpoints.
"""

from __future__ import annotations

from itertools import product

import pytest

from keepclose.model.endpointslice.types import Endpoint
from keepclose.model.gates import FeatureGates, Gate
from keepclose.ruleset.tracer import Packet
from support.builders import endpoint
from support.ruleset.tracednodes import (
    DROP,
    NODE_IP,
    OUTSIDE,
    POD,
    REJECT,
    follow,
    load,
    make_ruleset,
)
from support.ruleset.web_objects import slice_of, web

POLICIES = ("Cluster", "Local", "PreferLocal")
SITUATIONS = ("ready here", "leaving here", "elsewhere only", "none")
HERE = "10.0.1.1"
"""On this node."""
NEAR = "10.0.1.2"
"""In this node's zone."""
FAR = "10.0.1.3"
"""In another zone."""


def endpoints(situation: str, *, hinted: bool) -> list[Endpoint]:
    """Return what there is, each hinted for its own zone if at all."""
    if situation == "none":
        return []
    hints = {HERE: ("zone-a",), NEAR: ("zone-a",), FAR: ("zone-b",)} if hinted else {}
    made: list[Endpoint] = [
        endpoint(NEAR, node_name="n2", for_zones=hints.get(NEAR, ())),
        endpoint(FAR, node_name="n3", for_zones=hints.get(FAR, ())),
    ]
    if situation == "ready here":
        made.append(endpoint(HERE, node_name="n1", for_zones=hints.get(HERE, ())))
    if situation == "leaving here":
        made.append(endpoint(HERE, node_name="n1", ready=False, serving=True, terminating=True))
    return made


def cluster_set(situation: str, *, hinted: bool) -> tuple[str, ...]:
    """Return what the Cluster policy uses on this node."""
    ready = (HERE, NEAR, FAR) if situation == "ready here" else (NEAR, FAR)
    return tuple(one for one in ready if one != FAR or not hinted)


def wanted(policy: str, situation: str, *, hinted: bool) -> str:
    """Return what one direction of traffic gets under the policy."""
    if situation == "none":
        return REJECT
    local = situation == "ready here" or (situation == "leaving here" and policy == "Local")
    if policy != "Cluster" and local:
        return f"{HERE}:80"
    if policy == "Local":
        return DROP
    return ", ".join(f"{one}:80" for one in cluster_set(situation, hinted=hinted))


CASES = list(product(POLICIES, POLICIES, SITUATIONS, (False, True)))


@pytest.mark.parametrize(("internal", "external", "situation", "hinted"), CASES)
def test_policies_choose_the_local_or_the_cluster_set(
    internal: str, external: str, situation: str, hinted: bool
) -> None:
    """Both directions by their own policy, and inside traffic to external addresses as well."""
    gates = FeatureGates().with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY)
    service = web(
        "one",
        "172.30.1.1",
        lb=("1.2.3.4",),
        node_port=3001,
        internal_traffic_policy=internal,
        external_traffic_policy=external,
    )
    made = endpoints(situation, hinted=hinted)
    slices = [slice_of("one", *made)] if made else []
    kernel = load(make_ruleset([service], slices, gates=gates))

    want_internal = wanted(internal, situation, hinted=hinted)
    assert follow(kernel, Packet(POD, "172.30.1.1", 80)) == (want_internal, False)

    want_external = wanted(external, situation, hinted=hinted)
    served = want_external not in (DROP, REJECT)
    # NB: PreferLocal does not keep the client's address, not even for an endpoint on this node.
    want_masquerade = served and external != "Local"
    for address, port in (("1.2.3.4", 80), (NODE_IP, 3001)):
        got = follow(kernel, Packet(OUTSIDE, address, port))
        assert got == (want_external, want_masquerade)

    inside = external if external != "Local" else "Cluster"
    want_inside = wanted(inside, situation, hinted=hinted)
    got = follow(kernel, Packet(POD, "1.2.3.4", 80))
    assert got == (want_inside, external != "Local" and situation != "none")
    got = follow(kernel, Packet(NODE_IP, NODE_IP, 3001))
    assert got == (want_inside, situation != "none")


def test_there_are_seventy_two_cases() -> None:
    """No combination is left out."""
    assert len(set(CASES)) == 72
