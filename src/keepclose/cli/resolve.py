"""`keepclose resolve`: shows how Services of a cluster or in manifests would be routed, and why.

Plans the slices of each Service and selects endpoints for every node, by the same decisions as
controller and proxy. It writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
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
    DefaultSubsetting,
    Kubeconfig,
    KubeContext,
    OverloadThreshold,
    Padding,
    StartingThreshold,
    SubsettingDefaults,
    TopologyMode,
    read_subsets,
)
from keepclose.cli.render.output import TableJsonOrYaml, echo_json, echo_yaml

if TYPE_CHECKING:
    from keepclose.advise.inventory import Inventory
    from keepclose.advise.resolution import ResolvedService
    from keepclose.model.gates import FeatureGates
    from keepclose.routing.subsets import SubsetOptions
    from keepclose.slices.settings import PlannerSettings


def resolve(
    service: ServiceArgument = "",
    *,
    file: ClusterFiles = [],  # noqa: B006 - typer copies it
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Only this node.")] = None,
    service_option: ServiceOption = "",
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Show endpoints, reasons and fixes of all Services, as with --service.",
        ),
    ] = False,
    namespace: NamespaceOption = "",
    all_namespaces: AllNamespaces = False,
    default_subsetting: Annotated[
        DefaultSubsetting, typer.Option(help="Subsetting of Services without the annotation.")
    ] = DefaultSubsetting.RANDOM,
    subsetting_starting_threshold: StartingThreshold = SubsettingDefaults.STARTING_THRESHOLD,
    subsetting_padding: Padding = SubsettingDefaults.PADDING,
    subsetting_overload_threshold: OverloadThreshold = SubsettingDefaults.OVERLOAD_THRESHOLD,
    node_level_topology_mode: Annotated[
        TopologyMode, typer.Option(help="Detection of Services on every node.")
    ] = TopologyMode.MANUAL,
    output: Annotated[
        TableJsonOrYaml, typer.Option("-o", "--output", help="Output format.")
    ] = TableJsonOrYaml.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Show how Services in a cluster or in manifests would be routed.

    A summary of all Services; of one, its mechanism, slices and hints, and the endpoints that every
    node would use. EndpointSlices that exist are the state to start from. Reads files, else a lab
    that runs, else the cluster that kubectl uses, and writes nothing. Exit codes: 0 resolved,
    whatever the result, 2 bad input, 3 no such Service or node, or no Service at all, 4 no API
    server answers or it denies access.
    """
    from keepclose.advise.resolution import resolve_services as resolve_inventory

    subsets = read_subsets(
        default_subsetting,
        starting_threshold=subsetting_starting_threshold,
        padding=subsetting_padding,
        overload_threshold=subsetting_overload_threshold,
    )
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
    inventory = choose_services(source, service, namespace)
    if node is not None and all(node != other.name for other in inventory.nodes):
        fail(f"no Node {node} in {source.name}", code=ExitCode.NOTHING)
    gates = read_cluster_gates(feature_gates, source)
    settings = _settings(gates, subsets, node_level_topology_mode)
    answer = resolve_inventory(inventory, settings=settings, node=node)
    has_details = details or bool(service) or len(answer) == 1
    _show(answer, inventory, output, has_details=has_details)


def _settings(
    gates: FeatureGates, subsets: SubsetOptions, detection: TopologyMode
) -> PlannerSettings:
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.routing.node_level import NodeLevelMode
    from keepclose.slices.settings import PlannerSettings

    return PlannerSettings(
        gates=gates,
        subsets=subsets,
        node_level_mode=NodeLevelMode(detection.value),
        heuristics=find_heuristics(gates),
    )


def _show(
    answer: tuple[ResolvedService, ...],
    inventory: Inventory,
    output: TableJsonOrYaml,
    *,
    has_details: bool,
) -> None:
    from keepclose.advise.resolution_summary import summarise_resolution

    if output is TableJsonOrYaml.TABLE:
        from keepclose.cli.render.screen import Screen

        if has_details:
            from keepclose.cli.render.resolve import print_services

            print_services(Screen(), answer, inventory.nodes)
        else:
            from keepclose.cli.render.resolve_summary import print_summary

            print_summary(Screen(), summarise_resolution(answer, inventory.nodes))
        return
    import msgspec

    from keepclose.cli.render.resolve import resolved_document

    summary = summarise_resolution(answer, inventory.nodes)
    document = {**resolved_document(answer), "summary": msgspec.to_builtins(summary)}
    if output is TableJsonOrYaml.JSON:
        echo_json(document)
    else:
        echo_yaml(document)
