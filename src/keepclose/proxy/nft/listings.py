"""The contents of a table in the kernel, as plain values.

Names of chains, sets and maps, elements with their verdicts, and counters. Rules are never
compared: nft lists them in another form than they were written in. An entry that cannot be parsed
is left out, never guessed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from keepclose.model.json_values import JsonObject
from keepclose.proxy.nft.writer import ContainerKind, NftError, NftFailure, NftFamily, NftWriter

# The errors that an entry of unexpected shape may cause.
_UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


class ListedElement(NamedTuple):
    """An element of a set or map."""

    key: tuple[str, ...]
    """The parts of the key, which nft joins with dots."""
    value: str = ""
    """A verdict such as "goto reject-chain" or "drop", or data; "" in a set."""
    comment: str = ""


class ListedSet(NamedTuple):
    """A set or map; terse listings have no elements."""

    name: str
    types: tuple[str, ...]
    elements: tuple[ListedElement, ...] = ()
    flags: tuple[str, ...] = ()
    timeout: int = 0
    """In seconds; 0 if elements do not expire."""


class ListedCounter(NamedTuple):
    """The packets and bytes of a rule or a named counter."""

    packets: int
    bytes: int


class RuleCounter(NamedTuple):
    """The counter of one rule."""

    chain: str
    handle: int
    comment: str
    counter: ListedCounter


class Listing(NamedTuple):
    """The contents of one table; empty if it does not exist."""

    exists: bool = False
    chains: tuple[str, ...] = ()
    sets: dict[str, ListedSet] = {}
    maps: dict[str, ListedSet] = {}
    counters: dict[str, ListedCounter] = {}
    rule_counters: tuple[RuleCounter, ...] = ()


async def read_table(
    writer: NftWriter, family: NftFamily, table: str, *, terse: bool = False
) -> Listing:
    """Return the contents of a table, empty if it does not exist; raises NftError."""
    try:
        return parse_listing(await writer.list_table(family, table, terse=terse))
    except NftError as error:
        if error.failure is NftFailure.NOT_FOUND:
            return Listing()
        raise


async def read_elements(
    writer: NftWriter, kind: ContainerKind, family: NftFamily, table: str, *, name: str
) -> tuple[ListedElement, ...]:
    """Return the elements of a set or map, none if it does not exist; raises NftError."""
    try:
        raw = await writer.list_elements(kind, family, table, name=name)
    except NftError as error:
        if error.failure is NftFailure.NOT_FOUND:
            return ()
        raise
    listing = parse_listing(raw)
    container = (listing.sets if kind == "set" else listing.maps).get(name)
    return container.elements if container else ()


def parse_listing(raw: bytes) -> Listing:
    """Return the contents of a JSON listing; raises NftError if it is invalid."""
    try:
        document = msgspec.json.decode(raw)
        objects = document["nftables"]
        entries = [entry for entry in objects if isinstance(entry, dict)]
    except (msgspec.DecodeError, KeyError, RecursionError, TypeError, ValueError):
        raise NftError(
            f"the listing is not JSON of nftables: {raw[:80]!r}", failure=NftFailure.UNUSABLE
        ) from None
    exists = False
    chains: list[str] = []
    sets: dict[str, ListedSet] = {}
    maps: dict[str, ListedSet] = {}
    counters: dict[str, ListedCounter] = {}
    rules: list[RuleCounter] = []
    for kind, body in _bodies(entries):
        if kind == "table":
            exists = True
        with contextlib.suppress(*_UNREADABLE):
            if kind == "chain":
                chains.append(_text(body["name"]))
            elif kind == "set":
                sets[_text(body["name"])] = _set_of(body)
            elif kind == "map":
                maps[_text(body["name"])] = _set_of(body)
            elif kind == "counter":
                counters[_text(body["name"])] = _counter_of(body)
            elif kind == "rule":
                rules.extend(_counters_of(body))
    # A listing of one set has no entry for its table, which exists.
    exists = exists or bool(chains or sets or maps)
    return Listing(exists, tuple(chains), sets, maps, counters, tuple(rules))


def _bodies(entries: Iterable[JsonObject]) -> Iterable[tuple[str, JsonObject]]:
    for entry in entries:
        for kind, body in entry.items():
            if isinstance(body, dict):
                yield kind, body


def _text(value: object) -> str:
    """Return a text; raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return value


def _number(value: object) -> int:
    """Return a whole number; raises TypeError for anything else."""
    if not isinstance(value, int):
        raise TypeError(type(value).__name__)
    return value


def _counter_of(body: JsonObject) -> ListedCounter:
    return ListedCounter(_number(body["packets"]), _number(body["bytes"]))


def _set_of(body: JsonObject) -> ListedSet:
    types = body.get("type", "")
    flags = body.get("flags", ())
    return ListedSet(
        body["name"],
        tuple(types) if isinstance(types, list) else (str(types),),
        tuple(_elements_of(body.get("elem", ()), is_map="map" in body)),
        (flags,) if isinstance(flags, str) else tuple(flags),
        _number(body.get("timeout", 0)),
    )


def _elements_of(elements: Iterable[Any], *, is_map: bool) -> Iterable[ListedElement]:
    read: list[ListedElement] = []
    for element in elements:
        with contextlib.suppress(*_UNREADABLE):
            read.append(_element_of(element, is_map=is_map))
    return read


def _element_of(element: Any, *, is_map: bool) -> ListedElement:
    key, value = element if is_map else (element, None)
    comment = ""
    # Comments, timeouts and counters wrap the key.
    if isinstance(key, dict) and "elem" in key:
        wrapped = key["elem"]
        key, comment = wrapped["val"], _text(wrapped.get("comment", ""))
    parts = key["concat"] if isinstance(key, dict) and "concat" in key else [key]
    text = "" if value is None else _value_of(value)
    return ListedElement(tuple(_part(part) for part in parts), text, comment)


def _part(value: Any) -> str:
    if isinstance(value, dict):
        if "prefix" in value:
            return f"{_part(value['prefix']['addr'])}/{value['prefix']['len']}"
        if "range" in value:
            first, last = value["range"]
            return f"{_part(first)}-{_part(last)}"
    return str(value)


def _value_of(value: Any) -> str:
    if isinstance(value, dict):
        if "concat" in value:
            return " . ".join(_part(part) for part in value["concat"])
        if len(value) == 1:
            [(verdict, more)] = value.items()
            if more is None:
                return str(verdict)
            if isinstance(more, dict) and "target" in more:
                return f"{verdict} {more['target']}"
    return _part(value)


def _counters_of(rule: JsonObject) -> Iterable[RuleCounter]:
    for expression in rule.get("expr", ()):
        counter = expression.get("counter") if isinstance(expression, dict) else None
        # A rule that refers to a named counter has only its name.
        if isinstance(counter, dict):
            yield RuleCounter(
                _text(rule["chain"]),
                _number(rule.get("handle", 0)),
                _text(rule.get("comment", "")),
                _counter_of(counter),
            )
