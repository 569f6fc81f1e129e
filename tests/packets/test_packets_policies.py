"""Real connections under every traffic policy: who answers, and whose address it sees."""

from __future__ import annotations

import pytest

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import EXTERNAL_POLICY_ANNOTATION, INTERNAL_POLICY_ANNOTATION
from keepclose.ruleset import CountBy, LocalTraffic
from support.netanswers import Silence
from support.nettopology import NodePlan
from support.packets.packetflows import CLUSTER, DOORS, LOAD_BALANCER, NODE_PORT, Flow, check
from support.packets.tabledbeds import tabled
from support.packets.webobjects import Backend, ending, web

PLAN = (NodePlan("n1", "zone-a", 2), NodePlan("n2", "zone-b", 2))
HERE, THERE = "n1-p1", "n2-p1"
POD, NODE, OUTSIDE, FAR_POD = "n1-p2", "n1", "outside", "n2-p2"
BOTH = (HERE, THERE)
DROPPED, REFUSED = Silence.DROPPED, Silence.REFUSED

inner = web("inner", 10)
public = web("public", 11, is_external=True)
local = web("local", 12, is_external=True, external_traffic_policy="Local")


def matrix(
    *, masks_pods: bool = False, masks_others: bool = True, tells_pods: bool = True
) -> list[Flow]:
    """Return every kind of client at every kind of address; the arguments are for cluster IPs."""
    flows = [
        Flow(POD, CLUSTER, inner, BOTH, is_masked=masks_pods),
        Flow(FAR_POD, CLUSTER, inner, BOTH, is_masked=masks_pods),
        Flow(NODE, CLUSTER, inner, BOTH, is_masked=masks_others),
        Flow(OUTSIDE, CLUSTER, inner, BOTH, is_masked=masks_others),
    ]
    for door in DOORS:
        flows += [
            Flow(POD, door, public, BOTH, is_masked=True),
            Flow(FAR_POD, door, public, BOTH, is_masked=True),
            Flow(NODE, door, public, BOTH, is_masked=True),
            Flow(OUTSIDE, door, public, BOTH, is_masked=True),
            Flow(POD, door, local, BOTH if tells_pods else (HERE,)),
            Flow(NODE, door, local, BOTH, is_masked=True),
            Flow(OUTSIDE, door, local, (HERE,)),
        ]
    # A pod of another node is a stranger at a node port, and its own node's pod elsewhere.
    flows.append(Flow(FAR_POD, NODE_PORT, local, (HERE,)))
    flows.append(Flow(FAR_POD, LOAD_BALANCER, local, BOTH if tells_pods else (THERE,)))
    return flows


@pytest.mark.parametrize("count_by", list(CountBy))
def test_who_answers_and_whose_address_it_sees(count_by: CountBy) -> None:
    """Outside traffic is masqueraded unless the policy is Local, pods' own is not."""
    with tabled(PLAN, settings={"count_by": count_by}) as bed:
        slices = [
            piece
            for one in (inner, public, local)
            for piece in bed.slices(one.metadata.name, *BOTH)
        ]
        bed.write((inner, public, local), slices)
        flows = matrix()
        check(bed, [*flows, *(flow._replace(udp=True) for flow in flows)])


def test_everything_may_be_masqueraded() -> None:
    """With masqueradeAll pods' connections to cluster IPs are masqueraded too, at doors as ever."""
    with tabled(PLAN, settings={"masquerade_all": True}) as bed:
        slices = [
            piece
            for one in (inner, public, local)
            for piece in bed.slices(one.metadata.name, *BOTH)
        ]
        bed.write((inner, public, local), slices)
        check(bed, matrix(masks_pods=True))


def test_pods_that_cannot_be_told() -> None:
    """Without a way to tell pods nothing to cluster IPs is masqueraded, and Local is for all."""
    with tabled(PLAN, settings={"local_traffic": LocalTraffic()}) as bed:
        slices = [
            piece
            for one in (inner, public, local)
            for piece in bed.slices(one.metadata.name, *BOTH)
        ]
        bed.write((inner, public, local), slices)
        flows = [
            one
            for one in matrix(masks_others=False, tells_pods=False)
            # NB: answers to an unmasked outsider do not come back through the node that translated,
            # unless the endpoint is on it; the host's own packets keep the address of the node.
            if not (one.who == OUTSIDE and one.to == CLUSTER)
        ]
        check(bed, flows)


def test_a_pod_reaches_itself() -> None:
    """A pod that is its own endpoint sees its node as the client, by any policy and address."""
    names = ("alone", "door", "inside", "kept")
    alone, door, inside, kept = (
        web(names[0], 20),
        web(names[1], 21, is_external=True),
        web(names[2], 22, internal_traffic_policy="Local"),
        web(names[3], 23, is_external=True, external_traffic_policy="Local"),
    )
    with tabled(PLAN) as bed:
        slices = [piece for name in names for piece in bed.slices(name, HERE)]
        bed.write((alone, door, inside, kept), slices)
        flows = [Flow(HERE, CLUSTER, one, (HERE,), is_masked=True) for one in (alone, inside)]
        flows += [
            Flow(HERE, way, one, (HERE,), is_masked=True) for one in (door, kept) for way in DOORS
        ]
        flows += [flow._replace(udp=True) for flow in flows]
        check(bed, flows)
        # One that is gone and comes back is still known.
        bed.write((alone,), bed.slices(names[0], THERE))
        check(bed, [Flow(HERE, CLUSTER, alone, (THERE,))])
        bed.write((alone,), bed.slices(names[0], HERE, THERE))
        bed.write((alone,), bed.slices(names[0], HERE))
        check(bed, [Flow(HERE, CLUSTER, alone, (HERE,), is_masked=True)])


def test_local_policies() -> None:
    """Local means this node's endpoints or silence; pods and the node are let in to all doors."""
    near = web("near", 30, internal_traffic_policy="Local")
    far = web("far", 31, internal_traffic_policy="Local")
    away = web("away", 32, is_external=True, external_traffic_policy="Local")
    strict = web(
        "strict",
        33,
        is_external=True,
        external_traffic_policy="Local",
        internal_traffic_policy="Local",
    )
    with tabled(PLAN) as bed:
        slices = [
            *bed.slices("near", *BOTH),
            *bed.slices("far", THERE),
            *bed.slices("away", THERE),
            *bed.slices("strict", THERE),
        ]
        bed.write((near, far, away, strict), slices)
        flows = [
            Flow(POD, CLUSTER, near, (HERE,)),
            Flow(FAR_POD, CLUSTER, near, (THERE,)),
            Flow(NODE, CLUSTER, near, (HERE,), is_masked=True),
            Flow(OUTSIDE, CLUSTER, near, (HERE,), is_masked=True),
            Flow(POD, CLUSTER, far, DROPPED),
            Flow(NODE, CLUSTER, far, DROPPED),
            Flow(OUTSIDE, CLUSTER, far, DROPPED),
            Flow(FAR_POD, CLUSTER, far, (THERE,)),
            Flow(POD, CLUSTER, away, (THERE,)),
            Flow(POD, CLUSTER, strict, DROPPED),
        ]
        for door in DOORS:
            for one in (away, strict):
                flows += [
                    Flow(POD, door, one, (THERE,)),
                    Flow(NODE, door, one, (THERE,), is_masked=True),
                    Flow(OUTSIDE, door, one, DROPPED),
                ]
        flows.append(Flow(FAR_POD, NODE_PORT, away, DROPPED))
        flows += [flow._replace(udp=True) for flow in flows]
        check(bed, flows)


def test_endpoints_that_terminate() -> None:
    """They serve only where nothing ready is left, and Cluster and Local each fall back alone."""
    kinds = {
        "one-ready": (ending(HERE), Backend(THERE)),
        "all-ending": (ending(HERE), ending(THERE)),
        "none-serving": (ending(HERE, serving=False), Backend(THERE, ready=False, serving=False)),
        "unready": (Backend(HERE, ready=False, serving=False), Backend(THERE)),
    }
    services = {
        name: web(name, 40 + i, is_external=True, external_traffic_policy="Local")
        for i, name in enumerate(kinds)
    }
    inside = web("inside", 50, internal_traffic_policy="Local")
    one, ended, silent, unready = services.values()
    with tabled(PLAN) as bed:
        slices = [piece for name, ends in kinds.items() for piece in bed.slices(name, *ends)]
        slices += bed.slices("inside", *kinds["one-ready"])
        bed.write((*services.values(), inside), slices)
        flows = [
            Flow(POD, CLUSTER, one, (THERE,)),
            Flow(OUTSIDE, CLUSTER, one, (THERE,), is_masked=True),
            Flow(POD, CLUSTER, ended, BOTH),
            Flow(POD, CLUSTER, silent, REFUSED),
            Flow(POD, CLUSTER, unready, (THERE,)),
            Flow(POD, CLUSTER, inside, (HERE,)),
            Flow(FAR_POD, CLUSTER, inside, (THERE,)),
        ]
        for door in DOORS:
            flows += [
                Flow(OUTSIDE, door, one, (HERE,)),
                Flow(POD, door, one, (THERE,)),
                Flow(OUTSIDE, door, ended, (HERE,)),
                Flow(POD, door, ended, BOTH),
                Flow(OUTSIDE, door, silent, REFUSED),
                Flow(NODE, door, silent, REFUSED),
                Flow(OUTSIDE, door, unready, DROPPED),
            ]
        flows += [flow._replace(udp=True) for flow in flows]
        check(bed, flows)


def test_local_endpoints_are_preferred() -> None:
    """PreferLocal takes ready endpoints of this node, else does as Cluster does; no drops.

    What comes from outside is masqueraded in either case.
    """
    gates = FeatureGates().with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY)
    both = {
        INTERNAL_POLICY_ANNOTATION: "PreferLocal",
        EXTERNAL_POLICY_ANNOTATION: "PreferLocal",
    }
    cases: dict[str, tuple[Backend | str, ...]] = {
        "near": BOTH,
        "far": (THERE,),
        "leaving": (ending(HERE), Backend(THERE)),
        "ended": (ending(HERE), ending(THERE)),
        "hinted": (
            Backend(THERE, for_zones=("zone-a",)),
            Backend("n2-p2", for_zones=("zone-b",)),
        ),
        "hinted-away": (
            Backend(HERE, for_zones=("zone-b",)),
            Backend(THERE, for_zones=("zone-a",)),
        ),
        "nobody": (),
    }
    services = {
        name: web(name, 60 + i, is_external=True, annotations=both) for i, name in enumerate(cases)
    }
    want: dict[str, tuple[str, ...] | Silence] = {
        "near": (HERE,),
        "far": (THERE,),
        "leaving": (THERE,),
        "ended": BOTH,
        "hinted": (THERE,),
        "hinted-away": (HERE,),
        "nobody": REFUSED,
    }
    mixed = web(
        "mixed",
        80,
        is_external=True,
        annotations={INTERNAL_POLICY_ANNOTATION: "PreferLocal"},
        external_traffic_policy="Local",
    )
    with tabled(PLAN, gates=gates) as bed:
        slices = [piece for name, ends in cases.items() for piece in bed.slices(name, *ends)]
        bed.write((*services.values(), mixed), [*slices, *bed.slices("mixed", THERE)])
        flows = []
        for name, one in services.items():
            flows += [
                Flow(POD, CLUSTER, one, want[name]),
                Flow(NODE, CLUSTER, one, want[name], is_masked=True),
            ]
            flows += [
                Flow(who, door, one, want[name], is_masked=True)
                for who in (POD, NODE, OUTSIDE)
                for door in DOORS
            ]
        flows.append(Flow(POD, CLUSTER, mixed, (THERE,)))
        flows += [Flow(OUTSIDE, door, mixed, DROPPED) for door in DOORS]
        check(bed, flows)


def test_preferring_needs_its_gate() -> None:
    """Without the gate PreferLocal means Cluster."""
    asked = web(
        "asked",
        70,
        is_external=True,
        annotations={
            INTERNAL_POLICY_ANNOTATION: "PreferLocal",
            EXTERNAL_POLICY_ANNOTATION: "PreferLocal",
        },
    )
    with tabled(PLAN) as bed:
        bed.write((asked,), bed.slices("asked", *BOTH))
        flows = [Flow(POD, CLUSTER, asked, BOTH)]
        flows += [Flow(OUTSIDE, door, asked, BOTH, is_masked=True) for door in DOORS]
        check(bed, flows)
