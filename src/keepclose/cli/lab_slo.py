"""`keepclose lab slo`: measures traffic policies while endpoints restart and move.

The table shows each policy's availability, hops and latency beside the estimates of the first draft
of KEP-3015. The lab measures; this command asks it and renders the answer.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ask_lab
from keepclose.cli.render.output import OutputFormat, TableOrJson, echo_json, say, show_passing
from keepclose.cli.render.progress import ignore_progress
from keepclose.model.json_values import JsonObject
from keepclose.model.plain_text import make_plain

_COLUMNS: Final = (
    "POLICY",
    "TRAFFIC",
    "CONNS",
    "FAILED",
    "AVAIL",
    "HOPS",
    "ZONES",
    "P50 MS",
    "P99 MS",
    "KEP-3015 DRAFT",
)
_LEFT: Final = ("POLICY", "TRAFFIC", "KEP-3015 DRAFT")


def slo(
    *,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=1, max=3600, help="How long to measure each policy.")
    ] = 10.0,
    zone_latency: Annotated[
        float,
        typer.Option(
            metavar="MS", min=0, max=10_000, help="Delay packets between zones, each way."
        ),
    ] = 0.0,
    output: OutputFormat = TableOrJson.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Measure traffic policies under restarts and moves.

    Endpoints restart and move meanwhile. The policies are Cluster, Local, PreferLocal in both of
    its roles, and trafficDistribution PreferSameZone and PreferSameNode, from inside and from
    outside. The columns are answered connections, hops to another node and to another zone by
    connection, and latency. The last column is the estimate of the first draft of KEP-3015. The
    command works in a namespace of its own and removes it. Exit codes: 0 measured, 1 could not be
    measured, 2 bad input, 4 no cluster runs, 5 no packets.
    """
    try:
        params = {"seconds": seconds, "zone_latency": zone_latency}
        on_progress = _show_progress if sys.stderr.isatty() else ignore_progress
        answer = ask_lab(data_dir, "slo", params, on_progress=on_progress)
    except KeyboardInterrupt:
        say("stopped; the lab removes the namespace of the measurement", err=True)
        sys.exit(130)
    finally:
        show_passing("")
    if output is TableOrJson.JSON:
        echo_json(answer)
        return
    say(*render_table(answer["rows"]).splitlines(), "", *answer["notes"])
    say("HOPS and ZONES: answered on another node, in another zone, by connection.")


def render_table(rows: list[JsonObject]) -> str:
    """Return the table; each policy has two lines, each with one of its two estimates."""
    cells = [_COLUMNS]
    for index, row in enumerate(rows):
        is_first = not index or _title(rows[index - 1]) != _title(row)
        same_policy = [other for other in rows if _title(other) == _title(row)]
        estimate = "guessedAvailability" if is_first else "guessedSpeed"
        verdict = "availabilityAsGuessed" if is_first else "speedAsGuessed"
        is_right = all(other[verdict] for other in same_policy)
        cells.append(
            (
                row["policy"] if is_first else row["role"],
                row["traffic"],
                f"{row['connections']:,}",
                f"{row['failed']:,}",
                _percent(row["availability"]),
                _ratio(row["nodeHops"]),
                _ratio(row["zoneCrossings"]),
                _milliseconds(row["p50Ms"]),
                _milliseconds(row["p99Ms"]),
                f"{row[estimate]} {'✓' if is_right else '✗'}" if row[estimate] else "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        parts = [
            text.ljust(width) if name in _LEFT else text.rjust(width)
            for name, text, width in zip(_COLUMNS, line, widths, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(map(make_plain, lines))


def _title(row: JsonObject) -> str:
    return f"{row['policy']} {row['role']}".strip()


def _percent(value: float) -> str:
    from keepclose.lab.slo.figures import show_percent

    return show_percent(value)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _show_progress(progress: JsonObject) -> None:
    text = str(progress.get("doing", ""))
    if "done" in progress:
        counts = f"{progress['done']:,} connections, {progress['failed']:,} failed"
        text += f": {progress['now']}, {counts}"
    show_passing(text)
