"""The unit tables of kube-proxy, asked of our routing and of the rules that we write."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import DEFAULT_GATES, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.well_known import ZONE_LABEL
from keepclose.proxy.family import addresses_within
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy, routed_ports
from keepclose.ruleset.names import ServicePortKey
from keepclose.ruleset.ruleset import Ruleset
from keepclose.ruleset.settings import DetectLocal, LocalTraffic, RulesetSettings
from keepclose.ruleset.tables import Table
from keepclose.ruleset.tracer import Fate, Packet, TracedNode, trace_outcomes
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
)

pytestmark = pytest.mark.real

_SELF = "this-node"


def _policy(is_local: bool) -> TrafficPolicy:
    return TrafficPolicy.LOCAL if is_local else TrafficPolicy.CLUSTER


def _endpoint(info: JsonObject, node_name: str) -> PortEndpoint:
    address, _, port = info["endpoint"].rpartition(":")
    return PortEndpoint(
        address=address.strip("[]"),
        port=int(port),
        ready=info["ready"],
        serving=info["serving"],
        terminating=info["terminating"],
        node_name=node_name if info["isLocal"] else "another-node",
        zone_hints=tuple(info.get("zoneHints", ())),
        node_hints=tuple(info.get("nodeHints", ())),
    )


def _keys(endpoints: object) -> list[str]:
    return sorted(info["endpoint"] for info in (endpoints if isinstance(endpoints, list) else ()))


def _categorize(case: Case) -> Answers:
    given = case.given
    info = given["service"]
    gates = DEFAULT_GATES
    if "PreferSameTrafficDistribution=false" in given["gates"]:
        gates = gates.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
    port = RoutedPort(
        service=NamespacedName("default", "web"),
        name="",
        protocol="TCP",
        cluster_ip="10.96.0.1",
        port=80,
        node_port=info["nodePort"],
        external_ips=tuple(info.get("externalIPs", ())),
        load_balancer_ips=tuple(info.get("loadBalancerVIPs", ())),
        internal_policy=_policy(info["internalPolicyLocal"]),
        external_policy=_policy(info["externalPolicyLocal"]),
    )
    name = given["nodeName"] or _SELF
    zone = given.get("labels", {}).get(ZONE_LABEL, "")
    endpoints = [_endpoint(each, name) for each in given.get("endpoints", ())]
    if not gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION):
        # As when slices are read, node hints go with their gate.
        endpoints = [replace(each, node_hints=()) for each in endpoints]
    ours = select(port, endpoints, node=NodeView(name, zone), gates=gates)
    theirs = case.answered
    return Answers(
        (
            sorted(each.key for each in ours.cluster or ()),
            sorted(each.key for each in ours.local or ()),
            sorted(each.key for each in ours.reachable),
            ours.has_any,
        ),
        (
            _keys(theirs.get("clusterEndpoints")),
            _keys(theirs.get("localEndpoints")),
            _keys(theirs.get("allReachableEndpoints")),
            theirs["hasAnyEndpoints"],
        ),
    )


class _PortInfo(NamedTuple):
    """What kube-proxy keeps of a service port."""

    cluster_ip: str
    port: int
    protocol: str
    node_port: int
    affinity: str
    affinity_seconds: int
    external_ips: tuple[str, ...]
    load_balancer_ips: tuple[str, ...]
    source_ranges: tuple[str, ...]
    health_check_node_port: int
    internal_policy: TrafficPolicy
    external_policy: TrafficPolicy


def _our_info(port: RoutedPort) -> _PortInfo:
    return _PortInfo(
        str(ip_address(port.cluster_ip)),
        port.port,
        port.protocol,
        port.node_port,
        port.session_affinity,
        port.affinity_seconds,
        port.external_ips,
        port.load_balancer_ips,
        port.source_ranges,
        port.health_check_node_port,
        port.internal_policy,
        port.external_policy,
    )


def _their_info(info: JsonObject) -> _PortInfo:
    ranges = tuple(str(ip_network(each)) for each in info.get("loadBalancerSourceRanges", ()))
    return _PortInfo(
        info["clusterIP"],
        info["port"],
        # The API server fills in both where tests leave them out.
        info["protocol"] or "TCP",
        info["nodePort"],
        info["sessionAffinityType"] or "None",
        info["stickyMaxAgeSeconds"],
        tuple(info.get("externalIPs", ())),
        tuple(info.get("loadBalancerVIPs", ())),
        ranges,
        info["healthCheckNodePort"],
        _policy(info["internalPolicyLocal"]),
        _policy(info["externalPolicyLocal"]),
    )


def _service_info(case: Case) -> Answers:
    port = read(ServicePort, case.given["port"])
    service = read(Service, case.given["service"])
    service = replace(service, spec=replace(service.spec, ports=(port,)))
    (ours,) = routed_ports(service, case.given["ipFamily"], gates=DEFAULT_GATES)
    return Answers(_our_info(ours), _their_info(case.answered["result0"]))


def _with_port(raw: object) -> Service:
    service = read(Service, raw)
    # An API server never leaves one of the two out.
    addresses = (service.spec.cluster_ip, *service.spec.cluster_ips)
    primary = next((address for address in addresses if address), "")
    spec = replace(service.spec, ports=(ServicePort(port=80),), cluster_ip=primary)
    return replace(service, spec=spec)


def _should_skip(case: Case) -> Answers:
    service = _with_port(case.given["service"])
    ports = [routed_ports(service, each, gates=DEFAULT_GATES) for each in ("IPv4", "IPv6")]
    return Answers(not any(ports), case.answered["result0"])


def _cluster_ip(case: Case) -> Answers:
    ports = routed_ports(
        _with_port(case.given["service"]), case.given["ipFamily"], gates=DEFAULT_GATES
    )
    return Answers(ports[0].cluster_ip if ports else "", case.answered["result0"])


def _node_ips(case: Case) -> Answers:
    addresses = [str(ip_interface(each).ip) for each in case.given["network"]]
    ours = addresses_within(case.given["cidrs"], addresses)
    # In its nftables mode, kube-proxy leaves loopback addresses out afterwards.
    theirs = [each for each in case.answered.get("result0", ()) if not ip_address(each).is_loopback]
    return Answers(sorted(ours), sorted(theirs))


class _Trackers:
    """What trackers of kube-proxy were told, and what follows from it for us."""

    def __init__(self) -> None:
        self.services: dict[str, dict[NamespacedName, Service]] = {}
        self.slices: dict[str, dict[tuple[str, str], EndpointSlice]] = {}
        self.families: dict[str, str] = {}
        self.nodes: dict[str, str] = {}

    def judge(self, case: Case) -> Answers | None:
        """Take in a change, or compare what all changes so far come to."""
        tracker = case.given["tracker"]
        match case.function:
            case "ServiceChangeTracker.Update":
                self._change_service(tracker, case.given)
            case "EndpointsChangeTracker.EndpointSliceUpdate":
                self._change_slice(tracker, case.given)
            case "ServicePortMap.Update":
                return self._services(tracker, case)
            case _:
                return self._endpoints(tracker, case)
        return None

    def _change_service(self, tracker: str, given: JsonObject) -> None:
        known = self.services.setdefault(tracker, {})
        self.families[tracker] = given["family"]
        if "previous" in given:
            known.pop(read(Service, given["previous"]).key, None)
        if "current" in given:
            service = read(Service, given["current"])
            known[service.key] = service

    def _change_slice(self, tracker: str, given: JsonObject) -> None:
        known = self.slices.setdefault(tracker, {})
        self.families[tracker] = given["type"]
        self.nodes[tracker] = given["node"]
        endpoint_slice = read(EndpointSlice, given["slice"])
        key = (endpoint_slice.metadata.namespace, endpoint_slice.metadata.name)
        if given["remove"]:
            known.pop(key, None)
        else:
            known[key] = endpoint_slice

    def _services(self, tracker: str, case: Case) -> Answers:
        ours = {
            _port_name(key, port.name): _our_info(port)
            for key, service in self.services.get(tracker, {}).items()
            for port in routed_ports(service, self.families[tracker], gates=DEFAULT_GATES)
        }
        theirs = {name: _their_info(info) for name, info in case.answered["map"].items()}
        return Answers(ours, theirs)

    def _endpoints(self, tracker: str, case: Case) -> Answers:
        by_service: dict[NamespacedName, list[EndpointSlice]] = {}
        for endpoint_slice in self.slices.get(tracker, {}).values():
            by_service.setdefault(endpoint_slice.service_key, []).append(endpoint_slice)
        node = self.nodes.get(tracker, "")
        ours = {
            _port_name(key, name): [_our_endpoint(each, node) for each in endpoints]
            for key, slices in by_service.items()
            for (name, _), endpoints in collect_endpoints(
                slices, self.families[tracker], gates=DEFAULT_GATES
            ).items()
        }
        theirs = {
            name: [_their_endpoint(info) for info in infos]
            for name, infos in case.answered["map"].items()
        }
        return Answers(ours, theirs)


def _port_name(key: NamespacedName, name: str) -> str:
    return f"{key}:{name}" if name else str(key)


class _EndpointInfo(NamedTuple):
    """What kube-proxy keeps of an endpoint."""

    endpoint: str
    is_local: bool
    ready: bool
    serving: bool
    terminating: bool
    zones: list[str]
    nodes: list[str]


def _our_endpoint(endpoint: PortEndpoint, node: str) -> _EndpointInfo:
    return _EndpointInfo(
        endpoint.key,
        endpoint.node_name == node and bool(node),
        endpoint.ready,
        endpoint.serving,
        endpoint.terminating,
        sorted(endpoint.zone_hints),
        sorted(endpoint.node_hints),
    )


def _their_endpoint(info: JsonObject) -> _EndpointInfo:
    return _EndpointInfo(
        info["endpoint"],
        info["isLocal"],
        info["ready"],
        info["serving"],
        info["terminating"],
        sorted(info.get("zoneHints", ())),
        sorted(info.get("nodeHints", ())),
    )


class _Synced(NamedTuple):
    """What a proxy knew when it last wrote its rules."""

    settings: JsonObject
    services: dict[NamespacedName, Service]
    slices: dict[tuple[str, str], EndpointSlice]


class _Proxies:
    """Our rules for what the proxies of the tests were told, and packets that go through them."""

    def __init__(self) -> None:
        self._services: dict[str, dict[NamespacedName, Service]] = {}
        self._slices: dict[str, dict[tuple[str, str], EndpointSlice]] = {}
        self._synced: dict[str, _Synced] = {}
        self._tables: dict[str, Table] = {}

    def judge(self, case: Case) -> Answers | None:
        """Take in a change, write the rules, or send a packet."""
        given = case.given
        if case.function == "tracePacket":
            return self._trace(case)
        services = self._services.setdefault(given["proxier"], {})
        slices = self._slices.setdefault(given["proxier"], {})
        if case.function == "Proxier.syncProxyRules":
            self._synced[given["nft"]] = _Synced(given, dict(services), dict(slices))
            self._tables.pop(given["nft"], None)
        elif "object" not in given:
            # A deletion calls the update with nothing; the deletion itself follows.
            pass
        elif "EndpointSlice" in case.function:
            endpoint_slice = read(EndpointSlice, given["object"])
            key = (endpoint_slice.metadata.namespace, endpoint_slice.metadata.name)
            slices[key] = endpoint_slice
            if case.function.endswith("Delete"):
                del slices[key]
        else:
            service = read(Service, given["object"])
            services[service.key] = service
            if case.function.endswith("Delete"):
                del services[service.key]
        return None

    def _trace(self, case: Case) -> Answers:
        given = case.given
        if given["nft"] not in self._tables:
            self._tables[given["nft"]] = _write_table(self._synced[given["nft"]], given["nodeIPs"])
        outcomes = trace_outcomes(
            self._tables[given["nft"]],
            Packet(
                source=given["source"],
                destination=given["destination"],
                port=int(given["port"]),
                protocol=given["protocol"],
            ),
            TracedNode(addresses=frozenset(given["nodeIPs"])),
        )
        ours = ", ".join(dict.fromkeys(_shown(each.trace) for each in outcomes))
        return Answers(
            (ours, outcomes[0].trace.masqueraded),
            (case.answered["result1"], case.answered["result2"]),
        )


def _shown(trace: Any) -> str:
    if trace.endpoint is not None and trace.fate is Fate.PASSED:
        address, port = trace.endpoint
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return {Fate.PASSED: "", Fate.DROPPED: "DROP", Fate.REJECTED: "REJECT"}[trace.fate]


def _write_table(synced: _Synced, node_ips: list[str]) -> Table:
    given = synced.settings
    family = given["family"]
    local = given["local"].get("ifLocalNFT", [])
    traffic = LocalTraffic()
    if local[1:2] == ["saddr"]:
        traffic = LocalTraffic(DetectLocal.CIDR, local[2])
    addresses = given["nodePortAddresses"]
    nodeport_ips = None
    if not addresses["matchAll"]:
        nodeport_ips = addresses_within(addresses["cidrStrings"], node_ips)
    ruleset = Ruleset(
        RulesetSettings(
            family=family,
            node_name=given["nodeName"],
            node_ip=given["nodeIP"],
            local_traffic=traffic,
            masquerade_all=given["masqueradeAll"],
            nodeport_ips=nodeport_ips,
            service_cidrs=tuple(each for each in given["serviceCIDRs"].split(",") if each),
        )
    )
    zone = given.get("topologyLabels", {}).get(ZONE_LABEL, "")
    for key, service in synced.services.items():
        slices = [each for each in synced.slices.values() if each.service_key == key]
        endpoints = collect_endpoints(slices, family, gates=DEFAULT_GATES)
        for port in routed_ports(service, family, gates=DEFAULT_GATES):
            selection = select(
                port,
                endpoints.get(port.key, ()),
                node=NodeView(given["nodeName"], zone),
                gates=DEFAULT_GATES,
            )
            ruleset.set_port(ServicePortKey.of(port), port, selection)
    return ruleset.model()


JUDGES: dict[str, dict[str, Judge]] = {
    "proxy": {
        "CategorizeEndpoints": _categorize,
        "newBaseServiceInfo": _service_info,
        "ShouldSkipService": _should_skip,
        "GetClusterIPByFamily": _cluster_ip,
        "NodePortAddresses.GetNodeIPs": _node_ips,
    },
}
TRACKED = (
    "ServiceChangeTracker.Update",
    "ServicePortMap.Update",
    "EndpointsChangeTracker.EndpointSliceUpdate",
    "EndpointsMap.Update",
)
TRACED = (
    "Proxier.OnServiceAdd",
    "Proxier.OnServiceUpdate",
    "Proxier.OnServiceDelete",
    "Proxier.OnEndpointSliceAdd",
    "Proxier.OnEndpointSliceUpdate",
    "Proxier.OnEndpointSliceDelete",
    "Proxier.syncProxyRules",
    "tracePacket",
)


@pytest.mark.parametrize(("group", "function"), pairs(JUDGES))
def test_routing_is_that_of_kube_proxy(group: str, function: str) -> None:
    """What a node makes of Services and endpoints is what kube-proxy makes of them."""
    compare(group, function, JUDGES[group][function])


def test_changes_come_to_what_kube_proxy_has() -> None:
    """After the same changes we know the same service ports and endpoints."""
    compare_in_order("proxy", TRACKED, _Trackers().judge)


def test_packets_go_where_kube_proxy_sends_them() -> None:
    """Packets through our rules end where packets through the rules of kube-proxy end."""
    compare_in_order("nftables", TRACED, _Proxies().judge)


def test_every_recorded_function_is_compared() -> None:
    """Nothing that is recorded is left out without a reason."""
    check_all_judged(
        {
            "proxy": {**JUDGES["proxy"], **dict.fromkeys(TRACKED)},
            "nftables": dict.fromkeys(TRACED),
        }
    )
