"""What one mechanism did in a replay: spans of time and writes, and the figures that follow."""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.advise.replaying.routed_load import RoutedLoad
from keepclose.model.endpointslice.types import EndpointSlice

ROUNDING_RATE: Final = 1e-9
"""Fewer connections a second are none."""


class ReplayedSync(msgspec.Struct, frozen=True):
    """One sync of the controller that had something to write, or the one at the start."""

    at: float
    slices: tuple[EndpointSlice, ...]
    """The slices of the controller after its writes."""
    writes: int = 0
    rehinted: int = 0
    """Ready endpoints that were ready before, and now have other hints."""
    flaps: int = 0
    """Those of them that got back hints which they had lost in this replay."""


class LoadSpan(msgspec.Struct, frozen=True):
    """A span of time in which the connections of every second divide alike."""

    start: float
    end: float
    load: RoutedLoad

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


class MechanismRun(msgspec.Struct, frozen=True):
    """What one mechanism did in a scenario."""

    name: str
    label: str
    about: str
    spans: tuple[LoadSpan, ...]
    syncs: tuple[ReplayedSync, ...]
    slices: tuple[EndpointSlice, ...]
    """The slices of the controller at the end."""

    @property
    def without_zones_s(self) -> float:
        """How long at least one node routed without regard to zones."""
        spans = [span for span in self.spans if span.load.without_zones > ROUNDING_RATE]
        return sum([span.seconds for span in spans], 0.0)

    @property
    def peak(self) -> float:
        """The most that the busiest endpoint got at any time, in fair shares."""
        return max([span.load.busiest for span in self.spans], default=0.0)

    @property
    def peak_at(self) -> float:
        """When that began first."""
        return next((span.start for span in self.spans if span.load.busiest == self.peak), 0.0)

    @property
    def sent(self) -> float:
        """All connections."""
        return sum([span.seconds * span.load.sent for span in self.spans], 0.0)

    @property
    def failed(self) -> float:
        """Connections that failed."""
        return sum([span.seconds * span.load.failed for span in self.spans], 0.0)

    @property
    def left_zone(self) -> float:
        """Connections that were answered outside their zone."""
        return sum([span.seconds * span.load.left_zone for span in self.spans], 0.0)

    @property
    def writes(self) -> int:
        """Slices created, updated and deleted after the start."""
        return sum(sync.writes for sync in self.syncs)

    @property
    def rehinted(self) -> int:
        """Endpoints that got other hints."""
        return sum(sync.rehinted for sync in self.syncs)

    @property
    def flaps(self) -> int:
        """Endpoints that got back hints which they had lost."""
        return sum(sync.flaps for sync in self.syncs)

    @property
    def why(self) -> str:
        """The reason for which nodes routed without regard to zones for the longest time."""
        times: dict[str, float] = {}
        for span in self.spans:
            if span.load.why:
                times[span.load.why] = times.get(span.load.why, 0.0) + span.seconds
        return max(times, key=lambda why: times[why]) if times else ""
