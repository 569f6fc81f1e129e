"""Splits YAML or JSON texts into plain values, each with the span of text that holds it.

An invalid document does not hide the others, and Lists are split into their items. A text is parsed
once; the line of a field is found later, by parsing again only the object that has a problem. JSON
is read more strictly than by Python: without NaN and halves of characters, and repeated keys are
reported, since the last one would win silently. Nothing here raises: a document that cannot be read
becomes a `DocumentError`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final, NoReturn

import msgspec
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from keepclose.cli.manifests.yaml_tree import Unreadable, build_value, compose_tree, read_members
from keepclose.model.decoding import path_steps
from keepclose.model.json_values import JsonDepthError, check_depth

# Larger JSON was written by a program: its lines are not worth the time to find them.
JSON_LINES_MAX: Final = 1 << 20
# Kubernetes has integers of 64 bits at most, and quantities with some more digits.
_DIGITS_MAX: Final = 64
_blanks = re.compile(r"[ \t\r\n]*")
_surrogate = re.compile(r"\\u[dD][89a-fA-F]")
_starts_like_json = re.compile(r'\s*(?:\{\s*["}]|\[)').match
_document_start = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)
_Item = tuple[int | None, Node, dict[str, str]]
"""The index in a List, the node of an object, and the fields that it inherits from the List."""


class JsonText(msgspec.Struct, frozen=True):
    """One value with its text and first line; `repeated` is a duplicate key, or ""."""

    text: str
    line: int
    value: object
    repeated: str = ""


class JsonError(msgspec.Struct, frozen=True):
    """A syntax error of a JSON text; lines and columns count from 1."""

    message: str
    line: int
    column: int | None = None


def split_json(text: str) -> tuple[list[JsonText], JsonError | None]:
    """Return the values of a text in their order, and the error that ended the reading."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.append(next(key for key, count in counts.items() if count > 1))
        return members

    decoder = json.JSONDecoder(
        object_pairs_hook=collect, parse_constant=_refuse_constant, parse_int=_read_int
    )
    documents: list[JsonText] = []
    position, line = _blanks_end(text, 0), 1
    line += text.count("\n", 0, position)
    while position < len(text):
        try:
            value, end = decoder.raw_decode(text, position)
            check_depth(value, text)
            if _surrogate.search(text, position, end):
                # NB: Python accepts a lone surrogate, which then cannot be encoded.
                msgspec.json.encode(value)
        except (ValueError, RecursionError) as error:
            return documents, _explain(error, line)
        documents.append(JsonText(text[position:end], line, value, "".join(repeated[:1])))
        repeated.clear()
        following = _blanks_end(text, end)
        line += text.count("\n", position, following)
        position = following
    return documents, None


class Source(msgspec.Struct, frozen=True):
    """The span of text that holds one object; `line` is its first line, from 1."""

    text: str
    start: int
    end: int
    column: int
    line: int


class RawObject(msgspec.Struct, frozen=True):
    """A decoded value that is not yet checked to be an object; `item` is its index in a List."""

    document: int
    value: object
    item: int | None = None
    line: int | None = None
    source: Source | None = None


class DocumentError(msgspec.Struct, frozen=True):
    """A document or item that cannot be read; lines and columns count from 1."""

    document: int
    message: str
    item: int | None = None
    line: int | None = None
    column: int | None = None
    fix: str = ""


def read_documents(text: str, *, is_json: bool) -> list[RawObject | DocumentError]:
    """Return the values and errors of a text in their order; empty documents are skipped.

    A text that starts like JSON is tried as JSON first, whatever its file name, because several
    objects in a row are valid there and not in YAML.
    """
    if not is_json and not _starts_like_json(text):
        return list(_read_yaml(text))
    from_json, well_formed = _read_json(text)
    if is_json or well_formed:
        return from_json
    from_yaml = list(_read_yaml(text))
    return from_yaml if any(isinstance(entry, RawObject) for entry in from_yaml) else from_json


def line_of(source: Source, field: str, value: object = None) -> int:
    """Return the line of a field, or of the nearest enclosing field that the text has.

    If the field is a map, return the line of the member whose key or value is `value`: the API
    server reports invalid labels at their map.
    """
    node = _parse_again(source)
    if node is None:
        return source.line
    line = node.start_mark.line
    for step in path_steps(field):
        if isinstance(node, MappingNode):
            pair = next((pair for pair in reversed(node.value) if pair[0].value == step), None)
            if pair is None:
                return source.line + line
            line, node = pair[0].start_mark.line, pair[1]
        elif isinstance(node, SequenceNode) and step.isdecimal() and int(step) < len(node.value):
            node = node.value[int(step)]
            line = node.start_mark.line
        else:
            return source.line + line
    if isinstance(node, MappingNode):
        lines = (key.start_mark.line for key, val in node.value if value in (key.value, val.value))
        line = next(lines, line)
    return source.line + line


def _explain(error: ValueError | RecursionError, line: int) -> JsonError:
    match error:
        case json.JSONDecodeError():
            text = f"{error.msg[:1].lower()}{error.msg[1:]}".replace("expecting", "expected")
            return JsonError(f"not valid JSON: {text}", error.lineno, error.colno)
        case UnicodeEncodeError():
            text = "a text holds half of a character (a lone surrogate)"
        case RecursionError() | JsonDepthError():
            text = "nested too deeply"
        case _:
            text = str(error)
    return JsonError(f"not valid JSON: {text}", line)


def _blanks_end(text: str, position: int) -> int:
    match = _blanks.match(text, position)
    return match.end() if match else position


def _read_int(digits: str) -> int:
    # NB: Python parses an integer in quadratic time, and up to 4,300 digits only.
    if len(digits) > _DIGITS_MAX:
        raise ValueError(f"a number of {len(digits):,} digits; at most {_DIGITS_MAX} can be read")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


@lru_cache(maxsize=8)
def _parse_again(source: Source) -> Node | None:
    # An alias to an anchor outside of the object cannot be resolved; its first line must do then.
    tree = compose_tree(" " * source.column + source.text[source.start : source.end])
    return None if isinstance(tree, Unreadable) else tree


def _read_yaml(text: str) -> Iterator[RawObject | DocumentError]:
    # NB: "---" at the start of a line ends a document even inside quotes, so the split is exact,
    # and documents after an invalid one can still be read.
    starts = [match.start() for match in _document_start.finditer(text)]
    number, line = 0, 1
    for start, end in pairwise([0, *starts, len(text)]):
        if start == end:
            continue
        chunk = text[start:end]
        if start in starts[:1] or number or not _is_blank(chunk):
            number += 1
            yield from _read_chunk(chunk, number, line)
        line += chunk.count("\n")


def _is_blank(chunk: str) -> bool:
    """Return whether a chunk before the first "---" has only comments and directives."""
    return all(not line or line[0] in "#%" for line in map(str.strip, chunk.splitlines()))


def _read_chunk(chunk: str, number: int, line: int) -> Iterator[RawObject | DocumentError]:
    tree = compose_tree(chunk)
    if tree is None:
        return
    if isinstance(tree, Unreadable):
        yield _document_error(tree, number, line, text=chunk)
        return
    items = _list_items(tree)
    if isinstance(items, Unreadable):
        yield _document_error(items, number, line, text=chunk)
        return
    for item, node, defaults in items:
        value = build_value(node)
        if isinstance(value, Unreadable):
            yield _document_error(value, number, line, item=item, text=chunk)
        elif value is not None or item is not None:
            source = _source(chunk, node, line)
            yield RawObject(number, _with_defaults(value, defaults), item, source.line, source)


def _document_error(
    unreadable: Unreadable, number: int, line: int, *, item: int | None = None, text: str = ""
) -> DocumentError:
    message, fix = unreadable.message, unreadable.fix
    if unreadable.earlier is not None:
        message = f"{message}, first on line {line + unreadable.earlier}"
    elif "{{" in text:
        fix = "this looks like a template: render it first, for example with helm template"
    return DocumentError(number, message, item, line + unreadable.line, unreadable.column + 1, fix)


def _source(text: str, node: Node, line: int) -> Source:
    start = node.start_mark
    return Source(text, start.index, node.end_mark.index, start.column, line + start.line)


def _list_items(tree: Node) -> list[_Item] | Unreadable:
    """Return the items of a List; any other node is a single item."""
    if not isinstance(tree, MappingNode):
        return [(None, tree, {})]
    kind = next((val.value for key, val in tree.value if key.value == "kind"), "")
    if not isinstance(kind, str) or not kind.endswith("List"):
        return [(None, tree, {})]
    members = read_members(tree)
    if isinstance(members, Unreadable):
        return members
    items = members.get("items")
    if isinstance(items, SequenceNode):
        version = members.get("apiVersion")
        text = version.value if isinstance(version, ScalarNode) else ""
        defaults = _inherited(kind, text)
        return [(index, node, defaults) for index, node in enumerate(items.value)]
    return [] if kind == "List" else [(None, tree, {})]


def _inherited(kind: str, api_version: str) -> dict[str, str]:
    """Return the fields that items of a PodList may omit; items of a plain List must have them."""
    return {} if kind == "List" else {"apiVersion": api_version, "kind": kind.removesuffix("List")}


def _with_defaults(value: object, defaults: dict[str, str]) -> object:
    return {**defaults, **value} if defaults and isinstance(value, dict) else value


def _read_json(text: str) -> tuple[list[RawObject | DocumentError], bool]:
    """Return the values of one or several JSON texts in a row, and whether all were readable."""
    texts, error = split_json(text)
    has_lines = len(text) <= JSON_LINES_MAX
    entries: list[RawObject | DocumentError] = []
    for number, json_text in enumerate(texts, 1):
        entries += _split_list(json_text, number, has_lines=has_lines)
    if error is not None:
        entries.append(DocumentError(len(texts) + 1, error.message, None, error.line, error.column))
    return entries, error is None


def _split_list(
    document: JsonText, number: int, *, has_lines: bool
) -> Iterator[RawObject | DocumentError]:
    """Yield the objects of a JSON text, with their lines if `has_lines`.

    The lines come from parsing the text as YAML, a superset of JSON but for a few escapes; the
    values come from JSON.
    """
    tree = compose_tree(document.text) if has_lines else None
    nodes = _list_items(tree) if isinstance(tree, Node) else []
    by_item = {item: node for item, node, _ in nodes} if isinstance(nodes, list) else {}
    if document.repeated and not by_item:
        message = f'the key "{document.repeated}" is repeated in one map'
        yield DocumentError(number, message, None, document.line, fix="remove one of the two")
    value = document.value
    kind = value.get("kind") if isinstance(value, dict) else None
    items: list[tuple[int | None, object]] = [(None, value)]
    defaults: dict[str, str] = {}
    if isinstance(value, dict) and isinstance(kind, str) and kind.endswith("List"):
        if isinstance(value.get("items"), list):
            items = list(enumerate(value["items"]))
            defaults = _inherited(kind, str(value.get("apiVersion") or ""))
        elif kind == "List":
            items = []
    for item, member in items:
        node = by_item.get(item)
        from_yaml = build_value(node) if node is not None and document.repeated else None
        if isinstance(from_yaml, Unreadable):
            yield _document_error(from_yaml, number, document.line, item=item)
            continue
        source = None if node is None else _source(document.text, node, document.line)
        line = document.line if item is None else None
        yield RawObject(
            number,
            _with_defaults(member, defaults),
            item,
            line if source is None else source.line,
            source,
        )
