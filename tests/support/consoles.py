r"""Pages whose commands are run: what a page says, and whether that is what comes out.

A fenced block of the language `console` holds commands and what they print:

    $ kubectl get pods -l app=demo \
    >   --no-headers
    demo-6b7c9d5f48-x2k9q   1/1   Running   0   4s
    ...

Lines that begin with `$ ` are commands, those with `> ` right after go on with one. What follows,
up to the next command, is the whole output. A line `...` stands for any lines, `...` within a line
for any text. A comment before a block may loosen it; see `parse_page`. Nothing here runs anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from support.normalising import normalise

ANY: Final = "..."
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*([\w-]*)")
_DIRECTIVE: Final = re.compile(r"^ {0,3}<!--\s*console:\s*(.*?)\s*-->\s*$")
_WITHIN: Final = re.compile(r"^numbers within (\d+) %$")
_EXITS: Final = re.compile(r"^exits (\d+)$")
# A number that stands for itself: neither part of a name or an address, nor a version.
_NUMBER: Final = re.compile(r"(?<![\w.:-])\d[\d,]*(?:\.\d+)?(?=$|[\s%x,;)/])")
_NUMBER_GROUP: Final = r"(\d[\d,]*(?:\.\d+)?)"


class PageError(ValueError):
    """A page that cannot be read as one to be run; the text begins with the line."""


class Rules(msgspec.Struct, frozen=True):
    """How strictly the output of a command is compared."""

    exit_code: int = 0
    tolerance: float = 0.0
    any_order: bool = False
    retried: bool = False


class Command(msgspec.Struct, frozen=True):
    """A command of a page, at a line counted from 1, and the output that the page shows."""

    text: str
    line: int
    want: tuple[str, ...] = ()
    rules: Rules = Rules()


def parse_page(text: str) -> list[Command]:
    """Return the commands of all console blocks of a page, in order; raise PageError.

    A comment `<!-- console: ... -->` right before a block says, separated by commas, that
    `numbers within 20 %` are the same, `lines in any order` are too, that its commands are
    `retried` until the output is the one shown, or that the last of them `exits 2`.
    """
    commands: list[Command] = []
    rules, told_at = Rules(), 0
    lines = list(enumerate(text.splitlines(), 1))
    position = 0
    while position < len(lines):
        number, line = lines[position]
        position += 1
        if (directive := _DIRECTIVE.match(line)) is not None:
            rules, told_at = _parse_rules(directive.group(1), number), number
            continue
        if (fence := _FENCE.match(line)) is None:
            if line.strip() and told_at:
                raise PageError(f"line {told_at}: no console block follows")
            continue
        block: list[tuple[int, str]] = []
        while position < len(lines) and not _closes(lines[position][1], fence.group(1)):
            block.append(lines[position])
            position += 1
        position += 1
        if fence.group(2) == "console":
            commands += _parse_block(block, rules, number)
        elif told_at:
            raise PageError(f"line {told_at}: no console block follows")
        rules, told_at = Rules(), 0
    if told_at:
        raise PageError(f"line {told_at}: no console block follows")
    return commands


def _closes(line: str, opening: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(opening) and set(stripped) == {opening[0]}


def _parse_rules(text: str, line: int) -> Rules:
    rules = Rules()
    for phrase in (one.strip() for one in text.split(",")):
        if (within := _WITHIN.match(phrase)) is not None:
            rules = msgspec.structs.replace(rules, tolerance=int(within.group(1)) / 100)
        elif (exits := _EXITS.match(phrase)) is not None:
            rules = msgspec.structs.replace(rules, exit_code=int(exits.group(1)))
        elif phrase == "lines in any order":
            rules = msgspec.structs.replace(rules, any_order=True)
        elif phrase == "retried":
            rules = msgspec.structs.replace(rules, retried=True)
        else:
            raise PageError(f"line {line}: {phrase!r} is none of: {_PHRASES}")
    return rules


_PHRASES: Final = "numbers within N %, lines in any order, retried, exits N"


def _parse_block(block: Sequence[tuple[int, str]], rules: Rules, line: int) -> Iterator[Command]:
    """Yield the commands of a block; only the last one may end with another exit code than 0."""
    starts = [index for index, (_, text) in enumerate(block) if text.startswith("$ ")]
    if not starts or starts[0] != 0:
        raise PageError(f"line {line}: a console block begins with a command: $ ...")
    for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
        number, first = block[start]
        words, after = [first.removeprefix("$ ")], start + 1
        while after < end and block[after][1].startswith("> "):
            words.append(block[after][1].removeprefix("> "))
            after += 1
        shown = tuple(text.rstrip() for _, text in block[after:end])
        own = rules if end == len(block) else msgspec.structs.replace(rules, exit_code=0)
        yield Command("\n".join(words), number, _strip(shown), own)


def explain_difference(
    command: Command, output: str, *, exit_code: int = 0, home: str = ""
) -> str | None:
    """Return how the output differs from the one shown, as lines of text, or None if it does not.

    `home` is the home directory of whoever ran the command, which pages show as ~.
    """
    got = _strip(tuple(line.rstrip() for line in output.splitlines()))
    if exit_code != command.rules.exit_code:
        reason = f"exit code {exit_code} instead of {command.rules.exit_code}"
        return _describe(reason, command.want, got)
    patterns = [_Pattern(line, command.rules.tolerance, home) for line in command.want]
    lines = [normalise(line, home=home) for line in got]
    missed = (
        _match_any_order(patterns, lines) if command.rules.any_order else _match(patterns, lines)
    )
    return None if missed is None else _describe(missed, command.want, got)


class _Pattern:
    """A shown line, which may leave text and the exact numbers open."""

    def __init__(self, shown: str, tolerance: float, home: str) -> None:
        self.shown = shown
        self.any_lines = shown.strip() == ANY
        self._tolerance = tolerance
        self._numbers: list[float] = []
        parts = [self._write(part) for part in normalise(shown, home=home).split(ANY)]
        self._regex = re.compile(".*?".join(parts))

    def _write(self, part: str) -> str:
        if not self._tolerance:
            return re.escape(part)
        written, end = "", 0
        for number in _NUMBER.finditer(part):
            written += re.escape(part[end : number.start()]) + _NUMBER_GROUP
            self._numbers.append(_read_number(number.group()))
            end = number.end()
        return written + re.escape(part[end:])

    def fits(self, line: str) -> bool:
        found = self._regex.fullmatch(line)
        if found is None:
            return False
        return all(
            abs(want - _read_number(text)) <= self._tolerance * max(want, _read_number(text))
            for want, text in zip(self._numbers, found.groups(), strict=True)
        )


def _match(patterns: Sequence[_Pattern], lines: Sequence[str]) -> str | None:
    """Return None if the lines fit the patterns in order, else which of them is the first not to.

    Between two lines `...` the first place that fits is taken, which finds one if there is one;
    what stands after the last `...` must fit the end.
    """
    groups: list[list[_Pattern]] = [[]]
    for pattern in patterns:
        if pattern.any_lines:
            groups.append([])
        else:
            groups[-1].append(pattern)
    at = 0
    for index, group in enumerate(groups):
        first, last = index == 0, index == len(groups) - 1
        if first:
            places: Sequence[int] = [0]
        elif last:
            places = [len(lines) - len(group)] if len(lines) - len(group) >= at else []
        else:
            places = range(at, len(lines) - len(group) + 1)
        for place in places:
            if _fitting(group, lines[place:]) == len(group):
                at = place + len(group)
                break
        else:
            return _name_missed(group, lines, at if not first else 0, in_place=first)
        if first and last and at != len(lines):
            return f"more lines than shown, from line {at + 1} of the output on"
    return None


def _fitting(group: Sequence[_Pattern], lines: Sequence[str]) -> int:
    """Return how many patterns from the first on fit the lines from the first on."""
    for index, pattern in enumerate(group):
        if index >= len(lines) or not pattern.fits(lines[index]):
            return index
    return len(group)


def _name_missed(
    group: Sequence[_Pattern], lines: Sequence[str], start: int, *, in_place: bool
) -> str:
    places = [start] if in_place else range(start, len(lines) + 1)
    furthest = max((_fitting(group, lines[place:]) for place in places), default=0)
    missed = group[min(furthest, len(group) - 1)]
    return f"this line did not come: {missed.shown.strip()}"


def _match_any_order(patterns: Sequence[_Pattern], lines: Sequence[str]) -> str | None:
    left = list(lines)
    for pattern in patterns:
        if pattern.any_lines:
            continue
        found = next((index for index, line in enumerate(left) if pattern.fits(line)), None)
        if found is None:
            return f"this line did not come: {pattern.shown.strip()}"
        del left[found]
    if left and not any(pattern.any_lines for pattern in patterns):
        return f"this line is not shown: {left[0]}"
    return None


def _describe(reason: str, want: Sequence[str], got: Sequence[str]) -> str:
    expected = "\n".join(f"    {line}" for line in want) or "    (nothing)"
    came = "\n".join(f"    {line}" for line in got) or "    (nothing)"
    return f"{reason}\n  expected:\n{expected}\n  got:\n{came}"


def _read_number(text: str) -> float:
    return float(text.replace(",", ""))


def _strip(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines without blank ones at either end."""
    start, end = 0, len(lines)
    while start < end and not lines[start].strip():
        start += 1
    while end > start and not lines[end - 1].strip():
        end -= 1
    return lines[start:end]
