"""The load of the busiest endpoint that hints lead to, by the shares of zones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def expect_busiest(hints: Mapping[str, Collection[str]], demand: Mapping[str, float]) -> float:
    """Return how many times an equal share the busiest endpoint gets; infinite without endpoints.

    `hints` are the zones of each endpoint. A zone without hinted endpoints uses all of them.
    """
    loads = dict.fromkeys(hints, 0.0)
    for zone, share in demand.items():
        hinted: Sequence[str] = [name for name, zones in hints.items() if zone in zones]
        for name in hinted or [*hints]:
            loads[name] += share / len(hinted or hints)
    total = sum(demand.values())
    return max(loads.values()) * len(loads) / total if loads else float("inf")
