"""Sends real connections to a Service and compares where they went with where they should go.

The expectation comes from the same decisions that the proxies apply, with the objects in the API
before and after the run. If these differ, shares cannot be compared, because it is unknown which
connections came before the change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from keepclose.advise.expectations import (
    Expectation,
    NamedPortEndpoints,
    expect,
    name_endpoints,
)
from keepclose.heuristics.discovery import find_heuristics
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.lab.access import LabRefusal, LabView
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.traffic.answers import ConnectionResult
from keepclose.lab.traffic.connections import connect_all
from keepclose.lab.traffic.expected_shares import find_fault
from keepclose.lab.traffic.failure_causes import (
    explain_ignored_fields,
    explain_missing_hints,
    explain_plan,
    find_causes,
)
from keepclose.lab.traffic.report import (
    Observation,
    TrafficReport,
    TrafficSums,
    make_row,
    make_source_row,
    sum_up_traffic,
)
from keepclose.lab.traffic.targets import (
    NO_ADDRESS,
    TrafficSource,
    TrafficTarget,
    choose_target,
    find_service,
    find_sources,
    read_traffic_request,
)
from keepclose.model.addresses import IPV6
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject
from keepclose.model.service.types import Service
from keepclose.model.well_known import SERVICE_NAME_LABEL
from keepclose.model.workload import Node
from keepclose.routing.port_endpoints import NodeView, labels_by_node
from keepclose.routing.selection import PacketVerdict
from keepclose.routing.service_ports import TrafficPolicy, routed_ports
from keepclose.routing.strategy import StrategyName, choose_strategy
from keepclose.system.namespaces import NetworkError, NetworkNamespace
from keepclose.system.threads import finish_in_thread

_ReportProgress = Callable[[JsonObject], None]
_BROKE_OFF: Final = 1
_NEEDS_PRIVILEGE: Final = 5
# A busy machine may take seconds to answer.
_TIMEOUT_S: Final = 5.0


class ObservedState(NamedTuple):
    """The state of a service port and of the nodes in the API."""

    port: NamedPortEndpoints
    nodes: dict[str, Node]

    @property
    def zones(self) -> dict[str, str]:
        """The zone of each node, "" for none."""
        return {name: node.zone for name, node in self.nodes.items()}

    @property
    def lost(self) -> tuple[str, ...]:
        """The nodes whose Ready condition is Unknown."""
        return tuple(sorted(name for name, node in self.nodes.items() if _is_lost(node)))

    def expect(self, node: str, target: TrafficTarget, gates: FeatureGates) -> Expectation:
        """Return where the connections should go that the node routes."""
        cached = self.nodes.get(node)
        view = (
            NodeView.of(cached, labels_by_node(self.nodes.values())) if cached else NodeView(node)
        )
        return expect(self.port, node=view, gates=gates, from_outside=target.is_outside)


async def handle_traffic(
    lab: LabView, params: JsonObject, report_progress: _ReportProgress
) -> JsonObject:
    """Send the requested traffic and return the report; raises LabRefusal."""
    request = read_traffic_request(params)
    underlay = lab.underlay
    if underlay is None:
        raise LabRefusal(
            f"this cluster has no packets ({lab.no_packets}); "
            "keepclose resolve -f FILE shows where they would go",
            code=_NEEDS_PRIVILEGE,
        )
    service = await find_service(lab.client, request.service)
    target = choose_target(service, request, gates=lab.gates)
    before = await _observe(lab, target)
    spared = [
        name
        for name in underlay.nodes
        if target.port.health_check_node_port
        and before.expect(name, target, lab.gates).verdict is PacketVerdict.DROP
    ]
    lost = before.lost if not request.source or request.source in before.zones.values() else ()
    sources = await find_sources(
        lab, underlay, target, request, zones=before.zones, spared=(*spared, *lost)
    )
    if not sources:
        text = (
            f"no node is healthy for the load balancer of Service {service.key}"
            if target.is_outside
            else f"all nodes that could connect to Service {service.key} are lost"
        )
        raise LabRefusal(text, code=NO_ADDRESS)
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        results = await _send(
            sources, udp=request.udp, routing=underlay.routing, report_progress=report_progress
        )
    except (OSError, NetworkError) as error:
        raise LabRefusal(f"the traffic broke off: {error}", code=_BROKE_OFF) from None
    seconds = clock() - started
    after = await _observe_again(lab, target, before)
    seen, notes, compares_shares = _judge(
        sources, results, target, before=before, after=after, gates=lab.gates
    )
    if lost:
        notes.append(f"lost nodes send nothing: {', '.join(lost)}")
    sums = sum_up_traffic(
        seen, zones=before.zones, ready=before.port.ready, compares_shares=compares_shares
    )
    report = _report(
        seen, sums, target, before=before, gates=lab.gates, seconds=seconds, notes=notes
    )
    causes = await _find_causes(lab, target) if report.failed else []
    heuristics = find_heuristics(lab.gates)
    strategy = choose_strategy(service, gates=lab.gates, heuristics=heuristics)
    causes += explain_ignored_fields(strategy)
    if hints := explain_missing_hints(service, strategy, before.port.endpoints):
        causes.append(hints)
    elif plan := explain_plan(service, strategy):
        causes.append(plan)
    report = msgspec.structs.replace(report, causes=tuple(causes))
    document: JsonObject = msgspec.to_builtins(report)
    return document


def name_mechanism(service: Service, target: TrafficTarget, gates: FeatureGates) -> str:
    """Return what routes the connections: the mechanism, and a policy other than Cluster."""
    strategy = choose_strategy(service, gates=gates, heuristics=find_heuristics(gates))
    words = [] if strategy.name is StrategyName.NONE else [strategy.label]
    port = target.port
    policy = port.external_policy if target.is_outside else port.internal_policy
    if policy is not TrafficPolicy.CLUSTER:
        field = "externalTrafficPolicy" if target.is_outside else "internalTrafficPolicy"
        words.append(f"{field} {policy.value}")
    return ", ".join(words) or "no trafficDistribution"


def _is_lost(node: Node) -> bool:
    return any(
        condition.type == "Ready" and condition.status == "Unknown"
        for condition in node.status.conditions
    )


async def _observe(lab: LabView, target: TrafficTarget) -> ObservedState:
    meta = target.service.metadata
    slices = await lab.client.list_all(
        ENDPOINT_SLICES,
        namespace=meta.namespace,
        label_selector=f"{SERVICE_NAME_LABEL}={meta.name}",
    )
    nodes = {node.name: node for node in (await lab.client.list_all(NODES)).items}
    is_named = all(
        endpoint.target_ref
        for endpoint_slice in slices.items
        for endpoint in endpoint_slice.endpoints
    )
    pods = [] if is_named else (await lab.client.list_all(PODS)).items
    named = name_endpoints(
        target.port,
        slices.items,
        family=target.family,
        zones={name: node.zone for name, node in nodes.items()},
        pods=pods,
        gates=lab.gates,
    )
    return ObservedState(named, nodes)


async def _observe_again(
    lab: LabView, target: TrafficTarget, before: ObservedState
) -> ObservedState:
    """Return the current state; the former state if the port is gone."""
    key = target.service.key
    try:
        service = await lab.client.get(SERVICES, key.name, namespace=key.namespace)
    except NotFound:
        return before
    for port in routed_ports(service, target.family, gates=lab.gates):
        if port.key == target.port.key:
            return await _observe(lab, target._replace(service=service, port=port))
    return before


async def _find_causes(lab: LabView, target: TrafficTarget) -> list[str]:
    """Return what is wrong with the Service or its pods and may cause failures."""
    service = target.service
    namespace = service.metadata.namespace
    pods = (await lab.client.list_all(LAB_PODS, namespace=namespace)).items
    requested = (target.port.name, target.port.protocol)
    for port in service.spec.ports:
        if ((port.name or ""), port.protocol) == requested:
            return find_causes(service, port, pods)
    return []


async def _send(
    sources: Sequence[TrafficSource],
    *,
    udp: bool,
    routing: asyncio.Lock,
    report_progress: _ReportProgress,
) -> list[Counter[ConnectionResult]]:
    total = sum(source.caller.times for source in sources)
    earlier = 0

    def on_progress(done: int) -> None:
        report_progress({"done": earlier + done, "of": total})

    on_progress(0)
    if not sources[0].gateway:
        return await connect_all(
            [source.caller for source in sources],
            udp=udp,
            timeout_s=_TIMEOUT_S,
            on_progress=on_progress,
        )
    results: list[Counter[ConnectionResult]] = []
    # One route to the load balancer's address at a time.
    async with routing:
        for source in sources:
            try:
                await _route_via_node(source)
                results += await connect_all(
                    [source.caller], udp=udp, timeout_s=_TIMEOUT_S, on_progress=on_progress
                )
            finally:
                # If there is no route to delete, adding it has failed.
                with suppress(NetworkError):
                    await _route_via_node(source, remove=True)
            earlier += source.caller.times
    return results


async def _route_via_node(source: TrafficSource, *, remove: bool = False) -> None:
    """Set or delete the outside host's route to the load balancer's address via a node."""
    family = "-6" if ":" in source.gateway else "-4"
    what = ("route", "delete" if remove else "replace", source.caller.host, "via", source.gateway)
    namespace = source.caller.namespace
    if isinstance(namespace, NetworkNamespace):
        await finish_in_thread(lambda: namespace.run("ip", family, *what))


def _judge(
    sources: Sequence[TrafficSource],
    results: Sequence[Counter[ConnectionResult]],
    target: TrafficTarget,
    *,
    before: ObservedState,
    after: ObservedState,
    gates: FeatureGates,
) -> tuple[list[Observation], list[str], bool]:
    """Return the observations of all sources, notes, and whether shares were compared."""
    expected = {source.node: before.expect(source.node, target, gates) for source in sources}
    later = {source.node: after.expect(source.node, target, gates) for source in sources}
    judged = sum(len(expected[source.node].shares) for source in sources)
    notes = []
    is_sticky = target.port.session_affinity != "None"
    if is_sticky:
        notes.append(
            "sessionAffinity ClientIP: a client stays with its endpoint, so shares are not compared"
        )
    has_changed = any(expected[node].shares != later[node].shares for node in expected)
    if has_changed:
        notes.append("endpoints changed during the run, so shares are not compared on every node")
    seen = []
    named = {
        endpoint.pod: endpoint
        for observed in (after, before)
        for endpoint in observed.port.named.values()
    }
    for source, counts in zip(sources, results, strict=True):
        first, second = expected[source.node], later[source.node]
        is_same = first.shares == second.shares and first.verdict == second.verdict
        fault = find_fault(
            counts,
            [first] if is_same else [first, second],
            compares_shares=not is_sticky,
            judged=judged,
        )
        seen.append(
            Observation(
                source.group, source.name, source.node, source.zone, counts, first, named, fault
            )
        )
    return seen, notes, not is_sticky and not has_changed


def _report(
    seen: Sequence[Observation],
    sums: TrafficSums,
    target: TrafficTarget,
    *,
    before: ObservedState,
    gates: FeatureGates,
    seconds: float,
    notes: Sequence[str],
) -> TrafficReport:
    zones = before.zones
    groups: dict[str, list[Observation]] = {}
    for observation in seen:
        groups.setdefault(observation.group, []).append(observation)
    rows = tuple(make_row(group, observations, zones) for group, observations in groups.items())
    sources = tuple(make_source_row(observation, zones) for observation in seen)
    places = {*zones.values(), *(zone for row in rows for zone in (*row.answered, *row.expected))}
    nodes = {*zones, *(node for row in sources for node in (*row.answered, *row.expected))}
    return TrafficReport(
        service=str(target.service.key),
        port=f"{target.port.name} {target.port.port}/{target.port.protocol}".strip(),
        address=_address(target),
        via=target.via.value,
        mechanism=name_mechanism(target.service, target, gates),
        seconds=round(seconds, 3),
        connections=sums.connections,
        failed=sum(sums.failures.values()),
        failures=sums.failures,
        as_expected=not any(observation.fault for observation in seen),
        zones=tuple(sorted(places)),
        nodes=tuple(sorted(nodes, key=lambda name: (zones.get(name, ""), name))),
        rows=rows,
        sources=sources,
        in_zone=sums.in_zone,
        on_node=sums.on_node,
        endpoints=len(before.port.ready),
        busiest=sums.busiest,
        notes=tuple(notes),
    )


def _address(target: TrafficTarget) -> str:
    port = target.port
    if target.via.value == "node-port":
        return f"every node:{port.node_port}"
    address = port.load_balancer_ips[0] if target.is_outside else port.cluster_ip
    return f"[{address}]:{port.port}" if target.family == IPV6 else f"{address}:{port.port}"
