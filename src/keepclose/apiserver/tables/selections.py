"""Labels and label selectors as texts.

Labels are sorted as pairs, the requirements of a selector by key. A selector that could not
select anything because it breaks the rules of labels has no text; what stands in its place differs
between kinds.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.printing.cells import NONE
from keepclose.apiserver.tables.fields import list_at, object_at, pairs_at, text_at, texts_at
from keepclose.model.metadata_validation import label_value, qualified_name

_SETS: Final = {"In": "in", "NotIn": "notin"}
_PRESENCE: Final = {"Exists": "", "DoesNotExist": "!"}


def show_labels(labels: dict[str, str]) -> str:
    """Return labels as "a=b,c=d", or "<none>"."""
    return ",".join(sorted(f"{key}={value}" for key, value in labels.items())) or NONE


def show_selector(item: object, *path: str) -> str | None:
    """Return the selector at the path as a text, empty without requirements, None if it is bad."""
    selector = object_at(item, *path)
    requirements: list[tuple[str, str]] = []
    for key, value in pairs_at(selector, "matchLabels").items():
        if qualified_name(key) or label_value(value):
            return None
        requirements.append((key, f"{key}={value}"))
    for expression in list_at(selector, "matchExpressions"):
        text = _show_expression(expression)
        if text is None:
            return None
        requirements.append((text_at(expression, "key"), text))
    requirements.sort(key=lambda requirement: requirement[0])
    return ",".join(text for _, text in requirements)


def _show_expression(expression: object) -> str | None:
    key, operator = text_at(expression, "key"), text_at(expression, "operator")
    values = texts_at(expression, "values")
    if qualified_name(key) or any(label_value(value) for value in values):
        return None
    if operator in _PRESENCE and not values:
        return _PRESENCE[operator] + key
    if operator in _SETS and values:
        return f"{key} {_SETS[operator]} ({','.join(sorted(values))})"
    return None
