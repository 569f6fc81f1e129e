"""Lines, tables and terminals of rich that make every text plain.

Commands that draw with rich use these classes and never rich's own: no escape sequence, newline or
markup such as [link=...] in a name from outside reaches a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from keepclose.model.plain_text import make_plain

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["Grid", "Group", "Line", "Padding", "RenderableType", "Screen", "cell_len"]


class Line(Text):
    """Styled text on one line; a newline in it is shown as an escape."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        """Begin with a text."""
        super().__init__(make_plain(text), style, **options)

    @classmethod
    def assemble(cls, *parts: str | Text | tuple[str, str | Style], **options: Any) -> Line:
        """Return the parts in a row, each in its style."""
        line = cls(**options)
        for part in parts:
            if isinstance(part, tuple):
                line.append(*part)
            else:
                line.append(part)
        return line

    def append(self, text: Text | str, style: str | Style | None = None) -> Line:
        """Add a text at the end."""
        super().append(make_plain(text) if isinstance(text, str) else text, style)
        return self


class Grid(Table):
    """A table whose cells are lines."""

    def add_column(self, header: RenderableType = "", *args: Any, **options: Any) -> None:
        """Add a column."""
        super().add_column(_as_line(header), *args, **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        super().add_row(*map(_as_line, cells), **options)


class Screen(Console):
    """A terminal or a file that prints strings as lines."""

    def __init__(self, **options: Any) -> None:
        """Take standard output, or standard error where `stderr` is set."""
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print lines, tables, or an empty line."""
        super().print(*map(_as_line, objects), **options)

    def live(self) -> Live:
        """Return a display that takes the whole terminal and is drawn on request."""
        from rich.live import Live

        return Live(console=self, screen=True, auto_refresh=False)


def _as_line(cell: Any) -> Any:
    return Line(cell) if isinstance(cell, str) else cell
