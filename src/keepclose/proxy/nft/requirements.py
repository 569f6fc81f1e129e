"""Requirements of the rules: kernel, nft and permissions, and messages about what is missing.

The kernel checks one small transaction for each feature without applying it. So loadable modules
are loaded, and a kernel with backported features passes. These checks never change the host's
tables.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from keepclose.proxy.nft.writer import NftError, NftFailure, NftFamily, NftWriter

OLDEST_KERNEL: Final = (5, 13)
OLDEST_NFT: Final = (1, 0, 1)
_CAP_NET_ADMIN: Final = 12
_PROBE: Final = "keepclose-probe"
_CHAIN: Final = "add chain {t} c"
_NAT: Final = "add chain {t} n {{ type nat hook prerouting priority -100 ; }}"
_POST: Final = "add chain {t} p {{ type nat hook postrouting priority 100 ; }}"
_IN: Final = "add chain {t} i {{ type filter hook input priority 0 ; }}"
_SPREAD: Final = "dnat {f} addr . port to numgen random mod 2 map {{ 0 : {x} . 80 , 1 : {x} . 81 }}"
_KEY: Final = "{f} daddr . meta l4proto . th dport . numgen random mod"


class Feature(NamedTuple):
    """A feature that the rules need, with a transaction that uses it."""

    name: str
    commands: tuple[str, ...]


FEATURES: Final = (
    Feature("tables (nf_tables)", ("add table {t}",)),
    Feature(
        "verdict maps with concatenated keys",
        (
            _CHAIN,
            "add map {t} m {{ type {a} . inet_proto . inet_service : verdict ; }}",
            "add element {t} m {{ {x} . tcp . 80 : goto c }}",
        ),
    ),
    Feature(
        "nat to random map entries (nft_numgen, nft_nat)",
        (
            _NAT,
            f"add rule {{t}} n meta l4proto tcp {_SPREAD}",
        ),
    ),
    Feature("masquerade (nft_masq)", (_POST, "add rule {t} p masquerade fully-random")),
    Feature("conntrack matches (nft_ct)", (_CHAIN, "add rule {t} c ct state new ct status dnat")),
    Feature("fib lookups (nft_fib)", (_NAT, "add rule {t} n fib daddr type local")),
    Feature("reject (nft_reject)", (_IN, "add rule {t} i reject")),
    Feature(
        "dynamic sets with timeouts",
        (
            _CHAIN,
            "add set {t} s {{ type {a} ; flags dynamic,timeout ; timeout 10s ; }}",
            "add rule {t} c update @s {{ {f} saddr }}",
        ),
    ),
    Feature("counters (nft_counter)", (_CHAIN, "add rule {t} c counter")),
)
POOLS: Final = Feature(
    "maps of endpoints by number",
    (
        _NAT,
        f"add map {{t}} e {{{{ typeof {_KEY} 65536 : {{f}} daddr . tcp dport ; }}}}",
        "add element {t} e {{ {x} . tcp . 80 . 0 : {x} . 8080 }}",
        f"add rule {{t}} n meta l4proto tcp dnat {{f}} addr . port to {_KEY} 2 map @e",
    ),
)
"""Makes changes of large tables fast; without it each port has a chain and a map of its own."""
COUNTED_POOLS: Final = Feature(
    "maps whose elements count",
    (
        f"add map {{t}} k {{{{ typeof {_KEY} 65536 : {{f}} daddr . tcp dport ; counter ; }}}}",
        "add element {t} k {{ {x} . tcp . 80 . 0 : {x} . 8080 }}",
    ),
)
"""Counts connections; without it the proxy counts none."""


def transaction_of(feature: Feature, family: NftFamily) -> str:
    """Return a transaction that uses the feature in a table of its own."""
    address = {"ip": ("ipv4_addr", "192.0.2.1"), "ip6": ("ipv6_addr", "2001:db8::1")}[family]
    words = {"t": f"{family} {_PROBE}", "f": family, "a": address[0], "x": address[1]}
    commands = ("add table {t}", *feature.commands)
    return "".join(f"{command.format(**words)}\n" for command in commands)


async def find_missing(
    writer: NftWriter, families: tuple[NftFamily, ...], features: tuple[Feature, ...] = FEATURES
) -> list[str]:
    """Return a sentence for each feature that the kernel rejects; raises NftError otherwise.

    It applies nothing. Missing permissions and a writer that does not work are no missing features
    and are raised.
    """
    # Usually nothing is missing and one check suffices; each check takes the kernel a while.
    if await _has_all(writer, families, features):
        return []
    missing = []
    for family in families:
        for feature in features:
            try:
                await writer.check(transaction_of(feature, family))
            except NftError as error:
                if error.failure in {NftFailure.FORBIDDEN, NftFailure.TIMEOUT, NftFailure.UNUSABLE}:
                    raise
                missing.append(f"{feature.name} for {family}: {error.message}")
    return missing


def kernel_problem(release: str) -> str:
    """Return what is wrong with a kernel release such as "6.1.0-18-amd64", or ""."""
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        return ""
    version = int(match[1]), int(match[2])
    if version >= OLDEST_KERNEL:
        return ""
    oldest = ".".join(map(str, OLDEST_KERNEL))
    return f"the kernel is {release}; nftables for Services needs {oldest} or newer"


def nft_problem(output: str) -> str:
    """Return what is wrong with the output of `nft --version`, or "".

    Older versions of nft read the rules of the whole host at every start.
    """
    match = re.search(r"v(\d+)\.(\d+)(?:\.(\d+))?", output)
    if match is None:
        return f"nft does not print its version: {output[:80]!r}"
    version = tuple(int(part or 0) for part in match.groups())
    if version >= OLDEST_NFT:
        return ""
    oldest = ".".join(map(str, OLDEST_NFT))
    return f"nft is {'.'.join(map(str, version))}; {oldest} or newer is needed"


def has_net_admin(status: str) -> bool:
    """Return whether the text of /proc/<pid>/status lists CAP_NET_ADMIN."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> _CAP_NET_ADMIN & 1)


def find_host_problems(*, skip_kernel_version: bool = False) -> list[str]:
    """Return why this process cannot write rules on this host, as far as visible without nft."""
    problems = []
    if not skip_kernel_version and (problem := kernel_problem(os.uname().release)):
        problems.append(problem)
    if not has_net_admin(Path("/proc/thread-self/status").read_text()):
        problems.append(
            "the process lacks CAP_NET_ADMIN; run it as root, or as a pod with "
            "securityContext.capabilities.add: [NET_ADMIN]"
        )
    return problems


async def _has_all(
    writer: NftWriter, families: tuple[NftFamily, ...], features: tuple[Feature, ...]
) -> bool:
    """Return whether the kernel accepts all features in one transaction.

    NB: so each feature needs names of its own for maps and sets.
    """
    texts = [transaction_of(feature, family) for family in families for feature in features]
    try:
        await writer.check("".join(texts))
    except NftError:
        return False
    return True
