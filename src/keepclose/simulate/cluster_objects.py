"""The objects of simulated clusters: nodes, pods and one Service, as an API server would hold them.

All nodes have the same CPU, and every pod is ready. Nothing here decides anything.
"""

from __future__ import annotations

from typing import Final

from keepclose.model.meta import ObjectMeta
from keepclose.model.service.types import Service, ServicePort, ServiceSpec
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import (
    Container,
    ContainerPort,
    Node,
    NodeStatus,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    StatusCondition,
)

_READY: Final = (StatusCondition(type="Ready", status="True"),)


def cluster_node(name: str, zone: str) -> Node:
    """Return a ready node of the zone; all have the same CPU."""
    return Node(
        metadata=ObjectMeta(name=name, labels={ZONE_LABEL: zone}),
        status=NodeStatus(allocatable={"cpu": "4"}, conditions=_READY),
    )


def cluster_pod(name: str, node: str, *, ip: str) -> Pod:
    """Return a ready pod of the Service."""
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace="default", uid=f"uid-{name}", labels={"app": "web"}
        ),
        spec=PodSpec(
            node_name=node,
            containers=(Container(ports=(ContainerPort(name="http", container_port=8080),)),),
        ),
        status=PodStatus(
            phase="Running",
            pod_ip=ip,
            pod_ips=(PodIP(ip=ip),),
            conditions=_READY,
        ),
    )


def web_service(
    *, annotations: dict[str, str] | None = None, traffic_distribution: str | None = None
) -> Service:
    """Return the Service of all scenarios and traces."""
    return Service(
        metadata=ObjectMeta(
            name="web", namespace="default", uid="uid-web", annotations=annotations or {}
        ),
        spec=ServiceSpec(
            type="ClusterIP",
            selector={"app": "web"},
            ports=(ServicePort(name="http", protocol="TCP", port=80, target_port=8080),),
            cluster_ip="10.96.0.10",
            cluster_ips=("10.96.0.10",),
            ip_families=("IPv4",),
            ip_family_policy="SingleStack",
            session_affinity="None",
            internal_traffic_policy="Cluster",
            traffic_distribution=traffic_distribution,
        ),
    )
