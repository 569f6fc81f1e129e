"""The fields of each kind that a snapshot may have: those that commands read, and no others.

A list of what is allowed, because a list of what is secret is never complete. Free text is not
allowed, wherever it is: messages, commands, arguments, and annotations but those that keepclose or
the topology of a Service defines, and numbers of workload controllers. Quantities, times, numbers
and words of the API are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from keepclose.cli.inputs.cluster_input import EXTRA_VERSIONS, ExtraKind
from keepclose.model.acknowledgements import (
    ACKNOWLEDGEMENT_LABEL,
    parse_acknowledgement,
    render_acknowledgement,
)
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.json_values import JsonObject, parse_int64
from keepclose.model.well_known import (
    DEMAND_ANNOTATION,
    ENDPOINT_WEIGHTS_ANNOTATION,
    EXTERNAL_POLICY_ANNOTATION,
    INTERNAL_POLICY_ANNOTATION,
    LINT_ANNOTATION_PREFIX,
    MAX_OVERLOAD_ANNOTATION,
    MIN_IN_ZONE_ANNOTATION,
    NODE_TOPOLOGY_ANNOTATION,
    OBJECTIVE_ANNOTATION,
    OVERLOAD_THRESHOLD_ANNOTATION,
    PADDING_ANNOTATION,
    STARTING_THRESHOLD_ANNOTATION,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
    WEIGHTS_ANNOTATION,
    ZONE_WEIGHTS_ANNOTATION,
)
from keepclose.model.workloads.replica_pods import DELETION_COST
from keepclose.model.workloads.rolling_update import DESIRED_REPLICAS, MAX_REPLICAS, REVISION

ALLOWED_ANNOTATIONS: Final = frozenset(
    {
        TOPOLOGY_MODE_ANNOTATION,
        TOPOLOGY_HINTS_ANNOTATION,
        NODE_TOPOLOGY_ANNOTATION,
        SUBSETTING_ANNOTATION,
        TRAFFIC_DISTRIBUTION_ANNOTATION,
        INTERNAL_POLICY_ANNOTATION,
        EXTERNAL_POLICY_ANNOTATION,
        STARTING_THRESHOLD_ANNOTATION,
        PADDING_ANNOTATION,
        OVERLOAD_THRESHOLD_ANNOTATION,
        MAX_OVERLOAD_ANNOTATION,
        OBJECTIVE_ANNOTATION,
        DEMAND_ANNOTATION,
        MIN_IN_ZONE_ANNOTATION,
        WEIGHTS_ANNOTATION,
        ZONE_WEIGHTS_ANNOTATION,
        ENDPOINT_WEIGHTS_ANNOTATION,
    }
)
NUMBER_ANNOTATIONS: Final = frozenset({DELETION_COST, REVISION, DESIRED_REPLICAS, MAX_REPLICAS})
"""Annotations by which workload controllers rank and size; kept if they are whole numbers."""
SUPPRESSED: Final = "suppressed"
"""Stands for the reason of a suppressed finding of lint, which people wrote."""

_IS_WORD: Final = re.compile(r"[A-Za-z]{1,64}").fullmatch
_Allowed = Callable[[Any], Any]
"""Returns the allowed part of a value; None for nothing."""


def _scalar(value: Any) -> Any:
    """Return a number, a boolean or a text; nothing else."""
    return value if isinstance(value, str | int | float) else None


def _word(value: Any) -> Any:
    """Return a reason in one word, as components of Kubernetes give it; no other text."""
    return value if isinstance(value, str) and _IS_WORD(value) else None


def _labels(value: Any) -> Any:
    """Return a map of texts."""
    if not isinstance(value, Mapping):
        return None
    return {
        key: text for key, text in value.items() if isinstance(key, str) and isinstance(text, str)
    }


def _texts(value: Any) -> Any:
    """Return a list of texts."""
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else None


def _quantities(*names: str) -> _Allowed:
    """Return the filter of a map of quantities that keeps some of them."""
    return _fields(**dict.fromkeys(names, _scalar))


def _fields(*scalars: str, **parts: _Allowed) -> _Allowed:
    """Return the filter of an object that keeps these fields; a part has a filter of its own."""
    allowed = dict.fromkeys(scalars, _scalar) | parts

    def filter_object(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return None
        kept = {name: allowed[name](part) for name, part in value.items() if name in allowed}
        return {name: part for name, part in kept.items() if part is not None}

    return filter_object


def _each(allowed: _Allowed) -> _Allowed:
    """Return the filter of a list that filters each of its items."""

    def filter_list(value: Any) -> Any:
        if not isinstance(value, list):
            return None
        return [kept for item in value if (kept := allowed(item)) is not None]

    return filter_list


def _annotations(value: Any) -> Any:
    texts: dict[str, str] = _labels(value) or {}
    kept = {key: text for key, text in texts.items() if key in ALLOWED_ANNOTATIONS}
    kept |= {
        key: text
        for key, text in texts.items()
        if key in NUMBER_ANNOTATIONS and parse_int64(text) is not None
    }
    kept |= dict.fromkeys(filter(_is_suppression, texts), SUPPRESSED)
    return kept or None


def _is_suppression(key: str) -> bool:
    code = key.removeprefix(LINT_ANNOTATION_PREFIX)
    return key.startswith(LINT_ANNOTATION_PREFIX) and code.isascii() and code.isalnum()


_CONDITIONS: Final = _each(
    _fields("type", "status", "lastTransitionTime", "observedGeneration", reason=_word)
)
_META: Final = _fields(
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    labels=_labels,
    annotations=_annotations,
    ownerReferences=_each(
        _fields("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
    ),
)
_EXPRESSIONS: Final = _each(_fields("key", "operator", values=_texts))
_SELECTOR: Final = _fields(matchLabels=_labels, matchExpressions=_EXPRESSIONS)
_NODE_TERM: Final = _fields(matchExpressions=_EXPRESSIONS, matchFields=_EXPRESSIONS)
_POD_TERM: Final = _fields("topologyKey", labelSelector=_SELECTOR, namespaces=_texts)
_POD_TERMS: Final = _fields(
    requiredDuringSchedulingIgnoredDuringExecution=_each(_POD_TERM),
    preferredDuringSchedulingIgnoredDuringExecution=_each(
        _fields("weight", podAffinityTerm=_POD_TERM)
    ),
)
_RESOURCES: Final = _quantities("cpu", "memory", "pods")
_CONTAINERS: Final = _each(
    _fields(
        "name",
        "restartPolicy",
        ports=_each(_fields("name", "containerPort", "protocol", "hostPort", "hostIP")),
        resources=_fields(requests=_RESOURCES, limits=_RESOURCES),
        # Whether there is a probe matters, and when it is asked; what it sends is not read.
        readinessProbe=_fields(
            "initialDelaySeconds",
            "periodSeconds",
            "timeoutSeconds",
            "successThreshold",
            "failureThreshold",
        ),
        lifecycle=_fields(preStop=_fields(sleep=_fields("seconds"))),
    )
)
_POD_SPEC: Final = _fields(
    "nodeName",
    "hostNetwork",
    "hostname",
    "subdomain",
    "restartPolicy",
    "schedulerName",
    "priority",
    "terminationGracePeriodSeconds",
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    readinessGates=_each(_fields("conditionType")),
    nodeSelector=_labels,
    affinity=_fields(
        nodeAffinity=_fields(
            requiredDuringSchedulingIgnoredDuringExecution=_fields(
                nodeSelectorTerms=_each(_NODE_TERM)
            ),
            preferredDuringSchedulingIgnoredDuringExecution=_each(
                _fields("weight", preference=_NODE_TERM)
            ),
        ),
        podAffinity=_POD_TERMS,
        podAntiAffinity=_POD_TERMS,
    ),
    tolerations=_each(_fields("key", "operator", "value", "effect", "tolerationSeconds")),
    topologySpreadConstraints=_each(
        _fields(
            "maxSkew",
            "topologyKey",
            "whenUnsatisfiable",
            "minDomains",
            "nodeAffinityPolicy",
            "nodeTaintsPolicy",
            labelSelector=_SELECTOR,
            matchLabelKeys=_texts,
        )
    ),
    overhead=_RESOURCES,
)
_STATE: Final = _fields(
    running=_fields("startedAt"),
    waiting=_fields(reason=_word),
    terminated=_fields("exitCode", "startedAt", "finishedAt", reason=_word),
)
_CONTAINER_STATUSES: Final = _each(
    _fields("name", "ready", "started", "restartCount", state=_STATE, lastState=_STATE)
)
_TEMPLATE: Final = _fields(metadata=_fields(labels=_labels), spec=_POD_SPEC)
_ROLLING: Final = _fields("type", rollingUpdate=_fields("maxUnavailable", "maxSurge", "partition"))
_REFERENCE: Final = _fields("kind", "namespace", "name", "uid")
_ENDPOINT_PORTS: Final = _each(_fields("name", "protocol", "port", "appProtocol"))
_WORKLOAD_STATUS: Final = _fields(
    "observedGeneration",
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
    "unavailableReplicas",
    "fullyLabeledReplicas",
    "terminatingReplicas",
    "desiredNumberScheduled",
    "currentNumberScheduled",
    "numberMisscheduled",
    "numberReady",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
    "collisionCount",
    conditions=_CONDITIONS,
)
_ADDRESSES: Final = _each(_fields("ip", "hostname", "nodeName", targetRef=_REFERENCE))


def _workload(*scalars: str, **parts: _Allowed) -> _Allowed:
    return _fields(
        metadata=_META,
        spec=_fields(
            "replicas",
            "minReadySeconds",
            *scalars,
            selector=_SELECTOR,
            template=_TEMPLATE,
            **parts,
        ),
        status=_WORKLOAD_STATUS,
    )


ALLOWED_KINDS: Final[dict[tuple[str, str], _Allowed]] = {
    ("v1", "Node"): _fields(
        metadata=_META,
        spec=_fields(
            "podCIDR",
            "unschedulable",
            podCIDRs=_texts,
            taints=_each(_fields("key", "value", "effect")),
        ),
        status=_fields(
            allocatable=_RESOURCES,
            conditions=_CONDITIONS,
            addresses=_each(_fields("type", "address")),
            nodeInfo=_fields("kubeletVersion", "kubeProxyVersion"),
        ),
    ),
    ("v1", "Pod"): _fields(
        metadata=_META,
        spec=_POD_SPEC,
        status=_fields(
            "phase",
            "podIP",
            "observedGeneration",
            "startTime",
            reason=_word,
            podIPs=_each(_fields("ip")),
            conditions=_CONDITIONS,
            containerStatuses=_CONTAINER_STATUSES,
            initContainerStatuses=_CONTAINER_STATUSES,
        ),
    ),
    ("v1", "Service"): _fields(
        metadata=_META,
        spec=_fields(
            "type",
            "clusterIP",
            "ipFamilyPolicy",
            "externalName",
            "sessionAffinity",
            "externalTrafficPolicy",
            "internalTrafficPolicy",
            "healthCheckNodePort",
            "publishNotReadyAddresses",
            "allocateLoadBalancerNodePorts",
            "loadBalancerClass",
            "loadBalancerIP",
            "trafficDistribution",
            selector=_labels,
            ports=_each(
                _fields("name", "protocol", "appProtocol", "port", "targetPort", "nodePort")
            ),
            clusterIPs=_texts,
            ipFamilies=_texts,
            externalIPs=_texts,
            sessionAffinityConfig=_fields(clientIP=_fields("timeoutSeconds")),
            loadBalancerSourceRanges=_texts,
            topologyKeys=_texts,
        ),
        status=_fields(
            loadBalancer=_fields(ingress=_each(_fields("ip", "hostname", "ipMode"))),
            conditions=_CONDITIONS,
        ),
    ),
    ("discovery.k8s.io/v1", "EndpointSlice"): _fields(
        "addressType",
        metadata=_META,
        endpoints=_each(
            _fields(
                "hostname",
                "nodeName",
                "zone",
                addresses=_texts,
                conditions=_fields("ready", "serving", "terminating"),
                targetRef=_REFERENCE,
                deprecatedTopology=_labels,
                hints=_fields(forZones=_each(_fields("name")), forNodes=_each(_fields("name"))),
            )
        ),
        ports=_ENDPOINT_PORTS,
    ),
    ("v1", "Endpoints"): _fields(
        metadata=_META,
        subsets=_each(
            _fields(addresses=_ADDRESSES, notReadyAddresses=_ADDRESSES, ports=_ENDPOINT_PORTS)
        ),
    ),
    ("apps/v1", "Deployment"): _workload(
        "paused", "revisionHistoryLimit", "progressDeadlineSeconds", strategy=_ROLLING
    ),
    ("apps/v1", "ReplicaSet"): _workload(),
    ("apps/v1", "StatefulSet"): _workload(
        "serviceName", "podManagementPolicy", updateStrategy=_ROLLING
    ),
    ("apps/v1", "DaemonSet"): _workload(updateStrategy=_ROLLING),
    ("policy/v1", "PodDisruptionBudget"): _fields(
        metadata=_META,
        spec=_fields(
            "minAvailable", "maxUnavailable", "unhealthyPodEvictionPolicy", selector=_SELECTOR
        ),
        status=_fields("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"),
    ),
    ("autoscaling/v2", "HorizontalPodAutoscaler"): _fields(
        metadata=_META,
        spec=_fields(
            "minReplicas", "maxReplicas", scaleTargetRef=_fields("apiVersion", "kind", "name")
        ),
        status=_fields("currentReplicas", "desiredReplicas"),
    ),
    ("v1", "Namespace"): _fields(metadata=_META, status=_fields("phase")),
}
"""The filter of each kind, by version and kind."""
SNAPSHOT_EXTRA: Final = (
    ExtraKind.DEPLOYMENTS,
    ExtraKind.STATEFUL_SETS,
    ExtraKind.DAEMON_SETS,
    ExtraKind.REPLICA_SETS,
    ExtraKind.DISRUPTION_BUDGETS,
    ExtraKind.AUTOSCALERS,
    ExtraKind.NAMESPACES,
    ExtraKind.ACKNOWLEDGEMENTS,
)
"""The extra kinds of a snapshot. NB: no Events, whose messages are free text."""
SNAPSHOT_VERSIONS: Final = {
    **{kind: version for version, kind in ALLOWED_KINDS},
    ExtraKind.ACKNOWLEDGEMENTS.value: EXTRA_VERSIONS[ExtraKind.ACKNOWLEDGEMENTS],
}
"""The version of each kind that a snapshot has."""


def allowed_part(obj: JsonObject) -> JsonObject | None:
    """Return what a snapshot may have of an object; None for nothing."""
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    if kind == ExtraKind.ACKNOWLEDGEMENTS.value and api_version == "v1":
        return _acknowledgement(obj)
    allowed = ALLOWED_KINDS.get((str(api_version), str(kind)))
    if allowed is None or (kind == "ReplicaSet" and _is_former(obj)):
        return None
    return {"apiVersion": api_version, "kind": kind, **allowed(obj)}


def _acknowledgement(obj: JsonObject) -> JsonObject | None:
    """Return an acknowledgement as this program would write it, so that it has nothing else."""
    import msgspec

    config_map = convert_as(ConfigMap, obj)
    if isinstance(config_map, Rejected):
        return None
    if config_map.metadata.labels.get(ACKNOWLEDGEMENT_LABEL) != "true":
        return None
    acknowledgement = parse_acknowledgement(config_map)
    if acknowledgement is None:
        return None
    plain: JsonObject = msgspec.to_builtins(render_acknowledgement(acknowledgement))
    return plain


def _is_former(replica_set: JsonObject) -> bool:
    """Return whether a ReplicaSet only records a former template.

    NB: without the fields that are not allowed it could look like the present one.
    """
    spec, status = replica_set.get("spec"), replica_set.get("status")
    numbers = [part.get("replicas") for part in (spec, status) if isinstance(part, Mapping)]
    return not any(numbers)
