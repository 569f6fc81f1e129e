"""Hostile requests, replayed by one identity in a loop, and how other clients fare meanwhile.

Every case of `support.hostile.attacks` (or those named on the command line) runs against a server
of its own for a few seconds. The goals hold on a machine that does nothing else.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.hostile.attacks import ATTACKS
from support.hostile.replaying import (
    EVENT_LIMIT_SECONDS,
    GET_LIMIT_SECONDS,
    Attack,
    Figures,
    besieged,
)

SECONDS = 5.0


def replay(attack: Attack) -> tuple[Figures, Figures]:
    """Return how clients fare without the attack and with it."""
    with (
        tempfile.TemporaryDirectory() as directory,
        besieged(Path(directory) / "data", attack) as siege,
    ):
        return siege.idle(SECONDS / 5), siege.measure(SECONDS)


def say(name: str, idle: Figures, figures: Figures) -> bool:
    """Print the figures beside the goals, and return whether they are kept."""
    kept = (
        figures.gets.at(0.99) <= GET_LIMIT_SECONDS and figures.events.at(1.0) <= EVENT_LIMIT_SECONDS
    )
    columns = (idle.gets, figures.gets, idle.events, figures.events)
    print(
        f"{name:<24}",
        *(f"{delays!s:>20}" for delays in columns),
        f"{figures.longest * 1000:>10,.0f}",
        f"{figures.rounds:>8,}",
        " ok" if kept else " MISSED",
        flush=True,
    )
    return kept


def main() -> None:
    """Print all cases; exit with 1 when one misses a goal."""
    print(
        "p50/p99/max in ms; goals: GET p99 at most "
        f"{GET_LIMIT_SECONDS * 1000:.0f}, event max at most {EVENT_LIMIT_SECONDS * 1000:.0f}"
    )
    heads = ("GET idle", "GET", "event idle", "event")
    print(f"{'attack':<24}", *(f"{head:>20}" for head in heads), "loop CPU >", "  rounds")
    kept = True
    for name in sys.argv[1:] or ATTACKS:
        kept = say(name, *replay(ATTACKS[name])) and kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
