"""The part of `keepclose verify --probe` that chooses where probe pods run and reads their logs."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.render.output import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keepclose.accounting.flow_table import FlowTable
    from keepclose.advise.inventory import Inventory
    from keepclose.flows.probe import ProbedEndpoint, ProbeLog, ProbePlace, ProbeTarget
    from keepclose.kube.connection import ConnectionSettings
    from keepclose.model.service.types import Service, ServicePort


class ProbeOptions(NamedTuple):
    """How a Service is probed."""

    port: str
    is_per_node: bool
    connections: int
    image: str
    timeout_s: float
    yes: bool = False


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
    from keepclose.flows.probe import count_answers

    zones = {node.name: node.zone for node in inventory.nodes}
    table, unknown = count_answers(
        logs, target, _name_endpoints(inventory, service), zones=zones, connections=connections
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


def _name_endpoints(inventory: Inventory, service: Service) -> dict[str, ProbedEndpoint]:
    """Return the endpoints of a Service by what may identify them in an answer."""
    from keepclose.accounting.flow_table import NO_ZONE
    from keepclose.flows.probe import ProbedEndpoint

    zones = {node.name: node.zone for node in inventory.nodes}
    named: dict[str, ProbedEndpoint] = {}
    for endpoint_slice in inventory.slices.get(service.key, ()):
        for endpoint in endpoint_slice.endpoints:
            if not endpoint.addresses:
                continue
            reference = endpoint.target_ref
            pod = reference.name if reference is not None else endpoint.addresses[0]
            node = endpoint.node_name or ""
            known = ProbedEndpoint(pod, node, zones.get(node) or endpoint.zone or NO_ZONE)
            named[pod] = known
            if endpoint.hostname:
                named[endpoint.hostname] = known
            named.update(dict.fromkeys(endpoint.addresses, known))
    return named
