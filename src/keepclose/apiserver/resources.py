"""The table of resources that the server serves; one entry is enough to serve a kind.

Paths, discovery, OpenAPI, storage and authorization read this table. A kind that is served in two
groups has two entries with one store (`stored_as`); the registry converts between them.
"""

from __future__ import annotations

from typing import Final

import msgspec

ALL_VERBS: Final = (
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
)


class Resource(msgspec.Struct, frozen=True):
    """A resource of the API: a kind, as clients address it in paths."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    # The name of the type in the published OpenAPI document.
    definition: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    # The fields beside metadata.name and metadata.namespace that field selectors may name.
    selectable: tuple[str, ...] = ()
    # The name of the store; by default that of the resource with its group.
    stored_as: str = ""

    @property
    def api_version(self) -> str:
        """The apiVersion of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """The kind of a list of its objects."""
        return f"{self.kind}List"

    @property
    def qualified(self) -> str:
        """The plural with its group, as messages show it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def store(self) -> str:
        """The name under which the objects are stored."""
        return self.stored_as or self.qualified


_CORE = "io.k8s.api.core.v1."
_APPS = "io.k8s.api.apps.v1."

RESOURCES: Final = (
    Resource(
        group="",
        version="v1",
        kind="Namespace",
        plural="namespaces",
        singular="namespace",
        definition=_CORE + "Namespace",
        namespaced=False,
        short_names=("ns",),
        subresources=("status", "finalize"),
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        selectable=("status.phase",),
    ),
    Resource(
        group="",
        version="v1",
        kind="Node",
        plural="nodes",
        singular="node",
        definition=_CORE + "Node",
        namespaced=False,
        short_names=("no",),
        subresources=("status",),
        selectable=("spec.unschedulable",),
    ),
    Resource(
        group="",
        version="v1",
        kind="Pod",
        plural="pods",
        singular="pod",
        definition=_CORE + "Pod",
        short_names=("po",),
        categories=("all",),
        subresources=("binding", "status"),
        selectable=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
    ),
    Resource(
        group="",
        version="v1",
        kind="Service",
        plural="services",
        singular="service",
        definition=_CORE + "Service",
        short_names=("svc",),
        categories=("all",),
        subresources=("status",),
        selectable=("spec.clusterIP", "spec.type"),
    ),
    Resource(
        group="",
        version="v1",
        kind="Endpoints",
        plural="endpoints",
        singular="endpoints",
        definition=_CORE + "Endpoints",
        short_names=("ep",),
    ),
    Resource(
        group="",
        version="v1",
        kind="Event",
        plural="events",
        singular="event",
        definition=_CORE + "Event",
        short_names=("ev",),
        selectable=(
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ),
    ),
    Resource(
        group="",
        version="v1",
        kind="ConfigMap",
        plural="configmaps",
        singular="configmap",
        definition=_CORE + "ConfigMap",
        short_names=("cm",),
    ),
    Resource(
        group="",
        version="v1",
        kind="ServiceAccount",
        plural="serviceaccounts",
        singular="serviceaccount",
        definition=_CORE + "ServiceAccount",
        short_names=("sa",),
    ),
    Resource(
        group="apps",
        version="v1",
        kind="Deployment",
        plural="deployments",
        singular="deployment",
        definition=_APPS + "Deployment",
        short_names=("deploy",),
        categories=("all",),
        subresources=("status", "scale"),
    ),
    Resource(
        group="apps",
        version="v1",
        kind="ReplicaSet",
        plural="replicasets",
        singular="replicaset",
        definition=_APPS + "ReplicaSet",
        short_names=("rs",),
        categories=("all",),
        subresources=("status", "scale"),
        selectable=("status.replicas",),
    ),
    Resource(
        group="apps",
        version="v1",
        kind="DaemonSet",
        plural="daemonsets",
        singular="daemonset",
        definition=_APPS + "DaemonSet",
        short_names=("ds",),
        categories=("all",),
        subresources=("status",),
    ),
    Resource(
        group="coordination.k8s.io",
        version="v1",
        kind="Lease",
        plural="leases",
        singular="lease",
        definition="io.k8s.api.coordination.v1.Lease",
    ),
    Resource(
        group="discovery.k8s.io",
        version="v1",
        kind="EndpointSlice",
        plural="endpointslices",
        singular="endpointslice",
        definition="io.k8s.api.discovery.v1.EndpointSlice",
    ),
    Resource(
        group="events.k8s.io",
        version="v1",
        kind="Event",
        plural="events",
        singular="event",
        definition="io.k8s.api.events.v1.Event",
        short_names=("ev",),
        selectable=(
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ),
        stored_as="events",
    ),
    Resource(
        group="networking.k8s.io",
        version="v1",
        kind="ServiceCIDR",
        plural="servicecidrs",
        singular="servicecidr",
        definition="io.k8s.api.networking.v1.ServiceCIDR",
        namespaced=False,
        subresources=("status",),
    ),
)

# A kind that clients only create; it is never stored or read.
BINDINGS: Final = Resource(
    group="",
    version="v1",
    kind="Binding",
    plural="bindings",
    singular="binding",
    definition=_CORE + "Binding",
    verbs=("create",),
)
SERVED: Final = (*RESOURCES, BINDINGS)
# The verbs of subresources; the others have USUAL_SUBRESOURCE_VERBS.
SUBRESOURCE_VERBS: Final = {"binding": ("create",), "finalize": ("update",)}
USUAL_SUBRESOURCE_VERBS: Final = ("get", "patch", "update")

# Versions that discovery omits and that are only read: kubectl 1.20 describes slices by this one.
OLD_RESOURCES: Final = (
    Resource(
        group="discovery.k8s.io",
        version="v1beta1",
        kind="EndpointSlice",
        plural="endpointslices",
        singular="endpointslice",
        definition="",
        verbs=("get", "list", "watch"),
        stored_as="endpointslices.discovery.k8s.io",
    ),
)

BY_PATH: Final = {
    (resource.group, resource.version, resource.plural): resource
    for resource in (*SERVED, *OLD_RESOURCES)
}
BY_KIND: Final = {(resource.api_version, resource.kind): resource for resource in RESOURCES}
BY_STORE: Final = {resource.store: resource for resource in RESOURCES if not resource.stored_as}
