"""What a scenario does: the figures of the cluster before it, beside those after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from keepclose.advise.planning.service_plans import ClusterPlan, PlannedService

_SAME = 5e-4


class ScenarioRow(msgspec.Struct, frozen=True, rename="camel"):
    """One figure of a Service, or of the cluster, before and after."""

    name: str
    """The Service as namespace/name; "" for the totals."""
    ready: tuple[int, int]
    in_zone: tuple[float, float]
    on_node: tuple[float, float]
    failed: tuple[float, float]
    busiest: tuple[float, float]
    cost: tuple[float | None, float | None] = (None, None)

    @property
    def is_changed(self) -> bool:
        """Whether any figure differs as it is shown."""
        pairs = (self.ready, self.in_zone, self.on_node, self.failed, self.busiest)
        before, after = self.cost
        if before is not None and after is not None and abs(before - after) > _SAME:
            return True
        return any(abs(before - after) > _SAME for before, after in pairs)


class ScenarioComparison(msgspec.Struct, frozen=True, rename="camel"):
    """A scenario in words, its totals, and the Services whose figures change."""

    changes: tuple[str, ...]
    totals: ScenarioRow
    services: tuple[ScenarioRow, ...]


def compare_plans(
    changes: Sequence[str], before: ClusterPlan, after: ClusterPlan
) -> ScenarioComparison:
    """Return what changes between two plans of the same Services, the largest change first."""
    earlier = {each.key: each for each in before.services}
    rows = [
        _row(each.key, earlier[each.key], each) for each in after.services if each.key in earlier
    ]
    changed = [row for row in rows if row.is_changed]
    changed.sort(key=lambda row: (-_size(row), row.name))
    weights = {each.key: each.weight for each in before.services}
    return ScenarioComparison(
        tuple(changes),
        ScenarioRow(
            "",
            _total(rows, lambda row: row.ready),
            _mean(rows, weights, lambda row: row.in_zone),
            _mean(rows, weights, lambda row: row.on_node),
            _mean(rows, weights, lambda row: row.failed),
            _most(rows),
            (before.totals.cost, after.totals.cost),
        ),
        tuple(changed),
    )


def _row(name: str, before: PlannedService, after: PlannedService) -> ScenarioRow:
    old, new = before.now, after.now
    return ScenarioRow(
        name,
        (before.ready, after.ready),
        (old.in_zone, new.in_zone),
        (old.on_node, new.on_node),
        (old.failed, new.failed),
        (old.busiest, new.busiest),
        (before.cost, after.cost),
    )


def _size(row: ScenarioRow) -> float:
    return max(
        abs(row.failed[1] - row.failed[0]),
        abs(row.in_zone[0] - row.in_zone[1]),
        abs(row.busiest[1] - row.busiest[0]),
    )


def _total(
    rows: Sequence[ScenarioRow], of: Callable[[ScenarioRow], tuple[int, int]]
) -> tuple[int, int]:
    return sum(of(row)[0] for row in rows), sum(of(row)[1] for row in rows)


def _mean(
    rows: Sequence[ScenarioRow],
    weights: Mapping[str, float],
    of: Callable[[ScenarioRow], tuple[float, float]],
) -> tuple[float, float]:
    """Return means with the weights before: a Service that loses all its endpoints still counts."""
    whole = sum(weights.values()) or 1.0
    before, after = (sum(weights[row.name] * of(row)[side] for row in rows) for side in (0, 1))
    return before / whole, after / whole


def _most(rows: Sequence[ScenarioRow]) -> tuple[float, float]:
    return (
        max((row.busiest[0] for row in rows), default=0.0),
        max((row.busiest[1] for row in rows), default=0.0),
    )
