"""Charts as SVG text."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from keepclose.cli.render.charts import (
    Point,
    draw_bars,
    draw_lines,
    draw_parts,
    draw_plane,
    draw_planes,
    draw_ridges,
)


def parsed(svg: str) -> ET.Element:
    """Return the chart as XML, which it must be."""
    root = ET.fromstring(svg)  # noqa: S314 (made by ourselves)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    return root


def texts(root: ET.Element) -> list[str]:
    """Return the texts that can be seen."""
    return [one.text or "" for one in root.iter("text")]


def test_ridges_have_a_bar_for_each_bin_with_something_in_it() -> None:
    """Heights follow the counts of their own row, and titles tell the share."""
    root = parsed(draw_ridges([("one", [0, 1, 3]), ("two", [2, 0, 0])], low=0, high=30))
    bars = list(root.iter("rect"))
    assert [float(bar.get("height", "0")) for bar in bars] == pytest.approx([44 / 3, 44, 44], 0.01)
    assert [title.text for title in root.iter("title")] == [
        "10 to 20: 25.00%",
        "20 to 30: 75.00%",
        "0 to 10: 100.00%",
    ]
    assert texts(root) == ["one", "two", "0", "5", "10", "15", "20", "25", "30"]


def test_points_stand_where_their_numbers_say() -> None:
    """More is further right and further up; names that would overlap are moved apart."""
    points = [Point("a<b", 10, 0), Point("high", 90, 100), Point("near", 10, 0)]
    root = parsed(draw_plane(points, x_title="x", y_title="y", x_unit=" %"))
    low, near, high = list(root.iter("circle"))
    assert float(high.get("cx", "0")) > float(low.get("cx", "0")) == float(near.get("cx", "0"))
    assert float(high.get("cy", "0")) < float(low.get("cy", "0"))
    assert {"a<b", "high", "near"} <= set(texts(root))
    placed = {one.text: float(one.get("y", "0")) for one in root.iter("text")}
    assert abs(placed["a<b"] - placed["near"]) >= 13


def test_parts_fill_the_whole_bar() -> None:
    """The widths of a row add up to all rows' width, empty parts have none."""
    root = parsed(draw_parts([("x", (3, 0, 1)), ("y", (0, 0, 2))], ("more", "same", "less")))
    bars = [one for one in root.iter("rect") if one.find("title") is not None]
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert widths[0] + widths[1] == pytest.approx(widths[2])
    assert [bar.get("class") for bar in bars] == ["p0", "p2", "p2"]
    assert {"75%", "25%", "100%", "more", "same", "less"} <= set(texts(root))


def test_bars_begin_at_zero() -> None:
    """Lengths are in proportion, and the number stands behind the bar."""
    root = parsed(draw_bars([("a", 10.0), ("b", 0.0), ("c", 40.0)], title="t", unit=" ms"))
    widths = [float(one.get("width", "0")) for one in root.iter("rect")]
    assert widths[1] == 0
    assert widths[2] == pytest.approx(4 * widths[0], rel=0.01)
    assert "40 ms" in texts(root)


def test_planes_are_shaded_by_how_much_lies_where() -> None:
    """A cell with nothing in it is not drawn; the fullest has the darkest shade."""
    root = parsed(draw_planes([("p", [[9999, 0], [0, 1]])], x_title="x", y_title="y"))
    shades = {one.get("class"): one.get("d", "") for one in root.iter("path")}
    assert set(shades) == {"line", "s0 o3", "s0 o0"}
    assert len(re.findall("M", shades["s0 o3"])) == 1


def test_lines_are_stairs_over_the_whole_span() -> None:
    """A value holds for its step; higher is further up, and the mark lies at its value."""
    svg = draw_lines([("a<b", [0.0, 50.0]), ("c", [100.0])], title="t", span=30, mark=50.0)
    root = parsed(svg)
    paths = {one.get("class"): one.get("d", "") for one in root.iter("path")}
    level = re.fullmatch(r"M56.0 ([0-9.]+)H704.0", paths["mark"])
    assert level is not None
    assert paths["l0"] == f"M56.0 220.0V220.0H380.0V{level[1]}H704.0"
    assert paths["l1"] == "M56.0 12.0V12.0H704.0"
    assert [title.text for title in root.iter("title")] == [
        "a<b: 25.0 on average",
        "c: 100.0 on average",
    ]
    assert {"a<b", "c", "0", "30", "100"} <= set(texts(root))


@pytest.mark.parametrize(
    "svg",
    [
        pytest.param(draw_bars([], title="t"), id="bars"),
        pytest.param(draw_ridges([], low=0, high=1), id="ridges"),
        pytest.param(draw_parts([], ("a",)), id="parts"),
        pytest.param(draw_planes([], x_title="x", y_title="y"), id="planes"),
        pytest.param(draw_plane([], x_title="x", y_title="y"), id="plane"),
        pytest.param(draw_plane([Point("p", 0, 0)], x_title="x", y_title="y"), id="one point"),
        pytest.param(draw_bars([("a", 0.0)], title="t"), id="only zero"),
        pytest.param(draw_lines([], title="t", span=0), id="lines"),
        pytest.param(draw_lines([("a", []), ("b", [0.0])], title="t", span=1), id="no values"),
    ],
)
def test_nothing_to_draw_is_a_chart_too(svg: str) -> None:
    """No numbers, or all the same, divide by nothing."""
    parsed(svg)
