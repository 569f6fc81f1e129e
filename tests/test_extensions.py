"""Heuristics that other distributions offer."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from keepclose.extensions import GROUP, ExtensionError, find_heuristics, load_heuristic
from keepclose.routing.heuristics import Matrix, ZoneDemand


class Stay:
    """A heuristic that keeps every endpoint for its own zone."""

    def allocate(self, demand: ZoneDemand) -> Matrix:
        """Return the diagonal."""
        return {zone: {zone: number} for zone, number in demand.endpoints.items()}


stay = Stay()


def point(name: str, value: str) -> EntryPoint:
    """Return an entry point of our group."""
    return EntryPoint(name=name, value=value, group=GROUP)


def test_a_heuristic_is_loaded_by_name() -> None:
    """An entry point named <domain>/<name> gives the object that it points to."""
    loaded = load_heuristic(point("example.dev/Stay", f"{__name__}:stay"))
    assert loaded.allocate(ZoneDemand({}, {"a": 2}, {})) == {"a": {"a": 2}}


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        pytest.param("Stay", "x:y", "its name must be <domain>/<name>", id="no domain"),
        pytest.param("a/b/c", "x:y", "its name must be <domain>/<name>", id="two slashes"),
        pytest.param("a.dev/X", "no_such_module:y", "cannot load no_such_module:y", id="no module"),
        pytest.param("a.dev/X", "json:dumps", "json:dumps has no method allocate", id="no method"),
    ],
)
def test_a_heuristic_that_cannot_be_used_is_named(name: str, value: str, want: str) -> None:
    """A broken extension is refused with its name and what is wrong with it."""
    with pytest.raises(ExtensionError, match=want) as caught:
        load_heuristic(point(name, value))
    assert name in str(caught.value)


def test_installed_heuristics_are_found() -> None:
    """Finding works on this machine and every found value has a domain."""
    assert all("/" in name for name in find_heuristics())
