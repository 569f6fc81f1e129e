"""IP addresses and CIDRs as text: parsing, canonical form, validation and warnings.

The API parses addresses leniently, as Go once did: leading zeros are accepted, and an IPv4-mapped
IPv6 address counts as IPv4. Older fields require the strict form only while StrictIPCIDRValidation
is on; newer fields always require the canonical form. Nothing here raises on any text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple

from keepclose.model.field_errors import FieldError, invalid, required
from keepclose.model.metadata_validation import dns1123_label, dns1123_subdomain, fqdn

IPV4: Final = "IPv4"
IPV6: Final = "IPv6"
MUST_BE_IP: Final = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
MUST_BE_CIDR: Final = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"

_CACHE_SIZE = 1 << 16
_ZERO_PADDED_IP = "must not have leading 0s"
_MAPPED_IP = "must not be an IPv4-mapped IPv6 address"
_ZERO_PADDED_CIDR = "must not have leading 0s in IP or prefix length"
_MAPPED_CIDR = "must not have an IPv4-mapped IPv6 address"
_STRAY_BITS_CIDR = "must not have bits set beyond the prefix length"

# Four numbers without leading zeros: the form of most addresses, and already canonical.
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_IPV4: Final = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")


class ParsedIP(NamedTuple):
    """An address parsed leniently, and how the text deviates from the strict form.

    For IPv4-mapped text `address` is the IPv4 address and `mapped` is true.
    """

    address: IPv4Address | IPv6Address
    leading_zeros: bool = False
    mapped: bool = False


@lru_cache(maxsize=_CACHE_SIZE)
def parse_lenient(address: str) -> ParsedIP | None:
    """Return the address in a text, parsed leniently; None if it is no address."""
    if ":" in address:
        return _parse_ipv6(address)
    octets = _octets(address)
    if octets is None:
        return None
    plain = ".".join(map(str, octets))
    return ParsedIP(IPv4Address(bytes(octets)), leading_zeros=plain != address)


@lru_cache(maxsize=_CACHE_SIZE)
def family_of(address: str) -> str | None:
    """Return "IPv4" or "IPv6"; None if the text is no address."""
    parsed = parse_lenient(address)
    if parsed is None:
        return None
    return IPV4 if parsed.address.version == 4 else IPV6


@lru_cache(maxsize=_CACHE_SIZE)
def canonical(address: str) -> str | None:
    """Return the canonical form (RFC 5952 for IPv6); None if the text is no address."""
    if _CANONICAL_IPV4.fullmatch(address) is not None:
        return address
    parsed = parse_lenient(address)
    return None if parsed is None else str(parsed.address)


def legacy_ip_errors(
    field: str, value: str, *, strict: bool, old_values: frozenset[str] = frozenset()
) -> list[FieldError]:
    """Return the errors of an address in an older field, which the API parses leniently.

    Values that the stored object already has are not validated.
    """
    if value in old_values:
        return []
    parsed = parse_lenient(value)
    if parsed is None:
        return [invalid(field, value, MUST_BE_IP)]
    return _strictness_errors(field, value, parsed) if strict else []


def strict_ip_errors(field: str, value: str) -> list[FieldError]:
    """Return the errors of an address in a field that requires the canonical form."""
    parsed = parse_lenient(value)
    if parsed is None:
        return [invalid(field, value, MUST_BE_IP)]
    if lax := _strictness_errors(field, value, parsed):
        return lax
    expected = str(parsed.address)
    if value == expected:
        return []
    return [invalid(field, value, f'must be in canonical form ("{expected}")')]


def ip_warnings(field: str, value: str) -> list[str]:
    """Return the warnings about an address that is accepted but not in canonical form.

    A text that is no address gives no warning; validation rejects it.
    """
    parsed = parse_lenient(value)
    if parsed is None or value == str(parsed.address):
        return []
    expected = f'"{parsed.address}"'
    if parsed.leading_zeros or parsed.mapped:
        return [f'{field}: non-standard IP address "{value}" is invalid: use {expected}']
    return [f'{field}: IPv6 address "{value}" should be in RFC 5952 canonical format ({expected})']


def endpoint_ip_errors(field: str, value: str) -> list[FieldError]:
    """Return why an address cannot be an endpoint: unspecified, loopback or link-local."""
    return [invalid(field, value, detail) for detail in _endpoint_ip_messages(value)]


def fqdn_errors(field: str, value: str) -> list[FieldError]:
    """Return the errors of an address in a slice of the type FQDN."""
    if not value:
        return [required(field)]
    name = value.removesuffix(".")
    shown = name
    if not dns1123_subdomain(name):
        # NB: if a single label is too long, the API shows that label, not the whole name.
        shown = next((label for label in name.split(".") if dns1123_label(label)), name)
    return [invalid(field, shown, message) for message in fqdn(value)]


def cidr_errors(
    field: str, value: str, *, strict: bool, old_values: frozenset[str] = frozenset()
) -> list[FieldError]:
    """Return the errors of a CIDR such as 10.0.0.0/8.

    Values that the stored object already has are not validated.
    """
    if value in old_values:
        return []
    text, slash, length_text = value.partition("/")
    parsed = parse_lenient(text)
    length = _decimal(length_text)
    if not slash or parsed is None or length is None:
        return [invalid(field, value, MUST_BE_CIDR)]
    width = 32 if parsed.address.version == 4 and not parsed.mapped else 128
    if length > width:
        return [invalid(field, value, MUST_BE_CIDR)]
    if not strict:
        return []
    if parsed.leading_zeros or length_text != str(length):
        return [invalid(field, value, _ZERO_PADDED_CIDR)]
    if parsed.mapped:
        return [invalid(field, value, _MAPPED_CIDR)]
    if int(parsed.address) & ((1 << (width - length)) - 1):
        return [invalid(field, value, _STRAY_BITS_CIDR)]
    return []


@lru_cache(maxsize=_CACHE_SIZE)
def _endpoint_ip_messages(value: str) -> tuple[str, ...]:
    parsed = parse_lenient(value)
    if parsed is None:
        return ("must be a valid IP address",)
    address = parsed.address
    details: list[str] = []
    if address.is_unspecified:
        details.append(f"may not be unspecified ({value})")
    if address.is_loopback:
        details.append("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    if address.is_link_local:
        details.append("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    if _is_link_local_multicast(address):
        details.append("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
    return tuple(details)


def _strictness_errors(field: str, value: str, parsed: ParsedIP) -> list[FieldError]:
    if parsed.leading_zeros:
        return [invalid(field, value, _ZERO_PADDED_IP)]
    return [invalid(field, value, _MAPPED_IP)] if parsed.mapped else []


def _is_link_local_multicast(address: IPv4Address | IPv6Address) -> bool:
    packed = address.packed
    if address.version == 4:
        return packed[:3] == b"\xe0\x00\x00"
    # The low half of byte 1 is the scope; the high half holds flags.
    return packed[0] == 0xFF and packed[1] & 0x0F == 0x02


def _octets(text: str) -> list[int] | None:
    parts = text.split(".")
    if len(parts) != 4:
        return None
    numbers = [number for part in parts if (number := _decimal(part)) is not None and number < 256]
    return numbers if len(numbers) == 4 else None


def _decimal(text: str) -> int | None:
    # NB: int() alone accepts "+1", " 1", "1_0" and digits of other scripts, and it raises for too
    # many digits, hence the strip and the limit.
    if not text.isascii() or not text.isdigit():
        return None
    significant = text.lstrip("0")
    return int(significant or "0") if len(significant) < 8 else None


def _parse_ipv6(text: str) -> ParsedIP | None:
    if "%" in text:
        return None
    address = _strict_ipv6(text)
    leading_zeros = address is None
    if address is None:
        address = _strict_ipv6(_without_padding(text))
        if address is None:
            return None
    mapped = address.ipv4_mapped
    if mapped is None:
        return ParsedIP(address, leading_zeros)
    return ParsedIP(mapped, leading_zeros, mapped=True)


def _strict_ipv6(text: str) -> IPv6Address | None:
    try:
        return IPv6Address(text)
    except AddressValueError:
        return None


def _without_padding(text: str) -> str:
    """Return the address without leading zeros in its groups and its IPv4 tail."""
    *groups, tail = text.split(":")
    octets = _octets(tail)
    last = _unpadded(tail) if octets is None else ".".join(map(str, octets))
    return ":".join([*map(_unpadded, groups), last])


def _unpadded(group: str) -> str:
    return group.lstrip("0") or group[:1]
