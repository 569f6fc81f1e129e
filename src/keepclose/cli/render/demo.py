"""Renders the steps of `keepclose demo`: the command, the hints, where connections went, and why.

Only renders: the texts come from the steps of the tour and from the routing decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Final

from keepclose.cli.render.screen import Line, Screen, cell_len
from keepclose.cli.render.traffic_table import EMPTY_CELL, WIDEST_NAME, print_traffic
from keepclose.lab.cluster.tour import CONNECTIONS, Forecast, StepResult
from keepclose.lab.cluster.tour_steps import TOUR_SERVICE, HintedEndpoint, TourStep
from keepclose.lab.traffic.report import TrafficReport

_INTRO: Final = (
    "A tour of two minutes: three zones with two nodes each, and a Service with five pods, in a "
    "temporary cluster."
)


def print_intro(console: Screen) -> None:
    """Print what the tour will show."""
    for part in wrap(_INTRO, _width(console)):
        console.print(Line(part), soft_wrap=True)
    console.print()


def print_started(console: Screen, line: str) -> None:
    """Print a line of the cluster's start."""
    console.print(Line(line, style="yellow" if line.startswith("!") else ""), soft_wrap=True)


def print_way_in(console: Screen, directory: Path) -> None:
    """Print how to look around in another terminal meanwhile."""
    console.print()
    console.print(Line("To look around in another terminal meanwhile:", style="dim"))
    line = f"  export KUBECONFIG={directory}/kubeconfig KEEPCLOSE_DATA_DIR={directory}"
    console.print(Line(line, style="dim"), soft_wrap=True)


def print_head(console: Screen, step: TourStep, *, number: int, total: int) -> None:
    """Print the title of a step and the commands that it runs."""
    head = Line.assemble((f"{number}/{total} ", "bold cyan"), (f"{step.title} ", "bold"))
    rule = "─" * max(0, _width(console) - len(head.plain))
    console.print()
    console.print(head.append(rule, style="dim"), soft_wrap=True)
    for change in (*step.first, *step.changes):
        print_command(console, change.command)


def print_command(console: Screen, command: str) -> None:
    """Print a command as it is typed; never wrapped, so that it can be copied."""
    console.print(Line.assemble(("$ ", "dim"), (command, "green")), soft_wrap=True)


def print_sight(console: Screen, sight: StepResult) -> None:
    """Print the hints, the traffic and the explanation of a step."""
    console.print()
    _print_hints(console, sight.endpoints)
    console.print()
    by_node = sight.step.by_node
    if isinstance(sight.traffic, TrafficReport):
        nodes = " --nodes" if by_node else ""
        print_command(
            console, f"keepclose traffic {TOUR_SERVICE} --connections {CONNECTIONS}{nodes}"
        )
        print_traffic(console, sight.traffic, by_node=by_node)
    else:
        _print_forecast(console, sight.traffic)
    console.print()
    for line in sight.story:
        for part in wrap(line, _width(console)):
            console.print(Line(part), soft_wrap=True)


def print_end(console: Screen, *, done: int, total: int) -> None:
    """Print that the tour is over, and what to do next."""
    console.print()
    over = "That was the tour." if done == total else f"The tour ended after {done} of {total}."
    console.print(Line(f"{over} Your own cluster: keepclose up"), soft_wrap=True)


def ask_to_go_on(console: Screen, following: TourStep) -> bool:
    """Return whether the user continues with the next step; q and the end of input mean no."""
    console.print()
    prompt = Line.assemble(("Enter", "bold"), f" {following.title}   ", ("q", "bold"), " end ")
    try:
        answer = console.input(prompt)
    except EOFError:
        console.print()
        return False
    return answer.strip().lower() not in ("q", "quit")


def _print_hints(console: Screen, endpoints: Sequence[HintedEndpoint]) -> None:
    _print_table(
        console,
        [
            ("endpoint", "node", "zone", "ready", "hints.forZones", "hints.forNodes"),
            *(
                (
                    endpoint.pod,
                    endpoint.node,
                    endpoint.zone,
                    "yes" if endpoint.is_ready else "no",
                    ", ".join(endpoint.for_zones) or EMPTY_CELL,
                    ", ".join(endpoint.for_nodes) or EMPTY_CELL,
                )
                for endpoint in endpoints
            ),
        ],
    )


def _print_forecast(console: Screen, forecast: Forecast) -> None:
    """Print the expected shares of a cluster without packets."""
    rows = [("expected, to", *forecast.shares)]
    for number, (zone, shares) in enumerate(forecast.shares.items()):
        cells = (
            f"{100 * shares[target]:.0f} %" if shares.get(target) else EMPTY_CELL
            for target in forecast.shares
        )
        rows.append((f"{'from' if number == 0 else '':<4} {zone}", *cells))
    _print_table(console, rows)
    figures = (
        f"in zone {100 * forecast.in_zone:.1f} %   on node {100 * forecast.on_node:.1f} %   "
        f"busiest endpoint {forecast.busiest:.2f}x its fair share ({forecast.place})"
    )
    console.print(Line(figures), soft_wrap=True)


def _print_table(console: Screen, rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        line = Line()
        for cell, width in zip(row, widths, strict=True):
            line.append(cell, style="dim" if number == 0 or cell == EMPTY_CELL else "")
            line.append(" " * (width - cell_len(cell) + 2))
        line.rstrip()
        console.print(line, soft_wrap=True)


def _width(console: Screen) -> int:
    return min(console.width, WIDEST_NAME)
