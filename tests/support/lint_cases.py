"""Manifests without findings, and what to change in them so that a rule is broken or kept.

Changes are triples: the object by its short name, the path of a field with steps separated by
slashes, and its value; `GONE` removes the field.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import yaml

GONE: Final = object()
Change = tuple[str, str, Any]
Objects = dict[str, dict[str, Any]]

_ZONE = "topology.kubernetes.io/zone"
_BASE = """
service:
  apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: shop, annotations: {}}
  spec:
    selector: {app: web}
    trafficDistribution: PreferSameZone
    ports: [{name: http, port: 80, targetPort: http}]
deployment:
  apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web, namespace: shop, annotations: {}}
  spec:
    replicas: 9
    selector: {matchLabels: {app: web}}
    strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
    template:
      metadata: {labels: {app: web}}
      spec:
        topologySpreadConstraints:
          - maxSkew: 1
            topologyKey: topology.kubernetes.io/zone
            whenUnsatisfiable: DoNotSchedule
            labelSelector: {matchLabels: {app: web}}
            matchLabelKeys: [pod-template-hash]
          - maxSkew: 1
            topologyKey: kubernetes.io/hostname
            whenUnsatisfiable: DoNotSchedule
            labelSelector: {matchLabels: {app: web}}
            matchLabelKeys: [pod-template-hash]
        containers:
          - name: web
            image: nginx
            readinessProbe: {tcpSocket: {port: 8080}}
            ports: [{name: http, containerPort: 8080}]
budget:
  apiVersion: policy/v1
  kind: PodDisruptionBudget
  metadata: {name: web, namespace: shop, annotations: {}}
  spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
"""


def manifests(*changes: Change) -> Objects:
    """Return the objects without findings, with the changes made."""
    objects: Objects = yaml.safe_load(_BASE)
    for name, path, value in changes:
        change_field(objects, name, path, value)
    return objects


def change_field(objects: Objects, name: str, path: str, value: Any) -> None:
    """Set or remove a field; the object itself is set with the path ""."""
    if path == "":
        if value is GONE:
            del objects[name]
        else:
            objects[name] = copy.deepcopy(value)
        return
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
    target: Any = objects[name]
    for step in steps:
        target = target[step]
    last = str(last).replace("~1", "/") if isinstance(last, str) else last
    if value is GONE:
        del target[last]
    else:
        target[last] = copy.deepcopy(value)


def to_yaml(objects: Objects) -> str:
    """Return the objects as the documents of one file."""
    return yaml.safe_dump_all(objects.values(), sort_keys=False)


def node(name: str, zone: str | None, **labels: str) -> dict[str, Any]:
    """Return a ready Node."""
    zoned = {} if zone is None else {_ZONE: zone}
    hostname = {"kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**hostname, **zoned, **labels}},
        "status": {
            "allocatable": {"cpu": "4"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def autoscaler(least: int, most: int) -> dict[str, Any]:
    """Return the autoscaler of the Deployment."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": least,
            "maxReplicas": most,
        },
    }


def pod(name: str, node_name: str) -> dict[str, Any]:
    """Return a ready pod that the Service selects."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}},
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "web", "ports": [{"name": "http", "containerPort": 8080}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def daemon_set() -> dict[str, Any]:
    """Return a DaemonSet that the Service selects."""
    deployment = manifests()["deployment"]
    template = deployment["spec"]["template"]
    template["spec"].pop("topologySpreadConstraints")
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }


AUTO: Final[tuple[Change, ...]] = (
    ("service", "spec/trafficDistribution", GONE),
    ("service", "metadata/annotations", {"service.kubernetes.io/topology-mode": "Auto"}),
)
"""Topology mode Auto in place of the field."""
_SPREAD = "spec/template/spec/topologySpreadConstraints"
_NODES: Final[tuple[Change, ...]] = tuple(
    (f"node-{zone}{number}", "", node(f"{zone}{number}", f"zone-{zone}"))
    for zone in "abc"
    for number in (1, 2)
)
LATEST: Final = {"app": "other"}

# By rule: the changes that break it, and similar changes that do not.
CASES: Final[dict[str, tuple[tuple[Change, ...], tuple[Change, ...]]]] = {
    "KC001": (
        (("service", "spec/trafficDistribution", "PreferZone"),),
        (("service", "spec/trafficDistribution", "PreferSameNode"),),
    ),
    "KC002": (
        (("service", "spec/trafficDistribution", "PreferClose"),),
        (("service", "spec/trafficDistribution", "PreferSameZone"),),
    ),
    "KC003": (AUTO[1:], AUTO),
    "KC004": (
        (("service", "metadata/annotations", {"service.kubernetes.io/topology-mode": "AUTO"}),),
        (("service", "metadata/annotations", {"service.kubernetes.io/topology-mode": "Disabled"}),),
    ),
    "KC005": (
        (("service", "metadata/annotations", {"service.kubernetes.io/topology-modes": "Auto"}),),
        (("service", "metadata/annotations", {"example.com/topology-mode": "Auto"}),),
    ),
    "KC006": (
        (
            AUTO[0],
            (
                "service",
                "metadata/annotations",
                {"service.kubernetes.io/topology-aware-hints": "Auto"},
            ),
        ),
        AUTO,
    ),
    "KC007": (
        (("service", "spec/clusterIP", "None"),),
        (("service", "spec/clusterIP", "10.96.0.7"),),
    ),
    "KC008": (
        (("service", "spec/internalTrafficPolicy", "Local"),),
        (("service", "spec/internalTrafficPolicy", "Cluster"),),
    ),
    "KC009": (
        (
            *_NODES,
            ("service", "spec/type", "NodePort"),
            ("service", "spec/externalTrafficPolicy", "Local"),
            ("deployment", "spec/replicas", 5),
        ),
        (
            *_NODES,
            ("service", "spec/type", "NodePort"),
            ("service", "spec/externalTrafficPolicy", "Local"),
        ),
    ),
    "KC010": (
        (
            AUTO[0],
            (
                "service",
                "metadata/annotations",
                {
                    "service.kubernetes.io/topology-mode": "Auto",
                    "endpointslice.kubernetes.io/subsetting": "Prefer",
                },
            ),
        ),
        (
            AUTO[0],
            (
                "service",
                "metadata/annotations",
                {
                    "service.kubernetes.io/topology-mode": "Auto",
                    "endpointslice.kubernetes.io/subsetting": "Disabled",
                },
            ),
        ),
    ),
    "KC011": (
        (("service", "spec/sessionAffinity", "ClientIP"),),
        (("service", "spec/sessionAffinity", "None"),),
    ),
    "KC012": (
        (("service", "spec/trafficDistribution", "keepclose.dev/Balanced"),),
        (),
    ),
    "KC013": (
        (
            ("service", "spec/type", "LoadBalancer"),
            (
                "service",
                "metadata/annotations",
                {"service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip"},
            ),
        ),
        (
            ("service", "spec/type", "LoadBalancer"),
            (
                "service",
                "metadata/annotations",
                {"service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "instance"},
            ),
        ),
    ),
    "KC101": (
        (*AUTO, ("deployment", "spec/replicas", 11)),
        (*AUTO, ("deployment", "spec/replicas", 10)),
    ),
    "KC102": (
        (*AUTO, ("deployment", "spec/replicas", 8)),
        (*AUTO, ("deployment", "spec/replicas", 9)),
    ),
    "KC103": (
        (("deployment", "spec/replicas", 2),),
        (("deployment", "spec/replicas", 3),),
    ),
    "KC104": (
        (("autoscaler", "", autoscaler(2, 9)),),
        (("autoscaler", "", autoscaler(3, 9)),),
    ),
    "KC105": (
        (*AUTO, ("autoscaler", "", autoscaler(9, 12))),
        (*AUTO, ("autoscaler", "", autoscaler(12, 20))),
    ),
    "KC106": (
        (
            ("service", "spec/trafficDistribution", "PreferSameNode"),
            ("deployment", f"{_SPREAD}/1", GONE),
        ),
        (("service", "spec/trafficDistribution", "PreferSameNode"),),
    ),
    "KC107": (
        (*_NODES, ("pod-1", "", pod("p1", "a1")), ("pod-2", "", pod("p2", "b1"))),
        (
            *_NODES,
            ("pod-1", "", pod("p1", "a1")),
            ("pod-2", "", pod("p2", "b1")),
            ("pod-3", "", pod("p3", "c2")),
        ),
    ),
    "KC201": (
        (("deployment", f"{_SPREAD}/0", GONE),),
        (("deployment", f"{_SPREAD}/1", GONE),),
    ),
    "KC202": (
        (("deployment", f"{_SPREAD}/0/whenUnsatisfiable", "ScheduleAnyway"),),
        (("deployment", f"{_SPREAD}/1/whenUnsatisfiable", "ScheduleAnyway"),),
    ),
    "KC203": (
        (("deployment", f"{_SPREAD}/0/maxSkew", 2),),
        (("deployment", f"{_SPREAD}/1/maxSkew", 2),),
    ),
    "KC204": (
        (("deployment", f"{_SPREAD}/0/labelSelector", {"matchLabels": {"app": "wbe"}}),),
        (
            (
                "deployment",
                f"{_SPREAD}/0/labelSelector",
                {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]},
            ),
        ),
    ),
    "KC205": (
        (("deployment", f"{_SPREAD}/0/matchLabelKeys", GONE),),
        (("deployment", f"{_SPREAD}/0/matchLabelKeys", ["app", "pod-template-hash"]),),
    ),
    "KC301": (
        (("deployment", "spec/strategy", {"type": "Recreate"}),),
        (
            (
                "deployment",
                "spec/strategy",
                {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            ),
        ),
    ),
    "KC302": (
        (("deployment", "spec/replicas", 3),),
        (("deployment", "spec/replicas", 7),),
    ),
    "KC303": (
        (("budget", "spec/selector", {"matchLabels": {"app": "wbe"}}),),
        (("budget", "spec/selector", {}),),
    ),
    "KC304": (
        (("budget", "spec", {"minAvailable": "100%", "selector": {}}),),
        (("budget", "spec", {"minAvailable": "80%", "selector": {}}),),
    ),
    "KC305": (
        (("budget", "spec/maxUnavailable", 3),),
        (("budget", "spec/maxUnavailable", 2),),
    ),
    "KC306": (
        (("deployment", "spec/template/spec/containers/0/readinessProbe", GONE),),
        (
            (
                "deployment",
                "spec/template/spec/containers/0/readinessProbe",
                {"httpGet": {"path": "/", "port": "http"}},
            ),
        ),
    ),
    "KC401": (
        (("service", "spec/selector", {"app": "wbe"}),),
        (("service", "spec/selector", {"app": "web"}),),
    ),
    "KC402": (
        (("service", "spec/ports/0/targetPort", "htpp"),),
        (("service", "spec/ports/0/targetPort", 8080),),
    ),
    "KC403": (
        (*_NODES, ("node-d1", "", node("d1", None))),
        (
            *_NODES,
            ("node-d1", "", node("d1", None, **{"node-role.kubernetes.io/control-plane": ""})),
        ),
    ),
    "KC404": (
        (*_NODES, ("node-d1", "", node("d1", "zone-a", **{"kubernetes.io/os": "windows"}))),
        (*_NODES, ("node-d1", "", node("d1", "zone-a", **{"kubernetes.io/os": "linux"}))),
    ),
    "KC405": (
        (("node-1", "", node("n1", "zone-a")), ("node-2", "", node("n2", "zone-a"))),
        (("node-1", "", node("n1", "zone-a")), ("node-2", "", node("n2", "zone-b"))),
    ),
    "KC901": (
        (("deployment", "metadata/annotations", {"lint.keepclose.dev/KC303": " "}),),
        (("deployment", "metadata/annotations", {"lint.keepclose.dev/KC303": "a batch job"}),),
    ),
}
