"""Names of chains, sets and counters: kube-proxy's, and a fingerprint of what a chain holds.

The base name of a service port is HASH-namespace/service/protocol/port, where HASH is the start of
the base32 of the SHA-256 of the rest; an endpoint adds "__address/port", a counter
"__zone/node/mode". kube-proxy cuts a base at 240 bytes. Chains of ours end in "." and eight letters
that follow from their rules, so a chain of one name has always had the same rules.

Only letters that nft takes unquoted can ever stand in a name, whatever the objects are called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b, sha256
from ipaddress import (
    IPv4Network,
    IPv6Network,
    collapse_addresses,
    ip_network,
)
from typing import Final, NamedTuple

from keepclose.model.addresses import IPV4, canonical
from keepclose.model.meta import NamespacedName
from keepclose.routing.service_ports import RoutedPort

NAME_LIMIT: Final = 255
"""Bytes that the kernel leaves for the name of an object."""
BASE_LIMIT: Final = 240

SERVICE_CHAIN: Final = "service-"
LOCAL: Final = "local-"
EXTERNAL_CHAIN: Final = "external-"
FIREWALL: Final = "firewall-"
ENDPOINT: Final = "endpoint-"
AFFINITY: Final = "affinity-"
TRAFFIC: Final = "traffic-"
LAYOUT: Final = "layout/"
POOL: Final = "pool/"

_BASE32: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS: Final = tuple([first + second for first in _BASE32 for second in _BASE32])
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9/_.-]")
_CACHED: Final = 1 << 16
COMMENT_LIMIT: Final = 128
"""Bytes that nft takes for a comment."""
INTERFACE_LIMIT: Final = 15

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INTERFACE: Final = re.compile(r"[^A-Za-z0-9_.:@+-]")
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_IPV4: Final = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")


class ServicePortKey(NamedTuple):
    """The identity of a service port."""

    service: NamespacedName
    name: str
    protocol: str

    @classmethod
    def of(cls, port: RoutedPort) -> ServicePortKey:
        """Return the identity of a port as routing sees it."""
        return cls(port.service, port.name, port.protocol)

    def __str__(self) -> str:
        return f"{self.service}:{self.name}" if self.name else str(self.service)


def fingerprint(text: str) -> str:
    """Return eight letters and digits that follow from the text."""
    return _eight_letters(blake2b(text.encode("utf-8", "replace"), digest_size=5).digest())


@lru_cache(maxsize=_CACHED)
def port_base(key: ServicePortKey) -> str:
    """Return the base name of a service port, such as ULMVA6XW-ns1/svc1/tcp/p80."""
    return hash_and_cut(_path(key))


def endpoint_base(key: ServicePortKey, address: str, port: int) -> str:
    """Return the base name of one endpoint of the port; colons of IPv6 turn to dots."""
    return hash_and_cut(f"{_path(key)}__{address.replace(':', '.')}/{port}")


def counter_base(key: ServicePortKey, *labels: str) -> str:
    """Return the base name of a counter of the port, told from others by the labels."""
    return hash_and_cut(f"{_path(key)}__{'/'.join(labels)}")


def hash_and_cut(path: str) -> str:
    """Return the path behind its hash, in letters that nft accepts, no longer than a base may be.

    NB: the hash is of the path as given, so that replaced letters cannot make two names one.
    """
    code = _eight_letters(sha256(path.encode("utf-8", "replace")).digest())
    base = _UNSAFE.sub("_", f"{code}-{path}")
    return base if len(base) <= BASE_LIMIT else f"{base[: BASE_LIMIT - 3]}..."


def whole_name(prefix: str, base: str, *, print_of: str = "") -> str:
    """Return prefix and base, followed by the fingerprint of a text unless that is empty.

    The base gives way where the kernel's limit would be passed; its hash is never lost.
    """
    suffix = f".{fingerprint(print_of)}" if print_of else ""
    room = NAME_LIMIT - len(prefix) - len(suffix)
    return f"{prefix}{base if len(base) <= room else f'{base[: room - 3]}...'}{suffix}"


def safe_name(name: str) -> str:
    """Return the name with what nft would not take unquoted replaced."""
    return _UNSAFE.sub("_", name)[:NAME_LIMIT]


def is_service_chain(name: str) -> bool:
    """Tell whether a chain belongs to a service port, ours or kube-proxy's."""
    return "/" in name and not name.startswith(LAYOUT)


def _eight_letters(digest: bytes) -> str:
    """Return how the base32 of the bytes begins; encoding them all takes several times as long."""
    number = int.from_bytes(digest[:5], "big")
    return (
        _PAIRS[number >> 30]
        + _PAIRS[number >> 20 & 1023]
        + _PAIRS[number >> 10 & 1023]
        + _PAIRS[number & 1023]
    )


def _path(key: ServicePortKey) -> str:
    (namespace, name), port, protocol = key
    return f"{namespace}/{name}/{protocol.lower()}/{port}"


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
