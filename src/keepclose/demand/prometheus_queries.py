"""Queries that ask a Prometheus for rates by Service and zone of the client.

Ready queries have names. A query of one's own may name the labels of its answer. Where no label has
the zone, one has the node, and the zone is that of the Node. Two minutes of a counter are its rate:
four scrapes of the usual 30 s, of which one or two may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from keepclose.accounting.prometheus_answers import CONNECTIONS_METRIC

FIELDS: Final = ("namespace", "service", "zone", "node")
_WINDOW: Final = "[2m]"
_BY_NODE: Final = (
    "* on (namespace, pod) group_left (node) max by (namespace, pod, node) (kube_pod_info)"
)


class DemandQuery(NamedTuple):
    """A query, and the names of labels in its answer by field."""

    text: str
    labels: Mapping[str, str]


def _of_flows(mode: str) -> DemandQuery:
    series = f'{CONNECTIONS_METRIC}{{kind="service",{mode}}}'
    by = "namespace, service, client_zone"
    return DemandQuery(f"sum by ({by}) (rate({series}{_WINDOW}))", {"zone": "client_zone"})


READY_QUERIES: Final[Mapping[str, DemandQuery]] = {
    "flows": _of_flows('mode=""'),
    "proxy": _of_flows('mode!=""'),
    "istio": DemandQuery(
        "sum by (destination_service_namespace, destination_service_name, node) "
        f'(rate(istio_requests_total{{reporter="source"}}{_WINDOW}) {_BY_NODE})',
        {
            "namespace": "destination_service_namespace",
            "service": "destination_service_name",
        },
    ),
    "linkerd": DemandQuery(
        "sum by (dst_namespace, dst_service, node) "
        f'(rate(response_total{{direction="outbound",dst_service!=""}}{_WINDOW}) {_BY_NODE})',
        {"namespace": "dst_namespace", "service": "dst_service"},
    ),
    "hubble": DemandQuery(
        "sum by (destination_namespace, destination_workload, node) (label_replace(label_replace("
        f'rate(hubble_flows_processed_total{{verdict="FORWARDED",source_pod!=""}}{_WINDOW}), '
        '"namespace", "$1", "source_namespace", "(.*)"), "pod", "$1", "source_pod", "(.*)") '
        f"{_BY_NODE})",
        {"namespace": "destination_namespace", "service": "destination_workload"},
    ),
}


def find_query(text: str, labels: Mapping[str, str]) -> DemandQuery:
    """Return a ready query by its name, or a query of one's own; raise ValueError.

    `labels` name labels by field where they have another name than the field.
    """
    for field, label in labels.items():
        if field not in FIELDS or not (label.isidentifier() and label.isascii()):
            message = f"--demand-labels: {field}={label} is no FIELD=LABEL with one of the fields "
            raise ValueError(message + ", ".join(FIELDS))
    ready = READY_QUERIES.get(text)
    if ready is not None:
        return DemandQuery(ready.text, {**ready.labels, **labels})
    if not text.strip() or (text.strip().isidentifier() and text.islower() and "_" not in text):
        known = ", ".join(READY_QUERIES)
        message = f"--demand-query: {text!r} is none of {known}, and no query"
        raise ValueError(message)
    return DemandQuery(text, dict(labels))
