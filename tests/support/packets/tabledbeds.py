"""A network whose nodes have the tables that keepclose makes of given Services and slices.

No API server and no proxy process: what a node does is selected, rendered and written here, with
the same parts that the proxy has, so that a test takes a fraction of a second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

from keepclose.model.addresses import IPV6
from keepclose.model.endpointslice.types import EndpointPort, EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import (
    Service,
)
from keepclose.proxy.nft.libnftables import LibnftablesContext
from keepclose.proxy.nft.writer import NftError
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import routed_ports
from keepclose.ruleset import (
    CountBy,
    DetectLocal,
    LocalTraffic,
    Ruleset,
    RulesetSettings,
    ServicePortKey,
    TableListing,
    Update,
)
from support.builders import endpoint, endpoint_slice
from support.netanswers import PORT, answering
from support.netns import Namespace
from support.nettopology import (
    SERVICE_NETWORK,
    SERVICE_NETWORK6,
    THREE_ZONES,
    Bed,
    BedNode,
    NodePlan,
    Place,
    topology_or_skip,
)
from support.packets.webobjects import FAMILIES, Backend

EXTERNAL_NETWORKS: Final = ("198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")


class TabledBed:
    """A bed, and the tables of all its nodes."""

    def __init__(
        self,
        bed: Bed,
        *,
        gates: FeatureGates | None = None,
        settings: dict[str, Any] | None = None,
        families: Sequence[str] = FAMILIES,
    ) -> None:
        self.bed = bed
        self.gates = gates or FeatureGates()
        self.linger_s = 0.0
        """How long what is no longer used stays; packets may still be on their way through it."""
        self._unused: list[tuple[float, str, Ruleset, int]] = []
        self.zones = {node.name: node.zone for node in bed.nodes}
        """By node; changes count from the next write on."""
        self._rulesets = {
            (node.name, family): Ruleset(layout_for(node, family, **(settings or {})))
            for node in bed.nodes
            for family in families
        }
        self._contexts = {node.name: _open_context(node.namespace) for node in bed.nodes}
        self._known: dict[tuple[str, str], set[ServicePortKey]] = {
            one: set() for one in self._rulesets
        }
        for (node, _), ruleset in self._rulesets.items():
            self._apply(node, ruleset, ruleset.reconcile(TableListing()))

    def close(self) -> None:
        """Let go of the kernel; the tables go with the bed."""
        for context in self._contexts.values():
            context.close()

    def slices(
        self,
        name: str,
        *backends: Backend | str,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        part: str = "1",
    ) -> list[EndpointSlice]:
        """Return the slices of a Service, one for each family."""
        wanted = [Backend(one) if isinstance(one, str) else one for one in backends]
        ports = (
            EndpointPort(name="http", protocol="TCP", port=PORT),
            EndpointPort(name="dns", protocol="UDP", port=PORT),
        )
        return [
            endpoint_slice(
                *(
                    endpoint(
                        address_of(self.pod(pod), family),
                        node_name=self.node_of(pod).name,
                        zone=self.zones[self.node_of(pod).name] or None,
                        **rest,
                    )
                    for pod, rest in ((one.pod, _rest(one)) for one in wanted)
                ),
                name=f"{name}-{family.lower()}-{part}",
                service_name=name,
                address_type=family,
                ports=ports,
                labels=labels,
                annotations=annotations,
            )
            for family in FAMILIES
        ]

    def write(self, services: Iterable[Service], slices: Sequence[EndpointSlice]) -> None:
        """Make these the only Services and slices, on all nodes."""
        services = list(services)
        for (node, family), ruleset in self._rulesets.items():
            known = self._known[node, family]
            gone = set(known)
            view = NodeView(node, self.zones[node])
            for one in services:
                own = [piece for piece in slices if piece.service_key == one.key]
                endpoints = collect_endpoints(own, family, gates=self.gates)
                for port in routed_ports(one, family, gates=self.gates):
                    found = endpoints.get(port.key, ())
                    selection = select(port, found, node=view, gates=self.gates)
                    key = ServicePortKey.of(port)
                    ruleset.set_port(key, port, selection)
                    known.add(key)
                    gone.discard(key)
            for key in gone:
                ruleset.set_port(key, None, None)
                known.discard(key)
            update = ruleset.commit()
            if update is not None:
                self._apply(node, ruleset, update)

    def pod(self, name: str) -> Place:
        """Return a pod by its name."""
        return next(pod for pod in self.bed.pods if pod.name == name)

    def node_of(self, pod: str) -> BedNode:
        """Return the node of a pod."""
        return self.bed.node(pod.partition("-")[0])

    def namespace(self, who: str) -> Namespace:
        """Return the namespace of a pod, a node or the outside host."""
        if who == self.bed.outside.name:
            return self.bed.outside.namespace
        return self.pod(who).namespace if "-" in who else self.bed.node(who).namespace

    def source(self, who: str, family: str) -> str:
        """Return the own address of a pod, a node or the outside host."""
        if who == self.bed.outside.name:
            return address_of(self.bed.outside, family)
        return address_of(self.pod(who) if "-" in who else self.bed.node(who), family)

    def mask(self, node: str, pod: str, family: str) -> str:
        """Return from where a pod sees packets come that a node masquerades."""
        one = self.bed.node(node)
        if self.node_of(pod) is not one:
            return address_of(one, family)
        cidr = one.pod_cidr6 if family == IPV6 else one.pod_cidr
        network = cidr.partition("/")[0]
        return f"{network}1" if family == IPV6 else f"{network.removesuffix('0')}1"

    def _apply(self, node: str, ruleset: Ruleset, update: Update) -> None:
        for text in update.phases:
            self._contexts[node].apply(text)
        self._unused.append((time.monotonic() + self.linger_s, node, ruleset, update.serial))
        self._sweep()

    def _sweep(self) -> None:
        while self._unused and self._unused[0][0] <= time.monotonic():
            _, node, ruleset, serial = self._unused.pop(0)
            for text in ruleset.sweep(serial):
                self._contexts[node].apply(text)


def layout_for(node: BedNode, family: str, **changes: Any) -> RulesetSettings:
    """Return the layout that a proxy has by default on a node of a bed, with changes."""
    is_six = family == IPV6
    base = RulesetSettings(
        family=family,
        node_name=node.name,
        node_ip=address_of(node, family),
        local_traffic=LocalTraffic(DetectLocal.CIDR, node.pod_cidr6 if is_six else node.pod_cidr),
        nodeport_ips=(address_of(node, family),),
        service_cidrs=(SERVICE_NETWORK6 if is_six else SERVICE_NETWORK,),
        count_by=CountBy.ZONE,
    )
    return replace(base, **changes)


@contextlib.contextmanager
def tabled(
    plan: Sequence[NodePlan] = THREE_ZONES,
    *,
    gates: FeatureGates | None = None,
    settings: dict[str, Any] | None = None,
    families: Sequence[str] = FAMILIES,
) -> Iterator[TabledBed]:
    """Make a network with tables and with pods that answer, or skip the test with the reason.

    The outside host sends what is for Services to the first node.
    """
    with topology_or_skip(plan) as bed, answering(bed.pods):
        for network in (SERVICE_NETWORK, SERVICE_NETWORK6, *EXTERNAL_NETWORKS):
            bed.route_via(network, bed.nodes[0])
        made = TabledBed(bed, gates=gates, settings=settings, families=families)
        try:
            yield made
        finally:
            made.close()


def address_of(one: Place | BedNode, family: str) -> str:
    """Return the address of somebody in a family."""
    return one.address6 if family == IPV6 else one.address


def _rest(one: Backend) -> dict[str, Any]:
    given = one._asdict()
    del given["pod"]
    return given


def _open_context(namespace: Namespace) -> LibnftablesContext:
    try:
        return namespace.do(LibnftablesContext)
    except NftError as error:
        pytest.skip(str(error))
