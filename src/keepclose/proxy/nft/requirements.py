"""What a machine must offer before rules can be written, and how to say what is missing.

The kernel is asked to judge one small transaction a feature, without applying it; so modules that
can be loaded are loaded, and a kernel with backports counts for what it can do.
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


class Feature(NamedTuple):
    """Something that the rules need, with a transaction that uses it."""

    name: str
    commands: tuple[str, ...]


_CHAIN: Final = "add chain {t} c"
_NAT: Final = "add chain {t} n {{ type nat hook prerouting priority -100 ; }}"
_POST: Final = "add chain {t} p {{ type nat hook postrouting priority 100 ; }}"
_IN: Final = "add chain {t} i {{ type filter hook input priority 0 ; }}"
_SPREAD: Final = "dnat {f} addr . port to numgen random mod 2 map {{ 0 : {x} . 80 , 1 : {x} . 81 }}"
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
_KEY: Final = "{f} daddr . meta l4proto . th dport . numgen random mod"
POOLS: Final = Feature(
    "maps of endpoints by number",
    (
        _NAT,
        f"add map {{t}} e {{{{ typeof {_KEY} 65536 : {{f}} daddr . tcp dport ; }}}}",
        "add element {t} e {{ {x} . tcp . 80 . 0 : {x} . 8080 }}",
        f"add rule {{t}} n meta l4proto tcp dnat {{f}} addr . port to {_KEY} 2 map @e",
    ),
)
"""What large tables are quick with; without it each port has a chain and a map of its own."""
COUNTED_POOLS: Final = Feature(
    "maps whose elements count",
    (
        f"add map {{t}} k {{{{ typeof {_KEY} 65536 : {{f}} daddr . tcp dport ; counter ; }}}}",
        "add element {t} k {{ {x} . tcp . 80 . 0 : {x} . 8080 }}",
    ),
)
"""What connections are counted by; without it none are."""


def transaction_of(feature: Feature, family: NftFamily) -> str:
    """Return the text that tries a feature in a table of its own."""
    address = {"ip": ("ipv4_addr", "192.0.2.1"), "ip6": ("ipv6_addr", "2001:db8::1")}[family]
    words = {"t": f"{family} {_PROBE}", "f": family, "a": address[0], "x": address[1]}
    commands = ("add table {t}", *feature.commands)
    return "".join(f"{command.format(**words)}\n" for command in commands)


async def find_missing(
    writer: NftWriter, families: tuple[NftFamily, ...], features: tuple[Feature, ...] = FEATURES
) -> list[str]:
    """Return a sentence for each feature that the kernel refuses; raises NftError otherwise.

    Nothing is left behind, for nothing is applied. Missing rights and a writer that does not work
    are no missing feature and are raised.
    """
    # Nearly always nothing is missing; then one question is enough. The kernel takes its time to
    # answer each.
    if await _are_all_there(writer, families, features):
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


async def _are_all_there(
    writer: NftWriter, families: tuple[NftFamily, ...], features: tuple[Feature, ...]
) -> bool:
    """Tell whether the kernel accepts all features in one transaction.

    NB: so each feature needs names of its own for maps and sets.
    """
    texts = [transaction_of(feature, family) for family in families for feature in features]
    try:
        await writer.check("".join(texts))
    except NftError:
        return False
    return True


def judge_kernel(release: str) -> str:
    """Return what is wrong with a kernel release such as "6.1.0-18-amd64", or ""."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        return ""
    version = int(found[1]), int(found[2])
    if version >= OLDEST_KERNEL:
        return ""
    oldest = ".".join(map(str, OLDEST_KERNEL))
    return f"the kernel is {release}; nftables for Services needs {oldest} or newer"


def judge_nft(said: str) -> str:
    """Return what is wrong with the answer to `nft --version`, or "".

    Older programs read the rules of the whole machine at every start.
    """
    found = re.search(r"v(\d+)\.(\d+)(?:\.(\d+))?", said)
    if found is None:
        return f"nft does not tell its version: {said[:80]!r}"
    version = tuple(int(part or 0) for part in found.groups())
    if version >= OLDEST_NFT:
        return ""
    oldest = ".".join(map(str, OLDEST_NFT))
    return f"nft is {'.'.join(map(str, version))}; {oldest} or newer is needed"


def may_change_network(status: str) -> bool:
    """Return whether a text of /proc/<pid>/status tells of CAP_NET_ADMIN."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> _CAP_NET_ADMIN & 1)


def find_obstacles(*, skip_kernel_version: bool = False) -> list[str]:
    """Return what stands against this process on this machine, without touching the network."""
    obstacles = []
    if not skip_kernel_version and (wrong := judge_kernel(os.uname().release)):
        obstacles.append(wrong)
    if not may_change_network(Path("/proc/thread-self/status").read_text()):
        obstacles.append(
            "the process lacks CAP_NET_ADMIN; run it as root, or as a pod with "
            "securityContext.capabilities.add: [NET_ADMIN]"
        )
    return obstacles
