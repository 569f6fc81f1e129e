"""The command `keepclose replay`: its options, and the objects that it reads."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.inputs.cluster_input import (
    AllNamespaces,
    ClusterFiles,
    ClusterInput,
    ExtraKind,
    NamespaceOption,
    read_cluster,
    read_cluster_gates,
)
from keepclose.cli.inputs.service_choice import service_key
from keepclose.cli.options import Kubeconfig, KubeContext
from keepclose.cli.render.output import echo_document, echo_json, echo_yaml, say

if TYPE_CHECKING:
    from keepclose.advise.replaying.mechanisms import ReplayMechanism
    from keepclose.advise.replaying.replay_start import ReplayObjects
    from keepclose.model.gates import FeatureGates

_Kind = TypeVar("_Kind")
_KINDS = (ExtraKind.DEPLOYMENTS, ExtraKind.REPLICA_SETS, ExtraKind.DISRUPTION_BUDGETS)


class ReplayFormat(StrEnum):
    """Output formats."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"


def replay(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO.yaml", help="What happens to the cluster; - is standard input."
        ),
    ],
    *,
    file: ClusterFiles = [],  # noqa: B006 - typer copies it
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    data_dir: DataDir = DEFAULT_DIR,
    namespace: NamespaceOption = "",
    all_namespaces: AllNamespaces = False,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="as-is, none, PreferSameZone, PreferSameNode, Auto, Balanced (the default ones), "
            "Subsetting, Weights, LocalShared, LocalWeighted or LocalOpt; may be repeated.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of all random draws.")] = 0,
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    output: Annotated[
        ReplayFormat, typer.Option("-o", "--output", help="Output format.")
    ] = ReplayFormat.TABLE,
) -> None:
    """Play a rollout, a drain or a zone loss, and compare mechanisms.

    How long nodes route without regard to zones, the busiest endpoint, hints taken back, slice
    writes, and connections that fail or leave their zone. Plays in memory, by the decisions of
    controller and proxy; writes nothing. At most 24 h, 200 events, 1,000 replicas, 10,000 new pods
    and 20,000 steps. Exit codes: 0 fine, 2 bad input, 4 no cluster answers.
    """
    from msgspec.structs import replace

    from keepclose.advise.replaying.replay import replay_scenario
    from keepclose.cli.render.progress import shown_progress
    from keepclose.cli.replay.scenario_file import read_scenario_file, show_problems
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.slices.settings import PlannerSettings

    if scenario == "-" and "-" in file:
        fail("-f -: the scenario is read from standard input already", "put one into a file")
    mechanisms = _choose(mechanism or [])
    written = read_scenario_file(scenario)
    source = read_cluster(
        file,
        kubeconfig=kubeconfig,
        context=context,
        data_dir=data_dir,
        namespace=namespace,
        all_namespaces=all_namespaces,
        service=written.scenario.service,
        kinds=_KINDS,
    )
    asked = written.scenario
    if asked.service:
        key = service_key(asked.service, namespace, default=source.default_namespace)
        asked = replace(asked, service=str(key))
    gates: FeatureGates = read_cluster_gates(feature_gates, source)
    with shown_progress(len(mechanisms), "mechanisms") as advance:
        result = replay_scenario(
            _read_objects(source, namespace),
            asked,
            mechanisms,
            settings=PlannerSettings(gates=gates, heuristics=find_heuristics()),
            seed=seed,
            progress=advance,
        )
    if isinstance(result, list):
        show_problems(result, written)
    for note in result.start.notes:
        say(f"note: {note}", err=True)
    if output is ReplayFormat.TABLE:
        from keepclose.cli.render.screen import Screen
        from keepclose.cli.replay.report import print_replay

        print_replay(Screen(), result)
    elif output is ReplayFormat.MARKDOWN:
        from keepclose.cli.replay.report import render_markdown

        echo_document(render_markdown(result))
    else:
        from keepclose.cli.replay.report import replay_document

        document = replay_document(result)
        if output is ReplayFormat.JSON:
            echo_json(document)
        else:
            echo_yaml(document)


def _choose(names: list[str]) -> tuple[ReplayMechanism, ...]:
    from keepclose.advise.replaying.mechanisms import UnknownMechanism, choose_mechanisms

    chosen = choose_mechanisms(names)
    if isinstance(chosen, UnknownMechanism):
        fail(f"--mechanism: there is no mechanism {chosen.name}", chosen.fix)
    return chosen


def _read_objects(source: ClusterInput, namespace: str) -> ReplayObjects:
    from msgspec.structs import replace

    from keepclose.advise.replaying.replay_start import ReplayObjects
    from keepclose.model.workloads.disruption_budgets import PodDisruptionBudget
    from keepclose.model.workloads.types import Deployment, ReplicaSet

    services = tuple(
        service
        for service in source.inventory.services
        if namespace in ("", service.metadata.namespace)
    )
    return ReplayObjects(
        replace(source.inventory, services=services),
        _decode(source, ExtraKind.DEPLOYMENTS, Deployment),
        _decode(source, ExtraKind.REPLICA_SETS, ReplicaSet),
        _decode(source, ExtraKind.DISRUPTION_BUDGETS, PodDisruptionBudget),
    )


def _decode(source: ClusterInput, kind: ExtraKind, struct: type[_Kind]) -> tuple[_Kind, ...]:
    """Return the objects of a kind; one that cannot be decoded ends the command."""
    from keepclose.model.decoding import Rejected, convert_as

    objects: list[_Kind] = []
    for raw in source.of(kind):
        meta: dict[str, Any] = raw["metadata"]
        decoded = convert_as(struct, raw)
        if isinstance(decoded, Rejected):
            name = f"{meta.get('namespace') or 'default'}/{meta.get('name')}"
            fail(
                f"{kind.value} {name}: {decoded.cause}",
                f"in {source.name}",
                code=ExitCode.BAD_INPUT,
            )
        objects.append(decoded)
    return tuple(objects)
