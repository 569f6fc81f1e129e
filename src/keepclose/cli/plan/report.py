"""The answer of `keepclose plan` as one HTML page: totals, traffic by zone, Services, reasons.

The page is one file without scripts that loads nothing. Every text of the cluster is made plain
and escaped. Green is traffic in its zone and red is traffic to another one, in every picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from keepclose import __version__
from keepclose.cli.plan.table import describe_price, describe_unpriced
from keepclose.cli.render.flow_reports import show_amount
from keepclose.cli.render.output import count_things, show_share, show_times
from keepclose.cli.render.page import html_page, html_section, html_table
from keepclose.cli.render.zone_flows import ZoneFlow, draw_zone_flows
from keepclose.model.plain_text import make_plain

if TYPE_CHECKING:
    from keepclose.advise.planning.comparison import ScenarioComparison
    from keepclose.advise.planning.service_plans import ClusterPlan, PlannedService

RANKED: Final = 200
"""The most Services with a row and a section of their own."""
NAMED_LEFT: Final = 20
"""How many Services are named for each reason to leave them."""
_STYLE: Final = (
    ".cards{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}"
    ".card{flex:1 1 9rem;border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem}"
    ".card b{display:block;font-size:1.5rem;font-weight:600}"
    ".scroll{overflow-x:auto}.scroll td{white-space:nowrap}.scroll td.text{white-space:normal}"
    "pre{background:var(--line);padding:.5rem .7rem;border-radius:4px}pre code{background:none;"
    "padding:0;overflow-wrap:normal}figure svg text{font-size:19px}"
    ".pair{display:flex;flex-wrap:wrap;gap:1rem}"
    ".pair figure{flex:1 1 20rem;margin:0}figcaption{color:var(--dim)}"
    "svg .band{fill-opacity:.55}svg .block{fill:var(--dim)}"
    ".bar{display:inline-block;position:relative;width:7rem;height:.8rem;vertical-align:middle;"
    "background:var(--line);border-radius:2px}"
    ".bar i{position:absolute;left:0;top:0;bottom:0;border-radius:2px}"
    ".bar u{position:absolute;top:-2px;bottom:-2px;border-left:2px solid var(--ink)}"
    ".in{background:#2f9e6e}.fits{background:#4477cc}.over{background:#cc5544}"
    "details{border-bottom:1px solid var(--line);padding:.3rem 0}summary{cursor:pointer}"
    "@media print{body{max-width:none;margin:0}details{break-inside:avoid}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}"
    "@media(max-width:34rem){body{margin:1rem auto}th,td{padding-right:.6rem}.bar{width:4rem}}"
)


def write_plan_report(
    plan: ClusterPlan, scenario: ScenarioComparison | None = None, *, source: str, made: str
) -> str:
    """Return the page; `source` names where the objects come from, and `made` is the time."""
    advised = [each for each in plan.services if each.recommended]
    about = (
        f"{count_things(plan.totals.services, 'Service')} in "
        f"{count_things(len(plan.zones), 'zone')} on {count_things(plan.nodes, 'node')}, "
        f"from {source}. Clients: {plan.clients}."
    )
    sections = [
        "<h1>Which Services to change</h1>",
        f'<p class="dim">{_text(about)} keepclose {__version__} plan, {escape(made)}.</p>',
        _cards(plan),
        *(f"<p>{_text(note)}</p>" for note in plan.notes),
        html_section("What if", _scenario(scenario), ""),
        html_section("Traffic between zones", _zone_pictures(plan), _about_zones(plan)),
        html_section("Services to change", _ranking(advised), _about_ranking(advised)),
        html_section("Commands", _commands(advised), ""),
        html_section("Each Service", "".join(map(_service, _detailed(plan, advised))), ""),
        html_section("Left as they are", _left(plan), ""),
    ]
    return html_page("keepclose plan", "".join(sections), style=_STYLE)


def _cards(plan: ClusterPlan) -> str:
    totals = plan.totals
    cards = [
        ("in zone now", show_share(totals.in_zone), totals.basis),
        ("possible", show_share(totals.possible_in_zone), count_things(totals.advised, "change")),
    ]
    if totals.cost is not None and totals.possible_cost is not None:
        currency = f"{totals.currency} a month"
        if unpriced := describe_unpriced(totals):
            currency += f"; {unpriced}"
        cards += [
            ("costs now", show_amount(totals.cost), currency),
            ("possible", show_amount(totals.possible_cost), currency),
        ]
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><span class="dim">{_text(name)}</span><b>{_text(value)}</b>'
            f'<span class="dim">{_text(unit)}</span></div>'
            for name, value, unit in cards
        )
        + "</div>"
    )


def _zone_pictures(plan: ClusterPlan) -> str:
    now = draw_zone_flows(_flows(plan, possible=False), title="Traffic between zones now")
    if not now:
        return ""
    pictures = [("now", now)]
    if plan.totals.advised:
        flows = _flows(plan, possible=True)
        title = "Traffic between zones with all changes"
        pictures.append(("with all changes", draw_zone_flows(flows, title=title)))
    return (
        '<div class="pair">'
        + "".join(
            f"<figure><figcaption>{name}</figcaption>{picture}</figure>"
            for name, picture in pictures
        )
        + "</div>"
    )


def _about_zones(plan: ClusterPlan) -> str:
    return (
        "From the zones of clients, left, to those of endpoints, right; "
        f"{plan.totals.basis}. Green stays in its zone, red leaves it."
    )


def _flows(plan: ClusterPlan, *, possible: bool) -> list[ZoneFlow]:
    """Return the traffic by pair of zones, Services weighed as in the totals."""
    parts: dict[tuple[str, str], float] = {}
    total = sum(each.weight for each in plan.services) or 1.0
    for each in plan.services:
        for client, endpoint, part in each.possible_zones if possible else each.zones:
            pair = make_plain(client), make_plain(endpoint)
            parts[pair] = parts.get(pair, 0.0) + part * each.weight / total
    return [ZoneFlow(client, endpoint, part) for (client, endpoint), part in parts.items()]


def _ranking(advised: Sequence[PlannedService]) -> str:
    if not advised:
        return ""
    has_cost = any(each.cost is not None for each in advised)
    head = ["Service", "now", "in zone", "advice", "in zone", "busiest endpoint"]
    lines = ["<table><tr>", *(f"<th>{escape(name)}</th>" for name in head)]
    lines.append("<th>saves a month</th></tr>\n" if has_cost else "</tr>\n")
    for each in advised[:RANKED]:
        cells = [
            f'<td><a href="#{_anchor(each)}">{_text(each.key)}</a></td>',
            f'<td class="text">{_text(each.governs)}</td>',
            f"<td>{_share_bar(each.now.in_zone)}</td>",
            f'<td class="text">{_text(each.recommended)}</td>',
            f"<td>{_share_bar(each.then.in_zone)}</td>",
            f"<td>{_load_bar(each.then.busiest, each.bound)}</td>",
        ]
        if has_cost:
            cells.append(f"<td>{show_amount(each.saved) if each.saved else ''}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    return f'<div class="scroll">{"".join(lines)}</table></div>'


def _about_ranking(advised: Sequence[PlannedService]) -> str:
    more = len(advised) - RANKED
    words = (
        "Those that gain most first. The busiest endpoint is with the change, as many times its "
        "fair share; the mark is the bound."
    )
    return f"{words} {more:,} more are in -o json." if more > 0 else words


def _commands(advised: Sequence[PlannedService]) -> str:
    if not advised:
        return ""
    commands = "\n".join(_text(each.command) for each in advised[:RANKED])
    return f'<pre class="scroll"><code>{commands}</code></pre>'


def _detailed(plan: ClusterPlan, advised: Sequence[PlannedService]) -> Sequence[PlannedService]:
    return plan.services if len(plan.services) == 1 else advised[:RANKED]


def _service(each: PlannedService) -> str:
    rows = []
    for figures in each.mechanisms:
        remarks = [f"needs {need}" for need in figures.needs]
        if figures.note:
            remarks.append(figures.note)
        rows.append(
            [
                figures.mechanism,
                show_share(figures.in_zone),
                show_times(figures.busiest),
                f"{figures.overloaded:,}",
                show_share(figures.failed),
                f"{figures.slices:,}",
                f"{figures.writes:,}",
                f"{figures.hints_changed:,}",
                make_plain("; ".join(remarks)),
            ]
        )
    head = ("mechanism", "in zone", "busiest", "over", "failed", "slices", "writes", "hints", "")
    marks = [figures.mechanism == each.recommended for figures in each.mechanisms]
    table = html_table(head, rows, marks, text=(8,))
    return (
        f'<details id="{_anchor(each)}"{" open" if not each.recommended else ""}>'
        f"<summary>{_text(each.key)}: {_text(each.effect or each.reason)}</summary>"
        f'<div class="scroll">{table}</div>{"".join(_advice(each))}</details>\n'
    )


def _advice(each: PlannedService) -> Iterator[str]:
    if each.recommended:
        yield f"<p>Recommended: {_text(each.recommended)}. It {_text(each.reason)}.</p>"
        yield f"<p>Price: {_text(describe_price(each.then, each.now))}.</p>"
        yield f"<p><code>{_text(each.command)}</code></p>"
    else:
        yield f"<p>Leave it: {_text(each.reason)}.</p>"
    if each.also:
        yield f'<p class="dim">More would be possible. {_text(each.also)}</p>'


def _left(plan: ClusterPlan) -> str:
    named: dict[str, list[str]] = {}
    for each in plan.services:
        if not each.recommended:
            named.setdefault(each.reason, []).append(each.key)
    rows = []
    for reason, keys in sorted(named.items(), key=lambda item: (-len(item[1]), item[0])):
        more = len(keys) - NAMED_LEFT
        listed = ", ".join(make_plain(key) for key in keys[:NAMED_LEFT])
        rest = f" and {more:,} more" if more > 0 else ""
        rows.append([f"{len(keys):,}", make_plain(reason), f"{listed}{rest}"])
    table = html_table(("Services", "because", ""), rows, text=(1, 2))
    return f'<div class="scroll">{table}</div>' if table else ""


def _scenario(scenario: ScenarioComparison | None) -> str:
    if scenario is None:
        return ""
    changes = "".join(f"<li>{_text(change)}</li>" for change in scenario.changes)
    named = (("all Services", scenario.totals), *((row.name, row) for row in scenario.services))
    rows = [
        [
            make_plain(name),
            f"{show_share(row.in_zone[0])} → {show_share(row.in_zone[1])}",
            f"{show_times(row.busiest[0])} → {show_times(row.busiest[1])}",
            f"{show_share(row.failed[0])} → {show_share(row.failed[1])}",
            f"{row.ready[0]:,} → {row.ready[1]:,}",
        ]
        for name, row in named[: RANKED + 1]
    ]
    table = html_table(("Service", "in zone", "busiest", "failed", "ready endpoints"), rows)
    before, after = scenario.totals.cost
    cost = ""
    if before is not None and after is not None:
        cost = f"<p>Cost: {show_amount(before)} → {show_amount(after)} a month</p>"
    return f'<ul>{changes}</ul><div class="scroll">{table}</div>{cost}'


def _share_bar(part: float) -> str:
    return (
        f'{show_share(part)} <span class="bar" aria-hidden="true">'
        f'<i class="in" style="width:{100 * min(max(part, 0), 1):.1f}%"></i></span>'
    )


def _load_bar(ratio: float, bound: float) -> str:
    """Return how many times its fair share an endpoint gets, on a scale of twice the bound."""
    full = 2 * bound
    kind = "over" if ratio > bound * (1 + 1e-9) else "fits"
    return (
        f'{show_times(ratio)} <span class="bar" title="bound {show_times(bound)}">'
        f'<i class="{kind}" style="width:{100 * min(ratio / full, 1):.1f}%"></i>'
        '<u style="left:50%"></u></span>'
    )


def _anchor(each: PlannedService) -> str:
    return escape(make_plain(f"service-{each.namespace}-{each.name}").replace(" ", "-"))


def _text(text: str) -> str:
    return escape(make_plain(text))
