"""Renders a replay: a table of mechanisms, a time line in text, and documents for programs.

The time line has one character for each span of time, the worst that happened in it. Everything is
ASCII, and colour is never the only sign.
"""

from __future__ import annotations

from textwrap import wrap
from typing import Any, Final

from keepclose.advise.replaying.mechanism_figures import LoadSpan, MechanismRun
from keepclose.advise.replaying.replay import Replay
from keepclose.cli.render.output import count_things, show_times
from keepclose.cli.render.screen import Grid, Line, Screen, cell_len
from keepclose.model.plain_text import make_plain

MOST_NOTES: Final = 40
"""How many lines the account of events has at most."""
OVERLOADED: Final = 1.2
"""From which fair shares on the busiest endpoint is marked, as the bound of Balanced."""
_TIMELINE_CELLS: Final = 60
_ACCOUNT_INDENT: Final = " " * 14
_WIDEST: Final = 100
_ROUNDING: Final = 1e-9
_HEADS: Final = ("mechanism", "no zones", "peak", "flaps", "writes", "failed", "left zone")
_LEGEND: Final = (
    f"= by zones  ~ not on every node  ! busiest above {OVERLOADED}x  x connections fail"
)
_MEANINGS: Final = (
    "no zones: time in which some node routes without regard to zones",
    "peak: fair shares of the busiest endpoint; flaps: hints that endpoints got back",
    "writes: slices written; failed, left zone: connections",
)


def print_replay(console: Screen, replay: Replay) -> None:
    """Print the table, the time line and what happened."""
    console.print(Line(_title(replay), style="bold"))
    console.print(_summary(replay), soft_wrap=True)
    console.print()
    table = Grid(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    table.add_column(_HEADS[0], no_wrap=True)
    for head in _HEADS[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for run in replay.runs:
        table.add_row(*_cells(run))
    console.print(table)
    console.print()
    for line in _timeline(replay):
        console.print(line, soft_wrap=True)
    console.print(Line(_LEGEND, style="dim"), soft_wrap=True)
    console.print()
    width = min(console.width, _WIDEST)
    for line in _account(replay):
        for part in wrap(line, width, subsequent_indent=_ACCOUNT_INDENT, break_on_hyphens=False):
            console.print(part, soft_wrap=True)
    for line in _reasons(replay):
        for part in wrap(line, width, subsequent_indent="    ", break_on_hyphens=False):
            console.print(part, soft_wrap=True)
    for line in _MEANINGS:
        console.print(Line(line, style="dim"), soft_wrap=True)


def render_markdown(replay: Replay) -> str:
    """Return a section of Markdown, for a review or an issue."""
    rows = [_HEADS, *(_cells(run) for run in replay.runs)]
    lines = [f"### {_escape(_title(replay))}", "", _escape(_summary(replay)), ""]
    for number, row in enumerate(rows):
        lines.append(f"| {' | '.join(map(_escape, row))} |")
        if number == 0:
            lines.append(f"|---|{'---:|' * (len(row) - 1)}")
    lines += ["", "```text", *map(make_plain, _timeline(replay)), _LEGEND, "```", ""]
    lines += [f"- {_escape(line.strip())}" for line in (*_account(replay), *_reasons(replay))]
    lines += ["", *(f"{line}  " for line in _MEANINGS[:-1]), _MEANINGS[-1], ""]
    return "\n".join(lines)


def replay_document(replay: Replay) -> dict[str, Any]:
    """Return everything as plain values; times are in seconds, connections may have fractions."""
    return {
        "scenario": replay.scenario.name,
        "service": {
            "namespace": replay.start.service.metadata.namespace,
            "name": replay.start.service.metadata.name,
        },
        "seed": replay.seed,
        "seconds": replay.played.end,
        "nodes": len(replay.start.nodes),
        "zones": replay.zones,
        "pods": len(replay.start.pods),
        "events": [
            {"at": step.at, "what": note} for step in replay.played.steps for note in step.notes
        ],
        "mechanisms": [_run(run) for run in replay.runs],
    }


def format_seconds(seconds: float) -> str:
    """Return a time of a replay, such as 45 s, 2 min 30 s or 1 h 5 min."""
    whole = round(seconds, 1)
    if whole < 60:
        return f"{whole:g} s"
    parts = []
    for size, unit in ((3600, "h"), (60, "min"), (1, "s")):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count:g} {unit}")
    return " ".join(parts[:2])


def _title(replay: Replay) -> str:
    name = replay.scenario.name
    key = str(replay.start.service.key)
    return f"{key}  {name}" if name else key


def _summary(replay: Replay) -> str:
    start = replay.start
    sent = replay.runs[0].sent if replay.runs else 0.0
    return (
        f"{count_things(len(start.nodes), 'node')} in {count_things(len(replay.zones), 'zone')}, "
        f"{count_things(len(start.pods), 'pod')}, {count_things(sent, 'connection')} in "
        f"{format_seconds(replay.played.end)}, seed {replay.seed}"
    )


def _cells(run: MechanismRun) -> tuple[str, ...]:
    return (
        run.label,
        format_seconds(run.without_zones_s),
        show_times(run.peak),
        f"{run.flaps:,}",
        f"{run.writes:,}",
        _connections(run.failed, run.sent),
        _connections(run.left_zone, run.sent),
    )


def _connections(count: float, whole: float) -> str:
    if count < _ROUNDING:
        return "0"
    share = 100 * count / whole
    return f"{count:,.0f} {share:.0f} %" if share >= 1 else f"{count:,.0f} <1 %"


def _timeline(replay: Replay) -> list[str]:
    names = [run.label for run in replay.runs]
    width = max((cell_len(make_plain(name)) for name in names), default=0) + 2
    cells = max(20, min(_TIMELINE_CELLS, 80 - width))
    end = replay.played.end
    marks = _event_marks(replay, cells)
    middle, last = format_seconds(end / 2), format_seconds(end)
    axis = "0 s".ljust(cells // 2) + middle
    axis = axis.ljust(cells - len(last)) + last if len(axis) + len(last) < cells else axis
    lines = [" " * width + axis]
    if marks.strip():
        lines.append("events".ljust(width) + marks)
    for run, name in zip(replay.runs, names, strict=True):
        plain = make_plain(name)
        lines.append(plain + " " * (width - cell_len(plain)) + _row(run.spans, end, cells))
    return lines


def _event_marks(replay: Replay, cells: int) -> str:
    """Return a mark where something happens."""
    marks = [" "] * cells
    for step in replay.played.steps:
        if step.notes:
            marks[min(cells - 1, int(cells * step.at / replay.played.end))] = "|"
    return "".join(marks).rstrip()


def _row(spans: tuple[LoadSpan, ...], end: float, cells: int) -> str:
    worst = [0] * cells
    signs = ".=~!x"
    for span in spans:
        first = int(cells * span.start / end)
        # NB: a span that ends where a cell begins is not in that cell.
        last = min(cells - 1, -int(-cells * span.end // end) - 1)
        for cell in range(first, max(first, last) + 1):
            worst[min(cell, cells - 1)] = max(worst[min(cell, cells - 1)], _rank(span))
    return "".join(signs[rank] for rank in worst)


def _rank(span: LoadSpan) -> int:
    load = span.load
    if load.sent < _ROUNDING:
        return 0
    if load.failed > _ROUNDING:
        return 4
    if load.busiest > OVERLOADED + _ROUNDING:
        return 3
    return 2 if load.without_zones > _ROUNDING else 1


def _account(replay: Replay) -> list[str]:
    notes = [(step.at, note) for step in replay.played.steps for note in step.notes]
    lines = [f"{format_seconds(at):>12}  {make_plain(note)}" for at, note in notes[:MOST_NOTES]]
    if len(notes) > MOST_NOTES:
        lines.append(f"{_ACCOUNT_INDENT}and {len(notes) - MOST_NOTES:,} more, see -o json")
    return lines


def _reasons(replay: Replay) -> list[str]:
    """Return why nodes routed without regard to zones, once for mechanisms with the same reason."""
    whose: dict[str, list[str]] = {}
    for run in replay.runs:
        if run.why:
            whose.setdefault(run.why, []).append(run.name)
    return [f"why {', '.join(names)}: {make_plain(why)}" for why, names in whose.items()]


def _escape(text: str) -> str:
    plain = make_plain(text)
    for sign in "\\`*_<>|[]":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _run(run: MechanismRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "label": run.label,
        "about": run.about,
        "without_zones_seconds": run.without_zones_s,
        "peak": run.peak,
        "peak_at": run.peak_at,
        "flaps": run.flaps,
        "rehinted": run.rehinted,
        "slice_writes": run.writes,
        "connections": run.sent,
        "failed": run.failed,
        "left_zone": run.left_zone,
        "why": run.why,
        "timeline": [
            {
                "start": span.start,
                "end": span.end,
                "connections_per_second": span.load.sent,
                "failed_per_second": span.load.failed,
                "left_zone_per_second": span.load.left_zone,
                "without_zones_per_second": span.load.without_zones,
                "busiest": span.load.busiest,
            }
            for span in run.spans
        ],
        "writes": [
            {"at": sync.at, "slices": sync.writes, "rehinted": sync.rehinted, "flaps": sync.flaps}
            for sync in run.syncs
            if sync.writes
        ],
    }
