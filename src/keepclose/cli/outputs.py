"""The forms in which commands answer: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer


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


def echo_json(document: object) -> None:
    """Print anything that msgspec encodes, indented by two; Raw keeps text as it came."""
    import msgspec

    from keepclose.cli.streams import escape_json, has_unicode

    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    typer.echo(text if has_unicode(sys.stdout) else escape_json(text))
