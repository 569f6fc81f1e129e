"""Subsetting of KEP-2004 by counts: how many endpoints the group of each zone gets, and when.

A group is the set of slices that exactly one zone consumes; an endpoint is in exactly one group.
Prefer balances the groups so that no zone reaches the overload threshold, and leaves the Service
undivided (Random) if that is impossible; it never leaves a zone that sends traffic without
endpoints. Require keeps every endpoint in its own zone, whatever the load. Groups that still serve
their zones stay as they are: a full rebalance is the last resort, because each move is a write.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from keepclose.model.well_known import (
    FOR_REGION_LABEL,
    FOR_ZONE_LABEL,
    OVERLOAD_THRESHOLD_ANNOTATION,
    PADDING_ANNOTATION,
    REGION_LABEL,
    STARTING_THRESHOLD_ANNOTATION,
    ZONE_LABEL,
)
from keepclose.routing.allocation.local import LocalOutcome, local
from keepclose.routing.reasons import Reason, ReasonCode

DEFAULT_OVERLOAD_THRESHOLD = 0.5
DEFAULT_START_PER_ZONE = 3
MIN_LIMIT = 1e-6
MAX_LIMIT = 1e6
_REGION = "region/"
_is_decimal = re.compile(r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?").fullmatch
_UNKNOWN = ""
"""The location of endpoints that have no zone."""

_Target = dict[str, dict[str, int]]
"""Number of endpoints, by location and group; only positive numbers."""


class Approach(StrEnum):
    """How the endpoints of a Service are divided; DEFAULT leaves that to the controller."""

    PREFER = "Prefer"
    REQUIRE = "Require"
    RANDOM = "Random"
    DEFAULT = "Default"


class Level(StrEnum):
    """What a group of a Service serves: a zone or a region."""

    ZONE = "zone"
    REGION = "region"


class SubsetMode(StrEnum):
    """Whether the endpoints are divided into groups."""

    RANDOM = "Random"
    SUBSETS = "Subsets"


class SubsetOptions(msgspec.Struct, frozen=True):
    """Limits of subsetting; the starting threshold may be text that is not parsed yet."""

    overload_threshold: float = DEFAULT_OVERLOAD_THRESHOLD
    start_per_zone: float | str = DEFAULT_START_PER_ZONE
    padding: int = 3
    default: Approach = Approach.RANDOM


class SubsetDecision(msgspec.Struct, frozen=True):
    """The desired groups; in mode RANDOM there are none and the target is empty.

    `rebalanced` says whether the allocator formed the groups again; `overload` is the load of each
    zone's endpoints beyond an even share (0.25 is a quarter more).
    """

    mode: SubsetMode
    target: _Target
    rebalanced: bool
    overload: dict[str, float]
    reasons: tuple[Reason, ...]


_NODE_LABELS = {Level.ZONE: ZONE_LABEL, Level.REGION: REGION_LABEL}
_ANNOTATION_VALUES = {
    "Auto": Approach.PREFER,
    "auto": Approach.PREFER,
    "Prefer": Approach.PREFER,
    "PreferRegion": Approach.PREFER,
    "Require": Approach.REQUIRE,
    "RequireZone": Approach.REQUIRE,
    "RequireRegion": Approach.REQUIRE,
    "Disabled": Approach.RANDOM,
    "Random": Approach.RANDOM,
}


def parse_annotation(value: str | None) -> Approach:
    """Return the approach of the subsetting annotation; DEFAULT if absent or unknown."""
    return _ANNOTATION_VALUES.get(value or "", Approach.DEFAULT)


def parse_level(value: str | None) -> Level:
    """Return the level of the subsetting annotation; zones unless it names regions."""
    return Level.REGION if (value or "").endswith("Region") else Level.ZONE


def group_name(level: Level, place: str) -> str:
    """Return the group of a zone or a region; "" for none.

    The group of a zone has its name. The group of a region has a prefix that no zone name can have,
    so a zone and a region of the same name are two groups.
    """
    return f"{_REGION}{place}" if level is Level.REGION and place else place


def group_labels(group: str) -> dict[str, str]:
    """Return the label of the slices of a group; none for the undivided group."""
    if not group:
        return {}
    if group.startswith(_REGION):
        return {FOR_REGION_LABEL: group.removeprefix(_REGION)}
    return {FOR_ZONE_LABEL: group}


def group_of_labels(labels: Mapping[str, str]) -> str:
    """Return the group that a slice with these labels is for; "" for all."""
    zone = labels.get(FOR_ZONE_LABEL, "")
    return zone or group_name(Level.REGION, labels.get(FOR_REGION_LABEL, ""))


def read_limits(
    annotations: Mapping[str, str], options: SubsetOptions
) -> tuple[SubsetOptions, tuple[Reason, ...]]:
    """Return the options with the limits of a Service, and reasons for invalid limits.

    An invalid value leaves the option unchanged and gives a reason.
    """
    reasons: list[Reason] = []

    def read(key: str, code: ReasonCode, present: float, *, least: float) -> float:
        text = annotations.get(key)
        if text is None:
            return present
        number = parse_limit(text)
        is_whole = key != PADDING_ANNOTATION or number == math.floor(number)
        if number >= least and is_whole:
            return number
        valid = "a whole number of at least 0" if least == 0 else "a number above 0"
        reasons.append(
            Reason(
                code,
                f"metadata.annotations[{key}]: {text[:40]!r} is not {valid}, so {present:g} holds",
                fix=f"set {key} to {valid}",
            )
        )
        return present

    start = options.start_per_zone
    default_start = parse_limit(start) if isinstance(start, str) else float(start)
    replaced = read(
        STARTING_THRESHOLD_ANNOTATION,
        ReasonCode.START_THRESHOLD_INVALID,
        default_start if default_start > 0 else DEFAULT_START_PER_ZONE,
        least=MIN_LIMIT,
    )
    return msgspec.structs.replace(
        options,
        start_per_zone=replaced if STARTING_THRESHOLD_ANNOTATION in annotations else start,
        padding=int(read(PADDING_ANNOTATION, ReasonCode.PADDING_INVALID, options.padding, least=0)),
        overload_threshold=read(
            OVERLOAD_THRESHOLD_ANNOTATION,
            ReasonCode.OVERLOAD_THRESHOLD_INVALID,
            options.overload_threshold,
            least=MIN_LIMIT,
        ),
    ), tuple(reasons)


def parse_limit(text: str) -> float:
    """Return the number in a text; -1 if it is no decimal number or too large for a limit."""
    # NB: float() also takes digits of other scripts, "1_000" and blanks around it.
    if not _is_decimal(text):
        return -1.0
    number = float(text)
    return number if number <= MAX_LIMIT else -1.0


def overloads(shares: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """Return expected/actual - 1 by zone; infinite for an empty group with traffic.

    A zone without traffic and without endpoints is at 0.
    """
    total = sum(sizes.values())
    result = {}
    for zone in sorted({*shares, *sizes}):
        expected = total * shares.get(zone, 0.0)
        size = sizes.get(zone, 0)
        if size == 0:
            result[zone] = math.inf if expected > 0 else 0.0
        else:
            result[zone] = expected / size - 1.0
    return result


def decide_subsets(
    *,
    approach: Approach,
    shares: Mapping[str, float],
    located: Mapping[str, int],
    placed: Mapping[str, Mapping[str, int]],
    active: bool,
    options: SubsetOptions = SubsetOptions(),  # noqa: B008 - frozen
    level: Level = Level.ZONE,
) -> SubsetDecision:
    """Return the groups of the ready endpoints; none without endpoints or a second zone.

    `located` counts ready endpoints by zone, with "" for those without one. `placed` counts, by
    group and location, the endpoints that slices hold in a group now (deleted endpoints must not
    count); `active` says whether the Service is divided now. With `level` REGION, regions take the
    place of zones, each by the name of its group.
    """
    chosen = options.default if approach is Approach.DEFAULT else approach
    endpoints = {zone: count for zone, count in sorted(located.items()) if count > 0}
    traffic = {zone: shares[zone] for zone in sorted(shares) if zone and shares[zone] > 0}
    if chosen not in (Approach.PREFER, Approach.REQUIRE):
        return _random(Reason(ReasonCode.SUBSETS_NOT_ASKED, "subsetting is not asked for"))
    if not endpoints:
        return _random(Reason(ReasonCode.NO_READY_ENDPOINTS, "there is no ready endpoint"))
    groups = set(traffic)
    if chosen is Approach.REQUIRE:
        # Nodes without a share, such as those of the control plane, use the group of their zone.
        groups |= endpoints.keys() - {_UNKNOWN}
    if len(groups) < 2:
        return _random(_too_few_places(groups, level))
    if chosen is Approach.REQUIRE:
        return _require(sorted(groups), traffic, endpoints, placed, level)
    return _prefer(traffic, endpoints, placed, active=active, options=options, level=level)


def _require(
    groups: Sequence[str],
    traffic: Mapping[str, float],
    endpoints: Mapping[str, int],
    placed: Mapping[str, Mapping[str, int]],
    level: Level,
) -> SubsetDecision:
    without_zone = {_UNKNOWN: endpoints[_UNKNOWN]} if _UNKNOWN in endpoints else {}
    target = _keep(groups, without_zone, placed)
    _fill(target, groups, traffic=traffic, endpoints=endpoints)
    sizes = _group_sizes(target)
    text = f"every endpoint serves its own {level}: {_render_sizes(sizes)}"
    reasons = (Reason(ReasonCode.SUBSETS_BY_ZONE, text), *_stray_reasons(groups, endpoints, level))
    overload = overloads(traffic, sizes)
    return SubsetDecision(SubsetMode.SUBSETS, target, False, overload, reasons)


def _prefer(
    traffic: Mapping[str, float],
    endpoints: Mapping[str, int],
    placed: Mapping[str, Mapping[str, int]],
    *,
    active: bool,
    options: SubsetOptions,
    level: Level,
) -> SubsetDecision:
    groups = list(traffic)
    threshold, start_per_zone, reasons = _valid_limits(options)
    started, reason = _decide_start(
        sum(endpoints.values()),
        start=start_per_zone * len(groups),
        padding=max(0, options.padding),
        active=active,
    )
    reasons += reason
    if not started:
        return _random(*reasons)
    strays = _stray_reasons(groups, endpoints, level)
    if active:
        target = _keep(groups, endpoints, placed)
        _fill(target, groups, traffic=traffic, endpoints=endpoints)
        overload = overloads(traffic, _group_sizes(target))
        if max(overload.values()) < threshold:
            text = f"the groups stay as they are, every {level} is below {threshold:.0%} overload"
            reasons += (Reason(ReasonCode.SUBSETS_KEPT, text), *strays)
            return SubsetDecision(SubsetMode.SUBSETS, target, False, overload, tuple(reasons))
    target = {}
    _fill(target, groups, traffic=traffic, endpoints=endpoints)
    balanced = _balance(target, traffic, threshold)
    sizes = _group_sizes(balanced or {})
    overload = overloads(traffic, sizes)
    # NB: the allocator counts in doubles. It may take the last endpoint from a zone whose share is
    # lost in rounding beside 1, so the bound is checked here again.
    if balanced is None or max(overload.values()) >= threshold:
        text = (
            f"{sum(endpoints.values())} endpoints on {len(groups)} {level}s cannot keep every "
            f"{level} below {threshold:.0%} overload, so all {level}s use all endpoints"
        )
        return _random(*reasons, Reason(ReasonCode.DOWNGRADED, text, fix="run more pods"))
    crossing = sum(
        number for zone, row in balanced.items() for group, number in row.items() if zone != group
    )
    text = f"the groups are balanced: {_render_sizes(sizes)} ({crossing} from another {level})"
    reasons += (Reason(ReasonCode.SUBSETS_BALANCED, text), *strays)
    return SubsetDecision(SubsetMode.SUBSETS, balanced, True, overload, tuple(reasons))


def _decide_start(
    ready: int, *, start: float, padding: int, active: bool
) -> tuple[bool, list[Reason]]:
    begin, end = start + padding, start - padding
    # NB: without padding both limits are met at once; starting must take precedence, or the
    # Service would switch with every sync.
    if ready >= begin:
        return True, []
    if active and ready > end:
        text = f"subsetting stays on down to {end:g} ready endpoints; there are {ready}"
        return True, [Reason(ReasonCode.PADDING_HOLDS_SUBSETS, text)]
    text = f"subsetting begins at {begin:g} ready endpoints; there are {ready}"
    fix = f"run at least {math.ceil(begin)} ready pods"
    held = not active and ready >= start
    code = ReasonCode.PADDING_HOLDS_RANDOM if held else ReasonCode.BELOW_START
    return False, [Reason(code, text, fix=fix)]


def _valid_limits(options: SubsetOptions) -> tuple[float, float, list[Reason]]:
    threshold = options.overload_threshold
    reasons = []
    if not threshold > 0:
        text = f"overload threshold {threshold!r} is no positive number, the default is used"
        reasons.append(Reason(ReasonCode.OVERLOAD_THRESHOLD_INVALID, text))
        threshold = DEFAULT_OVERLOAD_THRESHOLD
    written = options.start_per_zone
    try:
        start = float(written)
    except ValueError:
        start = math.nan
    if not 0 < start < math.inf:
        text = f"starting threshold {written!r} is no positive number, the default is used"
        reasons.append(Reason(ReasonCode.START_THRESHOLD_INVALID, text))
        start = DEFAULT_START_PER_ZONE
    return threshold, start, reasons


def _keep(
    groups: Sequence[str],
    endpoints: Mapping[str, int],
    placed: Mapping[str, Mapping[str, int]],
) -> _Target:
    """Return the present placement; if it counts too many, the zone's own group comes first."""
    target: _Target = {}
    for location, count in endpoints.items():
        left = count
        row = target[location] = {}
        for group in sorted(groups, key=lambda name: (name != location, name)):
            stay = min(left, placed.get(group, {}).get(location, 0))
            if stay > 0:
                row[group] = stay
                left -= stay
    return target


def _fill(
    target: _Target,
    groups: Sequence[str],
    *,
    traffic: Mapping[str, float],
    endpoints: Mapping[str, int],
) -> None:
    """Add all endpoints without a group: to their own zone's, else to the one that lacks most."""
    for location, count in endpoints.items():
        row = target.setdefault(location, {})
        rest = count - sum(row.values())
        if location in groups and rest > 0:
            row[location] = row.get(location, 0) + rest
    sizes = _group_sizes(target)
    total = sum(endpoints.values())
    need = {group: total * traffic.get(group, 0.0) - sizes.get(group, 0) for group in groups}
    for location, count in endpoints.items():
        row = target[location]
        for _ in range(count - sum(row.values())):
            group = max(groups, key=need.__getitem__)
            need[group] -= 1.0
            row[group] = row.get(group, 0) + 1


def _balance(target: _Target, traffic: Mapping[str, float], threshold: float) -> _Target | None:
    """Return the groups as the allocator balances them; None if it cannot."""
    zones = list(traffic)
    sizes = _group_sizes(target)
    result = local(
        [traffic[zone] for zone in zones],
        [sizes.get(zone, 0) for zone in zones],
        threshold=threshold,
        start_per_zone=0,
    )
    if result.outcome is not LocalOutcome.ALLOCATED:
        return None
    balanced: _Target = {location: {} for location in target}
    for giver, numbers in zip(zones, result.matrix, strict=True):
        # Endpoints of other locations are given away first: they serve a foreign zone anyway.
        members = [
            location
            for location in sorted(target, key=lambda name: (name == giver, name))
            for _ in range(target[location].get(giver, 0))
        ]
        taken = 0
        for group, number in sorted(
            zip(zones, numbers, strict=True), key=lambda pair: (pair[0] == giver, pair[0])
        ):
            for location, count in Counter(members[taken : taken + number]).items():
                balanced[location][group] = balanced[location].get(group, 0) + count
            taken += number
    return balanced


def _group_sizes(target: _Target) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for row in target.values():
        sizes.update(row)
    return dict(sorted(sizes.items()))


def _stray_reasons(
    groups: Sequence[str], endpoints: Mapping[str, int], level: Level
) -> tuple[Reason, ...]:
    reasons = []
    for location, count in endpoints.items():
        if location not in groups:
            where = f"without a {level}"
            if location:
                where = f"in {level} {_display_name(location)}, which has no nodes"
            text = f"endpoints {where} ({count}) serve the {level}s that lack most"
            reasons.append(Reason(ReasonCode.PLACED_BY_NEED, text))
    return tuple(reasons)


def _render_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{_display_name(group)} {size}" for group, size in sizes.items())


def _display_name(group: str) -> str:
    return group.removeprefix(_REGION)


def _too_few_places(groups: set[str], level: Level) -> Reason:
    if not groups:
        return Reason(
            ReasonCode.NO_ZONES,
            f"no node has a {level}, so there is nothing to divide by",
            fix=f"kubectl label node <node> {_NODE_LABELS[level]}=<{level}>",
        )
    text = f"all nodes are in {level} {_display_name(min(groups))}, so there is nothing to divide"
    return Reason(ReasonCode.NODES_IN_ONE_ZONE, text)


def _random(*reasons: Reason) -> SubsetDecision:
    return SubsetDecision(SubsetMode.RANDOM, {}, False, {}, reasons)
