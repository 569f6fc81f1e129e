"""Finding heuristics that other distributions offer, by the entry point group below.

An entry point is named by the value that users write, such as example.dev/Nearest, and loads to an
object with the method `allocate`. Only our own heuristics are loaded into the process that asks;
those of others are run in processes of their own, so that finding them never fails.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points

from keepclose.model.gates import FeatureGates, Gate
from keepclose.routing.heuristics import Heuristic, Registry

GROUP = "keepclose.heuristics"
_OWN = "keepclose"


class ExtensionError(Exception):
    """A heuristic that is installed but cannot be used; says which distribution and why."""


def find_heuristics(gates: FeatureGates | None = None) -> Registry:
    """Return all installed heuristics by the value that selects them; none if their gate is off.

    Nothing of third parties is imported. Where two distributions offer the same value ours wins,
    then the one whose name comes first.
    """
    if gates is not None and not gates.on(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS):
        return {}
    # NB: loaded only where heuristics are used at all.
    from keepclose.heuristics.process import IsolatedHeuristic  # noqa: PLC0415

    found: dict[str, Heuristic] = {}
    for point in sorted(entry_points(group=GROUP), key=_rank):
        if point.name not in found:
            heuristic: Heuristic = IsolatedHeuristic(point.name, point.value)
            if _distribution(point) == _OWN:
                # One of ours that cannot be loaded is asked in a process, and so reported.
                with suppress(ExtensionError):
                    heuristic = load_heuristic(point)
            found[point.name] = heuristic
    return found


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
    return name != _OWN, name, point.value


def _distribution(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name
