"""The unit tables of k8s.io/endpointslice and of its controller, asked of our slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.controller.own_writes import OwnWrites
from keepclose.kube.cache import Cache
from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    EndpointSubset,
)
from keepclose.model.gates import DEFAULT_GATES, Gate
from keepclose.model.meta import NamespacedName, ObjectMeta
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.well_known import (
    ENDPOINTSLICE_CONTROLLER,
    MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL,
)
from keepclose.model.workload import Node, Pod, PodIP
from keepclose.routing.strategy import StrategyName, choose_strategy
from keepclose.routing.traffic_shares import CpuRatios
from keepclose.slices.changes import (
    TriggerTimeTracker,
    format_instant,
    parse_timestamp,
    pod_change,
    service_of,
    services_after_labels,
    services_for_pod,
    services_for_pod_change,
)
from keepclose.slices.endpoints import (
    belongs_in_endpoints,
    build_endpoint,
    endpoint_ports,
    find_port,
    port_key,
    same_beyond_id,
)
from keepclose.slices.mirroring import repack
from keepclose.slices.packing import with_trigger_time
from keepclose.slices.service_planner import ServicePlanner
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.slices.slice_metadata import address_types, is_owned_by, new_slice, slice_labels
from support.real.slice_writes import as_write, unordered
from support.real.unit_tables import (
    Answers,
    Case,
    JsonObject,
    Judge,
    check_all_judged,
    compare,
    compare_in_order,
    pairs,
    read,
    read_list,
)

pytestmark = pytest.mark.real

_NO_TIME = "0001-01-01T00:00:00Z"


def _time(text: str) -> str:
    """Return a time that Go wrote as ours are written; "" for the zero time."""
    return "" if text == _NO_TIME else format_instant(parse_timestamp(text))


def _pod_to_endpoint(case: Case) -> Answers:
    given = case.given
    node = read(Node, given["node"]) if "node" in given else None
    ours = build_endpoint(
        read(Pod, given["pod"]),
        node=node,
        service=read(Service, given["service"]),
        family=given["addressType"],
    )
    theirs = read(Endpoint, case.answered["result0"])
    return Answers(ours, theirs if theirs.addresses else None)


def _endpoint_ports(case: Case) -> Answers:
    ours = endpoint_ports(read(Service, case.given["service"]), read(Pod, case.given["pod"]))
    return Answers(ours, read_list(EndpointPort, case.answered["result0"]))


def _new_slice(case: Case) -> Answers:
    meta = case.given["endpointMeta"]
    ours = new_slice(
        read(Service, case.given["service"]),
        address_type=meta["addressType"],
        ports=read_list(EndpointPort, meta.get("ports")),
        managed_by=case.given["controllerName"],
    )
    return Answers(ours, read(EndpointSlice, case.answered["result0"]))


def _owned_by(case: Case) -> Answers:
    ours = is_owned_by(
        read(EndpointSlice, case.given["endpointSlice"]), read(Service, case.given["svc"])
    )
    return Answers(ours, case.answered["result0"])


def _trigger_time_annotation(case: Case) -> Answers:
    ours = with_trigger_time(read(EndpointSlice, case.given["slice"]), _time(case.given["trigger"]))
    return Answers(ours, read(EndpointSlice, case.answered["slice"]))


def _controller_key(case: Case) -> Answers:
    ours = service_of(read(EndpointSlice, case.given.get("endpointSlice", {})))
    return Answers("" if ours is None else str(ours), case.answered["result0"])


def _labels(case: Case) -> Answers:
    ours = slice_labels(
        read(Service, case.given["service"]),
        read(EndpointSlice, case.given["epSlice"]).metadata.labels,
        managed_by=case.given["controllerName"],
    )
    return Answers(ours, (case.answered["result0"], case.answered["result1"]))


def _address_types(case: Case) -> Answers:
    ours = address_types(read(Service, case.given["service"]))
    return Answers(sorted(ours), case.answered["result0"])


def _hints_enabled(case: Case) -> Answers:
    service = Service(metadata=ObjectMeta(annotations=case.given.get("annotations", {})))
    ours = choose_strategy(service, gates=DEFAULT_GATES).name is StrategyName.AUTO
    return Answers(ours, case.answered["result0"])


def _find_port(case: Case) -> Answers:
    ours = find_port(read(ServicePort, case.given["svcPort"]), read(Pod, case.given["pod"]))
    return Answers(ours, None if "result1" in case.answered else case.answered["result0"])


def _belongs(case: Case) -> Answers:
    pod = read(Pod, case.given["pod"])
    ours = belongs_in_endpoints(pod)
    if not case.given["includeTerminating"]:
        # Only the legacy Endpoints controller leaves terminating pods out.
        ours = ours and not pod.is_terminating
    return Answers(ours, case.answered["result0"])


def _sets_hostname(case: Case) -> Answers:
    pod = read(Pod, case.given["pod"])
    reachable = replace(pod, status=replace(pod.status, pod_ips=(PodIP("10.0.0.1"),)))
    endpoint = build_endpoint(
        reachable, node=None, service=read(Service, case.given["svc"]), family="IPv4"
    )
    assert endpoint is not None
    return Answers(endpoint.hostname is not None, case.answered["result0"])


def _pod_changed(case: Case) -> Answers:
    ours = pod_change(read(Pod, case.given["oldPod"]), read(Pod, case.given["newPod"]))
    return Answers(tuple(ours), (case.answered["result0"], case.answered["result1"]))


def _equal_beyond_hash(case: Case) -> Answers:
    ours = same_beyond_id(read(Endpoint, case.given["ep1"]), read(Endpoint, case.given["ep2"]))
    return Answers(ours, case.answered["result0"])


def _needed_updates(case: Case) -> Answers:
    ours = services_after_labels(
        _named(case.given["oldServices"]),
        _named(case.given["services"]),
        pod_changed=case.given["podChanged"],
    )
    return Answers(ours, _named(case.answered["result0"]))


def _projection(case: Case) -> Answers:
    """Judge by the Services that follow: one for each set of labels of the pod."""
    old = read(Pod, case.given["oldObj"]) if "oldObj" in case.given else None
    new = read(Pod, case.given["newObj"]) if "newObj" in case.given else None
    pod = new or old
    assert pod is not None
    services = [
        Service(
            metadata=ObjectMeta(name=name, namespace=pod.metadata.namespace),
            spec=replace(Service().spec, selector=dict(each.metadata.labels)),
        )
        for name, each in (("old", old), ("new", new))
        if each is not None
    ]
    ours = services_for_pod_change(services, old=old, new=new)
    return Answers(ours, _projected(services, case.answered.get("result0")))


def _projected(services: list[Service], key: JsonObject | None) -> frozenset[NamespacedName]:
    """Return the Services that the key of Kubernetes asks to sync, by its own rule."""
    if key is None:
        return frozenset()
    selecting = [
        services_for_pod(services, namespace=key["Namespace"], labels=key.get(labels) or {})
        for labels in ("OldLabels", "Labels")
    ]
    if key.get("OldLabels") is None:
        return selecting[1]
    return services_after_labels(*selecting, pod_changed=key["PodChanged"])


def _services_to_update(case: Case) -> Answers:
    services = list(read_list(Service, case.given.get("services")))
    return Answers(_projected(services, case.given["key"]), _keys(case.answered["result0"]))


def _services_for_pod(case: Case) -> Answers:
    ours = services_for_pod(
        read_list(Service, case.given.get("services")),
        namespace=case.given["namespace"],
        labels=case.given.get("labels", {}),
    )
    return Answers(ours, _keys(case.answered["result0"]))


def _named(names: list[str]) -> frozenset[NamespacedName]:
    return frozenset(NamespacedName("", name) for name in names)


def _keys(texts: list[str]) -> frozenset[NamespacedName]:
    return frozenset(NamespacedName(*text.split("/")) for text in texts)


def _same_partition(
    of: Callable[[Any], object], read_input: Callable[[JsonObject], object]
) -> Judge:
    """Return a judge of hashes: ours must be equal exactly where those of Kubernetes are."""
    theirs_by_ours: dict[object, str] = {}
    ours_by_theirs: dict[str, object] = {}

    def judge(case: Case) -> Answers:
        ours = of(read_input(case.given))
        theirs = case.answered["result0"]
        return Answers(
            (ours, theirs_by_ours.setdefault(ours, theirs)),
            (ours_by_theirs.setdefault(theirs, ours), theirs),
        )

    return judge


class _Trackers:
    """Our trackers beside those of the tests, fed with the same calls in the same order."""

    def __init__(self) -> None:
        self.slices: dict[str, OwnWrites] = {}
        self.times: dict[str, TriggerTimeTracker] = {}

    def judge(self, case: Case) -> Answers | None:
        """Repeat a call."""
        kind, method = case.function.split(".")
        given = case.given
        if kind == "TriggerTimeTracker":
            tracker = self.times.setdefault(given["tracker"], TriggerTimeTracker())
            if method == "DeleteService":
                tracker.delete_service(NamespacedName(given["namespace"], given["name"]))
                return None
            ours = tracker.compute(
                read(Service, given["service"]), read_list(Pod, given.get("pods"))
            )
            # Times of the API have whole seconds; those of the tests had fractions before.
            return Answers(ours, _time(case.answered["result0"].split(".")[0].rstrip("Z") + "Z"))
        slices = self.slices.get(given["tracker"])
        if slices is None:
            slices = self.slices[given["tracker"]] = _tracker_of(given["state"])
        answer = self._ask(slices, method, given)
        return None if answer is None else Answers(answer, case.answered["result0"])

    def _ask(self, tracker: OwnWrites, method: str, given: JsonObject) -> bool | None:
        if method == "DeleteService":
            tracker.forget(NamespacedName(given["namespace"], given["name"]))
            return None
        if method == "StaleSlices":
            key = read(Service, given["service"]).key
            return tracker.is_cache_behind(key, read_list(EndpointSlice, given.get("slices")))
        endpoint_slice = read(EndpointSlice, given["slice"])
        has = endpoint_slice.metadata.uid in tracker._generations.get(
            endpoint_slice.service_key, {}
        )
        match method:
            case "Has":
                return has
            case "ShouldSync":
                return tracker._is_foreign(_managed(endpoint_slice))
            case "HandleDeletion":
                # NB: here the deletion of an unknown slice is that of another client.
                is_foreign = bool(tracker._foreign_writes(_managed(endpoint_slice), None))
                return not has or not is_foreign
            case "Update":
                tracker.record(_managed(endpoint_slice))
            case _:
                with tracker.deleting(endpoint_slice):
                    pass
        return None


def _managed(endpoint_slice: EndpointSlice) -> EndpointSlice:
    """Return the slice of a test with the label of the controller, which the tracker ignores."""
    meta = endpoint_slice.metadata
    labels = {**meta.labels, MANAGED_BY_LABEL: ENDPOINTSLICE_CONTROLLER}
    return replace(endpoint_slice, metadata=replace(meta, labels=labels))


def _tracker_of(state: dict[str, dict[str, int]]) -> OwnWrites:
    """Return own writes with those that a test wrote into the tracker of Kubernetes."""
    tracker = OwnWrites(
        Cache(),
        managed_by=ENDPOINTSLICE_CONTROLLER,
        on_foreign=lambda _: None,
        on_awaited=lambda _: None,
    )
    for service, generations in state.items():
        namespace, name = service.split("/")
        for uid, generation in generations.items():
            meta = ObjectMeta(
                name=uid,
                namespace=namespace,
                uid=uid,
                generation=generation,
                labels={SERVICE_NAME_LABEL: name},
            )
            if generation < 0:
                with tracker.deleting(EndpointSlice(metadata=meta)):
                    pass
            else:
                tracker.record(_managed(EndpointSlice(metadata=meta)))
    return tracker


def _reconcile(case: Case) -> Answers:
    given = case.given
    nodes = read_list(Node, given.get("nodes"))
    topology = given.get("topology")
    cluster = ClusterNodes.of(nodes)
    gates = DEFAULT_GATES
    if topology is None:
        gates = gates.without(Gate.TOPOLOGY_AWARE_HINTS)
    else:
        # The tests give their cache nodes of its own.
        cluster = replace(cluster, ratios=CpuRatios(topology.get("cpuRatiosByZone")))
    if not given["prefersSame"]:
        gates = gates.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
    settings = PlannerSettings(
        gates=gates, max_endpoints=given["max"], managed_by=given["controller"]
    )
    existing = read_list(EndpointSlice, given.get("existing"))
    # The slices of the tests come in any order, ours by name: names that keep the order given.
    names = {each.metadata.name: f"{index:03}" for index, each in enumerate(existing)}
    state = ServicePlanner(read(Service, given["service"]), cluster=cluster, settings=settings)
    for each in existing:
        metadata = replace(each.metadata, name=names[each.metadata.name])
        state.observe(replace(each, metadata=metadata))
    for pod in read_list(Pod, given.get("pods")):
        state.set_pod(pod)
    plan = state.plan(trigger_time=_time(given["trigger"]))
    # The API server fills in what Services of some tests leave out, and so do we.
    ports = given["service"]["spec"].get("ports", [])
    is_whole = all({"protocol", "targetPort"} <= port.keys() for port in ports)
    is_whole = is_whole and not any(port["targetPort"] == 0 for port in ports)
    writes = [as_write("delete", each) for each in plan.stray]
    for family in plan.plans.values():
        writes += [as_write("create", each, with_ports=is_whole) for each in family.create]
        writes += [as_write("update", each, with_ports=is_whole) for each in family.update]
        writes += [as_write("delete", each) for each in family.delete]
    theirs = []
    for action in case.answered.get("actions", [])[len(given.get("actions", ())) :]:
        if action["resource"]["Resource"] != "endpointslices":
            continue
        written = read(EndpointSlice, action.get("object", {}))
        name = names.get(action.get("name") or written.metadata.name, "")
        metadata = replace(written.metadata, name=name)
        written = replace(written, metadata=metadata)
        theirs.append(as_write(action["verb"], written, with_ports=is_whole))
    return Answers(unordered(writes), unordered(theirs))


def _read_ports(given: JsonObject) -> tuple[EndpointPort, ...]:
    return read_list(EndpointPort, given.get("endpointPorts"))


def _repacked(case: Case) -> Answers:
    """Compare subsets without their order, which follows from hashes in Go.

    A port with the number 0, which no API server stores, is no port at all for Go.
    """
    ours = repack(read_list(EndpointSubset, case.given.get("subsets")))
    theirs = read_list(EndpointSubset, case.answered.get("result0"))
    return Answers(_subset_sets(ours), _subset_sets(theirs))


def _subset_sets(subsets: tuple[EndpointSubset, ...]) -> list[str]:
    return sorted(
        str(
            EndpointSubset(
                tuple(sorted(subset.addresses, key=str)),
                tuple(sorted(subset.not_ready_addresses, key=str)),
                tuple(sorted((port for port in subset.ports if port.port), key=str)),
            )
        )
        for subset in subsets
    )


def _node_ready(case: Case) -> Answers:
    return Answers(read(Node, case.given["node"]).is_ready, case.answered["result0"])


JUDGES: dict[str, dict[str, Judge]] = {
    "endpointslice": {
        "podToEndpoint": _pod_to_endpoint,
        "getEndpointPorts": _endpoint_ports,
        "newEndpointSlice": _new_slice,
        "ownedBy": _owned_by,
        "addTriggerTimeAnnotation": _trigger_time_annotation,
        "ServiceControllerKey": _controller_key,
        "setEndpointSliceLabels": _labels,
        "getAddressTypesForService": _address_types,
        "hintsEnabled": _hints_enabled,
        "FindPort": _find_port,
        "Reconciler.Reconcile": _reconcile,
        "ShouldPodBeInEndpoints": _belongs,
        "ShouldSetHostname": _sets_hostname,
        "podEndpointsChanged": _pod_changed,
        "EndpointsEqualBeyondHash": _equal_beyond_hash,
        "NewPortMapKey": _same_partition(port_key, _read_ports),
        "determineNeededServiceUpdates": _needed_updates,
        "GetPodUpdateProjectionKey": _projection,
        "GetServicesToUpdate": _services_to_update,
        "getServicesForPod": _services_for_pod,
    },
    "endpointslicecontroller": {
        "Reconciler.Reconcile": _reconcile,
        "GetServicesToUpdate": _services_to_update,
        "getServicesForPod": _services_for_pod,
        "isNodeReady": _node_ready,
    },
    "endpoint": {
        "GetServicesToUpdate": _services_to_update,
        "getServicesForPod": _services_for_pod,
        "RepackSubsets": _repacked,
    },
}
TRACKED = {
    "endpointslice": (
        "EndpointSliceTracker.Has",
        "EndpointSliceTracker.ShouldSync",
        "EndpointSliceTracker.StaleSlices",
        "EndpointSliceTracker.Update",
        "EndpointSliceTracker.DeleteService",
        "EndpointSliceTracker.ExpectDeletion",
        "EndpointSliceTracker.HandleDeletion",
        "TriggerTimeTracker.ComputeEndpointLastChangeTriggerTime",
        "TriggerTimeTracker.DeleteService",
    ),
    "endpointslicecontroller": (
        "EndpointSliceTracker.StaleSlices",
        "EndpointSliceTracker.Update",
        "EndpointSliceTracker.DeleteService",
        "EndpointSliceTracker.ExpectDeletion",
        "TriggerTimeTracker.ComputeEndpointLastChangeTriggerTime",
        "TriggerTimeTracker.DeleteService",
    ),
    "endpoint": (
        "TriggerTimeTracker.ComputeEndpointLastChangeTriggerTime",
        "TriggerTimeTracker.DeleteService",
    ),
}


@pytest.mark.parametrize(("group", "function"), pairs(JUDGES))
def test_slices_are_those_of_kubernetes(group: str, function: str) -> None:
    """Slices, and all that leads to them, are those of the EndpointSlice controller."""
    compare(group, function, JUDGES[group][function])


@pytest.mark.parametrize("group", TRACKED)
def test_trackers_are_those_of_kubernetes(group: str) -> None:
    """What was written and what was seen is told apart as the EndpointSlice controller does."""
    compare_in_order(group, TRACKED[group], _Trackers().judge)


def test_every_recorded_function_is_compared() -> None:
    """Nothing that is recorded is left out without a reason."""
    check_all_judged(
        {group: {**judges, **dict.fromkeys(TRACKED[group])} for group, judges in JUDGES.items()}
    )
