"""Written weights: what a node does with them, and which ones a controller writes beside hints.

A node that follows weights uses all ready endpoints in proportion to the weights of its zone. Only
part of the traffic does so in a cluster where other nodes follow the hints: an endpoint could get
what it is meant to get by weights from one zone, and by hints from another. So the controller lets
a part of the traffic of the following nodes go by the hints, the least part with which no endpoint
is beyond the bound in any mixture of nodes. With all of it, weights equal the hints.

Weights that no node can trust are ignored, and hints decide as on any other node. Nothing here may
leave a node without endpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import gcd
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.validation import MAX_ZONE_HINTS
from keepclose.model.well_known import WEIGHTS_ANNOTATION
from keepclose.model.zone_weights import (
    ALL_BY_HINTS,
    MAX_WEIGHT,
    MAX_WEIGHTS_BYTES,
    WeightMatrix,
    ZoneWeights,
    is_too_long,
    render_zone_weights,
)
from keepclose.routing.allocation.zone_sizes import LEAST_SHARE
from keepclose.routing.hint_facts import FollowedHints, count_ready, name_group, zones_of
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode

WEIGHTS_HYSTERESIS: Final = 0.02
"""The part of the traffic that may leave its zone so that written weights stay."""
OVERLOAD_HYSTERESIS: Final = 0.1
"""How much more than with new weights an endpoint may carry so that written ones stay."""
_BLEND_HYSTERESIS: Final = 250
# Weights of endpoints on one node; a finer division would only make the rules longer.
_MAX_NODE_WEIGHT: Final = 100_000
_ROUNDING: Final = 1e-9


def follow_zone_weights(ready: Sequence[PortEndpoint], node: NodeView) -> FollowedHints:
    """Return the endpoints with their weights for this node, () if it cannot follow weights.

    Without written weights, and without endpoints, there is no reason.
    """
    written = ready[0].zone_weights if ready else None
    if written is None:
        return (), None
    problem = _find_problem(written, ready, node)
    if problem:
        return (), Reason(
            ReasonCode.WEIGHTS_IGNORED,
            f"the written weights are not followed: {problem}",
            subject=f"Node {node.name}",
        )
    row = written.weights[node.zone]
    weights = [row.get(endpoint.zone, 0) for endpoint in ready]
    if written.hints:
        hinted = [node.zone in endpoint.zone_hints for endpoint in ready]
        # A node that goes by hints alone uses all endpoints where none is hinted for its zone.
        by_hints = sum(hinted) or len(hinted)
        everywhere = not any(hinted)
        reach = sum(weights)
        part, rest = written.hints, ALL_BY_HINTS - written.hints
        weights = [
            rest * weight * by_hints + (part * reach if is_hinted or everywhere else 0)
            for weight, is_hinted in zip(weights, hinted, strict=True)
        ]
    weights = _reduce(weights)
    chosen = tuple(
        [
            replace(endpoint, weight=weight)
            for endpoint, weight in zip(ready, weights, strict=True)
            if weight
        ]
    )
    return chosen, Reason(
        ReasonCode.WEIGHTED,
        f"by the weights for zone {node.zone}: {len(chosen)} of {count_ready(len(ready))}",
    )


def _find_problem(written: ZoneWeights, ready: Sequence[PortEndpoint], node: NodeView) -> str:
    """Return why a node cannot follow the weights; "" if it can."""
    if written.problem:
        return written.problem
    bare = next((endpoint for endpoint in ready if not endpoint.zone_hints), None)
    if bare is not None:
        # NB: the weights and the hints have one writer. Where a hint is missing another one is at
        # work, or that writer is gone, and the weights are for other endpoints.
        return f"{bare.address} has no zone hint beside them"
    if not node.zone:
        return f"node {node.name} has no zone label"
    row = written.weights.get(node.zone)
    if row is None:
        return f"there are none for zone {node.zone}"
    if not any(row.get(endpoint.zone) for endpoint in ready):
        return f"no ready endpoint has a weight for zone {node.zone}"
    return ""


def _reduce(weights: Sequence[int]) -> list[int]:
    """Return the smallest whole numbers in the proportions of the weights; none is lost."""
    divisor = gcd(*weights)
    greatest = max(weights) // divisor
    if greatest <= _MAX_NODE_WEIGHT:
        return [weight // divisor for weight in weights]
    scale = greatest * divisor
    return [-(-weight * _MAX_NODE_WEIGHT // scale) for weight in weights]


def weights_of_flows(
    zones: Sequence[str], endpoints: Sequence[int], flows: Sequence[float]
) -> dict[str, dict[str, int]]:
    """Return the weights that give these flows; {} without any.

    Flows are a flat matrix, location times zones plus zone of the client. The greatest weight for
    the clients of a zone is `MAX_WEIGHT`; a client zone without flows has none.
    """
    weights: dict[str, dict[str, int]] = {}
    for client, name in enumerate(zones):
        parts = {
            zones[location]: max(0.0, flows[location * len(zones) + client]) / count
            for location, count in enumerate(endpoints)
            if count > 0
        }
        greatest = max(parts.values(), default=0.0)
        if greatest > 0.0:
            row = {zone: round(MAX_WEIGHT * part / greatest) for zone, part in parts.items()}
            weights[name] = {zone: weight for zone, weight in row.items() if weight}
    return weights


def hint_everywhere(
    shares: Mapping[str, float], endpoints: Mapping[str, int]
) -> dict[str, dict[str, int]] | None:
    """Return hints of all endpoints for all zones with traffic, which are as good as none.

    Nodes trust weights only beside hints. None if an endpoint cannot have hints for so many zones.
    No more than LEAST_SHARE is no traffic, as for Balanced, which would change the hints again.
    """
    busy = [zone for zone, share in shares.items() if share > LEAST_SHARE]
    if not 0 < len(busy) <= MAX_ZONE_HINTS:
        return None
    return {zone: {name_group(busy): number} for zone, number in endpoints.items() if number}


class WeightDecision(msgspec.Struct, frozen=True):
    """The weights to write, None for none, and the reason."""

    written: ZoneWeights | None
    reason: Reason


def settle_weights(
    desired: WeightMatrix,
    matrix: Mapping[str, Mapping[str, int]],
    *,
    shares: Mapping[str, float],
    bound: float,
    written: ZoneWeights | None = None,
    weighted_zones: Collection[str] = (),
) -> WeightDecision:
    """Return the weights to write beside the hints of a matrix.

    In `weighted_zones` all nodes follow weights; in every other zone any part of them may follow
    the hints. No endpoint gets more than the bound above the mean, unless the hints alone, or the
    desired weights alone, give it more. Written weights stay while they keep within that and are
    little worse than new ones. Those of too many zones for an annotation are not written.
    """
    model = _LoadModel(matrix, shares=shares, weighted_zones=weighted_zones)
    weights = {client: row for client, row in desired.items() if shares.get(client, 0.0) > 0.0}
    by_hints = model.worst(weights, ALL_BY_HINTS)
    allowed = max(bound, by_hints, model.overload(weights)) + _ROUNDING
    part = _least_part(model, weights, allowed)
    if not weights:
        return _withhold("weights are not written: they are for zones without traffic alone")
    if part == ALL_BY_HINTS:
        return _withhold(
            "weights are not written: beside nodes that follow the hints they would overload "
            f"endpoints by more than {allowed:.0%}",
            fix="let the proxies of all nodes follow and acknowledge weights",
        )
    fresh = ZoneWeights(weights=weights, hints=part)
    kept = written
    if kept is None or kept.problem or not _is_good_enough(model, kept, fresh, allowed):
        kept = fresh
    if is_too_long(render_zone_weights(kept)):
        return _withhold(
            f"weights are not written: those of {len(kept.weights)} zones take more than "
            f"{MAX_WEIGHTS_BYTES:,} characters"
        )
    in_zone = model.in_zone(kept.weights, kept.hints)
    text = f"weights are written for proxies that follow them, {in_zone:.1%} in zone"
    if kept.hints:
        text += (
            f"; {kept.hints / ALL_BY_HINTS:.0%} of that traffic follows the hints, "
            "as other nodes may follow only hints"
        )
    return WeightDecision(kept, Reason(ReasonCode.WEIGHTS_WRITTEN, text))


def _withhold(message: str, *, fix: str = "") -> WeightDecision:
    return WeightDecision(None, Reason(ReasonCode.WEIGHTS_WITHHELD, message, fix=fix))


def _least_part(model: _LoadModel, weights: WeightMatrix, allowed: float) -> int:
    """Return the least part of hints with which no endpoint gets more than is allowed."""
    if model.worst(weights, 0) <= allowed:
        return 0
    # The worst load is a convex function of the part, and all hints are within what is allowed.
    low, high = 0, ALL_BY_HINTS
    while high - low > 1:
        middle = (low + high) // 2
        if model.worst(weights, middle) <= allowed:
            high = middle
        else:
            low = middle
    return high


def _is_good_enough(
    model: _LoadModel, written: ZoneWeights, fresh: ZoneWeights, allowed: float
) -> bool:
    if not all(model.reach(written.weights, client) for client in fresh.weights):
        return False
    if written.weights.keys() - fresh.weights.keys():
        return False
    most = 0 if model.all_weighted else fresh.hints + _BLEND_HYSTERESIS
    lately = model.worst(fresh.weights, fresh.hints)
    most_overload = min(allowed, max(0.0, lately) + OVERLOAD_HYSTERESIS)
    least_in_zone = model.in_zone(fresh.weights, fresh.hints) - WEIGHTS_HYSTERESIS
    return (
        written.hints <= most
        and model.worst(written.weights, written.hints) <= most_overload
        and model.in_zone(written.weights, written.hints) >= least_in_zone
    )


def evaluate_zone_weights(
    written: ZoneWeights,
    matrix: Mapping[str, Mapping[str, int]],
    *,
    shares: Mapping[str, float],
) -> tuple[float, float]:
    """Return the part of the traffic that stays in its zone, and the highest overload.

    All nodes follow the weights; a zone without weights follows the hints of the matrix. No traffic
    gives (0, 0).
    """
    model = _LoadModel(matrix, shares=shares, weighted_zones=shares.keys())
    worst = model.worst(written.weights, written.hints)
    return model.in_zone(written.weights, written.hints), max(0.0, worst)


class _LoadModel:
    """Loads of endpoints, which are alike if their location and their hints are."""

    def __init__(
        self,
        matrix: Mapping[str, Mapping[str, int]],
        *,
        shares: Mapping[str, float],
        weighted_zones: Collection[str],
    ) -> None:
        self._kinds = [
            (location, frozenset(zones_of(group)), number)
            for location, row in matrix.items()
            for group, number in row.items()
            if number > 0
        ]
        whole = sum(share for share in shares.values() if share > 0.0) or 1.0
        self._clients = [
            (zone, share / whole, zone in weighted_zones)
            for zone, share in sorted(shares.items())
            if share > 0.0
        ]
        self._total = sum(number for _, _, number in self._kinds)
        self._hinted = {
            zone: sum(number for _, group, number in self._kinds if zone in group)
            for zone, _, _ in self._clients
        }
        self.all_weighted = all(is_weighted for _, _, is_weighted in self._clients)

    def worst(self, weights: WeightMatrix, part: int) -> float:
        """Return the greatest overload of an endpoint in any mixture of nodes."""
        return self._greatest(weights, part, mixed=True)

    def overload(self, weights: WeightMatrix) -> float:
        """Return the greatest overload if all nodes follow the weights alone."""
        return self._greatest(weights, 0, mixed=False)

    def in_zone(self, weights: WeightMatrix, part: int) -> float:
        """Return the part of the traffic of following nodes that stays in its zone."""
        kept = 0.0
        for zone, share, _ in self._clients:
            reach = self.reach(weights, zone)
            for location, group, number in self._kinds:
                if location == zone:
                    by_hints = self._by_hints(zone, group)
                    weighted = self._by_weights(weights, zone, location, reach, by_hints)
                    kept += share * number * self._blend(weighted, by_hints, part)
        return kept

    def reach(self, weights: WeightMatrix, zone: str) -> int:
        """Return the sum of the weights of all endpoints for the clients of a zone."""
        row = weights.get(zone, {})
        return sum(row.get(location, 0) * number for location, _, number in self._kinds)

    def _greatest(self, weights: WeightMatrix, part: int, *, mixed: bool) -> float:
        worst = 0.0
        reaches = {zone: self.reach(weights, zone) for zone, _, _ in self._clients}
        for location, group, _ in self._kinds:
            load = 0.0
            for zone, share, is_weighted in self._clients:
                by_hints = self._by_hints(zone, group)
                weighted = self._by_weights(weights, zone, location, reaches[zone], by_hints)
                blended = self._blend(weighted, by_hints, part)
                load += share * (max(blended, by_hints) if mixed and not is_weighted else blended)
            worst = max(worst, load)
        return self._total * worst - 1.0

    def _by_hints(self, zone: str, group: Iterable[str]) -> float:
        hinted = self._hinted[zone]
        if not hinted:
            return 1.0 / self._total
        return 1.0 / hinted if zone in group else 0.0

    @staticmethod
    def _by_weights(
        weights: WeightMatrix, zone: str, location: str, reach: int, by_hints: float
    ) -> float:
        """Return the part of one endpoint; that by hints for a zone without weights."""
        return weights[zone].get(location, 0) / reach if reach else by_hints

    @staticmethod
    def _blend(weighted: float, by_hints: float, part: int) -> float:
        rest = ALL_BY_HINTS - part
        return (rest * weighted + part * by_hints) / ALL_BY_HINTS


def read_weights_request(
    annotations: Mapping[str, str], *, default: bool
) -> tuple[bool, tuple[Reason, ...]]:
    """Return whether a Service asks for weights; the default and a reason for an invalid value."""
    text = annotations.get(WEIGHTS_ANNOTATION)
    if text is None:
        return default, ()
    if text in ("Enabled", "Disabled"):
        return text == "Enabled", ()
    present = "Enabled" if default else "Disabled"
    message = (
        f"metadata.annotations[{WEIGHTS_ANNOTATION}]: {text[:40]!r} is not Enabled or Disabled, so "
        f"{present} holds"
    )
    fix = f"set {WEIGHTS_ANNOTATION} to Enabled or Disabled"
    return default, (Reason(ReasonCode.WEIGHTS_INVALID, message, fix=fix),)
