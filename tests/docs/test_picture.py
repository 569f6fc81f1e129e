"""The picture in the README shows what its commands print today.

Without a cluster it is compared with the tutorial, whose commands are run; with one it is made
anew.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from support.consoles import Command, Rules, explain_difference, parse_page
from support.real.programs import program

ROOT = Path(__file__).parent.parent.parent
PICTURE = ROOT / "docs" / "pictures" / "traffic.svg"
TEXT = "{http://www.w3.org/2000/svg}text"
# Half of what an em is high; the template has letters of 20.
LETTER = 12.0
LOOSE = Rules(tolerance=0.2)


def read_lines(svg: str) -> list[str]:
    """Return the lines of text that a picture shows, from the top, each letter in its column."""
    rows: dict[float, list[tuple[int, str]]] = {}
    for one in ET.fromstring(svg).iter(TEXT):  # noqa: S314 - our own file
        if "textLength" in one.attrib:
            place = round(float(one.attrib["x"]) / LETTER)
            text = (one.text or "").replace("\xa0", " ")
            rows.setdefault(float(one.attrib["y"]), []).append((place, text))
    lines = []
    for _, parts in sorted(rows.items()):
        line = ""
        for place, text in sorted(parts):
            line = line.ljust(place) + text
        lines.append(line.rstrip())
    return lines


def read_scenes(svg: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a picture with what they print there."""
    text = "\n".join(read_lines(svg))
    for scene in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = scene.partition("\n")
        yield command, output


def settle_chance(text: str) -> str:
    """Return a text whose counts are the expected ones, after they were found to be so by chance.

    Two runs may differ by more than the tolerance, because both are drawn by lot; neither differs
    by five standard deviations from what is expected.
    """
    lines = []
    for line in text.splitlines():
        expected = re.search(r"(\d+)/(\d+)/(\d+)  ", line)
        if expected is None:
            # NB: which of several equal endpoints is the busiest is drawn too, and so is its zone.
            lines.append(re.sub(r"(?<=, )zone-\w(?=\)$)", "zone", line))
            continue
        shares = [int(share) / 100 for share in expected.groups()]
        counts = [
            0 if cell == "·" else int(cell.replace(",", ""))
            for cell in re.findall(r"·|[\d,]+(?= +\d+ %)", line)
        ]
        total = sum(counts)
        assert len(counts) == len(shares), line
        for count, share in zip(counts, shares, strict=True):
            deviation = math.sqrt(total * share * (1 - share))
            assert abs(count - total * share) <= 5 * deviation, line
        cells = " ".join(f"{total * share:.0f} {share:.0%}" for share in shares)
        row = re.match(r" *(from )?\S+", line)
        assert row is not None, line
        lines.append(f"{row.group()}  {cells}  {line[expected.start() :]}")
    return "\n".join(lines)


def test_the_picture_is_small_and_complete() -> None:
    """It loads nothing from elsewhere, has both states of the Service, and the README shows it."""
    svg = PICTURE.read_text()
    assert len(svg) < 60_000
    assert re.findall(r"//[^\s\"']+", svg) == ["//www.w3.org/2000/svg"]
    assert "](docs/pictures/traffic.svg)" in (ROOT / "README.md").read_text()
    assert [command for command, _ in read_scenes(svg)] == [
        "keepclose traffic demo-svc",
        """kubectl patch service demo-svc -p '{"spec":{"trafficDistribution":null}}'""",
        "keepclose traffic demo-svc",
    ]


def test_the_picture_is_like_the_tutorial() -> None:
    """The same commands, in this order, print the same there, but for chance."""
    shown = iter(parse_page((ROOT / "docs" / "tutorial.md").read_text()))
    for command, output in read_scenes(PICTURE.read_text()):
        same = next((one for one in shown if one.text == command), None)
        assert same is not None, command
        assert explain_difference(same, output) is None


@pytest.mark.real
def test_the_picture_made_anew(tmp_path: Path) -> None:
    """A real run gives the same picture, but for chance."""
    kubectl = program("kubectl")
    environment = {**os.environ, "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "picture.py", tmp_path / "new.svg"],
        check=True,
        env=environment,
        timeout=300,
    )
    new = settle_chance("\n".join(read_lines((tmp_path / "new.svg").read_text())))
    old = settle_chance("\n".join(read_lines(PICTURE.read_text())))
    want = Command("the picture", 0, tuple(old.splitlines()), LOOSE)
    assert explain_difference(want, new) is None
