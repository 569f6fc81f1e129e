"""One address family of a proxy: its changes, its states, its rules and its syncs, put together.

The two families share caches and the own node, and nothing else: one that fails does not keep the
other from working.
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
from keepclose.proxy.post_sync import Aftermath, Flows
from keepclose.proxy.settings import ProxySettings, family_of_range
from keepclose.proxy.validation import Flaws
from keepclose.ruleset.settings import RulesetSettings

EVERY_ADDRESS: Final = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104 - as kube-proxy does
_log = structlog.get_logger(__name__)


class FamilyProxy:
    """All that belongs to one family."""

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
        flaws: Flaws,
        on_written: Callable[[], None],
        on_change: Callable[[], None],
        on_check_failure: Callable[[NamespacedName, str], None],
        flows: Flows | None = None,
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
            counts=metrics,
            on_change=self._hear_change,
            started_at=clock.now(),
            flaws=flaws,
        )
        self._checks = HealthChecks(
            node=settings.node_name,
            addresses=(EVERY_ADDRESS[family],),
            is_proxy_healthy=lambda: health.health().healthy,
            on_failure=on_check_failure,
        )
        self._aftermath = Aftermath(
            family,
            states=self.states,
            flows=flows or Conntrack("ip" if family == IPV4 else "ip6", clock=clock),
            checks=self._checks,
            metrics=metrics,
            note=on_written,
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
            flaws=flaws,
            before_full=self._look_around,
            before_write=self._limit_counting,
            after=self._follow,
        )

    def move_node(self) -> None:
        """Follow the own node to another zone, region or name of it."""
        self.states.move_node(self._node.view)
        self.sync.move_node()

    def lay_out(self) -> None:
        """Follow a change of the node's addresses; the table is compared as a whole."""
        self._apply_layout()
        self.sync.request(full=True)

    def set_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        """Follow a change of the ranges from which cluster IPs are taken."""
        own = tuple(one for one in ranges if family_of_range(one) == self.family)
        if self.rules.set_service_cidrs(own):
            self.sync.request()

    async def sync_once(self) -> None:
        """Write everything, delete what that replaced, and return; raises NftError.

        Nothing but the table is touched.
        """
        await self.sync.sync_or_raise(follows=False)
        due = self.sync.next_sweep
        if due is not None:
            await self._clock.sleep(due - self._clock.monotonic())
            await self.sync.sweep()

    async def close(self) -> None:
        """Let go of everything but the rules."""
        await self._aftermath.close()

    def _hear_change(self) -> None:
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
        if self.rules.lay_out(layout):
            self.states.replay(self.rules.set_port)
            _log.info("layout changed", family=self.family, node_ip=layout.node_ip)

    def _look_around(self) -> None:
        """Take in what nobody tells: addresses of interfaces."""
        addresses = node_port_ips(self._settings, self._node.addresses, self.family)
        self.rules.set_node_port_ips(addresses)
        self._checks.move((EVERY_ADDRESS[self.family],) if addresses is None else addresses)

    def _limit_counting(self) -> bool:
        """Count ports with chains of their own only while they are few; tell how many are not.

        Return whether that changed the layout.
        """
        if not self.is_counting:
            return False
        ports, most = self.rules.chained_ports, self._settings.most_chains_counted
        # NB: with some way between the two numbers, or the table would be laid out time and again.
        counts = ports <= (most if self._counts_chains else most * 9 // 10)
        is_changed = counts != self._counts_chains
        if is_changed:
            self._counts_chains = counts
            _log.warning("counting of ports with own chains", counted=counts, ports=ports)
            self._apply_layout()
        self._metrics.show_uncounted(self.family, 0 if counts else ports)
        return is_changed

    async def _follow(self, touched: set[NamespacedName]) -> None:
        self._on_change()
        await self._aftermath.follow(touched)
