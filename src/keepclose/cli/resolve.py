"""`keepclose resolve`: shows how Services in manifests would be routed, and why.

Admits the objects as an API server would, plans their slices and selects endpoints for every node
by the same decisions as controller and proxy. It writes nothing and asks no cluster. All problems
of the files are reported at once, each with its line.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.options import (
    DefaultSubsetting,
    OverloadThreshold,
    Padding,
    StartingThreshold,
    SubsettingDefaults,
    TopologyMode,
    join_namespace,
    read_gates,
    read_subsets,
)
from keepclose.cli.render.output import TableJsonOrYaml, echo_json, echo_yaml, say

if TYPE_CHECKING:
    from keepclose.advise.inventory import Inventory
    from keepclose.advise.resolution import ResolvedService
    from keepclose.cli.manifests.objects import Manifests
    from keepclose.cli.manifests.problems import InputProblem
    from keepclose.model.meta import NamespacedName
    from keepclose.routing.subsets import SubsetOptions
    from keepclose.slices.settings import PlannerSettings


MAX_PROBLEMS: Final = 100
"""How many problems of the files are printed, and how many warnings of each sort."""
_READ_KINDS: Final = "keepclose reads Node, Pod, Service, EndpointSlice and Endpoints"


def resolve(
    *,
    file: Annotated[
        list[str],
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="YAML or JSON with Nodes, Pods, Services and EndpointSlices; a directory stands "
            "for all manifests in it, - for standard input. May be repeated.",
        ),
    ],
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Only this node.")] = None,
    service: Annotated[
        str | None, typer.Option(metavar="[NS/]NAME", help="Only this Service.")
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAME",
            help="Only Services of this namespace; default: all namespaces, with --service the "
            "namespace default.",
        ),
    ] = "",
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
) -> None:
    """Show how Services in manifests would be routed.

    Mechanism, slices and hints, and the endpoints that every node would use. EndpointSlices in the
    files are the state to start from. Writes nothing and asks no cluster. Exit codes: 0 fine, 2 bad
    input, 3 nothing found.
    """
    from keepclose.advise.resolution import resolve_services as resolve_inventory

    subsets = read_subsets(
        default_subsetting,
        starting_threshold=subsetting_starting_threshold,
        padding=subsetting_padding,
        overload_threshold=subsetting_overload_threshold,
    )
    settings = _settings(feature_gates, subsets, node_level_topology_mode)
    inventory = read_inventory(file)
    files = name_files(file)
    key = service_key(service, namespace)
    inventory = narrow_services(inventory, key, namespace, files)
    if node is not None and all(node != other.name for other in inventory.nodes):
        fail(f"no Node {node} in {files}", code=ExitCode.NOTHING)
    _warn_of_missing_kinds(inventory, files)
    answer = resolve_inventory(inventory, settings=settings, service=key, node=node)
    _show(answer, inventory, output)


def read_inventory(files: list[str]) -> Inventory:
    """Return the objects of files as an API server would admit them; problems end the command."""
    from keepclose.cli.manifests.objects import load_manifests
    from keepclose.cli.manifests.problems import render

    manifests = load_manifests(files)
    inventory, problems = _admit(manifests)
    problems = [*manifests.problems, *problems]
    for problem in problems[:MAX_PROBLEMS]:
        say(*render(problem).splitlines(), err=True)
    _report_rest(len(problems), "error", "problems")
    if problems:
        raise typer.Exit(ExitCode.BAD_INPUT)
    _warn_of_objects(manifests)
    return inventory


def name_files(files: list[str]) -> str:
    """Return files as messages name them."""
    return ", ".join("standard input" if path == "-" else path for path in files)


def narrow_services(
    inventory: Inventory, key: NamespacedName | None, namespace: str, files: str
) -> Inventory:
    """Return the inventory with only the selected Services; ends the command if there are none."""
    from msgspec.structs import replace

    services = tuple(
        service
        for service in inventory.services
        if key in (None, service.key) and namespace in ("", service.metadata.namespace)
    )
    if not services and key is not None:
        hint = suggest_services(key, [service.key for service in inventory.services])
        fail(f"no Service {key} in {files}{hint}", code=ExitCode.NOTHING)
    if not services:
        where = f" of namespace {namespace}" if namespace else ""
        fail(f"no Service{where} in {files}", code=ExitCode.NOTHING)
    return replace(inventory, services=services)


def suggest_services(key: NamespacedName, known: Sequence[NamespacedName]) -> str:
    """Return which of the known Services may have been meant, as the end of a sentence."""
    from keepclose.model.meta import find_similar_names

    near = find_similar_names(key.name, known)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    more = f" and {len(known) - 3:,} more" if len(known) > 3 else ""
    names = ", ".join(map(str, known[:3]))
    return f"; there {'is' if len(known) == 1 else 'are'} {names}{more}" if known else ""


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


def service_key(text: str | None, namespace: str) -> NamespacedName | None:
    """Return the Service that an argument names, None if it names none."""
    from keepclose.model.meta import NamespacedName

    if text is None:
        return None
    whole = text if not namespace and "/" in text else join_namespace(text, namespace or "default")
    own, _, name = whole.partition("/")
    return NamespacedName(own, name)


def _admit(manifests: Manifests) -> tuple[Inventory, list[InputProblem]]:
    from keepclose.advise.inventory import (
        Inventory,
        admit_node,
        admit_pod,
        admit_service,
        admit_slice,
    )
    from keepclose.cli.manifests.objects import describe_problem
    from keepclose.model.endpointslice.types import EndpointSlice
    from keepclose.model.service.types import Service
    from keepclose.model.workload import Node, Pod

    families = Inventory.of(located.object for located in manifests.objects).families()
    admitted: list[object] = []
    problems: list[InputProblem] = []
    for located in manifests.objects:
        match located.object:
            case Service() as service:
                result: object = admit_service(service, families)
            case EndpointSlice() as endpoint_slice:
                result = admit_slice(endpoint_slice)
            case Node() as node:
                result = admit_node(node)
            case Pod() as pod:
                result = admit_pod(pod)
            case unchecked:
                result = unchecked
        if isinstance(result, list):
            problems += [describe_problem(located, error) for error in result]
        else:
            admitted.append(result)
    return Inventory.of(admitted), problems


def _warn_of_objects(manifests: Manifests) -> None:
    """Warn of Nodes without a zone and of kinds that are not read."""
    from difflib import get_close_matches

    from keepclose.cli.manifests.objects import place_of_object
    from keepclose.model.decoding import API_VERSIONS
    from keepclose.model.well_known import ZONE_LABEL
    from keepclose.model.workload import Node

    field = f"metadata.labels[{ZONE_LABEL}]"
    zoneless = [
        (located, located.object)
        for located in manifests.objects
        if isinstance(located.object, Node)
        and not located.object.zone
        and not located.object.is_excluded
    ]
    for located, node in zoneless[:MAX_PROBLEMS]:
        say(
            f"warning: Node {node.name}: {field}: not set, so it belongs to no zone",
            f"         in {place_of_object(located, field)}",
            f"         kubectl label node {shlex.quote(node.name)} {ZONE_LABEL}=<zone>",
            err=True,
        )
    _report_rest(len(zoneless), "warning", "Nodes without a zone")
    for kind, count in islice(manifests.ignored.items(), MAX_PROBLEMS):
        close = get_close_matches(kind, API_VERSIONS, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}?" if close and close[0] != kind else _READ_KINDS
        say(
            f"warning: {kind}: kind: not read, {count} of them ignored",
            f"         first in {manifests.ignored_at[kind]}",
            f"         {hint}",
            err=True,
        )
    _report_rest(len(manifests.ignored), "warning", "kinds that are not read")


def _report_rest(count: int, level: str, what: str) -> None:
    """Print how many there are beyond those that were printed."""
    if count > MAX_PROBLEMS:
        say(f"{level}: and {count - MAX_PROBLEMS:,} more {what}", err=True)


def _warn_of_missing_kinds(inventory: Inventory, files: str) -> None:
    """Warn of kinds that the files lack: the answer then differs from that of the cluster."""
    from keepclose.advise.resolution import DUMP_COMMAND

    if not inventory.nodes:
        say(
            f"warning: Node: there are none in {files}, so no node routes a Service, and Pods that "
            "have a node are ignored",
            f"         {DUMP_COMMAND}",
            err=True,
        )
    has_selector = any(service.spec.selector for service in inventory.services)
    if has_selector and not inventory.pods and not inventory.slices:
        say(
            f"warning: Pod: there are none in {files}, and no EndpointSlices, so Services have no "
            "endpoints",
            f"         {DUMP_COMMAND}",
            err=True,
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
