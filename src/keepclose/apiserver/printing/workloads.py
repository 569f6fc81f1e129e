"""Deployments, ReplicaSets and DaemonSets: desired pods against existing pods."""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.printing.cells import (
    AGE,
    NAME,
    NONE,
    Cells,
    Printer,
    TableColumn,
    age,
    list_at,
    number_at,
    object_name,
    pairs_at,
    show_labels,
    show_selector,
    text_at,
    whole_number,
    wide,
)
from keepclose.model.json_values import JsonObject

_TEMPLATE: Final = (
    wide("Containers", "Names of the containers in the pod template."),
    wide("Images", "Images of the containers in the pod template."),
    wide("Selector", "Labels of the pods that belong to it."),
)


def _deployment_cells(item: JsonObject, now: float) -> Cells:
    # NB: a selector without requirements stays empty here, and an invalid one is "<invalid>".
    selector = show_selector(item, "spec", "selector")
    return [
        object_name(item),
        f"{number_at(item, 'status', 'readyReplicas')}/{_replicas(item)}",
        number_at(item, "status", "updatedReplicas"),
        number_at(item, "status", "availableReplicas"),
        age(item, now),
        *_containers(item),
        "<invalid>" if selector is None else selector,
    ]


def _replica_set_cells(item: JsonObject, now: float) -> Cells:
    return [
        object_name(item),
        _replicas(item),
        number_at(item, "status", "replicas"),
        number_at(item, "status", "readyReplicas"),
        age(item, now),
        *_containers(item),
        _selector(item),
    ]


def _daemon_set_cells(item: JsonObject, now: float) -> Cells:
    return [
        object_name(item),
        number_at(item, "status", "desiredNumberScheduled"),
        number_at(item, "status", "currentNumberScheduled"),
        number_at(item, "status", "numberReady"),
        number_at(item, "status", "updatedNumberScheduled"),
        number_at(item, "status", "numberAvailable"),
        show_labels(pairs_at(item, "spec", "template", "spec", "nodeSelector")),
        age(item, now),
        *_containers(item),
        _selector(item),
    ]


def _replicas(item: JsonObject) -> int:
    return number_at(item, "spec", "replicas", default=1)


def _containers(item: JsonObject) -> tuple[str, str]:
    containers = list_at(item, "spec", "template", "spec", "containers")
    return (
        ",".join(text_at(container, "name") for container in containers),
        ",".join(text_at(container, "image") for container in containers),
    )


def _selector(item: JsonObject) -> str:
    selector = show_selector(item, "spec", "selector")
    return "<error>" if selector is None else selector or NONE


DEPLOYMENT: Final = Printer(
    columns=(
        NAME,
        TableColumn("Ready", "Ready pods of the desired ones."),
        TableColumn("Up-to-date", "Pods created from the current template."),
        TableColumn("Available", "Pods that have been ready for long enough."),
        AGE,
        *_TEMPLATE,
    ),
    cells=_deployment_cells,
)
REPLICA_SET: Final = Printer(
    columns=(
        NAME,
        whole_number("Desired", "Desired pods."),
        whole_number("Current", "Pods that exist."),
        whole_number("Ready", "Pods that are ready."),
        AGE,
        *_TEMPLATE,
    ),
    cells=_replica_set_cells,
)
DAEMON_SET: Final = Printer(
    columns=(
        NAME,
        whole_number("Desired", "Nodes that should run the pod."),
        whole_number("Current", "Nodes that run the pod and should."),
        whole_number("Ready", "Nodes on which the pod is ready."),
        whole_number("Up-to-date", "Nodes whose pod was created from the current template."),
        whole_number("Available", "Nodes whose pod has been ready for long enough."),
        TableColumn("Node Selector", "Labels of the nodes that run the pod."),
        AGE,
        *_TEMPLATE,
    ),
    cells=_daemon_set_cells,
)
