"""`keepclose resolve`: what would happen to the Services in some files, by the pure core alone."""

from __future__ import annotations

import shlex
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
    from keepclose.slices.settings import Settings


MOST_PROBLEMS: Final = 100
"""How many problems of the files are told one by one, and how many warnings of each sort."""
_READ = "keepclose resolve reads Node, Pod, Service, EndpointSlice and Endpoints"


def resolve(
    *,
    file: Annotated[
        list[str],
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="YAML or JSON with Nodes, Pods, Services and EndpointSlices; a directory means "
            "all manifests in it, - standard input. May be given several times.",
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
            help="Only Services of this namespace; default all, and default for --service.",
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
        TableJsonOrYaml, typer.Option("-o", "--output", help="Form of the answer.")
    ] = TableJsonOrYaml.TABLE,
) -> None:
    """Say what would happen to the Services in some files.

    Mechanism, slices and hints, and what every node would use. Existing EndpointSlices among the
    files are the state to start from. Nothing is written and no cluster is asked. Exit codes:
    0 fine, 2 bad input, 3 nothing found.
    """
    from keepclose.advise.resolution import resolve_services as resolve_inventory
    from keepclose.cli.manifests.objects import load_manifests
    from keepclose.cli.manifests.problems import render

    subsets = read_subsets(
        default_subsetting,
        starting_threshold=subsetting_starting_threshold,
        padding=subsetting_padding,
        overload_threshold=subsetting_overload_threshold,
    )
    settings = _settings(feature_gates, subsets, node_level_topology_mode)
    manifests = load_manifests(file)
    inventory, problems = _admit(manifests)
    problems = [*manifests.problems, *problems]
    for problem in problems[:MOST_PROBLEMS]:
        say(*render(problem).splitlines(), err=True)
    _tell_more(len(problems), "error", "problems")
    if problems:
        raise typer.Exit(ExitCode.BAD_INPUT)
    _warn(manifests)
    files = ", ".join("standard input" if path == "-" else path for path in file)
    key = _key(service, namespace)
    inventory = _narrow(inventory, key, namespace, files)
    if node is not None and all(node != one.name for one in inventory.nodes):
        fail(f"no Node {node} in {files}", code=ExitCode.NOTHING)
    _warn_of_missing_kinds(inventory, files)
    answer = resolve_inventory(inventory, settings=settings, service=key, node=node)
    _show(answer, inventory, output)


def _narrow(
    inventory: Inventory, key: NamespacedName | None, namespace: str, files: str
) -> Inventory:
    """Return the inventory with the Services that are asked about; ends the command without any."""
    from msgspec.structs import replace

    from keepclose.model.meta import find_near_names

    services = tuple(
        one
        for one in inventory.services
        if key in (None, one.key) and namespace in ("", one.metadata.namespace)
    )
    if not services and key is not None:
        near = find_near_names(key.name, (one.key for one in inventory.services))
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        fail(f"no Service {key} in {files}{hint}", code=ExitCode.NOTHING)
    if not services:
        where = f" of namespace {namespace}" if namespace else ""
        fail(f"no Service{where} in {files}", code=ExitCode.NOTHING)
    return replace(inventory, services=services)


def _settings(gates: str, subsets: SubsetOptions, detection: TopologyMode) -> Settings:
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.routing.node_level import NodeLevelMode
    from keepclose.slices.settings import Settings

    chosen = read_gates(gates)
    return Settings(
        gates=chosen,
        subsets=subsets,
        node_level_mode=NodeLevelMode(detection.value),
        heuristics=find_heuristics(chosen),
    )


def _key(text: str | None, namespace: str) -> NamespacedName | None:
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
    from keepclose.cli.manifests.objects import report
    from keepclose.model.endpointslice.types import EndpointSlice
    from keepclose.model.service.types import Service
    from keepclose.model.workload import Node, Pod

    families = Inventory.of(one.object for one in manifests.objects).families()
    admitted: list[object] = []
    problems: list[InputProblem] = []
    for located in manifests.objects:
        match located.object:
            case Service() as one:
                answer: object = admit_service(one, families)
            case EndpointSlice() as piece:
                answer = admit_slice(piece)
            case Node() as machine:
                answer = admit_node(machine)
            case Pod() as pod:
                answer = admit_pod(pod)
            case other:
                answer = other
        if isinstance(answer, list):
            problems += [report(located, cause) for cause in answer]
        else:
            admitted.append(answer)
    return Inventory.of(admitted), problems


def _warn(manifests: Manifests) -> None:
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
    for located, node in zoneless[:MOST_PROBLEMS]:
        say(
            f"warning: Node {node.name}: {field}: not set, so it takes part in no zone",
            f"         in {place_of_object(located, field)}",
            f"         kubectl label node {shlex.quote(node.name)} {ZONE_LABEL}=<zone>",
            err=True,
        )
    _tell_more(len(zoneless), "warning", "Nodes without a zone")
    for kind, count in islice(manifests.ignored.items(), MOST_PROBLEMS):
        close = get_close_matches(kind, API_VERSIONS, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}?" if close and close[0] != kind else _READ
        say(
            f"warning: {kind}: kind: not read, so {count} of them left out",
            f"         first in {manifests.ignored_at[kind]}",
            f"         {hint}",
            err=True,
        )
    _tell_more(len(manifests.ignored), "warning", "kinds that are not read")


def _tell_more(count: int, level: str, what: str) -> None:
    """Say how many there are beyond those that were told one by one."""
    if count > MOST_PROBLEMS:
        say(f"{level}: and {count - MOST_PROBLEMS:,} more {what}", err=True)


def _warn_of_missing_kinds(inventory: Inventory, files: str) -> None:
    """Say what a dump lacks, so that no answer is taken for one about the cluster."""
    from keepclose.advise.resolution import DUMP_COMMAND

    if not inventory.nodes:
        say(
            f"warning: Node: there are none in {files}, so no node routes a Service, and Pods that "
            "have a node are left out",
            f"         {DUMP_COMMAND}",
            err=True,
        )
    selecting = any(one.spec.selector for one in inventory.services)
    if selecting and not inventory.pods and not inventory.slices:
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
