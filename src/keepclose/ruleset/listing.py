"""Reads the contents of a table in the kernel from nft's JSON listings.

It reads names, elements, and the number of rules of each chain. It does not read the rules: the
name of a chain identifies its rules, and their number shows whether another program emptied the
chain or added rules. Nothing in a listing can make the reader fail: an entry of another shape is
skipped, as if it were absent. Only text that is no listing at all is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from keepclose.ruleset.tables import Chain, ElementKey

_PROTOCOLS: Final = {"6": "tcp", "17": "udp", "132": "sctp"}


class TableListing(msgspec.Struct, frozen=True):
    """The contents of a table: names, and elements by container: key to verdict, "" in a set.

    An empty listing stands for a table that does not exist.
    """

    chains: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    counters: frozenset[str] = frozenset()
    elements: Mapping[str, Mapping[ElementKey, str]] = {}
    rules: Mapping[str, int] | None = None
    """The number of rules of each chain that has rules; None if the listing had no rules."""

    def holds(self, chain: Chain) -> bool:
        """Return whether the chain exists and, if rules were listed, has the right number."""
        if chain.name not in self.chains:
            return False
        return self.rules is None or self.rules.get(chain.name, 0) == len(chain.rules)


def parse_listing(raw: bytes) -> TableListing:
    """Return the contents of the JSON that nft printed; raises ValueError if it is none."""
    document = None
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        document = msgspec.json.decode(raw)
    match document:
        case {"nftables": list()}:
            return listing_of([document])
    raise ValueError(f"the listing is not JSON of nftables: {raw[:80]!r}")


def listing_of(documents: Iterable[object]) -> TableListing:
    """Return the contents that the documents list together, as decoded from `nft --json list ...`.

    Give one listing of the whole table, or a terse one (names only) followed by one for each set
    and map.
    """
    names: dict[str, set[str]] = {"chain": set(), "set": set(), "counter": set()}
    elements: dict[str, dict[ElementKey, str]] = {}
    rules: dict[str, int] | None = None
    for document in documents:
        for kind, item in _items(document):
            # NB: a listing of a table contains its rules; a listing of chains has neither.
            if kind == "table" and rules is None:
                rules = {}
            chain = item.get("chain")
            if kind == "rule" and isinstance(chain, str) and rules is not None:
                rules[chain] = rules.get(chain, 0) + 1
            name = item.get("name")
            if not isinstance(name, str):
                continue
            if kind in names:
                names[kind].add(name)
            if kind in ("set", "map"):
                _read_elements(item.get("elem"), elements.setdefault(name, {}))
    chains, sets, counters = [frozenset(of_kind) for of_kind in names.values()]
    return TableListing(chains, sets, counters, elements, rules)


def _items(document: object) -> Iterable[tuple[str, dict[str, object]]]:
    items = document.get("nftables") if isinstance(document, dict) else None
    for entry in items if isinstance(items, list) else ():
        if isinstance(entry, dict):
            for kind, item in entry.items():
                if isinstance(item, dict):
                    yield kind, item


def _read_elements(listed: object, into: dict[ElementKey, str]) -> None:
    for entry in listed if isinstance(listed, list) else ():
        # An element of a map is a pair of key and verdict.
        is_pair = isinstance(entry, list) and len(entry) == 2
        listed_key, verdict = entry if is_pair else (entry, None)
        key = _key(listed_key)
        if key:
            into[key] = _verdict(verdict)


def _key(listed: object) -> ElementKey:
    value = listed
    if isinstance(value, dict) and isinstance(value.get("elem"), dict):
        value = value["elem"].get("val")
    if isinstance(value, dict):
        value = value.get("concat")
    parts = value if isinstance(value, list) else [value]
    texts = [str(part) for part in parts if isinstance(part, str | int)]
    if len(texts) != len(parts):
        return ()
    # NB: without /etc/protocols nft lists numbers. In our keys a protocol is never last, and comes
    # first or after an address; ports and the numbers of endpoints never do.
    for at, text in enumerate(texts[:-1]):
        if text in _PROTOCOLS and (at == 0 or not texts[at - 1].isalnum()):
            texts[at] = _PROTOCOLS[text]
    return tuple(texts)


def _verdict(listed: object) -> str:
    if not isinstance(listed, dict):
        return ""
    for word, argument in listed.items():
        if isinstance(argument, list):
            return " . ".join([str(part) for part in argument])
        if isinstance(argument, dict) and isinstance(argument.get("target"), str):
            return f"{word} {argument['target']}"
        return str(word)
    return ""
