"""The answer of `keepclose plan` as Markdown, for a report or a pull request: everything in order.

Every text of the cluster is made plain and cannot end a cell, a code block or the paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from keepclose.cli.plan.table import describe_left, describe_price
from keepclose.cli.render.flow_reports import show_amount
from keepclose.model.plain_text import make_plain

if TYPE_CHECKING:
    from keepclose.advise.planning.comparison import ScenarioComparison
    from keepclose.advise.planning.service_plans import ClusterPlan, PlannedService

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~])")


def write_plan_markdown(plan: ClusterPlan, scenario: ScenarioComparison | None = None) -> str:
    """Return the whole document."""
    return "\n".join([*_lines(plan, scenario), ""])


def _lines(plan: ClusterPlan, scenario: ScenarioComparison | None) -> Iterator[str]:
    totals = plan.totals
    yield "# Plan"
    yield ""
    yield f"- Services: {totals.services:,}, in {len(plan.zones):,} zones on {plan.nodes:,} nodes"
    yield f"- Clients: {_plain(plan.clients)}"
    possible = f", {_percent(totals.possible_in_zone)} possible with {totals.advised:,} changes"
    yield f"- In zone: {_percent(totals.in_zone)} now{possible if totals.advised else ''}"
    if totals.cost is not None and totals.possible_cost is not None:
        yield (
            f"- Cost: {show_amount(totals.cost)} {_plain(totals.currency)} a month now, "
            f"{show_amount(totals.possible_cost)} possible"
        )
    yield from (f"- Note: {_plain(note)}" for note in plan.notes)
    if scenario is not None:
        yield from _scenario(scenario)
    advised = [each for each in plan.services if each.recommended]
    if advised:
        yield from ("", "## Changes", "")
        yield from _table(
            ["Service", "now", "in zone", "busiest", "advice", "in zone", "busiest"],
            [
                [
                    _plain(each.key),
                    _plain(each.governs),
                    _percent(each.now.in_zone),
                    _times(each.now.busiest),
                    each.recommended,
                    _percent(each.then.in_zone),
                    _times(each.then.busiest),
                ]
                for each in advised
            ],
        )
        yield from ("", "```sh")
        yield from (make_plain(each.command) for each in advised)
        yield "```"
    left = describe_left(plan.services)
    if left:
        yield from ("", "## Left as they are", "")
        yield from (
            f"- {group.number:,}: {_plain(group.reason)}, such as {_plain(group.first)}"
            for group in left
        )
    for each in plan.services:
        if each.recommended or len(plan.services) == 1:
            yield from _service(each)


def _service(planned: PlannedService) -> Iterator[str]:
    yield from ("", f"## {_plain(planned.key)}", "")
    yield from _table(
        ["mechanism", "in zone", "busiest", "over", "failed", "slices", "writes", "hints"],
        [
            [
                f"**{each.mechanism}**"
                if each.mechanism == planned.recommended
                else each.mechanism,
                _percent(each.in_zone),
                _times(each.busiest),
                f"{each.overloaded:,}",
                _percent(each.failed),
                f"{each.slices:,}",
                f"{each.writes:,}",
                f"{each.hints_changed:,}",
            ]
            for each in planned.mechanisms
        ],
    )
    yield ""
    for each in planned.mechanisms:
        yield from (f"- {each.mechanism}: needs `{need}`" for need in each.needs)
        if each.note:
            yield f"- {each.mechanism}: {_plain(each.note)}"
    if planned.recommended:
        yield f"- recommended: {planned.recommended}. It {_plain(planned.reason)}."
        yield f"- price: {describe_price(planned.then, planned.now)}"
    else:
        yield f"- leave it: {_plain(planned.reason)}"
    if planned.also:
        yield f"- more would be possible. {_plain(planned.also)}"


def _scenario(scenario: ScenarioComparison) -> Iterator[str]:
    yield from ("", "## What if", "")
    yield from (f"- {_plain(change)}" for change in scenario.changes)
    yield ""
    rows = [("all Services", scenario.totals), *((row.name, row) for row in scenario.services)]
    yield from _table(
        ["Service", "in zone", "busiest", "failed", "ready"],
        [
            [
                _plain(name),
                f"{_percent(row.in_zone[0])} → {_percent(row.in_zone[1])}",
                f"{_times(row.busiest[0])} → {_times(row.busiest[1])}",
                f"{_percent(row.failed[0])} → {_percent(row.failed[1])}",
                f"{row.ready[0]:,} → {row.ready[1]:,}",
            ]
            for name, row in rows
        ],
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", make_plain(text))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"
