"""`keepclose demo`: a guided tour of what keeps traffic close, in a temporary cluster.

The tour in `lab.cluster` changes the cluster and judges each step; this command only paces the
steps and prints them. The cluster never outlives the command.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.render.output import say

if TYPE_CHECKING:
    from keepclose.cli.render.screen import Screen

_INTERRUPTED: Final = 130


def demo(
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not wait for Enter between the steps.")
    ] = False,
) -> None:
    """Show in two minutes what keeps traffic close: six steps with real connections.

    Default routing, PreferSameZone, PreferSameNode, a zone without pods, Balanced, and the rollback
    of a feature gate, in a temporary cluster. Exit codes: 0 all steps as expected, 1 traffic was
    not as expected, 2 no cluster could be started, 130 interrupted.
    """
    from keepclose.cli.render.screen import Screen
    from keepclose.lab.cluster.launch import TemporaryError
    from keepclose.lab.cluster.tour import TourError

    console = Screen()
    try:
        is_fine = _guide(console, is_asking=not yes)
    except KeyboardInterrupt:
        say("", "stopped, nothing is left behind", err=True)
        sys.exit(_INTERRUPTED)
    except (TemporaryError, TourError) as error:
        say(f"error: {error}", err=True)
        sys.exit(error.code)
    sys.exit(0 if is_fine else 1)


def _guide(console: Screen, *, is_asking: bool) -> bool:
    """Run all steps and return whether traffic was as expected in each."""
    from keepclose.cli.render import demo as screen
    from keepclose.lab.cluster.launch import temporary_cluster
    from keepclose.lab.cluster.tour import Tour
    from keepclose.lab.cluster.tour_steps import TOUR_STEPS

    screen.print_intro(console)
    is_fine, steps_done = True, 0
    with temporary_cluster(on_line=lambda line: screen.print_started(console, line)) as cluster:
        directory, state = cluster
        if is_asking:
            screen.print_way_in(console, directory)
        tour = Tour(directory, has_packets=state.packets)
        for number, step in enumerate(TOUR_STEPS, 1):
            if is_asking and not screen.ask_to_go_on(console, step):
                break
            screen.print_head(console, step, number=number, total=len(TOUR_STEPS))
            with console.status("waiting for hints and traffic"):
                sight = tour.take(step)
            screen.print_sight(console, sight)
            is_fine, steps_done = is_fine and sight.is_fine, number
        screen.print_end(console, done=steps_done, total=len(TOUR_STEPS))
    return is_fine
