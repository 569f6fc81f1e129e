"""What may stand in a transaction: quoted text, addresses and ranges that are nothing else.

nft knows no escapes inside quotes, so what would end a quotation is replaced. An address that is
not one, or not of the family, comes back empty and its user leaves it out: one bad object must not
make the kernel refuse the changes of all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import (
    IPv4Network,
    IPv6Network,
    collapse_addresses,
    ip_network,
)
from typing import Final

from keepclose.model.addresses import IPV4, canonical

COMMENT_LIMIT: Final = 128
"""Bytes that nft takes for a comment."""
INTERFACE_LIMIT: Final = 15

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INTERFACE: Final = re.compile(r"[^A-Za-z0-9_.:@+-]")
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_IPV4: Final = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")


def plain_comment(text: str) -> str:
    """Return the text on one line, without quotes, cut to what nft takes for a comment."""
    plain = _CONTROLS.sub(" ", text).replace('"', "'")
    # NB: a lone surrogate has no bytes, and a letter of several bytes must not be cut in two.
    return plain.encode("utf-8", "replace")[:COMMENT_LIMIT].decode("utf-8", "ignore")


def quote_comment(text: str) -> str:
    """Return the text in quotes, on one line and cut to what nft takes for a comment."""
    return f'"{plain_comment(text)}"'


def quote_interface(name: str, *, is_prefix: bool = False) -> str:
    """Return an interface's name in quotes; a prefix matches every name that begins with it."""
    plain = _INTERFACE.sub("_", name)[:INTERFACE_LIMIT]
    return f'"{plain}*"' if is_prefix else f'"{plain}"'


def plain_address(text: str, family: str) -> str:
    """Return the address as nft writes it, or "" when it is none of the family."""
    # The usual case, which is worth a short way: every endpoint of every Service comes by.
    if _CANONICAL_IPV4.fullmatch(text):
        return text if family == IPV4 else ""
    address = canonical(text)
    if address is None or (":" in address) is (family == IPV4):
        return ""
    return address


@lru_cache(maxsize=4096)
def plain_range(text: str, family: str) -> str:
    """Return the range without stray bits, or "" when it is none of the family."""
    try:
        network = ip_network(text.strip(), strict=False)
    except ValueError:
        return ""
    if network.version != (4 if family == IPV4 else 6):
        return ""
    # An IPv6 scope is no part of a range.
    return "" if "%" in text else str(network)


def plain_ranges(texts: Iterable[str], family: str) -> tuple[str, ...]:
    """Return the ranges of the family, sorted, with those that others hold left out.

    Single addresses come without a length. NB: nft refuses sets whose ranges overlap.
    """
    return _collapsed(tuple([known for text in texts if (known := plain_range(text, family))]))


@lru_cache(maxsize=1024)
def _collapsed(ranges: tuple[str, ...]) -> tuple[str, ...]:
    # NB: the two kinds of range cannot be merged with each other, nor be sorted.
    fours = [one for text in ranges if isinstance(one := ip_network(text), IPv4Network)]
    sixes = [one for text in ranges if isinstance(one := ip_network(text), IPv6Network)]
    merged = [
        *[str(one) for one in collapse_addresses(fours)],
        *[str(one) for one in collapse_addresses(sixes)],
    ]
    return tuple([text.removesuffix("/32" if ":" not in text else "/128") for text in merged])
