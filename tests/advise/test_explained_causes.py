"""Every broken set-up has its cause, with its weight and its fix."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from keepclose.advise.explaining.causes import TrafficCauseCode
from keepclose.advise.explaining.explanation import TrafficFlow
from keepclose.heuristics.discovery import find_heuristics
from keepclose.model.acknowledgements import HintLevel, NodeAcknowledgement
from keepclose.model.endpointslice.types import EndpointHints, ForZone
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import ServicePort
from keepclose.model.well_known import (
    MAX_OVERLOAD_ANNOTATION,
    PROXY_NAME_LABEL,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.model.workload import Container, ContainerPort, NodeSpec, Pod, Taint
from keepclose.routing.heuristic_answers import Matrix, ZoneDemand
from keepclose.slices.settings import PlannerSettings
from support.builders import endpoint, endpoint_slice, node, pod
from support.explained import (
    NODES,
    PODS,
    changed,
    explain,
    healthy,
    relabel,
    reported,
    slices_of,
    versioned,
    web,
    without,
    written,
)

BLOCKED, DEFEATED, FINE = TrafficFlow.BLOCKED, TrafficFlow.NOT_AS_ASKED, TrafficFlow.AS_ASKED
PATCH = "kubectl patch service -n default web"
Code = TrafficCauseCode


class Broken(NamedTuple):
    """A cluster, the cause that is to be named, its fix, and what becomes of the traffic."""

    objects: list[object]
    code: TrafficCauseCode
    fix: str
    flow: TrafficFlow
    options: dict[str, Any] = {}


def port(target: int | str, *, name: str = "http", protocol: str = "TCP") -> tuple[ServicePort]:
    """Return the only port of a Service."""
    return (ServicePort(name=name, protocol=protocol, port=80, target_port=target),)


def unready(*names: str) -> list[Pod]:
    """Return pods of the healthy cluster as not ready."""
    return [
        pod(each.metadata.name, each.spec.node_name, ip=each.status.pod_ip, ready=False)
        for each in PODS
        if each.metadata.name in names
    ]


def labelled(**labels: str) -> list[Pod]:
    """Return the pods with other labels."""
    return [replace(each, metadata=replace(each.metadata, labels=labels)) for each in PODS]


def ports_of(each: Pod, *ports: ContainerPort) -> Pod:
    """Return a pod whose only container has these ports."""
    return replace(each, spec=replace(each.spec, containers=(Container("app", ports),)))


def written_then(made: list[object], *changes: object) -> list[object]:
    """Return a cluster that changed without its slices."""
    return changed(made, *changes)


def without_hints(objects: list[object], *addresses: str) -> list[object]:
    """Return the objects with the hints of some endpoints removed; without names of all."""
    return changed(
        objects,
        *(
            replace(
                each,
                endpoints=tuple(
                    replace(point, hints=None)
                    if not addresses or point.addresses[0] in addresses
                    else point
                    for point in each.endpoints
                ),
            )
            for each in slices_of(objects)
        ),
    )


def gates_off(*gates: Gate) -> dict[str, Any]:
    """Return the option of settings with some gates off."""
    return {"settings": PlannerSettings(gates=FeatureGates().without(*gates))}


def gates_on(*gates: Gate) -> dict[str, Any]:
    """Return the option of settings with some gates on, and ours as the heuristics."""
    enabled = FeatureGates().with_gates(*gates)
    if Gate.SERVICE_TOPOLOGY in gates:
        enabled = enabled.without(Gate.TOPOLOGY_AWARE_HINTS)
    return {"settings": PlannerSettings(gates=enabled, heuristics=find_heuristics(enabled))}


def hinted_elsewhere(objects: list[object]) -> list[object]:
    """Return the objects with every endpoint hinted for zone-b."""
    return changed(
        objects,
        *(
            replace(
                each,
                endpoints=tuple(
                    replace(point, hints=EndpointHints(for_zones=(ForZone("zone-b"),)))
                    for point in each.endpoints
                ),
            )
            for each in slices_of(objects)
        ),
    )


def numbered(objects: list[object], version: str) -> list[object]:
    """Return the objects with a resourceVersion of their slices."""
    return changed(
        objects,
        *(
            replace(each, metadata=replace(each.metadata, resource_version=version))
            for each in slices_of(objects)
        ),
    )


def cordoned(name: str, zone: str) -> object:
    """Return a node on which no pod is scheduled."""
    return replace(node(name, zone), spec=NodeSpec(unschedulable=True))


def refusal(name: str, why: str) -> NodeAcknowledgement:
    """Return what a proxy says that has the hints of the Service and does not use them."""
    levels = frozenset({HintLevel.ZONES, HintLevel.NODES})
    key = NamespacedName("default", "web")
    return NodeAcknowledgement(name, version=5, exceptions={key: why}, honors=levels)


def data_plane(app: str, *names: str) -> list[Pod]:
    """Return the pods of a data plane on some nodes."""
    return [
        pod(f"{app}-{name}", name, ip="192.0.2.1", namespace="kube-system", labels={"k8s-app": app})
        for name in names
    ]


FOREIGN = relabel(
    endpoint_slice(endpoint("10.9.9.9", zone="zone-a", for_zones=("zone-a",)), name="hand"),
    managed_by="me",
)
BY_HAND = [
    *NODES,
    web(selector=None),
    endpoint_slice(
        endpoint("10.9.9.9", zone="zone-a"), name="web-hand", labels={"x": "y"}, owner_uid=""
    ),
]
HAND_PORT = relabel(
    replace(
        endpoint_slice(endpoint("10.9.9.9", zone="zone-a"), name="hand"),
        ports=(replace(endpoint_slice().ports[0], name="web"),),
    ),
    managed_by="me",
)
THREE_IN_ONE = [
    pod(f"q{number}", "n1", ip=f"10.0.1.{number}", labels={"app": "web"}) for number in range(2)
]
HOST_PODS = [replace(each, spec=replace(each.spec, host_network=True)) for each in PODS]
TWINS = [
    replace(each, spec=replace(each.spec, host_network=True, node_name="n1")) for each in PODS[:2]
]


class Failing:
    """A heuristic of a third party that raises."""

    def allocate(self, demand: ZoneDemand) -> Matrix:
        """Raise."""
        raise ValueError(f"no answer for {len(demand.endpoints)} zones")


SUBSETTING = {SUBSETTING_ANNOTATION: "Prefer"}
AUTO = {TOPOLOGY_MODE_ANNOTATION: "Auto"}
TAINTED = replace(node("n3", "zone-c"), spec=NodeSpec(taints=(Taint("gpu", "yes", "NoSchedule"),)))

BROKEN = {
    "the selector has another value": Broken(
        written(*NODES, *labelled(app="web2"), web()),
        Code.SELECTOR_VALUE_DIFFERS,
        f'{PATCH} -p \'{{"spec":{{"selector":{{"app":"web2"}}}}}}\'',
        BLOCKED,
    ),
    "the selector has one label too many": Broken(
        written(*NODES, *PODS, web(selector={"app": "web", "tier": "front"})),
        Code.SELECTOR_KEY_MISSING,
        f'{PATCH} -p \'{{"spec":{{"selector":{{"tier":null}}}}}}\'',
        BLOCKED,
    ),
    "the pods are in another namespace": Broken(
        written(*NODES, pod(namespace="other"), web()),
        Code.PODS_IN_OTHER_NAMESPACE,
        "kubectl get pods -n other -l app=web",
        BLOCKED,
    ),
    "no pod runs": Broken(
        written(*NODES, pod(namespace="other", labels={}), web()),
        Code.NO_PODS,
        "kubectl get deployments,statefulsets,pods -n default --show-labels",
        BLOCKED,
    ),
    "the name of the target port is misspelled": Broken(
        written(*NODES, *PODS, web(ports=port("htpp"))),
        Code.TARGET_PORT_MISSING,
        f"{PATCH} --type json -p "
        '\'[{"op":"replace","path":"/spec/ports/0/targetPort","value":"http"}]\'',
        BLOCKED,
    ),
    "no container port has a name": Broken(
        written(
            *NODES,
            *(ports_of(each, ContainerPort("", 8080)) for each in PODS),
            web(ports=port("http")),
        ),
        Code.TARGET_PORT_MISSING,
        "kubectl get pod -n default p1 -o jsonpath='{.spec.containers[*].ports}'",
        BLOCKED,
    ),
    "the target port has another protocol": Broken(
        written(*NODES, *PODS, web(ports=port("http", protocol="UDP"))),
        Code.TARGET_PORT_PROTOCOL,
        f"{PATCH} --type json -p "
        '\'[{"op":"replace","path":"/spec/ports/0/protocol","value":"TCP"}]\'',
        BLOCKED,
    ),
    "no container declares the number": Broken(
        written(*NODES, *PODS, web(ports=port(9090))),
        Code.TARGET_PORT_UNDECLARED,
        "",
        FINE,
    ),
    "the port of a slice written by hand has another name": Broken(
        [*NODES, web(selector=None), HAND_PORT],
        Code.PORT_NAME_DIFFERS,
        "kubectl patch endpointslice -n default hand --type json -p "
        '\'[{"op":"replace","path":"/ports/0/name","value":"http"}]\'',
        BLOCKED,
    ),
    "no port of a slice written by hand is that of the Service": Broken(
        [*NODES, web(selector=None, ports=port(99, name="grpc")), HAND_PORT],
        Code.PORT_NAME_DIFFERS,
        "kubectl describe endpointslices -n default -l kubernetes.io/service-name=web",
        BLOCKED,
    ),
    "a readiness gate is not set": Broken(
        written(*NODES, web(), reported(unready("p1")[0], gates=("example.com/lb",))),
        Code.READINESS_GATE,
        "kubectl get pod -n default p1 -o jsonpath='{.status.conditions}'",
        BLOCKED,
    ),
    "a container crashes": Broken(
        written(*NODES, web(), reported(unready("p1")[0], waiting="CrashLoopBackOff")),
        Code.CONTAINER_WAITING,
        "kubectl logs -n default p1 -c app --previous",
        BLOCKED,
    ),
    "an image cannot be pulled": Broken(
        written(*NODES, web(), reported(unready("p1")[0], waiting="ImagePullBackOff")),
        Code.CONTAINER_WAITING,
        "kubectl describe pod -n default p1",
        BLOCKED,
    ),
    "a container has ended": Broken(
        written(*NODES, web(), reported(unready("p1")[0], ended=1)),
        Code.CONTAINER_ENDED,
        "kubectl logs -n default p1 -c app",
        BLOCKED,
    ),
    "the startup probe has not succeeded": Broken(
        written(*NODES, web(), reported(unready("p1")[0], started=False)),
        Code.CONTAINER_STARTING,
        "kubectl describe pod -n default p1",
        BLOCKED,
    ),
    "the readiness probe fails": Broken(
        written(*NODES, web(), reported(unready("p1")[0], started=True)),
        Code.READINESS_PROBE,
        "kubectl describe pod -n default p1",
        BLOCKED,
    ),
    "nothing but the condition is known": Broken(
        written(*NODES, web(), *unready("p1", "p2", "p3")),
        Code.POD_NOT_READY,
        "kubectl describe pod -n default p1",
        BLOCKED,
    ),
    "one of three pods is not ready": Broken(
        written(*NODES, web(traffic_distribution=None), *PODS[1:], *unready("p1")),
        Code.POD_NOT_READY,
        "kubectl describe pod -n default p1",
        FINE,
    ),
    "the only pod of a zone is not ready": Broken(
        written(*NODES, web(), *PODS[1:], *unready("p1")),
        Code.ZONE_UNREADY,
        "kubectl describe pod -n default p1",
        DEFEATED,
    ),
    "the node of the pods is not ready": Broken(
        written(node("n1", ready=False), web(), *unready("p1")),
        Code.POD_NODE_NOT_READY,
        "kubectl describe node n1",
        BLOCKED,
    ),
    "a pod has no node": Broken(
        written(*NODES, web(), pod("p1", "", ips=())),
        Code.POD_NOT_SCHEDULED,
        "kubectl describe pod -n default p1",
        BLOCKED,
    ),
    "a pod has no address": Broken(
        written(
            *NODES, web(), reported(pod("p1", ips=()), waiting="ContainerCreating", phase="Pending")
        ),
        Code.POD_WITHOUT_ADDRESS,
        "kubectl describe pod -n default p1",
        BLOCKED,
    ),
    "a pod was evicted": Broken(
        written(*NODES, web(), reported(pod("p1"), reason="Evicted", phase="Failed")),
        Code.POD_FINISHED,
        "kubectl describe pod -n default p1",
        BLOCKED,
    ),
    "the node of a pod does not exist": Broken(
        written(*NODES, web(), pod("p1", "n9")),
        Code.POD_ON_UNKNOWN_NODE,
        "kubectl get node n9",
        BLOCKED,
    ),
    "all pods terminate": Broken(
        written(
            *NODES,
            web(),
            *(pod(f"p{n}", f"n{n}", ip=f"10.0.0.{n}", terminating=True) for n in (1, 2)),
        ),
        Code.ONLY_TERMINATING,
        "",
        DEFEATED,
    ),
    "two pods share the network of a node": Broken(
        written(*NODES, web(), *TWINS),
        Code.HOST_NETWORK,
        "",
        DEFEATED,
    ),
    "pods use the network of their nodes": Broken(
        written(*NODES, web(), *HOST_PODS), Code.HOST_NETWORK, "", FINE
    ),
    "the pods have the other address family": Broken(
        written(
            *NODES,
            *PODS,
            web(ip_families=("IPv6",), cluster_ip="fd00::1", cluster_ips=("fd00::1",)),
        ),
        Code.ADDRESS_FAMILY,
        f'{PATCH} -p \'{{"spec":{{"ipFamilyPolicy":"PreferDualStack"}}}}\'',
        BLOCKED,
    ),
    "unready pods are published": Broken(
        written(*NODES, web(publish_not_ready_addresses=True), *PODS[1:], *unready("p1")),
        Code.PUBLISHES_UNREADY,
        f'{PATCH} -p \'{{"spec":{{"publishNotReadyAddresses":false}}}}\'',
        FINE,
    ),
    "an ExternalName": Broken(
        [*NODES, *PODS, web(type="ExternalName", external_name="example.com", cluster_ip="")],
        Code.EXTERNAL_NAME,
        "",
        FINE,
    ),
    "a headless Service": Broken(
        written(*NODES, *PODS, web(cluster_ip="None", cluster_ips=("None",))),
        Code.HEADLESS,
        "",
        DEFEATED,
    ),
    "no selector and no slices": Broken(
        [*NODES, *PODS, web(selector=None)], Code.NO_SELECTOR, "", BLOCKED
    ),
    "a Service of another proxy": Broken(
        healthy(labels={PROXY_NAME_LABEL: "mesh"}),
        Code.SERVED_BY_OTHER_PROXY,
        f"kubectl label service -n default web {PROXY_NAME_LABEL}-",
        FINE,
    ),
    "the annotation is above the field": Broken(
        written(
            *NODES,
            *PODS,
            *(pod(f"r{n}", f"n{n % 3 + 1}", ip=f"10.0.2.{n}") for n in range(1)),
            web(annotations=AUTO),
        ),
        Code.ANNOTATION_OVER_FIELD,
        "",
        DEFEATED,
    ),
    "our annotation is above the field": Broken(
        healthy(annotations={TRAFFIC_DISTRIBUTION_ANNOTATION: "PreferClose"}),
        Code.ANNOTATION_OVER_FIELD,
        "",
        FINE,
    ),
    "the gate is off": Broken(
        written(
            *NODES,
            *PODS,
            web(),
            settings=gates_off(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)["settings"],
        ),
        Code.GATE_OFF,
        "--feature-gates PreferSameTrafficDistribution=true",
        DEFEATED,
        gates_off(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION),
    ),
    "the value is misspelled": Broken(
        healthy(traffic_distribution="PreferSamezone"),
        Code.VALUE_NOT_SUPPORTED,
        f'{PATCH} -p \'{{"spec":{{"trafficDistribution":"PreferSameZone"}}}}\'',
        DEFEATED,
    ),
    "the topology annotation has an unknown value": Broken(
        healthy(annotations={TOPOLOGY_MODE_ANNOTATION: "on"}, traffic_distribution=None),
        Code.TOPOLOGY_DISABLED,
        "",
        DEFEATED,
    ),
    "nothing is asked": Broken(
        healthy(traffic_distribution=None),
        Code.NOTHING_ASKED,
        f'{PATCH} -p \'{{"spec":{{"trafficDistribution":"PreferSameZone"}}}}\'',
        FINE,
    ),
    "the internal policy is above hints": Broken(
        healthy(internal_traffic_policy="Local"), Code.POLICY_OVER_HINTS, "", FINE
    ),
    "the internal policy finds no endpoint on a node": Broken(
        written(*NODES, *PODS[:2], web(internal_traffic_policy="Local")),
        Code.NO_LOCAL_ENDPOINT,
        "run an endpoint on node n3",
        DEFEATED,
    ),
    "the external policy finds no endpoint on a node": Broken(
        written(
            *NODES,
            *PODS[:2],
            web(type="NodePort", external_traffic_policy="Local", traffic_distribution=None),
        ),
        Code.NO_LOCAL_ENDPOINT,
        "run an endpoint on node n3",
        FINE,
    ),
    "clients stick to their endpoints": Broken(
        healthy(session_affinity="ClientIP"),
        Code.SESSION_AFFINITY,
        f'{PATCH} -p \'{{"spec":{{"sessionAffinity":"None"}}}}\'',
        FINE,
    ),
    "no slices were written": Broken(
        [*NODES, *PODS, web(), endpoint_slice(name="other-x", service_name="other")],
        Code.SLICES_NOT_WRITTEN,
        "kubectl get lease -n kube-system kube-controller-manager; kubectl get events "
        "-n default --field-selector involvedObject.name=web",
        BLOCKED,
    ),
    "slices have a pod that is gone": Broken(
        without(healthy(), Pod, "p3"),
        Code.SLICES_STALE,
        "kubectl describe endpointslices -n default -l kubernetes.io/service-name=web",
        DEFEATED,
    ),
    "slices lack a new pod": Broken(
        [*healthy(), *THREE_IN_ONE],
        Code.SLICES_STALE,
        "kubectl describe endpointslices -n default -l kubernetes.io/service-name=web",
        DEFEATED,
    ),
    "slices have a pod as ready that is not": Broken(
        written_then(healthy(), *unready("p1")),
        Code.SLICES_STALE,
        "kubectl describe endpointslices -n default -l kubernetes.io/service-name=web",
        DEFEATED,
    ),
    "slices have the zone of before": Broken(
        written_then(healthy(), node("n1", "zone-b")),
        Code.SLICES_STALE,
        "kubectl describe endpointslices -n default -l kubernetes.io/service-name=web",
        DEFEATED,
    ),
    "a slice of another controller": Broken(
        [*healthy(), FOREIGN],
        Code.SLICES_OF_OTHER_CONTROLLER,
        "kubectl get endpointslice -n default hand -o yaml",
        FINE,
    ),
    "a slice without the label of the Service": Broken(
        [*NODES, web(selector=None), relabel(slices_of(BY_HAND)[0], service=None)],
        Code.SLICES_WITHOUT_SERVICE,
        "kubectl label endpointslice -n default web-hand kubernetes.io/service-name=web",
        BLOCKED,
    ),
    "a slice of an older Service": Broken(
        [*healthy(), endpoint_slice(endpoint("10.7.7.7"), name="web-old", owner_uid="gone")],
        Code.SLICES_OF_OLDER_SERVICE,
        "kubectl delete endpointslice -n default web-old",
        DEFEATED,
    ),
    "hints were never written": Broken(
        without_hints(healthy()),
        Code.HINTS_NOT_WRITTEN,
        "kubectl version  # a server of 1.34 or newer writes these hints",
        DEFEATED,
    ),
    "the built-in controller does not know the mechanism": Broken(
        without_hints(
            healthy(
                annotations={TRAFFIC_DISTRIBUTION_ANNOTATION: "PreferClose"},
                traffic_distribution=None,
            )
        ),
        Code.HINTS_NOT_WRITTEN,
        "keepclose controller --mode=webhook --webhook-url https://HOST:PORT",
        DEFEATED,
    ),
    "one endpoint lacks its hint": Broken(
        without_hints(healthy(), "10.0.0.2"),
        Code.HINTS_NOT_WRITTEN,
        "kubectl version  # a server of 1.34 or newer writes these hints",
        DEFEATED,
    ),
    "one endpoint written by hand lacks its hint": Broken(
        [
            *NODES,
            web(selector=None, traffic_distribution=None),
            endpoint_slice(
                endpoint("10.9.9.1", zone="zone-a", for_zones=("zone-a",)),
                endpoint("10.9.9.2", zone="zone-b"),
            ),
        ],
        Code.ENDPOINT_WITHOUT_HINT,
        "",
        DEFEATED,
    ),
    "hints were left behind": Broken(
        changed(healthy(), web(traffic_distribution=None)),
        Code.HINTS_LEFT_OVER,
        "kubectl describe endpointslices -n default -l kubernetes.io/service-name=web",
        DEFEATED,
    ),
    "the proxies ignore hints": Broken(
        changed(healthy(), web(traffic_distribution="PreferClose")),
        Code.HINTS_IGNORED,
        "",
        DEFEATED,
        gates_off(Gate.SERVICE_TRAFFIC_DISTRIBUTION, Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION),
    ),
    "the node of an endpoint has no zone": Broken(
        written(*NODES[:2], node("n3", None), *PODS, web()),
        Code.ENDPOINT_WITHOUT_ZONE,
        "kubectl label node n3 topology.kubernetes.io/zone=<zone>",
        DEFEATED,
    ),
    "the node of clients has no zone": Broken(
        written(*NODES[:2], node("n3", None), *PODS[:2], web()),
        Code.NODE_WITHOUT_ZONE,
        "kubectl label node n3 topology.kubernetes.io/zone=<zone>",
        DEFEATED,
    ),
    "Auto lacks the CPU of a node": Broken(
        written(
            *NODES[:2],
            node("n3", "zone-c", cpu=None),
            *PODS,
            web(annotations=AUTO, traffic_distribution=None),
        ),
        Code.NODE_INFO_MISSING,
        "make the kubelet of n3 report allocatable CPU",
        DEFEATED,
    ),
    "Auto has too few endpoints": Broken(
        written(*NODES, *PODS[:2], web(annotations=AUTO, traffic_distribution=None)),
        Code.TOO_FEW_ENDPOINTS,
        "run at least 3 ready pods, better three for each zone",
        DEFEATED,
    ),
    "Auto would overload a zone": Broken(
        written(
            *NODES,
            *PODS,
            pod("p4", "n1", ip="10.0.0.4"),
            web(annotations=AUTO, traffic_distribution=None),
        ),
        Code.ZONE_OVERLOADED,
        "run more pods",
        DEFEATED,
    ),
    "Auto leaves out the control plane": Broken(
        written(
            *NODES,
            node("cp", "zone-a", labels={"node-role.kubernetes.io/control-plane": ""}),
            *PODS,
            web(annotations=AUTO, traffic_distribution=None),
        ),
        Code.NODES_NOT_COUNTED,
        "",
        FINE,
    ),
    "there is one zone only": Broken(
        written(node("n1"), node("n2"), *PODS[:2], web()), Code.SINGLE_ZONE, "", FINE
    ),
    "a zone has no endpoint": Broken(
        written(*NODES, *PODS[:2], web()),
        Code.ZONE_WITHOUT_ENDPOINT,
        "run endpoints in zone zone-c, in proportion to its clients",
        FINE,
    ),
    "the nodes of a zone are cordoned": Broken(
        written(*NODES[:2], cordoned("n3", "zone-c"), *PODS[:2], web()),
        Code.ZONE_CORDONED,
        "kubectl uncordon n3",
        FINE,
    ),
    "the nodes of a zone are tainted": Broken(
        written(*NODES[:2], TAINTED, *PODS[:2], web()),
        Code.ZONE_TAINTED,
        "let the Pods tolerate gpu=yes, or run nodes without it in zone-c",
        FINE,
    ),
    "the proxies are too old": Broken(
        written(*(versioned(each, "v1.29.4-eks-1") for each in NODES), *PODS, web()),
        Code.PROXY_TOO_OLD,
        "kubectl get nodes -o wide  # kube-proxy follows these hints from 1.31 on",
        FINE,
    ),
    "the proxies do not know node hints": Broken(
        written(
            *(versioned(each, "v1.33.0") for each in NODES),
            *PODS,
            web(traffic_distribution="PreferSameNode"),
        ),
        Code.PROXY_TOO_OLD,
        "kubectl get nodes -o wide  # kube-proxy follows these hints from 1.34 on",
        FINE,
    ),
    "a proxy refuses the hints": Broken(
        healthy(),
        Code.PROXY_REFUSES_HINTS,
        "turn on their feature gate ServiceTrafficDistribution",
        DEFEATED,
        {"acknowledgements": [NodeAcknowledgement("n1", version=5)]},
    ),
    "a proxy does not use the hints though it should": Broken(
        healthy(),
        Code.PROXY_REFUSES_HINTS,
        "",
        DEFEATED,
        {"acknowledgements": [refusal("n1", "ZoneNotHinted")]},
    ),
    "Cilium runs in place of kube-proxy": Broken(
        [*healthy(), *data_plane("cilium", "n1", "n2", "n3")],
        Code.OTHER_DATA_PLANE,
        "kubectl get configmap -n kube-system cilium-config "
        "-o jsonpath='{.data.enable-service-topology}'",
        FINE,
    ),
    "a proxy has not taken the newest slice": Broken(
        numbered(healthy(), "9"),
        Code.PROXY_BEHIND,
        "kubectl get configmap -n kube-system keepclose-ack-n1 -o yaml",
        FINE,
        {
            "acknowledgements": [
                NodeAcknowledgement("n1", version=5, honors=frozenset({HintLevel.ZONES}))
            ]
        },
    ),
    "the hints are those of another zone": Broken(
        hinted_elsewhere(healthy()),
        Code.HINTS_DIFFER,
        "kubectl describe endpointslices -n default -l kubernetes.io/service-name=web",
        DEFEATED,
    ),
    "a limit of Balanced is no number": Broken(
        [
            *NODES,
            *PODS,
            web(
                traffic_distribution="keepclose.dev/Balanced",
                annotations={MAX_OVERLOAD_ANNOTATION: "much"},
            ),
        ],
        Code.SETTING_INVALID,
        f"set {MAX_OVERLOAD_ANNOTATION} to a part such as 0.2 or 20%, at most 1000%",
        DEFEATED,
        gates_on(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS),
    ),
    "a heuristic fails": Broken(
        [*NODES, *PODS, web(traffic_distribution="example.com/Fails")],
        Code.HEURISTIC_WITHOUT_ANSWER,
        "fix or upgrade the package that provides example.com/Fails, or ask for another value",
        DEFEATED,
        {
            "settings": PlannerSettings(
                gates=FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS),
                heuristics={"example.com/Fails": Failing()},
            )
        },
    ),
    "too few endpoints for subsets": Broken(
        [*NODES, *PODS, web(annotations=SUBSETTING, traffic_distribution=None)],
        Code.SUBSETS_NOT_BUILT,
        "run at least 12 ready pods",
        FINE,
        gates_on(Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.ENDPOINT_SLICE_SUBSETTING),
    ),
    "a Local policy excludes subsets": Broken(
        [
            *NODES,
            *PODS,
            web(
                annotations=SUBSETTING,
                traffic_distribution=None,
                internal_traffic_policy="Local",
            ),
        ],
        Code.POLICY_EXCLUDES_SUBSETTING,
        "",
        DEFEATED,
        gates_on(Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.ENDPOINT_SLICE_SUBSETTING),
    ),
    "no endpoint matches the topology keys": Broken(
        [
            *NODES,
            *PODS[:2],
            web(topology_keys=("topology.kubernetes.io/zone",), traffic_distribution=None),
        ],
        Code.TOPOLOGY_KEYS_UNMATCHED,
        "run endpoints where node n3 finds them by one of these labels",
        DEFEATED,
        gates_on(Gate.SERVICE_TOPOLOGY),
    ),
    "the endpoint of a slice written by hand is not ready": Broken(
        [
            *NODES,
            web(selector=None, traffic_distribution=None),
            endpoint_slice(endpoint("10.9.9.1", ready=False)),
        ],
        Code.NO_READY_ENDPOINT,
        "kubectl get endpointslices -n default -l kubernetes.io/service-name=web -o yaml",
        BLOCKED,
    ),
    "annotations of nodes show Cilium": Broken(
        written(
            *(
                replace(
                    each,
                    metadata=replace(
                        each.metadata,
                        annotations={"network.cilium.io/ipv4-cilium-host": "10.0.0.9"},
                    ),
                )
                for each in NODES
            ),
            *PODS,
            web(),
        ),
        Code.OTHER_DATA_PLANE,
        "kubectl get configmap -n kube-system cilium-config "
        "-o jsonpath='{.data.enable-service-topology}'",
        FINE,
    ),
    "the client's node is not ready": Broken(
        changed(healthy(), node("n1", ready=False)),
        Code.NODE_NOT_READY,
        "kubectl describe node n1",
        DEFEATED,
        {"source": "n1"},
    ),
    "the pod is not selected": Broken(
        [*healthy(), pod("q1", "n1", ip="10.0.5.1", labels={"app": "other"})],
        Code.POD_NOT_SELECTED,
        "kubectl label pod -n default q1 --overwrite app=web",
        BLOCKED,
        {"target": "q1"},
    ),
    "the pod is farther away than others": Broken(
        healthy(), Code.CLOSER_ENDPOINTS, "", BLOCKED, {"source": "n1", "target": "p3"}
    ),
    "the pod terminates": Broken(
        written(*NODES, *PODS[:2], pod("p3", "n3", ip="10.0.0.3", terminating=True), web()),
        Code.POD_TERMINATING,
        "",
        BLOCKED,
        {"target": "p3"},
    ),
    "the client has no address of the family": Broken(
        [
            *written(
                *NODES,
                *(pod(f"p{n}", f"n{n}", ip=f"fd00::{n}") for n in (1, 2, 3)),
                web(ip_families=("IPv6",), cluster_ip="fd00::a", cluster_ips=("fd00::a",)),
            ),
            pod("client", "n1", ip="10.0.6.1", labels={}),
        ],
        Code.ADDRESS_FAMILY,
        "",
        BLOCKED,
        {"source": "client"},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_up_has_its_cause(name: str) -> None:
    """The cause is named with its fix, and the verdict on the traffic is right."""
    broken = BROKEN[name]
    answer = explain(broken.objects, **broken.options)
    found = {cause.code: cause for cause in answer.causes}
    assert broken.code in found, answer.causes
    assert (found[broken.code].fix, answer.flow) == (broken.fix, broken.flow), answer.causes


def test_every_cause_has_a_broken_set_up() -> None:
    """No cause is named that no cluster of these tests has."""
    assert {broken.code for broken in BROKEN.values()} == set(TrafficCauseCode)


def test_a_cause_that_blocks_says_so() -> None:
    """Where connections get nothing, no vague cause stands beside the one that is to blame."""
    vague = TrafficCauseCode.NO_READY_ENDPOINT
    for name, broken in BROKEN.items():
        answer = explain(broken.objects, **broken.options)
        if answer.flow is BLOCKED and broken.code is not vague:
            assert vague not in {cause.code for cause in answer.causes}, name


def test_the_version_of_the_control_plane_is_evidence() -> None:
    """A controller of 1.30 knows no value of the field; PreferClose came first."""
    plane = node("cp", "zone-a", labels={"node-role.kubernetes.io/control-plane": ""})
    made = [*without_hints(healthy(traffic_distribution="PreferClose"))]
    answer = explain([*made, versioned(plane, "v1.30.2")])
    (cause,) = [each for each in answer.causes if each.code is Code.HINTS_NOT_WRITTEN]
    assert "runs Kubernetes 1.30, and its controller knows the value since 1.31" in cause.message
    assert cause.fix == "kubectl version  # a server of 1.31 or newer writes these hints"


def test_a_proxy_that_falls_back_by_design_is_not_to_blame() -> None:
    """The proxy of a zone without endpoints says that it has no hints to follow."""
    made = written(*NODES, *PODS[:2], web())
    answer = explain(made, acknowledgements=[refusal("n3", "ZoneNotHinted")])
    assert Code.PROXY_REFUSES_HINTS not in {cause.code for cause in answer.causes}
    assert answer.flow is FINE


def test_a_healthy_cluster_has_no_cause() -> None:
    """Nothing is to blame, and nothing is worth a note."""
    answer = explain(healthy())
    assert (answer.flow, answer.causes) == (FINE, ())
