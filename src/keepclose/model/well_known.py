"""Names that Kubernetes and the proposals define: labels, annotations, values, controllers."""

from __future__ import annotations

from typing import Final

from keepclose.model.meta import NamespacedName

KUBERNETES_SERVICE: Final = NamespacedName("default", "kubernetes")
"""The Service that every API server creates for itself."""
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
SKIP_MIRROR_LABEL: Final = "endpointslice.kubernetes.io/skip-mirror"
HEADLESS_LABEL: Final = "service.kubernetes.io/headless"
PROXY_NAME_LABEL: Final = "service.kubernetes.io/service-proxy-name"
FOR_ZONE_LABEL: Final = "endpointslice.kubernetes.io/for-zone"
FOR_REGION_LABEL: Final = "endpointslice.kubernetes.io/for-region"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
REGION_LABEL: Final = "topology.kubernetes.io/region"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
EXCLUDED_NODE_LABELS: Final = (
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
)

TRIGGER_TIME_ANNOTATION: Final = "endpoints.kubernetes.io/last-change-trigger-time"
OVER_CAPACITY_ANNOTATION: Final = "endpoints.kubernetes.io/over-capacity"
LAST_APPLIED_ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
LEADER_ANNOTATION: Final = "control-plane.alpha.kubernetes.io/leader"
TOPOLOGY_MODE_ANNOTATION: Final = "service.kubernetes.io/topology-mode"
TOPOLOGY_HINTS_ANNOTATION: Final = "service.kubernetes.io/topology-aware-hints"
SOURCE_RANGES_ANNOTATION: Final = "service.beta.kubernetes.io/load-balancer-source-ranges"
SUBSETTING_ANNOTATION: Final = "endpointslice.kubernetes.io/subsetting"
NODE_TOPOLOGY_ANNOTATION: Final = "service.kubernetes.io/node-topology"

# These annotations take values that a real API server rejects in the field, on any cluster.
TRAFFIC_DISTRIBUTION_ANNOTATION: Final = "keepclose.dev/traffic-distribution"
INTERNAL_POLICY_ANNOTATION: Final = "keepclose.dev/internal-traffic-policy"
EXTERNAL_POLICY_ANNOTATION: Final = "keepclose.dev/external-traffic-policy"
# Limits of subsetting for one Service, in place of those of the controller.
STARTING_THRESHOLD_ANNOTATION: Final = "keepclose.dev/subsetting-starting-threshold"
PADDING_ANNOTATION: Final = "keepclose.dev/subsetting-padding"
OVERLOAD_THRESHOLD_ANNOTATION: Final = "keepclose.dev/subsetting-overload-threshold"
# Limits of Balanced for one Service.
MAX_OVERLOAD_ANNOTATION: Final = "keepclose.dev/balanced-max-overload"
OBJECTIVE_ANNOTATION: Final = "keepclose.dev/balanced-objective"
DEMAND_ANNOTATION: Final = "keepclose.dev/demand"
MIN_IN_ZONE_ANNOTATION: Final = "keepclose.dev/balanced-min-in-zone"
# Whether the controller writes weights for proxies that follow them, beside hints for all others.
WEIGHTS_ANNOTATION: Final = "keepclose.dev/weights"
# On a slice: weights by the zone of the client and the zone of the endpoint, see `zone_weights`.
ZONE_WEIGHTS_ANNOTATION: Final = "keepclose.dev/zone-weights"
# Weights of the endpoints of a slice, in the order of its endpoints: a JSON list of integers.
ENDPOINT_WEIGHTS_ANNOTATION: Final = "keepclose.dev/endpoint-weights"
# On any object: lint.keepclose.dev/KC201 suppresses the findings of that rule about the object. The
# value is the reason.
LINT_ANNOTATION_PREFIX: Final = "lint.keepclose.dev/"

# On Nodes: the address of an overlay's interface, with which a node masquerades. Calico, Cilium.
TUNNEL_ADDRESS_ANNOTATIONS: Final = (
    "projectcalico.org/IPv4IPIPTunnelAddr",
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv6VXLANTunnelAddr",
    "projectcalico.org/IPv4WireguardInterfaceAddr",
    "projectcalico.org/IPv6WireguardInterfaceAddr",
    "network.cilium.io/ipv4-cilium-host",
    "network.cilium.io/ipv6-cilium-host",
    "io.cilium.network.ipv4-cilium-host",
)

ENDPOINTSLICE_CONTROLLER: Final = "endpointslice-controller.k8s.io"
MIRRORING_CONTROLLER: Final = "endpointslicemirroring-controller.k8s.io"

PREFER_CLOSE: Final = "PreferClose"
PREFER_SAME_ZONE: Final = "PreferSameZone"
PREFER_SAME_NODE: Final = "PreferSameNode"
