"""Selectors of workloads: what is wrong with one, what it matches, and how it reads as text.

These are the selectors with matchLabels and matchExpressions, not those of a query string.
"""

from __future__ import annotations

from typing import Final

from keepclose.model.field_errors import Cause, forbidden, invalid, required
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import label_value, qualified_name, validate_labels

Labels = dict[str, str]

_WITH_VALUES: Final = ("In", "NotIn")
_WITHOUT_VALUES: Final = ("Exists", "DoesNotExist")


def selector_causes(selector: JsonObject, field: str) -> list[Cause]:
    """Return what is wrong with a selector."""
    causes = validate_labels(selector.get("matchLabels") or {}, f"{field}.matchLabels")
    for place, expression in enumerate(selector.get("matchExpressions") or ()):
        causes += _expression_causes(expression, f"{field}.matchExpressions[{place}]")
    return causes


def is_empty(selector: JsonObject) -> bool:
    """Return whether a selector asks for nothing at all."""
    return not selector.get("matchLabels") and not selector.get("matchExpressions")


def matches(selector: JsonObject | None, labels: Labels) -> bool:
    """Return whether the labels are what a valid selector asks for; none matches nothing."""
    if selector is None:
        return False
    wanted: Labels = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def selector_text(selector: JsonObject | None) -> str:
    """Return a selector as a query string would have it."""
    if selector is None:
        return ""
    parts = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    parts += [
        (expression["key"], _expression_text(expression))
        for expression in selector.get("matchExpressions") or ()
    ]
    return ",".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def _expression_causes(expression: JsonObject, field: str) -> list[Cause]:
    operator, values = expression.get("operator", ""), expression.get("values") or []
    key = expression.get("key", "")
    causes: list[Cause] = []
    if operator in _WITH_VALUES:
        if not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            causes.append(required(f"{field}.values", detail))
    elif operator in _WITHOUT_VALUES:
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(forbidden(f"{field}.values", detail))
    else:
        causes.append(invalid(f"{field}.operator", operator, "not a valid selector operator"))
    causes += [invalid(f"{field}.key", key, text) for text in qualified_name(key)]
    for place, value in enumerate(values):
        causes += [invalid(f"{field}.values[{place}]", value, text) for text in label_value(value)]
    return causes


def _holds(expression: JsonObject, labels: Labels) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _expression_text(expression: JsonObject) -> str:
    key, values = expression["key"], ",".join(sorted(expression.get("values") or []))
    match expression["operator"]:
        case "In":
            return f"{key} in ({values})"
        case "NotIn":
            return f"{key} notin ({values})"
        case "Exists":
            return str(key)
        case _:
            return f"!{key}"
