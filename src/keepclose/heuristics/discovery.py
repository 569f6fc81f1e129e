"""Discovery of the heuristics that installed distributions provide as entry points.

The name of an entry point is the value that users write, such as example.dev/Nearest. The entry
point loads to an object with the method `allocate`. Only the heuristics of keepclose itself are
loaded into the calling process. Those of third parties run in worker processes, so discovery never
imports them and never fails because of them.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points

from keepclose.model.gates import FeatureGates, Gate
from keepclose.routing.heuristics import Heuristic, HeuristicRegistry

GROUP = "keepclose.heuristics"
_OWN_DISTRIBUTION = "keepclose"


class ExtensionError(Exception):
    """An installed heuristic that cannot be used; the message names it and the cause."""


def find_heuristics(gates: FeatureGates | None = None) -> HeuristicRegistry:
    """Return all installed heuristics by the value that selects them; none if their gate is off.

    No third-party code is imported. If two distributions provide the same value, keepclose itself
    takes precedence, then the distribution whose name sorts first.
    """
    if gates is not None and not gates.on(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS):
        return {}
    # NB: imported late, so that commands without heuristics start faster.
    from keepclose.heuristics.process import IsolatedHeuristic  # noqa: PLC0415

    registry: dict[str, Heuristic] = {}
    for point in sorted(entry_points(group=GROUP), key=_rank):
        if point.name not in registry:
            heuristic: Heuristic = IsolatedHeuristic(point.name, point.value)
            if _distribution(point) == _OWN_DISTRIBUTION:
                # If ours cannot be loaded, its worker process reports that as a failure.
                with suppress(ExtensionError):
                    heuristic = load_heuristic(point)
            registry[point.name] = heuristic
    return registry


def load_heuristic(point: EntryPoint) -> Heuristic:
    """Return the heuristic behind an entry point, or raise ExtensionError."""
    domain, slash, name = point.name.partition("/")
    if not (domain and slash and name) or "/" in name:
        raise ExtensionError(f"heuristic {point.name!r}: its name must be <domain>/<name>")
    try:
        loaded: Heuristic = point.load()
    except Exception as error:
        raise ExtensionError(
            f"heuristic {point.name}: cannot load {point.value}: {error}"
        ) from error
    if not callable(getattr(loaded, "allocate", None)):
        raise ExtensionError(f"heuristic {point.name}: {point.value} has no method allocate")
    return loaded


def _rank(point: EntryPoint) -> tuple[bool, str, str]:
    name = _distribution(point)
    return name != _OWN_DISTRIBUTION, name, point.value


def _distribution(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name
