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
)
from keepclose.cli.inputs.service_choice import choose_services
from keepclose.cli.options import (
    DefaultSubsetting,
    Kubeconfig,
    KubeContext,
    OverloadThreshold,
    Padding,
    StartingThreshold,
    SubsettingDefaults,
    TopologyMode,
    read_gates,
    read_subsets,
)
from keepclose.cli.render.output import TableJsonOrYaml, echo_json, echo_yaml

if TYPE_CHECKING:
    from keepclose.advise.inventory import Inventory
    from keepclose.advise.resolution import ResolvedService
    from keepclose.routing.subsets import SubsetOptions
    from keepclose.slices.settings import PlannerSettings


def resolve(
    *,
    file: ClusterFiles = [],  # noqa: B006 - typer copies it
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Only this node.")] = None,
    service: Annotated[
        str | None, typer.Option(metavar="[NS/]NAME", help="Only this Service.")
    ] = None,
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

    Mechanism, slices and hints, and the endpoints that every node would use. EndpointSlices that
    exist are the state to start from. Writes nothing. Exit codes: 0 fine, 2 bad input, 3 nothing
    found, 4 no API server answers.
    """
    from keepclose.advise.resolution import resolve_services as resolve_inventory

    subsets = read_subsets(
        default_subsetting,
        starting_threshold=subsetting_starting_threshold,
        padding=subsetting_padding,
        overload_threshold=subsetting_overload_threshold,
    )
    settings = _settings(feature_gates, subsets, node_level_topology_mode)
    source = read_cluster(
        file,
        kubeconfig=kubeconfig,
        context=context,
        data_dir=data_dir,
        namespace=namespace,
        all_namespaces=all_namespaces,
        service=service or "",
    )
    inventory = choose_services(source, service or "", namespace)
    if node is not None and all(node != other.name for other in inventory.nodes):
        fail(f"no Node {node} in {source.name}", code=ExitCode.NOTHING)
    answer = resolve_inventory(inventory, settings=settings, node=node)
    _show(answer, inventory, output)


def _settings(gates: str, subsets: SubsetOptions, detection: TopologyMode) -> PlannerSettings:
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.routing.node_level import NodeLevelMode
    from keepclose.slices.settings import PlannerSettings

    chosen = read_gates(gates)
    return PlannerSettings(
        gates=chosen,
        subsets=subsets,
        node_level_mode=NodeLevelMode(detection.value),
        heuristics=find_heuristics(chosen),
    )


def _show(
    answer: tuple[ResolvedService, ...], inventory: Inventory, output: TableJsonOrYaml
) -> None:
    if output is TableJsonOrYaml.TABLE:
        from keepclose.cli.render.resolve import print_services
        from keepclose.cli.render.screen import Screen

        print_services(Screen(), answer, inventory.nodes)
        return
    from keepclose.cli.render.resolve import resolved_document

    document = resolved_document(answer)
    if output is TableJsonOrYaml.JSON:
        echo_json(document)
    else:
        echo_yaml(document)
