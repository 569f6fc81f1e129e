"""The objects to lint, from files with the place of each field, or from a cluster.

An invalid Service does not end the command: lint reports it as a finding. Anything else that cannot
be read does, after all problems were shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from keepclose.advise.inventory import admit_node, admit_pod
from keepclose.advise.linting.context import LintedObjects
from keepclose.advise.linting.findings import LintFinding, ObjectName
from keepclose.advise.linting.rules import (
    AUTO_LOSES_HINTS,
    AUTOSCALER_CROSSES,
    NO_DISRUPTION_BUDGET,
    NODE_WITHOUT_ZONE,
    ONE_ZONE,
    SELECTOR_MATCHES_NOTHING,
)
from keepclose.advise.linting.workload_kinds import (
    LINTED_KINDS,
    Autoscaler,
    LintedKind,
    LintedWorkload,
    view_workload,
)
from keepclose.cli.inputs.cluster_input import ClusterInput, ExtraKind
from keepclose.cli.inputs.object_files import MAX_PROBLEMS, end_with_problems, name_files
from keepclose.cli.manifests.objects import (
    LocatedExtra,
    LocatedObject,
    Manifests,
    describe_problem,
    load_manifests,
    place_of_object,
)
from keepclose.cli.manifests.problems import (
    InputPlace,
    InputProblem,
    describe_field_error,
)
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.field_errors import FieldError
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import ObjectMeta
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.model.workloads.disruption_budgets import PodDisruptionBudget

READ_KINDS: Final = (
    ExtraKind.DEPLOYMENTS,
    ExtraKind.STATEFUL_SETS,
    ExtraKind.DAEMON_SETS,
    ExtraKind.DISRUPTION_BUDGETS,
    ExtraKind.AUTOSCALERS,
)
"""The extra kinds that lint reads of a cluster; ReplicaSets are those of Deployments there."""
_VERSIONS: Final = {kind: api_version for api_version, kind in LINTED_KINDS}
_STRUCTS: Final = {kind: struct for (_, kind), struct in LINTED_KINDS.items()}
_NAMED_KINDS: Final = 8
_NEEDS_KIND: Final = {
    ExtraKind.DISRUPTION_BUDGETS.value: (NO_DISRUPTION_BUDGET,),
    "Pod": (SELECTOR_MATCHES_NOTHING,),
    "Node": (AUTO_LOSES_HINTS, AUTOSCALER_CROSSES, NODE_WITHOUT_ZONE, ONE_ZONE),
}
"""Rules that need all objects of a kind, by that kind."""


class LintSource(NamedTuple):
    """The objects to lint and where they are."""

    objects: LintedObjects
    name: str
    located: dict[ObjectName, LocatedObject | LocatedExtra]
    notes: tuple[str, ...] = ()
    unread_rules: tuple[str, ...] = ()
    """Rules that cannot be judged, because a kind could not be read."""
    lab: Path | None = None
    """The data directory of the lab that was read."""

    def is_empty_of(self, namespace: str) -> bool:
        """Return whether there is no object that lint reads, Nodes aside where one is named."""
        return self.objects == LintedObjects(nodes=self.objects.nodes if namespace else ())

    def place_of(self, finding: LintFinding) -> InputPlace | None:
        """Return the place of a finding in the files; None in a cluster."""
        located = self.located.get(finding.subject)
        return None if located is None else place_of_object(located, finding.field)


def read_files(
    files: list[str], namespace: str = "", *, stdin: BinaryIO | None = None
) -> LintSource:
    """Return the objects of files; problems end the command."""
    manifests = load_manifests(files, extra=_VERSIONS, stdin=stdin)
    problems = list(manifests.problems)
    located: dict[ObjectName, LocatedObject | LocatedExtra] = {}
    kept: list[object] = []
    for known in manifests.objects:
        match known.object:
            case Node() as node:
                checked: object = admit_node(node)
            case Pod() as pod:
                checked = admit_pod(pod)
            case unchecked:
                checked = unchecked
        if isinstance(checked, list):
            problems += [describe_problem(known, error) for error in checked]
        else:
            kept.append(checked)
            name = ObjectName.of(known.object.kind, known.object.metadata)
            located.setdefault(name, known)
    for extra in manifests.located_extra:
        decoded = decode_extra(extra.object)
        if isinstance(decoded, FieldError):
            problems.append(_describe(extra, decoded))
        elif not _is_of_deployment(decoded):
            kept.append(decoded)
            located.setdefault(_name_of(decoded), extra)
    end_with_problems(problems)
    objects = collect_objects(kept, namespace)
    return LintSource(objects, name_files(files), located, _note_ignored(manifests))


def read_source(source: ClusterInput, namespace: str) -> LintSource:
    """Return the objects of a cluster; those that cannot be decoded are left out with a note."""
    kept: list[object] = [
        *source.inventory.services,
        *source.inventory.nodes,
        *(pod for pods in source.inventory.pods.values() for pod in pods),
    ]
    notes: list[str] = []
    for raw in source.other:
        decoded = decode_extra(raw)
        if isinstance(decoded, FieldError):
            notes.append(f"{raw.get('kind')} {raw['metadata'].get('name')}: {decoded}; left out")
        elif not _is_of_deployment(decoded):
            kept.append(decoded)
    unread = tuple(rule.id for gap in source.gaps for rule in _NEEDS_KIND.get(gap.kind, ()))
    objects = collect_objects(kept, namespace)
    lab = source.cluster.lab if source.cluster else None
    return LintSource(objects, source.name, {}, tuple(notes[:MAX_PROBLEMS]), unread, lab)


def decode_extra(raw: JsonObject) -> LintedWorkload | PodDisruptionBudget | Autoscaler | FieldError:
    """Return an object of an extra kind, or the first field that cannot be read."""
    decoded = convert_as(_STRUCTS[raw["kind"]], raw)
    if isinstance(decoded, Rejected):
        return decoded.cause
    return _view(decoded)


def collect_objects(objects: Iterable[object], namespace: str) -> LintedObjects:
    """Return the objects by kind, only those of a namespace if one is named."""
    services: list[Service] = []
    workloads: list[LintedWorkload] = []
    pods: list[Pod] = []
    nodes: list[Node] = []
    budgets: list[PodDisruptionBudget] = []
    autoscalers: list[Autoscaler] = []
    for obj in objects:
        match obj:
            case Node():
                nodes.append(obj)
            case Service(metadata=meta) if _is_in(meta, namespace):
                services.append(obj)
            case Pod(metadata=meta) if _is_in(meta, namespace):
                pods.append(obj)
            case LintedWorkload(name=name) if namespace in ("", name.namespace):
                workloads.append(obj)
            case PodDisruptionBudget(metadata=meta) if _is_in(meta, namespace):
                budgets.append(obj)
            case Autoscaler(metadata=meta) if _is_in(meta, namespace):
                autoscalers.append(obj)
            case _:
                pass
    return LintedObjects(
        tuple(services),
        tuple(workloads),
        tuple(pods),
        tuple(nodes),
        tuple(budgets),
        tuple(autoscalers),
    )


def _view(decoded: LintedKind) -> LintedWorkload | PodDisruptionBudget | Autoscaler | FieldError:
    if isinstance(decoded, PodDisruptionBudget | Autoscaler):
        return decoded
    return view_workload(decoded)


def _is_in(meta: ObjectMeta, namespace: str) -> bool:
    return namespace in ("", meta.namespace)


def _is_of_deployment(decoded: LintedWorkload | PodDisruptionBudget | Autoscaler) -> bool:
    """Return whether a workload belongs to another one, which is linted instead."""
    return isinstance(decoded, LintedWorkload) and any(
        owner.controller for owner in decoded.source.metadata.owner_references
    )


def _name_of(decoded: LintedWorkload | PodDisruptionBudget | Autoscaler) -> ObjectName:
    if isinstance(decoded, LintedWorkload):
        return decoded.name
    return ObjectName.of(decoded.kind, decoded.metadata)


def _describe(extra: LocatedExtra, error: FieldError) -> InputProblem:
    meta = extra.object["metadata"]
    name = ObjectName(extra.object["kind"], str(meta.get("namespace")), str(meta.get("name")))
    place = place_of_object(extra, error.field, error.value)
    return describe_field_error(error, place=place, subject=str(name))


def _note_ignored(manifests: Manifests) -> tuple[str, ...]:
    """Return one note about the kinds that lint does not read."""
    if not manifests.ignored:
        return ()
    kinds = list(manifests.ignored)
    more = f" and {len(kinds) - _NAMED_KINDS} more kinds" if len(kinds) > _NAMED_KINDS else ""
    count = sum(manifests.ignored.values())
    objects = "1 object" if count == 1 else f"{count:,} objects"
    return (f"{objects} of other kinds skipped: {', '.join(kinds[:_NAMED_KINDS])}{more}",)
