"""YAML texts as trees of nodes, bounded in depth, in nodes and in what aliases repeat.

All YAML that keepclose reads is parsed here: bodies of requests, kubeconfigs, manifests. The tree
is built from the events of libyaml in a loop. The composer of libyaml recurses on the C stack for
each level instead, and 80 kB of brackets crash the process without a message.

An alias refers to the node of its anchor, so a tree takes no more memory than its text. Its
expanded size is counted while it is built, and a text that expands to too much is rejected before
any code walks the tree.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Any, Final

import msgspec
import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from keepclose.model.json_values import DEPTH_MAX

TAG: Final = "tag:yaml.org,2002:"
STR: Final = f"{TAG}str"
MERGE_KEY: Final = f"{TAG}merge"
# Numbers have fewer characters; more digits are read as a text, which costs nothing to convert.
NUMBER_CHARACTERS_MAX: Final = 64
TAG_DIRECTIVES_MAX: Final = 100
TOO_DEEP: Final = f"exceeded max depth of {DEPTH_MAX}"
TOO_MANY_ALIASES: Final = "document contains excessive aliasing"
CONTAINS_ITSELF: Final = "value contains itself"
_TAG_DIRECTIVE: Final = re.compile("(?:^|[\\r\x85\u2028\u2029])%TAG", re.MULTILINE)
_match_plain = re.compile(
    r"(?P<null>~|null|Null|NULL|)"
    r"|(?P<bool>[yY]|yes|Yes|YES|[nN]|no|No|NO|true|True|TRUE|false|False|FALSE"
    r"|on|On|ON|off|Off|OFF)"
    r"|(?P<int>[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*))"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
    r"|(?P<merge><<)"
).fullmatch
_Parser: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class YamlLimits(msgspec.Struct, frozen=True):
    """The limits of a document: all nodes, and the nodes and characters that aliases repeat.

    None limits the nodes only by the length of the text.
    """

    nodes: int | None = None
    repeated_nodes: int = 100_000
    repeated_characters: int = 3 << 20


class YamlError(Exception):
    """Why a text cannot be parsed; lines and columns count from 0, as in YAML.

    `earlier` is the line of a related earlier place, such as the first of two equal keys.
    """

    def __init__(
        self,
        problem: str,
        line: int | None = None,
        column: int = 0,
        *,
        index: int = 0,
        earlier: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.column = column
        self.index = index
        self.earlier = earlier


class _Document(msgspec.Struct, frozen=True):
    """A document: its tree, and whether a node appears in more than one place of it."""

    root: Node
    has_aliases: bool


def compose(text: str | bytes, limits: YamlLimits, *, alone: bool) -> _Document | None:
    """Return the first document of a text, or None when there is none; raise YamlError.

    `alone` rejects a text with a second document.
    """
    _check_directives(text)
    try:
        parser = _Parser(text)
        try:
            return _compose(parser, limits, alone=alone)
        finally:
            parser.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or str(error)
        raise (YamlError(problem) if mark is None else _marked(problem, mark)) from None
    except yaml.reader.ReaderError as error:
        raise YamlError(_encoding_problem(error)) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise YamlError(str(error)) from None


def _check_directives(text: str | bytes) -> None:
    """Raise YamlError for a text with too many %TAG directives.

    The parser compares each directive with all before it, in one call that cannot be interrupted.
    """
    if isinstance(text, bytes):
        if text.count(b"%T") + text.count(b"%\0T") <= TAG_DIRECTIVES_MAX:
            return
        wide = text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = text.decode("utf-16" if wide else "utf-8", errors="replace")
    elif text.count("%T") <= TAG_DIRECTIVES_MAX:
        return
    if sum(1 for _ in _TAG_DIRECTIVE.finditer(text)) > TAG_DIRECTIVES_MAX:
        raise YamlError(f"exceeded max %TAG directives of {TAG_DIRECTIVES_MAX}")


def error_at(node: Node, problem: str, *, earlier: int | None = None) -> YamlError:
    """Return an error about a node."""
    mark = node.start_mark
    return YamlError(problem, mark.line, mark.column, index=mark.index, earlier=earlier)


class _Anchor(msgspec.Struct):
    """A node that aliases may repeat, and its expanded size; open until its end is parsed."""

    node: Node
    nodes: int = 1
    characters: int = 0
    height: int = 0


def _compose(parser: Any, limits: YamlLimits, *, alone: bool) -> _Document | None:
    next_event = parser.get_event
    next_event()
    if isinstance(next_event(), StreamEndEvent):
        return None
    root, has_aliases = _compose_root(next_event, limits)
    next_event()
    if alone and isinstance(following := next_event(), DocumentStartEvent):
        raise _marked("did not find expected <document start>", following.start_mark)
    return _Document(root, has_aliases)


def _compose_root(  # noqa: PLR0915 - one loop, since a call for each node would double its cost
    next_event: Any, limits: YamlLimits
) -> tuple[Node, bool]:
    """Return the node of the next events, and whether it contains aliases."""
    nodes_max = limits.nodes or 1 << 62
    anchors: dict[str, _Anchor] = {}
    # Open collections: (node, outer children, its anchor, nodes and characters before it).
    stack: list[tuple[CollectionNode, list[Node], _Anchor | None, int, int]] = []
    # The greatest depth below each open collection.
    deepest = [0]
    children: list[Node] = []
    nodes = characters = repeated_nodes = repeated_characters = 0
    while True:
        event = next_event()
        kind = type(event)
        if kind is ScalarEvent:
            value, tag = event.value, event.tag
            if tag is None or tag == "!":
                tag = plain_tag(value) if event.implicit[0] else STR
            node: Node = ScalarNode(tag, value, event.start_mark, event.end_mark)
            nodes += 1
            characters += len(value)
            if event.anchor is not None:
                anchors[event.anchor] = _Anchor(node, 1, len(value))
        elif kind is AliasEvent:
            anchor = anchors.get(event.anchor)
            if anchor is None:
                raise _marked(f"unknown anchor '{event.anchor}' referenced", event.start_mark)
            node = anchor.node
            nodes += anchor.nodes
            characters += anchor.characters
            repeated_nodes += anchor.nodes
            repeated_characters += anchor.characters
            if (
                repeated_nodes > limits.repeated_nodes
                or repeated_characters > limits.repeated_characters
            ):
                raise _marked(TOO_MANY_ALIASES, event.start_mark)
            reached = len(stack) + anchor.height
            if reached > DEPTH_MAX:
                raise _marked(TOO_DEEP, event.start_mark)
            deepest[-1] = max(deepest[-1], reached)
        elif kind is MappingStartEvent or kind is SequenceStartEvent:
            if len(stack) >= DEPTH_MAX:
                raise _marked(TOO_DEEP, stack[-1][0].start_mark)
            create, name = (
                (MappingNode, "map") if kind is MappingStartEvent else (SequenceNode, "seq")
            )
            opened = create(f"{TAG}{name}", [], event.start_mark, None, flow_style=event.flow_style)
            anchor = None
            if event.anchor is not None:
                anchor = anchors[event.anchor] = _Anchor(opened)
            stack.append((opened, children, anchor, nodes, characters))
            deepest.append(len(stack))
            children = []
            nodes += 1
            if nodes > nodes_max:
                break
            continue
        else:
            closed, outer, anchor, nodes_before, characters_before = stack.pop()
            closed.end_mark = event.end_mark
            if isinstance(closed, MappingNode):
                pairs = iter(children)
                closed.value = list(zip(pairs, pairs, strict=True))
            else:
                closed.value = children
            children, node = outer, closed
            reached = deepest.pop()
            deepest[-1] = max(deepest[-1], reached)
            if anchor is not None:
                anchor.nodes = nodes - nodes_before
                anchor.characters = characters - characters_before
                anchor.height = reached - len(stack)
        if nodes > nodes_max:
            break
        if not stack:
            return node, repeated_nodes > 0
        children.append(node)
    raise _marked(f"exceeded max nodes of {nodes_max}", event.start_mark)


def _marked(problem: str, mark: Any) -> YamlError:
    return YamlError(problem, mark.line, mark.column, index=mark.index)


def _encoding_problem(error: yaml.reader.ReaderError) -> str:
    """Return the message for invalid characters of a text."""
    if "control characters" in error.reason or "special characters" in error.reason:
        return "control characters are not allowed"
    return str(error.reason)


@lru_cache(maxsize=1 << 16)
def _short_tag(text: str) -> str:
    match = _match_plain(text)
    return STR if match is None else f"{TAG}{match.lastgroup}"


def plain_tag(text: str) -> str:
    """Return the tag of a scalar without quotes and without an explicit tag."""
    return _short_tag(text) if len(text) <= NUMBER_CHARACTERS_MAX else STR
