"""What a table in the kernel holds, read from nft's JSON listings.

Names and elements are read, and how many rules each chain has. The rules themselves are not: those
of a chain follow from its name, and if somebody emptied it or added to it, their number tells.
Nothing in a listing can make reading fail; what has another shape is skipped, as if it were absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from keepclose.ruleset.tables import Chain, ElementKey

_PROTOCOLS: Final = {"6": "tcp", "17": "udp", "132": "sctp"}


class TableListing(msgspec.Struct, frozen=True):
    """Names of what exists, and elements by container: key to verdict, "" in a set.

    The empty listing is that of a table which does not exist.
    """

    chains: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    counters: frozenset[str] = frozenset()
    elements: Mapping[str, Mapping[ElementKey, str]] = {}
    rules: Mapping[str, int] | None = None
    """How many rules each chain has, unless none; None where nobody listed rules."""

    def holds(self, chain: Chain) -> bool:
        """Tell whether the chain is there and, as far as can be seen, has its rules."""
        if chain.name not in self.chains:
            return False
        return self.rules is None or self.rules.get(chain.name, 0) == len(chain.rules)


def listing_of(documents: Iterable[object]) -> TableListing:
    """Return what the documents together list, as decoded from `nft --json list ...`.

    One listing of the whole table does, and so does a terse one (names only) followed by one for
    each set and map.
    """
    names: dict[str, set[str]] = {"chain": set(), "set": set(), "counter": set()}
    elements: dict[str, dict[ElementKey, str]] = {}
    rules: dict[str, int] | None = None
    for document in documents:
        for kind, item in _items(document):
            # NB: a table is listed with its rules; a list of chains comes without both.
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
    chains, sets, counters = [frozenset(found) for found in names.values()]
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
        shown, verdict = entry if is_pair else (entry, None)
        key = _key(shown)
        if key:
            into[key] = _verdict(verdict)


def _key(shown: object) -> ElementKey:
    value = shown
    if isinstance(value, dict) and isinstance(value.get("elem"), dict):
        value = value["elem"].get("val")
    if isinstance(value, dict):
        value = value.get("concat")
    parts = value if isinstance(value, list) else [value]
    texts = [str(part) for part in parts if isinstance(part, str | int)]
    if len(texts) != len(parts):
        return ()
    # NB: without /etc/protocols nft lists numbers. In our keys a protocol comes first or follows an
    # address, and is never last; ports and the numbers of endpoints do not.
    for at, text in enumerate(texts[:-1]):
        if text in _PROTOCOLS and (at == 0 or not texts[at - 1].isalnum()):
            texts[at] = _PROTOCOLS[text]
    return tuple(texts)


def _verdict(shown: object) -> str:
    if not isinstance(shown, dict):
        return ""
    for word, argument in shown.items():
        if isinstance(argument, list):
            return " . ".join([str(part) for part in argument])
        if isinstance(argument, dict) and isinstance(argument.get("target"), str):
            return f"{word} {argument['target']}"
        return str(word)
    return ""
