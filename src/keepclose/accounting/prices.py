"""Prices of traffic between zones, in a file that the user edits.

A provider may charge the sender of a byte, the receiver, or both, so a price has two parts. Which
part an account pays does not matter here: both sides of a cluster's traffic are on one bill.
Presets are a start, with their date and source; a contract, a region or a month changes them, so
no result is better than the file. Traffic without a price in the file stays without one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from typing import Final

import msgspec

from keepclose.accounting.flow_table import OUTSIDE, is_zone
from keepclose.model.plain_text import make_plain

MAX_ZONE_PAIRS: Final = 10_000
"""The most entries of a price table."""
MAX_PRICE: Final = 1_000_000.0
"""The highest price of a gigabyte."""
_UNITS: Final = {"GB": 10**9, "GiB": 2**30}
_HEADER: Final = """\
# What bytes cost. Not taken as truth: compare it with your bill, and edit it.
# sent is charged for the zone that sends a byte, received for the zone that receives it.
# from and to are zones, * stands for any text; the first entry that matches counts.
"""
_FOOTER: Final = """\
# Traffic to and from outside depends on gateways, volume and destination. Add your price:
# outside: {sent: 0.09, received: 0}
"""
PRESETS: Final = {
    "aws": f"""\
{_HEADER}currency: USD
per: GB  # 10^9 bytes; GiB is 2^30
date: "2025"
source: Amazon EC2 On-Demand Pricing, Data Transfer within the same AWS Region
sameZone: {{sent: 0, received: 0}}
betweenZones:
# 0.01 in each direction: the same byte is charged when it leaves a zone and when it enters one.
- {{from: "*", to: "*", sent: 0.01, received: 0.01}}
{_FOOTER}""",
    "gcp": f"""\
{_HEADER}currency: USD
per: GiB  # 2^30 bytes; GB is 10^9
date: "2025"
source: Google Cloud VPC pricing, VM-VM data transfer between zones of one region
sameZone: {{sent: 0, received: 0}}
betweenZones:
# The sender is charged, the receiver is not.
- {{from: "*", to: "*", sent: 0.01, received: 0}}
{_FOOTER}""",
    "azure": f"""\
{_HEADER}currency: USD
per: GB  # 10^9 bytes; GiB is 2^30
date: "2025"
source: Azure bandwidth pricing, and the announcement of May 2024 about availability zones
sameZone: {{sent: 0, received: 0}}
betweenZones:
# Not charged, as announced. Peered virtual networks are: add their price here.
- {{from: "*", to: "*", sent: 0, received: 0}}
{_FOOTER}""",
}
"""Price tables by provider, as files with comments."""


class PriceError(ValueError):
    """A price table that cannot be used; the message names the field."""


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price of a gigabyte, for the zone that sends it and the one that receives it."""

    sent: float = 0.0
    received: float = 0.0


class ZonePairRate(
    Rate, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"source": "from"}
):
    """The price from one zone to another; * stands for any text."""

    source: str
    to: str


class PriceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Prices by zones."""

    currency: str
    per: str
    between_zones: tuple[ZonePairRate, ...] = ()
    same_zone: Rate | None = None
    outside: Rate | None = None
    """For traffic to and from addresses outside the cluster."""
    date: str = ""
    source: str = ""

    @property
    def unit_bytes(self) -> int:
        """How many bytes a price is for."""
        return _UNITS[self.per]

    def price_function(self) -> Callable[[str, str], float | None]:
        """Return what looks up the price of one byte from zone to zone; None if it has none."""

        @lru_cache(maxsize=65_536)
        def price(source: str, destination: str) -> float | None:
            rate = self._find(source, destination)
            return None if rate is None else (rate.sent + rate.received) / self.unit_bytes

        return price

    def _find(self, source: str, destination: str) -> Rate | None:
        if OUTSIDE in (source, destination):
            if self.outside is None:
                return None
            # Only one side is the cluster's: what leaves it is sent, what enters it is received.
            sent = 0.0 if source == OUTSIDE else self.outside.sent
            received = 0.0 if destination == OUTSIDE else self.outside.received
            return Rate(sent, received)
        if not is_zone(source) or not is_zone(destination):
            return None
        if source == destination:
            return self.same_zone
        for pair in self.between_zones:
            if _matches(pair.source, source) and _matches(pair.to, destination):
                return pair
        return None


def read_prices(value: object, *, name: str) -> PriceTable:
    """Return the price table of a decoded YAML or JSON document; raise PriceError."""
    if isinstance(value, dict):
        # NB: YAML reads 2025-06-01 as a date, and 2025 as a number.
        value = {
            key: str(entry) if key == "date" and not isinstance(entry, dict | list) else entry
            for key, entry in value.items()
        }
    try:
        table = msgspec.convert(value, PriceTable)
    except msgspec.ValidationError as error:
        message = f"{name}: {make_plain(str(error), most=500)}"
        raise PriceError(message) from None
    if table.per not in _UNITS:
        message = f"{name}: per: {table.per[:50]!r} is neither GB nor GiB"
        raise PriceError(message)
    if len(table.between_zones) > MAX_ZONE_PAIRS:
        message = f"{name}: betweenZones: more than {MAX_ZONE_PAIRS:,} entries"
        raise PriceError(message)
    rates: dict[str, Rate | None] = {"sameZone": table.same_zone, "outside": table.outside}
    rates |= {f"betweenZones[{index}]": pair for index, pair in enumerate(table.between_zones)}
    for field, rate in rates.items():
        for part in ("sent", "received"):
            price = getattr(rate, part, 0.0)
            if not isfinite(price) or not 0 <= price <= MAX_PRICE:
                message = f"{name}: {field}.{part}: {price} is no price from 0 to {MAX_PRICE:,.0f}"
                raise PriceError(message)
    return table


def _matches(pattern: str, zone: str) -> bool:
    """Return whether a zone has the texts between the stars, in their order; in linear time."""
    if "*" not in pattern:
        return pattern == zone
    first, *middle, last = pattern.split("*")
    if len(first) + len(last) > len(zone) or not zone.startswith(first):
        return False
    position = len(first)
    end = len(zone) - len(last)
    for part in middle:
        position = zone.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return zone.endswith(last)
