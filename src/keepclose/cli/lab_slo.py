"""`keepclose lab slo`: traffic policies under trouble, measured beside what was guessed of them."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ask_lab
from keepclose.cli.render.output import AnswerForm, TableOrJson, echo_json, say, show_passing
from keepclose.cli.render.progress import tell_nobody
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
    output: AnswerForm = TableOrJson.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Measure traffic policies under restarts and moves.

    Endpoints are restarted and moved meanwhile. Cluster, Local, PreferLocal in both of its roles,
    and trafficDistribution PreferSameZone and PreferSameNode, from inside and from outside:
    answered connections, hops to another node and to another zone by connection, latency. The last
    column is what the first draft of KEP-3015 guessed. Works in a namespace of its own and removes
    it. Exit codes: 0 measured, 1 it could not be, 2 bad input, 4 no cluster runs, 5 no packets.
    """
    try:
        params = {"seconds": seconds, "zone_latency": zone_latency}
        done = ask_lab(
            data_dir, "slo", params, on_tell=_tell if sys.stderr.isatty() else tell_nobody
        )
    except KeyboardInterrupt:
        say("stopped; what was made for it is being removed", err=True)
        sys.exit(130)
    finally:
        show_passing("")
    if output is TableOrJson.JSON:
        echo_json(done)
        return
    say(*render_table(done["rows"]).splitlines(), "", *done["notes"])
    say("HOPS and ZONES: answered on another node, in another zone, by connection.")


def render_table(rows: list[JsonObject]) -> str:
    """Return the table; each policy has two lines, and its two guesses stand beside them."""
    cells = [_COLUMNS]
    for place, row in enumerate(rows):
        is_first = not place or _title(rows[place - 1]) != _title(row)
        both = [one for one in rows if _title(one) == _title(row)]
        guess = "guessedAvailability" if is_first else "guessedSpeed"
        right = all(one["availabilityAsGuessed" if is_first else "speedAsGuessed"] for one in both)
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
                f"{row[guess]} {'✓' if right else '✗'}" if row[guess] else "-",
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


def _tell(news: JsonObject) -> None:
    text = str(news.get("doing", ""))
    if "done" in news:
        text += f": {news['now']}, {news['done']:,} connections, {news['failed']:,} failed"
    show_passing(text)
