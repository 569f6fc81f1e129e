"""What a resolution of many Services comes to: totals, and the Services that are worth a look.

Each node counts alike for each Service, because objects do not show traffic. Services that no node
routes, such as headless ones, or reaches have no share in zone, as in `keepclose plan`, nor has the
Service of the API server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from keepclose.advise.resolution import ResolvedService, ignored_reasons
from keepclose.advise.routed_traffic import in_percent
from keepclose.model.well_known import KUBERNETES_SERVICE
from keepclose.model.workload import Node
from keepclose.routing.reasons import Reason, ReasonCode

_WHOLE: Final = 0.9995
"""A share from which on it is shown as 100 %."""


class ServiceSummary(msgspec.Struct, frozen=True, rename="camel"):
    """What one Service comes to on the nodes that were asked about."""

    namespace: str
    name: str
    mechanism: str
    endpoints: int
    ready: int
    in_zone: float | None
    """The part of the nodes' traffic that stays in their zone; None where none is reached."""
    nodes_without: int
    """How many nodes drop or refuse traffic to its cluster IP."""
    has_fix: bool
    why: str
    """Why it is worth a look, in a few words; "" if it is not."""

    @property
    def title(self) -> str:
        """The Service as NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    @property
    def rank(self) -> tuple[bool, float, bool, str]:
        """The place among Services worth a look: failing ones, then the farthest from clients.

        The farthest has most endpoints that serve other zones; of two alike that with a fix leads.
        """
        far = (1.0 - (self.in_zone or 0.0)) * max(self.ready, 1)
        return self.nodes_without == 0, -round(far, 6), not self.has_fix, self.title


class ResolutionSummary(msgspec.Struct, frozen=True, rename="camel"):
    """The totals of a resolution."""

    services: int
    endpoints: int
    ready: int
    nodes: int
    zones: int
    mechanisms: dict[str, int]
    """How many Services each mechanism governs, the most frequent one first."""
    in_zone: float | None
    """The mean of the Services' shares."""
    with_fix: int
    without_endpoints: int
    """How many Services have nodes that drop or refuse their traffic."""
    worth_a_look: tuple[ServiceSummary, ...]
    """In the order of their rank."""


def summarise_resolution(
    resolved: Sequence[ResolvedService], nodes: Iterable[Node]
) -> ResolutionSummary:
    """Return the totals of Services that were resolved on some or all of these nodes."""
    zones = {node.name: node.zone for node in nodes}
    summaries = [summarise_service(each, zones) for each in resolved]
    shares = [each.in_zone for each in summaries if each.in_zone is not None]
    asked = {node for each in resolved for node in each.nodes}
    return ResolutionSummary(
        services=len(summaries),
        endpoints=sum(each.endpoints for each in summaries),
        ready=sum(each.ready for each in summaries),
        nodes=len(asked),
        zones=len({zones[node] for node in asked if zones.get(node)}),
        mechanisms=dict(Counter(each.mechanism for each in summaries).most_common()),
        in_zone=sum(shares) / len(shares) if shares else None,
        with_fix=sum(each.has_fix for each in summaries),
        without_endpoints=sum(each.nodes_without > 0 for each in summaries),
        worth_a_look=tuple(
            sorted((each for each in summaries if each.why), key=lambda each: each.rank)
        ),
    )


def summarise_service(resolved: ResolvedService, zones: Mapping[str, str]) -> ServiceSummary:
    """Return what a Service comes to; `zones` has the zone of each node."""
    endpoints: dict[str, bool] = {}
    for endpoint in (end for each in resolved.slices for end in each.endpoints):
        target = endpoint.target_ref
        key = target.name if target is not None else "".join(endpoint.addresses)
        endpoints[key] = endpoints.get(key, False) or endpoint.conditions.ready is not False
    in_zone, without = _measure_nodes(resolved, zones)
    if resolved.service.key == KUBERNETES_SERVICE:
        # Its endpoints are API servers, which no cluster can place near its nodes.
        return ServiceSummary(
            *resolved.service.key,
            resolved.strategy.label,
            len(endpoints),
            sum(endpoints.values()),
            None,
            0,
            has_fix=False,
            why="",
        )
    ready = sum(endpoints.values())
    fixable = next((reason for reason in _reasons(resolved) if _has_fix(reason)), None)
    return ServiceSummary(
        resolved.service.metadata.namespace,
        resolved.service.metadata.name,
        resolved.strategy.label,
        len(endpoints),
        ready,
        in_zone,
        without,
        fixable is not None,
        _describe(resolved, fixable, ready=ready, in_zone=in_zone, without=without),
    )


def _measure_nodes(resolved: ResolvedService, zones: Mapping[str, str]) -> tuple[float | None, int]:
    """Return the share that stays in its zone, and how many nodes reach no endpoint.

    A Service that no node reaches has no traffic, and so no share of it.
    """
    shares: list[float] = []
    is_reached = False
    without = 0
    for node, ports in resolved.nodes.items():
        reaches_all = True
        for port in ports:
            chosen = port.selection.internal.endpoints
            whole = sum(endpoint.weight for endpoint in chosen)
            is_reached = is_reached or bool(whole)
            reaches_all = reaches_all and bool(whole)
            zone = zones.get(node, "")
            near = sum(end.weight for end in chosen if zone and end.zone == zone)
            shares.append(near / whole if whole else 0.0)
        without += not reaches_all
    return (sum(shares) / len(shares) if is_reached else None), without


def _reasons(resolved: ResolvedService) -> Iterator[Reason]:
    yield from resolved.strategy.reasons
    yield from resolved.reasons
    for ports in resolved.nodes.values():
        for port in ports:
            # What concerns clients in the cluster comes before what concerns those outside.
            yield from port.selection.internal_reasons
            yield from port.selection.other_reasons
    for ports in resolved.nodes.values():
        for port in ports:
            yield from port.selection.external_reasons


def _has_fix(reason: Reason) -> bool:
    """Return whether a reason has a fix in the cluster, and not only in its dump."""
    return bool(reason.fix) and reason.code is not ReasonCode.PODS_MISSING


def _describe(
    resolved: ResolvedService,
    fixable: Reason | None,
    *,
    ready: int,
    in_zone: float | None,
    without: int,
) -> str:
    if without and not ready:
        return "no ready endpoint"
    if without:
        return f"{without:,} node{'' if without == 1 else 's'} reach{'es' * (without == 1)} none"
    if resolved.errors:
        return resolved.errors[0]
    if fixable is not None:
        return fixable.message
    if ignored := ignored_reasons(resolved):
        return ignored[0].message
    asks = bool(resolved.strategy.source)
    if asks and in_zone is not None and in_zone < _WHOLE:
        return f"{in_percent(1 - in_zone)} leaves its zone"
    return ""
