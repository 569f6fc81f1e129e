"""Tests of ConfigMaps and Namespaces."""

from __future__ import annotations

import pytest

from keepclose.model.core_kinds import ConfigMap, Namespace, NamespaceStatus
from keepclose.model.meta import ObjectMeta


def test_a_config_map_has_a_key() -> None:
    """Its identity is that of its metadata."""
    assert ConfigMap(metadata=ObjectMeta(name="a", namespace="b")).key == ("b", "a")


@pytest.mark.parametrize(
    ("namespace", "want"),
    [
        pytest.param(Namespace(), False, id="a new one"),
        pytest.param(Namespace(status=NamespaceStatus(phase="Active")), False, id="an active one"),
        pytest.param(
            Namespace(status=NamespaceStatus(phase="Terminating")), True, id="one on its way out"
        ),
        pytest.param(
            Namespace(metadata=ObjectMeta(deletion_timestamp="2026-01-31T12:00:00Z")),
            True,
            id="one that was just deleted",
        ),
    ],
)
def test_a_namespace_that_goes_away(namespace: Namespace, want: bool) -> None:
    """Phase or deletion time tell that nothing may be created any more."""
    assert namespace.is_terminating is want
