"""What commands print: lines for people, JSON or YAML for programs.

The one place that writes to standard output and error; tables are drawn by `screens`. Lines hold
names and messages of others, so each is made plain: it stays one line and steers no terminal. JSON
and YAML keep every value as it is, and write what cannot be seen as escapes of their own.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from keepclose.model.plain_text import escape_hidden, make_plain


class TableOrJson(StrEnum):
    """Forms of most answers."""

    TABLE = "table"
    JSON = "json"


class TableJsonOrYaml(StrEnum):
    """Forms of answers that stand beside manifests."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


AnswerForm = Annotated[TableOrJson, typer.Option("-o", "--output", help="Form of the answer.")]
_CLEAR_LINE = "\r\x1b[K"


def say(*lines: str, err: bool = False) -> None:
    """Print each text on a line of its own, made plain; none prints nothing."""
    if lines:
        typer.echo("\n".join(map(make_plain, lines)), err=err)


def show_passing(text: str) -> None:
    """Show how far work is, on a line of standard error that the next one replaces.

    Only a terminal gets it; an empty text takes the line away.
    """
    if sys.stderr.isatty():
        typer.echo(_CLEAR_LINE + make_plain(text), err=True, nl=False)


def echo_document(text: str) -> None:
    """Print a whole text in a format of its own, such as a script or HTML, which did its escaping.

    NB: never a text of others.
    """
    typer.echo(text, nl=False)


def echo_json(document: object) -> None:
    """Print anything that msgspec encodes, indented by two; Raw keeps text as it came."""
    import msgspec

    from keepclose.cli.streams import escape_json, has_unicode

    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    typer.echo(escape_hidden(text) if has_unicode(sys.stdout) else escape_json(text))


def echo_yaml(document: object) -> None:
    """Print plain values as YAML; a text with more than one line stands on one, in quotes."""
    import yaml

    from keepclose.kube.yaml_nodes import STR, plain_tag

    class _Dumper(yaml.SafeDumper):
        """Writes no line that begins with a part of a text."""

    def represent(dumper: Any, text: str) -> Any:
        # NB: y and 1e3 are strings to this dumper, and none to readers of Kubernetes.
        style = '"' if "\n" in text or plain_tag(text) != STR else None
        return dumper.represent_scalar(STR, text, style=style)

    _Dumper.add_representer(str, represent)
    typer.echo(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=sys.maxsize),
        nl=False,
    )
