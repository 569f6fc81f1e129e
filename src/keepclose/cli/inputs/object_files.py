"""Reads the objects of a cluster from files, admitted as an API server would admit them.

All problems of the files are reported at once, each with its line, and end the command. Nodes
without a zone and kinds that are not read are warned of.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import typer

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.inputs.cluster_input import EXTRA_VERSIONS, ClusterInput, ExtraKind
from keepclose.cli.inputs.gaps import fill_gaps
from keepclose.cli.render.output import say
from keepclose.model.json_values import JsonObject

if TYPE_CHECKING:
    from keepclose.advise.inventory import Inventory
    from keepclose.cli.manifests.objects import Manifests
    from keepclose.cli.manifests.problems import InputProblem

MAX_PROBLEMS: Final = 100
"""How many problems of the files are printed, and how many warnings of each sort."""
_READ_KINDS: Final = "keepclose reads Node, Pod, Service, EndpointSlice and Endpoints"


def read_object_files(files: list[str], kinds: Collection[ExtraKind] = ()) -> ClusterInput:
    """Return the objects of files, with those of the extra kinds; problems end the command."""
    manifests, inventory = _load(files, kinds)
    name = name_files(files)
    inventory, gaps = fill_gaps(inventory, {}, name)
    return ClusterInput(inventory, name, gaps, tuple(filter(_is_read, manifests.extra)))


def read_inventory(files: list[str]) -> Inventory:
    """Return the objects of files as an API server would admit them; problems end the command."""
    return _load(files, ())[1]


def read_plain_files(files: list[str], versions: Mapping[str, str]) -> list[JsonObject]:
    """Return the objects of files as plain values, of the kinds that have a version here.

    Problems end the command. Objects that keepclose decodes must be readable.
    """
    from keepclose.cli.manifests.objects import load_manifests
    from keepclose.model.decoding import Rejected, convert

    manifests = load_manifests(files, extra=versions)
    end_with_problems(manifests.problems)
    for obj in manifests.extra:
        if isinstance(result := convert(obj), Rejected):
            meta = obj["metadata"]
            name = "/".join(str(meta[part]) for part in ("namespace", "name") if meta.get(part))
            fail(f"{obj['kind']} {name}: {result.cause}")
    return list(manifests.extra)


def end_with_problems(problems: Sequence[InputProblem]) -> None:
    """Print all problems and end the command, if there are any."""
    from keepclose.cli.manifests.problems import render

    for problem in problems[:MAX_PROBLEMS]:
        say(*render(problem).splitlines(), err=True)
    _report_rest(len(problems), "error", "problems")
    if problems:
        raise typer.Exit(ExitCode.BAD_INPUT)


def _load(files: list[str], kinds: Collection[ExtraKind]) -> tuple[Manifests, Inventory]:
    from keepclose.cli.manifests.objects import load_manifests

    manifests = load_manifests(files, extra={kind.value: EXTRA_VERSIONS[kind] for kind in kinds})
    inventory, problems = _admit(manifests)
    end_with_problems([*manifests.problems, *problems])
    _warn_of_objects(manifests)
    return manifests, inventory


def _is_read(obj: JsonObject) -> bool:
    """Return whether an object of an extra kind is read: of ConfigMaps, acknowledgements only."""
    from keepclose.model.acknowledgements import ACKNOWLEDGEMENT_LABEL

    if obj["kind"] != ExtraKind.ACKNOWLEDGEMENTS.value:
        return True
    labels = obj["metadata"].get("labels")
    return isinstance(labels, dict) and labels.get(ACKNOWLEDGEMENT_LABEL) == "true"


def name_files(files: list[str]) -> str:
    """Return files as messages name them."""
    return ", ".join("standard input" if path == "-" else path for path in files)


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
    from keepclose.model.workload import Node, Pod

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
    # A dump has kinds that other commands read; among manifests they may be taken for Pods.
    is_dump = any(isinstance(located.object, Node | Pod) for located in manifests.objects)
    ignored = {
        kind: count
        for kind, count in manifests.ignored.items()
        if not (is_dump and kind in EXTRA_VERSIONS)
    }
    for kind, count in islice(ignored.items(), MAX_PROBLEMS):
        close = get_close_matches(kind, API_VERSIONS, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}?" if close and close[0] != kind else _READ_KINDS
        say(
            f"warning: {kind}: kind: not read, {count} of them ignored",
            f"         first in {manifests.ignored_at[kind]}",
            f"         {hint}",
            err=True,
        )
    _report_rest(len(ignored), "warning", "kinds that are not read")


def _report_rest(count: int, level: str, what: str) -> None:
    """Print how many there are beyond those that were printed."""
    if count > MAX_PROBLEMS:
        say(f"{level}: and {count - MAX_PROBLEMS:,} more {what}", err=True)
