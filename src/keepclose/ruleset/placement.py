"""Commands that bring the fixed part of the table into the kernel.

A table that has the right marker and as many rules as it should is left alone. One of unknown
origin (kube-proxy's, or none) gets its base chains made anew, as their hooks cannot be changed in
place; one that carried another layout of ours gets only its rules replaced. All of it is one
transaction, so there is no moment without rules.
"""

from __future__ import annotations

from keepclose.ruleset.commands import (
    AddChain,
    AddMap,
    AddRule,
    AddSet,
    AddTable,
    Command,
    DeleteChain,
    DeleteSet,
    FlushChain,
)
from keepclose.ruleset.layout import NODEPORT_IPS, Layout
from keepclose.ruleset.listing import Listing
from keepclose.ruleset.names import LAYOUT
from keepclose.ruleset.tables import Chain

_COMMENT = "rules for Services, by keepclose"


def place_layout(layout: Layout, existing: Listing, *, trust: bool) -> list[Command]:
    """Return what makes the fixed part of the listed table this one; nothing if it is already."""
    if trust and all(existing.holds(chain) for chain in (layout.marker, *layout.chains)):
        return []
    markers = sorted([name for name in existing.chains if name.startswith(LAYOUT)])
    commands: list[Command] = [AddTable(_COMMENT)]
    if existing.chains and not markers:
        for chain in layout.chains:
            if chain.hook is not None:
                commands += [AddChain(Chain(chain.name)), DeleteChain(chain.name)]
    commands += [AddSet(one) for one in layout.sets]
    commands += [AddMap(one) for one in layout.maps]
    for chain in layout.chains:
        commands += [AddChain(chain), FlushChain(chain.name), *_rules(chain)]
    commands.append(AddChain(layout.marker))
    commands += [DeleteChain(name) for name in markers if name != layout.marker.name]
    if NODEPORT_IPS in existing.sets - {one.name for one in layout.sets}:
        commands.append(DeleteSet(NODEPORT_IPS))
    return commands


def replace_layout(placed: Layout, layout: Layout) -> list[Command]:
    """Return what turns one fixed part into another that has the same chains, sets and maps."""
    if placed.marker == layout.marker:
        return []
    commands: list[Command] = []
    for old, new in zip(placed.chains, layout.chains, strict=True):
        if old != new:
            commands += [FlushChain(new.name), *_rules(new)]
    return [*commands, AddChain(layout.marker), DeleteChain(placed.marker.name)]


def _rules(chain: Chain) -> list[AddRule]:
    return [AddRule(chain.name, rule) for rule in chain.rules]
