"""Real connections to a Service, and where they went beside where they should go.

What should happen is asked of the same decisions that the proxies follow, with the objects that are
in the API before the run and after it. Where these differ, shares cannot be compared, because
nobody knows which connection came before the change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from keepclose.heuristics.discovery import find_heuristics
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.lab.access import LabRefusal, LabView
from keepclose.lab.kubelet.pod_specs import KUBELET_PODS
from keepclose.lab.traffic.answers import ConnectionResult
from keepclose.lab.traffic.connections import connect_all
from keepclose.lab.traffic.expected_shares import (
    Expectation,
    PortGoals,
    expect,
    find_fault,
    find_goals,
)
from keepclose.lab.traffic.failure_causes import (
    PodView,
    explain_ignored_wishes,
    explain_missing_hints,
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

_Tell = Callable[[JsonObject], None]
_BROKE_OFF: Final = 1
_NEEDS_PRIVILEGE: Final = 5
# What takes longer is lost; a busy machine may take seconds to answer.
_PATIENCE_S: Final = 5.0


class Knowledge(NamedTuple):
    """What the API holds about a service port."""

    port: PortGoals
    nodes: dict[str, Node]

    @property
    def zones(self) -> dict[str, str]:
        """The zone of each node, "" for none."""
        return {name: node.zone for name, node in self.nodes.items()}

    @property
    def lost(self) -> tuple[str, ...]:
        """The nodes of which nothing has been heard for a while."""
        return tuple(sorted(name for name, node in self.nodes.items() if _is_lost(node)))

    def expect(self, node: str, target: TrafficTarget, gates: FeatureGates) -> Expectation:
        """Return where connections go that the node routes."""
        found = self.nodes.get(node)
        view = NodeView.of(found, labels_by_node(self.nodes.values())) if found else NodeView(node)
        return expect(self.port, node=view, gates=gates, from_outside=target.is_outside)


async def handle_traffic(lab: LabView, params: JsonObject, tell: _Tell) -> JsonObject:
    """Send traffic as asked for and return the report; raises LabRefusal."""
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
    before = await _learn(lab, target)
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
        what = "is healthy for its load balancer" if target.is_outside else "that is asked is alive"
        raise LabRefusal(f"no node of Service {service.key} {what}", code=NO_ADDRESS)
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        results = await _send(sources, udp=request.udp, routing=underlay.routing, tell=tell)
    except (OSError, NetworkError) as error:
        raise LabRefusal(f"the traffic broke off: {error}", code=_BROKE_OFF) from None
    seconds = clock() - started
    after = await _learn_again(lab, target, before)
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
    causes += explain_ignored_wishes(strategy)
    if hints := explain_missing_hints(service, strategy, before.port.endpoints):
        causes.append(hints)
    report = msgspec.structs.replace(report, causes=tuple(causes))
    document: JsonObject = msgspec.to_builtins(report)
    return document


def _is_lost(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "Unknown" for one in node.status.conditions)


async def _learn(lab: LabView, target: TrafficTarget) -> Knowledge:
    meta = target.service.metadata
    slices = await lab.client.list_all(
        ENDPOINT_SLICES,
        namespace=meta.namespace,
        label_selector=f"{SERVICE_NAME_LABEL}={meta.name}",
    )
    nodes = {one.name: one for one in (await lab.client.list_all(NODES)).items}
    is_named = all(one.target_ref for piece in slices.items for one in piece.endpoints)
    pods = [] if is_named else (await lab.client.list_all(PODS)).items
    goals = find_goals(
        target.port,
        slices.items,
        family=target.family,
        zones={name: node.zone for name, node in nodes.items()},
        pods=pods,
        gates=lab.gates,
    )
    return Knowledge(goals, nodes)


async def _learn_again(lab: LabView, target: TrafficTarget, before: Knowledge) -> Knowledge:
    """Return what is known now; what was known before when the port is gone."""
    key = target.service.key
    try:
        service = await lab.client.get(SERVICES, key.name, namespace=key.namespace)
    except NotFound:
        return before
    for port in routed_ports(service, target.family, gates=lab.gates):
        if port.key == target.port.key:
            return await _learn(lab, target._replace(service=service, port=port))
    return before


async def _find_causes(lab: LabView, target: TrafficTarget) -> list[str]:
    """Return what is wrong with the Service or its pods, of what failures may come from."""
    service = target.service
    namespace = service.metadata.namespace
    pods = {one.key: one for one in (await lab.client.list_all(PODS, namespace=namespace)).items}
    listed = (await lab.client.list_all(KUBELET_PODS, namespace=namespace)).items
    views = [PodView(pods[one.key], one) for one in listed if one.key in pods]
    wanted = (target.port.name, target.port.protocol)
    for port in service.spec.ports:
        if ((port.name or ""), port.protocol) == wanted:
            return find_causes(service, port, views)
    return []


async def _send(
    sources: Sequence[TrafficSource], *, udp: bool, routing: asyncio.Lock, tell: _Tell
) -> list[Counter[ConnectionResult]]:
    total = sum(one.caller.times for one in sources)
    earlier = 0

    def pass_on(done: int) -> None:
        tell({"done": earlier + done, "of": total})

    pass_on(0)
    if not sources[0].gateway:
        return await connect_all(
            [one.caller for one in sources], udp=udp, patience=_PATIENCE_S, tell=pass_on
        )
    results: list[Counter[ConnectionResult]] = []
    # One way to the load balancer's address at a time.
    async with routing:
        for one in sources:
            try:
                await _show_way(one)
                results += await connect_all(
                    [one.caller], udp=udp, patience=_PATIENCE_S, tell=pass_on
                )
            finally:
                # Where there is no way to forget, the first step was refused.
                with suppress(NetworkError):
                    await _show_way(one, forget=True)
            earlier += one.caller.times
    return results


async def _show_way(source: TrafficSource, *, forget: bool = False) -> None:
    """Let the outside host send packets for the load balancer's address to a node."""
    family = "-6" if ":" in source.gateway else "-4"
    what = ("route", "delete" if forget else "replace", source.caller.host, "via", source.gateway)
    namespace = source.caller.namespace
    if isinstance(namespace, NetworkNamespace):
        await finish_in_thread(lambda: namespace.run("ip", family, *what))


def _judge(
    sources: Sequence[TrafficSource],
    results: Sequence[Counter[ConnectionResult]],
    target: TrafficTarget,
    *,
    before: Knowledge,
    after: Knowledge,
    gates: FeatureGates,
) -> tuple[list[Observation], list[str], bool]:
    """Return what each source saw, what there is to say about it, and whether shares compare."""
    expected = {one.node: before.expect(one.node, target, gates) for one in sources}
    later = {one.node: after.expect(one.node, target, gates) for one in sources}
    judged = sum(len(expected[one.node].shares) for one in sources)
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
    goals = {goal.pod: goal for one in (after, before) for goal in one.port.goals.values()}
    for one, counts in zip(sources, results, strict=True):
        first, second = expected[one.node], later[one.node]
        is_same = first.shares == second.shares and first.verdict == second.verdict
        fault = find_fault(
            counts,
            [first] if is_same else [first, second],
            compares_shares=not is_sticky,
            judged=judged,
        )
        seen.append(
            Observation(one.group, one.name, one.node, one.zone, counts, first, goals, fault)
        )
    return seen, notes, not is_sticky and not has_changed


def _report(
    seen: Sequence[Observation],
    sums: TrafficSums,
    target: TrafficTarget,
    *,
    before: Knowledge,
    gates: FeatureGates,
    seconds: float,
    notes: Sequence[str],
) -> TrafficReport:
    zones = before.zones
    groups: dict[str, list[Observation]] = {}
    for one in seen:
        groups.setdefault(one.group, []).append(one)
    rows = tuple(make_row(group, some, zones) for group, some in groups.items())
    sources = tuple(make_source_row(one, zones) for one in seen)
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
        as_expected=not any(one.fault for one in seen),
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


def name_mechanism(service: Service, target: TrafficTarget, gates: FeatureGates) -> str:
    """Return what governs where connections go: the mechanism, and a policy other than Cluster."""
    strategy = choose_strategy(service, gates=gates, heuristics=find_heuristics(gates))
    words = [] if strategy.name is StrategyName.NONE else [strategy.label]
    port = target.port
    policy = port.external_policy if target.is_outside else port.internal_policy
    if policy is not TrafficPolicy.CLUSTER:
        field = "externalTrafficPolicy" if target.is_outside else "internalTrafficPolicy"
        words.append(f"{field} {policy.value}")
    return ", ".join(words) or "no trafficDistribution"


def _address(target: TrafficTarget) -> str:
    port = target.port
    if target.via.value == "node-port":
        return f"every node:{port.node_port}"
    address = port.load_balancer_ips[0] if target.is_outside else port.cluster_ip
    return f"[{address}]:{port.port}" if target.family == IPV6 else f"{address}:{port.port}"
