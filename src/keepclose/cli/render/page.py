"""A self-contained HTML page of tables and charts: its style, its sections and its tables.

The page has a dark and a light style, no scripts, and loads nothing from a network. All text from
outside is escaped here, except for the content of sections, which is HTML already.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

_HUES: Final = ("#4477cc", "#cc6633", "#2f9e6e", "#aa4499", "#b08a00")
_MORE_HUES: Final = ("#33a0b8", "#cc4455", "#7766cc", "#6b8e23", "#888888")

_STYLE: Final = (
    ":root{color-scheme:light dark;--ink:#1c1e21;--paper:#fff;--dim:#667;--line:#d5d8de}"
    "@media(prefers-color-scheme:dark){"
    ":root{--ink:#e6e8eb;--paper:#16181c;--dim:#99a;--line:#3a3f47}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);"
    "max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}"
    "p{margin:.4rem 0}.dim{color:var(--dim)}"
    "code{font:13px ui-monospace,monospace;background:var(--line);padding:.1em .4em;"
    "border-radius:3px;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:.6rem 0;font-variant-numeric:tabular-nums}"
    "th,td{padding:.15rem .9rem .15rem 0;text-align:right;border-bottom:1px solid var(--line)}"
    "th:first-child,td:first-child,td.text{text-align:left}th{color:var(--dim);font-weight:500}"
    "tr.best td{font-weight:600}svg{max-width:100%;height:auto;display:block;margin:.6rem 0}"
    "svg text{font-size:11px;fill:var(--ink)}svg .line{stroke:var(--line);fill:none}"
    "svg text.on{fill:#fff}.p0{fill:#2f9e6e}.p1{fill:#8a919c}.p2{fill:#cc5544}"
    ".o0{fill-opacity:.25}.o1{fill-opacity:.45}.o2{fill-opacity:.7}.o3{fill-opacity:1}"
    "svg .mark{stroke:var(--dim);stroke-dasharray:4 4;fill:none}"
) + "".join(
    f".s{n}{{fill:{hue}}}.l{n}{{stroke:{hue};stroke-width:1.5;fill:none}}"
    for n, hue in enumerate((*_HUES, *_MORE_HUES))
)


def html_page(title: str, body: str, *, style: str = "") -> str:
    """Return the whole page around its sections; `style` is added to that of all pages."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>"
        f"<body>\n{body}</body></html>\n"
    )


def html_section(title: str, content: str, about: str) -> str:
    """Return a section with a heading; "" without content."""
    if not content:
        return ""
    intro = f'<p class="dim">{escape(about)}</p>' if about else ""
    return f"<h2>{escape(title)}</h2>\n{intro}{content}\n"


def html_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    marks: Sequence[bool] = (),
    *,
    text: Sequence[int] = (),
) -> str:
    """Return a table; marked rows are bold, and `text` are the columns that hold no numbers."""
    if not rows:
        return ""
    lines = ["<table><tr>", *(f"<th>{escape(name)}</th>" for name in head), "</tr>\n"]
    for number, row in enumerate(rows):
        best = number < len(marks) and marks[number]
        lines.append('<tr class="best">' if best else "<tr>")
        for column, cell in enumerate(row):
            kind = ' class="text"' if column in text else ""
            lines.append(f"<td{kind}>{escape(cell)}</td>")
        lines.append("</tr>\n")
    return "".join([*lines, "</table>"])
