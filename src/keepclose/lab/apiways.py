"""The ways of nodes to the API server after they were cut, until the nodes are back on them.

Whoever loses the API server tries again after pauses that grow to half a minute, so a way that is
open may lie idle for a while. A node is back when it has as many connections as it had before, as
far as these were watches of its proxy: one for single requests is only made when there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from keepclose.kube.clock import Clock
from keepclose.lab.access import ApiWay

PATIENCE_S: Final = 15.0
WATCHES: Final = 4
"""What a proxy watches: Services, slices, its node, ranges of cluster IPs."""
_REST_S: Final = 0.05
_SYNC_S: Final = 0.5


async def await_return(
    ways: Mapping[str, ApiWay],
    before: Mapping[str, int],
    *,
    clock: Clock,
    on_wait: Callable[[list[str]], None],
    patience_s: float = PATIENCE_S,
) -> list[str]:
    """Wait until nodes have as many connections as before; return those that are still away.

    `on_wait` hears for whom, each time that this changes. Nodes without a way do not count.
    """
    began = clock.monotonic()
    told: list[str] = []
    while away := [
        node
        for node, count in before.items()
        if node in ways and ways[node].connections < min(count, WATCHES)
    ]:
        if away != told:
            told = away
            on_wait(away)
        if clock.monotonic() - began >= patience_s:
            return away
        await clock.sleep(_REST_S)
    if told:
        # What they learn from now on is in effect a moment later.
        await clock.sleep(_SYNC_S)
    return []
