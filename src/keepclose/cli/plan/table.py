"""The answer of `keepclose plan` on a terminal: totals, the Services that gain most, commands.

The summary fits one screen of 80 columns. One Service is shown in full: a row for each mechanism,
then the advice with its reason and price, and the command alone on its line, to be copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Final, NamedTuple

from keepclose.cli.render.flow_reports import show_amount, show_bytes
from keepclose.cli.render.output import count_things, show_share, show_times
from keepclose.cli.render.screen import Line, Screen, cell_len
from keepclose.model.plain_text import make_plain

if TYPE_CHECKING:
    from keepclose.advise.planning.comparison import ScenarioComparison, ScenarioRow
    from keepclose.advise.planning.mechanism_trials import MechanismFigures
    from keepclose.advise.planning.service_plans import ClusterPlan, PlannedService, PlanTotals

_FEWEST_SERVICES: Final = 5
_MOST_SERVICES: Final = 20
"""How many Services a summary shows at most, as many as fit the screen."""
_OTHER_LINES: Final = 18
"""Lines of a summary that are not Services."""
_SHOWN_COMMANDS: Final = 3
"""How many commands are shown if there are no more; else only the first."""
_WIDTH: Final = 80
_WIDEST_NAME: Final = 40
_LEAST_NAME: Final = 12
_LEAST_REASONS: Final = 3
_NUMBERS: Final = re.compile(r"[0-9][0-9.,]*")
_NOTHING: Final = "·"
_NONE: Final = "None"
"""The label of a Service that asks for nothing."""


def print_plan(
    console: Screen,
    plan: ClusterPlan,
    scenario: ScenarioComparison | None = None,
    *,
    top: int | None = None,
) -> None:
    """Print totals, the Services to change, those to leave, and the first commands.

    It fits the screen, unless `top` asks for more Services.
    """
    most = top or max(_FEWEST_SERVICES, min(_MOST_SERVICES, console.height - _OTHER_LINES))
    for line in _totals(plan):
        console.print(line, soft_wrap=True)
    if scenario is not None:
        _print_scenario(console, scenario, most)
    advised = [each for each in plan.services if each.recommended]
    if advised:
        console.print()
        _print_rows(console, _advised_rows(advised[:most], has_costs=_has_costs(plan)))
    if len(advised) > most:
        _print_dim(console, f"and {len(advised) - most:,} more, with --top or -o json")
    _print_left(console, plan.services, most if top else _LEAST_REASONS - (len(advised) > most))
    if advised:
        console.print()
        number = len(advised) if len(advised) <= _SHOWN_COMMANDS else 1
        for each in advised[:number]:
            # Never wrapped: a command that is broken into lines cannot be copied.
            console.print(Line(each.command, style="green"), soft_wrap=True)
        if len(advised) > number:
            _print_dim(console, f"and {len(advised) - number:,} more: -o markdown has all")


def print_service(
    console: Screen,
    plan: ClusterPlan,
    planned: PlannedService,
    scenario: ScenarioComparison | None = None,
) -> None:
    """Print everything about one Service."""
    head = Line(planned.key, style="bold")
    head.append("  ")
    head.append(_label(planned.governs), style="cyan")
    head.append(
        f"  {count_things(planned.ready, 'ready endpoint')}, "
        f"{count_things(len(plan.zones), 'zone')}",
        style="dim",
    )
    console.print(head, soft_wrap=True)
    _print_dim(console, f"clients: {plan.clients}")
    if scenario is not None:
        _print_scenario(console, scenario, _MOST_SERVICES)
    console.print()
    _print_rows(console, _mechanism_rows(planned))
    for figures in planned.mechanisms:
        for text in (figures.note, *(f"needs {need}" for need in figures.needs)):
            if text:
                _print_wrapped(console, f"{figures.mechanism}: {text}", style="dim")
    console.print()
    if planned.recommended:
        _print_wrapped(console, f"recommended: {planned.recommended}. It {planned.reason}.")
        _print_wrapped(console, f"price: {describe_price(planned.then, planned.now)}")
        if planned.saved and plan.totals.currency:
            saved = f"{show_amount(planned.saved)} {plan.totals.currency} a month"
            _print_wrapped(console, f"saves {saved}")
        console.print(Line(planned.command, style="green"), soft_wrap=True)
        console.print(Line(f"then  {planned.effect}", style="dim"), soft_wrap=True)
    else:
        _print_wrapped(console, f"leave it: {planned.reason}")
    if planned.also:
        _print_wrapped(console, f"more would be possible. {planned.also}", style="dim")


def describe_price(then: MechanismFigures, now: MechanismFigures) -> str:
    """Return what it takes to switch: writes, changed hints, and more or fewer slices."""
    words = [
        count_things(then.writes, "slice write"),
        f"{count_things(then.hints_changed, 'endpoint')} with other hints",
    ]
    if then.slices != now.slices:
        words.append(f"{now.slices:,} -> {then.slices:,} slices")
    if then.busiest > now.busiest * 1.005:
        words.append(f"the busiest endpoint gets {show_times(then.busiest)}")
    return ", ".join(words)


def describe_unpriced(totals: PlanTotals) -> str:
    """Return how many Services are in no sum of costs; "" if there are none."""
    return f"{count_things(totals.unpriced, 'Service')} without a price" if totals.unpriced else ""


class LeftServices(NamedTuple):
    """Services that are left as they are for one reason, which may differ in its numbers."""

    reason: str
    """That of the first one."""
    first: str
    number: int


def describe_left(services: Iterable[PlannedService]) -> list[LeftServices]:
    """Return why Services are left as they are, the most frequent reason first."""
    groups: dict[str, LeftServices] = {}
    for each in services:
        if not each.recommended:
            kind = _NUMBERS.sub("#", each.reason)
            known = groups.get(kind, LeftServices(each.reason, each.key, 0))
            groups[kind] = known._replace(number=known.number + 1)
    return sorted(groups.values(), key=lambda group: (-group.number, group.reason))


def _totals(plan: ClusterPlan) -> Iterable[Line]:
    totals = plan.totals
    head = Line(
        f"{count_things(totals.services, 'Service')}, {count_things(len(plan.zones), 'zone')}, "
        f"{count_things(plan.nodes, 'node')}",
        style="bold",
    )
    yield head
    for number, part in enumerate(wrap(make_plain(f"{plan.clients}; {totals.basis}"), _WIDTH - 10)):
        yield Line.assemble(("clients   " if number == 0 else " " * 10, "dim"), part)
    line = Line.assemble(("in zone   ", "dim"), f"{show_share(totals.in_zone)} now")
    if totals.advised:
        line.append(f", {show_share(totals.possible_in_zone)} possible", style="bold")
        line.append(f" with {count_things(totals.advised, 'change')}")
    yield line
    if totals.cost is not None and totals.possible_cost is not None:
        saved = totals.cost - totals.possible_cost
        line = Line.assemble(
            ("cost      ", "dim"), f"{show_amount(totals.cost)} {totals.currency} a month now"
        )
        if totals.advised:
            line.append(f", {show_amount(totals.possible_cost)} possible", style="bold")
            sign = "-" if saved < 0 else ""
            line.append(f": {sign}{show_amount(abs(saved))} saved")
        if totals.unpriced:
            line.append(f"  ({describe_unpriced(totals)})", style="dim")
        yield line
    elif totals.bytes_a_month:
        yield Line.assemble(
            ("traffic   ", "dim"), f"{show_bytes(totals.bytes_a_month)} a month; prices: --prices"
        )
    for note in plan.notes:
        yield Line.assemble(("note      ", "dim"), note)
    able = sum(bool(each.also) for each in plan.services)
    if able:
        yield Line(
            f"{'more':<10}is possible for {count_things(able, 'Service')} with other gates: "
            "--service",
            style="dim",
        )


def _advised_rows(services: Sequence[PlannedService], *, has_costs: bool) -> list[list[str]]:
    titles = ["SERVICE", "NOW", "IN ZONE", "BUSIEST", "ADVICE", "IN ZONE", "BUSIEST"]
    rows = [[*titles, "SAVES"] if has_costs else titles]
    for each in services:
        now, then = each.now, each.then
        row = [
            _cut(each.key),
            _label(each.governs),
            show_share(now.in_zone),
            show_times(now.busiest),
            each.recommended,
            show_share(then.in_zone),
            show_times(then.busiest),
        ]
        rows.append([*row, show_amount(each.saved)] if has_costs else row)
    return rows


def _mechanism_rows(planned: PlannedService) -> list[list[str]]:
    rows = [["", "in zone", "busiest", "over", "without", "slices", "writes", "hints"]]
    for figures in planned.mechanisms:
        is_now = figures is planned.mechanisms[0]
        mark = "* " if figures.mechanism == planned.recommended else "  "
        name = f"{mark}{figures.mechanism}" + (f" ({_label(planned.governs)})" if is_now else "")
        rows.append(
            [
                name,
                show_share(figures.in_zone),
                show_times(figures.busiest),
                f"{figures.overloaded:,}" if figures.overloaded else _NOTHING,
                _without(figures),
                f"{figures.slices:,}",
                _NOTHING if is_now else f"{figures.writes:,}",
                _NOTHING if is_now else f"{figures.hints_changed:,}",
            ]
        )
    if any(figures.failed for figures in planned.mechanisms):
        rows[0].insert(3, "failed")
        for row, figures in zip(rows[1:], planned.mechanisms, strict=True):
            row.insert(3, show_share(figures.failed))
    return rows


def _without(figures: MechanismFigures) -> str:
    if figures.mechanism == "PreferSameNode" and figures.nodes_without:
        return count_things(figures.nodes_without, "node")
    zones = figures.zones_without
    if not zones:
        return _NOTHING
    return _cut(zones[0], 14) if len(zones) == 1 else count_things(len(zones), "zone")


def _print_scenario(console: Screen, scenario: ScenarioComparison, most: int) -> None:
    console.print()
    _print_wrapped(console, f"what if: {'; '.join(scenario.changes)}", style="bold")
    rows = [["", "IN ZONE", "", "BUSIEST", "", "FAILED", "", "READY", ""]]
    rows.append(_scenario_row("all Services", scenario.totals))
    rows += [_scenario_row(_cut(row.name), row) for row in scenario.services[:most]]
    _print_rows(console, rows)
    if len(scenario.services) > most:
        _print_dim(console, f"and {len(scenario.services) - most:,} more, with --top or -o json")
    if not scenario.services:
        _print_dim(console, "no Service has other figures")
    before, after = scenario.totals.cost
    if before is not None and after is not None:
        console.print(
            Line.assemble(
                ("cost      ", "dim"), f"{show_amount(before)} -> {show_amount(after)} a month"
            )
        )


def _scenario_row(name: str, row: ScenarioRow) -> list[str]:
    cells = [name]
    for pair, show in (
        (row.in_zone, show_share),
        (row.busiest, show_times),
        (row.failed, show_share),
        (row.ready, lambda number: f"{number:,}"),
    ):
        before, after = show(pair[0]), show(pair[1])
        cells += [before, f"-> {after}" if before != after else ""]
    return cells


def _print_left(console: Screen, services: Sequence[PlannedService], most: int) -> None:
    left = describe_left(services)
    if not left:
        return
    console.print()
    number = sum(group.number for group in left)
    they = "it is" if number == 1 else "they are"
    console.print(Line(f"leave {count_things(number, 'Service')} as {they}", style="bold"))
    shown = left[:most]
    for group in shown:
        name = group.first if group.number == 1 else f"{group.first} and others"
        reason = group.reason.partition("; ")[0]
        _print_wrapped(console, f"{group.number:,} {reason} ({name})", indent="  ")
    rest = number - sum(group.number for group in shown)
    if rest:
        _print_wrapped(console, f"  and {rest:,} for other reasons, with -o json", style="dim")


def _print_rows(console: Screen, rows: Sequence[Sequence[str]]) -> None:
    """Print rows under titles: the first column and names to the left, numbers to the right."""
    plain = [[make_plain(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[column]) for row in plain) for column in range(len(plain[0]))]
    overflow = sum(widths) + 2 * (len(widths) - 1) - _WIDTH
    if overflow > 0 and widths[0] - overflow >= _LEAST_NAME:
        for row in plain:
            row[0] = _cut(row[0], widths[0] - overflow)
        widths[0] -= overflow
    names = [
        column == 0 or any(row[column] and not _is_number(row[column]) for row in plain[1:])
        for column in range(len(plain[0]))
    ]
    for number, row in enumerate(plain):
        line = Line()
        for column, cell in enumerate(row):
            blank = " " * (widths[column] - cell_len(cell))
            style = "dim" if number == 0 or cell == _NOTHING else ""
            line.append(cell + blank if names[column] else blank + cell, style=style)
            line.append("  " if widths[column] else "")
        line.rstrip()
        console.print(line, soft_wrap=True)


def _is_number(cell: str) -> bool:
    return cell[0].isdigit() or cell[0] in "-<" or cell == _NOTHING


def _print_wrapped(console: Screen, text: str, *, style: str = "", indent: str = "") -> None:
    width = min(console.width, _WIDTH)
    for part in wrap(
        make_plain(text),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    ):
        console.print(Line(part, style=style), soft_wrap=True)


def _print_dim(console: Screen, text: str) -> None:
    _print_wrapped(console, text, style="dim")


def _has_costs(plan: ClusterPlan) -> bool:
    return plan.totals.cost is not None


def _label(governs: str) -> str:
    return "none" if governs == _NONE else governs.removeprefix("keepclose.dev/")


def _cut(name: str, most: int = _WIDEST_NAME) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
