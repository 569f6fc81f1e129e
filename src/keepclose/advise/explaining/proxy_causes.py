"""Causes in data planes: proxies that refuse hints, lag behind, are too old, or are not kube-proxy.

What `keepclose proxy` says of itself is sure. Other data planes are seen in the versions of nodes
and in their Pods; their settings are in no object, so such causes are probable at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Final

from msgspec.structs import replace

from keepclose.advise.data_plane_causes import explain_proxies
from keepclose.advise.explaining.causes import CauseWeight, TrafficCause, TrafficCauseCode
from keepclose.advise.explaining.service_facts import ServiceFacts
from keepclose.advise.observed_traffic import PortExpectation, PortObservation
from keepclose.advise.verification_causes import CauseCode, LastChange, PortFacts, name_some
from keepclose.model.acknowledgements import HintLevel, NodeAcknowledgement
from keepclose.model.gates import CURRENT_MINOR, gates_at
from keepclose.model.reported import ReportedNode
from keepclose.model.workload import Node
from keepclose.routing.hint_facts import hint_levels
from keepclose.routing.service_ports import honours_hints
from keepclose.routing.strategy import HINTING_STRATEGIES, topology_annotation
from keepclose.routing.topology import followed_levels

_MINOR: Final = re.compile(r"v?1\.([0-9]{1,3})\b")
_OTHER_PLANES: Final = {
    "cilium": (
        "Cilium",
        "follows zone hints only with loadBalancer.serviceTopology=true, which is off by default",
        (
            "kubectl get configmap -n {namespace} cilium-config "
            "-o jsonpath='{{.data.enable-service-topology}}'"
        ),
    ),
    "calico-node": (
        "Calico",
        "routes Services itself where its eBPF data plane is on",
        "kubectl get felixconfiguration default -o jsonpath='{{.spec.bpfEnabled}}'",
    ),
    "kube-router": (
        "kube-router",
        "may not follow hints",
        "kubectl get pods -n {namespace} -l k8s-app=kube-router -o yaml",
    ),
}
"""Data planes by the label k8s-app of their Pods: name, what they follow, how to see it."""
_CILIUM_ANNOTATIONS: Final = ("network.cilium.io/", "io.cilium.network")
"""How annotations of Nodes begin that Cilium writes."""
_PLANE_LABEL: Final = "k8s-app"
_KUBE_PROXY: Final = "kube-proxy"


def explain_data_planes(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield why nodes may not follow hints that are there: old, unlike or unwilling proxies."""
    if not facts.is_routed:
        return
    for cause in explain_proxies(_port_facts(facts)):
        yield TrafficCause(
            _OF_PROXIES[cause.code],
            cause.message,
            cause.subject,
            cause.fix,
            # NB: proxies acknowledge a change a few seconds after they have programmed it.
            is_sure=cause.code is not CauseCode.PROXY_BEHIND,
        )
    if hint_levels(facts.slices):
        yield from _old_proxies(facts)
        yield from _other_planes(facts)


_OF_PROXIES: Final = {
    CauseCode.PROXY_REFUSES_HINTS: TrafficCauseCode.PROXY_REFUSES_HINTS,
    CauseCode.PROXY_BEHIND: TrafficCauseCode.PROXY_BEHIND,
}


def _port_facts(facts: ServiceFacts) -> PortFacts:
    """Return the facts that causes of proxies are found in; no flows are known."""
    return PortFacts(
        facts.service,
        facts.planned.strategy,
        PortExpectation(),
        PortExpectation(),
        (),
        PortObservation(),
        facts.slices,
        facts.inventory.nodes,
        tuple(_unexpected(facts)),
        0.0,
        0.0,
        LastChange(),
        0.0,
        "",
        0,
    )


def _unexpected(facts: ServiceFacts) -> Iterator[NodeAcknowledgement]:
    """Yield what proxies of the nodes in question say, without fallbacks that are by design.

    A proxy reports why it does not use the hints; the selection for its node may say the same.
    """
    expected = {
        name: {reason.code.value for port in group.ports for reason in port.selection.reasons}
        for group in facts.groups
        for name in group.nodes
    }
    for each in facts.acknowledgements:
        if not each.version or each.node not in expected:
            continue
        why = each.exceptions.get(facts.key)
        exceptions = {} if why is None or why in expected[each.node] else {facts.key: why}
        yield replace(each, exceptions=exceptions)


def _old_proxies(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield the nodes whose release follows no hints of the levels that endpoints have."""
    levels = hint_levels(facts.slices)
    topology = topology_annotation(facts.service)[1] or ""
    old: dict[str, int] = {}
    lacking: set[HintLevel] = set()
    asked = {name for group in facts.groups for name in group.nodes}
    known: dict[int, set[HintLevel]] = {}
    answering = {each.node for each in facts.acknowledgements if each.version}
    for node in facts.inventory.nodes:
        minor = minor_version(node)
        if minor is None or node.name not in asked or node.name in answering:
            continue
        if minor not in known:
            known[minor] = _lacking_levels(minor, topology, levels)
        if known[minor]:
            old[node.name] = minor
            lacking |= known[minor]
    if not old:
        return
    which = " and ".join(sorted(lacking))
    since = next(
        (
            minor
            for minor in range(min(old.values()), CURRENT_MINOR + 1)
            if not _lacking_levels(minor, topology, levels)
        ),
        CURRENT_MINOR,
    )
    minors = sorted(set(old.values()))
    versions = f"1.{minors[0]}" if len(minors) == 1 else f"1.{minors[0]} to 1.{minors[-1]}"
    yield TrafficCause(
        TrafficCauseCode.PROXY_TOO_OLD,
        f"{name_some(old)} run Kubernetes {versions}, whose kube-proxy does not follow hints "
        f"{which} by default: clients there use all endpoints",
        f"Node {min(old)}",
        fix=f"kubectl get nodes -o wide  # kube-proxy follows these hints from 1.{since} on",
        # NB: the version is that of the kubelet; another proxy or a gate may follow hints.
        is_sure=False,
    )


def _lacking_levels(minor: int, topology: str, levels: Iterable[HintLevel]) -> set[HintLevel]:
    """Return the levels of hints that a release does not follow for such a Service."""
    gates = gates_at(minor)
    if not honours_hints(topology, gates):
        return set(levels)
    followed = followed_levels(gates) or {HintLevel.ZONES}
    # NB: weights are followed by keepclose proxy alone, and stand beside hints for all others.
    return {level for level in levels if level not in followed and level is not HintLevel.WEIGHTS}


def minor_version(node: Node) -> int | None:
    """Return NN of the release 1.NN that a node reports; None if it reports none."""
    if not isinstance(node, ReportedNode):
        return None
    info = node.status.node_info
    match = _MINOR.match(info.kube_proxy_version or info.kubelet_version)
    return int(match[1]) if match else None


def _other_planes(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield data planes besides kube-proxy, as their Pods show them."""
    if facts.planned.strategy.name not in HINTING_STRATEGIES:
        return
    planes: dict[str, set[str]] = {}
    namespaces: dict[str, str] = {}
    for namespace, pods in facts.inventory.pods.items():
        for pod in pods:
            app = pod.metadata.labels.get(_PLANE_LABEL, "")
            if app in _OTHER_PLANES or app == _KUBE_PROXY:
                planes.setdefault(app, set()).add(pod.spec.node_name)
                namespaces[app] = namespace
    asked = {name for group in facts.groups for name in group.nodes}
    annotated = {
        node.name
        for node in facts.inventory.nodes
        if any(key.startswith(_CILIUM_ANNOTATIONS) for key in node.metadata.annotations)
    }
    if annotated and "cilium" not in planes:
        # Its Pods may be in a namespace that was not read.
        planes["cilium"] = annotated
        namespaces["cilium"] = "kube-system"
    for app, nodes in planes.items():
        here = nodes & asked
        if (
            app == _KUBE_PROXY
            or not here
            or (app != "cilium" and here <= planes.get(_KUBE_PROXY, set()))
        ):
            continue
        name, follows, command = _OTHER_PLANES[app]
        beside = here & planes.get(_KUBE_PROXY, set())
        where = "beside kube-proxy" if beside else "and no kube-proxy is seen"
        yield TrafficCause(
            TrafficCauseCode.OTHER_DATA_PLANE,
            f"{name} runs on {len(here):,} of {len(asked):,} nodes {where}: it {follows}",
            f"Node {min(here)}",
            fix=command.format(namespace=quote(namespaces[app])),
            weight=CauseWeight.NOTE,
            is_sure=False,
        )
