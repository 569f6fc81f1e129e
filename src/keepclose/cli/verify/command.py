"""`keepclose verify`: whether the traffic of Services goes where they ask, and if not, why.

Reads the objects of a cluster, from its API server or from files, and the flows that were counted:
by agents, in files, by Prometheus, or by probe pods that it creates for the purpose. Everything but
--probe only reads. The verdict is that of `advise.verification`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.flow_sources import (
    FlowSources,
    check_observable,
    check_sources,
    name_tables,
    read_flow_tables,
)
from keepclose.cli.inputs.cluster_input import read_lab_gates
from keepclose.cli.inputs.object_files import name_files, read_inventory
from keepclose.cli.inputs.service_choice import narrow_services, service_key
from keepclose.cli.options import (
    AGENT_NAMESPACE,
    AgentNamespace,
    ChosenCluster,
    Kubeconfig,
    KubeContext,
    choose_cluster,
    read_duration,
)
from keepclose.cli.render.output import OutputFormat, TableOrJson, echo_json, say

if TYPE_CHECKING:
    from keepclose.accounting.flow_table import FlowTable
    from keepclose.advise.inventory import Inventory
    from keepclose.advise.verification import VerifiedPort
    from keepclose.kube.client import Client
    from keepclose.kube.connection import ConnectionSettings
    from keepclose.kube.requests import Kind
    from keepclose.model.acknowledgements import NodeAcknowledgement
    from keepclose.model.gates import FeatureGates
    from keepclose.model.meta import NamespacedName

MOST_PROBE_CONNECTIONS: Final = 10_000
MOST_PROBE_SECONDS: Final = 3600
MOST_OBSERVED_SECONDS: Final = 86_400
_MAX_NAMED: Final = 10


class ClusterSource(NamedTuple):
    """Where the objects come from: files, or an API server, which may be a lab's."""

    name: str
    connection: ConnectionSettings | None = None
    lab: Path | None = None
    """The data directory of the lab; None for another cluster."""


class ClusterObjects(NamedTuple):
    """What was read of a cluster."""

    inventory: Inventory
    writes: dict[str, str] = {}
    """When Services and slices were last written, by uid; of files it is not known."""
    acknowledgements: tuple[NodeAcknowledgement, ...] = ()


def verify(
    service: Annotated[
        str,
        typer.Argument(metavar="[NAMESPACE/]SERVICE", help="One Service; default: all of them."),
    ] = "",
    *,
    namespace: Annotated[
        str,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAME",
            help="Only Services of this namespace; for a Service, its namespace if not default.",
        ),
    ] = "",
    flows: FlowSources = [],  # noqa: B006 - typer copies it
    file: Annotated[
        list[str],
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="The cluster's Nodes, Pods, Services and EndpointSlices as YAML or JSON, instead "
            "of an API server. May be repeated.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    min_connections: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Zones with fewer connections are not judged."),
    ] = 50,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, max=50.0, metavar="PERCENT", help="By how much shares may differ."),
    ] = 2.0,
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    observe: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Judge only what agents count from now on, for this long, a day at most: 60s. "
            "Default: all that they have counted.",
        ),
    ] = "",
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Count connections of short-lived pods, one in each zone, to a Service."
        ),
    ] = False,
    per_node: Annotated[
        bool, typer.Option("--per-node", help="With --probe: one pod on each node.")
    ] = False,
    port: Annotated[
        str,
        typer.Option(metavar="NAME|NUMBER", help="With --probe: the port; default the first."),
    ] = "",
    probe_connections: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_PROBE_CONNECTIONS, metavar="N", help="Connections of each probe pod."
        ),
    ] = 100,
    probe_image: Annotated[
        str, typer.Option(metavar="IMAGE", help="An image with sh, nc, head and tr.")
    ] = "busybox",
    probe_timeout: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_PROBE_SECONDS, metavar="SECONDS", help="How long probe pods may take."
        ),
    ] = 60,
    yes: Annotated[
        bool, typer.Option("--yes", help="Let --probe create pods in a cluster that is no lab.")
    ] = False,
    output: OutputFormat = TableOrJson.TABLE,
    agent_namespace: AgentNamespace = AGENT_NAMESPACE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Compare where traffic goes with where it should go.

    Exit codes: 0 honoured, 1 not honoured, 2 bad input, 3 nothing to judge or changed within the
    period, 4 no API server or source of flows answers.
    """
    key = service_key(service or None, namespace)
    observe_s = read_duration("--observe", observe or "0", most_s=MOST_OBSERVED_SECONDS)
    if probe:
        from keepclose.cli.verify.probing import check_probe

        check_probe(flows, file, has_service=key is not None)
    source = _find_source(file, kubeconfig, context, data_dir)
    objects = _read_objects(source, file)
    inventory = narrow_services(objects.inventory, key, namespace, source.name)
    gates = read_lab_gates(feature_gates, source.lab)
    if probe:
        from keepclose.cli.verify.probing import ProbeOptions, probe_service

        options = ProbeOptions(
            port, per_node, probe_connections, probe_image, float(probe_timeout), yes=yes
        )
        assert source.connection is not None  # noqa: S101 - checked with the options
        table = probe_service(source.connection, inventory, options, is_lab=source.lab is not None)
    else:
        read = partial(_read_flows, flows, source, agent_namespace)
        table = _observe(read, flows, observe_s)
    answer = _judge(
        inventory,
        table,
        gates=gates,
        key=key,
        objects=objects,
        min_connections=min_connections,
        tolerance=tolerance / 100,
    )
    _show(answer, table, output, is_one=key is not None)
    raise typer.Exit(_exit_code(answer))


def _find_source(
    files: list[str], kubeconfig: Path | None, context: str, data_dir: Path
) -> ClusterSource:
    if files:
        if kubeconfig or context:
            fail("--file: name files or a cluster, not both")
        return ClusterSource(name_files(files))
    cluster = choose_cluster(
        kubeconfig, context, data_dir, other="or name its objects in files with -f"
    )
    return ClusterSource(cluster.url, cluster.connection, cluster.lab)


def _read_objects(source: ClusterSource, files: list[str]) -> ClusterObjects:
    settings = source.connection
    if settings is None:
        return ClusterObjects(read_inventory(files))
    import asyncio

    from keepclose.kube.errors import Forbidden, KubeError, Unauthorized

    try:
        return asyncio.run(_list_objects(settings))
    except (Forbidden, Unauthorized) as error:
        fail(
            f"the cluster denies access: {error}",
            "verify needs to list nodes, pods, services and endpointslices",
            code=ExitCode.UNREACHABLE,
        )
    except (KubeError, TimeoutError, OSError) as error:
        fail(
            f"{settings.server.url} does not answer: {error}",
            "check the server that the kubeconfig names",
            code=ExitCode.UNREACHABLE,
        )


async def _list_objects(settings: ConnectionSettings) -> ClusterObjects:
    from keepclose.advise.inventory import Inventory
    from keepclose.kube.clock import SystemClock
    from keepclose.kube.connection import connect
    from keepclose.kube.errors import ApiError
    from keepclose.kube.requests import CONFIG_MAPS, ENDPOINT_SLICES, NODES, PODS, SERVICES
    from keepclose.model.acknowledgements import (
        ACKNOWLEDGEMENT_NAMESPACE,
        ACKNOWLEDGEMENT_SELECTOR,
        parse_acknowledgement,
    )

    writes: dict[str, str] = {}
    async with connect(settings, clock=SystemClock()) as client:
        objects: list[object] = [
            *(await client.list_all(NODES)).items,
            *await list_written(client, SERVICES, writes),
            *await list_written(client, ENDPOINT_SLICES, writes),
            *(await client.list_all(PODS)).items,
        ]
        try:
            page = await client.list_all(
                CONFIG_MAPS,
                namespace=ACKNOWLEDGEMENT_NAMESPACE,
                label_selector=ACKNOWLEDGEMENT_SELECTOR,
            )
        except ApiError:
            # What proxies say of themselves helps to name a cause; few users may read it.
            return ClusterObjects(Inventory.of(objects), writes)
    parsed = [parse_acknowledgement(config_map) for config_map in page.items]
    acknowledgements = tuple(each for each in parsed if each is not None)
    return ClusterObjects(Inventory.of(objects), writes, acknowledgements)


async def list_written(client: Client, kind: Kind[Any], writes: dict[str, str]) -> list[Any]:
    """Return all objects of a kind, and add the time of their last writes by uid."""
    from dataclasses import replace

    import msgspec

    from keepclose.kube.watch.list_decoding import kind_and_name_of, read_object
    from keepclose.model.decoding import Rejected
    from keepclose.model.meta import WrittenObject

    objects: list[Any] = []
    for raw in (await client.list_all(replace(kind, struct=msgspec.Raw))).items:
        read = read_object(kind, raw)
        if read is None or isinstance(read, Rejected):
            say(f"warning: {kind.kind} {kind_and_name_of(raw)} cannot be read", err=True)
            continue
        objects.append(read)
        try:
            written = msgspec.json.decode(raw, type=WrittenObject)
        except msgspec.DecodeError:
            continue
        if written.last_write:
            writes[written.metadata.uid] = written.last_write
    return objects


def _observe(
    read_flows: Callable[[], dict[str, FlowTable]], flows: list[str], seconds: float
) -> FlowTable:
    """Return all flows, or those of the next seconds."""
    from keepclose.accounting.flow_table import count_between, merge_tables

    if not seconds:
        return merge_tables(read_flows().values())
    check_observable(flows)
    before = read_flows()
    import time

    say(f"observing for {seconds:g} s", err=True)
    time.sleep(seconds)
    return count_between(before, read_flows())


def _read_flows(
    flows: list[str], source: ClusterSource, agent_namespace: str
) -> dict[str, FlowTable]:
    """Return the tables of all sources that answer."""
    if flows:
        check_sources(flows)
        tables: dict[str, FlowTable] = {}
        for name in flows:
            tables |= name_tables(name, read_flow_tables([name]))
        return tables
    from keepclose.cli.flows_top import read_agents

    if source.connection is None:
        fail(
            "--flows: nothing says where traffic went",
            "name the flows with --flows FILE, or of an agent with --flows http://HOST:PORT",
        )
    cluster = ChosenCluster(source.name, source.connection, source.lab)
    readings = read_agents(cluster, agent_namespace)
    for note in readings.notes:
        say(f"note: {note}", err=True)
    if readings.errors and not readings.tables:
        fail(
            f"none of the {len(readings.errors)} agents can be read",
            *[f"{name}: {why}" for name, why in sorted(readings.errors.items())][:_MAX_NAMED],
            code=ExitCode.UNREACHABLE,
        )
    for name, why in readings.errors.items():
        say(f"warning: {name}: {why}, so its flows are missing", err=True)
    if not readings.tables:
        fail(
            "no agent counts flows in this cluster",
            "name another source with --flows, or send connections with --probe",
            code=ExitCode.NOTHING,
        )
    return readings.tables


def _judge(
    inventory: Inventory,
    table: FlowTable,
    *,
    gates: FeatureGates,
    key: NamespacedName | None,
    objects: ClusterObjects,
    min_connections: int,
    tolerance: float,
) -> tuple[VerifiedPort, ...]:
    from keepclose.advise.verification import verify_services
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.slices.settings import PlannerSettings

    return verify_services(
        inventory,
        table,
        settings=PlannerSettings(gates=gates, heuristics=find_heuristics(gates)),
        service=key,
        acknowledgements=objects.acknowledgements,
        min_connections=min_connections,
        tolerance=tolerance,
        writes=objects.writes,
    )


def _show(
    answer: tuple[VerifiedPort, ...], table: FlowTable, output: TableOrJson, *, is_one: bool
) -> None:
    if output is TableOrJson.JSON:
        echo_json({"services": answer, "notes": table.notes})
        return
    from keepclose.cli.render.screen import Screen
    from keepclose.cli.render.verify import print_verdicts

    print_verdicts(Screen(), answer, shows_all=is_one)
    say(*(f"note: {note}" for note in table.notes), err=True)


def _exit_code(answer: tuple[VerifiedPort, ...]) -> int:
    from keepclose.advise.verification import TrafficVerdict

    verdicts = {each.verdict for each in answer}
    if TrafficVerdict.NOT_HONOURED in verdicts:
        return ExitCode.FOUND
    if TrafficVerdict.CHANGED in verdicts:
        return ExitCode.NOTHING
    return ExitCode.OK if TrafficVerdict.HONOURED in verdicts else ExitCode.NOTHING
