"""What a webhook answers about slices that are about to be written."""

from __future__ import annotations

import base64
from typing import Any

import jsonpatch
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.demand.store import DemandStore
from keepclose.heuristics.discovery import find_heuristics
from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.gates import parse_gates
from keepclose.model.meta import OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER, MANAGED_BY_LABEL
from keepclose.routing.demand import DemandSettings
from keepclose.routing.heuristic_answers import Allotment, ZoneDemand
from keepclose.routing.hint_facts import with_hints
from keepclose.routing.reasons import ReasonCode
from keepclose.slices.settings import PlannerSettings
from keepclose.webhook.admission import (
    AdmissionAnswer,
    AdmissionVerdict,
    answer_admission,
    read_review,
    write_response,
)
from keepclose.webhook.rehinting import rehint
from keepclose.webhook.scope import HintView, decide_scope
from support.builders import endpoint, endpoint_slice, node, pod, service

DISTRIBUTION = "keepclose.dev/traffic-distribution"
NODE_TOPOLOGY = "service.kubernetes.io/node-topology"
TOPOLOGY_MODE = "service.kubernetes.io/topology-mode"
SUBSETTING = "endpointslice.kubernetes.io/subsetting"
TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
TRIGGER_PATH = "/metadata/annotations/endpoints.kubernetes.io~1last-change-trigger-time"
BALANCED = "keepclose.dev/Balanced"
GATES = (
    "TrafficDistributionCustomHeuristics=true,NodeLevelTopology=true,TopologyAwareSubsetting=true"
)
SETTINGS = PlannerSettings(gates=parse_gates(GATES), heuristics=find_heuristics())
ZONES = ("zone-a", "zone-b", "zone-c")
NODES = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}


def seen(*objects: Service | EndpointSlice, **settings: Any) -> HintView:
    """Return a view of three nodes and the given objects."""
    view = HintView(replace(SETTINGS, **settings))
    for name, zone in NODES.items():
        view.caches.nodes.put(node(name, zone))
    for one in objects:
        if isinstance(one, Service):
            view.caches.services.put(one)
        else:
            view.caches.slices.put(one)
    return view


def asking(value: str = "PreferSameZone", **annotations: str) -> Service:
    """Return a Service that asks by annotation."""
    return service("web", annotations={DISTRIBUTION: value, **annotations})


def at(number: int, zone: str = "zone-a", *, for_zones: tuple[str, ...] = ()) -> Endpoint:
    """Return a ready endpoint in a zone, on the node there."""
    name = next(name for name, where in NODES.items() if where == zone)
    return endpoint(
        f"10.0.0.{number}",
        zone=zone,
        node_name=name,
        pod_name=f"p{number}",
        for_zones=for_zones,
    )


def plain(one: EndpointSlice) -> EndpointSlice:
    """Return a slice as a controller writes it that does not know of hints."""
    return replace(one, endpoints=tuple([with_hints(e, None) for e in one.endpoints]))


def raw(one: EndpointSlice) -> dict[str, Any]:
    """Return a slice as it stands in JSON."""
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(one))
    return decoded


def review(
    new: EndpointSlice | None,
    old: EndpointSlice | None = None,
    *,
    operation: str = "",
    manager: str = "",
    new_fields: list[dict[str, str]] | None = None,
    old_fields: list[dict[str, str]] | None = None,
    **request: Any,
) -> dict[str, Any]:
    """Return an AdmissionReview as an API server sends it."""
    objects = [None if one is None else raw(one) for one in (new, old)]
    for one, fields in zip(objects, (new_fields, old_fields), strict=True):
        if one is not None and fields is not None:
            one["metadata"]["managedFields"] = fields
    options = {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5",
            "operation": operation or ("CREATE" if old is None else "UPDATE"),
            "object": objects[0],
            "oldObject": objects[1],
            "options": {**options, "fieldManager": manager} if manager else options,
            **request,
        },
    }


def ask(view: HintView, body: dict[str, Any]) -> AdmissionAnswer:
    """Return the answer to a review."""
    request = read_review(msgspec.json.encode(body))
    assert request is not None
    return answer_admission(request, view)


def applied(body: dict[str, Any], found: AdmissionAnswer) -> dict[str, Any]:
    """Return the object after the steps of an answer, as the API server applies them."""
    response = msgspec.json.decode(write_response("705ab4f5", found.patch))["response"]
    steps = base64.b64decode(response["patch"]) if "patch" in response else b"[]"
    done: dict[str, Any] = jsonpatch.apply_patch(
        body["request"]["object"], msgspec.json.decode(steps)
    )
    return done


def zone_step(number: int, zone: str, *nodes: str) -> dict[str, Any]:
    """Return the step that hints an endpoint, as it stands in JSON."""
    hints: dict[str, Any] = {"forZones": [{"name": zone}]}
    if nodes:
        hints["forNodes"] = [{"name": name} for name in nodes]
    return {"op": "add", "path": f"/endpoints/{number}/hints", "value": hints}


def steps(found: AdmissionAnswer) -> list[dict[str, Any]]:
    """Return the steps as plain values."""
    decoded: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(found.patch))
    return decoded


ONE = endpoint_slice(at(1), at(2, "zone-b"), name="web-1")


@pytest.mark.parametrize(
    ("value", "want_steps"),
    [
        pytest.param(
            "PreferSameZone",
            [zone_step(0, "zone-a"), zone_step(1, "zone-b")],
            id="each endpoint its own zone",
        ),
        pytest.param(
            "PreferSameNode",
            [zone_step(0, "zone-a", "n1"), zone_step(1, "zone-b", "n2")],
            id="each endpoint its own zone and node",
        ),
        pytest.param(
            "PreferClose",
            [zone_step(0, "zone-a"), zone_step(1, "zone-b")],
            id="the older name of the same zone",
        ),
    ],
)
def test_a_new_slice_is_hinted(value: str, want_steps: list[dict[str, Any]]) -> None:
    """A slice that is created gets the hints of its Service's wish."""
    found = ask(seen(asking(value)), review(ONE))
    assert (found.verdict, steps(found)) == (AdmissionVerdict.HINTED, want_steps)


def test_a_new_slice_without_a_name_is_hinted() -> None:
    """A slice whose name the server has yet to make up is told apart from all others."""
    unnamed = replace(ONE, metadata=replace(ONE.metadata, name="", generate_name="web-"))
    found = ask(seen(asking(), ONE), review(unnamed))
    assert steps(found) == [zone_step(0, "zone-a"), zone_step(1, "zone-b")]


@pytest.mark.parametrize(
    ("body", "want_verdict"),
    [
        pytest.param(
            review(ONE, ONE, operation="DELETE"), AdmissionVerdict.FOREIGN, id="a deletion"
        ),
        pytest.param(
            review(None, ONE, operation="CONNECT"), AdmissionVerdict.FOREIGN, id="no write"
        ),
        pytest.param(
            review(ONE, ONE, subResource="status"), AdmissionVerdict.FOREIGN, id="a subresource"
        ),
        pytest.param(
            review(ONE, ONE, manager="keepclose-hints"), AdmissionVerdict.OURS, id="our own write"
        ),
        pytest.param(review(None), AdmissionVerdict.UNREADABLE, id="no object"),
        pytest.param(
            review(ONE, operation="UPDATE"), AdmissionVerdict.UNREADABLE, id="an update of nothing"
        ),
        pytest.param(
            review(ONE, object={"endpoints": 7}),
            AdmissionVerdict.UNREADABLE,
            id="an object of wrong types",
        ),
        pytest.param(
            review(endpoint_slice(at(1), labels={MANAGED_BY_LABEL: "me"})),
            AdmissionVerdict.FOREIGN,
            id="a slice of another controller",
        ),
        pytest.param(
            review(endpoint_slice(at(1), service_name="")),
            AdmissionVerdict.FOREIGN,
            id="no Service named",
        ),
        pytest.param(
            review(endpoint_slice(at(1), service_name="other")),
            AdmissionVerdict.UNKNOWN,
            id="a Service that has not been seen",
        ),
    ],
)
def test_what_passes_as_it_is(body: dict[str, Any], want_verdict: AdmissionVerdict) -> None:
    """Whatever is none of ours, or cannot be judged, is not changed."""
    assert ask(seen(asking()), body) == AdmissionAnswer(want_verdict)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(service("web"), id="a Service without a wish"),
        pytest.param(
            service("web", traffic_distribution="PreferSameZone"), id="a wish by the field alone"
        ),
        pytest.param(
            service("web", annotations={TOPOLOGY_MODE: "Auto"}), id="the topology mode Auto"
        ),
        pytest.param(asking(BALANCED, **{TOPOLOGY_MODE: "Auto"}), id="Auto before our wish"),
        pytest.param(asking("example.dev/Nobody"), id="a heuristic that is not installed"),
        pytest.param(asking(**{SUBSETTING: "Prefer"}), id="subsets"),
        pytest.param(
            service("web", annotations={DISTRIBUTION: "PreferSameZone"}, selector=None),
            id="no selector",
        ),
        pytest.param(
            service("web", annotations={DISTRIBUTION: "PreferSameZone"}, type="ExternalName"),
            id="an external name",
        ),
    ],
)
def test_services_that_are_left_to_the_built_in_controller(one: Service) -> None:
    """Hints that another controller writes on their slices stay as they are."""
    hinted = endpoint_slice(at(1, for_zones=("zone-c",)), name="web-1")
    assert ask(seen(one), review(hinted, ONE)) == AdmissionAnswer(AdmissionVerdict.FOREIGN)


def test_an_update_without_hints_gets_the_same_ones_back() -> None:
    """What the built-in controller removes is put back, so that nothing is left to store."""
    old = endpoint_slice(
        at(1, for_zones=("zone-a",)), at(2, "zone-b", for_zones=("zone-b",)), name="web-1"
    )
    body = review(plain(old), old)
    assert applied(body, ask(seen(asking(), old), body)) == raw(old)


def test_right_hints_need_no_answer() -> None:
    """An update that brings the right hints is left alone."""
    old = endpoint_slice(at(1, for_zones=("zone-a",)), name="web-1")
    new = endpoint_slice(at(1, for_zones=("zone-a",)), at(2), name="web-1")
    want = replace(new, endpoints=(new.endpoints[0], at(2, for_zones=("zone-a",))))
    assert ask(seen(asking(), old), review(want, old)) == AdmissionAnswer(AdmissionVerdict.RIGHT)


def test_wrong_hints_of_others_are_replaced_and_removed() -> None:
    """On a Service of ours hints are what we want them to be."""
    lost = endpoint("10.0.0.2", node_name="n9", for_zones=("zone-b",))
    new = endpoint_slice(at(1, for_zones=("zone-c",)), lost, name="web-1")
    found = ask(seen(asking()), review(new))
    assert steps(found) == [
        zone_step(0, "zone-a"),
        {"op": "remove", "path": "/endpoints/1/hints"},
    ]


def test_an_endpoint_that_is_no_longer_ready_loses_its_hints() -> None:
    """Proxies do not look at the hints of such endpoints, and others need not store them."""
    old = endpoint_slice(at(1, for_zones=("zone-a",)), name="web-1")
    new = endpoint_slice(endpoint("10.0.0.1", zone="zone-a", node_name="n1", ready=False), name="a")
    assert ask(seen(asking(), old), review(new, old)) == AdmissionAnswer(AdmissionVerdict.RIGHT)


def test_an_allocation_looks_at_all_slices_and_moves_few() -> None:
    """A new endpoint takes what the other slices leave over; what was hinted stays so."""
    other = endpoint_slice(
        at(1, for_zones=("zone-a",)),
        at(2, for_zones=("zone-b",)),
        at(3, for_zones=("zone-c",)),
        name="web-1",
    )
    old = endpoint_slice(at(4, for_zones=("zone-a",)), at(5, for_zones=("zone-b",)), name="web-2")
    new = replace(plain(old), endpoints=(*plain(old).endpoints, at(6)))
    found = ask(seen(asking(BALANCED), other, old), review(new, old))
    assert steps(found) == [zone_step(0, "zone-a"), zone_step(1, "zone-b"), zone_step(2, "zone-c")]


def test_slices_of_the_other_address_type_do_not_count() -> None:
    """Each address type is allocated for itself."""
    other = endpoint_slice(
        endpoint("fd00::1", zone="zone-a", for_zones=("zone-c",)),
        name="web-6",
        address_type="IPv6",
    )
    new = endpoint_slice(at(1), at(2, "zone-b"), at(3, "zone-c"), name="web-4")
    found = ask(seen(asking(BALANCED), other), review(new))
    assert steps(found) == [zone_step(0, "zone-a"), zone_step(1, "zone-b"), zone_step(2, "zone-c")]


@pytest.mark.parametrize(
    ("one", "want_hints"),
    [
        pytest.param(
            service("web", annotations={NODE_TOPOLOGY: "Enabled"}),
            {"forNodes": [{"name": "n1"}]},
            id="the node alone where nothing else governs",
        ),
        pytest.param(
            service("web", annotations={TOPOLOGY_MODE: "Node"}),
            {"forNodes": [{"name": "n1"}]},
            id="the topology mode Node",
        ),
        pytest.param(
            service(
                "web",
                annotations={NODE_TOPOLOGY: "Enabled"},
                traffic_distribution="PreferSameZone",
            ),
            {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "n1"}]},
            id="the node on top of the zone of the field",
        ),
    ],
)
def test_node_level_topology(one: Service, want_hints: dict[str, Any]) -> None:
    """Annotations that only we know add node hints, whatever the built-in controller follows."""
    found = ask(seen(one), review(endpoint_slice(at(1), name="web-1")))
    assert steps(found) == [{"op": "add", "path": "/endpoints/0/hints", "value": want_hints}]


def test_detection_asks_whose_the_pods_are() -> None:
    """One DaemonSet on all nodes is found by the owners of the pods behind the endpoints."""
    owner = OwnerReference(kind="DaemonSet", name="web", uid="d1", controller=True)
    one = service("web", annotations={NODE_TOPOLOGY: "Auto"})
    view = seen(one, node_level_mode="SemiAuto")
    new = endpoint_slice(at(1), at(2, "zone-b"), at(3, "zone-c"), name="web-1")
    assert ask(view, review(new)) == AdmissionAnswer(AdmissionVerdict.RIGHT)
    for number, name in ((1, "n1"), (2, "n2"), (3, "n3")):
        made = pod(f"p{number}", name, ip=f"10.0.0.{number}")
        meta = replace(made.metadata, owner_references=(owner,))
        view.caches.pods.put(replace(made, metadata=meta))
    found = [step["value"]["forNodes"][0]["name"] for step in steps(ask(view, review(new)))]
    assert found == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {TRIGGER: "t2"}, id="one that is new"),
        pytest.param({TRIGGER: "t1"}, {TRIGGER: "t2"}, id="one that moved"),
        pytest.param({TRIGGER: "t1"}, {}, id="one that went"),
        pytest.param({TRIGGER: "t1", "a": "b"}, {"a": "b"}, id="one that left others behind"),
    ],
)
def test_an_update_that_says_nothing_keeps_its_trigger_time(
    before: dict[str, str], after: dict[str, str]
) -> None:
    """The time and the owners of fields go back to what they were, with the hints."""
    old = endpoint_slice(at(1, for_zones=("zone-a",)), name="web-1", annotations=before)
    new = plain(endpoint_slice(at(1), name="web-1", annotations=after))
    old_fields = [{"manager": "kube-controller-manager", "time": "1"}]
    new_fields = [{"manager": "kube-controller-manager", "time": "2"}]
    body = review(new, old, new_fields=new_fields, old_fields=old_fields)
    done = applied(body, ask(seen(asking(), old), body))
    want = dict(body["request"]["oldObject"])
    if not done["metadata"].get("annotations"):
        done["metadata"].pop("annotations", None)
    assert done == want


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"endpoints": (at(1), at(2))}, id="another endpoint"),
        pytest.param({"ports": ()}, id="other ports"),
        pytest.param(
            {
                "metadata": endpoint_slice(
                    name="web-1", labels={"new": ""}, annotations={TRIGGER: "t2"}
                ).metadata
            },
            id="another label",
        ),
        pytest.param(
            {
                "metadata": endpoint_slice(
                    name="web-1", annotations={TRIGGER: "t2", "a": "b"}
                ).metadata
            },
            id="another annotation",
        ),
    ],
)
def test_an_update_that_says_something_keeps_its_own(changed: dict[str, Any]) -> None:
    """Only hints are changed in an update with content."""
    old = endpoint_slice(at(1, for_zones=("zone-a",)), name="web-1", annotations={TRIGGER: "t1"})
    new = replace(
        plain(endpoint_slice(at(1), name="web-1", annotations={TRIGGER: "t2"})), **changed
    )
    body = review(new, old, new_fields=[{"time": "2"}], old_fields=[{"time": "1"}])
    paths = {step["path"] for step in steps(ask(seen(asking(), old), body))}
    assert paths <= {"/endpoints/0/hints", "/endpoints/1/hints"}
    assert "/endpoints/0/hints" in paths


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="broken JSON"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b'{"request": {}}', id="no uid"),
        pytest.param(b'{"request": null}', id="no request"),
        pytest.param(b"[" * 5000, id="too deep"),
    ],
)
def test_what_is_no_review(body: bytes) -> None:
    """Bytes that are no review are told apart, and nothing is raised."""
    assert read_review(body) is None


def test_the_response_allows_without_a_patch() -> None:
    """An answer without steps has no patch at all."""
    assert msgspec.json.decode(write_response("705ab4f5")) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5", "allowed": True},
    }


@st.composite
def clusters(draw: st.DrawFn) -> tuple[str, list[EndpointSlice]]:
    """Draw a wish and some slices, hinted by whatever there was before."""
    value = draw(st.sampled_from(["PreferSameZone", "PreferSameNode", BALANCED]))
    slices: list[EndpointSlice] = []
    number = 0
    for name in range(draw(st.integers(1, 4))):
        endpoints = []
        for _ in range(draw(st.integers(0, 6))):
            number += 1
            endpoints.append(
                endpoint(
                    f"10.0.0.{number}",
                    zone=draw(st.sampled_from([*ZONES, *ZONES, *ZONES, None])),
                    node_name=draw(st.sampled_from(["n1", "n2", "n3", None])),
                    ready=draw(st.sampled_from([True, True, True, False, None])),
                    for_zones=draw(st.sampled_from([(), ("zone-a",), ("zone-b",), ZONES])),
                    for_nodes=draw(st.sampled_from([(), ("n1",)])),
                )
            )
        slices.append(endpoint_slice(*endpoints, name=f"web-{name}"))
    return value, slices


@given(clusters())
@settings(max_examples=150, deadline=None)
def test_at_rest_every_update_becomes_what_is_stored(
    drawn: tuple[str, list[EndpointSlice]],
) -> None:
    """Once all hints are set, removing them changes nothing on any slice, and so it stays."""
    value, slices = drawn
    one = asking(value)
    strategy = decide_scope(one, SETTINGS).strategy
    view = seen(one)
    for _ in range(3):
        found = rehint(
            one,
            strategy,
            slices,
            cluster=view.cluster,
            settings=SETTINGS,
            owners=view.owners,
        )
        slices = list(found.slices)
        if not found.changed:
            break
    assert found.changed == ()
    for piece in slices:
        view.caches.slices.put(piece)
    for piece in slices:
        body = review(plain(piece), piece)
        done = applied(body, ask(view, body))
        ready = [
            (new.get("hints"), old.get("hints"))
            for new, old in zip(
                done["endpoints"], body["request"]["oldObject"]["endpoints"], strict=True
            )
            if old.get("conditions", {}).get("ready")
        ]
        assert [new for new, _ in ready] == [old for _, old in ready]


def test_weights_are_left_to_a_controller() -> None:
    """A webhook changes hints alone: it writes no weights, and the reasons say so."""
    one = service(
        annotations={
            "keepclose.dev/traffic-distribution": "keepclose.dev/Balanced",
            "keepclose.dev/weights": "Enabled",
        }
    )
    view = seen(one)
    found = rehint(
        one,
        decide_scope(one, SETTINGS).strategy,
        [endpoint_slice(endpoint("10.0.0.1", zone="zone-a"), endpoint("10.0.0.2", zone="zone-b"))],
        cluster=view.cluster,
        settings=SETTINGS,
        owners=view.owners,
    )
    assert [each.metadata.annotations for each in found.changed] == [{}]
    assert ReasonCode.WEIGHTS_WITHHELD in {reason.code for reason in found.reasons}


class Fixed:
    """A heuristic that keeps all endpoints in their zones, and may give weights."""

    def __init__(self, weights: dict[str, dict[str, int]]) -> None:
        self._weights = weights

    def allocate(self, demand: ZoneDemand) -> Allotment:
        """Return hints for the own zone, and the weights."""
        matrix = {zone: {zone: number} for zone, number in demand.endpoints.items()}
        return Allotment(matrix, weights=self._weights)


@pytest.mark.parametrize(
    ("weights", "want"),
    [
        pytest.param({}, False, id="hints alone"),
        pytest.param({"zone-a": {"zone-b": 1}}, True, id="weights"),
    ],
)
def test_only_weights_that_exist_are_withheld(
    weights: dict[str, dict[str, int]], *, want: bool
) -> None:
    """A heuristic that gives hints alone has no reason about weights."""
    custom = replace(SETTINGS, heuristics={"a.dev/Fixed": Fixed(weights)})
    one = service(annotations={"keepclose.dev/traffic-distribution": "a.dev/Fixed"})
    view = seen(one)
    found = rehint(
        one,
        decide_scope(one, custom).strategy,
        [endpoint_slice(endpoint("10.0.0.1", zone="zone-a"), endpoint("10.0.0.2", zone="zone-b"))],
        cluster=view.cluster,
        settings=custom,
        owners=view.owners,
    )
    assert found.changed
    assert (ReasonCode.WEIGHTS_WITHHELD in {reason.code for reason in found.reasons}) is want


@given(clusters(), st.integers(0, 3), st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_but_hints_is_ever_changed(
    drawn: tuple[str, list[EndpointSlice]], which: int, data: st.DataObject
) -> None:
    """Whatever is written on whatever there was, the rest of the slice stays as it was sent."""
    value, slices = drawn
    view = seen(asking(value), *slices)
    old = slices[which % len(slices)]
    kept = data.draw(st.lists(st.sampled_from(range(12)), unique=True))
    endpoints = tuple(one for number, one in enumerate(old.endpoints) if number not in kept)
    new = replace(old, endpoints=(*endpoints, at(99, data.draw(st.sampled_from(ZONES)))))
    body = review(new, old)
    done = applied(body, ask(view, body))
    sent = body["request"]["object"]
    for one in (*done["endpoints"], *sent["endpoints"]):
        one.pop("hints", None)
    assert done == sent
    assert sent["metadata"]["labels"][MANAGED_BY_LABEL] == ENDPOINTSLICE_CONTROLLER


@pytest.mark.parametrize("annotations", [{DISTRIBUTION: "PreferSameZone"}, {}, None])
def test_demand_of_a_service_that_needs_none_is_not_tracked(
    annotations: dict[str, str] | None,
) -> None:
    """A Service that leaves the heuristic, the scope or the cluster is not counted any more."""
    web = service("web", annotations={DISTRIBUTION: BALANCED})
    view = seen(web)
    view.demand = DemandStore(
        DemandSettings(), source="test", by_cpu=lambda: view.cluster.shares, now=lambda: 0.0
    )
    assert view.shares(web, decide_scope(web, view.settings).strategy) is not None
    view.caches.services.put(replace(web))
    assert len(view.demand) == 1
    if annotations is None:
        view.caches.services.delete(web.key)
    else:
        view.caches.services.put(service("web", annotations=annotations))
    assert len(view.demand) == 0
