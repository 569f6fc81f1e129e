"""Texts of YAML or JSON into plain values, each with the stretch of text on which it stands.

One broken document does not hide the others, and Lists are taken apart into their items. A text is
parsed once; the line of a field is found later, by parsing again only the object that has a
problem. Nothing here raises: what cannot be read comes back as a `Flaw`.
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

# Kubernetes has whole numbers of 64 bits at most, and quantities with some more digits.
_DIGITS_MAX: Final = 64
# Larger JSON was made by a program: its lines are not worth the time to find them.
JSON_LINES_MAX: Final = 1 << 20


class JsonText(msgspec.Struct, frozen=True):
    """One value with its text and first line; `repeated` is a key that stood twice, or ""."""

    text: str
    line: int
    value: object
    repeated: str = ""


class JsonError(msgspec.Struct, frozen=True):
    """What is wrong with a text; lines and columns count from 1."""

    message: str
    line: int
    column: int | None = None


def split_json(text: str) -> tuple[list[JsonText], JsonError | None]:
    """Return the values in a text, one after another, and the error that ended the reading."""
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
                # NB: Python keeps half a character, which then cannot be written anywhere.
                msgspec.json.encode(value)
        except (ValueError, RecursionError) as error:
            return documents, _explain(error, line)
        documents.append(JsonText(text[position:end], line, value, "".join(repeated[:1])))
        repeated.clear()
        following = _blanks_end(text, end)
        line += text.count("\n", position, following)
        position = following
    return documents, None


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


_blanks = re.compile(r"[ \t\r\n]*")
_surrogate = re.compile(r"\\u[dD][89a-fA-F]")


def _blanks_end(text: str, position: int) -> int:
    match = _blanks.match(text, position)
    return match.end() if match else position


def _read_int(digits: str) -> int:
    # NB: Python reads a number in quadratic time, and up to 4,300 digits only.
    if len(digits) > _DIGITS_MAX:
        raise ValueError(f"a number of {len(digits):,} digits; at most {_DIGITS_MAX} can be read")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


class Source(msgspec.Struct, frozen=True):
    """The stretch of text that holds one object; `line` is its first line, from 1."""

    text: str
    start: int
    end: int
    column: int
    line: int


class Draft(msgspec.Struct, frozen=True):
    """A value that should become an object; `item` is its index when it stood in a List."""

    document: int
    value: object
    item: int | None = None
    line: int | None = None
    source: Source | None = None


class DocumentError(msgspec.Struct, frozen=True):
    """Something that cannot be read; lines and columns count from 1."""

    document: int
    message: str
    item: int | None = None
    line: int | None = None
    column: int | None = None
    fix: str = ""


def read_documents(text: str, *, is_json: bool) -> list[Draft | DocumentError]:
    """Return the values and flaws of a text in their order; empty documents give nothing.

    A text that is not said to be JSON may still be: one that starts like it is tried as JSON first,
    because several objects one after another are legal there and not in YAML.
    """
    if not is_json and not _starts_like_json(text):
        return list(_read_yaml(text))
    from_json, well_formed = _read_json(text)
    if is_json or well_formed:
        return from_json
    from_yaml = list(_read_yaml(text))
    return from_yaml if any(isinstance(one, Draft) for one in from_yaml) else from_json


def line_of(source: Source, field: str, value: object = None) -> int:
    """Return the line of a field, or of the nearest thing around it that the text has.

    Of a map, the member that has `value` as its key or value is meant: the API reports bad labels
    at their map.
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


@lru_cache(maxsize=8)
def _parse_again(source: Source) -> Node | None:
    # An alias to a text outside of the object cannot be resolved here; then its first line must do.
    tree = compose_tree(" " * source.column + source.text[source.start : source.end])
    return None if isinstance(tree, Unreadable) else tree


_starts_like_json = re.compile(r'\s*(?:\{\s*["}]|\[)').match
_document_start = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)


def _read_yaml(text: str) -> Iterator[Draft | DocumentError]:
    # NB: "---" at the start of a line ends a document even inside of a quoted text, so the split
    # is exact, and what follows a broken document can still be read.
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
    """Return whether nothing but comments and directives stands before the first "---"."""
    return all(not line or line[0] in "#%" for line in map(str.strip, chunk.splitlines()))


def _read_chunk(chunk: str, number: int, line: int) -> Iterator[Draft | DocumentError]:
    tree = compose_tree(chunk)
    if tree is None:
        return
    if isinstance(tree, Unreadable):
        yield _flaw(tree, number, line, text=chunk)
        return
    items = _list_items(tree)
    if isinstance(items, Unreadable):
        yield _flaw(items, number, line, text=chunk)
        return
    for item, node, defaults in items:
        value = build_value(node)
        if isinstance(value, Unreadable):
            yield _flaw(value, number, line, item=item, text=chunk)
        elif value is not None or item is not None:
            source = _source(chunk, node, line)
            yield Draft(number, _with_defaults(value, defaults), item, source.line, source)


def _flaw(
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


_Item = tuple[int | None, Node, dict[str, str]]


def _list_items(tree: Node) -> list[_Item] | Unreadable:
    """Return the items of a List with what they inherit from it; any other node stands alone."""
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
    """Return what the items of a PodList may leave out; those of a plain List say it themselves."""
    return {} if kind == "List" else {"apiVersion": api_version, "kind": kind.removesuffix("List")}


def _with_defaults(value: object, defaults: dict[str, str]) -> object:
    return {**defaults, **value} if defaults and isinstance(value, dict) else value


def _read_json(text: str) -> tuple[list[Draft | DocumentError], bool]:
    """Return the values of one JSON text or of several in a row, and whether all was readable."""
    texts, error = split_json(text)
    has_lines = len(text) <= JSON_LINES_MAX
    found: list[Draft | DocumentError] = []
    for number, one in enumerate(texts, 1):
        found += _take_apart(one, number, has_lines=has_lines)
    if error is not None:
        found.append(DocumentError(len(texts) + 1, error.message, None, error.line, error.column))
    return found, error is None


def _take_apart(
    document: JsonText, number: int, *, has_lines: bool
) -> Iterator[Draft | DocumentError]:
    """Yield the objects of a JSON text, with their lines where those are wanted.

    The lines come from YAML, of which JSON is a part but for a few escapes; the values do not.
    """
    tree = compose_tree(document.text) if has_lines else None
    nodes = _list_items(tree) if isinstance(tree, Node) else []
    by_item = {item: node for item, node, _ in nodes} if isinstance(nodes, list) else {}
    if document.repeated and not by_item:
        message = f'the key "{document.repeated}" stands twice in one map'
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
        flaw = build_value(node) if node is not None and document.repeated else None
        if isinstance(flaw, Unreadable):
            yield _flaw(flaw, number, document.line, item=item)
            continue
        source = None if node is None else _source(document.text, node, document.line)
        line = document.line if item is None else None
        yield Draft(
            number,
            _with_defaults(member, defaults),
            item,
            line if source is None else source.line,
            source,
        )
