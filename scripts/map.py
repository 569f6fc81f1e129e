"""Draw the map of the rooms, docs/pictures/rooms.svg, from the imports; with --check compare it.

The rows are the layers of the contract in pyproject.toml. An arrow is drawn from a room to a room
that it imports, unless another arrow leads there through a room in between.
"""

from __future__ import annotations

import ast
import sys
import textwrap
import tomllib
from collections import defaultdict
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "keepclose"
PICTURE: Final = ROOT / "docs" / "pictures" / "rooms.svg"
_WIDTH: Final = 1120
_ROW: Final = 132
_BOX_HEIGHT: Final = 84
_MAX_BOX_WIDTH: Final = 210
_GAP: Final = 14
_MARGIN: Final = 20
_LETTER: Final = 6.2
# Rows are shifted by turns, so that arrows to lower rows pass beside boxes.
_SHIFT: Final = 75
_STYLE: Final = (
    "text { font-family: sans-serif; fill: #1f2933; }"
    ".name { font-size: 15px; font-weight: bold; }"
    ".about { font-size: 10.5px; fill: #52606d; }"
    "rect { fill: #f5f7fa; stroke: #7b8794; rx: 6; }"
    ".core rect { fill: #e3f8ff; stroke: #2bb0ed; }"
    "line { stroke: #9aa5b1; stroke-width: 1.2; marker-end: url(#head); }"
)
_ARROW_HEAD: Final = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0 8 4 0 8z" fill="#9aa5b1"/></marker></defs>'
)
# Rooms without I/O.
_CORE: Final = frozenset({"model", "routing", "slices", "ruleset", "accounting"})


class Box(NamedTuple):
    """The place of a room in the picture."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        """The horizontal middle."""
        return self.x + self.width / 2


def main() -> int:
    """Write the picture, or return 1 when the one that is there differs."""
    drawn = draw(read_layers(), read_imports())
    if sys.argv[1:] != ["--check"]:
        PICTURE.write_text(drawn)
        return 0
    if PICTURE.exists() and PICTURE.read_text() == drawn:
        return 0
    sys.stderr.write(f"{PICTURE.relative_to(ROOT)} is not up to date; run make docs\n")
    return 1


def read_layers() -> list[list[str]]:
    """Return the rooms of each layer, the top one first, as the contract has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [
        [room.strip().removeprefix("keepclose.") for room in layer.split("|")]
        for layer in contract["layers"]
    ]


def read_imports() -> dict[str, set[str]]:
    """Return the rooms that each room imports, also inside functions."""
    imports: defaultdict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        room = _room_of(path)
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                # NB: a plain `import keepclose` names no room.
                if parts[0] == "keepclose" and parts[1:] and (SOURCE / parts[1]).is_dir():
                    imports[room].add(parts[1])
        imports[room].discard(room)
    return imports


def find_arrows(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that no path through other rooms implies."""
    return [
        (room, imported)
        for room in sorted(imports)
        for imported in sorted(imports[room])
        if not any(
            imported in _reachable(imports, other) for other in imports[room] if other != imported
        )
    ]


def draw(layers: list[list[str]], imports: dict[str, set[str]]) -> str:
    """Return the picture as SVG."""
    boxes = _place(layers)
    rooms = [room for layer in layers for room in layer]
    imports = {room: imports.get(room, set()) & set(rooms) for room in rooms}
    height = _MARGIN * 2 + _ROW * (len(layers) - 1) + _BOX_HEIGHT
    lines = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" xmlns="http://www.w3.org/2000/svg" role="img">',
        "<title>The rooms of keepclose and their imports</title>",
        f"<style>{_STYLE}</style>",
        _ARROW_HEAD,
    ]
    for room, imported in find_arrows(imports):
        start, end = boxes[room], boxes[imported]
        lines.append(
            f'<line x1="{start.middle:g}" y1="{start.y + _BOX_HEIGHT:g}"'
            f' x2="{end.middle:g}" y2="{end.y:g}"/>'
        )
    for room, box in boxes.items():
        lines += [
            f'<g class="{"core" if room in _CORE else "room"}">',
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{_BOX_HEIGHT}"/>',
            _text(box, 20, "name", room),
            *(
                _text(box, 34 + 14 * number, "about", line)
                for number, line in enumerate(_lines_about(room, box))
            ),
            "</g>",
        ]
    return "\n".join([*lines, "</svg>", ""])


def _place(layers: list[list[str]]) -> dict[str, Box]:
    boxes = {}
    for row, layer in enumerate(layers):
        width = min((_WIDTH - 2 * _MARGIN - _GAP * (len(layer) - 1)) / len(layer), _MAX_BOX_WIDTH)
        left = (_WIDTH - width * len(layer) - _GAP * (len(layer) - 1)) / 2
        if width == _MAX_BOX_WIDTH:
            left += _SHIFT * (-1) ** row
        for column, room in enumerate(layer):
            boxes[room] = Box(left + column * (width + _GAP), _MARGIN + row * _ROW, width)
    return boxes


def _text(box: Box, below: int, style: str, text: str) -> str:
    return (
        f'<text class="{style}" x="{box.middle:g}" y="{box.y + below:g}"'
        f' text-anchor="middle">{escape(text)}</text>'
    )


def _lines_about(room: str, box: Box) -> list[str]:
    """Return the first sentence about a room, cut into lines that fit into its box."""
    documentation = ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text())) or ""
    sentence = documentation.partition("\n")[0].rstrip(".")
    return textwrap.wrap(sentence, int(box.width / _LETTER), break_on_hyphens=False)[:4]


def _room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def _reachable(imports: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    pending = [start]
    while pending:
        for room in imports.get(pending.pop(), set()) - reached:
            reached.add(room)
            pending.append(room)
    return reached


if __name__ == "__main__":
    sys.exit(main())
