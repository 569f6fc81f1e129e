"""Which change of a Service, or which feature gate, is worth advising, found by a trial.

The one source of advice of `resolve`, `explain`, `verify` and `plan`. A reason says why traffic is
not close. Whether the obvious change helps depends on where the endpoints are: PreferSameZone on
nine endpoints in one zone and one in another overloads that one. So each change is tried on the
whole cluster, by the same plan and the same selections as the resolution itself. It is advised only
if more traffic stays close, the busiest endpoint is not raised above the bound of the Service, nor
more endpoints, and no larger part of the connections fails. The bound is that of Balanced: 20 %
above the fair share, or what the Service's annotation says.

A change never alters a traffic policy, so it never opens a Local policy or loses client addresses,
and Services that belong to others are left alone, see `mechanism_changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from keepclose.advise.mechanism_changes import (
    Mechanism,
    MechanismChange,
    drop_topology_annotation,
    enable_gate,
    opt_into_node_level,
    switch_to,
    why_unadvisable,
)
from keepclose.advise.routed_traffic import SHARE_ROUNDING, RoutedTraffic, in_percent
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.routing.balanced import BALANCED, read_balance_limits
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.slices.settings import PlannerSettings

LEAST_GAIN: Final = 0.005
"""The part of the traffic that a change must bring closer, so that a user sees an effect."""
PREFERENCE: Final = (
    Mechanism.SAME_ZONE,
    Mechanism.BALANCED,
    Mechanism.AUTO,
    Mechanism.SUBSETTING,
    Mechanism.SAME_NODE,
)
"""The mechanisms that may be advised; of several that keep as much in the zone the first one is."""
_SAME_SHARE: Final = 0.005

MeasureChange = Callable[[MechanismChange], RoutedTraffic]
"""Returns where the traffic would go after a change."""


class Advice(msgspec.Struct, frozen=True):
    """A change that was tried and helps without harm."""

    change: MechanismChange
    now: RoutedTraffic
    then: RoutedTraffic
    gates: FeatureGates
    """The gates as they are."""

    @property
    def command(self) -> str:
        """What the user runs or sets."""
        return self.change.command

    @property
    def effect(self) -> str:
        """What becomes of the traffic, in figures."""
        effect = self.then.describe_change(self.now)
        if self.change.settings.gates != self.gates:
            # A gate concerns all Services, and only this one was measured.
            effect += f"; for other Services: keepclose plan {self.command}"
        return effect


def overload_bound(service: Service) -> float:
    """Return the part above its fair share that an endpoint of the Service may carry."""
    return read_balance_limits(service.metadata.annotations, BALANCED)[0].bound


def find_harm(then: RoutedTraffic, now: RoutedTraffic, *, bound: float) -> str:
    """Return what a change makes worse, "" if nothing."""
    limit = max(1.0 + bound, now.busiest) * (1.0 + SHARE_ROUNDING)
    if then.failed > now.failed + SHARE_ROUNDING:
        return f"{in_percent(then.failed)} of the connections would fail"
    if then.busiest > limit:
        return (
            f"the busiest endpoint would get {then.busiest:.2f}x its fair share, "
            f"beyond {1 + bound:g}x"
        )
    if then.overloaded > now.overloaded:
        return f"{then.overloaded:,} endpoints would carry more than {1 + bound:g}x"
    if then.in_zone < now.in_zone - SHARE_ROUNDING:
        return "less traffic would stay in its zone"
    return ""


def helps(then: RoutedTraffic, now: RoutedTraffic, *, bound: float) -> bool:
    """Return whether a change brings traffic closer and makes nothing worse."""
    gains = then.in_zone >= now.in_zone + LEAST_GAIN or then.on_node >= now.on_node + LEAST_GAIN
    return gains and not find_harm(then, now, bound=bound)


def relieves(then: RoutedTraffic, now: RoutedTraffic, *, bound: float) -> bool:
    """Return whether a change brings all endpoints below the bound and makes nothing worse."""
    is_relief = bool(now.overloaded) and not then.overloaded
    return is_relief and not find_harm(then, now, bound=bound)


def recommend(
    service: Service,
    settings: PlannerSettings,
    *,
    now: RoutedTraffic,
    measure: MeasureChange,
) -> Advice | None:
    """Return the best mechanism to switch the Service to; None to leave it as it is.

    It keeps clearly more traffic in its zone than now, which is what traffic between zones costs,
    or as much with no endpoint above the bound, where one is above it now. Mechanisms whose feature
    gates are off are not considered.
    """
    is_overloaded = bool(now.overloaded)
    if why_unadvisable(service) or (now.in_zone > 1.0 - LEAST_GAIN and not is_overloaded):
        return None
    bound = overload_bound(service)
    best: Advice | None = None
    for mechanism in PREFERENCE:
        change = switch_to(mechanism, service, settings)
        if change is None:
            continue
        then = measure(change)
        is_closer = then.in_zone >= now.in_zone + LEAST_GAIN and helps(then, now, bound=bound)
        if not is_closer and not relieves(then, now, bound=bound):
            continue
        if best is None or _is_better(then, best.then):
            best = Advice(change, now, then, settings.gates)
    return best


def _is_better(then: RoutedTraffic, best: RoutedTraffic) -> bool:
    if abs(then.in_zone - best.in_zone) > _SAME_SHARE:
        return then.in_zone > best.in_zone
    return bool(best.overloaded) and not then.overloaded


def find_advice(
    service: Service,
    reasons: Iterable[Reason],
    settings: PlannerSettings,
    *,
    now: Callable[[], RoutedTraffic],
    measure: MeasureChange,
) -> dict[Reason, Advice]:
    """Return what helps against each reason; most reasons have nothing.

    `now` is asked only if there is something to try.
    """
    if why_unadvisable(service):
        return {}
    advised: dict[Reason, Advice] = {}
    for reason in reasons:
        advice = _advise_against(reason, service, settings, now, measure)
        if advice is not None:
            advised[reason] = advice
    return advised


def _advise_against(
    reason: Reason,
    service: Service,
    settings: PlannerSettings,
    now: Callable[[], RoutedTraffic],
    measure: MeasureChange,
) -> Advice | None:
    change: MechanismChange | None = None
    is_of_service = reason.subject == f"Service {service.key}"
    match reason.code:
        case ReasonCode.NOTHING_ASKED:
            return recommend(service, settings, now=now(), measure=measure)
        case ReasonCode.VALUE_NOT_SUPPORTED if is_of_service:
            return recommend(service, settings, now=now(), measure=measure)
        case ReasonCode.OVERRIDDEN if is_of_service:
            change = drop_topology_annotation(service, settings)
        case ReasonCode.GATE_OFF:
            change = _enable_gate_of(reason, service, settings)
        case ReasonCode.NOT_OPTED_IN:
            change = opt_into_node_level(service, settings)
        case _:
            pass
    if change is None:
        return None
    present, then = now(), measure(change)
    is_helpful = helps(then, present, bound=overload_bound(service))
    return Advice(change, present, then, settings.gates) if is_helpful else None


def _enable_gate_of(
    reason: Reason, service: Service, settings: PlannerSettings
) -> MechanismChange | None:
    for gate in Gate:
        if reason.subject == f"FeatureGate {gate}":
            return enable_gate(service, gate, settings)
    return None
