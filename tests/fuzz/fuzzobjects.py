"""One good object of every kind, with many of its fields set: what mutation begins with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

JsonObject = dict[str, Any]

_METADATA: Final[JsonObject] = {
    "name": "web",
    "labels": {"app": "web", "example.com/tier": "front"},
    "annotations": {"service.kubernetes.io/topology-mode": "Auto", "note": "ü \n"},
}
_POD_SPEC: Final[JsonObject] = {
    "nodeName": "n1",
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}],
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ],
    "containers": [
        {
            "name": "c",
            "image": "web:1",
            "command": ["serve"],
            "args": ["--slow-start=1s"],
            "env": [{"name": "A", "value": "b"}],
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"cpu": 1}},
            "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
            "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
        }
    ],
    "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
}
_TEMPLATE: Final[JsonObject] = {"metadata": {"labels": {"app": "web"}}, "spec": _POD_SPEC}
_SELECTOR: Final[JsonObject] = {
    "matchLabels": {"app": "web"},
    "matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}],
}

OBJECTS: Final[dict[str, JsonObject]] = {
    "namespaces": {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
    "nodes": {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {
            "podCIDR": "10.1.0.0/24",
            "podCIDRs": ["10.1.0.0/24"],
            "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
        },
        "status": {
            "capacity": {"cpu": "4", "memory": "8Gi"},
            "allocatable": {"cpu": "3920m"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    },
    "pods": {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _METADATA,
        "spec": _POD_SPEC,
        "status": {
            "phase": "Running",
            "podIP": "10.1.0.5",
            "podIPs": [{"ip": "10.1.0.5"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": "c",
                    "ready": True,
                    "restartCount": 2,
                    "image": "web:1",
                    "imageID": "",
                    "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
                    "lastState": {"terminated": {"exitCode": 1, "finishedAt": None}},
                }
            ],
        },
    },
    "services": {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _METADATA,
        "spec": {
            "type": "LoadBalancer",
            "selector": {"app": "web"},
            "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv4"],
            "externalIPs": ["192.0.2.7"],
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster",
            "trafficDistribution": "PreferSameZone",
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}},
            "ports": [
                {"name": "http", "port": 80, "targetPort": "http", "nodePort": 30080},
                {"name": "dns", "port": 53, "targetPort": 5353, "protocol": "UDP"},
            ],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}]}},
    },
    "endpoints": {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": _METADATA,
        "subsets": [
            {
                "addresses": [{"ip": "10.1.0.5", "nodeName": "n1", "targetRef": {"kind": "Pod"}}],
                "notReadyAddresses": [{"ip": "10.1.0.6"}],
                "ports": [{"name": "http", "port": 8080}],
            }
        ],
    },
    "events": {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.1", "namespace": "default"},
        "involvedObject": {"kind": "Service", "namespace": "default", "name": "web"},
        "reason": "Seen",
        "message": "a thing\nhappened",
        "type": "Normal",
        "count": 3,
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:05:05Z",
        "eventTime": "2026-01-02T03:04:05.123456Z",
        "reportingComponent": "example.com/c",
        "reportingInstance": "i",
        "action": "See",
        "series": {"count": 2, "lastObservedTime": "2026-01-02T03:05:05.000001Z"},
    },
    "events.events.k8s.io": {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "web.2", "namespace": "default"},
        "eventTime": "2026-01-02T03:04:05.123456Z",
        "reportingController": "example.com/c",
        "reportingInstance": "i",
        "action": "See",
        "reason": "Seen",
        "regarding": {"kind": "Service", "namespace": "default", "name": "web"},
        "note": "a thing",
        "type": "Warning",
    },
    "configmaps": {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "web"},
        "immutable": False,
        "data": {"form": "2", "programmed": "17", "honors": "forZones", "exceptions": "a/b why\n"},
        "binaryData": {"raw": "AAEC"},
    },
    "serviceaccounts": {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _METADATA,
        "secrets": [{"name": "s"}],
        "imagePullSecrets": [{"name": "p"}],
        "automountServiceAccountToken": True,
    },
    "deployments.apps": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _METADATA,
        "spec": {
            "replicas": 3,
            "selector": _SELECTOR,
            "template": _TEMPLATE,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1},
            },
            "minReadySeconds": 5,
        },
        "status": {"replicas": 3, "conditions": [{"type": "Available", "status": "True"}]},
    },
    "replicasets.apps": {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": _METADATA,
        "spec": {"replicas": 2, "selector": _SELECTOR, "template": _TEMPLATE},
    },
    "daemonsets.apps": {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _METADATA,
        "spec": {
            "selector": _SELECTOR,
            "template": _TEMPLATE,
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"},
            },
        },
    },
    "leases.coordination.k8s.io": {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "n1"},
        "spec": {
            "holderIdentity": "n1",
            "leaseDurationSeconds": 40,
            "leaseTransitions": 1,
            "acquireTime": "2026-01-02T03:04:05.123456Z",
            "renewTime": "2026-01-02T03:04:06.000000Z",
        },
    },
    "endpointslices.discovery.k8s.io": {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "http"}],
        "endpoints": [
            {
                "addresses": ["10.1.0.5"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "hostname": "web-1",
                "nodeName": "n1",
                "zone": "a",
                "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}]},
                "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "default"},
            }
        ],
    },
    "servicecidrs.networking.k8s.io": {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.200.0.0/16", "fd01::/112"]},
    },
}


def object_seeds() -> Iterator[bytes]:
    """Yield every object behind a line with the name of its resource."""
    for name, value in OBJECTS.items():
        yield name.encode() + b"\n" + msgspec.json.encode(value)
