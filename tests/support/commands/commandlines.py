"""The command lines of keepclose that a page names, in blocks and in its text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import typer
from typer.exceptions import TyperException

from keepclose.cli.main import app, plain_switches

_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_QUOTED: Final = re.compile(r"`((?:kubectl )?keepclose [^`]+)`")
_ENDS: Final = re.compile(r"^(?:[|&;<>()]+|\d?>.*)$")
# What may stand before a command on its line.
_BEFORE: Final = re.compile(r"^(?:sudo|env|exec|[A-Z_]+=.*)$")


class Call(NamedTuple):
    """A call of keepclose: its arguments, and whether it is whole or only mentioned."""

    arguments: tuple[str, ...]
    whole: bool


def find_calls(page: str) -> Iterator[Call]:
    """Yield every call of keepclose in the blocks for a shell, then those quoted in the text."""
    for language, block in _BLOCK.findall(page):
        if language in ("sh", "bash", "console"):
            for line in block.replace("\\\n> ", " ").replace("\\\n", " ").splitlines():
                if language != "console" or line.startswith("$ "):
                    yield from _split(line.removeprefix("$ "), whole=True)
    for quoted in _QUOTED.findall(_BLOCK.sub("", page)):
        yield from _split(" ".join(quoted.split()), whole=False)


def _split(line: str, *, whole: bool) -> Iterator[Call]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:
        # A line of a script whose quotes go on; calls of ours stand on lines of their own.
        return
    command: list[str] = []
    for word in (*words, ";"):
        if word == "--":
            # What follows is a command for kubectl exec and its like.
            command = []
        elif not _ENDS.match(word):
            command.append(word)
        else:
            yield from _read_call(command, whole=whole)
            command = []


def _read_call(words: list[str], *, whole: bool) -> Iterator[Call]:
    """Yield the call that a command is, if it is one of ours."""
    start = next((index for index, word in enumerate(words) if not _BEFORE.match(word)), 0)
    if words[start : start + 2] == ["kubectl", "keepclose"]:
        start += 1
    if words[start:] and words[start].rpartition("/")[2] == "keepclose":
        yield Call(tuple(word for word in words[start + 1 :] if word != "..."), whole)


def find_mistake(call: Call) -> str | None:
    """Return what the command line says about a call before it would run it, or None if nothing."""
    command: Any = typer.main.get_command(app)
    arguments = plain_switches(list(call.arguments))
    context: Any = None
    while True:
        try:
            context = command.make_context(command.name, [*arguments], parent=context)
        except (TyperException, typer.Exit) as error:
            return _read_error(error, whole=call.whole)
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not rest or not hasattr(command, "commands"):
            return None
        if rest[0] not in command.commands:
            return f"no such command: {rest[0]}"
        command, arguments = command.commands[rest[0]], rest[1:]


def _read_error(error: Exception, *, whole: bool) -> str | None:
    kind = type(error).__name__
    if kind in ("Exit", "NoArgsIsHelpError") or (kind == "MissingParameter" and not whole):
        return None
    return str(error) or kind
