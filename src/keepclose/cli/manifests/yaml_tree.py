"""One YAML document as a tree of nodes that know their lines, and as plain values.

The shared reader of YAML reads it; this puts its objections into words that help a user who does
not know YAML's own. Keys are strings and may stand once. Nothing here raises: a text that cannot be
read gives an `Unreadable`.
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
from keepclose.kube.yaml_values import KEY_NEEDS_TEXT, KEY_REPEATED, MERGE_NEEDS_MAP, Builder

# Manifests may be as long as a cluster is large; what aliases repeat is bounded all the same.
_LIMITS: Final = YamlLimits()


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
        document = compose(text, _LIMITS, alone=True)
    except YamlError as error:
        return _explain(error, text)
    return None if document is None else document.root


def build_value(node: Node) -> Any:
    """Return the plain value of a node, or an Unreadable for the first thing that has none."""
    try:
        return Builder(_LIMITS, exact=False).build(node)
    except YamlError as error:
        return _explain_value(error)


def read_members(node: MappingNode) -> dict[str, Node] | Unreadable:
    """Return the members of a map by their keys, merged ones included."""
    try:
        return Builder(_LIMITS, exact=False).members(node)
    except YamlError as error:
        return _explain_value(error)


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
        "in double quotes a '\\' stands before a character that needs none",
        "use single quotes, or write '\\\\'",
    ),
}


# The same for what is wrong with a value that could be parsed.
_VALUE_WORDS: Final = {
    CONTAINS_ITSELF: "the document refers to itself",
    MERGE_NEEDS_MAP: "'<<' must be followed by a map",
    TOO_MANY_ALIASES: "its '<<' repeat more than a document may hold",
    KEY_NEEDS_TEXT: "a key must be a text, not a list or a map",
}


def _explain(error: YamlError, text: str) -> Unreadable:
    if error.line is None:
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        before = text[: bad.start()] if bad else ""
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
        return Unreadable("not valid YAML: there is a control character", line, column)
    message, fix = error.problem, ""
    for said, (meaning, remedy) in _PLAIN_WORDS.items():
        if error.problem.startswith(said):
            message, fix = meaning, remedy
    if error.problem == "found character that cannot start any token":
        char = text[error.index : error.index + 1]
        message, fix = f"a text cannot start with '{char}'", _QUOTE_IT
        if char == "\t":
            message, fix = "a tab stands where only blanks may", "indent with blanks"
    return Unreadable(f"not valid YAML: {message}", error.line, error.column, fix)


def _explain_value(error: YamlError) -> Unreadable:
    problem, line = error.problem, error.line or 0
    if problem.endswith(KEY_REPEATED):
        message = f"the {problem.removesuffix(KEY_REPEATED)}stands twice in one map"
        return Unreadable(message, line, error.column, "remove one of the two", error.earlier)
    return Unreadable(_VALUE_WORDS.get(problem, problem), line, error.column)
