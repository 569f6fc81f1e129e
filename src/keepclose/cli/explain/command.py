"""`keepclose explain`: reads a cluster or files, asks for the explanation, and renders it.

It only reads. Of a cluster it needs the rights to list Nodes, Pods, Services and EndpointSlices;
without some of them it explains what it can, and says what it cannot know.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.inputs.cluster_input import (
    ClusterFiles,
    ClusterInput,
    ExtraKind,
    NamespaceOption,
    read_cluster,
    read_cluster_gates,
)
from keepclose.cli.inputs.service_choice import choose_service, join_service
from keepclose.cli.options import Kubeconfig, KubeContext
from keepclose.cli.render.output import echo_document, echo_json, echo_yaml

if TYPE_CHECKING:
    from keepclose.advise.explaining.explanation import Explanation
    from keepclose.advise.explaining.pod_paths import Clients, NotFoundName
    from keepclose.model.acknowledgements import NodeAcknowledgement
    from keepclose.model.workload import Pod


_Found = TypeVar("_Found")


class ExplainFormat(StrEnum):
    """Output formats of `explain`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"


def explain(
    service: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]SERVICE", help="The Service to explain.", show_default=False
        ),
    ] = "",
    *,
    clients: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="NODE|ZONE|POD",
            help="Only clients there. A Pod is [NAMESPACE/]NAME, by default in the namespace of "
            "the Service; node/NAME, zone/NAME and pod/NAME say which it is.",
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POD",
            help="Whether this Pod gets connections, which share, and if not, why.",
        ),
    ] = "",
    service_option: Annotated[
        str,
        typer.Option("--service", metavar="[NS/]NAME", help="The same as the argument."),
    ] = "",
    namespace: NamespaceOption = "",
    file: ClusterFiles = [],  # noqa: B006 - typer copies it
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    output: Annotated[
        ExplainFormat, typer.Option("-o", "--output", help="Output format.")
    ] = ExplainFormat.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Explain why the traffic of a Service goes where it goes.

    Which mechanism governs and what it overrides, the numbers of the controller, the hints of each
    endpoint, what each node uses, and the smallest fix. Only reads. Exit codes: 0 traffic goes as
    asked, 1 it does not, or the Pod of --to gets none, 2 bad input, 3 nothing found or no node
    known, 4 the API server does not answer.
    """
    service = join_service(service, service_option)
    if not service:
        fail(
            "explain: no Service is named",
            "name one, as in keepclose explain shop/web; keepclose resolve lists them",
        )
    source = read_cluster(
        file,
        kubeconfig=kubeconfig,
        context=context,
        data_dir=data_dir,
        namespace=namespace,
        service=service,
        kinds=(ExtraKind.ACKNOWLEDGEMENTS,),
        shows_gaps=False,
    )
    answer = _explain(source, service, namespace, clients, target, feature_gates)
    _show(answer, output)
    raise typer.Exit(_exit_code(answer))


def _explain(  # noqa: PLR0917 - one caller, which passes on what it has
    source: ClusterInput,
    text: str,
    namespace: str,
    clients: str,
    target: str,
    feature_gates: str,
) -> Explanation:
    from keepclose.advise.explaining.explanation import explain_service
    from keepclose.advise.explaining.pod_paths import Clients, find_clients, find_pod
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.slices.settings import PlannerSettings

    service = choose_service(source, text, namespace)
    own = service.metadata.namespace
    chosen = Clients()
    if clients:
        chosen = _check(find_clients(source.inventory, clients, own), "--from", source)
        _check_node(chosen, source)
    pod: Pod | None = None
    if target:
        pod = _check(find_pod(source.inventory, target, own), "--to", source)
    gates = read_cluster_gates(feature_gates, source)
    return explain_service(
        source.inventory,
        service,
        settings=PlannerSettings(gates=gates, heuristics=find_heuristics(gates)),
        clients=chosen,
        target=pod,
        acknowledgements=_acknowledgements(source),
        unknown=_unknown(source, feature_gates),
    )


def _check(found: _Found | NotFoundName, option: str, source: ClusterInput) -> _Found:
    """Return what was found; a name that nothing has ends the command with similar ones."""
    from keepclose.advise.explaining.pod_paths import NotFoundName

    if isinstance(found, NotFoundName):
        hint = f"; did you mean {' or '.join(found.similar)}?" if found.similar else ""
        fail(
            f"{option}: no {found.what} {found.name} in {source.name}{hint}",
            code=ExitCode.NOTHING,
        )
    return found


def _check_node(clients: Clients, source: ClusterInput) -> None:
    """End the command if the node of a client Pod is not known."""
    names = {node.name for node in source.inventory.nodes}
    if clients.pod is None or names.intersection(clients.nodes):
        return
    name = clients.pod.spec.node_name
    why = f"is on node {name}, which {source.name} does not have" if name else "has no node yet"
    fail(f"--from: Pod {clients.name} {why}, so its route is unknown", code=ExitCode.NOTHING)


def _acknowledgements(source: ClusterInput) -> list[NodeAcknowledgement]:
    """Return what proxies say of themselves in ConfigMaps that can be read."""
    from keepclose.model.acknowledgements import parse_acknowledgement
    from keepclose.model.core_kinds import ConfigMap
    from keepclose.model.decoding import Rejected, convert_as

    converted = [convert_as(ConfigMap, raw) for raw in source.of(ExtraKind.ACKNOWLEDGEMENTS)]
    parsed = [parse_acknowledgement(each) for each in converted if not isinstance(each, Rejected)]
    return [each for each in parsed if each is not None]


def _unknown(source: ClusterInput, feature_gates: str) -> list[str]:
    """Return what the input lacks, as sentences."""
    # Proxies of Kubernetes acknowledge nothing, so that gap is the usual case.
    gaps = [str(gap) for gap in source.gaps if gap.kind != ExtraKind.ACKNOWLEDGEMENTS.value]
    is_lab = source.cluster is not None and source.cluster.lab is not None
    if not feature_gates and not is_lab:
        gaps.append("no object shows feature gates: those of Kubernetes 1.36 are assumed")
    return gaps


def _show(answer: Explanation, output: ExplainFormat) -> None:
    if output is ExplainFormat.TABLE:
        from keepclose.cli.explain.text import print_explanation
        from keepclose.cli.render.screen import Screen

        print_explanation(Screen(), answer)
        return
    from keepclose.cli.explain.documents import explanation_document, explanation_markdown

    match output:
        case ExplainFormat.JSON:
            echo_json(explanation_document(answer))
        case ExplainFormat.YAML:
            echo_yaml(explanation_document(answer))
        case _:
            echo_document(explanation_markdown(answer))


def _exit_code(answer: Explanation) -> int:
    from keepclose.advise.explaining.explanation import TrafficFlow

    if answer.flow is TrafficFlow.UNKNOWN:
        return ExitCode.NOTHING
    return ExitCode.OK if answer.flow is TrafficFlow.AS_ASKED else ExitCode.FOUND
