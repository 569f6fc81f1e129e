"""Charts as SVG text, without a library, for reports that are one self-contained file.

Colours come from classes s0 to s9, those of lines from l0 to l9, and from the colour of the text,
so that the page decides between dark and light. Every mark has its numbers as a title, and every
chart has a description, for screen readers. Texts are escaped here; callers pass them unescaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 720
SERIES: Final = 10
"""The number of colours; further series repeat them."""
_NAMES: Final = 150
_ROW: Final = 26
_AXIS: Final = 26
_SQUARES: Final = (1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_PLOT: Final = WIDTH - _NAMES - 20


class Point(NamedTuple):
    """A named point in a plane."""

    name: str
    x: float
    y: float


def draw_ridges(rows: Sequence[tuple[str, Sequence[float]]], *, low: float, high: float) -> str:
    """Return one small histogram for each row, all on the same axis from low to high."""
    height = 44
    body = []
    for number, (name, counts) in enumerate(rows):
        top = number * (height + 8)
        base = top + height
        most = max([*counts, 1e-9])
        width = _PLOT / max(1, len(counts))
        total = sum(counts) or 1.0
        bars = []
        for place, count in enumerate(counts):
            if count > 0:
                tall = max(0.7, height * count / most)
                start = low + (high - low) * place / len(counts)
                end = low + (high - low) * (place + 1) / len(counts)
                bars.append(
                    f'<rect x="{_NAMES + place * width:.1f}" y="{base - tall:.1f}"'
                    f' width="{max(0.5, width - 0.5):.1f}" height="{tall:.1f}">'
                    f"<title>{start:g} to {end:g}: {count / total:.2%}</title></rect>"
                )
        body.append(_name(name, base - 4))
        body.append(f'<g class="s{number % SERIES}">{"".join(bars)}</g>')
        body.append(f'<path class="line" d="M{_NAMES} {base}h{_PLOT}"/>')
    bottom = len(rows) * (height + 8)
    body.append(_axis(bottom, low=low, high=high, unit=""))
    return _svg(bottom + _AXIS, "".join(body), "Distribution of scores, one row an algorithm")


def draw_plane(
    points: Sequence[Point], *, x_title: str, y_title: str, x_unit: str = "", y_unit: str = ""
) -> str:
    """Return the points in a plane, each with its name beside it.

    The vertical axis grows with the square root, so that a far point leaves room for the others.
    """
    height = 340
    left, right = 56, WIDTH - 130
    x_low, x_high = _round_range([point.x for point in points])
    y_high = max([_SQUARES[0], *(point.y for point in points)]) * 1.05

    def across(value: float) -> float:
        return left + (right - left) * (value - x_low) / (x_high - x_low)

    def down(value: float) -> float:
        return height - (height - 24) * math.sqrt(max(0.0, value) / y_high)

    body = []
    for tick in _ticks(x_low, x_high):
        body.append(f'<path class="line" d="M{across(tick):.1f} 24V{height}"/>')
        body.append(_text(across(tick), height + 16, f"{tick:g}{x_unit}", "middle"))
    for tick in (0, *(square for square in _SQUARES if square <= y_high)):
        body.append(f'<path class="line" d="M{left} {down(tick):.1f}H{right}"/>')
        body.append(_text(left - 6, down(tick) + 4, f"{tick:g}{y_unit}", "end"))
    body.append(_text((left + right) / 2, height + 34, x_title, "middle"))
    body.append(_text(left - 50, 10, y_title, "start"))
    taken: list[tuple[float, float]] = []
    for number, point in sorted(enumerate(points), key=lambda pair: pair[1].y):
        x, y = across(point.x), down(point.y)
        label = y + 4
        while any(
            abs(label - other_y) < 13 and abs(x - other_x) < 110 for other_x, other_y in taken
        ):
            label -= 13
        taken.append((x, label))
        title = escape(f"{point.name}: {point.x:.2f}{x_unit}, {point.y:.2f}{y_unit}")
        if label < y:
            body.append(f'<path class="line" d="M{x:.1f} {y:.1f}L{x + 12:.1f} {label - 4:.1f}"/>')
        body.append(
            f'<circle class="s{number % SERIES}" cx="{x:.1f}" cy="{y:.1f}" r="5">'
            f"<title>{title}</title></circle>"
        )
        body.append(_text(x + 14, label, point.name, "start"))
    return _svg(height + 42, "".join(body), f"{y_title} against {x_title}")


def draw_planes(
    planes: Sequence[tuple[str, Sequence[Sequence[int]]]], *, x_title: str, y_title: str
) -> str:
    """Return one small heat map for each plane: the number of inputs in four shades.

    `plane[column][row]` counts from the left and from below.
    """
    across, size, gap = 4, 150, 26
    body = []
    for number, (name, plane) in enumerate(planes):
        left = number % across * (size + gap) + 8
        top = number // across * (size + gap + 8) + 18
        total = sum(map(sum, plane)) or 1
        width = size / max(1, len(plane))
        shades: list[list[str]] = [[], [], [], []]
        for place, column in enumerate(plane):
            height = size / max(1, len(column))
            for level, count in enumerate(column):
                share = count / total
                if share > 0:
                    shade = sum(share >= limit for limit in (0.0005, 0.005, 0.02))
                    x, y = left + place * width, top + size - (level + 1) * height
                    shades[shade].append(f"M{x:g} {y:g}h{width:g}v{height:g}h-{width:g}z")
        body.append(_text(left, top - 6, name, "start"))
        body.append(f'<path class="line" d="M{left} {top}v{size}h{size}"/>')
        body.extend(
            f'<path class="s{number % SERIES} o{shade}" d="{"".join(paths)}"/>'
            for shade, paths in enumerate(shades)
            if paths
        )
    rows = -(-len(planes) // across)
    bottom = rows * (size + gap + 8)
    body.append(_text(8, bottom + 10, f"across: {x_title}; up: {y_title}", "start"))
    return _svg(bottom + 16, "".join(body), f"{y_title} against {x_title}, by input")


def draw_parts(rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str]) -> str:
    """Return one bar of full width for each row, divided into the named parts."""
    body = []
    for number, (name, values) in enumerate(rows):
        top = number * _ROW
        total = sum(values) or 1.0
        x = float(_NAMES)
        body.append(_name(name, top + 16))
        for part, value in enumerate(values):
            width = _PLOT * value / total
            if width > 0:
                body.append(
                    f'<rect class="p{part}" x="{x:.1f}" y="{top + 3}" width="{width:.1f}"'
                    f' height="{_ROW - 8}"><title>{escape(parts[part])}: {value / total:.2%}'
                    "</title></rect>"
                )
            if width > 44:
                middle = _text(x + width / 2, top + 16, f"{value / total:.0%}", "middle")
                body.append(middle.replace("<text", '<text class="on"', 1))
            x += width
    bottom = len(rows) * _ROW
    x = float(_NAMES)
    for part, name in enumerate(parts):
        body.append(f'<rect class="p{part}" x="{x:.1f}" y="{bottom + 6}" width="10" height="10"/>')
        body.append(_text(x + 15, bottom + 15, name, "start"))
        x += 40 + 7 * len(name)
    return _svg(bottom + _AXIS, "".join(body), f"Parts of all inputs: {', '.join(parts)}")


def draw_bars(rows: Sequence[tuple[str, float]], *, title: str, unit: str = "") -> str:
    """Return one bar for each row, from zero, with its number after it."""
    high = _round_range([0.0, *(value for _, value in rows)])[1]
    body = []
    for number, (name, value) in enumerate(rows):
        top = number * _ROW
        width = (_PLOT - 60) * value / high
        body.append(_name(name, top + 16))
        body.append(
            f'<rect class="s{number % SERIES}" x="{_NAMES}" y="{top + 3}" width="{width:.1f}"'
            f' height="{_ROW - 8}"><title>{escape(name)}: {value:g}{unit}</title></rect>'
        )
        body.append(_text(_NAMES + width + 6, top + 16, f"{value:,.4g}{unit}", "start"))
    return _svg(len(rows) * _ROW + 4, "".join(body), title)


def draw_lines(
    series: Sequence[tuple[str, Sequence[float]]],
    *,
    title: str,
    span: float,
    x_unit: str = "",
    y_unit: str = "",
    mark: float | None = None,
) -> str:
    """Return one line over time for each series, from zero, and a horizontal line at `mark`.

    All series cover the same `span`; a series without values draws no line.
    """
    height, left, right = 220.0, 56.0, WIDTH - 16.0
    span = span if span > 0.0 else 1.0
    values = [value for _, line in series for value in line]
    high = _round_range([0.0, *values, mark or 0.0])[1]

    def down(value: float) -> float:
        return height - (height - 12) * value / high

    body = []
    for tick in _ticks(0.0, high):
        body.append(f'<path class="line" d="M{left} {down(tick):.1f}H{right}"/>')
        body.append(_text(left - 6, down(tick) + 4, f"{tick:g}{y_unit}", "end"))
    for tick in _ticks(0.0, span):
        x = left + (right - left) * tick / span
        body.append(_text(x, height + 16, f"{tick:g}{x_unit}", "middle"))
    if mark is not None:
        body.append(f'<path class="mark" d="M{left} {down(mark):.1f}H{right}"/>')
    x, bottom = left, height + 28
    for number, (name, line) in enumerate(series):
        step = (right - left) / max(1, len(line))
        # NB: a value holds for its whole step, so a line is a stair.
        points = "".join(
            f"V{down(value):.1f}H{left + (place + 1) * step:.1f}"
            for place, value in enumerate(line)
        )
        mean = sum(line) / max(1, len(line))
        if line:
            body.append(
                f'<path class="l{number % SERIES}" d="M{left} {down(line[0]):.1f}{points}">'
                f"<title>{escape(name)}: {mean:.1f}{y_unit} on average</title></path>"
            )
        width = 34 + 6.5 * len(name)
        if x + width > right:
            x, bottom = left, bottom + 18
        body.append(
            f'<rect class="s{number % SERIES}" x="{x:.1f}" y="{bottom}" width="10" height="10"/>'
        )
        body.append(_text(x + 15, bottom + 9, name, "start"))
        x += width
    return _svg(bottom + 16, "".join(body), title)


def _svg(height: float, body: str, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img"'
        f' aria-label="{escape(title)}">{body}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _name(text: str, y: float) -> str:
    return _text(_NAMES - 8, y, text, "end")


def _axis(top: float, *, low: float, high: float, unit: str) -> str:
    return "".join(
        _text(_NAMES + _PLOT * (tick - low) / (high - low), top + 14, f"{tick:g}{unit}", "middle")
        for tick in _ticks(low, high)
    )


def _round_range(values: Sequence[float]) -> tuple[float, float]:
    """Return round numbers below and above all values, never equal ones."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    step = _step(high - low or abs(high) or 1.0)
    lower = step * (low // step)
    upper = step * -(-high // step)
    return lower, upper if upper > lower else lower + step


def _ticks(low: float, high: float) -> list[float]:
    step = _step(high - low)
    first = -(-low // step)
    return [step * (first + n) for n in range(int((high - step * first) / step + 1e-9) + 1)]


def _step(span: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that divides a span into about five."""
    size = 1.0
    while size > span / 5:
        size /= 10
    while size * 10 <= span / 5:
        size *= 10
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= span / 6)
