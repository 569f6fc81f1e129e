"""The part of `keepclose verify --probe` that chooses where probe pods run and reads their logs."""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from keepclose.cli.exit import ExitCode, fail, name_program
from keepclose.cli.render.output import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keepclose.accounting.flow_table import FlowTable
    from keepclose.advise.inventory import Inventory
    from keepclose.flows.probe import ProbedEndpoint, ProbeLog, ProbePlace, ProbeTarget
    from keepclose.kube.connection import ConnectionSettings
    from keepclose.model.service.types import Service, ServicePort


_WORD: Final = re.compile(r"[A-Za-z0-9._:-]+")


class ProbeOptions(NamedTuple):
    """How a Service is probed."""

    port: str
    is_per_node: bool
    connections: int
    image: str
    timeout_s: float
    yes: bool = False


def check_probe(flows: list[str], files: list[str], *, has_service: bool) -> None:
    """End the command if --probe lacks what it needs, or another option makes no sense with it."""
    if not has_service:
        fail(
            "--probe: it connects to one Service, and none is named",
            f"{name_program()} verify NAMESPACE/SERVICE --probe",
        )
    if files:
        fail("--probe: it creates pods, which needs an API server; leave out --file")
    if flows:
        fail("--probe: it counts its own connections; leave out --flows")


def probe_service(
    connection: ConnectionSettings, inventory: Inventory, options: ProbeOptions, *, is_lab: bool
) -> FlowTable:
    """Return the connections of probe pods to the only Service of the inventory."""
    (service,) = inventory.services
    target = _find_target(service, options.port)
    places = _find_places(inventory, is_per_node=options.is_per_node)
    if not is_lab and not options.yes:
        fail(
            f"--probe: it creates {len(places)} pods in namespace {service.metadata.namespace} of "
            f"{connection.server.url} and deletes them again",
            "add --yes to let it",
        )
    begin = time.time()
    logs = _run(connection, target, places, options)
    table = _count(logs, target, inventory, service, connections=options.connections)
    table.start, table.end = begin, time.time()
    return table


def _find_target(service: Service, wanted: str) -> ProbeTarget:
    from keepclose.flows.probe import ProbeTarget

    address = next((ip for ip in (service.spec.cluster_ip, *service.spec.cluster_ips) if ip), "")
    if not address or address == "None":
        fail(
            f"Service {service.key}: spec.clusterIP: {address or 'not set'}, so no node routes it",
            "probe a Service with a cluster IP",
            code=ExitCode.NOTHING,
        )
    port = _find_port(service, wanted)
    return ProbeTarget(service.key, port.name or str(port.port), address, port.port)


def _find_port(service: Service, wanted: str) -> ServicePort:
    ports = service.spec.ports
    named = [port for port in ports if wanted in ("", port.name, str(port.port))]
    tcp = [port for port in named if (port.protocol or "TCP") == "TCP"]
    if not tcp:
        have = ", ".join(f"{port.name or port.port}/{port.protocol or 'TCP'}" for port in ports)
        fail(
            f"--port: Service {service.key} has no TCP port {wanted}".rstrip(),
            f"it has {have or 'no ports'}; probe pods open TCP connections",
            code=ExitCode.NOTHING,
        )
    return tcp[0]


def _find_places(inventory: Inventory, *, is_per_node: bool) -> list[ProbePlace]:
    from keepclose.flows.probe import MAX_PROBES, ProbePlace

    ready = [node for node in inventory.nodes if node.is_ready]
    if is_per_node:
        places = [ProbePlace(node.zone, node.name) for node in ready]
    else:
        places = [ProbePlace(zone) for zone in sorted({node.zone for node in ready if node.zone})]
    if not places:
        what = "Node is ready" if is_per_node else "ready Node has a zone label"
        fail(f"--probe: no {what}", "kubectl get nodes", code=ExitCode.NOTHING)
    if len(places) > MAX_PROBES:
        fail(
            f"--per-node: {len(places)} nodes are more than {MAX_PROBES}",
            "probe one pod a zone, without --per-node",
        )
    return places


def _run(
    connection: ConnectionSettings,
    target: ProbeTarget,
    places: list[ProbePlace],
    options: ProbeOptions,
) -> list[ProbeLog]:
    from keepclose.flows.probe import PROBE_LABEL, ProbeError, run_probes
    from keepclose.kube.clock import SystemClock
    from keepclose.kube.connection import connect
    from keepclose.kube.errors import ApiError, Forbidden, KubeError, Unauthorized
    from keepclose.runtime.program import InterruptedBySignalError, run_interruptible

    run_id = secrets.token_hex(4)

    def report_left(names: Sequence[str]) -> None:
        say(
            f"warning: {len(names)} probe pods may be left behind, and end by themselves; delete "
            f"them: kubectl delete pods -n {target.service.namespace} -l {PROBE_LABEL}={run_id}",
            err=True,
        )

    async def run() -> list[ProbeLog]:
        clock = SystemClock()
        async with connect(connection, clock=clock) as client:
            return await run_probes(
                client,
                target,
                places,
                run=run_id,
                image=options.image,
                connections=options.connections,
                clock=clock,
                timeout_s=options.timeout_s,
                on_left=report_left,
            )

    try:
        return run_interruptible(run())
    except InterruptedBySignalError as error:
        fail(str(error), code=error.exit_code)
    except ProbeError as error:
        fail(str(error), error.fix, code=ExitCode.NOTHING)
    except (Forbidden, Unauthorized) as error:
        fail(
            f"the cluster denies access: {error}",
            "--probe needs to create, get and delete pods, and to get pods/log, in namespace "
            f"{target.service.namespace}",
            code=ExitCode.UNREACHABLE,
        )
    except ApiError as error:
        fail(f"probe pods: {error}", code=ExitCode.UNREACHABLE)
    except (KubeError, TimeoutError, OSError) as error:
        fail(
            f"{connection.server.url} does not answer: {error}",
            "check the server that the kubeconfig names",
            code=ExitCode.UNREACHABLE,
        )


def _count(
    logs: list[ProbeLog],
    target: ProbeTarget,
    inventory: Inventory,
    service: Service,
    *,
    connections: int,
) -> FlowTable:
    zones = {node.name: node.zone for node in inventory.nodes}
    table, unknown = count_answers(
        logs, target, name_endpoints(inventory, service), zones=zones, connections=connections
    )
    if not table.rows and not unknown:
        fail("the probe pods logged nothing", "look at --probe-image", code=ExitCode.NOTHING)
    if unknown:
        text = (
            f"{unknown:,} of {unknown + table.total().connections:,} answers do not say which "
            "endpoint gave them"
        )
        if not table.total().connections:
            fail(
                text,
                "probe a Service whose answers have the name or the address of the pod in them "
                "(HTTP GET /), or count flows with keepclose flows",
                code=ExitCode.NOTHING,
            )
        table.notes.append(text)
    return table


def count_answers(
    logs: Iterable[ProbeLog],
    target: ProbeTarget,
    endpoints: Mapping[str, ProbedEndpoint],
    *,
    zones: Mapping[str, str],
    connections: int = 0,
) -> tuple[FlowTable, int]:
    """Return the connections as flows, and how many were answered by an unknown endpoint.

    `endpoints` has each endpoint by the names and addresses that identify it, `zones` the zone of
    each node. An answer that names several endpoints, or none, identifies none. A pod that logged
    fewer than `connections` is noted, as one whose log was full.
    """
    from keepclose.accounting.flow_table import NO_ZONE, FlowCounts, FlowKey, FlowKind, FlowTable
    from keepclose.flows.probe import ANSWERED, FAILED, FULL_LOG_BYTES

    flows = FlowTable(has_bytes=False)
    unknown = 0
    for log in logs:
        zone = zones.get(log.node) or log.place.zone or NO_ZONE
        answers: Counter[ProbedEndpoint | None] = Counter()
        unknown_before = unknown
        for line in log.text.splitlines():
            kind, _, words = line.strip().partition(" ")
            if kind == FAILED:
                answers[None] += 1
            elif kind == ANSWERED:
                named = {endpoints[word] for word in set(_WORD.findall(words)) if word in endpoints}
                if len(named) == 1:
                    answers[named.pop()] += 1
                else:
                    unknown += 1
        logged = answers.total() + unknown - unknown_before
        if logged < connections:
            why = ", as its log was full" if len(log.text) >= FULL_LOG_BYTES else ""
            flows.notes.append(
                f"the probe pod of {log.place} logged {logged:,} of {connections:,} connections"
                f"{why}"
            )
        for endpoint, count in answers.items():
            key = FlowKey(
                FlowKind.SERVICE,
                target.service.namespace,
                target.service.name,
                target.port,
                client_zone=zone,
                endpoint_zone=endpoint.zone if endpoint else NO_ZONE,
                client_node=log.node,
                endpoint_node=endpoint.node if endpoint else "",
                client=f"{target.service.namespace}/keepclose-probe",
                endpoint=f"{target.service.namespace}/{endpoint.pod}" if endpoint else "",
            )
            flows.add(key, FlowCounts(count, unanswered=0 if endpoint else count))
    return flows, unknown


def name_endpoints(inventory: Inventory, service: Service) -> dict[str, ProbedEndpoint]:
    """Return the endpoints of a Service by what identifies them in an answer.

    A name that several of them have identifies none.
    """
    from keepclose.accounting.flow_table import NO_ZONE
    from keepclose.flows.probe import ProbedEndpoint

    zones = {node.name: node.zone for node in inventory.nodes}
    named: dict[str, ProbedEndpoint] = {}
    shared: set[str] = set()
    for endpoint_slice in inventory.slices.get(service.key, ()):
        for endpoint in endpoint_slice.endpoints:
            if not endpoint.addresses:
                continue
            reference = endpoint.target_ref
            pod = reference.name if reference is not None else endpoint.addresses[0]
            node = endpoint.node_name or ""
            known = ProbedEndpoint(pod, node, zones.get(node) or endpoint.zone or NO_ZONE)
            for name in {pod, endpoint.hostname or pod, *endpoint.addresses}:
                if named.setdefault(name, known) != known:
                    shared.add(name)
    # NB: the pods of a Deployment with spec.hostname all answer with it.
    for name in shared:
        del named[name]
    return named
