"""`keepclose plan`: reads a cluster and what is known of its traffic, and shows what would help.

Only reads. Figures come from `advise.planning`; here options become its arguments.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.flow_sources import FlowSources, read_flow_tables
from keepclose.cli.inputs.cluster_input import (
    AllNamespaces,
    ClusterFiles,
    NamespaceOption,
    read_cluster,
    read_cluster_gates,
)
from keepclose.cli.inputs.service_choice import (
    ServiceArgument,
    ServiceOption,
    choose_services,
    join_service,
)
from keepclose.cli.options import (
    AGENT_NAMESPACE,
    AgentNamespace,
    Kubeconfig,
    KubeContext,
    read_duration,
)
from keepclose.cli.plan.scenario_options import (
    AddedZones,
    DrainedNodes,
    LostZones,
    ScenarioRequest,
    SetMechanisms,
    SetReplicas,
    apply_scenario,
)
from keepclose.cli.render.output import echo_document, echo_json, echo_yaml

if TYPE_CHECKING:
    from keepclose.accounting.flow_table import FlowTable
    from keepclose.advise.inventory import Inventory
    from keepclose.advise.planning.client_weights import ClientDistribution, ServiceVolumes
    from keepclose.advise.planning.comparison import ScenarioComparison
    from keepclose.advise.planning.service_plans import ClusterPlan
    from keepclose.cli.inputs.cluster_input import ClusterInput
    from keepclose.model.meta import NamespacedName
    from keepclose.slices.settings import PlannerSettings

_LONG_WORK: Final = 200
"""Services from which on progress is shown."""
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kMGTP]?)B")
_POWERS: Final = ("", "k", "M", "G", "T", "P")


class PlanFormat(StrEnum):
    """Output formats of plans."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"
    HTML = "html"


def plan(
    service: ServiceArgument = "",
    *,
    file: ClusterFiles = [],  # noqa: B006 - typer copies it
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    namespace: NamespaceOption = "",
    all_namespaces: AllNamespaces = False,
    service_option: ServiceOption = "",
    clients: Annotated[
        str,
        typer.Option(
            metavar="flows|pods|nodes|cpu|NS/WORKLOAD",
            help="Where clients are: as flows say, as all pods or those of a workload, the same on "
            "every node, or by CPU. Default: flows with --flows, else nodes.",
        ),
    ] = "",
    flows: FlowSources = [],  # noqa: B006 - typer copies it
    prices: Annotated[
        str,
        typer.Option(
            metavar="FILE|aws|gcp|azure",
            help="Prices of traffic between zones, as of keepclose cost.",
        ),
    ] = "",
    rate: Annotated[
        str,
        typer.Option(
            metavar="BYTES",
            help="Without flows: the bytes that all Services together get in a month, as 10TB.",
        ),
    ] = "",
    period: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="The period of the flows, if they do not say it: 24h."
        ),
    ] = "",
    set_: SetMechanisms = [],  # noqa: B006 - typer copies it
    replicas: SetReplicas = [],  # noqa: B006 - typer copies it
    drain: DrainedNodes = [],  # noqa: B006 - typer copies it
    lose: LostZones = [],  # noqa: B006 - typer copies it
    add_zone: AddedZones = [],  # noqa: B006 - typer copies it
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="How many Services a table shows. Default: what fits."
        ),
    ] = None,
    output: Annotated[
        PlanFormat, typer.Option("-o", "--output", help="Output format.")
    ] = PlanFormat.TABLE,
    agent_namespace: AgentNamespace = AGENT_NAMESPACE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Show what each mechanism would do to each Service, and which one is worth it.

    For every Service and mechanism: how much traffic would stay in its zone, how busy the busiest
    endpoint would be, and what it takes to switch. Recommends a change only where it helps and
    harms nothing, with its command. Writes nothing. Exit codes: 0 fine, 2 bad input, 3 nothing
    found, 4 an API server or a source does not answer.
    """
    from keepclose.advise.planning.comparison import compare_plans

    service = join_service(service, service_option)
    source = read_cluster(
        file,
        kubeconfig=kubeconfig,
        context=context,
        data_dir=data_dir,
        namespace=namespace,
        all_namespaces=all_namespaces,
        service=service,
    )
    settings = _settings(feature_gates, source)
    tables = _read_flows(flows, clients, source, agent_namespace)
    if period:
        from keepclose.cli.cost import set_flow_period

        set_flow_period(tables, read_duration("--period", period))
    chosen = choose_services(source, service, namespace)
    request = ScenarioRequest(drain, lose, add_zone, replicas, set_)
    after, settings_after, changes = apply_scenario(
        request,
        source.inventory,
        settings,
        namespace=namespace or source.default_namespace,
    )
    keys = {each.key for each in chosen.services}
    routed = [
        each
        for each in chosen.services
        if not each.is_headless and each.spec.type != "ExternalName"
    ]
    work = _Work(tables, clients, prices, rate, len(routed))
    comparison: ScenarioComparison | None = None
    answer = work.plan(after, keys, settings_after)
    if not request.is_empty:
        before = work.plan(source.inventory, keys, settings, tries=False)
        comparison = compare_plans(changes, before, answer)
    _show(answer, comparison, output, source.name, is_one=bool(service), top=top)


class _Work:
    """What is known about traffic, and the plans that are made with it."""

    def __init__(
        self, tables: list[FlowTable], clients: str, prices: str, rate: str, services: int
    ) -> None:
        from keepclose.accounting.flow_table import merge_tables
        from keepclose.advise.planning.client_weights import ServiceVolumes
        from keepclose.cli.cost import read_price_table

        if rate and tables:
            fail("--rate: the flows say how much traffic there is", "name one of both")
        self._clients = clients or ("flows" if tables else "nodes")
        self._volumes = ServiceVolumes(merge_tables(tables)) if tables else None
        table = read_price_table(prices) if prices else None
        if table is not None and self._volumes is None and not rate:
            fail(
                "--prices: nothing says how much traffic there is",
                "name flows with --flows, or an amount with --rate 10TB",
            )
        from keepclose.advise.planning.traffic_costs import CostModel

        self._costs = CostModel(
            volumes=self._volumes,
            rate=_read_rate(rate) if rate else 0.0,
            services=services,
            prices=table,
        )
        self._notes = _notes(self._volumes, has_prices=table is not None)

    def plan(
        self,
        inventory: Inventory,
        keys: set[NamespacedName],
        settings: PlannerSettings,
        *,
        tries: bool = True,
    ) -> ClusterPlan:
        """Return the plan of the Services with these keys."""
        from msgspec.structs import replace

        from keepclose.advise.planning.service_plans import plan_cluster
        from keepclose.cli.render.progress import ignore_progress, shown_progress

        distribution = _distribute(inventory, self._clients, self._volumes)
        services = tuple(each for each in inventory.services if each.key in keys)
        narrowed = replace(inventory, services=services)

        def work(on_progress: object) -> ClusterPlan:
            made = plan_cluster(
                narrowed,
                settings=settings,
                clients=distribution,
                volumes=self._volumes,
                costs=self._costs,
                tries=tries,
                on_progress=on_progress if callable(on_progress) else ignore_progress,
            )
            return replace(made, notes=self._notes)

        if len(services) < _LONG_WORK:
            return work(ignore_progress)
        with shown_progress(len(services), "Services") as advance:
            return work(advance)


def _settings(gates: str, source: ClusterInput) -> PlannerSettings:
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.slices.settings import PlannerSettings

    chosen = read_cluster_gates(gates, source)
    return PlannerSettings(gates=chosen, heuristics=find_heuristics(chosen))


def _read_flows(
    flows: list[str], clients: str, source: ClusterInput, agent_namespace: str
) -> list[FlowTable]:
    """Return the flows of the sources, or of the agents of a cluster where flows are asked for."""
    if flows:
        return read_flow_tables(flows)
    if clients != "flows":
        return []
    if source.cluster is None:
        fail("--clients flows: nothing says where traffic went", "name the flows with --flows FILE")
    from keepclose.cli.flows_top import fail_unread, read_agents

    readings = read_agents(source.cluster, agent_namespace)
    if not readings.tables:
        fail_unread(readings)
    return [*readings.tables.values()]


def _distribute(
    inventory: Inventory, text: str, volumes: ServiceVolumes | None
) -> ClientDistribution:
    from keepclose.advise.planning.client_weights import ClientBasis, distribute_clients
    from keepclose.advise.service_objects import DUMP_COMMAND

    basis = ClientBasis.WORKLOAD
    if "/" not in text:
        known = [each.value for each in ClientBasis if each is not ClientBasis.WORKLOAD]
        if text not in known:
            fail(
                f"--clients: {text!r} is none of {', '.join(known)}",
                "name a workload as NAMESPACE/NAME",
            )
        basis = ClientBasis(text)
    workload = text if basis is ClientBasis.WORKLOAD else ""
    found = distribute_clients(inventory, basis, volumes=volumes, workload=workload)
    if found is None:
        what = {
            ClientBasis.PODS: "no pod runs on a ready node",
            ClientBasis.CPU: "no ready node reports its CPU",
            ClientBasis.WORKLOAD: f"no pod of {workload} runs on a ready node",
        }.get(basis, "nothing says where clients are")
        hint = "see --clients nodes"
        if not any(node.is_ready for node in inventory.nodes):
            what, hint = "no node is ready, so nothing sends traffic", DUMP_COMMAND
        fail(f"--clients {text}: {what}", hint, code=ExitCode.NOTHING)
    return found


def _read_rate(text: str) -> float:
    """Return the bytes of a text such as 10TB."""
    match = _RATE.fullmatch(text)
    number = float(match[1]) * 1000.0 ** _POWERS.index(match[2]) if match else 0.0
    if not 0 < number < 1e21:
        fail(f"--rate: {text!r} is no amount of bytes in a month", "write it as 500GB or 10TB")
    return number


def _notes(volumes: ServiceVolumes | None, *, has_prices: bool) -> tuple[str, ...]:
    if volumes is None or not has_prices:
        return ()
    if not volumes.has_bytes:
        return ("the flows have connections only, no bytes, so they have no cost",)
    if not volumes.hours:
        return ("the flows do not say their period, so a month is unknown: name it with --period",)
    return ()


def _show(
    answer: ClusterPlan,
    comparison: ScenarioComparison | None,
    output: PlanFormat,
    source: str,
    *,
    is_one: bool,
    top: int | None,
) -> None:
    if output is PlanFormat.MARKDOWN:
        from keepclose.cli.plan.markdown import write_plan_markdown

        echo_document(write_plan_markdown(answer, comparison))
        return
    if output is PlanFormat.HTML:
        from keepclose.cli.plan.report import write_plan_report

        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        echo_document(write_plan_report(answer, comparison, source=source, made=made))
        return
    if output is PlanFormat.TABLE:
        from keepclose.cli.plan.table import print_plan, print_service
        from keepclose.cli.render.screen import Screen

        if is_one:
            print_service(Screen(), answer, answer.services[0], comparison)
        else:
            print_plan(Screen(), answer, comparison, top=top)
        return
    from keepclose.cli.plan.document import plan_document

    document = plan_document(answer, comparison)
    if output is PlanFormat.JSON:
        echo_json(document)
    else:
        echo_yaml(document)
