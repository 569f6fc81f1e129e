"""Where we answer otherwise than the unit tables of Kubernetes, and why that is to stay.

A difference that is not in this list fails its test, and so does an entry whose cases no longer
differ. Cases are named by their test, as Go names subtests; a second call in the same test has #2.
"""

from __future__ import annotations

from typing import NamedTuple


class Kept(NamedTuple):
    """Cases of a function in which we differ: a pattern of names, how many match, and why."""

    group: str
    function: str
    cases: str
    number: int
    reason: str


class NotCompared(NamedTuple):
    """A recorded function that nothing of ours corresponds to."""

    group: str
    function: str
    reason: str


_NO_IP = "pods with addresses such as 1.2.3.256, which no API server stores, are no endpoints here"
_DEFAULTED = "defaults come first: by way of HTTP the field is never missing"
_NO_LABELS = (
    "the slices of the test lack the labels by which controllers find them; we restore them"
)

KEPT: tuple[Kept, ...] = (
    Kept(
        "servicestorage",
        "REST.defaultOnReadService",
        "TestServiceDefaultOnRead/*",
        8,
        "Services stored before there were families: our storage never was that old",
    ),
    Kept(
        "servicestorage",
        "REST.Create",
        "TestFeatureExternalTrafficPolicy/*_policy:none_hcnp:*",
        4,
        _DEFAULTED,
    ),
    Kept(
        "servicestorage",
        "REST.Update",
        "TestUpdateIPsFromSingleStack/*ip_in_use*",
        1,
        "the test takes the address out of the allocator itself",
    ),
    Kept(
        "servicestorage",
        "REST.Update",
        "TestFeatureSessionAffinity/None-ClientIPNoConfig",
        1,
        _DEFAULTED,
    ),
    Kept(
        "servicestorage",
        "REST.Update",
        "TestFeatureSessionAffinity/ClientIP-NoneWithConfig",
        1,
        "defaults come first: without affinity its settings are dropped",
    ),
    Kept(
        "corevalidation",
        "ValidateEndpointsCreate",
        "TestValidateEndpointsCreate/Port_missing_protocol",
        1,
        _DEFAULTED,
    ),
    Kept(
        "corevalidation",
        "ValidateServiceCreate",
        "*missing_AllocateLoadBalancerNodePorts_for_loadbalancer_type",
        1,
        _DEFAULTED,
    ),
    Kept(
        "nftables",
        "tracePacket",
        "TestTracePacketV?/*",
        11,
        "these tests are about the tracer of the other tests, and their rules come from a text",
    ),
    Kept("endpointslice", "podToEndpoint", "TestReconcile*", 48, _NO_IP),
    Kept(
        "endpointslice",
        "Reconciler.Reconcile",
        "TestReconcileEndpointSlicesSomePreexisting",
        1,
        _NO_LABELS,
    ),
    Kept(
        "endpointslice",
        "Reconciler.Reconcile",
        "TestReconcileEndpointSlicesMetrics_EndpointsAddedPerSync_CollectAndCompare",
        1,
        _NO_LABELS,
    ),
    Kept(
        "endpointslice",
        "Reconciler.Reconcile",
        "TestReconcileEndpointSlicesSomePreexistingWorseAllocation",
        1,
        _NO_IP,
    ),
    Kept(
        "endpointslice", "Reconciler.Reconcile", "TestReconcileEndpointSlicesRecycling*", 2, _NO_IP
    ),
    Kept(
        "endpointslice", "Reconciler.Reconcile", "TestReconcileEndpointSlicesNamedPorts", 1, _NO_IP
    ),
)

NOT_COMPARED: tuple[NotCompared, ...] = (
    NotCompared(
        "strings", "IsValidCIDR", "for fields that take canonical ranges only; no Service has one"
    ),
    NotCompared("strings", "IsFullyQualifiedName", "for kinds that we do not serve"),
    NotCompared("warnings", "GetLoadBalancerSourceRanges", "for cloud controllers"),
    NotCompared("warnings", "ExternallyAccessible", "one step of validation"),
    NotCompared("warnings", "RequestsOnlyLocalTraffic", "for cloud controllers"),
    NotCompared("warnings", "NeedsHealthCheck", "one step of allocation"),
    NotCompared("mirroring", "recycleSlices", "one step of reconcile"),
    NotCompared("proxy", "MapIPsByIPFamily", "one step of newBaseServiceInfo"),
    NotCompared("proxy", "MapCIDRsByIPFamily", "one step of newBaseServiceInfo"),
    NotCompared("proxy", "ServicePortMap.HealthCheckNodePorts", "a view of the map of Services"),
    NotCompared("proxy", "EndpointsMap.LocalReadyEndpoints", "a view of the map of endpoints"),
    NotCompared("topologycache", "getMost", "one step of getGivingAndReceivingZones"),
    NotCompared("topologycache", "getHintsByZone", "one step of AddHints: which slices may stay"),
    NotCompared("topologycache", "redistributeHints", "one step of AddHints"),
    NotCompared("topologycache", "SliceInfo.getTotalReadyEndpoints", "a sum of numReadyEndpoints"),
    NotCompared(
        "endpointslicecontroller",
        "dropEndpointSlicesPendingDeletion",
        "slices that are being deleted are dropped where they are observed",
    ),
)
