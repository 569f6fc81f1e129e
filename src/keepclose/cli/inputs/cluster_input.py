"""The objects of a cluster for commands that advise: from an API server or from files.

`read_cluster` is all that a command needs besides the options declared here. It reads files if some
are named, else the cluster of --kubeconfig or --context, else a lab that runs, else the cluster
that kubectl uses. A live cluster needs read-only rights and Kubernetes 1.27 or newer. A kind that
cannot be read is a gap, which says what answer suffers; only without Services there is no answer.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from keepclose.cli.exit import DEFAULT_DIR, ask_lab, fail
from keepclose.cli.inputs.gaps import Gap
from keepclose.cli.options import ChosenCluster, choose_cluster, read_gates
from keepclose.cli.render.output import say
from keepclose.model.json_values import JsonObject

if TYPE_CHECKING:
    from keepclose.advise.inventory import Inventory
    from keepclose.model.gates import FeatureGates

ClusterFiles = Annotated[
    list[str],
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        help="The cluster's objects as YAML or JSON, instead of an API server; a directory stands "
        "for all manifests in it, - for standard input. May be repeated.",
    ),
]
NamespaceOption = Annotated[
    str,
    typer.Option(
        "-n",
        "--namespace",
        metavar="NAME",
        help="Only Services of this namespace; for a Service, its namespace. Only this namespace "
        "is read.",
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option(
        "-A", "--all-namespaces", help="Services of all namespaces, as without --namespace."
    ),
]


class ExtraKind(StrEnum):
    """Kinds that are read only for commands that ask for them."""

    DEPLOYMENTS = "Deployment"
    STATEFUL_SETS = "StatefulSet"
    DAEMON_SETS = "DaemonSet"
    REPLICA_SETS = "ReplicaSet"
    DISRUPTION_BUDGETS = "PodDisruptionBudget"
    AUTOSCALERS = "HorizontalPodAutoscaler"
    NAMESPACES = "Namespace"
    EVENTS = "Event"
    ACKNOWLEDGEMENTS = "ConfigMap"
    """ConfigMaps in which nodes acknowledge hints; no other ConfigMap is read."""


EXTRA_VERSIONS: Final = {
    ExtraKind.DEPLOYMENTS: "apps/v1",
    ExtraKind.STATEFUL_SETS: "apps/v1",
    ExtraKind.DAEMON_SETS: "apps/v1",
    ExtraKind.REPLICA_SETS: "apps/v1",
    ExtraKind.DISRUPTION_BUDGETS: "policy/v1",
    ExtraKind.AUTOSCALERS: "autoscaling/v2",
    ExtraKind.NAMESPACES: "v1",
    ExtraKind.EVENTS: "v1",
    ExtraKind.ACKNOWLEDGEMENTS: "v1",
}
"""The version in which an extra kind is read."""


class ClusterInput(NamedTuple):
    """What was read of a cluster."""

    inventory: Inventory
    name: str
    """The source as messages name it: its files, the lab, or the URL of the API server."""
    gaps: tuple[Gap, ...] = ()
    other: tuple[JsonObject, ...] = ()
    """The objects of extra kinds that the command asked for, as they are.

    NB: only their kind, apiVersion and name are checked: any other field may have any type.
    """
    cluster: ChosenCluster | None = None
    """The cluster that was read; None for files."""
    default_namespace: str = "default"
    """The namespace of a Service that is named without one: that of the kubeconfig's context."""

    def of(self, kind: ExtraKind) -> tuple[JsonObject, ...]:
        """Return the objects of one extra kind."""
        return tuple(obj for obj in self.other if obj.get("kind") == kind.value)


def read_cluster(
    files: Collection[str] = (),
    *,
    kubeconfig: Path | None = None,
    context: str = "",
    data_dir: Path = DEFAULT_DIR,
    namespace: str = "",
    all_namespaces: bool = False,
    service: str = "",
    kinds: Collection[ExtraKind] = (),
    shows_gaps: bool = True,
) -> ClusterInput:
    """Return the objects of the files, or else of a cluster; errors end the command.

    Of a cluster only the namespace is read, if one is named; files are read whole. `service` is the
    argument that names a Service, [NAMESPACE/]NAME: where listing all namespaces is forbidden, its
    namespace is read. Gaps are shown as warnings, unless the command shows them itself.
    """
    if namespace and all_namespaces:
        fail("--all-namespaces: name one namespace or all of them, not both")
    if files:
        if kubeconfig or context:
            fail("--file: name files or a cluster, not both")
        from keepclose.cli.inputs.object_files import read_object_files

        answer = read_object_files(list(files), kinds)
    else:
        from keepclose.cli.inputs.live_objects import read_live_objects

        cluster = choose_cluster(
            kubeconfig, context, data_dir, other="or name its objects in files with -f"
        )
        answer = read_live_objects(
            cluster, namespace=namespace, fallback=service.rpartition("/")[0], kinds=kinds
        )
    if shows_gaps:
        show_gaps(answer.gaps)
    return answer


def show_gaps(gaps: Collection[Gap]) -> None:
    """Print a warning for each gap, with its fix."""
    for gap in gaps:
        say(f"warning: {gap}", err=True)
        if gap.fix:
            say(f"         {gap.fix}", err=True)


def read_cluster_gates(text: str, source: ClusterInput) -> FeatureGates:
    """Return the gates of --feature-gates; without the option, those of a lab are its own."""
    lab = source.cluster.lab if source.cluster else None
    return read_lab_gates(text, lab)


def read_lab_gates(text: str, lab: Path | None) -> FeatureGates:
    """Return the gates of --feature-gates, or else those with which a lab's proxies run."""
    if lab is None or text:
        return read_gates(text)
    from keepclose.model.gates import FeatureGates, Gate

    by_role: dict[str, list[str]] = ask_lab(lab, "gates")["gates"]
    names = set(by_role.get("proxy") or next(iter(by_role.values())))
    return FeatureGates(frozenset(gate for gate in Gate if gate.value in names))
