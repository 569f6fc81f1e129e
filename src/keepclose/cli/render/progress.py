"""A progress bar on standard error: total, rate and time left.

Only a terminal gets one; a file or a pipe never holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], object]
"""A callback that takes the amount done so far."""


@contextmanager
def shown_progress(total: int, unit: str) -> Iterator[Advance]:
    """Show a bar with rate and time left on standard error, if that is a terminal."""
    from keepclose.cli.render.screen import Screen

    console = Screen(stderr=True)
    if not console.is_terminal:
        yield ignore_progress
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(f"{total:,} {unit}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, rate="")

        def advance(done: int) -> None:
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            bar.update(task, completed=done, rate=f"{format_rate(speed)}" if speed else "")

        yield advance


def format_rate(speed: float) -> str:
    """Return a number per second in a few characters."""
    for limit, unit in ((1e6, " M/s"), (1e3, " k/s")):
        if speed >= limit:
            return f"{speed / limit:.1f}{unit}"
    return f"{speed:.0f} /s"


def ignore_progress(_progress: object) -> None:
    """Drop a progress report."""
