"""Finding heuristics that other distributions offer, by the entry point group below.

An entry point is named by the value that users write, such as example.dev/Nearest, and loads to an
object with the method `allocate`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from keepclose.routing.heuristics import Heuristic, Registry

GROUP = "keepclose.heuristics"


class ExtensionError(Exception):
    """A heuristic that is installed but cannot be used; says which distribution and why."""


def find_heuristics() -> Registry:
    """Return all installed heuristics by the value that selects them; often none."""
    return {point.name: load_heuristic(point) for point in entry_points(group=GROUP)}


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
