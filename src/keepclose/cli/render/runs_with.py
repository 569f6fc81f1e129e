"""The legend of marked algorithms: whether a cluster can run them today, and with which proxy.

The simulator says it for each algorithm; this module only puts it into words below tables and
charts. A legend explains the marks that occur and no others.
"""

from __future__ import annotations

from collections.abc import Iterable

from keepclose.simulate.algorithms import Algorithm, RunsWith

_MEANINGS = {
    RunsWith.KEEPCLOSE_PROXY: "needs keepclose proxy",
    RunsWith.SIMULATOR: "simulator only",
}


def explain_marks(kinds: Iterable[RunsWith], *, best: bool = False) -> str:
    """Return the legend in one line; `best` explains the star behind the best total, too."""
    present = set(kinds)
    parts = ["* best total"] if best else []
    parts += [f"{kind.mark} {text}" for kind, text in _MEANINGS.items() if kind in present]
    if RunsWith.ANY_PROXY in present:
        others = "unmarked" if present & _MEANINGS.keys() else "all"
        parts.append(f"{others}: any proxy")
    return "; ".join(parts)


def explain_slices(algorithms: Iterable[Algorithm]) -> tuple[str, ...]:
    """Return the legend of algorithms whose slices are others in a cluster; () without any."""
    names = dict.fromkeys([item.name for item in algorithms if item.has_other_slices])
    if not names:
        return ()
    return (
        f"{', '.join(names)}: slices and total are those of KEP-2004;",
        "in a cluster weights on ordinary slices take the place of slices for each group",
    )
