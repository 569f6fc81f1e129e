"""Rules for updates in steps: how many pods may be missing meanwhile, and how many too many.

Both are numbers or shares of the whole. Deployments and DaemonSets differ in little but words.
"""

from __future__ import annotations

import re
from typing import Final

from keepclose.model.field_errors import Cause, invalid, required
from keepclose.model.json_values import INT64_MAX, JsonObject, parse_natural
from keepclose.model.workload import NOT_NEGATIVE

_PERCENT_SENTENCE: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
_is_percent = re.compile("[0-9]+%").fullmatch


def rolling_causes(rolling: JsonObject, field: str, *, daemon: bool) -> list[Cause]:
    """Return what is wrong with how many pods may be missing or too many during an update."""
    causes: list[Cause] = []
    order = ("maxUnavailable", "maxSurge")
    for key in order:
        causes += _share_causes(rolling[key], f"{field}.{key}")
    if daemon:
        for key in order:
            causes += _whole_causes(rolling[key], f"{field}.{key}")
    unavailable, surge = (_share(rolling[key]) for key in order)
    if unavailable == 0 == surge:
        place = f"{field}.maxUnavailable"
        if daemon:
            causes.append(required(place, "cannot be 0 when maxSurge is 0"))
        else:
            detail = "may not be 0 when `maxSurge` is 0"
            causes.append(invalid(place, rolling["maxUnavailable"], detail))
    elif daemon and unavailable and surge:
        detail = "may not be set when maxUnavailable is non-zero"
        causes.append(invalid(f"{field}.maxSurge", rolling["maxSurge"], detail))
    if not daemon:
        causes += _whole_causes(rolling["maxUnavailable"], f"{field}.maxUnavailable")
    return causes


def _share_causes(value: int | str, field: str) -> list[Cause]:
    if isinstance(value, str):
        return [] if _is_percent(value) else [invalid(field, value, _PERCENT_SENTENCE)]
    return [invalid(field, value, NOT_NEGATIVE)] if value < 0 else []


def _whole_causes(value: int | str, field: str) -> list[Cause]:
    if isinstance(value, str) and _is_percent(value) and _percent(value) > 100:
        return [invalid(field, value, "must not be greater than 100%")]
    return []


def _share(value: int | str) -> int:
    if isinstance(value, str):
        return _percent(value) if _is_percent(value) else 0
    return value


def _percent(text: str) -> int:
    """Return the number before the sign; one of more than 64 bits counts as the largest."""
    number = parse_natural(text[:-1])
    return INT64_MAX if number is None else number
