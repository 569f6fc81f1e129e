"""What the traffic of a Service costs under a mechanism: its bytes by zones times prices.

The bytes of clients in a zone are divided among the zones of endpoints as the mechanism routes
them. They come from flows, or from a rate that is assumed for all Services together. A Service
without either has no cost, and a pair of zones without a price is not taken as free: it is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from keepclose.accounting.cost import MONTH_HOURS
from keepclose.accounting.prices import PriceTable
from keepclose.advise.planning.client_weights import ServiceVolumes, ZoneVolume
from keepclose.advise.routed_traffic import RoutedTraffic
from keepclose.model.meta import NamespacedName


class MonthlyTraffic(msgspec.Struct, frozen=True):
    """The bytes of a Service in a month by the zone of its clients."""

    by_zone: Mapping[str, ZoneVolume]

    @property
    def total(self) -> float:
        """Bytes of both directions."""
        return sum([volume.requests + volume.responses for volume in self.by_zone.values()])


class CostModel:
    """Bytes a month of each Service, and what they cost by the way they take."""

    def __init__(
        self,
        *,
        volumes: ServiceVolumes | None = None,
        rate: float = 0.0,
        services: int = 0,
        prices: PriceTable | None = None,
    ) -> None:
        """Take flows, or `rate` bytes a month of so many Services together, and prices."""
        self._volumes = volumes
        self._rate = rate / services if services else 0.0
        self._price: Callable[[str, str], float | None] | None = None
        self.currency = ""
        if prices is not None:
            self._price = prices.price_function()
            self.currency = prices.currency

    @property
    def has_bytes(self) -> bool:
        """Whether bytes a month are known of any Service."""
        volumes = self._volumes
        if volumes is None:
            return self._rate > 0
        return volumes.has_bytes and volumes.hours > 0

    def month_of(self, service: NamespacedName, clients: Mapping[str, float]) -> MonthlyTraffic:
        """Return the bytes of a Service in a month; `clients` say where an assumed rate is sent."""
        if self._volumes is not None:
            if not self.has_bytes:
                return MonthlyTraffic({})
            factor = MONTH_HOURS / self._volumes.hours
            return MonthlyTraffic(
                {
                    zone: ZoneVolume(volume.requests * factor, volume.responses * factor)
                    for zone, volume in self._volumes.of(service).items()
                }
            )
        whole = sum(clients.values())
        if not whole or not self._rate:
            return MonthlyTraffic({})
        return MonthlyTraffic(
            {zone: ZoneVolume(self._rate * part / whole) for zone, part in clients.items()}
        )

    def price(self, month: MonthlyTraffic, traffic: RoutedTraffic) -> float | None:
        """Return the cost of a month; None without bytes or without prices for all of them."""
        if self._price is None or not month.by_zone:
            return None
        cost = 0.0
        for zone, targets in _targets(traffic).items():
            volume = month.by_zone.get(zone)
            if volume is None:
                continue
            for target, part in targets.items():
                sent, received = self._price(zone, target), self._price(target, zone)
                if sent is None or received is None:
                    return None
                cost += part * (volume.requests * sent + volume.responses * received)
        return cost


def _targets(traffic: RoutedTraffic) -> dict[str, dict[str, float]]:
    """Return which part of what each zone sends goes to which zone."""
    sums: dict[str, float] = {}
    for source, _, share in traffic.zones:
        sums[source] = sums.get(source, 0.0) + share
    targets: dict[str, dict[str, float]] = {}
    for source, target, share in traffic.zones:
        targets.setdefault(source, {})[target] = share / sums[source]
    return targets
