"""The rules of the linter and their documentation, from which docs/reference/lint.md is written.

Numbers are grouped: 0xx the settings of a Service, 1xx the number of replicas, 2xx their spread,
3xx rollouts, drains and readiness, 4xx references and Nodes, 5xx limits of the command line, 9xx
the suppressions. A number is never used for another rule.
"""

from __future__ import annotations

from typing import Final

from keepclose.advise.linting.findings import LintRule, Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

REJECTED_SERVICE: Final = LintRule(
    "KC001",
    "rejected-service",
    ERROR,
    "The API server rejects the Service",
    "A field has a value that Kubernetes does not support, such as an unknown trafficDistribution. "
    "The message is that of the API server.",
    "Write a supported value.",
)
DEPRECATED_PREFER_CLOSE: Final = LintRule(
    "KC002",
    "deprecated-prefer-close",
    WARNING,
    "PreferClose is the deprecated name of PreferSameZone",
    "Since Kubernetes 1.34 `PreferSameZone` says the same. The old name remains valid, but says "
    "neither node nor zone.",
    "Set `trafficDistribution: PreferSameZone`, if the cluster has Kubernetes 1.34 or later.",
)
ANNOTATION_OVERRIDES: Final = LintRule(
    "KC003",
    "annotation-overrides-field",
    WARNING,
    "An annotation or another field overrides trafficDistribution",
    "The topology annotation takes precedence over the field (KEP-4444), and topologyKeys and the "
    "subsetting annotation do too where their gates are on. The field then has no effect, and no "
    "Event says so.",
    "Remove the setting that is not meant.",
)
UNKNOWN_VALUE: Final = LintRule(
    "KC004",
    "unknown-value",
    WARNING,
    "An annotation or trafficDistribution has a value without meaning",
    "The EndpointSlice controller compares the value of the topology annotation with `Auto` and "
    "`auto`; any other value switches nothing on, silently. The same holds for the other "
    "annotations about traffic and their values.",
    "Write a value that has a meaning; the message names them.",
)
MISSPELLED_ANNOTATION: Final = LintRule(
    "KC005",
    "misspelled-annotation",
    WARNING,
    "An annotation is nearly the name of one about traffic",
    "Kubernetes accepts any annotation, so one with a misspelled name is stored and has no effect.",
    "Write the name that the message suggests.",
)
DEPRECATED_HINTS_ANNOTATION: Final = LintRule(
    "KC006",
    "deprecated-hints-annotation",
    WARNING,
    "service.kubernetes.io/topology-aware-hints is deprecated",
    "The annotation was renamed to `service.kubernetes.io/topology-mode` in Kubernetes 1.27. The "
    "old name wins where both are present, even if it is empty.",
    "Rename it, or use `trafficDistribution`.",
)
TOPOLOGY_WITHOUT_EFFECT: Final = LintRule(
    "KC007",
    "topology-without-effect",
    WARNING,
    "A headless or ExternalName Service, or one without a selector, asks for topology",
    "Clients of a headless Service and of an ExternalName connect to what DNS returns; no proxy "
    "chooses an endpoint. Without a selector no controller writes slices, and so no hints.",
    "Remove the setting, or give the Service a cluster IP and a selector.",
)
LOCAL_IGNORES_TOPOLOGY: Final = LintRule(
    "KC008",
    "local-policy-ignores-topology",
    WARNING,
    "internalTrafficPolicy Local makes hints pointless",
    "With Local a node uses its own endpoints or drops the traffic (KEP-2086). Hints are written "
    "and never read for traffic inside the cluster. `PreferSameNode` falls back, `Local` does not.",
    "Remove one of the two; for the node with a fallback use PreferSameNode.",
)
EXTERNAL_LOCAL_DROPS: Final = LintRule(
    "KC009",
    "external-local-drops",
    WARNING,
    "externalTrafficPolicy Local with fewer pods than nodes",
    "A node without a pod of the Service drops traffic from outside to its node port. A load "
    "balancer that checks health avoids such nodes; then the few nodes with pods get all traffic.",
    "Run a DaemonSet or as many replicas as nodes. externalTrafficPolicy Cluster needs neither, "
    "but Pods may no longer see the addresses of clients.",
)
SUBSETTING_COMBINED: Final = LintRule(
    "KC010",
    "subsetting-combined",
    WARNING,
    "The subsetting annotation is combined with a setting that excludes it",
    "Slices of a zone hide endpoints from nodes of other zones, so subsetting is ignored beside a "
    "Local policy. Beside a topology annotation or trafficDistribution only one of them governs.",
    "Keep one mechanism.",
)
SESSION_AFFINITY: Final = LintRule(
    "KC011",
    "session-affinity-with-topology",
    INFO,
    "sessionAffinity ClientIP pins clients to endpoints",
    "An endpoint that a client was pinned to before keeps it until the affinity expires, also "
    "after a closer endpoint became ready, and few clients load few endpoints.",
    "Remove the affinity unless the application needs it.",
)
FEATURE_GATE_OFF: Final = LintRule(
    "KC012",
    "feature-gate-off",
    WARNING,
    "A setting needs a feature gate that is off",
    "Without its gate the setting is stored, or dropped, and has no effect.",
    "Switch the gate on in every component, and tell lint with `--feature-gates`.",
)
LOAD_BALANCER_BYPASSES: Final = LintRule(
    "KC013",
    "load-balancer-bypasses-topology",
    INFO,
    "The load balancer sends traffic to pods directly",
    "A load balancer with targets of the type IP does not pass through a node's proxy, so hints "
    "do not affect the traffic that it sends. They still affect clients inside the cluster.",
    "Configure the zones of the load balancer itself.",
)

AUTO_LOSES_HINTS: Final = LintRule(
    "KC101",
    "auto-loses-hints",
    ERROR,
    "With this number of replicas topology mode Auto gives no hints",
    "Each zone must get at least its share of the endpoints divided by 1.2, rounded up (KEP-2433). "
    "For some counts these minimums add up to more endpoints than there are: with three equal "
    "zones for 4, 5, 8 and 11. All hints are removed then, and traffic goes everywhere.",
    "Run one of the counts that the message names, or use PreferSameZone.",
)
AUTO_FEW_REPLICAS: Final = LintRule(
    "KC102",
    "auto-few-replicas",
    WARNING,
    "Topology mode Auto with fewer than three replicas for each zone",
    "With fewer endpoints the hints vanish whenever a pod is not ready, as in each rollout. "
    "Kubernetes documents three for each zone as the least.",
    "Run at least three replicas for each zone.",
)
FEWER_REPLICAS_THAN_ZONES: Final = LintRule(
    "KC103",
    "fewer-replicas-than-zones",
    WARNING,
    "Fewer replicas than zones",
    "A zone without an endpoint sends all its traffic to other zones, and the endpoints there "
    "carry it.",
    "Run at least as many replicas as zones.",
)
AUTOSCALER_BELOW: Final = LintRule(
    "KC104",
    "autoscaler-below-promise",
    WARNING,
    "An autoscaler may scale below what the zones need",
    "A HorizontalPodAutoscaler counts no zones. At its minimum some zone has no endpoint, or fewer "
    "than `--min-ready-per-zone`.",
    "Raise minReplicas.",
)
AUTOSCALER_CROSSES: Final = LintRule(
    "KC105",
    "autoscaler-crosses-lost-hints",
    WARNING,
    "An autoscaler passes counts for which Auto gives no hints",
    "Between minReplicas and maxReplicas are counts that cannot be divided within the bound of "
    "Auto, see KC101. Hints vanish and return as the autoscaler passes them.",
    "Raise minReplicas above the counts that the message names, or use PreferSameZone.",
)
SAME_NODE_NOT_SPREAD: Final = LintRule(
    "KC106",
    "same-node-not-spread",
    WARNING,
    "PreferSameNode for pods that are not on every node",
    "A node without an endpoint falls back to its zone. Without a DaemonSet, or a spread over "
    "kubernetes.io/hostname, pods may share a node while other nodes have none.",
    "Run a DaemonSet, or spread over kubernetes.io/hostname.",
)
ZONE_WITHOUT_ENDPOINT: Final = LintRule(
    "KC107",
    "zone-without-endpoint",
    WARNING,
    "A zone has no ready pod of the Service",
    "Judged where the input has Pods, as a cluster does. The clients of the zone use endpoints of "
    "other zones, which carry more than their share.",
    "Find out why no pod is ready there, and spread the pods over zones.",
)

NO_ZONE_SPREAD: Final = LintRule(
    "KC201",
    "no-zone-spread",
    WARNING,
    "No constraint spreads the pods over zones",
    "The default constraints of the scheduler only prefer a spread, with a skew of 5 between "
    "zones. Zones may stay without pods, and pods of a zone with few of them are overloaded.",
    "Add a topologySpreadConstraint over topology.kubernetes.io/zone with DoNotSchedule.",
)
SOFT_ZONE_SPREAD: Final = LintRule(
    "KC202",
    "soft-zone-spread",
    WARNING,
    "The spread over zones is only preferred",
    "With `whenUnsatisfiable: ScheduleAnyway` the scheduler places pods in a full zone where "
    "others lack room, and no controller moves them later.",
    "Use `whenUnsatisfiable: DoNotSchedule`.",
)
WIDE_ZONE_SKEW: Final = LintRule(
    "KC203",
    "wide-zone-skew",
    WARNING,
    "The spread over zones allows a skew above 1",
    "With maxSkew 2 a zone may have two pods more than another. Zones then send the same traffic "
    "to different numbers of pods.",
    "Use `maxSkew: 1`.",
)
SPREAD_SELECTS_OTHERS: Final = LintRule(
    "KC204",
    "spread-selects-no-own-pods",
    ERROR,
    "The spread over zones does not select the pods it is for",
    "A constraint counts the pods that its labelSelector matches. Without a selector, or with one "
    "that does not match the pod template, it counts none of the workload's pods and spreads "
    "nothing.",
    "Select the labels of the pod template.",
)
SPREAD_IGNORES_REVISIONS: Final = LintRule(
    "KC205",
    "spread-ignores-revisions",
    WARNING,
    "The spread over zones counts pods of old revisions",
    "During a rollout old and new pods are counted together. After the old ones are gone the new "
    "ones may be skewed. With `matchLabelKeys: [pod-template-hash]` each revision is spread by "
    "itself (KEP-3243).",
    "Add `matchLabelKeys: [pod-template-hash]`.",
)

ROLLOUT_EMPTIES_ZONE: Final = LintRule(
    "KC301",
    "rollout-empties-zone",
    WARNING,
    "A rollout may leave a zone without a ready endpoint",
    "maxSurge and maxUnavailable count pods, not zones. lint plays rollouts by the rules of the "
    "Deployment controller and the scheduler, with ties at random, and reports in how many every "
    "zone keeps its endpoints at every moment.",
    "Lower maxUnavailable, raise maxSurge, run more replicas, or spread each revision.",
)
DRAIN_EMPTIES_ZONE: Final = LintRule(
    "KC302",
    "drain-empties-zone",
    WARNING,
    "The drain of one node may leave its zone without a ready endpoint",
    "A drain evicts all pods of a node that budgets permit. Where a zone has its endpoints on one "
    "node, none is left until new pods are ready.",
    "Run at least two replicas for each zone, spread over kubernetes.io/hostname.",
)
NO_DISRUPTION_BUDGET: Final = LintRule(
    "KC303",
    "no-disruption-budget",
    WARNING,
    "No PodDisruptionBudget protects the pods",
    "Without a budget a drain evicts any number of pods at once, so several nodes that are drained "
    "together may empty a zone.",
    "Add a PodDisruptionBudget with maxUnavailable 1.",
)
BUDGET_BLOCKS: Final = LintRule(
    "KC304",
    "budget-blocks-drains",
    ERROR,
    "A PodDisruptionBudget permits no eviction at all",
    "With maxUnavailable 0, or minAvailable as high as the number of replicas, a drain never ends, "
    "and nodes cannot be upgraded. The API server also refuses to evict a pod that two budgets "
    "cover.",
    "Permit one eviction, and run one replica more than the zones need.",
)
BUDGET_EMPTIES_ZONE: Final = LintRule(
    "KC305",
    "budget-permits-empty-zone",
    WARNING,
    "A PodDisruptionBudget permits to evict all pods of a zone",
    "A budget counts pods, not zones. It permits as many evictions at once as the smallest zone "
    "has pods.",
    "Lower maxUnavailable below the number of pods in a zone.",
)
NO_READINESS_PROBE: Final = LintRule(
    "KC306",
    "no-readiness-probe",
    WARNING,
    "No container has a readiness probe",
    "A pod without a probe is ready as soon as its containers run. A rollout then removes old pods "
    "before new ones answer, and a node that prefers its zone has few others to use.",
    "Add a readinessProbe.",
)

SELECTOR_MATCHES_NOTHING: Final = LintRule(
    "KC401",
    "selector-matches-nothing",
    WARNING,
    "The selector matches no workload and no pod of the input",
    "The Service has no endpoints, or its workload is in another file.",
    "Select the labels of a pod template, or lint all files together.",
)
UNKNOWN_TARGET_PORT: Final = LintRule(
    "KC402",
    "unknown-target-port",
    ERROR,
    "No container has a port with the name of targetPort",
    "A pod without a port of that name and protocol is left out of the endpoints of the Service "
    "port.",
    "Name a port of the container.",
)
NODE_WITHOUT_ZONE: Final = LintRule(
    "KC403",
    "node-without-zone",
    WARNING,
    "A Node has no zone label",
    "An endpoint on such a node cannot be hinted, and then every node ignores the hints of the "
    "Service. Topology mode Auto gives no hints to any Service while one worker node lacks a zone.",
    "Label the node with topology.kubernetes.io/zone.",
)
WINDOWS_NODE: Final = LintRule(
    "KC404",
    "windows-node",
    INFO,
    "kube-proxy on Windows ignores hints",
    "Clients on such a node use all endpoints, whatever the Service prefers "
    "(kubernetes/kubernetes#123823).",
    "Expect traffic between zones from these nodes.",
)
ONE_ZONE: Final = LintRule(
    "KC405",
    "one-zone",
    INFO,
    "All nodes are in one zone",
    "There is no other zone that traffic could be kept from. Topology mode Auto gives no hints.",
    "Check the zone labels of the nodes.",
)

TOO_LITTLE_IN_ZONE: Final = LintRule(
    "KC501",
    "too-little-in-zone",
    ERROR,
    "Less traffic stays in its zone than --min-in-zone",
    "Computed from the plan of slices and the selection of every node, as `keepclose resolve` "
    "does. Every node sends the same.",
    "Run pods in every zone, and prefer the zone.",
)
TOO_MUCH_LOAD: Final = LintRule(
    "KC502",
    "too-much-load",
    ERROR,
    "The busiest endpoint carries more than --max-load",
    "Its load is in multiples of the mean of all endpoints. Every node sends the same.",
    "Run a number of replicas that the message names, evenly spread.",
)
TOO_FEW_READY: Final = LintRule(
    "KC503",
    "too-few-ready-in-zone",
    ERROR,
    "A zone has fewer endpoints than --min-ready-per-zone",
    "Counted on the given pods, or where there are none, on a placement by the rules of the "
    "scheduler.",
    "Run more replicas, and spread them over zones.",
)

BAD_SUPPRESSION: Final = LintRule(
    "KC901",
    "bad-suppression",
    WARNING,
    "A suppression has no reason, or names no rule",
    "The annotation `lint.keepclose.dev/KCnnn` suppresses findings about its object. Its value is "
    "the reason. Without one nothing is suppressed, so that later readers know why.",
    "Write the reason as the value.",
)

RULES: Final[dict[str, LintRule]] = {
    rule.id: rule for rule in list(globals().values()) if isinstance(rule, LintRule)
}
"""All rules by id, in the order of the numbers."""
