"""One YAML document as a tree of nodes that know their lines, and as plain values.

Scalars mean what they mean to kubectl: `yes` and `off` are booleans, 1e3 is a number, dates and
12:30 stay strings, `<<` merges. Keys are strings and may stand once. Nothing here raises: a text
that cannot be read gives an `Unreadable`, in words that help somebody who does not know YAML's own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import msgspec
import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # pragma: no cover - PyYAML was built without libyaml; slower, else the same
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

DEPTH_MAX: Final = 200


class Unreadable(msgspec.Struct, frozen=True):
    """Why a text or a part of it cannot be read. Lines and columns count from 0, as YAML counts.

    `earlier` is the line of another place that has to do with it.
    """

    message: str
    line: int
    column: int
    fix: str = ""
    earlier: int | None = None


def compose_tree(text: str) -> Node | Unreadable | None:
    """Return the tree of the one document in a text, or None when there is none in it."""
    try:
        loader = _Loader(text)
        try:
            tree: Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        return _explain(error, text)
    except yaml.YAMLError:
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        before = text[: bad.start()] if bad else ""
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
        return Unreadable("not valid YAML: there is a control character", line, column)
    return tree


def build_value(node: Node) -> Any:
    """Return the plain value of a node, or an Unreadable for the first thing that has none."""
    try:
        return _build(node, {})
    except _UnreadableError as error:
        return error.unreadable
    except RecursionError:
        return _at(node, "the document refers to itself")


def read_members(node: MappingNode) -> dict[str, Node] | Unreadable:
    """Return the members of a map by their keys, merged ones included."""
    try:
        return _members(node)
    except _UnreadableError as error:
        return error.unreadable
    except RecursionError:
        return _at(node, "the document refers to itself")


class _UnreadableError(Exception):
    """Carries an Unreadable out of the depth of a tree."""

    def __init__(self, unreadable: Unreadable) -> None:
        super().__init__(unreadable.message)
        self.unreadable = unreadable


_TAG: Final = "tag:yaml.org,2002:"
_STR: Final = f"{_TAG}str"
_MERGE: Final = f"{_TAG}merge"
_plain = re.compile(
    r"(?P<null>~|null|Null|NULL|)"
    r"|(?P<bool>yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)"
    r"|(?P<int>[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*))"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
    r"|(?P<merge><<)"
).fullmatch
_BOOLEANS: Final = {
    "yes": True,
    "true": True,
    "on": True,
    "no": False,
    "false": False,
    "off": False,
}


class _Loader(_SafeLoader):
    """Composes trees with tags of our own choice, and refuses to go on for ever into the depth."""

    depth = 0

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        """Return the tag of a node that has none."""
        if kind is ScalarNode:
            return _plain_tag(value) if implicit[0] else _STR
        return f"{_TAG}seq" if kind is SequenceNode else f"{_TAG}map"

    def descend_resolver(self, current_node: Node | None, current_index: Any) -> None:  # noqa: ARG002
        """Note that the composer goes into a node.

        NB: libyaml's composer calls itself on the C stack, and would end the process wordlessly.
        """
        self.depth += 1
        if self.depth > DEPTH_MAX and current_node is not None:
            raise yaml.MarkedYAMLError(None, None, _TOO_DEEP, current_node.start_mark)

    def ascend_resolver(self) -> None:
        """Note that the composer is done with a node."""
        self.depth -= 1


@lru_cache(maxsize=1 << 16)
def _plain_tag(text: str) -> str:
    # No number is longer than this; a text may be, and need not stay in the cache's keys as well.
    match = _plain(text) if len(text) <= 64 else None
    return _STR if match is None else f"{_TAG}{match.lastgroup}"


@lru_cache(maxsize=1 << 12)
def _scalar(tag: str, text: str) -> str | float | bool | None:
    """Return the value of a scalar; what does not fit its tag stays a string."""
    match tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return _BOOLEANS.get(text.lower(), text)
        case "int":
            return _number(text, is_float=False)
        case "float":
            return _number(text, is_float=True)
        case _:
            return text


def _number(text: str, *, is_float: bool) -> str | float:
    digits = text.replace("_", "")
    try:
        if is_float:
            return float(re.sub(r"\.(?=[iInN])", "", digits))
        is_octal = re.fullmatch("[-+]?0[0-7]+", digits)
        return int(digits, 8) if is_octal else int(digits, 0)
    except ValueError:
        return text


def _members(node: MappingNode) -> dict[str, Node]:
    own: dict[str, Node] = {}
    merged: dict[str, Node] = {}
    for key, value in node.value:
        if key.tag == _MERGE:
            for base in value.value if isinstance(value, SequenceNode) else [value]:
                if not isinstance(base, MappingNode):
                    raise _UnreadableError(_at(value, "'<<' must be followed by a map"))
                merged = {**_members(base), **merged}
            continue
        name = key.value
        if not isinstance(key, ScalarNode):
            raise _UnreadableError(_at(key, "a key must be a text, not a list or a map"))
        if name in own:
            first = next(other for other, _ in node.value if other.value == name)
            message = f'the key "{name}" stands twice in one map'
            raise _UnreadableError(_at(key, message, earlier=first.start_mark.line))
        own[name] = value
    return {**merged, **own} if merged else own


def _build(node: Node, seen: dict[int, Any]) -> Any:
    if isinstance(node, ScalarNode):
        return node.value if node.tag == _STR else _scalar(node.tag, node.value)
    # Aliases lead to the same node again: its value is built once, however often it is used.
    mark = id(node)
    if mark in seen:
        if seen[mark] is _Loader:
            raise _UnreadableError(_at(node, "the document refers to itself"))
        return seen[mark]
    seen[mark] = _Loader
    if isinstance(node, MappingNode):
        value: Any = {key: _build(member, seen) for key, member in _members(node).items()}
    else:
        value = [_build(item, seen) for item in node.value]
    seen[mark] = value
    return value


def _at(node: Node, message: str, *, earlier: int | None = None) -> Unreadable:
    start = node.start_mark
    fix = "" if earlier is None else "remove one of the two"
    return Unreadable(message, start.line, start.column, fix, earlier)


_TOO_DEEP: Final = "nested too deeply"
_CHECK_INDENT: Final = "check the indentation of this line and of those above it"
_QUOTE_IT: Final = "put the text in quotes"
# What the parser says, what that means, and what to do.
_PLAIN_WORDS: Final = {
    "mapping values are not allowed": (
        "a ':' stands where none may",
        "check the indentation, and put texts that contain ': ' in quotes",
    ),
    "did not find expected key": ("expected a key such as 'name:'", _CHECK_INDENT),
    "did not find expected '-' indicator": ("expected another item after '- '", _CHECK_INDENT),
    "could not find expected ':'": ("expected ':' after the key", "put ': ' between key and value"),
    "did not find expected node content": ("expected a value", "close the bracket or brace"),
    "found unexpected end of stream": ("a quote is not closed", "close the quote"),
    "did not find expected ',' or ']'": (
        "expected ',' or ']'",
        "close the bracket, or put a comma between items",
    ),
    "did not find expected ',' or '}'": (
        "expected ',' or '}'",
        "close the brace, or put a comma between members",
    ),
    "did not find expected <document start>": (
        "expected the end of the document",
        "put '---' on a line of its own between documents",
    ),
    "found undefined alias": (
        "the text after '*' is not the name of any anchor",
        "put it in quotes if it is no alias",
    ),
    "found unknown escape character": (
        "in double quotes a '\\' stands before a character that needs none",
        "use single quotes, or write '\\\\'",
    ),
}


def _explain(error: yaml.MarkedYAMLError, text: str) -> Unreadable:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    problem = error.problem or error.context or str(error)
    message, fix = problem, ""
    for said, (meaning, remedy) in _PLAIN_WORDS.items():
        if problem.startswith(said):
            message, fix = meaning, remedy
    if problem == "found character that cannot start any token" and mark is not None:
        char = text[mark.index : mark.index + 1]
        message, fix = f"a text cannot start with '{char}'", _QUOTE_IT
        if char == "\t":
            message, fix = "a tab stands where only blanks may", "indent with blanks"
    return Unreadable(f"not valid YAML: {message}", line, column, fix)
