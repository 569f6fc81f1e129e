"""Reads scenarios strictly: an unknown field, a wrong type or a value out of range is a problem.

Each problem names the field and a fix. Limits keep every scenario finite, because scenarios may
come from strangers. Whether a Service, zone, node or Deployment exists is for `replay_start` to
say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, Final, get_args, get_type_hints

import msgspec

from keepclose.advise.replaying.scenario import (
    MAX_AUTOSCALE_STEPS,
    MAX_REPLAY_EVENTS,
    MAX_REPLAY_NODES,
    MAX_REPLAY_REPLICAS,
    MAX_REPLAY_S,
    AddNodesEvent,
    AutoscaleEvent,
    BudgetNumbers,
    DrainEvent,
    DropZoneLabelsEvent,
    ReplayAction,
    ReplayEvent,
    ReplayScenario,
    RolloutEvent,
    ScaleEvent,
    Seconds,
    ZoneLossEvent,
)
from keepclose.model.decoding import Rejected, convert_as, display_value

_MOST_CONNECTIONS: Final = 1e9
_MOST_NAMED: Final = 8
_HOURS: Final = f"{MAX_REPLAY_S / 3600:g}h"
_PERCENTAGES: Final = ("max_surge", "max_unavailable", "min_available")
_percentage = re.compile(r"[0-9]{1,6}%").fullmatch

ParseDuration = Callable[[str], float | None]


class ScenarioProblem(msgspec.Struct, frozen=True):
    """What is wrong with one field of a scenario, and how to fix it."""

    field: str
    message: str
    fix: str = ""
    value: Any = None


def read_scenario(
    raw: object, *, parse_duration: ParseDuration
) -> ReplayScenario | list[ScenarioProblem]:
    """Return the scenario in plain values, or everything that is wrong with it."""
    if not isinstance(raw, dict):
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(ReplayScenario))
        return [ScenarioProblem("", "expected a map", f"a scenario has the fields {known}")]
    unknown = list(_unknown_fields(raw, ReplayScenario, ""))
    if unknown:
        return unknown

    def decode_duration(kind: type, value: object) -> object:
        if kind is not Seconds:
            raise NotImplementedError(kind)
        return _read_seconds(value, parse_duration)

    scenario = convert_as(ReplayScenario, raw, dec_hook=decode_duration)
    if isinstance(scenario, Rejected):
        cause = scenario.cause
        return [ScenarioProblem(cause.field, cause.body, value=cause.value)]
    return list(_check_values(scenario)) or scenario


def suggest_name(name: str, known: list[str], *, what: str) -> str:
    """Return the fix for an unknown name: the nearest known ones, else what there is."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, n=2, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(by_lower[each] for each in near)}?"
    if not known:
        return f"there are no {what}"
    more = f" and {len(known) - _MOST_NAMED:,} more" if len(known) > _MOST_NAMED else ""
    return f"{what}: {', '.join(known[:_MOST_NAMED])}{more}"


def _read_seconds(value: object, parse_duration: ParseDuration) -> Seconds:
    seconds: float | None = None
    if isinstance(value, str):
        seconds = parse_duration(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise ValueError("expected a duration such as 90s or 1m30s")
    if seconds > MAX_REPLAY_S:
        raise ValueError(f"no time may be longer than {_HOURS}")
    return Seconds(seconds)


def _unknown_fields(
    raw: dict[str, Any], struct: type[msgspec.Struct], path: str
) -> Iterator[ScenarioProblem]:
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
    hints = get_type_hints(struct)
    for key, value in raw.items():
        place = f"{path}.{key}" if path else str(key)
        if key not in fields:
            fix = suggest_name(str(key), list(fields), what="its fields")
            yield ScenarioProblem(place, "unknown field", fix, display_value(value))
            continue
        inner = next(_structs_in(hints[fields[key]]), None)
        if inner is None:
            continue
        if isinstance(value, dict):
            yield from _unknown_fields(value, inner, place)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _unknown_fields(item, inner, f"{place}[{index}]")


def _structs_in(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in get_args(hint):
        yield from _structs_in(inner)


def _check_values(scenario: ReplayScenario) -> Iterator[ScenarioProblem]:
    if not scenario.events:
        yield ScenarioProblem("events", "there are none", "list what happens, such as a rollout")
    if len(scenario.events) > MAX_REPLAY_EVENTS:
        yield ScenarioProblem("events", f"more than {MAX_REPLAY_EVENTS}", "leave some out")
    rate = scenario.clients.connections_per_second
    if not 0 < rate <= _MOST_CONNECTIONS:
        yield ScenarioProblem(
            "clients.connectionsPerSecond", f"{rate:g} is no rate", "write a number above 0"
        )
    parts = scenario.clients.zones
    for zone, part in parts.items():
        if not 0 <= part <= _MOST_CONNECTIONS:
            yield ScenarioProblem(
                f"clients.zones[{zone}]", f"{part:g} is no part", "write a number of at least 0"
            )
    if parts and not any(parts.values()):
        yield ScenarioProblem(
            "clients.zones", "no zone sends anything", "give one a number above 0"
        )
    budget = scenario.disruption_budget
    if budget is not None:
        yield from _check_numbers("disruptionBudget", budget)
        if (budget.min_available is None) is (budget.max_unavailable is None):
            yield ScenarioProblem(
                "disruptionBudget",
                "needs one of minAvailable and maxUnavailable",
                "write one of them, as in a PodDisruptionBudget",
            )
    if scenario.duration is not None and not scenario.duration > 0:
        yield ScenarioProblem("duration", "must be longer than 0", "write a time such as 5m")
    for index, event in enumerate(scenario.events):
        yield from _check_event(event, f"events[{index}]", scenario.duration)


def _check_event(
    event: ReplayEvent, path: str, duration: Seconds | None
) -> Iterator[ScenarioProblem]:
    actions = event.actions
    if len(actions) != 1:
        known = [field.encode_name for field in msgspec.structs.fields(ReplayEvent)[1:]]
        found = " and ".join(actions) or "none"
        yield ScenarioProblem(
            path, f"needs one thing that happens, has {found}", f"one of {', '.join(known)}"
        )
        return
    if duration is not None and event.at >= duration > 0:
        yield ScenarioProblem(
            f"{path}.at",
            f"{event.at:g} s is not before the end, {duration:g} s",
            "make the duration longer",
        )
    for name, action in actions.items():
        yield from _check_action(action, f"{path}.{name}", at=event.at)


def _check_action(action: ReplayAction, path: str, *, at: float) -> Iterator[ScenarioProblem]:
    match action:
        case RolloutEvent():
            yield from _check_numbers(path, action)
            least = action.min_ready_seconds
            if least is not None and not 0 <= least <= MAX_REPLAY_S:
                message = f"{least} is not between 0 and {MAX_REPLAY_S:.0f}"
                yield ScenarioProblem(
                    f"{path}.minReadySeconds", message, "write a number of seconds"
                )
        case ScaleEvent(replicas=replicas):
            yield from _check_replicas(f"{path}.replicas", replicas)
        case AutoscaleEvent():
            yield from _check_autoscale(action, path, at=at)
        case DrainEvent() | DropZoneLabelsEvent():
            if bool(action.nodes) is bool(action.zone):
                yield ScenarioProblem(path, "needs either nodes or a zone", "name one of the two")
            if len(action.nodes) > MAX_REPLAY_NODES:
                yield ScenarioProblem(
                    f"{path}.nodes", f"more than {MAX_REPLAY_NODES}", "name the zone instead"
                )
        case AddNodesEvent(count=count):
            if not 1 <= count <= MAX_REPLAY_NODES:
                message = f"{count} is not between 1 and {MAX_REPLAY_NODES}"
                yield ScenarioProblem(f"{path}.count", message, "write a number of nodes")
        case ZoneLossEvent():
            pass


def _check_autoscale(action: AutoscaleEvent, path: str, *, at: float) -> Iterator[ScenarioProblem]:
    numbers = action.replicas
    if not 1 <= len(numbers) <= MAX_AUTOSCALE_STEPS:
        message = f"has {len(numbers):,} numbers, not 1 to {MAX_AUTOSCALE_STEPS}"
        yield ScenarioProblem(f"{path}.replicas", message, "write numbers such as [3, 6, 9]")
    for place, replicas in enumerate(numbers):
        yield from _check_replicas(f"{path}.replicas[{place}]", replicas)
    if action.every <= 0 or at + action.every * len(numbers) > MAX_REPLAY_S:
        yield ScenarioProblem(
            f"{path}.every",
            f"{action.every:g} s does not fit, the numbers must end within {_HOURS}",
            "write a time above 0, such as 60s",
        )


def _check_replicas(path: str, replicas: int) -> Iterator[ScenarioProblem]:
    if not 0 <= replicas <= MAX_REPLAY_REPLICAS:
        message = f"{replicas} is not between 0 and {MAX_REPLAY_REPLICAS:,}"
        yield ScenarioProblem(path, message, "write a number of pods")


def _check_numbers(path: str, numbers: RolloutEvent | BudgetNumbers) -> Iterator[ScenarioProblem]:
    for field in msgspec.structs.fields(numbers):
        value = getattr(numbers, field.name)
        if field.name not in _PERCENTAGES or value is None:
            continue
        is_valid = bool(_percentage(value)) if isinstance(value, str) else 0 <= value <= 10**6
        if not is_valid:
            yield ScenarioProblem(
                f"{path}.{field.encode_name}",
                "expected a number of pods or a percentage",
                "write a number such as 1, or a percentage such as 25%",
                value,
            )
