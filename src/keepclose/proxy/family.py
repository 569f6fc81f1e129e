"""One address family of a proxy: its change tracker, port states, rules and syncs.

The two families share only the caches and the own node: a failure in one family never affects the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from keepclose.kube.clock import Clock
from keepclose.model.addresses import IPV4
from keepclose.model.meta import NamespacedName
from keepclose.proxy.caches import ProxyCaches
from keepclose.proxy.change_tracker import ChangeTracker
from keepclose.proxy.conntrack.stale_flows import Conntrack
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.family_sync import FamilySync
from keepclose.proxy.health import HealthChecks, HealthState
from keepclose.proxy.layout import layout_of, node_port_ips
from keepclose.proxy.nft.rules import Rules
from keepclose.proxy.nft.writer import NftWriter
from keepclose.proxy.own_node import OwnNode
from keepclose.proxy.port_selections import PortStates
from keepclose.proxy.post_sync import FlowCleaner, PostSync
from keepclose.proxy.settings import ProxySettings, family_of_range
from keepclose.proxy.validation import ValidationLog
from keepclose.ruleset.settings import RulesetSettings

EVERY_ADDRESS: Final = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104 - as kube-proxy does
_log = structlog.get_logger(__name__)


class FamilyProxy:
    """The proxy of one address family."""

    def __init__(
        self,
        family: str,
        *,
        settings: ProxySettings,
        caches: ProxyCaches,
        node: OwnNode,
        writer: NftWriter,
        metrics: ProxyMetrics,
        health: HealthState,
        clock: Clock,
        validation_log: ValidationLog,
        on_written: Callable[[], None],
        on_change: Callable[[], None],
        on_check_failure: Callable[[NamespacedName, str], None],
        flows: FlowCleaner | None = None,
    ) -> None:
        self.family = family
        self._settings = settings
        self._caches = caches
        self._node = node
        self._clock = clock
        self._on_change = on_change
        self._metrics = metrics
        self.is_counting = settings.counts_connections
        """Whether connections are counted."""
        self._counts_chains = True
        self.rules = Rules(self._layout(), writer=writer)
        self.states = PortStates(
            family, gates=settings.gates, node=node.view, set_port=self.rules.set_port
        )
        self.tracker = ChangeTracker(
            family,
            gates=settings.gates,
            counter=metrics,
            on_change=self._on_tracked_change,
            started_at=clock.now(),
            validation_log=validation_log,
        )
        self._checks = HealthChecks(
            node=settings.node_name,
            addresses=(EVERY_ADDRESS[family],),
            is_proxy_healthy=lambda: health.health().healthy,
            on_failure=on_check_failure,
        )
        self._post_sync = PostSync(
            family,
            states=self.states,
            flows=flows or Conntrack("ip" if family == IPV4 else "ip6", clock=clock),
            checks=self._checks,
            metrics=metrics,
            on_written=on_written,
        )
        self.sync = FamilySync(
            family,
            settings=settings,
            caches=caches,
            tracker=self.tracker,
            states=self.states,
            rules=self.rules,
            metrics=metrics,
            health=health,
            clock=clock,
            validation_log=validation_log,
            before_full=self._refresh_addresses,
            before_write=self._limit_counting,
            after=self._after_sync,
        )

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
            await self._clock.sleep(due - self._clock.monotonic())
            await self.sync.sweep()

    async def close(self) -> None:
        """Close everything; the rules stay."""
        await self._post_sync.close()

    def _on_tracked_change(self) -> None:
        self._on_change()
        self.sync.request()

    def _layout(self) -> RulesetSettings:
        return layout_of(
            self._settings,
            self._node.addresses,
            self.family,
            is_counting=self.is_counting,
            counts_chains=self._counts_chains,
        )

    def _apply_layout(self) -> None:
        layout = self._layout()
        if self.rules.set_layout(layout):
            self.states.replay(self.rules.set_port)
            _log.info("layout changed", family=self.family, node_ip=layout.node_ip)

    def _refresh_addresses(self) -> None:
        """Read the addresses of the interfaces, whose changes cause no event."""
        addresses = node_port_ips(self._settings, self._node.addresses, self.family)
        self.rules.set_node_port_ips(addresses)
        self._checks.set_addresses(
            (EVERY_ADDRESS[self.family],) if addresses is None else addresses
        )

    def _limit_counting(self) -> bool:
        """Count connections of ports with own chains only while these ports are few.

        Return whether that changed the layout.
        """
        if not self.is_counting:
            return False
        ports, most = self.rules.chained_ports, self._settings.most_chains_counted
        # NB: the two limits differ, or a number at the limit would change the layout again and
        # again.
        counts = ports <= (most if self._counts_chains else most * 9 // 10)
        is_changed = counts != self._counts_chains
        if is_changed:
            self._counts_chains = counts
            _log.warning("counting of ports with own chains changed", counted=counts, ports=ports)
            self._apply_layout()
        self._metrics.show_uncounted(self.family, 0 if counts else ports)
        return is_changed

    async def _after_sync(self, changed: set[NamespacedName]) -> None:
        self._on_change()
        await self._post_sync.run(changed)
