"""The answer of `keepclose plan` as Markdown, for a report or a pull request: everything in order.

Every text of the cluster is made plain and cannot end a cell, a code block or the paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from keepclose.cli.plan.table import describe_left, describe_price, describe_unpriced
from keepclose.cli.render.flow_reports import show_amount
from keepclose.cli.render.output import count_things, show_share, show_times
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
    places = f"{count_things(len(plan.zones), 'zone')} on {count_things(plan.nodes, 'node')}"
    yield f"- Services: {totals.services:,}, in {places}"
    yield f"- Clients: {_plain(plan.clients)}"
    possible = f", {show_share(totals.possible_in_zone)} possible with "
    possible += count_things(totals.advised, "change")
    yield f"- In zone: {show_share(totals.in_zone)} now{possible if totals.advised else ''}"
    if totals.cost is not None and totals.possible_cost is not None:
        yield (
            f"- Cost: {show_amount(totals.cost)} {_plain(totals.currency)} a month now, "
            f"{show_amount(totals.possible_cost)} possible"
            + (f"; {unpriced}" if (unpriced := describe_unpriced(totals)) else "")
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
                    show_share(each.now.in_zone),
                    show_times(each.now.busiest),
                    each.recommended,
                    show_share(each.then.in_zone),
                    show_times(each.then.busiest),
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
                show_share(each.in_zone),
                show_times(each.busiest),
                f"{each.overloaded:,}",
                show_share(each.failed),
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
                f"{show_share(row.in_zone[0])} → {show_share(row.in_zone[1])}",
                f"{show_times(row.busiest[0])} → {show_times(row.busiest[1])}",
                f"{show_share(row.failed[0])} → {show_share(row.failed[1])}",
                f"{row.ready[0]:,} → {row.ready[1]:,}",
            ]
            for name, row in rows
        ],
    )
    before, after = scenario.totals.cost
    if before is not None and after is not None:
        yield from ("", f"Cost: {show_amount(before)} → {show_amount(after)} a month")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", make_plain(text))
