"""Names of chains and sets, and all other text that may occur in a transaction.

The base name of a service port is kube-proxy's: HASH-namespace/service/protocol/port, where HASH is
the start of the base32 of the SHA-256 of the rest. An endpoint adds "__address/port"; a base is cut
at 240 bytes. Our chains end in "." and a fingerprint of their rules, so a chain of one name has
always had the same rules.

A name contains only characters that nft accepts unquoted, whatever the objects are called. nft has
no escapes inside quotes, so characters that would end a quotation are replaced. An invalid address,
or one of the other family, becomes "" and its user drops it: one bad object must not make the
kernel reject the changes of all others.
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
"""The kernel's limit for the name of an object, in bytes."""
BASE_LIMIT: Final = 240
COMMENT_LIMIT: Final = 128
"""nft's limit for a comment, in bytes."""
INTERFACE_LIMIT: Final = 15

SERVICE_CHAIN: Final = "service-"
LOCAL: Final = "local-"
EXTERNAL_CHAIN: Final = "external-"
FIREWALL: Final = "firewall-"
ENDPOINT: Final = "endpoint-"
AFFINITY: Final = "affinity-"
TRAFFIC: Final = "traffic-"
"""Named counters of earlier versions, which are deleted."""
LAYOUT: Final = "layout/"
POOL: Final = "pool/"

_BASE32: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS: Final = tuple([first + second for first in _BASE32 for second in _BASE32])
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9/_.-]")
_CACHE_SIZE: Final = 1 << 16
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
        """Return the identity of a routed port."""
        return cls(port.service, port.name, port.protocol)

    def __str__(self) -> str:
        return f"{self.service}:{self.name}" if self.name else str(self.service)


def fingerprint(text: str) -> str:
    """Return a hash of the text, as eight letters and digits."""
    return _eight_letters(blake2b(text.encode("utf-8", "replace"), digest_size=5).digest())


@lru_cache(maxsize=_CACHE_SIZE)
def port_base(key: ServicePortKey) -> str:
    """Return the base name of a service port, such as ULMVA6XW-ns1/svc1/tcp/p80."""
    return hash_and_cut(_path(key))


def endpoint_base(key: ServicePortKey, address: str, port: int) -> str:
    """Return the base name of one endpoint of the port; colons of IPv6 become dots."""
    return hash_and_cut(f"{_path(key)}__{address.replace(':', '.')}/{port}")


def hash_and_cut(path: str) -> str:
    """Return the hash of the path and the path, in characters that nft accepts, cut to the limit.

    NB: the hash covers the original path, so that two paths cannot get the same name when
    characters are replaced.
    """
    code = _eight_letters(sha256(path.encode("utf-8", "replace")).digest())
    base = _UNSAFE.sub("_", f"{code}-{path}")
    return base if len(base) <= BASE_LIMIT else f"{base[: BASE_LIMIT - 3]}..."


def whole_name(prefix: str, base: str, *, fingerprint_of: str = "") -> str:
    """Return prefix and base, followed by the fingerprint of a text unless that is empty.

    If the name exceeds the kernel's limit, the end of the base is cut; its hash is kept.
    """
    suffix = f".{fingerprint(fingerprint_of)}" if fingerprint_of else ""
    room = NAME_LIMIT - len(prefix) - len(suffix)
    return f"{prefix}{base if len(base) <= room else f'{base[: room - 3]}...'}{suffix}"


def safe_name(name: str) -> str:
    """Return the name with all characters replaced that nft does not accept unquoted."""
    return _UNSAFE.sub("_", name)[:NAME_LIMIT]


def is_service_chain(name: str) -> bool:
    """Return whether a chain belongs to a service port, ours or kube-proxy's."""
    return "/" in name and not name.startswith(LAYOUT)


def plain_comment(text: str) -> str:
    """Return the text on one line, without quotes, cut to nft's limit for comments."""
    plain = _CONTROLS.sub(" ", text).replace('"', "'")
    # NB: a lone surrogate has no UTF-8 form, and the cut must not split a multi-byte character.
    return plain.encode("utf-8", "replace")[:COMMENT_LIMIT].decode("utf-8", "ignore")


def quote_comment(text: str) -> str:
    """Return the text in quotes, on one line and cut to nft's limit for comments."""
    return f'"{plain_comment(text)}"'


def quote_interface(name: str, *, is_prefix: bool = False) -> str:
    """Return an interface's name in quotes; a prefix matches every name that begins with it."""
    plain = _INTERFACE.sub("_", name)[:INTERFACE_LIMIT]
    return f'"{plain}*"' if is_prefix else f'"{plain}"'


def plain_address(text: str, family: str) -> str:
    """Return the address in nft's form, or "" if it is not an address of the family."""
    # A fast path for the usual case: this function sees every endpoint of every Service.
    if _CANONICAL_IPV4.fullmatch(text):
        return text if family == IPV4 else ""
    address = canonical(text)
    if address is None or (":" in address) is (family == IPV4):
        return ""
    return address


@lru_cache(maxsize=4096)
def plain_range(text: str, family: str) -> str:
    """Return the range with its host bits cleared, or "" if it is not a range of the family."""
    try:
        network = ip_network(text.strip(), strict=False)
    except ValueError:
        return ""
    if network.version != (4 if family == IPV4 else 6):
        return ""
    # A range cannot have an IPv6 scope.
    return "" if "%" in text else str(network)


def plain_ranges(texts: Iterable[str], family: str) -> tuple[str, ...]:
    """Return the ranges of the family, sorted, without ranges that others contain.

    Single addresses have no prefix length. NB: nft rejects sets whose ranges overlap.
    """
    return _collapsed(tuple([cidr for text in texts if (cidr := plain_range(text, family))]))


@lru_cache(maxsize=1024)
def _collapsed(ranges: tuple[str, ...]) -> tuple[str, ...]:
    # NB: ranges of the two families can neither be merged nor be compared with each other.
    ipv4 = [network for text in ranges if isinstance(network := ip_network(text), IPv4Network)]
    ipv6 = [network for text in ranges if isinstance(network := ip_network(text), IPv6Network)]
    merged = [
        *[str(network) for network in collapse_addresses(ipv4)],
        *[str(network) for network in collapse_addresses(ipv6)],
    ]
    return tuple([text.removesuffix("/32" if ":" not in text else "/128") for text in merged])


def _path(key: ServicePortKey) -> str:
    (namespace, name), port, protocol = key
    return f"{namespace}/{name}/{protocol.lower()}/{port}"


def _eight_letters(digest: bytes) -> str:
    """Return the first eight characters of the base32 of the bytes.

    Encoding all bytes takes several times as long.
    """
    number = int.from_bytes(digest[:5], "big")
    return (
        _PAIRS[number >> 30]
        + _PAIRS[number >> 20 & 1023]
        + _PAIRS[number >> 10 & 1023]
        + _PAIRS[number & 1023]
    )
