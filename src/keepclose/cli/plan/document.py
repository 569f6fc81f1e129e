"""The answer of `keepclose plan` as plain data, for JSON, YAML and every other rendering.

The document is complete: tables, Markdown and reports show parts of it. Shares are parts of 1,
money is of a month, and fields have the names of the structs in `advise.planning`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from keepclose.advise.planning.comparison import ScenarioComparison
    from keepclose.advise.planning.service_plans import ClusterPlan, PlannedService

DIGITS: Final = 6
"""After the point: sums of shares differ in the last bits from one machine to another."""


def plan_document(plan: ClusterPlan, scenario: ScenarioComparison | None = None) -> dict[str, Any]:
    """Return the whole answer; `scenario` is null without a question "what if"."""
    document: dict[str, Any] = _rounded(msgspec.to_builtins(plan))
    document["services"] = [
        {**data, **_derived(planned)}
        for data, planned in zip(document["services"], plan.services, strict=True)
    ]
    document["scenario"] = None if scenario is None else _rounded(msgspec.to_builtins(scenario))
    return document


def _derived(planned: PlannedService) -> dict[str, Any]:
    return {"gain": round(planned.gain, DIGITS), "saved": round(planned.saved, DIGITS)}


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, DIGITS)
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
        case _:
            return value
