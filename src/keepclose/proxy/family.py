"""One address family of a proxy: its change tracker, port states, rules and syncs.

The two families share only the caches and the own node: a failure in one family never affects the
other.

Derives the settings of a table from the settings of the proxy and the addresses of its node. As in
kube-proxy, nodeport-addresses takes ranges and the words primary, localhost and all. Node ports
answer at those addresses of the host's interfaces that are in the ranges of the family. No range of
the family, or a range of all addresses, means every address. Node ports never answer at loopback
addresses.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

import structlog

from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.gates import Gate
from keepclose.model.meta import NamespacedName
from keepclose.proxy.change_tracker import ChangeTracker
from keepclose.proxy.conntrack import Conntrack
from keepclose.proxy.family_sync import FamilySync, SharedParts, SyncHooks
from keepclose.proxy.health import HealthChecks
from keepclose.proxy.nft.rules import Rules
from keepclose.proxy.nft.writer import NftWriter
from keepclose.proxy.own_node import NodeAddresses, OwnNode
from keepclose.proxy.port_selections import PortStates
from keepclose.proxy.post_sync import FlowCleaner, PostSync
from keepclose.proxy.settings import (
    NODE_PORT_KEYWORDS,
    DetectLocalMode,
    ProxySettings,
    family_of_range,
)
from keepclose.ruleset.settings import CountBy, DetectLocal, LocalTraffic, RulesetSettings
from keepclose.system.netlink import NetlinkSocket, attributes_of

EVERY_ADDRESS: Final = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104 - as kube-proxy does
_log = structlog.get_logger(__name__)
# Messages of rtnetlink for addresses, their attributes, and the head of their bodies.
_NEW_ADDRESS, _GET_ADDRESS = 20, 22
_ADDRESS, _LOCAL = 1, 2
_ADDRESS_HEAD_BYTES: Final = 8


class FamilyEvents(NamedTuple):
    """The callbacks of a family."""

    on_written: Callable[[], None]
    """Called after each sync."""
    on_change: Callable[[], None]
    """Called when the number of changes that wait for a sync has changed."""
    on_check_failure: Callable[[NamespacedName, str], None]
    """Receives a Service whose health-check node port cannot be opened, and the reason."""


class FamilyProxy:
    """The proxy of one address family."""

    def __init__(
        self,
        family: str,
        shared: SharedParts,
        *,
        node: OwnNode,
        writer: NftWriter,
        events: FamilyEvents,
        flows: FlowCleaner | None = None,
    ) -> None:
        settings, clock = shared.settings, shared.clock
        self.family = family
        self._shared = shared
        self._node = node
        self._on_change = events.on_change
        self.rules = Rules(self._layout(), writer=writer)
        self.states = PortStates(
            family, gates=settings.gates, node=node.view, set_port=self.rules.set_port
        )
        self.tracker = ChangeTracker(
            family,
            gates=settings.gates,
            counter=shared.metrics,
            on_change=self._on_tracked_change,
            started_at=clock.now(),
            validation_log=shared.validation_log,
        )
        self._checks = HealthChecks(
            node=settings.node_name,
            addresses=(EVERY_ADDRESS[family],),
            is_proxy_healthy=lambda: shared.health.health().healthy,
            on_failure=events.on_check_failure,
        )
        self._post_sync = PostSync(
            family,
            states=self.states,
            flows=flows or Conntrack("ip" if family == IPV4 else "ip6", clock=clock),
            checks=self._checks,
            metrics=shared.metrics,
            on_written=events.on_written,
        )
        self.sync = FamilySync(
            family,
            shared,
            tracker=self.tracker,
            states=self.states,
            rules=self.rules,
            hooks=SyncHooks(self._refresh_addresses, self._after_sync),
        )

    @property
    def is_counting(self) -> bool:
        """Whether connections are counted."""
        return self._shared.settings.counts_connections

    def on_topology_change(self) -> None:
        """Handle a change of the zone, region or labels of the own node."""
        self.states.set_node(self._node.view)
        self.sync.request_all_services()

    def on_addresses_change(self) -> None:
        """Handle a change of the node's addresses; the next sync compares the whole table."""
        self._apply_layout()
        self.sync.request(full=True)

    def set_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        """Set the ranges of cluster IPs, of all families."""
        own = tuple(cidr for cidr in ranges if family_of_range(cidr) == self.family)
        if self.rules.set_service_cidrs(own):
            self.sync.request()

    async def sync_once(self) -> None:
        """Write everything, delete what that replaced, and return; raises NftError.

        It changes only the table: no flows, no health checks.
        """
        await self.sync.sync_or_raise(runs_post_sync=False)
        due = self.sync.next_sweep
        if due is not None:
            await self._shared.clock.sleep(due - self._shared.clock.monotonic())
            await self.sync.sweep()

    async def close(self) -> None:
        """Close everything; the rules stay."""
        await self._post_sync.close()

    def _on_tracked_change(self) -> None:
        self._on_change()
        self.sync.request()

    def _layout(self) -> RulesetSettings:
        return layout_of(
            self._shared.settings,
            self._node.addresses,
            self.family,
            is_counting=self.is_counting,
        )

    def _apply_layout(self) -> None:
        layout = self._layout()
        if self.rules.set_layout(layout):
            self.states.replay(self.rules.set_port)
            _log.info("layout changed", family=self.family, node_ip=layout.node_ip)

    def _refresh_addresses(self) -> None:
        """Read the addresses of the interfaces, whose changes cause no event."""
        addresses = node_port_ips(self._shared.settings, self._node.addresses, self.family)
        self.rules.set_node_port_ips(addresses)
        self._checks.set_addresses(
            (EVERY_ADDRESS[self.family],) if addresses is None else addresses
        )

    async def _after_sync(self, changed: set[NamespacedName]) -> None:
        self._on_change()
        await self._post_sync.run(changed)


def layout_of(
    settings: ProxySettings,
    addresses: NodeAddresses,
    family: str,
    *,
    is_counting: bool,
) -> RulesetSettings:
    """Return the settings of the table of a family on a node with these addresses.

    They do not include the ranges of cluster IPs, which come from ServiceCIDRs.
    """
    return RulesetSettings(
        family=family,
        table=settings.table,
        node_name=settings.node_name,
        node_ip=addresses.ips.get(family, ""),
        local_traffic=local_traffic_of(settings, addresses, family),
        masquerade_all=settings.masquerade_all,
        masquerade_bit=settings.masquerade_bit,
        nodeport_ips=node_port_ips(settings, addresses, family),
        count_by=CountBy.ZONE if is_counting else CountBy.NOTHING,
        uses_external_ips=settings.gates.on(Gate.ALLOW_SERVICE_EXTERNAL_IPS),
        pooled=settings.pooled,
    )


def local_traffic_of(
    settings: ProxySettings, addresses: NodeAddresses, family: str
) -> LocalTraffic:
    """Return how rules identify traffic of the node's pods; not at all if no range is known."""
    match settings.detect_local:
        case DetectLocalMode.NODE_CIDR:
            value = addresses.pod_cidrs.get(family, "")
            return LocalTraffic(DetectLocal.CIDR, value) if value else LocalTraffic()
        case DetectLocalMode.CLUSTER_CIDR:
            own = [cidr for cidr in settings.cluster_cidrs if family_of_range(cidr) == family]
            return LocalTraffic(DetectLocal.CIDR, own[0]) if own else LocalTraffic()
        case DetectLocalMode.BRIDGE_INTERFACE:
            return LocalTraffic(DetectLocal.INTERFACE, settings.pod_interface)
    return LocalTraffic(DetectLocal.INTERFACE_PREFIX, settings.pod_interface)


def node_port_ips(
    settings: ProxySettings, addresses: NodeAddresses, family: str
) -> tuple[str, ...] | None:
    """Return the addresses at which node ports answer now; None for all of the node's."""
    ranges = ranges_of(settings.node_port_addresses, addresses, family)
    if ranges is None:
        return None
    return addresses_within(ranges, read_interface_addresses(family))


def ranges_of(
    configured: Iterable[str], addresses: NodeAddresses, family: str
) -> tuple[str, ...] | None:
    """Return the ranges of the family at which node ports answer; None for all addresses."""
    texts: list[str] = []
    for text in configured:
        if text == "primary":
            texts += [
                f"{address}/{ip_address(address).max_prefixlen}"
                for address in addresses.ips.values()
                if not ip_address(address).is_loopback
            ]
        else:
            texts += NODE_PORT_KEYWORDS.get(text, (text,))
    ranges = [text for text in texts if family_of_range(text) == family]
    if not ranges or any(ip_network(text, strict=False).prefixlen == 0 for text in ranges):
        return None
    return tuple(ranges)


def addresses_within(ranges: Iterable[str], addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that are in one of the ranges, sorted, without loopback addresses."""
    networks = [ip_network(text, strict=False) for text in ranges]
    candidates = {ip_address(text) for text in addresses}
    matching = [
        address
        for address in candidates
        if not address.is_loopback and any(address in network for network in networks)
    ]
    return tuple(str(address) for address in sorted(matching, key=int))


def read_interface_addresses(family: str) -> tuple[str, ...]:
    """Return the addresses of all interfaces in the thread's network namespace; none on failure."""
    number = {IPV4: socket.AF_INET, IPV6: socket.AF_INET6}[family]
    addresses: list[str] = []

    def read(kind: int, reply: bytes) -> None:
        if kind == _NEW_ADDRESS:
            attributes = attributes_of(reply, _ADDRESS_HEAD_BYTES)
            raw = attributes.get(_LOCAL) or attributes.get(_ADDRESS)
            if raw:
                addresses.append(socket.inet_ntop(number, raw))

    head = bytes((number, *bytes(_ADDRESS_HEAD_BYTES - 1)))
    with suppress(OSError), closing(NetlinkSocket(socket.NETLINK_ROUTE, seconds=2)) as netlink:
        netlink.dump(_GET_ADDRESS, head, read, what="addresses")
    return tuple(addresses)
