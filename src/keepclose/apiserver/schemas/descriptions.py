"""What `kubectl explain` says: our own words for what this project is about, others' where present.

Where the optional package lightkube-models is installed, the descriptions of all other types and
fields are read from its docstrings, at the first use of an OpenAPI document. Without it they are
absent and everything works the same.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Final

# By short name of the definition; "" is the definition itself.
_OWN: Final[dict[str, dict[str, str]]] = {
    "apps.v1.DaemonSet": {"": "A pod on every node, or on every node of some kind."},
    "apps.v1.Deployment": {"": "A number of equal pods, replaced step by step when they change."},
    "apps.v1.ReplicaSet": {"": "A number of equal pods."},
    "autoscaling.v1.Scale": {"": "How many replicas a workload asks for and has."},
    "coordination.v1.Lease": {"": "Who leads, and until when."},
    "core.v1.ConfigMap": {"": "Configuration as plain data."},
    "core.v1.ServiceAccount": {"": "A name under which pods call the API server."},
    "core.v1.Endpoints": {
        "": "The addresses behind a Service in one object. EndpointSlices have taken its place."
    },
    "core.v1.Event": {"": "Something that happened to an object."},
    "core.v1.Namespace": {"": "A scope for names."},
    "core.v1.Node": {
        "": "A machine. Its label topology.kubernetes.io/zone says where traffic is close to it."
    },
    "core.v1.Pod": {"": "Containers that run together on one node."},
    "core.v1.Service": {
        "": "A name and an address for a set of endpoints.",
        "spec": "What the Service asks for.",
        "status": "What the cluster made of it.",
    },
    "core.v1.ServiceSpec": {
        "": "What a Service asks for.",
        "externalTrafficPolicy": (
            "How nodes route traffic that reaches the Service from outside. Cluster takes all"
            " endpoints, Local only those on the node, and keeps the client's address."
        ),
        "internalTrafficPolicy": (
            "How nodes route traffic to the cluster IP. Cluster takes all endpoints, Local only"
            " those on the node, and drops traffic where there are none."
        ),
        "ports": "The ports at which the Service answers.",
        "selector": "The labels of the pods behind the Service. Without any, endpoints are yours.",
        "topologyKeys": (
            "Labels of nodes, from the closest on: traffic goes to endpoints whose node shares"
            " the first label that any does. The last may be *, for all endpoints."
        ),
        "trafficDistribution": (
            "How traffic is kept close to clients while all endpoints are equally fit."
            " PreferSameZone and its older name PreferClose keep it in the zone of the client,"
            " PreferSameNode on its node; where that is not possible, it goes anywhere."
        ),
    },
    "discovery.v1.Endpoint": {
        "": "One backend of a Service.",
        "hints": "For whom the endpoint is meant. Hints count only if every endpoint has some.",
        "nodeName": "The node on which the endpoint runs.",
        "zone": "The zone of the node on which the endpoint runs.",
    },
    "discovery.v1.EndpointHints": {
        "": "For whom an endpoint is meant, so that traffic stays close to its clients.",
        "forNodes": "The nodes from which traffic should come to this endpoint, at most 8.",
        "forZones": "The zones from which traffic should come to this endpoint, at most 8.",
    },
    "discovery.v1.EndpointSlice": {
        "": "Some of the endpoints of a Service.",
        "addressType": "The kind of all addresses in the slice: IPv4, IPv6 or FQDN.",
        "endpoints": "The endpoints, at most 1000.",
        "ports": "The ports of every endpoint in the slice.",
    },
    "discovery.v1.ForNode": {"": "A node that should use an endpoint.", "name": "Its name."},
    "discovery.v1.ForZone": {"": "A zone that should use an endpoint.", "name": "Its name."},
    "events.v1.Event": {"": "Something that happened to an object."},
    "meta.v1.ObjectMeta": {
        "": "What every stored object has.",
        "annotations": "Free notes of tools and people.",
        "labels": "Names and values by which objects are selected.",
        "name": "The name, unique for its kind in its namespace.",
        "namespace": "The scope of the name.",
        "resourceVersion": "The version of the object. It changes with every write.",
        "uid": "The identity, unique in space and time.",
    },
    "networking.v1.ServiceCIDR": {"": "Ranges from which Services get their addresses."},
}
_EVERYWHERE: Final = {
    "apiVersion": "Group and version of this object's kind.",
    "kind": "The kind of this object.",
    "metadata": "Name, namespace, labels and the like.",
}
_start = re.compile(r"^\s*\* \*\*(\w+)\*\* ``[^`]*``(?: - (.*))?$").match


def describe(short: str) -> dict[str, str]:
    """Return the descriptions of a definition's fields by name, and its own under ""."""
    found = {name: text for name, text in _EVERYWHERE.items() if short.count(".") > 1}
    return found | _borrowed(short) | _OWN.get(short, {})


@lru_cache(maxsize=512)
def _borrowed(short: str) -> dict[str, str]:
    package, _, name = short.rpartition(".")
    try:
        module = importlib.import_module(f"lightkube.models.{package.replace('.', '_')}")
    except ImportError:
        return {}
    return read_docstring(getattr(getattr(module, name, None), "__doc__", None) or "")


def read_docstring(text: str) -> dict[str, str]:
    """Return the descriptions in a docstring of lightkube-models."""
    head, marker, rest = text.partition("**parameters**")
    if not marker:
        # A class without a docstring gets its signature for one.
        return {}
    lines: dict[str, list[str]] = {"": head.split()}
    field = ""
    for line in rest.splitlines():
        begun = _start(line)
        if begun is not None:
            field = begun[1]
            lines[field] = (begun[2] or "").split()
        elif field:
            lines[field] += line.split()
    return {field: " ".join(words) for field, words in lines.items() if words}
