"""Parses one YAML document into a tree of nodes that know their lines, and into plain values.

The shared YAML reader in `kube` parses; this module words its errors for users who do not know
YAML's terms. Keys are strings and must not repeat. Nothing here raises: a text that cannot be read
gives an `Unreadable`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import yaml
from yaml.nodes import MappingNode, Node

from keepclose.kube.yaml_nodes import (
    CONTAINS_ITSELF,
    TOO_DEEP,
    TOO_MANY_ALIASES,
    YamlError,
    YamlLimits,
    compose,
)
from keepclose.kube.yaml_values import KEY_NEEDS_TEXT, KEY_REPEATED, MERGE_NEEDS_MAP, YamlBuilder

# A manifest may be as long as the cluster is large, but what aliases repeat is bounded.
_LIMITS: Final = YamlLimits()
_CHECK_INDENT: Final = "check the indentation of this line and of those above it"
_QUOTE_IT: Final = "put the text in quotes"
# The parser's message: our message, and the fix.
_PLAIN_WORDS: Final = {
    "mapping values are not allowed": (
        "a ':' is not allowed here",
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
    TOO_DEEP: ("nested too deeply", ""),
    TOO_MANY_ALIASES: (
        "its aliases repeat more than a document may hold",
        "write the parts out instead of repeating them with '*'",
    ),
    "unknown anchor": (
        "the text after '*' is not the name of any anchor",
        "put it in quotes if it is no alias",
    ),
    "found unknown escape character": (
        "in double quotes a '\\' precedes a character that needs none",
        "use single quotes, or write '\\\\'",
    ),
}
# The same for values that parse as YAML but have no meaning in JSON.
_VALUE_WORDS: Final = {
    CONTAINS_ITSELF: "the document refers to itself",
    MERGE_NEEDS_MAP: "'<<' must be followed by a map",
    TOO_MANY_ALIASES: "its '<<' repeat more than a document may hold",
    KEY_NEEDS_TEXT: "a key must be a text, not a list or a map",
}


class Unreadable(msgspec.Struct, frozen=True):
    """Why a text or a part of it cannot be read. Lines and columns count from 0, as YAML counts.

    `earlier` is the line of the first of two repeated keys.
    """

    message: str
    line: int
    column: int
    fix: str = ""
    earlier: int | None = None


def compose_tree(text: str) -> Node | Unreadable | None:
    """Return the tree of the one document in a text, or None for an empty text."""
    try:
        document = compose(text, _LIMITS, alone=True)
    except YamlError as error:
        return _explain(error, text)
    return None if document is None else document.root


def build_value(node: Node) -> Any:
    """Return the plain value of a node, or an Unreadable for its first node without a value."""
    try:
        return YamlBuilder(_LIMITS, exact=False).build(node)
    except YamlError as error:
        return _explain_value(error)


def read_members(node: MappingNode) -> dict[str, Node] | Unreadable:
    """Return the members of a map by their keys, merged ones included."""
    try:
        return YamlBuilder(_LIMITS, exact=False).members(node)
    except YamlError as error:
        return _explain_value(error)


def _explain(error: YamlError, text: str) -> Unreadable:
    if error.line is None:
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        before = text[: bad.start()] if bad else ""
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
        return Unreadable("not valid YAML: there is a control character", line, column)
    message, fix = error.problem, ""
    for prefix, (plain_message, plain_fix) in _PLAIN_WORDS.items():
        if error.problem.startswith(prefix):
            message, fix = plain_message, plain_fix
    if error.problem == "found character that cannot start any token":
        char = text[error.index : error.index + 1]
        message, fix = f"a text cannot start with '{char}'", _QUOTE_IT
        if char == "\t":
            message, fix = "a tab is not allowed here", "indent with spaces"
    return Unreadable(f"not valid YAML: {message}", error.line, error.column, fix)


def _explain_value(error: YamlError) -> Unreadable:
    problem, line = error.problem, error.line or 0
    if problem.endswith(KEY_REPEATED):
        message = f"the {problem.removesuffix(KEY_REPEATED)}is repeated in one map"
        return Unreadable(message, line, error.column, "remove one of the two", error.earlier)
    return Unreadable(_VALUE_WORDS.get(problem, problem), line, error.column)
