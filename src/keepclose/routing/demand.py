"""The traffic shares of a Service by measured demand: what clients in each zone really send.

From an earlier `DemandState`, the time and perhaps a new `DemandSample` to the shares to plan with.
Measured rates are smoothed, small differences change nothing, and changes keep a least interval.
Too little traffic, no samples for a while, or samples that make no sense leave the shares of
`traffic_shares`, by CPU. Samples come from other programs, so nothing in them is trusted; nothing
here raises, and no sample can leave a Service without shares that it would have by CPU.

Time is an argument in seconds. A clock that jumps back only delays the next change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from itertools import islice
from math import inf, isfinite
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.model.plain_text import make_plain
from keepclose.model.well_known import DEMAND_ANNOTATION
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.traffic_shares import NAMED_NODES, Shares, divide_shares

MAX_RATE: Final = 1e12
"""The highest rate of a zone that is believed: a terabyte or 1e12 connections a second."""
_SHOWN_ZONE: Final = 63
_SHOWN_ERROR: Final = 200


class DemandSettings(msgspec.Struct, frozen=True):
    """How measured demand becomes shares; times are in seconds."""

    half_life_s: float = 60.0
    """After this time a step of demand has reached the smoothed rates by half."""
    dead_band: float = 0.05
    """Shares change only if that of a zone differs by more, as a part of all traffic."""
    interval_s: float = 120.0
    """The least time between two changes of the shares of a Service."""
    stale_after_s: float = 300.0
    """After this time without a sample, shares are those by CPU again."""
    least_rate: float = 1.0
    """The least total rate, in the unit of the source a second, that tells shares from chance."""


class DemandSample(msgspec.Struct, frozen=True):
    """The rates that a source measured for a Service at a time, by the zone of the clients.

    A zone without a rate is missing, which is not a rate of 0. Rates that hold at a time may have
    been measured earlier, such as those of a file that has not changed since: `age_s` before `at`.
    """

    at: float
    rates: Mapping[str, float]
    age_s: float = 0.0
    error: str = ""
    """Why the source could not read the rates of this Service; "" if it could."""
    period_s: float = inf
    """How long was counted for these rates; infinite where they tell no chance by themselves."""


class DemandBasis(StrEnum):
    """What the shares of a Service come from; the value of a metric label."""

    MEASURED = "measured"
    CPU = "cpu"
    """CPU, because nothing usable was measured."""
    STALE = "stale"
    """CPU, because the last sample is too old."""


class ZoneRate(msgspec.Struct, frozen=True):
    """The smoothed rate of a zone, and when a sample last had the zone."""

    rate: float
    at: float


class DemandState(msgspec.Struct, frozen=True):
    """What the next decision starts from; without arguments that of a Service without samples."""

    rates: Mapping[str, ZoneRate] = {}
    at: float | None = None
    """The time of the last sample that was used; None before the first."""
    measured_at: float | None = None
    """When that was measured."""
    counted_s: float = 0.0
    """How long was counted for the rates, in all samples together."""
    planned: Mapping[str, float] = {}
    """The measured shares in use; empty while CPU counts."""
    planned_at: float | None = None
    """When the shares in use last changed; None if they never did."""
    unknown_zones: tuple[str, ...] = ()
    """A few zones of the last sample that the cluster does not have."""
    rejected: str = ""
    """Why the newest sample was not used; "" if it was."""


class DemandDecision(msgspec.Struct, frozen=True):
    """The shares to plan with, what they come from, and the state for the next decision.

    `has_changed` means that the measured shares in use differ from those of the state before. From
    CPU because too little was measured to CPU because that is stale, only the basis changes.
    """

    state: DemandState
    shares: Shares
    basis: DemandBasis
    has_changed: bool


def read_demand_request(annotations: Mapping[str, str]) -> tuple[bool, tuple[Reason, ...]]:
    """Return whether measured demand counts for a Service, as it does by default.

    There is a reason where it does not, and where the annotation is invalid and the default holds.
    """
    text = annotations.get(DEMAND_ANNOTATION)
    path = f"metadata.annotations[{DEMAND_ANNOTATION}]"
    if text == "CPU":
        return False, (Reason(ReasonCode.SHARES_BY_CPU, f"{path}: CPU counts"),)
    if text in (None, "Measured"):
        return True, ()
    message = f"{path}: {text[:40]!r} is not CPU or Measured, so Measured holds"
    fix = f"set {DEMAND_ANNOTATION} to CPU or Measured"
    return True, (Reason(ReasonCode.DEMAND_INVALID, message, fix=fix),)


def decide_demand(
    state: DemandState,
    sample: DemandSample | None = None,
    *,
    now: float,
    by_cpu: Shares,
    settings: DemandSettings,
    source: str = "",
) -> DemandDecision:
    """Return the shares of a Service now; without a sample the earlier ones, until they are stale.

    `by_cpu` are the shares by CPU, whose zones are those of the cluster. `source` names what
    measured, for reasons. Without a sample ever, the shares are those by CPU.
    """
    had_shares = bool(state.planned)
    before = state.planned
    state = _not_after(state, now)
    if sample is not None:
        state = _use_sample(state, sample, by_cpu.by_zone, now=now, settings=settings)
    zones = by_cpu.by_zone
    present = before
    if not all(zone in zones for zone in before):
        present = _divide({zone: share for zone, share in before.items() if zone in zones})
    measured = _divide({zone: rate.rate for zone, rate in state.rates.items() if zone in zones})
    is_stale = state.measured_at is not None and now - state.measured_at > settings.stale_after_s
    planned: Mapping[str, float] = {}
    if not is_stale and _is_enough(state, zones, settings, is_planned=had_shares):
        planned = _choose(state, present, measured, now=now, settings=settings)
    has_changed = planned != before
    if has_changed:
        # NB: shares that only lost a zone of the cluster did not follow demand.
        is_forced = bool(planned) and planned == present
        planned_at = state.planned_at if is_forced else now
        state = replace(state, planned=planned, planned_at=planned_at)
    fallback = DemandBasis.STALE if is_stale else DemandBasis.CPU
    basis = DemandBasis.MEASURED if planned else fallback
    reasons = _reasons(state, basis, by_cpu, settings=settings, source=source)
    # NB: all zones in order, so that the planner has those without traffic, too.
    by_zone = {zone: planned.get(zone, 0.0) for zone in zones} if planned else zones
    named = basis.value if planned else by_cpu.basis
    return DemandDecision(state, Shares(by_zone, reasons, named), basis, has_changed)


def _not_after(state: DemandState, now: float) -> DemandState:
    """Return the state without times in the future, which a clock that jumped back leaves."""
    times = (state.at, state.measured_at, state.planned_at)
    if all(at is None or at <= now for at in times) and all(
        rate.at <= now for rate in state.rates.values()
    ):
        return state
    return replace(
        state,
        rates={zone: ZoneRate(rate.rate, min(rate.at, now)) for zone, rate in state.rates.items()},
        at=None if state.at is None else min(state.at, now),
        measured_at=None if state.measured_at is None else min(state.measured_at, now),
        planned_at=None if state.planned_at is None else min(state.planned_at, now),
    )


def _use_sample(
    state: DemandState,
    sample: DemandSample,
    zones: Mapping[str, float],
    *,
    now: float,
    settings: DemandSettings,
) -> DemandState:
    """Return the state with a sample smoothed in; one that makes no sense changes no rate."""
    rejected = _find_error(sample, zones)
    if rejected:
        return replace(state, rejected=rejected)
    at = min(sample.at, now)
    if state.at is not None and at < state.at:
        return state
    half_life_s = max(settings.half_life_s, 1e-9)
    counted_s, weight = max(0.0, sample.period_s), 1.0
    if state.at is not None:
        counted_s = state.counted_s + at - state.at
        # NB: a first sample that was counted for a moment must not outweigh those after it.
        known = 1.0 - 0.5 ** (counted_s / half_life_s)
        weight = (1.0 - 0.5 ** ((at - state.at) / half_life_s)) / known if known > 0.0 else 0.0
    rates: dict[str, ZoneRate] = {}
    for zone in zones:
        earlier, new = state.rates.get(zone), sample.rates.get(zone)
        if new is not None:
            # NB: what is measured in a zone for the first time counts in full, as a first sample
            # does. A zone that comes back would otherwise seem idle, and get too few endpoints.
            smoothed = new if earlier is None else earlier.rate
            rates[zone] = ZoneRate(smoothed + weight * (new - smoothed), at)
        elif earlier is not None:
            # A zone that is missing counts as it was, until what was measured there is stale.
            is_stale = at - earlier.at > settings.stale_after_s
            kept = earlier.rate * (1.0 - weight) if is_stale else earlier.rate
            rates[zone] = ZoneRate(kept, earlier.at)
    unknown = islice((zone for zone in sample.rates if zone not in zones), NAMED_NODES)
    shown = tuple([make_plain(zone, most=_SHOWN_ZONE) for zone in unknown])
    measured_at = at - max(0.0, sample.age_s)
    return replace(
        state,
        rates=rates,
        at=at,
        measured_at=measured_at,
        counted_s=counted_s,
        unknown_zones=shown,
        rejected="",
    )


def _find_error(sample: DemandSample, zones: Iterable[str]) -> str:
    """Return why a sample cannot be used; "" if it can. Zones of no cluster are not read."""
    if sample.error:
        return make_plain(sample.error, most=_SHOWN_ERROR)
    if not isfinite(sample.at) or not isfinite(sample.age_s):
        return "its time is no number"
    for zone in zones:
        rate = sample.rates.get(zone, 0.0)
        if not isfinite(rate) or not 0.0 <= rate <= MAX_RATE:
            return f"the rate of zone {make_plain(zone, most=_SHOWN_ZONE)} is {rate:.3g}"
    return ""


def _is_enough(
    state: DemandState, zones: Collection[str], settings: DemandSettings, *, is_planned: bool
) -> bool:
    """Return whether there is enough traffic; a Service in use keeps its shares for half of it.

    Zones that have left the cluster since the last sample do not count.
    """
    total = sum(rate.rate for zone, rate in state.rates.items() if zone in zones)
    least = settings.least_rate / 2 if is_planned else settings.least_rate
    return total > 0.0 and total >= least


def _choose(
    state: DemandState,
    present: Mapping[str, float],
    measured: Mapping[str, float],
    *,
    now: float,
    settings: DemandSettings,
) -> Mapping[str, float]:
    """Return the shares to use: the present ones, unless the measured ones differ for long."""
    if not measured:
        return {}
    is_early = state.planned_at is not None and now - state.planned_at < settings.interval_s
    if not present:
        # A Service that fell back to CPU a moment ago waits, too.
        return {} if is_early else measured
    moved = max(
        abs(measured.get(zone, 0.0) - present.get(zone, 0.0)) for zone in {*measured, *present}
    )
    return present if is_early or moved <= settings.dead_band else measured


def _divide(rates: Mapping[str, float]) -> dict[str, float]:
    shares = dict(zip(rates, divide_shares(list(rates.values())), strict=True))
    return shares if any(shares.values()) else {}


def _reasons(
    state: DemandState,
    basis: DemandBasis,
    by_cpu: Shares,
    *,
    settings: DemandSettings,
    source: str,
) -> tuple[Reason, ...]:
    by = f" by {source}" if source else ""
    reasons: list[Reason] = []
    match basis:
        case DemandBasis.MEASURED:
            message = f"the shares of zones are measured{by}"
            reasons.append(Reason(ReasonCode.SHARES_MEASURED, message))
        case DemandBasis.STALE:
            message = f"nothing was measured{by} for {settings.stale_after_s:g} s, so CPU counts"
            reasons.append(Reason(ReasonCode.SHARES_STALE, message, fix="check the source"))
        case DemandBasis.CPU:
            reasons.append(
                Reason(ReasonCode.SHARES_BY_CPU, _why_cpu(state, by_cpu.by_zone, settings, by))
            )
    if state.rejected:
        message = f"the newest sample was not used: {state.rejected}"
        fix = f"correct what is measured{by} for this Service"
        reasons.append(Reason(ReasonCode.SAMPLE_REJECTED, message, fix=fix))
    if state.unknown_zones:
        names = ", ".join(state.unknown_zones)
        message = f"the cluster does not have zones that were measured, which are ignored: {names}"
        reasons.append(Reason(ReasonCode.DEMAND_ZONE_UNKNOWN, message))
    # NB: reasons of the nodes matter only while nodes decide.
    return tuple(reasons) if basis is DemandBasis.MEASURED else (*reasons, *by_cpu.reasons)


def _why_cpu(state: DemandState, zones: Collection[str], settings: DemandSettings, by: str) -> str:
    if state.at is None:
        return f"nothing was measured{by} yet, so CPU counts"
    if _is_enough(state, zones, settings, is_planned=False):
        return f"shares changed less than {settings.interval_s:g} s ago, so CPU counts"
    return (
        f"less than {settings.least_rate:g} a second was measured{by}, which tells nothing, so "
        "CPU counts"
    )
